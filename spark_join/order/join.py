"""The join: reads the two topics and returns the requests to decide, in the global order (R2, R3, R5 to R7, R10)."""

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import FORMAT_VERSION
from spark_join.engine.columns import frame_of
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.identity import Identity
from spark_join.log import LogFrames
from spark_join.order import contents, effects, ordering_records, salvage
from spark_join.order.anomalies import missing_offsets
from spark_join.order.ordering_records import identity_at_start, with_rotations
from spark_join.order.payloads import Keys
from spark_join.state import AppliedState


class Undecided(msgspec.Struct, frozen=True):
    """The first hole, and the entries from there on, which are not decided."""

    from_offset: int
    entries: int
    """Entries in effect from the hole on, if this hole and all others get a content; the hole is one of them"""
    requests: int
    """Requests of these entries, repetitions included"""
    because: str


class Joined(msgspec.Struct, frozen=True):
    """The requests of the log up to its first hole, and the records that they come from."""

    requests: DataFrame
    """First occurrences. Columns: position, offset, ordinal, log_time_ms, id, inputs, references, from_ms, until_ms"""
    identity: Identity
    """The identity of the log, with all keys up to the last record that was read"""
    records: DataFrame
    """The ordering topic, behind a hole too: with all columns of `contents.with_locations` and `effects.AppliedRecord`"""
    unreadable: DataFrame
    faults: DataFrame
    """These two: see `contents.Contents`."""
    entries: DataFrame
    """The entries among `records` that take effect, up to the hole, without sealed ones"""
    carry: bytes
    """See `effects.Carry`: its value at the hole, or after the last record"""
    payload: DataFrame
    """The payload records, with the orphans of the earlier part"""
    locations: DataFrame
    """The same records with the columns of `contents.keyed`, without their values"""
    gone: DataFrame | None
    """Missing offsets: see `anomalies.missing_offsets`"""
    undecided: Undecided | None
    """The first entry in effect without a content; nothing from there on is decided"""
    items: DataFrame | None
    """The positions that salvages restore (`salvage.placed`); None without any"""
    wrong_begins: list[tuple[object, ...]]
    """See `salvage.wrong_begins`"""
    offset_next: int | None
    """The ordering offset from which a later run goes on: of the hole, or of a salvage that is not done; None at the log's end"""

    @property
    def numbered(self) -> DataFrame:
        """The entries among `records` that take effect, up to the hole, with sealed ones."""
        in_effect = self.records.where((F.col("kind") == "entry") & F.col("effect"))
        return in_effect if self.offset_hole is None else in_effect.where(F.col("offset") < self.offset_hole)

    @property
    def offset_hole(self) -> int | None:
        """The ordering offset of the hole."""
        return None if self.undecided is None else self.undecided.from_offset


def join(log: LogFrames, state: AppliedState, keys: Keys | None, stages: Stages) -> Joined:
    """Joins the records of `log`, which continues `state`. `keys` as in `contents.read_contents`.

    Raises `CouldNotVerify` for a log that does not begin with a genesis record, and for one of a newer format.
    """
    identity = with_rotations(identity_at_start(log) if state.identity is None else state.identity, log.ordering, stages)
    payload = state.orphans.unionByName(log.payload)
    # Several stages read the key, hash and offset of a payload record; only one reads its value.
    locations = stages.keep(
        "payload records", contents.keyed(log.payload, is_orphan=False).union(contents.keyed(state.orphans, is_orphan=True))
    )
    parsed = stages.keep("ordering records", ordering_records.parse(log.ordering, identity))
    gone = missing_offsets(parsed, locations.where(~F.col("is_orphan")), _edges(log, state))
    applied = stages.keep("effects", effects.apply(contents.with_locations(parsed, locations, identity), identity, state.carry))
    records, carried = applied.where(F.col("carry").isNull()).drop("carry"), applied.where(F.col("carry").isNotNull()).head()
    entries = records.where((F.col("kind") == "entry") & F.col("effect") & ~F.col("mark").eqNullSafe(contents.SEAL))
    undecided = _undecided(entries)
    if undecided is not None:
        entries = entries.where(F.col("offset") < undecided.from_offset)
    _refuse_newer(records, undecided)
    read = contents.split(stages.keep("contents", contents.read_contents(entries, payload, identity.notary_name, keys)))
    salvages = salvage.salvages(records)
    items = salvage.restored(log.ordering, records, salvages)
    items = None if items is None else stages.keep("salvaged", items)
    decided = state.among("ids", read.requests.select("id"), stages, "ids")
    repeated = stages.keep("repetitions", contents.repetitions(read.requests, decided, items))
    starts = contents.entry_starts(read.requests, repeated, state.decided, salvages)
    start_of = {}
    if salvages:
        starts = stages.keep("first positions", starts)
        rows = starts.where(F.col("offset").isin([each.offset for each in salvages])).collect()
        start_of = {row.offset: row["_start"] for row in rows}
    resume = None if carried is None else carried.salvage_begin
    return Joined(
        requests=stages.keep("first occurrences", contents.with_positions(read.requests, repeated, starts)),
        identity=identity,
        records=records,
        unreadable=read.unreadable,
        faults=read.faults,
        entries=entries,
        carry=state.carry if carried is None else bytes(carried.carry),
        payload=payload,
        locations=locations,
        gone=gone,
        undecided=undecided,
        items=None if items is None else stages.keep("salvaged decisions", salvage.placed(items, start_of)),
        wrong_begins=salvage.wrong_begins(salvages, start_of),
        offset_next=resume if undecided is None else undecided.from_offset,
    )


def _refuse_newer(records: DataFrame, undecided: Undecided | None) -> None:
    """Raise `CouldNotVerify` for an activation before the hole that this software does not know. No reader gets to one behind it."""
    if undecided is not None:
        records = records.where(F.col("offset") < undecided.from_offset)
    activated = records.where((F.col("kind") == "activate") & F.col("effect") & (F.col("format_version") > FORMAT_VERSION))
    newer = activated.select("offset", "format_version").orderBy("offset").head()
    if newer is not None:
        raise CouldNotVerify(
            f"ordering record {newer.offset} activates format version {newer.format_version}, and this software reads"
            f" {FORMAT_VERSION}: verify with a newer version"
        )


def _undecided(entries: DataFrame) -> Undecided | None:
    hole = entries.where(F.col("mark").isNull()).select("offset", "incarnation", "sequence", "partition").orderBy("offset").head()
    if hole is None:
        return None
    offset, incarnation, sequence, partition = hole
    (behind,) = entries.where(F.col("offset") >= offset).agg(F.count("*").alias("entries"), F.sum("count").alias("requests")).collect()
    batch = tuple(int.from_bytes(octets, "big") for octets in (incarnation, sequence))
    return Undecided(offset, behind.entries, behind.requests, f"no payload of batch {batch} is in payload partition {partition}")


def _edges(log: LogFrames, state: AppliedState) -> DataFrame:
    """Returns topic, partition and offset of two edges a partition: one before the first expected record, one after the last."""
    edges = [(*topic_partition, state.offsets_next.get(topic_partition, 0) - 1) for topic_partition in log.log_end_offsets]
    edges += [(*topic_partition, end) for topic_partition, end in log.log_end_offsets.items()]
    return frame_of(log.ordering.sparkSession, edges, "topic string, partition int, offset bigint")
