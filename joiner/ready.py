"""The joiner's input and output as values: state in, batches and proposals out. Pure.

`Ready` is the contract between the core and its driver: the changes that must become durable together before any answer (R8), and the
records that the driver may append to the log. It describes effects that have not happened yet.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from joiner.control import LogState
from joiner.dropped import Dropped
from joiner.evidence import Evidence
from joiner.history import Effect, Mark
from joiner.incarnations import IncarnationState
from ordering.errors import Fatal
from ordering.log import ORDERING, Record
from ordering.records import SalvageItems
from ordering.salvage import Item
from payload import Request


class JoinerState(msgspec.Struct, frozen=True):
    """The joiner's persisted state in the index, to resume from (R8, R10). A topic-partition without an offset is read from its start."""

    offsets_next: Mapping[int, int] = msgspec.field(default_factory=lambda: {ORDERING: 0})
    log_time_ms: int = 0
    incarnations: tuple[IncarnationState, ...] = ()
    log_state: LogState | None = None
    """None before genesis has been read."""
    effects: Sequence[Effect] = ()
    marks: Mapping[int, Mark] = msgspec.field(default_factory=dict)
    agreed: int = 0
    suspicions: Mapping[str, int] = msgspec.field(default_factory=dict)
    items: Sequence[Item] = ()
    """The items of the open salvage."""

    def needed_from(self, partition: int) -> int:
        """Returns the first offset of a payload partition that a reader of this state reads or compares."""
        mark = self.marks.get(partition)
        return 0 if mark is None else min(mark.offset, self.offsets_next.get(partition, 0))


class Kept(msgspec.Struct, frozen=True):
    """Payload records of one partition that need not be read again: they exist as long as the partition's mark does (R10)."""

    offset_next: int
    """The offset at which reading continues after them."""
    records: list[Record]
    dropped: Dropped | None = None
    """The records before the mark that were dropped for lack of memory, and need not be read again either."""


class OwnBatch(Protocol):
    """A batch that this worker sent. If the records that are read back have the same bytes, they need not be verified or decoded again."""

    @property
    def value(self) -> bytes:
        """The payload record's value as sent."""
        ...

    @property
    def payload_hash(self) -> bytes:
        """SHA-256 of `value`."""
        ...

    @property
    def entry_value(self) -> bytes:
        """The ordering record's value as sent."""
        ...

    @property
    def signed_by(self) -> bytes:
        """The public key for the signature of the ordering record."""
        ...

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests in the payload record."""
        ...


Own: TypeAlias = Mapping[tuple[int, int], OwnBatch]
"""The batches that this worker sent and that are not decided yet, by name: (incarnation, sequence)."""


class OrderedBatch(msgspec.Struct, frozen=True):
    """An entry that counted, with the content that every worker reads for it. A filled entry has no requests."""

    offset: int
    incarnation: int
    sequence: int
    log_time_ms: int
    filled: bool
    requests: tuple[Request, ...]
    append_time_ms: int = 0  # by the log's clock
    sent_at_ms: int = 0  # by the sender's clock


class Fenced(msgspec.Struct, frozen=True):
    """An incarnation that ended. `by`: its successor of the same name; None if a peer fenced it or the owner retired it."""

    state: IncarnationState
    by: IncarnationState | None
    retired: bool = False


class FillWanted(msgspec.Struct, frozen=True):
    """A fill that this worker may append if it has read that partition to its end and no worker has passed the hole (R4, R10)."""

    partition: int
    incarnation: int
    sequence: int
    payload_hash: bytes


class FenceWanted(msgspec.Struct, frozen=True):
    """A fence that this worker may append (R5)."""

    incarnation: int
    sequence_last: int


OWNER_INCARNATION: Final = 0
"""The incarnation of the owner's votes: those of workers are numbered from 1."""


class RootSeen(msgspec.Struct, frozen=True):
    """A checkpoint record that counts: the worker of this incarnation reports this root for its tree of `size` decisions (R9).

    Or a trim record that counts, by which the owner reports a root.
    """

    name: str
    incarnation: int
    size: int
    root: bytes
    log_time_ms: int
    voters: frozenset[str]  # the names of the workers active within VOTERS_MS of log time
    batches_before: int = 0  # the number of the step's batches before it in the order
    offset: int = 0  # its place in the ordering topic


class VoteVoid(msgspec.Struct, frozen=True):
    """The owner retired this worker: its earlier votes on roots no longer count (R9)."""

    name: str
    batches_before: int = 0
    offset: int = 0


class Anomaly(msgspec.Struct, frozen=True):
    """An anomaly: a record that correct workers write rarely or never. It is counted and logged, and never stops the worker."""

    kind: str  # malformed | unsigned | skipped | foreign-view | bad-content | orphan-dropped
    partition: int
    offset: int
    text: str


class Ready(msgspec.Struct):
    """The effects of one step. All fields up to `roots_seen` become durable together, before any answer (R8)."""

    offsets_next: dict[int, int]
    log_time_ms: int
    advanced: bool = False  # True if the head moved: otherwise there is nothing to persist
    batches: list[OrderedBatch] = msgspec.field(default_factory=list)
    incarnations: list[IncarnationState] = msgspec.field(default_factory=list)
    effects: list[Effect] = msgspec.field(default_factory=list)
    marks: dict[int, Mark] = msgspec.field(default_factory=dict)  # those that changed
    log_state: LogState | None = None  # None: it did not change
    agreed: int = 0
    suspicions: Mapping[str, int] = msgspec.field(default_factory=dict)
    items: SalvageItems | None = None  # to keep until the salvage is done; no other record took effect in the step
    items_dropped: bool = False  # the items kept before this step are not needed any more
    salvaged: Sequence[Item] = ()  # a salvage is done: they take effect now; the step has no batches
    registered: list[IncarnationState] = msgspec.field(default_factory=list)
    fenced: list[Fenced] = msgspec.field(default_factory=list)
    roots_seen: list[RootSeen | VoteVoid] = msgspec.field(default_factory=list)
    fills: list[FillWanted] = msgspec.field(default_factory=list)
    fences: list[FenceWanted] = msgspec.field(default_factory=list)
    anomalies: list[Anomaly] = msgspec.field(default_factory=list)
    paused: frozenset[int] = frozenset()
    more: bool = False  # the step stopped at its limit: step again with no records
    stop: Fatal | None = None  # the reason why this worker must not apply the head
    evidence: Evidence | None = None  # to be examined before the head is applied (R10)
    read_again: bool = False  # payload records were dropped for lack of memory: resume at `read_next` after `forget_unapplied`
