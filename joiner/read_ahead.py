"""Reads the ordering topic on behind a hole: did a worker pass the hole, that is, did it see the content that is missing (R10)?"""

import asyncio
from collections import deque
from struct import Struct
from typing import Final

import msgspec

from joiner.control import LogState
from joiner.history import NONE_SKIPPED, Comparison, History, extend_skipped, fingerprint_of
from joiner.recheck import Sought, find_again
from ordering.errors import CorruptRecord, NotReady
from ordering.log import ORDERING, Log, Record
from ordering.records import Activate, Key, OrderingRecord, Settle, decode
from ordering.signatures import record_is_signed

READ_AHEAD_S_MAX: Final = 60.0
"""An attempt to read ahead ends after this time without progress."""
TAKEN_AT_ONCE: Final = 32
"""The number of records after a hole that are verified in one turn of the event loop."""
_SEEN_AT: Final = {1: 18, 2: 18, 3: 10, 4: 10}
"""The offset of `seen` in each kind of worker record: the transaction ids after it need not be decoded."""
_OWNER_KINDS: Final = (5, 7, 10)
"""The kinds `activate`, `key` and `settle`, which the owner signs."""
_U64: Final = Struct(">Q")


class Passing(msgspec.Struct, frozen=True):
    """A record after the hole whose writer had seen more records than precede the hole."""

    offset: int
    seen: int


class ReadAhead:
    """The ordering topic from `offset` on, behind a hole, as far as it was read. A later call of `read` goes on from there.

    Anyone who may write can put any number of forged records there. Each costs a verification, so an attempt ends only without progress.
    """

    def __init__(self, log_state: LogState, offset: int, history: History) -> None:
        self.log_state = log_state
        """The log's state after the key and settle records on the way."""
        self.activated = log_state
        """The same, with the activate records on the way. Whether these count depends on the voters, which are not known here."""
        self.passing: Passing | None = None
        """The first well-signed record whose writer had seen more records than `history`.

        Records before an owner's `settle` for this history, or a part of it, are ignored.
        """
        self.offset_next = offset
        self._history, self._seen = history, history.seen
        # The last record, and a running hash over those before it that share its append time, and one more.
        self._last: Record | None = None
        self._run_first, self._run_hash = NONE_SKIPPED, b""

    async def read(self, log: Log) -> None:
        """Read to the topic's present end. Raises `NotReady` when that makes no progress."""
        log_end_offset = (await log.offsets())[ORDERING].log_end
        reader = await log.open_reader({ORDERING: self.offset_next})
        loop = asyncio.get_running_loop()
        try:
            reader.pause(range(log.payload_partitions))
            async with asyncio.timeout(READ_AHEAD_S_MAX) as deadline:
                while (before := reader.offset_next(ORDERING)) < log_end_offset:
                    for number, record in enumerate(await reader.poll(1_000), 1):
                        if record.partition == ORDERING:
                            self._take(record)
                        if not number % TAKEN_AT_ONCE:
                            await asyncio.sleep(0)
                    if reader.offset_next(ORDERING) > before:
                        deadline.reschedule(loop.time() + READ_AHEAD_S_MAX)
                        await asyncio.sleep(0)
        except TimeoutError:
            raise NotReady(f"the ordering topic could not be read on: no progress in {READ_AHEAD_S_MAX:g} s") from None
        finally:
            await reader.close()

    async def still_holds(self, log: Log) -> bool:
        """Returns True if the log still has the last records that were read, so that a later call of `read` may go on."""
        last = self._last
        if last is None:
            return True
        sought = Sought(last.offset, fingerprint_of(last), self._run_first, self._run_hash)
        return not await find_again(log, {ORDERING: deque([sought])})

    def _take(self, record: Record) -> None:
        if (last := self._last) is not None:
            if last.append_time_ms != record.append_time_ms:
                self._run_first, self._run_hash = last.offset, b""
            self._run_hash = extend_skipped(self._run_hash, last)
            if self._run_first == NONE_SKIPPED:
                self._run_first = last.offset
        self._last, self.offset_next = record, record.offset + 1
        value = record.value
        if value is None or len(value) < 2:
            return
        if value[1] in _OWNER_KINDS:
            control = _control_record(value, self.activated)
            if isinstance(control, Key):
                self.log_state = self.log_state.with_key(control, self._seen) or self.log_state
                self.activated = self.activated.with_key(control, self._seen) or self.activated
            elif isinstance(control, Activate):
                self.activated = self.activated.with_format(control.format_version) or self.activated
            elif isinstance(control, Settle) and self._history.compare(control.view) is Comparison.OWN:
                self._settle(control)
        elif self.passing is None and (at := _SEEN_AT.get(value[1])) is not None and len(value) >= at + _U64.size:
            (seen_there,) = _U64.unpack_from(value, at)
            if seen_there > self._seen and record_is_signed(value, self.log_state.log_id, self.log_state.key):
                self.passing = Passing(record.offset, seen_there)

    def _settle(self, record: Settle) -> None:
        """Count a settle record that is valid in `log_state` or in `activated`: the owner has confirmed this history.

        A copy of a record that counted before has no effect, since anybody may append it.
        """
        settled = self.log_state.with_settled(record) or self.activated.with_settled(record)
        if settled is not None:
            self.log_state = msgspec.structs.replace(self.log_state, settled=settled.settled)
            self.activated = msgspec.structs.replace(self.activated, settled=settled.settled)
            self.passing = None


async def read_ahead(log: Log, log_state: LogState, offset: int, history: History) -> tuple[Passing | None, LogState]:
    """Read the ordering topic from `offset`, behind a hole, to its present end. Returns what `ReadAhead` found. Raises `NotReady`.

    The state is `ReadAhead.activated`. If an activate record does not count after all, a `settle` of the new version has no effect.
    """
    ahead = ReadAhead(log_state, offset, history)
    await ahead.read(log)
    return ahead.passing, ahead.activated


def _control_record(value: bytes, log_state: LogState) -> OrderingRecord | None:
    """Returns the record if the owner has signed it; else None."""
    try:
        record = decode(value, log_state.formats)
    except CorruptRecord:
        return None
    return record if record_is_signed(value, log_state.log_id, log_state.owner_key) else None
