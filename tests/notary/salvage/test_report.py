"""Tests of the text about a salvage: its plan, and its refusal."""

from collections.abc import Sequence

from notary.salvage.choice import Choice, ForkedCheckpoint, choose
from notary.salvage.reach import Reach, WaitingBatch
from notary.salvage.report import after, lines_forgotten, lines_of, sides_of
from notary.salvage.statements import THE_LOG, ChoiceRefused
from ordering.salvage import Hashed, Item, Lost
from tests.notary.salvage.witnesses import MemoryIndex, decided, receipt

ROOT = bytes(32)


def batch(sequence: int, first: int, requests: int) -> WaitingBatch:
    return WaitingBatch(20 + sequence, 2, sequence, 0, first, requests, missing=True)


def plan(choice: Choice, waiting: Sequence[WaitingBatch], decided_at_source: int) -> list[str]:
    """Returns the lines of the plan that do not follow from the ones before them."""
    reach = Reach(6, 21, 0, 9, tuple(waiting), decided_at_source, 9)
    lines = [*lines_of(choice, [], [], {}, reach), *lines_forgotten(choice, reach)]
    return [line for line in lines if any(character.isdecimal() for character in line) or line.startswith("checkpoints")]


def test_each_side_names_the_answers_that_it_has() -> None:
    """A source that reaches no further than the position contradicts no answer."""
    log = MemoryIndex(THE_LOG, [decided(position, position) for position in range(3)])
    indexes = [MemoryIndex(name, [decided(position, position) for position in range(size)]) for name, size in (("w1", 3), ("w2", 5))]
    receipts = [receipt(name, [decided(0, 0), decided(1, 1)], position) for name, position in (("q", 1), ("r", 0))]
    lines = list(sides_of(ChoiceRefused(3, "two leaves", ["w1"], ["w2"], ["q", "r"]), log, indexes, receipts, None))
    assert lines == [
        "               without w1: contradicts no answer",
        "               without w2: contradicts the answers for positions 3 to 4 that it has",
        "               without q, r: contradicts the answers for positions 0, 1",
    ]


def test_a_log_on_the_wrong_side_is_restored_up_to_an_offset() -> None:
    """Without the log the salvage is made in new topics, which have it up to before the entry that shows the contradiction."""
    log, index = MemoryIndex(THE_LOG, [decided(0, 0), decided(1, 9)]), MemoryIndex("w1", [decided(0, 0), decided(1, 1)])
    refusal = ChoiceRefused(1, "two leaves", [THE_LOG], ["w1"])
    restored, copied = [next(iter(sides_of(refusal, log, [index], [], until))) for until in (17, None)]
    assert restored == "               without the log: archive it, restore that into new topics with --until 17, and salvage there"
    assert copied == "               without the log: copy the log up to before position 1 into new topics, and salvage there"


def test_an_earlier_salvage_changes_no_later_checkpoint() -> None:
    """Position 1 is lost since an earlier salvage. Checkpoints from after it keep their roots, and the plan says so."""
    items: list[Item] = [decided(0, 0), Lost(), *[decided(position, position) for position in range(2, 8)]]
    choice = choose(MemoryIndex(THE_LOG, items[:4]), [MemoryIndex("w1", items)], [])
    lines = list(lines_of(choice, [], [], {}, Reach(4, 0, 0, 0, (), 0, 0)))
    at = next(number for number, line in enumerate(lines) if line.startswith("checkpoints"))
    assert lines[at : at + 2] == [
        "checkpoints    all keep their roots, and are consistent with the new tree",
        "               except those above 1 from before the salvage that declared that position lost",
    ]


def test_the_plan_of_a_large_loss() -> None:
    """It names what is sealed, put back, lost, forked and forgotten; of many only the first, and how many more there are."""
    items: list[Item] = [Lost() if position % 2 == 0 else decided(position, position) for position in range(6, 18)]
    items += [Hashed(ROOT)] * 2
    forked = [ForkedCheckpoint(size, ROOT, "r") for size in range(9, 20)]
    waiting = [batch(1, 6, 14), *[batch(sequence, 16 + 2 * sequence, 2) for sequence in range(2, 8)]]
    assert plan(Choice(6, tuple(items), (), ROOT, 4, tuple(forked)), waiting, 30) == [
        "seal           the log ends at the entry of batch (2, 1), whose content is missing:",
        "put back       6 decisions, as they were: positions 7, 9, 11, 13, 15 and 1 more ranges",
        "hash alone     positions 18 to 19: nobody has these decisions, only the hashes of their leaves",
        "lost           positions 6, 8, 10, 12, 14 and 1 more ranges: nobody knows these decisions",
        "checkpoints    of sizes up to 6 keep their roots. From larger ones that were signed before,",
        "               up to 20, no consistency proof leads to the new tree; their receipts still verify",
        "               except those above 4 from before the salvage that declared that position lost",
        *[f"               size {size}, root {ROOT.hex()}, in r" for size in range(9, 19)],
        "               and 1 more (--json lists them)",
        f"the log gets   20 decisions with the root {ROOT.hex()}",
        "forgotten      what was answered for positions 20 to at most 31: no source has these decisions",
        *[f"               batch (2, {sequence}), 2 requests: its content is missing" for sequence in range(2, 7)],
        "               and 1 more batches",
        "               a checkpoint behind them shows that a worker had decided 30",
    ]


def test_the_plan_of_a_batch_that_is_forgotten_in_part() -> None:
    """Its first decision is put back. Without a waiting batch all checkpoints keep their roots."""
    choice = Choice(6, (decided(6, 6),), (), ROOT, 7, ())
    put_back, gets = "put back       1 decisions, as they were: positions 6", f"the log gets   7 decisions with the root {ROOT.hex()}"
    assert plan(choice, [batch(1, 6, 3)], 7) == [
        "seal           the log ends at the entry of batch (2, 1), whose content is missing:",
        put_back,
        "checkpoints    of sizes up to 7 keep their roots; from larger ones nothing leads to the new tree",
        gets,
        "forgotten      what was answered for positions 7 to at most 8: no source has these decisions",
        "               batch (2, 1), 3 requests: its content is missing",
    ]
    assert plan(choice, [], 7) == [put_back, "checkpoints    all keep their roots, and are consistent with the new tree", gets]


def test_the_plan_names_its_sources() -> None:
    """The largest checkpoint shows how far the salvage goes."""
    history = [decided(position, position, position) for position in range(4)]
    log, index = MemoryIndex(THE_LOG, history[:2]), MemoryIndex("w1", history)
    receipts = [receipt("q", history, 0, size=2), receipt("r", history, 1)]
    lines = list(lines_of(choose(log, [index], receipts), [index], receipts, {"folder": (2, 1)}, Reach(2, 0, 0, 0, (), 0, 0)))
    assert lines[:3] == [
        "source         index w1, 4 decisions",
        "source         folder, 2 receipts and 1 requests",
        "receipts       2, up to a tree of 4 decisions",
    ]


def test_the_next_steps_name_the_key() -> None:
    """An embedded log has one worker, beside its key. A key that nothing endorses is given to everybody by hand."""
    names = "resumed offset decisions root verifier_key endorsed key_file key_history_file"
    facts = dict(zip(names.split(), (False, 9, 1_200, "abcd", "K", True, "key.pem", "keys.json"), strict=True))
    has = ["the log has    1,200 decisions with the root abcd, read back and compared", "new key        K"]
    assert list(after(facts, embedded=False)) == [
        "took effect    ordering record 9",
        *has,
        "next           copy key.pem and keys.json to every worker's machine:",
        "               workers without the key cannot write. Move old indexes away, and start the workers",
    ]
    assert list(after({**facts, "resumed": True, "endorsed": False}, embedded=True)) == [
        "completed      a salvage that took effect in an earlier run",
        *has,
        "               Nothing endorses it: give it to every client and verifier",
        "next           move old indexes away, and start the worker",
    ]
