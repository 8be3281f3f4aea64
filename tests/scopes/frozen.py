"""The state of a joiner as a hashable value: its snapshot, without what changes none of its next steps.

The value leaves these things open, for these reasons:
- *The clock's reading.* Clock times are moved so that the present is the constant `NOW_MS`. The joiner only ever compares its clock with
  `now_ms` less a timeout, so moving both by the same amount changes nothing.
- *The position in the log.* Offsets are moved so that the next offset of each topic-partition is `OFFSET`. The joiner compares offsets of
  one topic-partition and adds one; they "mean nothing outside this log" (`ordering.log`).
- *Ages beyond `hole_timeout`.* All clock times are compared with that timeout; once that old, a time stays so.
- *The offsets of buffered records, of the marks and of the last effect*, where no restart can come any more and nothing is dropped to be
  read again (`keep` is false): they only decide where a restart begins. Then the order of the buffered records decides nothing either.
- *Contents that were awaited* by an entry that has been applied since: the joiner compares them with the entry at the head only.
- *The history.* All records have the view after genesis, which stays, so every comparison has the same result. The rest of the history, and
  the records skipped since its last record, decide no step. Other tests check the history itself (tests/properties).
"""

import itertools

from msgspec.structs import replace

from joiner import Effect, Joiner, JoinerSnapshot, LogState, Mark
from joiner.buffer import Buffered, BufferedBatch
from joiner.dropped import Awaited
from ordering.log import ORDERING, Record

NOW_MS = 1_000_000_000
OFFSET = 1_000


def frozen(joiner: Joiner, now_ms: int, keep: bool) -> JoinerSnapshot:
    """Returns everything that the joiner's next steps can depend on; `Joiner.restore` takes it, at `NOW_MS`."""
    snapshot = joiner.snapshot()
    assert (snapshot.suspicions, snapshot.live, snapshot.examined) == ((), False, frozenset()), "no history is suspected in a scope"
    assert snapshot.log_state is not None
    read_next, timeout_ms = dict(snapshot.read_next), joiner.limits.hole_timeout_ms

    def at(partition: int, offset: int) -> int:
        return OFFSET + offset - read_next[partition]

    def since_ms(time_ms: int) -> int:
        return NOW_MS - min(now_ms - time_ms, timeout_ms)

    def batches(partition: int, of_partition: tuple[BufferedBatch, ...]) -> tuple[BufferedBatch, ...]:
        if not keep:
            of_partition = tuple(sorted(of_partition, key=lambda batch: batch[:2]))
        numbers = itertools.count(OFFSET - sum([len(records) for _, _, records in of_partition]))
        return tuple(
            [
                (
                    incarnation,
                    sequence,
                    tuple([Buffered(at(partition, one.offset) if keep else next(numbers), 0, one.value) for one in records]),
                )
                for incarnation, sequence, records in of_partition
            ]
        )

    seen = joiner.history.seen

    def still(awaited: Awaited | None) -> Awaited | None:
        return None if awaited is None or awaited.seen != seen else replace(awaited, seen=1)

    skipped, due_ms = snapshot.skipped, snapshot.fills_due_ms
    return replace(
        snapshot,
        read_next=tuple([(partition, OFFSET) for partition in read_next]),
        offset_head=at(ORDERING, snapshot.offset_head),
        effects=(effect_at(at(ORDERING, snapshot.effects[-1].offset) if keep else OFFSET - 1, snapshot.log_state),),
        since_effect=(0, b""),
        marks=tuple(
            [
                (partition, Mark(at(partition, mark.offset) if keep else OFFSET - 1, b""))
                for partition, mark in snapshot.marks
                if partition >= 0
            ]
        ),
        queue=tuple(
            [
                replace(one, source=_moved(one.source, OFFSET - read_next[ORDERING]), arrived_ms=since_ms(one.arrived_ms))
                for one in snapshot.queue
            ]
        ),
        skipped=None if skipped is None else (skipped[0], at(*skipped) if keep else OFFSET - 1),
        fills_due_ms=-1 if due_ms < 0 else NOW_MS + max(0, due_ms - now_ms),
        fills_proposed_ms=tuple([(name, since_ms(time_ms)) for name, time_ms in snapshot.fills_proposed_ms]),
        silent=tuple([(incarnation, (last, since_ms(time_ms))) for incarnation, (last, time_ms) in snapshot.silent]),
        buffer=tuple([(partition, batches(partition, of_partition)) for partition, of_partition in snapshot.buffer]),
        dropped=tuple(
            [
                (partition, replace(records, offset=at(partition, records.offset), awaited=still(records.awaited)))
                for partition, records in snapshot.dropped
            ]
        ),
        awaited=still(snapshot.awaited),
    )


def effect_at(offset: int, log_state: LogState) -> Effect:
    """Returns the last effect as a step needs it: its offset, in a history that includes the view of every record."""
    return Effect(1, log_state.log_id, offset, 0, b"")


def _moved(record: Record, by: int) -> Record:
    return Record(record.partition, record.offset + by, record.append_time_ms, record.key, record.value)
