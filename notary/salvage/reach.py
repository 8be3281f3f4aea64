"""The reach of a mirror: the part of the log that can be decided from it, and the records after that part, which cannot (R10, R11). Pure.

A mirror copies each topic-partition by itself, so each is a prefix of its source, of any length. The log reaches to the first entry whose
content is missing. Entries, sizes of checkpoints, and views after that entry show how far the source had decided.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from joiner.control import LogState
from joiner.incarnations import Incarnations
from joiner.payloads import is_content
from joiner.snapshot import JoinerSnapshot
from ordering.records import Checkpoint, Entry, Fence, Key, Register
from ordering.signatures import record_is_signed

BATCHES_SHOWN: Final = 5


class WaitingBatch(msgspec.Struct, frozen=True):
    """An entry at or after the end of the reach. It decides nothing here."""

    offset: int
    incarnation: int
    sequence: int
    partition: int
    first: int
    """Its first position, if no waiting batch repeats a request that was decided before."""
    requests: int
    missing: bool
    """True if its content is missing; False if it waits behind an entry whose content is missing."""

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self.first + self.requests

    @property
    def where(self) -> str:
        """The place of its content, in words."""
        return "its content is missing" if self.missing else "its content is here, behind one that is missing"


class Reach(msgspec.Struct, frozen=True):
    """The reach, as read from both topics."""

    decisions: int
    offset_head: int
    """The offset of the first ordering record that is not applied."""
    log_time_ms: int
    seen: int
    """The number of records that took effect."""
    waiting: tuple[WaitingBatch, ...]
    decided_at_source: int
    """The largest tree size in a checkpoint after the reach; 0 without a checkpoint."""
    seen_at_source: int
    """The largest number of records in effect in a view after the reach; 0 without a view."""


def reach_of(snapshot: JoinerSnapshot, log: LogState, decisions: int) -> Reach:
    """Returns the reach, from the state of a joiner that has read both topics to their ends."""
    came = {(partition, *batch[:2]): batch[2] for partition, batches in snapshot.buffer for batch in batches}
    incarnations, waiting, size, seen = Incarnations(snapshot.incarnations), list[WaitingBatch](), 0, 0
    for queued in snapshot.queue:
        record, value = queued.record, queued.source.value or b""
        if isinstance(record, Key) and record_is_signed(value, log.log_id, log.owner_key):
            log = log.with_key(record, 0) or log  # a copy of an earlier record changes nothing
        if not isinstance(record, Entry | Register | Fence | Checkpoint) or not record_is_signed(value, log.log_id, log.key):
            continue
        seen = max(seen, record.view.seen)
        if isinstance(record, Checkpoint):
            size = max(size, record.tree_size)
        if isinstance(record, Register):
            incarnations.register(record.nonce, record.name, 0)
        if isinstance(record, Fence):
            incarnations.fence(record.incarnation, record.sequence_last)
        if isinstance(record, Entry) and incarnations.counts(record.incarnation, record.sequence):
            name = record.incarnation, record.sequence
            incarnations.count(*name, 0)
            values = [each.value for each in came.get((record.partition, *name), ()) if each.value is not None]
            is_here = any(is_content(each, record.partition, *name, record.payload_hash, log) for each in values)
            missing = not waiting or not is_here  # the first one is the hole
            first = waiting[-1].end if waiting else decisions
            waiting.append(WaitingBatch(queued.source.offset, *name, record.partition, first, len(record.transaction_ids), missing))
    in_effect = snapshot.effects[-1].seen if snapshot.effects else 0
    return Reach(decisions, snapshot.offset_head, snapshot.log_time_ms, in_effect, tuple(waiting), size, seen)


def facts_of_reach(reach: Reach) -> dict[str, Any]:
    """Returns the reach for programs."""
    missing = [[each.first, each.end - 1] for each in reach.waiting]
    return {**msgspec.structs.asdict(reach), "waiting": [msgspec.structs.asdict(each) for each in reach.waiting], "missing": missing}


def lines_of_reach(reach: Reach, log_time: str) -> Iterator[str]:
    """Yields lines about the reach, for people. `log_time`: its log time as text."""
    yield f"the mirror has {reach.decisions:,} decisions, up to ordering record {reach.offset_head - 1}; log time there is {log_time}"
    if not reach.waiting:
        yield "               it ends with a complete batch: nothing in it shows that the source had more"
        return
    for each in reach.waiting[:BATCHES_SHOWN]:
        name = f"batch ({each.incarnation}, {each.sequence})"
        yield f"missing        positions {each.first:,} to at most {each.end - 1:,}: {name}, {each.where}"
        yield f"               (ordering record {each.offset}, payload partition {each.partition})"
    if (more := len(reach.waiting) - BATCHES_SHOWN) > 0:
        yield f"               and {more:,} more batches, up to position {reach.waiting[-1].end - 1:,} at most"
    if reach.decided_at_source > reach.decisions:
        last = reach.decided_at_source - 1
        yield f"               a checkpoint shows that the source had decided positions {reach.decisions:,} to {last:,}"
    elif reach.seen_at_source > reach.seen:
        yield f"               the source had gone on: a view shows {reach.seen_at_source:,} records in effect, and here are {reach.seen:,}"
