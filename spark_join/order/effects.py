"""Finds which ordering records take effect, and makes the history over them (R2, R5, R6, R10), record by record in one task.

The history is one running hash, so one task must apply the records one after the other. Only this task knows whether a view is the reader's
own. The rows are small: some 300 bytes for each ordering record, for any number of requests. Earlier stages have checked signatures,
contents and ids, in parallel.

The first entry in effect without a content is the hole. The state for a later run is taken there (`Carry`). Behind it, records are applied
as if every hole had a content, since contents do not determine which records take effect. The history depends on contents, and ends there.

If a salvage (R11) has begun and is not done when the log ends, the state is taken at its `begin`, so that a later run finds all its items.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, get_type_hints

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_join.constants import HASH_BYTES, SALVAGE_FORMAT, SENT_AT_AHEAD_MAX_MS, VIEWS_KEPT, VOTERS_MS
from spark_join.identity import NOTARY_KINDS, Identity

NO_SEQUENCE: Final = bytes(8)
OWN, FOREIGN, OLD, BEYOND = "own", "foreign", "old", "beyond"
"""The four values of `AppliedRecord.view`: the reader's own history; another one; too old to be compared; from behind the hole."""


class Incarnation(msgspec.Struct):
    """One incarnation of a worker; its number is its place in `Carry.incarnations`, from 1 on."""

    nonce: bytes
    name: bytes
    format_version: int
    active_at_ms: int
    reached: bytes = NO_SEQUENCE
    """The highest sequence that counted, 8 bytes"""
    over: bool = False


class Carry(msgspec.Struct):
    """The facts about earlier ordering records that applying the next one needs."""

    incarnations: list[Incarnation] = []
    partitions: int = 0
    log_time_ms: int = 0
    seen: int = 0
    """The number of records that have taken effect"""
    settled: int = 0
    """The `seen` of the last settle record in effect"""
    settled_offset: int = -1
    """The offset of that record. A state of earlier software has none; -1 has the same effect, since all later records come after it"""
    formats: list[int] = msgspec.field(default_factory=lambda: [1])
    """The format versions that are active"""
    agreed_offset: int = -1
    """The offset of the last view that was the reader's own"""
    histories: bytes = b""
    """The last `VIEWS_KEPT` values of the history, 32 bytes each, the newest last"""
    key_seen: int = 0
    """The ordinal of the last `key` record among the records in effect"""
    sealed: bool = False
    """True from a sealed entry or the `begin` of a salvage on, until its `done`: no record of a worker counts (R11)"""
    trimmed: int = 0
    """The position in the last trim record in effect"""
    salvaged: bool = False
    """True once a salvage has restored a position: states may be reserved"""


class _Salvage(msgspec.Struct):
    """A salvage that has begun."""

    offset: int
    """The ordering offset of its `begin`"""
    resume: bytes
    """The carry before that, encoded"""
    first: int
    """The position of the first item"""
    position_next: int
    """The position after the last item so far"""
    time_ms: int
    """The latest log time of the items, or the log time"""


class AppliedRecord(msgspec.Struct):
    """The outcome of one record."""

    effect: bool = False
    skipped: str | None = None
    """The reason why it has no effect; None for a record in effect, and for a checkpoint whose root is compared or is behind the hole"""
    log_time_ms: int | None = None
    reached: bytes | None = None
    """For an entry in effect: the log time, and the highest sequence of its incarnation before it"""
    view: str | None = None
    """See `OWN`; None for a record without a good signature or without a view"""
    expected: str | None = None
    """For a foreign view: the view that should be there"""
    seen_here: int | None = None
    """For a foreign view: how many records had taken effect before it"""
    foreign_writer: bytes | None = None
    """For a foreign view: the incarnation that wrote it, 8 bytes; None for the owner"""
    is_sealed: bool = False
    """True for an entry in effect whose content is a seal"""
    settled_last: int | None = None
    """For a settle record in effect: the offset of the last record of the history that it settles; None if that is in an earlier part"""
    salvage_begin: int | None = None
    """For the `begin` and `done` of a salvage in effect: the offset of that `begin`"""
    salvage_position: bytes | None = None
    """For these two: the position of the first item, as the owner states it, 8 bytes"""
    salvaged: int | None = None
    """For these two: the number of positions that take effect here"""


_TYPES: Final = {bool: pa.bool_(), str | None: pa.string(), int | None: pa.int64(), bytes | None: pa.binary()}
_VERDICT: Final = pa.schema([(name, _TYPES[type_]) for name, type_ in get_type_hints(AppliedRecord).items()])
_CARRY: Final = ("carry", pa.binary())
"""The carry in the last row; its `salvage_begin` is that of a salvage that is not done."""
_decode, _encode = msgspec.msgpack.Decoder(Carry).decode, msgspec.msgpack.encode
Row = Mapping[str, Any]
NAME_THE_KEY: Final = frozenset({"salvage-begin", "salvage-items", "salvage-done", "trim"})
"""Kinds 11 and 12: they belong to format version 2, and name the notary's key in force. A settle record of this version names it too."""


def carry_of(encoded: bytes) -> Carry:
    """Decodes the carry that `apply` returned in its last row."""
    return _decode(encoded)


class Effects:
    """One reading of the ordering topic, from `carry` on."""

    def __init__(self, identity: Identity, carry: bytes) -> None:
        self.carry = _decode(carry) if carry else Carry()
        self.at_hole: bytes | None = None
        """The carry before the hole"""
        self._identity = identity
        self.salvage: _Salvage | None = None
        """The salvage that has begun and is not done"""
        self._rotations = {offset - 1 for offset, _ in identity.notary_keys[1:]}
        first = self.carry.seen - len(self.carry.histories) // HASH_BYTES + 1
        kept = self.carry.histories
        self._histories = {first + at // HASH_BYTES: kept[at : at + HASH_BYTES] for at in range(0, len(kept), HASH_BYTES)}
        self._offsets: dict[int, int] = {}
        """The offsets of the records whose hashes `_histories` has, by the same number; of this part alone"""
        self._nonces = {each.nonce: number for number, each in enumerate(self.carry.incarnations, 1)}
        self._current = {each.name: each for each in self.carry.incarnations if not each.over}

    def apply(self, row: Row) -> AppliedRecord:
        """Apply one record: a row of `ordering_records.SCHEMA`, with `mark`, 1 for an entry whose content is its payload, 0 for one whose
        content is a fill, None for all others, and `sealed`, true where a seal comes before that."""
        verdict = AppliedRecord()
        kind = row["kind"]
        verdict.skipped = self._unseen(kind, row)
        if verdict.skipped is not None:
            return verdict
        if row["seen"] is not None:
            self._compare(row, verdict)
        verdict.skipped = _APPLY[kind](self, row, verdict)
        verdict.effect = verdict.skipped is None and kind != "checkpoint"
        if verdict.effect and self.at_hole is None:
            self._advance(row, 2 if verdict.is_sealed else row["mark"] or 0)
        return verdict

    def _unseen(self, kind: str, row: Row) -> str | None:
        """Returns the reason to skip a record before its view is compared, or None."""
        is_settle, is_active = kind == "settle", SALVAGE_FORMAT in self.carry.formats
        names_key = kind in NAME_THE_KEY or (is_settle and row["public_key"] is not None)
        if kind == "malformed" or (names_key and not is_active):
            return "malformed"
        if not row["signed"]:
            return "signature"
        if self.carry.sealed and (is_settle or kind in NOTARY_KINDS):
            return "salvage"
        if (names_key or (is_settle and is_active)) and row["public_key"] != self._identity.notary_key(row["offset"]):
            return "key"
        return None

    def encoded(self) -> bytes:
        """Returns the encoded carry at the hole or at the `begin` of an open salvage; otherwise after the last record that was applied."""
        if self.at_hole is not None:
            return self.at_hole
        return self._encoded() if self.salvage is None else self.salvage.resume

    def _encoded(self) -> bytes:
        return _encode(msgspec.structs.replace(self.carry, histories=b"".join(self._histories.values())))

    @property
    def history(self) -> bytes:
        """The history over all records in effect."""
        return self._histories[self.carry.seen]

    def _compare(self, row: Row, verdict: AppliedRecord) -> None:
        seen, carry = int.from_bytes(row["seen"], "big"), self.carry
        if seen > carry.seen:
            verdict.view = FOREIGN if self.at_hole is None else BEYOND
            verdict.expected = f"a view of at most {carry.seen} records"
        elif (own := self._histories.get(seen)) is None:
            verdict.view = OLD
        elif own == row["history"]:
            verdict.view, carry.agreed_offset = OWN, row["offset"]
        else:
            verdict.view, verdict.expected = FOREIGN, own.hex()
        if verdict.view == FOREIGN:
            agreed = "none before" if carry.agreed_offset < 0 else f"the last that agreed is at offset {carry.agreed_offset}"
            verdict.expected = f"{verdict.expected}; {agreed}"
            verdict.seen_here, verdict.foreign_writer = carry.seen, self._writer(row)

    def _writer(self, row: Row) -> bytes | None:
        """Returns the incarnation that wrote a record, 8 bytes; None for the owner.

        A register record counts as the first record of the incarnation that it begins.
        """
        kind = row["kind"]
        if kind == "settle" or kind in NAME_THE_KEY:
            return None
        if kind == "register":
            return self._nonces.get(row["nonce"], len(self.carry.incarnations) + 1).to_bytes(8, "big")
        writer: bytes = row["writer" if kind == "fence" else "incarnation"]
        return writer

    def _advance(self, row: Row, mark: int) -> None:
        carry = self.carry
        if carry.seen:
            time = row["append_time_ms"].to_bytes(8, "big", signed=True)
            history = sha256(self._histories[carry.seen] + time + row["value_hash"] + bytes((mark,))).digest()
        else:
            history = row["value_hash"]
        carry.seen += 1
        self._histories[carry.seen] = history
        self._offsets[carry.seen] = row["offset"]
        self._histories.pop(carry.seen - VIEWS_KEPT, None)
        self._offsets.pop(carry.seen - VIEWS_KEPT, None)

    def _of(self, row: Row) -> Incarnation | None:
        """Returns the incarnation that a record names, if it has begun and has not ended."""
        number = int.from_bytes(row["incarnation"], "big")
        if not 0 < number <= len(self.carry.incarnations):
            return None
        found = self.carry.incarnations[number - 1]
        return None if found.over else found

    def _end(self, incarnation: Incarnation) -> None:
        incarnation.over = True
        del self._current[incarnation.name]

    def _entry(self, row: Row, verdict: AppliedRecord) -> str | None:
        incarnation, carry = self._of(row), self.carry
        if incarnation is None:
            return "incarnation"
        if row["sequence"] <= incarnation.reached:
            return "sequence"
        if row["partition"] >= carry.partitions:
            return "partition"
        if row["sealed"] and SALVAGE_FORMAT in carry.formats:
            carry.sealed, verdict.is_sealed = True, True
            verdict.log_time_ms, verdict.reached = carry.log_time_ms, incarnation.reached
            incarnation.reached = row["sequence"]
            return None
        if row["mark"] is None and self.at_hole is None:
            self.at_hole = self._encoded()
        carry.log_time_ms = max(carry.log_time_ms, min(row["append_time_ms"], row["sent_at_ms"] + SENT_AT_AHEAD_MAX_MS))
        verdict.log_time_ms, verdict.reached = carry.log_time_ms, incarnation.reached
        incarnation.reached, incarnation.active_at_ms = row["sequence"], carry.log_time_ms
        return None

    def _register(self, row: Row, verdict: AppliedRecord) -> str | None:
        if row["nonce"] in self._nonces:
            return "nonce"
        name = row["name"]
        if (before := self._current.get(name)) is not None:
            self._end(before)
        begun = Incarnation(row["nonce"], name, row["format_version"], max(self.carry.log_time_ms, row["append_time_ms"]))
        self._current[name] = begun
        self.carry.incarnations.append(begun)
        self._nonces[begun.nonce] = len(self.carry.incarnations)
        return None

    def _fence(self, row: Row, verdict: AppliedRecord) -> str | None:
        incarnation = self._of(row)
        if incarnation is None:
            return "incarnation"
        if incarnation.reached != row["sequence"]:
            return "sequence"
        self._end(incarnation)
        return None

    def _checkpoint(self, row: Row, verdict: AppliedRecord) -> str | None:
        if self._of(row) is None:
            return "incarnation"
        return None if verdict.view in (OWN, BEYOND) else "view"

    def _activate(self, row: Row, verdict: AppliedRecord) -> str | None:
        since_ms = self.carry.log_time_ms - VOTERS_MS
        voters = [each for each in self._current.values() if each.active_at_ms >= since_ms]
        version = row["format_version"]
        is_new = version not in self.carry.formats and all(each.format_version >= version for each in voters)
        if not is_new:
            return "version"
        self.carry.formats.append(version)
        return None

    def _genesis(self, row: Row, verdict: AppliedRecord) -> str | None:
        if self.carry.seen:
            return "genesis"
        self.carry.partitions = row["partitions"]
        return None

    def _key(self, row: Row, verdict: AppliedRecord) -> str | None:
        if row["offset"] not in self._rotations:
            return "key"
        self.carry.key_seen, self.salvage = self.carry.seen + 1, None
        return None

    def _partitions(self, row: Row, verdict: AppliedRecord) -> str | None:
        if row["partitions"] <= self.carry.partitions:
            return "partition"
        self.carry.partitions = row["partitions"]
        return None

    def _retire(self, row: Row, verdict: AppliedRecord) -> str | None:
        incarnation = self._of(row)
        if incarnation is None:
            return "incarnation"
        self._end(incarnation)
        return None

    def _settle(self, row: Row, verdict: AppliedRecord) -> str | None:
        # Without the second condition a copy of a settle record would take effect again: its view stays the reader's own for long.
        seen = int.from_bytes(row["seen"], "big")
        if verdict.view != OWN or seen <= self.carry.settled:
            return "view"
        self.carry.settled, self.carry.settled_offset = seen, row["offset"]
        if self.at_hole is None:
            verdict.settled_last = self._offsets.get(seen)
        return None

    def _is_exact(self, row: Row, verdict: AppliedRecord) -> bool:
        """Returns True if a view is exactly the history at its place. Behind a hole that history is unknown."""
        return verdict.view == OWN and int.from_bytes(row["seen"], "big") == self.carry.seen and self.at_hole is None

    def _begin(self, row: Row, verdict: AppliedRecord) -> str | None:
        if not self._is_exact(row, verdict):
            return "view"
        if self.carry.key_seen != self.carry.seen:
            return "salvage"
        first = int.from_bytes(row["first"], "big")
        resume = self._encoded()
        self.salvage = _Salvage(row["offset"], resume, first, first, self.carry.log_time_ms)
        self.carry.sealed = True
        verdict.salvage_begin, verdict.salvage_position, verdict.salvaged = row["offset"], row["first"], 0
        return None

    def _items(self, row: Row, verdict: AppliedRecord) -> str | None:
        if not self._is_exact(row, verdict):
            return "view"
        salvage = self.salvage
        if salvage is None or salvage.position_next != int.from_bytes(row["first"], "big"):
            return "salvage"
        salvage.position_next += row["count"]
        if row["items_time_ms"] is not None:
            salvage.time_ms = max(salvage.time_ms, row["items_time_ms"])
        return None

    def _done(self, row: Row, verdict: AppliedRecord) -> str | None:
        if not self._is_exact(row, verdict):
            return "view"
        salvage, carry = self.salvage, self.carry
        if salvage is None or salvage.position_next != int.from_bytes(row["tree_size"], "big"):
            return "salvage"
        verdict.salvage_begin, verdict.salvage_position = salvage.offset, salvage.first.to_bytes(8, "big")
        verdict.salvaged = salvage.position_next - salvage.first
        carry.log_time_ms, carry.sealed, self.salvage = salvage.time_ms, False, None
        verdict.log_time_ms = carry.log_time_ms
        carry.settled, carry.settled_offset = carry.seen, row["offset"]
        carry.salvaged = carry.salvaged or verdict.salvaged > 0
        return None

    def _trim(self, row: Row, verdict: AppliedRecord) -> str | None:
        if verdict.view != OWN:
            return "view"
        position = int.from_bytes(row["tree_size"], "big")
        if position <= self.carry.trimmed:
            return "trim"
        self.carry.trimmed = position
        return None


_APPLY: Final[dict[str, Callable[[Effects, Row, AppliedRecord], str | None]]] = {
    "entry": Effects._entry,
    "register": Effects._register,
    "fence": Effects._fence,
    "checkpoint": Effects._checkpoint,
    "activate": Effects._activate,
    "genesis": Effects._genesis,
    "key": Effects._key,
    "partitions": Effects._partitions,
    "retire": Effects._retire,
    "settle": Effects._settle,
    "salvage-begin": Effects._begin,
    "salvage-items": Effects._items,
    "salvage-done": Effects._done,
    "trim": Effects._trim,
}
"""The functions that apply a record, by its kind; each returns the reason why the record has no effect, or None."""


def apply(records: DataFrame, identity: Identity, carry: bytes) -> DataFrame:
    """Applies `records` (`ordering_records.SCHEMA`, `mark` and `sealed`) in one task, and adds the columns of `AppliedRecord`.

    `mark` is 2 for an entry in effect whose content is a seal. The result has one more row, which has only `carry`, and in
    `salvage_begin` the offset of a salvage that is not done.
    """
    schema = pa.schema([*to_arrow_schema(records.schema), *_VERDICT, _CARRY])

    def applied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        effects = Effects(identity, carry)
        for batch in batches:
            verdicts = [effects.apply(row) for row in batch.to_pylist()]
            columns = [
                pa.array([getattr(each, name) for each in verdicts], type_)
                for name, type_ in zip(_VERDICT.names, _VERDICT.types, strict=True)
            ]
            given = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)]
            yield pa.RecordBatch.from_arrays([*given, *columns, pa.nulls(batch.num_rows, pa.binary())], schema=schema)
        is_open = effects.at_hole is None and effects.salvage is not None
        resume = {"salvage_begin": effects.salvage.offset} if is_open and effects.salvage is not None else {}
        yield pa.RecordBatch.from_pylist([{"carry": effects.encoded(), **resume}], schema)

    in_order = records.repartition(1).sortWithinPartitions("offset")
    found = in_order.mapInArrow(applied, from_arrow_schema(schema)).withColumn("effect", F.coalesce("effect", F.lit(False)))
    return found.withColumn("mark", F.when(F.col("is_sealed"), 2).otherwise(F.col("mark"))).drop("is_sealed", "sealed")
