"""Decisions that a salvage restores (R11; docs/formats.md, Salvage): decodes its items, and places them among the requests.

`effects` finds the steps that take effect. It trusts the owner's positions and roots, since an exact view shows that the owner has read the
same records. Later stages check the owner's statements: positions here, roots in `tree`, and states and ids in `wrong_items`.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from hashlib import sha256
from itertools import islice, pairwise
from struct import Struct
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_join.constants import CONFLICT_BYTES, HASH_BYTES, LEAF_PREFIX, LOST_PREFIX, OUTCOMES, SIGNATURE_BYTES, STATE_BYTES
from spark_join.engine.columns import frame_of
from spark_join.engine.columns import sha256 as hash_of
from spark_join.violations import LOG, render_hex, render_state, violations

_STEP_BYTES: Final = 2 + 32 + 8 + 32 + 1
"""Bytes of an ordering record before the rest of its step: version, kind, public key, view, step."""
_ITEMS_AT_ONCE: Final = 1 << 14
_FIRST = Struct(">QI")
_COUNT = Struct(">I")
_LEAF = Struct(">19sQ32sqBI32s")
DECISION, HASH, LOST = "decisions", "hashes", "lost"
"""The three forms of an item."""
_CONFLICT = pa.struct([("state", pa.binary()), ("kind", pa.int32()), ("consumed_by", pa.binary())])
_ITEM = pa.schema(
    [
        ("done", pa.int64()),
        ("ordinal", pa.int64()),
        ("form", pa.string()),
        ("hash", pa.binary()),
        ("id", pa.binary()),
        ("log_time_ms", pa.int64()),
        ("outcome", pa.int32()),
        ("conflicts", pa.list_(_CONFLICT)),
        ("inputs", pa.list_(pa.binary())),
    ]
)
Item = dict[str, Any]


class MalformedItem(Exception):
    """Raised for items that break a rule of docs/formats.md."""


class Salvage(msgspec.Struct, frozen=True):
    """A `begin` or a `done` that takes effect."""

    offset: int
    position: int
    """The position of its first item, as its `begin` states it"""
    begin: int
    """The offset of that `begin`"""
    items: int
    """The number of positions that take effect here; 0 for a `begin`"""


def read_items(rest: bytes) -> Iterator[Item]:
    """Decodes the rest of an `items` record, item by item. Raises `MalformedItem`, or an error of `struct`, also after the last item."""
    first, count = _FIRST.unpack_from(rest)
    _demand(count > 0 and first + count < 1 << 64)
    at = _FIRST.size
    for position in range(first, first + count):
        _demand(at < len(rest))
        item, at = _item(rest, at, position)
        yield item
    _demand(at == len(rest))


def _item(rest: bytes, at: int, position: int) -> tuple[Item, int]:
    empty: Item = {"id": None, "log_time_ms": None, "outcome": None, "conflicts": [], "inputs": []}
    form, at = rest[at], at + 1
    if form == 1:
        hash_ = rest[at : at + HASH_BYTES]
        _demand(len(hash_) == HASH_BYTES)
        return {"form": HASH, "hash": hash_, **empty}, at + HASH_BYTES
    if form == 2:
        return {"form": LOST, "hash": _hash(LOST_PREFIX + position.to_bytes(8, "big")), **empty}, at
    _demand(form == 0)
    prefix, stands, id_, log_time_ms, outcome, count, digest = _LEAF.unpack_from(rest, at)
    hash_ = _hash(rest[at : at + _LEAF.size])
    at += _LEAF.size
    _demand(prefix == LEAF_PREFIX and stands == position and outcome in OUTCOMES and (count > 0) == (outcome in (1, 2)))
    met = _pieces(rest, at, count, CONFLICT_BYTES)
    at += count * CONFLICT_BYTES
    _demand(sha256(b"".join(met)).digest() == digest)
    conflicts = [{"state": each[:STATE_BYTES], "kind": each[STATE_BYTES], "consumed_by": each[STATE_BYTES + 1 :]} for each in met]
    _demand(all(each["kind"] == outcome - 1 for each in conflicts))
    (number,) = _COUNT.unpack_from(rest, at)
    inputs = _pieces(rest, at + _COUNT.size, number, STATE_BYTES)
    _demand(not (number and outcome) and _ascend(inputs) and _ascend([each[:STATE_BYTES] for each in met]))
    item = {"form": DECISION, "hash": hash_, "id": id_, "log_time_ms": log_time_ms, "outcome": outcome}
    return {**item, "conflicts": conflicts, "inputs": inputs}, at + _COUNT.size + number * STATE_BYTES


def _hash(leaf: bytes) -> bytes:
    return sha256(b"\x00" + leaf).digest()


def _pieces(rest: bytes, at: int, count: int, length: int) -> list[bytes]:
    _demand(at + count * length <= len(rest))
    return [rest[start : start + length] for start in range(at, at + count * length, length)]


def _ascend(states: Sequence[bytes]) -> bool:
    return all(before < after for before, after in pairwise(states))


def _demand(condition: bool) -> None:
    if not condition:
        raise MalformedItem


def salvages(records: DataFrame) -> list[Salvage]:
    """Returns each `begin` and `done` among the records of `effects` that takes effect, in order. The owner signs few."""
    steps = records.where(F.col("effect") & F.col("kind").isin("salvage-begin", "salvage-done"))
    rows = sorted(steps.select("offset", "salvage_position", "salvage_begin", "salvaged").collect())
    return [Salvage(row.offset, int.from_bytes(row.salvage_position, "big"), row.salvage_begin, row.salvaged) for row in rows]


def restored(ordering: DataFrame, records: DataFrame, found: Sequence[Salvage]) -> DataFrame | None:
    """Returns the items that take effect (`_ITEM`; `done` is the offset of their `done`, `ordinal` counts from 0); None if there are none.

    `ordering` are the ordering records with their values, `records` the same after `effects`.
    """
    dones = [(each.begin, each.offset, str(each.position)) for each in found if each.items]
    if not dones:
        return None
    of = frame_of(ordering.sparkSession, dones, "begin bigint, done bigint, position string")
    steps = records.where(F.col("effect") & (F.col("kind") == "salvage-items")).select("offset")
    in_effect = steps.join(F.broadcast(of), (F.col("offset") > F.col("begin")) & (F.col("offset") < F.col("done")))
    values = ordering.select("offset", "value").join(in_effect, "offset")
    return values.select("done", "position", "value").mapInArrow(_decoded, from_arrow_schema(_ITEM))


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            rest = row["value"][_STEP_BYTES:-SIGNATURE_BYTES]
            ordinal = _FIRST.unpack_from(rest)[0] - int(row["position"])
            items = ({"done": row["done"], "ordinal": ordinal + at, **item} for at, item in enumerate(read_items(rest)))
            # A record may have a million items of one byte each. Decoded they need 400 times as much memory.
            while some := list(islice(items, _ITEMS_AT_ONCE)):
                yield pa.RecordBatch.from_pylist(some, _ITEM)


def placed(items: DataFrame, starts: dict[int, int]) -> DataFrame:
    """Returns `items` (from `restored`) with `position`; `starts` has the position of the first item of each `done`, by its offset."""
    of = frame_of(items.sparkSession, list(starts.items()), "done bigint, start bigint")
    placed_ = items.join(F.broadcast(of), "done").withColumn("position", F.col("start") + F.col("ordinal"))
    return placed_.withColumnRenamed("done", "offset").drop("start", "ordinal")


def claims(items: DataFrame) -> DataFrame:
    """Returns state, consumed_by, position and offset of each state that salvaged decisions consume, or show as consumed (`placed`)."""
    own = F.transform("inputs", lambda state: F.struct(state.alias("state"), hash_of(F.col("id")).alias("consumed_by")))
    cited = F.transform("conflicts", lambda met: F.struct(met["state"].alias("state"), met["consumed_by"].alias("consumed_by")))
    return items.select("position", "offset", F.explode(F.concat(own, cited)).alias("claim")).select("position", "offset", "claim.*")


def wrong_begins(found: Sequence[Salvage], starts: dict[int, int]) -> list[tuple[object, ...]]:
    """Returns a violation for each `begin` at another position than the decisions before it reach."""
    return [
        ("salvage-mismatch", starts[each.offset], each.offset, None, f"position {each.position}", f"{starts[each.offset]}", LOG, None, None)
        for each in found
        if not each.items and each.offset == each.begin and each.position != starts[each.offset]
    ]


def wrong_items(items: DataFrame, requests: DataFrame, consumed: Sequence[DataFrame], ids: DataFrame) -> DataFrame:
    """Returns violations for salvaged decisions that spend a state again, or decide a transaction again. The first of two is right.

    `consumed` are all other states that are consumed, in frames of state and consumed_by; `ids` those that an earlier state has decided.
    """
    mine = claims(items)
    first = F.lit(-1).alias("before")  # the log decides requests after the items before them, so a request that consumes a state came first
    others = reduce(
        DataFrame.union,
        [
            mine.select("state", F.col("consumed_by").alias("other"), F.col("position").alias("before")),
            *[each.select("state", F.col("consumed_by").alias("other"), first) for each in consumed],
        ],
    )
    met = mine.join(others, "state").where((F.col("consumed_by") != F.col("other")) & (F.col("before") < F.col("position")))
    spent = met.groupBy("position", "offset", "state", "consumed_by").agg(F.min("other").alias("other"))

    def consumed_by(name: str) -> Column:
        return F.format_string("%s consumed by %s", render_state(F.col("state")), render_hex(F.col(name)))

    twice = violations(spent, F.lit("salvage-mismatch"), found=consumed_by("consumed_by"), expected=consumed_by("other"))
    known = items.where(F.col("id").isNotNull()).select("id", "position", "offset")
    all_of_them = reduce(
        DataFrame.union,
        [known.select("id", F.col("position").alias("before")), *[each.select("id", first) for each in (requests, ids)]],
    )
    again = known.join(all_of_them.groupBy("id").agg(F.min("before").alias("before")), "id").where("before < position")
    decided = violations(
        again,
        F.lit("salvage-mismatch"),
        id=render_hex(F.col("id")),
        found=F.lit("a transaction that has another position too"),
        expected=F.lit("each transaction once"),
    )
    return twice.unionByName(decided)
