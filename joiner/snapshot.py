"""A joiner's complete state as one value, between two steps. Pure.

Everything that its next steps can depend on is in here, so a joiner that is restored from it goes on like the first. Only what the joiner
was made with is not: its limits, its worker's name, the format version that it reads. It serves small scopes (tests/scopes), debugging and
crash reports: `msgspec.json.encode` writes it.
"""

from msgspec import Struct

from joiner.buffer import BufferedBatch
from joiner.control import LogState
from joiner.history import Effect, Mark
from joiner.incarnations import IncarnationState
from ordering.log import Record
from ordering.records import OrderingRecord, View


class QueuedRecord(Struct, frozen=True, gc=False):
    """An ordering record that is not applied yet; `record` is None where it does not decode."""

    source: Record
    arrived_ms: int
    record: OrderingRecord | None
    signed_by: bytes
    compared: bool
    own_view: bool


class JoinerSnapshot(Struct, frozen=True):
    """The state of a joiner. Pairs stand for the entries of its dicts."""

    log_state: LogState | None
    log_time_ms: int
    offset_head: int
    read_next: tuple[tuple[int, int], ...]
    """By topic-partition."""
    incarnations: tuple[IncarnationState, ...]
    effects: tuple[Effect, ...]
    since_effect: tuple[int, bytes]
    marks: tuple[tuple[int, Mark], ...]
    """By topic-partition."""
    agreed: int
    suspicions: tuple[tuple[str, int], ...]
    live: bool
    examined: frozenset[View]
    queue: tuple[QueuedRecord, ...]
    has_hole: bool
    """True if the first of the queue is a hole."""
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
    dropped: tuple[tuple[int, tuple[int, int]], ...]
    """By payload partition."""
