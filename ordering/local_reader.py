"""The parts that both local logs share: partitions with dense offsets, their reader, and the signal that wakes it.

`MemoryLog` and `EmbeddedLog` differ in the place of records and the time when they become durable. Reading, waiting and pausing are the
same. A log extends `LocalLog`, and calls `Arrivals.notify` after it made records visible. Everything runs on one event loop; nothing here
may be called from another thread.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from ordering.errors import ConfigurationError, NotReady, OutOfRange
from ordering.log import ORDERING, Leader, LogOffsets, Record, describe

POLL_BYTES_MAX: Final = 8 * 1024 * 1024
"""The maximum size of a poll's result, so that a replay of a large log takes little memory. One record is returned, however large."""

POLL_RECORDS_MAX: Final = 4096
"""The maximum number of records in a poll's result: many small records would block the event loop for too long."""


class Arrivals:
    """Wakes all waiting readers whenever records arrive or a state changes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Wake all current waiters; later waiters wait for the next call."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return at the next `notify`. To miss none, check for records first, and do not await between the check and this call."""
        await self._event.wait()


class LocalLog(ABC):
    """The part of a `Log` that does not depend on the place of its records."""

    shown: ClassVar[str]
    """The log in a message."""

    def __init__(self, payload_partitions: int, identity: str) -> None:
        self._payload_partitions = payload_partitions
        self._identity = identity
        self.arrivals = Arrivals()
        self._closed = False

    @property
    def payload_partitions(self) -> int:
        """The number of payload partitions now."""
        return self._payload_partitions

    async def has_partitions(self, count: int) -> None:
        """Raise `NotReady` when there are fewer than `count` payload partitions."""
        check_partitions(self.shown, self._payload_partitions, count)

    @property
    def identity(self) -> str:
        """A name for this log and no other."""
        return self._identity

    async def open_reader(self, offsets_next: Mapping[int, int]) -> "LocalReader":
        """Returns a new reader. Raises the errors of `check_open`, and `ConfigurationError` for a partition that the log does not have."""
        self.check_open()
        return LocalReader(self, offsets_next)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns each partition's log start offset (0) and log end offset. Raises the errors of `check_open`."""
        self.check_open()
        return {partition: LogOffsets(0, self.end(partition)) for partition in range(ORDERING, self._payload_partitions)}

    def leaders(self) -> Mapping[int, Leader]:
        """Returns every payload partition."""
        return dict.fromkeys(range(self._payload_partitions), Leader())

    def check_open(self) -> None:
        """Raise `NotReady` when the log is closed; a log that failed raises `Fatal`."""
        if self._closed:
            raise NotReady(f"the log {self._identity} is closed: open it again")

    @abstractmethod
    def end(self, partition: int) -> int:
        """Returns the offset after the last durable record, which is the last that readers see."""

    @abstractmethod
    def read(self, partition: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        """Returns durable records from `offset_next` on, up to the limits; at least one if there is one."""

    def _has_no(self, partition: int) -> ConfigurationError:
        """Returns the error for a partition that the log does not have."""
        return ConfigurationError(f"this log has no {describe(partition)}: it has {self._payload_partitions} payload partitions")


class LocalReader:
    """A `Reader` over a local log."""

    def __init__(self, log: LocalLog, offsets_next: Mapping[int, int]) -> None:
        partitions = [ORDERING, *range(log.payload_partitions)]
        if unknown := offsets_next.keys() - set(partitions):
            raise ConfigurationError(f"this log has no payload partition {min(unknown)}: it has {log.payload_partitions} of them")
        self._log = log
        self._offsets_next = {partition: offsets_next.get(partition, 0) for partition in partitions}
        self._turns = partitions
        self._paused: frozenset[int] = frozenset()
        self._closed = False

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Returns records as soon as there are any. Raises `NotReady` after close, `OutOfRange` for an offset that the log never had."""
        if self._closed:
            raise NotReady("this reader is closed: open another")
        # A replay polls without ever waiting, so let the other tasks of this event loop run here.
        await asyncio.sleep(0)
        records = self._take()
        if not records and timeout_ms > 0:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    while not records and not self._closed:
                        await self._log.arrivals.wait()
                        records = self._take()
            except TimeoutError:
                return []
        return records

    def offset_next(self, partition: int) -> int:
        """Returns the offset after the last record that `poll` returned."""
        return self._offsets_next[partition]

    @property
    def interruptions(self) -> int:
        """Always 0: records are read from this process or its disk."""
        return 0

    def pause(self, partitions: Collection[int]) -> None:
        """Pause exactly these partitions and resume all others."""
        self._paused = frozenset(partitions)
        self._log.arrivals.notify()

    async def close(self) -> None:
        """Close the reader; a waiting poll returns nothing at once."""
        self._closed = True
        self._log.arrivals.notify()

    def _take(self) -> list[Record]:
        if self._closed:
            return []
        self._log.check_open()
        records: list[Record] = []
        bytes_left = POLL_BYTES_MAX
        for turn, partition in enumerate(self._turns):
            offset_next, end = self._offsets_next[partition], self._log.end(partition)
            if offset_next > end:
                raise OutOfRange(
                    f"{describe(partition)} should be read from offset {offset_next}, but ends at {end}: the log lost records that "
                    "this reader had read, or it is another log: restore it, or rebuild the index from this one"
                )
            if partition in self._paused or offset_next == end:
                continue
            if bytes_left <= 0 or len(records) >= POLL_RECORDS_MAX:
                # A partition that got no turn comes first the next time, so that none starves behind a long one.
                self._turns = self._turns[turn:] + self._turns[:turn]
                break
            taken = self._log.read(partition, offset_next, bytes_left, POLL_RECORDS_MAX - len(records))
            self._offsets_next[partition] = taken[-1].offset + 1
            bytes_left -= sum([size(record) for record in taken])
            records += taken
        return records


def size(record: Record) -> int:
    """Returns the size of a record's key and value in bytes."""
    return len(record.key or b"") + len(record.value or b"")


def check_partitions(log: str, found: int, wanted: int) -> None:
    """Raise `NotReady` when there are fewer payload partitions than the log's records declare."""
    if found < wanted:
        raise NotReady(f"{log} has {found} payload partitions, and its records declare {wanted}")
