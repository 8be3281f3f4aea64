"""A joiner's complete state as one value, between two steps. Pure.

It has everything that the next steps can depend on, so a joiner that is restored from it continues in the same way. It does not have the
joiner's arguments: limits, worker name, and format version. The exhaustive tests use it (tests/scopes). `msgspec.json.encode` writes it.
"""

from msgspec import Struct

from joiner.buffer import BufferedBatch
from joiner.control import LogState
from joiner.dropped import Awaited, DroppedRecords
from joiner.history import Effect, Mark
from joiner.incarnations import IncarnationState
from ordering.log import Record
from ordering.records import OrderingRecord, View
from ordering.salvage import Item


class QueuedRecord(Struct, frozen=True, gc=False):
    """An ordering record that is not applied yet; `record` is None if it does not decode."""

    source: Record
    arrived_ms: int
    record: OrderingRecord | None
    signed_by: bytes
    compared: bool
    own_view: bool


class JoinerSnapshot(Struct, frozen=True):
    """The state of a joiner. Its dicts are stored as pairs."""

    log_state: LogState | None
    log_time_ms: int
    offset_head: int
    read_next: tuple[tuple[int, int], ...]
    """By topic-partition."""
    incarnations: tuple[IncarnationState, ...]
    effects: tuple[Effect, ...]
    items: tuple[Item, ...]
    since_effect: tuple[int, bytes]
    marks: tuple[tuple[int, Mark], ...]
    """By topic-partition."""
    agreed: int
    suspicions: tuple[tuple[str, int], ...]
    live: bool
    examined: frozenset[View]
    queue: tuple[QueuedRecord, ...]
    has_hole: bool
    """True if the first record of the queue is a hole."""
    skipped: tuple[int, int] | None
    fills_due_ms: int
    fills_proposed_ms: tuple[tuple[tuple[int, int], int], ...]
    """By batch name."""
    silent: tuple[tuple[int, tuple[int, int]], ...]
    """By incarnation."""
    buffer: tuple[tuple[int, tuple[BufferedBatch, ...]], ...]
    """By payload partition, its batches in the order of their first records."""
    buffer_full: bool
    queue_full: bool
    dropped: tuple[tuple[int, DroppedRecords], ...]
    """By payload partition."""
    awaited: Awaited | None
    is_rereading: bool
