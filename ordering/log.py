"""The log: what the notary stands on, as an interface, with what an implementation promises (rules R1, R3, R8).

A log is one **ordering** stream and `payload_partitions` **payload** streams. Every stream is totally ordered; offsets rise, are never
reused, and mean nothing outside this log. A stream is named by a number: `ORDERING`, or a payload partition 0, 1, 2, ...

The contract of every implementation:

- **Durable when acknowledged.** After `Writer.append` returns, the record outlives the crash of any one process, broker or machine that
  the log is built to survive. If `append` raises, or is cancelled, the record may be in the log, now or later, once or (a mirror, a
  retry) twice: the caller knows nothing. The rules are built to make that harmless.
- **Read committed.** A reader sees only durable records: what one reader saw, each later reader sees again, at the same offset, with the
  same bytes and the same append time.
- **The append time** of an ordering record is taken by the log, not by the writer. It may run backwards; log time may not (R6).
- **One writer is one producer.** Its appends to one stream keep the order in which they were called. A writer that failed once is
  broken: close it and open another (R5: with a new incarnation).

`KafkaLog`, `EmbeddedLog` and `MemoryLog` implement it, and `tests/ordering/test_logs.py` holds all three to it.
"""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from ordering.errors import Fatal

ORDERING: Final = -1
"""The number of the ordering stream; payload partitions count from 0."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record as it was read: where it stands, when the log took it, what it says."""

    stream: int
    offset: int
    append_time_ms: int
    key: bytes | None
    value: bytes | None


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """What a stream holds now: `offset_first` (the earliest record still there) up to `offset_end` (exclusive)."""

    offset_first: int
    offset_end: int


class Writer(Protocol):
    """One life's way into the log."""

    async def append(self, stream: int, key: bytes | None, value: bytes | None) -> None:
        """Return when the record is durable. Raises `OutcomeUnknown` when it may or may not be in the log."""
        ...

    async def close(self) -> None:
        """Give up what is in flight, quickly: appends that have not returned raise `OutcomeUnknown`. A second call does nothing."""
        ...


class Reader(Protocol):
    """One pass over all streams, from given offsets on."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Records in the order of each stream, as soon as there are any; none after `timeout_ms`."""
        ...

    def offset_next(self, stream: int) -> int:
        """Where this reader stands in a stream: all before it was returned, or is nobody's record (a Kafka transaction leaves markers)."""
        ...

    @property
    def interruptions(self) -> int:
        """Counts the fetches that came after the connection, or the leader, may have become another one (R10).

        It grows before `poll` returns what was fetched then. Whoever sees it grow has to look whether the log still holds what it held.
        """
        ...

    def pause(self, streams: Collection[int]) -> None:
        """From now on return nothing from exactly these streams; the others are, or become, unpaused."""
        ...

    async def close(self) -> None:
        """Give up reading."""
        ...


class BrokerSeen(msgspec.Struct, frozen=True):
    """A broker as one worker's client knows it; partitions are those of the log's two topics."""

    connected: bool
    """Whether the client that asks for the log's bounds has a connection to it now."""
    leads: int
    in_sync: int
    replicas: int
    """The number of replicas that it has been assigned; fewer of them in sync means that it is behind, or away."""


class Log(Protocol):
    """A log that exists already; creating one is separate (`ordering.topics`, `EmbeddedLog.create`)."""

    @property
    def payload_partitions(self) -> int:
        """The number of payload partitions there were at the last look. The log itself says how many of them are used (R10)."""
        ...

    async def has_partitions(self, count: int) -> None:
        """Look again how many payload partitions there are, if there seem to be fewer. Raises `NotReady` when there are fewer."""
        ...

    @property
    def identity(self) -> str:
        """Names this log and no other: an index that was built from another one must not be used with it (R8)."""
        ...

    async def open_writer(self) -> Writer:
        """Raises `NotReady` when the log cannot be reached now."""
        ...

    async def open_reader(self, offsets_next: Mapping[int, int]) -> Reader:
        """A reader whose first record of each stream has at least the offset given (0 for one not named). Raises `NotReady`."""
        ...

    async def bounds(self) -> Mapping[int, Bounds]:
        """The streams' bounds, asked of the log now; payload partitions that have no leader now are left out. Raises `NotReady`."""
        ...

    def leaders(self) -> Mapping[int, str | None]:
        """The payload partitions that can take an append, each with the data centre of its leader (None: not told)."""
        ...

    async def close(self) -> None:
        """Let go of everything: connections, files, locks."""
        ...


def check_payload_partitions(log: str, found: int, wanted: int, remedy: str) -> None:
    """Raise `Fatal` when `log` has another number of payload partitions than wanted.

    Workers that count differently judge differently: an entry that names the last partition counts for one and not for the other.
    """
    if found != wanted:
        raise Fatal(f"{log} has {found} payload partitions, wanted {wanted}: {remedy}")
