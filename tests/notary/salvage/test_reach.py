"""The reach of a mirror, on logs of which each topic-partition has only its beginning."""

import msgspec

from notary.salvage.reach import BATCHES_SHOWN, Reach, WaitingBatch, facts_of_reach, lines_of_reach, reach_of
from ordering.log import ORDERING
from ordering.records import Fence, View
from ordering.signatures import endorse_key
from tests.joiner.history import History, signing_key
from tests.joiner.salvaged import SalvageReader


def mirror(ordering: int, payload: int, labels: str = "abcdef") -> tuple[History, Reach]:
    """Returns a log of which so many records of both topics came, and its reach. The first entry is ordering record 2."""
    history = History()
    history.register("w1", version=2)
    for sequence, label in enumerate(labels, 1):
        history.entry(1, sequence, label)
        history.payload(1, sequence, label)
    history.checkpoint(1, len(labels))
    history.cut({ORDERING: ordering, 0: payload})
    return history, reach(history)


def reach(history: History) -> Reach:
    reader = SalvageReader(history).read()
    assert reader.joiner.log_state is not None
    return reach_of(reader.joiner.snapshot(), reader.joiner.log_state, reader.index.position_next)


def test_a_complete_mirror_lacks_nothing() -> None:
    """Nothing waits behind the reach of a mirror that has both topics to the same batch, or more of the payload topic."""
    for payload in (3, 6):
        _, found = mirror(5, payload)
        assert (found.decisions, found.offset_head, found.waiting, found.decided_at_source) == (3, 5, (), 0)
        assert not any("missing" in line for line in lines_of_reach(found, "noon"))


def test_missing_contents_are_named_by_position() -> None:
    """Each entry whose content has not come, and each behind one, is named with its positions; a checkpoint shows the source's size."""
    history, found = mirror(9, 2)
    log_time_ms = history.by_partition[ORDERING][3].append_time_ms
    assert (found.decisions, found.offset_head, found.log_time_ms, found.decided_at_source) == (2, 4, log_time_ms, 6)
    assert [(each.sequence, each.first, each.missing) for each in found.waiting] == [(3, 2, True), (4, 3, True), (5, 4, True), (6, 5, True)]
    assert facts_of_reach(found)["missing"] == [[2, 2], [3, 3], [4, 4], [5, 5]]
    lines = list(lines_of_reach(found, "noon"))
    assert lines[0].startswith("the mirror has 2 decisions, up to ordering record 3;")
    assert "positions 2 to at most 2: batch (1, 3), its content is missing" in lines[1]
    assert "the source had decided positions 2 to 5" in lines[-1]


def test_a_content_that_came_waits() -> None:
    """A batch behind a hole whose own content has come is no missing content, but is not decided either."""
    history, _ = mirror(9, 2)
    history.payload(1, 3, "x")  # under the name of the missing one, and not its content
    history.payload(1, 4, "d")
    history.payload(1, 5, "x")
    history.fill(1, 6)
    assert [each.missing for each in reach(history).waiting] == [True, False, True, False]


def test_records_of_others_show_nothing() -> None:
    """An entry or a checkpoint that the notary's key has not signed says nothing about the source."""
    history, before = mirror(4, 1)
    history.key = signing_key("somebody")
    history.entry(1, 9, "x")
    history.checkpoint(1, 99)
    assert reach(history).waiting == before.waiting
    assert reach(history).decided_at_source == 0


def test_records_behind_a_rotation_are_signed_with_its_key() -> None:
    """The rotation waits behind the missing content too. Only the owner can rotate."""
    history, _ = mirror(4, 1)
    thief, view = signing_key("thief"), bytes(32)
    history.ordering(endorse_key(thief, history.log_id, history.key.public_key), key=thief)
    history.entry(1, 9, "x", key=thief)
    history.rotate(signing_key("new"))
    history.payload(1, 3, "c", "d", partition=1)
    history.entry(1, 3, "c", "d", partition=1)
    history.entry(1, 4, "e", partition=1)
    history.fill(1, 4, partition=1)
    history.checkpoint(1, 5, view=View(50, view))
    history.checkpoint(1, 4)
    found = reach(history)
    waiting = [(each.sequence, each.first, each.end, each.missing) for each in found.waiting]
    assert waiting == [(2, 1, 2, True), (3, 2, 4, False), (4, 4, 5, False)]
    assert (found.seen, found.decided_at_source, found.seen_at_source) == (3, 5, 50)
    history.ordering(Fence(1, View(60, view), 1, 4))
    assert reach(history).seen_at_source == 60
    history.register("w2", view=View(70, view))
    assert reach(history).seen_at_source == 70


def test_a_copy_of_a_rotation_brings_no_key_back() -> None:
    """A mirror that begins again repeats records, and anybody may copy one: the key of the last rotation stays in force."""
    history, _ = mirror(4, 1)
    first = history.rotate(signing_key("new"))
    history.rotate(signing_key("newer"))
    history.put(ORDERING, None, first.value)
    history.checkpoint(1, 5)
    assert reach(history).decided_at_source == 5


def test_a_copy_of_an_entry_does_not_wait() -> None:
    """Anybody may copy records behind a missing content. An entry that was decided, or waits already, has no positions of its own."""
    history, before = mirror(5, 1)
    for entry in history.by_partition[ORDERING][2:5]:
        history.put(ORDERING, None, entry.value)
    history.register("w1")
    history.entry(1, 9, "x")
    history.entry(2, 1, "y")
    found = reach(history).waiting
    assert found[:2] == before.waiting
    assert [(each.incarnation, each.sequence, each.first) for each in found] == [(1, 2, 1), (1, 3, 2), (2, 1, 3)]


def test_only_what_the_source_had_more_is_named() -> None:
    """A checkpoint of the mirror's size, or a view of its history, shows nothing more."""
    waiting = tuple([WaitingBatch(9 + number, 1, number, 0, 3 + number, 1, missing=True) for number in range(BATCHES_SHOWN)])
    found = Reach(3, 9, 0, 7, waiting, 3, 7)
    assert len(list(lines_of_reach(found, "noon"))) == 1 + 2 * BATCHES_SHOWN
    *_, last = lines_of_reach(msgspec.structs.replace(found, seen_at_source=8), "noon")
    assert "a view shows 8 records in effect, and here are 7" in last


def test_many_batches_are_counted() -> None:
    """Only the first batches are listed, and the rest is a number."""
    _, found = mirror(14, 1, "abcdefghijkl")
    assert len(found.waiting) == 11
    text = "\n".join(lines_of_reach(found, "noon"))
    assert text.count("its content is missing") == BATCHES_SHOWN
    assert f"and {11 - BATCHES_SHOWN} more batches, up to position 11 at most" in text
