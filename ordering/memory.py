"""`MemoryLog`: keeps nothing after the process ends; for simulations and tests.

A record is durable and visible as soon as it is appended, until the process ends. It reads only the given clock.
"""

import uuid
from collections.abc import Callable, Mapping

from ordering.clock import clock_ms
from ordering.errors import ConfigurationError, NotReady, OutcomeUnknown
from ordering.local_reader import Arrivals, LocalReader, check_partitions, size
from ordering.log import ORDERING, Leader, LogOffsets, Record, describe


class MemoryLog:
    """A `Log` in lists. `clock_ms` gives the append times; `identity` is random if it is not given."""

    def __init__(self, payload_partitions: int, clock_ms: Callable[[], int] = clock_ms, identity: str | None = None) -> None:
        if payload_partitions < 1:
            raise ConfigurationError(f"a log has at least one payload partition, not {payload_partitions}")
        self._records: dict[int, list[Record]] = {partition: [] for partition in range(ORDERING, payload_partitions)}
        self._payload_partitions = payload_partitions
        self._clock_ms = clock_ms
        self._identity = identity or f"memory:{uuid.uuid4()}"
        self._arrivals = Arrivals()
        self._closed = False

    @property
    def payload_partitions(self) -> int:
        """The number of payload partitions."""
        return self._payload_partitions

    async def has_partitions(self, count: int) -> None:
        """Raise `NotReady` when there are fewer than `count` payload partitions."""
        check_partitions("this log", self.payload_partitions, count)

    @property
    def identity(self) -> str:
        """A name for this log and no other."""
        return self._identity

    async def open_writer(self) -> "MemoryWriter":
        """Returns a new writer. Raises `NotReady` after close."""
        self.check_open()
        return MemoryWriter(self)

    async def open_reader(self, offsets_next: Mapping[int, int]) -> LocalReader:
        """Returns a new reader. Raises `NotReady` after close, `ConfigurationError` for a partition that the log does not have."""
        self.check_open()
        return LocalReader(self, self._arrivals, offsets_next)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns the offsets of every partition; each log start offset is 0. Raises `NotReady` after close."""
        self.check_open()
        return {partition: LogOffsets(0, len(records)) for partition, records in self._records.items()}

    def leaders(self) -> Mapping[int, Leader]:
        """Returns every payload partition."""
        return dict.fromkeys(range(self._payload_partitions), Leader())

    async def close(self) -> None:
        """Wake waiting readers, which then fail; the records stay with the object and cannot be reached."""
        self._closed = True
        self._arrivals.notify()

    def check_open(self) -> None:
        """Raise `NotReady` after close."""
        if self._closed:
            raise NotReady(f"the log {self._identity} is closed: open it again")

    def end(self, partition: int) -> int:
        """Returns the offset after the last record."""
        return len(self._records[partition])

    def read(self, partition: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        """Returns records from `offset_next` on, up to the limits; at least one if there is one."""
        taken: list[Record] = []
        for record in self._records[partition][offset_next : offset_next + records_max]:
            taken.append(record)
            bytes_max -= size(record)
            if bytes_max <= 0:
                break
        return taken

    def put(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append a record, for `MemoryWriter.append`. Raises `OutcomeUnknown` after close."""
        if self._closed:
            raise OutcomeUnknown(f"the log {self._identity} is closed: open it again")
        if partition not in self._records:
            raise ConfigurationError(f"this log has no {describe(partition)}: it has {self._payload_partitions} payload partitions")
        records = self._records[partition]
        records.append(Record(partition, len(records), self._clock_ms(), key, value))
        self._arrivals.notify()


class MemoryWriter:
    """A `Writer` into a `MemoryLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._closed = False

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Returns at once. Raises `OutcomeUnknown` when the writer or the log is closed."""
        assert key is not None or value is not None, "a record has a key or a value"
        if self._closed:
            raise OutcomeUnknown("this writer is closed: open another")
        self._log.put(partition, key, value)

    async def close(self) -> None:
        """Mark the writer closed; nothing is ever in flight here."""
        self._closed = True
