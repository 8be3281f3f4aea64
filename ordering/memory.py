"""`MemoryLog`: keeps nothing after the process ends; for simulations and tests.

A record is durable and visible as soon as it is appended, until the process ends. It reads only the given clock.
"""

import uuid
from collections.abc import Callable

from ordering.clock import clock_ms
from ordering.errors import ConfigurationError, OutcomeUnknown
from ordering.local_reader import LocalLog, size
from ordering.log import ORDERING, Record


class MemoryLog(LocalLog):
    """A `Log` in lists. `clock_ms` gives the append times; `identity` is random if it is not given."""

    shown = "this log"

    def __init__(self, payload_partitions: int, clock_ms: Callable[[], int] = clock_ms, identity: str | None = None) -> None:
        if payload_partitions < 1:
            raise ConfigurationError(f"a log has at least one payload partition, not {payload_partitions}")
        super().__init__(payload_partitions, identity or f"memory:{uuid.uuid4()}")
        self._records: dict[int, list[Record]] = {partition: [] for partition in range(ORDERING, payload_partitions)}
        self._clock_ms = clock_ms

    async def open_writer(self) -> "MemoryWriter":
        """Returns a new writer. Raises `NotReady` after close."""
        self.check_open()
        return MemoryWriter(self)

    async def close(self) -> None:
        """Wake waiting readers, which then fail; the records stay with the object and cannot be reached."""
        self._closed = True
        self.arrivals.notify()

    def end(self, partition: int) -> int:
        """As `LocalLog` describes it."""
        return len(self._records[partition])

    def read(self, partition: int, offset_next: int, bytes_max: int, records_max: int) -> list[Record]:
        """As `LocalLog` describes it."""
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
            raise self._has_no(partition)
        records = self._records[partition]
        records.append(Record(partition, len(records), self._clock_ms(), key, value))
        self.arrivals.notify()


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
