"""Tests that a hole that another writer has passed is a loss (R10): reading ahead finds it, and it is not filled."""

import asyncio
from collections.abc import Mapping

import pytest

from joiner.control import LogState
from joiner.read_ahead import TAKEN_AT_ONCE, Passing, ReadAhead, read_ahead
from ordering.errors import NotReady
from ordering.log import ORDERING, LogOffsets, Record
from ordering.memory import MemoryLog
from ordering.records import Fence, Settle, View
from tests.joiner.history import OWNER, History, Reading, signing_key
from tests.turns import counted_turns

SECOND, THIRD = signing_key("second"), signing_key("third")


def _hole() -> tuple[History, Reading]:
    """Returns a log and a reader that waits for the content of (1, 1): ordering record 2, after 2 records that took effect."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1"), history.entry(1, 1, "lost"))
    assert reading.joiner.hole is not None
    return history, reading


async def _passing(history: History, reading: Reading) -> Passing | None:
    return (await _read_ahead(history, reading))[0]


async def _read_ahead(history: History, reading: Reading) -> tuple[Passing | None, LogState]:
    log = MemoryLog(2, identity="test")
    log._records = {partition: list(records) for partition, records in history.by_partition.items()}
    joiner = reading.joiner
    assert joiner.log_state is not None
    return await read_ahead(log, joiner.log_state, joiner.offset_head, joiner.history)


def _view(seen: int) -> View:
    return View(seen, b"whatever it was".ljust(32))


async def test_nobody_has_passed_it() -> None:
    """Records whose writers were at the hole, or before it, show no loss."""
    history, reading = _hole()
    history.entry(1, 2, "b", view=_view(2))
    history.register("w2", view=_view(1))
    history.checkpoint(1, 0, view=_view(0))
    assert await _passing(history, reading) is None


@pytest.mark.parametrize("kind", ["entry", "register", "fence", "checkpoint"])
async def test_who_has_seen_more_has_passed_it(kind: str) -> None:
    """A correctly signed record of any worker record type, whose writer had seen one record more, shows that the content was there."""
    history, reading = _hole()
    history.put(ORDERING, None, b"garbage")
    history.put(ORDERING, None, None)
    match kind:
        case "entry":
            history.entry(1, 2, "b", view=_view(3))
        case "register":
            history.register("w2", view=_view(3))
        case "fence":
            history.ordering(Fence(1, _view(3), 1, 0))
        case "checkpoint":
            history.checkpoint(1, 1, view=_view(3))
    assert await _passing(history, reading) == Passing(5, 3)


async def test_a_record_that_does_not_count_is_evidence() -> None:
    """A record is evidence by its writer's view, whether the record itself counts or not."""
    history, reading = _hole()
    history.entry(77, 1, "b", view=_view(9))
    assert await _passing(history, reading) == Passing(3, 9)


async def test_the_owner_gives_up_what_was_known_behind_it() -> None:
    """After a settle record for the history before the hole, earlier records are no evidence any more, later ones are."""
    history, reading = _hole()
    view = reading.joiner.history.view
    assert view.seen == 2
    history.entry(1, 2, "b", view=_view(3))
    history.settle(_view(2))
    history.ordering(Settle(view), key=signing_key("stranger"))
    assert await _passing(history, reading) == Passing(3, 3)
    history.settle(view)
    assert await _passing(history, reading) is None
    history.entry(1, 3, "b", view=_view(4))
    assert await _passing(history, reading) == Passing(7, 4)
    # A copy settles nothing: any writer may append it.
    history.settle(view)
    assert await _passing(history, reading) == Passing(7, 4)


async def test_a_settle_record_behind_a_rotation_names_the_new_key() -> None:
    """From format version 2 on the content is given up only by a settle record that names the key in force at its place."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1", version=2), history.activate(2), history.entry(1, 1, "lost"))
    view, first = reading.joiner.history.view, history.key
    history.entry(1, 2, "b", view=_view(4))
    history.rotate(SECOND)
    history.owner(Settle(view, first.public_key))
    history.owner(Settle(view))
    assert await _passing(history, reading) == Passing(4, 4)
    history.settle(view)
    assert await _passing(history, reading) is None


@pytest.mark.parametrize("key", [OWNER, SECOND], ids=["owner", "stranger"])
async def test_unsigned_records_show_nothing(key: object) -> None:
    """A record by a writer without the notary's key in force cannot make a worker stop at a hole."""
    history, reading = _hole()
    history.entry(1, 2, "b", view=_view(9), key=key)  # type: ignore[arg-type]
    assert await _passing(history, reading) is None


async def test_a_settle_record_shows_nothing() -> None:
    """A settle record is no evidence: the owner's records have no writer's view."""
    history, reading = _hole()
    history.settle(_view(9))
    history.partitions(3)
    history.retire(2**63)
    assert await _passing(history, reading) is None


async def test_keys_are_followed() -> None:
    """After a key record only records signed with the new key are evidence, through any number of rotations."""
    history, reading = _hole()
    first = history.key
    history.rotate(SECOND)
    history.entry(1, 2, "b", view=_view(9), key=first)
    assert await _passing(history, reading) is None
    history.rotate(THIRD)
    history.entry(1, 2, "b", view=_view(9), key=SECOND)
    assert await _passing(history, reading) is None
    history.entry(1, 3, "b", view=_view(8))
    assert await _passing(history, reading) == Passing(7, 8)


async def test_key_records_that_do_not_count_are_not_followed() -> None:
    """A key record that the owner has not signed, a torn one, or one for a former key does not change the key."""
    history, reading = _hole()
    rotation = history.rotate(SECOND)
    del history.by_partition[ORDERING][-1]
    value = rotation.value or b""
    history.put(ORDERING, None, value[:-1] + bytes([value[-1] ^ 1]))
    history.put(ORDERING, None, value[:50])
    history.entry(1, 2, "b", view=_view(9), key=SECOND)
    assert await _passing(history, reading) is None


async def test_short_records_show_nothing() -> None:
    """Records that are too short for a view are no evidence."""
    history, reading = _hole()
    for kind in range(12):
        for length in range(30):
            history.put(ORDERING, None, bytes([1, kind]) + b"\xff" * length)
    assert await _passing(history, reading) is None


async def test_a_log_that_gives_nothing_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the ordering topic cannot be read to its end, it is unknown whether the hole was passed."""
    monkeypatch.setattr("joiner.read_ahead.READ_AHEAD_S_MAX", 0.05)
    history, reading = _hole()
    log = MemoryLog(2, identity="test")
    log._records = {partition: list(records) for partition, records in history.by_partition.items()}

    async def further() -> Mapping[int, LogOffsets]:
        return {ORDERING: LogOffsets(0, 9)}

    log.offsets = further  # type: ignore[method-assign]
    assert reading.joiner.log_state is not None
    with pytest.raises(NotReady, match="could not be read on"):
        await read_ahead(log, reading.joiner.log_state, 2, reading.joiner.history)


class _SlowLog(MemoryLog):
    """A log with the records of a history, which returns one record at a time; from `fails_at` on it fails."""

    def __init__(self, history: History) -> None:
        super().__init__(2, identity="test")
        self._records = {partition: list(records) for partition, records in history.by_partition.items()}
        self.fails_at = 1 << 60
        self.returned: list[int] = []

    def read(self, partition: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        if partition == ORDERING and offset_next >= self.fails_at:
            raise NotReady("no leader")
        records = super().read(partition, offset_next, bytes_max, 1)
        self.returned += [record.offset for record in records if record.partition == ORDERING]
        return records


def _forged(history: History, count: int) -> None:
    """Append records that claim to be behind the hole, each of which must be verified."""
    for number in range(count):
        history.entry(1, 2 + number, "b", view=_view(1 << 40), key=SECOND)


def _ahead(reading: Reading) -> ReadAhead:
    assert reading.joiner.log_state is not None
    return ReadAhead(reading.joiner.log_state, 3, reading.joiner.history)


async def test_progress_moves_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ahead may take longer than its limit in all: anyone can put any number of forged records behind a hole."""
    history, reading = _hole()
    _forged(history, 30)
    history.entry(1, 99, "b", view=_view(9))
    log, ahead = _SlowLog(history), _ahead(reading)
    monkeypatch.setattr("joiner.read_ahead.READ_AHEAD_S_MAX", 0.3)
    open_reader = log.open_reader

    async def slow(offsets_next: Mapping[int, int]) -> object:
        reader = await open_reader(offsets_next)
        poll = reader.poll

        async def slowly(timeout_ms: int) -> list[Record]:
            await asyncio.sleep(0.02)
            return await poll(timeout_ms)

        reader.poll = slowly  # type: ignore[method-assign]
        return reader

    log.open_reader = slow  # type: ignore[method-assign, assignment]
    await ahead.read(log)
    assert ahead.passing == Passing(33, 9)


async def test_a_later_attempt_goes_on() -> None:
    """An attempt for the same hole reads only the records that the one before it did not reach."""
    history, reading = _hole()
    _forged(history, 10)
    log, ahead = _SlowLog(history), _ahead(reading)
    log.fails_at = 8
    with pytest.raises(NotReady):
        await ahead.read(log)
    assert log.returned == [3, 4, 5, 6, 7]
    log.fails_at = 1 << 60
    log.returned.clear()
    assert await ahead.still_holds(log)
    log.returned.clear()
    await ahead.read(log)
    assert log.returned == [8, 9, 10, 11, 12]
    assert ahead.passing is None


@pytest.mark.parametrize("lost", [6, 7, 8])
async def test_an_attempt_on_another_log_starts_anew(lost: int) -> None:
    """Progress counts only while the log has the last records that were read: the last one, those of its append time, and one more."""
    history, reading = _hole()
    _forged(history, 6)
    records = history.by_partition[ORDERING]
    records[7:9] = [Record(ORDERING, record.offset, records[8].append_time_ms, None, record.value) for record in records[7:9]]
    log, ahead = _SlowLog(history), _ahead(reading)
    assert await ahead.still_holds(log)
    await ahead.read(log)
    assert await ahead.still_holds(log)
    log._records[ORDERING][lost] = Record(ORDERING, lost, records[lost].append_time_ms, None, b"another")
    assert not await ahead.still_holds(log)


async def test_the_loop_turns_while_forged_records_are_verified() -> None:
    """Other tasks run while many forged records behind a hole are verified."""
    history, reading = _hole()
    _forged(history, 10 * TAKEN_AT_ONCE)
    log, ahead = MemoryLog(2, identity="test"), _ahead(reading)
    log._records = {partition: list(records) for partition, records in history.by_partition.items()}
    async with counted_turns() as turns:
        await ahead.read(log)
    assert turns.count >= 10


async def test_a_settle_record_behind_an_activation_has_its_new_form() -> None:
    """Its form depends on the format versions at its place. `notary settle` takes the form from this reading too."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1", version=2), history.entry(1, 1, "lost"))
    history.entry(1, 2, "b", view=_view(3))
    history.activate(2)
    assert await _passing(history, reading) == Passing(3, 3)
    history.settle(reading.joiner.history.view)
    passing, state = await _read_ahead(history, reading)
    assert passing is None
    assert state.key_to_settle == history.key.public_key


async def test_a_settle_record_behind_an_activation_that_does_not_count() -> None:
    """A worker of version 1 has a vote, so the settle record has its old form. Anyone may append a copy of such an activation."""
    history, reading = History(), Reading()
    reading.step(history.genesis, history.register("w1", version=1), history.entry(1, 1, "lost"))
    history.entry(1, 2, "b", view=_view(3))
    history.activate(2)
    history.owner(Settle(reading.joiner.history.view))
    assert await _passing(history, reading) is None
