"""Converts a joiner to a hashable value and back. It is complete, or it fails: a field that is not listed here stops the search.

The value leaves these things open, for these reasons:
- *The clock's reading.* Clock times are stored as ages; `thawed` sets them relative to a constant `NOW_MS`. The joiner only ever compares
  its clock with `now_ms` less a timeout, so moving both by the same amount changes nothing.
- *The position in the log.* Offsets are stored relative to the next offset of each topic-partition, which `thawed` sets to `OFFSET`. The
  joiner compares offsets of one topic-partition and adds one; they "mean nothing outside this log" (`ordering.log`).
- *Ages beyond `hole_timeout`.* All clock times are compared with that timeout; once that old, a time stays so.
- *The layout of heaps and dicts.* A heap returns its smallest element in any layout; where the joiner depends on the order of a dict (the
  buffer's records), the value includes the order.
- *The offsets of buffered records, of the marks and of the last effect*, where no restart can come any more and nothing is dropped to be
  read again (`keep` is false): they only decide where a restart begins.
- *The history.* All records have the view after genesis, which `thawed` keeps, so every comparison has the same result. The rest of the
  history, and the records skipped since its last record, decide no step. Other tests check the history itself (tests/properties).
- *Constants*: the log's description of itself, and the limits; they are taken from a model, and must be the model's own. Nothing is
  prepared between two steps.
"""

from collections import OrderedDict, deque
from heapq import heapify
from typing import Any, TypeAlias

from joiner import Buffer, Effect, Incarnations, Joiner, Mark
from joiner import core as joiner_core
from joiner.buffer import Buffered
from joiner.evidence import Suspicions
from joiner.history import History
from ordering.log import ORDERING, Record

Frozen: TypeAlias = tuple[Any, ...]

NOW_MS = 1_000_000_000
OFFSET = 1_000

_Queued = joiner_core._Queued

_CONSTANT = {"log_state", "_worker_name", "_ordering_only", "_format_version", "_limits", "_own", "_prepared"}
_VARYING = {
    "incarnations", "history", "suspicions", "marks", "_dropped", "_log_time_ms", "_offset_head", "_read_next", "_queue", "_queue_ids",
    "_buffer", "_since_effect", "_hole", "_skipped", "_fills_due_ms", "_fill_proposed_ms", "_silent", "_buffer_full", "_queue_full",
}  # fmt: skip
_INCARNATIONS = {"_incarnations", "_nonces", "_unfenced_by_name", "changed"}
_BUFFER = {"_partitions", "_by_incarnation", "_bytes_by_incarnation", "_records_by_incarnation", "size_bytes", "records"}
_HISTORY = {"_effects"}
_SUSPICIONS = {"agreed", "open", "live", "_examined"}
_QUEUED = ("source", "arrived_ms", "record", "signed_by", "compared", "own_view")
_BUFFERED = ("offset", "append_time_ms", "value")


def known() -> None:
    """Raises `AssertionError` unless every field of the joiner's structs is listed here."""
    for struct, fields in ((_Queued, _QUEUED), (Buffered, _BUFFERED)):
        assert struct.__struct_fields__ == fields, _unknown(struct.__name__, set(struct.__struct_fields__) ^ set(fields))


def _unknown(what: str, fields: set[str]) -> str:
    return f"{what} has other fields than tests/scopes/frozen.py knows: {sorted(fields)}; a search that leaves one out proves nothing"


def frozen(joiner: Joiner, now_ms: int, model: Joiner, keep: bool) -> Frozen:
    """Returns a value of everything that the joiner's next steps can depend on."""
    incarnations, buffer = joiner.incarnations, joiner._buffer
    history, suspicions = joiner.history, joiner.suspicions
    for what, held, fields in (
        ("Joiner", joiner, _CONSTANT | _VARYING),
        ("Incarnations", incarnations, _INCARNATIONS),
        ("Buffer", buffer, _BUFFER),
        ("History", history, _HISTORY),
        ("Suspicions", suspicions, _SUSPICIONS),
    ):
        assert vars(held).keys() == fields, _unknown(what, vars(held).keys() ^ fields)
    for name in _CONSTANT:
        assert vars(joiner)[name] is vars(model)[name], f"{name} is taken for a constant"
    assert (suspicions.open, suspicions.live, suspicions._examined) == ({}, False, set()), "nobody is in doubt in a scope"
    last = history.last
    assert last is not None
    timeout_ms = joiner._limits.hole_timeout_ms

    def age_ms(at_ms: int) -> int:
        return min(now_ms - at_ms, timeout_ms)

    due_ms, read_next = joiner._fills_due_ms, joiner._read_next
    end = read_next[ORDERING]
    partitions = [
        [
            (*key, tuple([(record.offset - read_next[partition] if keep else -1, record.value) for record in of_key]))
            for key, of_key in records.items()
        ]
        for partition, records in sorted(buffer._partitions.items())
    ]
    marks = {partition: -1 if mark is None else mark.offset for partition in read_next for mark in [joiner.marks.get(partition)]}
    return (
        tuple(sorted(incarnations._incarnations.items())),
        tuple(sorted(incarnations._nonces)),
        tuple(sorted(incarnations._unfenced_by_name.items())),
        tuple(sorted(incarnations.changed.items())),
        joiner._log_time_ms,
        joiner._offset_head - end,
        tuple(sorted(read_next)),
        tuple([(age_ms(q.arrived_ms), q.record, _moved(q.source, -end), q.signed_by, q.compared, q.own_view) for q in joiner._queue]),
        joiner._queue_ids,
        tuple(sorted(buffer._partitions)),
        tuple([tuple(records if keep else sorted(records)) for records in partitions]),
        tuple(sorted([(life, tuple(sorted(waiting))) for life, waiting in buffer._by_incarnation.items()])),
        tuple(sorted(buffer._bytes_by_incarnation.items())),
        tuple(sorted(buffer._records_by_incarnation.items())),
        buffer.size_bytes,
        buffer.records,
        joiner._hole,
        bool(joiner._queue) and joiner._hole is joiner._queue[0].record,  # the joiner recognizes its hole by identity
        -1 if due_ms < 0 else max(0, due_ms - now_ms),
        tuple(sorted([(key, age_ms(at_ms)) for key, at_ms in joiner._fill_proposed_ms.items()])),
        tuple(sorted([(life, last, age_ms(at_ms)) for life, (last, at_ms) in joiner._silent.items()])),
        joiner._buffer_full,
        joiner._queue_full,
        suspicions.agreed,
        last.offset - end if keep else -1,
        tuple([(partition, mark - read_next[partition] if keep else -1) for partition, mark in sorted(marks.items()) if partition >= 0]),
        tuple(
            [(partition, at - read_next[partition], waited is joiner._hole) for partition, (at, waited) in sorted(joiner._dropped.items())]
        ),
        None if joiner._skipped is None else (joiner._skipped[0], joiner._skipped[1] - read_next[joiner._skipped[0]] if keep else -1),
    )


def thawed(value: Frozen, model: Joiner) -> Joiner:
    """Returns a joiner of the model's class in that state, at `NOW_MS`."""
    (
        incarnations, nonces, unfenced, changed, log_time_ms, head, streams, queue, queue_ids, numbers, partitions, by_incarnation,
        bytes_by_incarnation, records_by_incarnation, size_bytes, records, hole, _, due_ms, proposed, silent, buffer_full, queue_full,
        agreed, last, marks, dropped, skipped,
    ) = value  # fmt: skip
    joiner: Joiner = object.__new__(type(model))
    joiner.__dict__.update({name: vars(model)[name] for name in _CONSTANT})
    joiner.incarnations = _with(
        Incarnations,
        model.incarnations,
        _incarnations=dict(incarnations),
        _nonces=set(nonces),
        _unfenced_by_name=dict(unfenced),
        changed=dict(changed),
    )
    heaps = {life: list(waiting) for life, waiting in by_incarnation}
    for heap in heaps.values():
        heapify(heap)
    joiner._buffer = _with(
        Buffer,
        model._buffer,
        _partitions={
            number: OrderedDict([((i, s), [Buffered(OFFSET + at, 0, content) for at, content in of_key]) for i, s, of_key in of_partition])
            for number, of_partition in zip(numbers, partitions, strict=True)
        },
        _by_incarnation=heaps,
        _bytes_by_incarnation=dict(bytes_by_incarnation),
        _records_by_incarnation=dict(records_by_incarnation),
        size_bytes=size_bytes,
        records=records,
    )
    joiner._log_time_ms = log_time_ms
    joiner._offset_head = OFFSET + head
    joiner._read_next = dict.fromkeys(streams, OFFSET)
    joiner._queue = deque([_Queued(_moved(source, OFFSET), NOW_MS - age_ms, record, *judged) for age_ms, record, source, *judged in queue])
    joiner.history = History([effect_at(OFFSET + last, model)])
    joiner.suspicions = Suspicions(agreed)
    joiner.marks = {partition: Mark(OFFSET + at, b"") for partition, at in marks}
    joiner._dropped = {partition: (OFFSET + at, hole if waits else _GONE) for partition, at, waits in dropped}
    joiner._queue_ids = queue_ids
    joiner._since_effect = 0, b""
    joiner._hole = hole
    joiner._skipped = None if skipped is None else (skipped[0], OFFSET + skipped[1])
    joiner._fills_due_ms = -1 if due_ms < 0 else NOW_MS + due_ms
    joiner._fill_proposed_ms = {key: NOW_MS - age_ms for key, age_ms in proposed}
    joiner._silent = {life: (last, NOW_MS - age_ms) for life, last, age_ms in silent}
    joiner._buffer_full = buffer_full
    joiner._queue_full = queue_full
    return joiner


_GONE: Any = object()
"""A stand-in for an entry that waited once and was applied since: it is identical to no entry."""


def effect_at(offset: int, model: Joiner) -> Effect:
    """Returns the last effect as a step needs it: its offset, in a history that includes the view of every record."""
    assert model.log_state is not None
    return Effect(1, model.log_state.log_id, offset, 0, b"")


def _moved(record: Record, by: int) -> Record:
    return Record(record.stream, record.offset + by, record.append_time_ms, record.key, record.value)


def _with(kind: type, model: Any, **fields: Any) -> Any:
    """Returns an instance of the model's class (a broken rule may be in a subclass) with these fields."""
    assert isinstance(model, kind)
    made = object.__new__(type(model))
    made.__dict__.update(fields)
    return made
