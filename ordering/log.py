"""The log as an interface, with the guarantees of every implementation (rules R1, R3, R8).

A log is one **ordering** partition and `payload_partitions` **payload** partitions. Each is totally ordered; its offsets rise, are never
reused, and mean nothing outside this log. A `partition` is one of these topic-partitions, identified by a number: `ORDERING` (-1), or
0, 1, 2, … for the payload topic.

The contract of every implementation:

- **Durable when acknowledged.** After `Writer.append` returns, the record survives the crash of any one process, broker or machine that the
  log is built to survive. If `append` raises, or is cancelled, the outcome is unknown: the record may be in the log, now or later, once or
  twice (a mirror, a retry). The rules make that harmless.
- **Readers see only durable records** (without transactions, so this is not Kafka's `read_committed`). If one reader saw a record, each
  later reader sees it at the same offset, with the same bytes and the same append time.
- **The append time** of an ordering record is set by the log, not by the writer. It may run backwards; log time may not (R6).
- **One writer is one producer.** Its appends to one partition keep the order of the calls. A writer that failed once is broken:
  close it and open another (R5: with a new incarnation).

The package's docstring lists the implementations; `tests/ordering/test_log.py` tests each against this contract.
"""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from ordering.errors import Fatal, FatalCode

ORDERING: Final = -1
"""The number of the ordering topic's one partition; payload partitions count from 0."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as read from the log: its partition and offset, the time when the log appended it, and its bytes."""

    partition: int
    offset: int
    append_time_ms: int
    key: bytes | None
    value: bytes | None


class LogOffsets(msgspec.Struct, frozen=True, gc=False):
    """The offsets of one partition now: `log_start` is the log start offset, `log_end` (exclusive) the log end offset."""

    log_start: int
    log_end: int


class Writer(Protocol):
    """Appends for one incarnation: an idempotent producer in Kafka."""

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Returns when the record is durable. Raises `OutcomeUnknown` when it may or may not be in the log."""
        ...

    async def close(self) -> None:
        """Abandon appends in flight, quickly: those that have not returned raise `OutcomeUnknown`. A second call does nothing."""
        ...


class Reader(Protocol):
    """One pass over all partitions, starting at given offsets."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Returns records, ordered within each partition; none after `timeout_ms`. Raises `OutOfRange`, `NotReady`, `Fatal`: reopen it."""
        ...

    def offset_next(self, partition: int) -> int:
        """Returns the next offset in a partition: all records before it were returned. (Transaction markers of Kafka are skipped.)"""
        ...

    @property
    def interruptions(self) -> int:
        """Counts the fetches that followed a possible change of the connection or the leader (R10).

        It rises before `poll` returns the records of that fetch. A caller that sees it rise must check that the log still holds what it
        held.
        """
        ...

    def pause(self, partitions: Collection[int]) -> None:
        """Pause exactly these partitions and resume all others."""
        ...

    async def close(self) -> None:
        """Stop reading and release the reader's resources."""
        ...


class BrokerSeen(msgspec.Struct, frozen=True):
    """A broker as one worker's client sees it; the partitions counted are those of the log's two topics."""

    connected: bool
    """True if the client that requests the log's offsets has a connection to it now."""
    leads: int
    in_sync: int
    replicas: int
    """The number of replicas assigned to it. If fewer of them are in sync, the broker lags or is away."""
    certificate_ends_s: float | None = None
    """The expiry of its certificate as this worker last saw it, in seconds since 1970; None without TLS, or before the first check."""


class Leader(msgspec.Struct, frozen=True):
    """The leader of a payload partition."""

    data_centre: str | None = None
    """Its `broker.rack`; None if it is unknown."""
    leads_ordering: bool = True
    """True if it leads the ordering topic too. Always True for a log without brokers."""


class Log(Protocol):
    """An existing log; creating one is separate (`ordering.topics`, `EmbeddedLog.create`)."""

    @property
    def payload_partitions(self) -> int:
        """The number of payload partitions when they were last counted. The log's records define how many of them are used (R10)."""
        ...

    async def has_partitions(self, count: int) -> None:
        """Count the payload partitions again if fewer than `count` are known. Raises `NotReady` when there are fewer."""
        ...

    @property
    def identity(self) -> str:
        """Identifies this log and no other: an index that was built from another log must not be used with it (R8)."""
        ...

    async def open_writer(self) -> Writer:
        """Returns a new writer. Raises `NotReady` when the log cannot be reached now."""
        ...

    async def open_reader(self, offsets_next: Mapping[int, int]) -> Reader:
        """Returns a reader whose first record of each partition is at the given offset or above (default 0). Raises `NotReady`."""
        ...

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns each partition's log start and log end offset now, without leaderless payload partitions. Raises `NotReady`."""
        ...

    def leaders(self) -> Mapping[int, Leader]:
        """Returns the payload partitions that can take an append, each with its leader."""
        ...

    async def close(self) -> None:
        """Release everything: connections, files, locks."""
        ...


def describe(partition: int) -> str:
    """Returns a topic-partition's name for a person."""
    return "the ordering topic" if partition == ORDERING else f"payload partition {partition}"


def check_payload_partitions(log: str, found: int, wanted: int, remedy: str) -> None:
    """Raise `Fatal` when `log` has another number of payload partitions than wanted.

    Workers with different counts would decide differently: an entry that names the last partition would count for one and not for the
    other.
    """
    if found != wanted:
        raise Fatal(FatalCode.PARTITIONS_DIFFER, f"{log} has {found} payload partitions, wanted {wanted}: {remedy}")
