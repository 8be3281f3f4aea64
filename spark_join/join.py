"""The join: from the two topics to the requests that are to be decided, in their order (R2, R3, R5 to R7)."""

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_join.constants import FORMAT_VERSION
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.log.log import Log, records_since
from spark_join.order import contents, ordering_records, positions
from spark_join.order import judged as order
from spark_join.order.gaps import missing_offsets
from spark_join.order.signatures import Keys
from spark_join.state.last_records import last_records
from spark_join.state.state import State


class Undecided(msgspec.Struct, frozen=True):
    """A hole, and what stands there and behind it."""

    from_offset: int
    entries: int
    """Those that count, if the hole and all like it get a content; the hole is one"""
    requests: int
    """Of these entries, repetitions too"""
    because: str


class Joined(msgspec.Struct, frozen=True):
    """What the log asks, up to its first hole."""

    requests: DataFrame
    """First occurrences: position, offset, ordinal, log_time_ms, id, inputs, references, from_ms, until_ms"""
    checkpoints: DataFrame
    """offset, incarnation, tree_size, root, counted (see `judged.Order`); those behind a hole too"""
    unreadable: DataFrame
    faults: DataFrame
    """See `contents.Contents`."""
    records: DataFrame
    """The ordering topic as `ordering_records.parse` gives it"""
    lives: DataFrame
    """See `judged.Order`; those that begin behind a hole too"""
    entries: DataFrame
    """See `judged.Order`, with `contents.with_places`; up to the hole"""
    payload: DataFrame
    """The payload records, orphans of the earlier part too"""
    places: DataFrame
    """The same as `contents.keyed` gives them, without their values"""
    gone: DataFrame | None
    """Offsets that are not there: see `gaps.missing_offsets`"""
    undecided: Undecided | None
    """The first entry that counts and has no content; nothing from there on is decided"""

    @property
    def offset_hole(self) -> int | None:
        """The ordering offset of the hole."""
        return None if self.undecided is None else self.undecided.from_offset


def rest_of(log: Log, state: State) -> Log:
    """What `log`, read from `state.since` on, has after the part that `state` stands for. Raises `CouldNotVerify` for another log."""
    if not state.offsets_next:
        return log
    if (log.notary_name, log.payload_partitions) != (state.notary_name, state.payload_partitions):
        raise CouldNotVerify(
            f"the earlier run read the log of {state.notary_name!r} with {state.payload_partitions} payload partitions, and this one is of"
            f" {log.notary_name!r} with {log.payload_partitions}: name a report of the same notary"
        )
    for place, offset in sorted(state.offsets_next.items()):
        if log.offsets_end[place] < offset:
            raise CouldNotVerify(
                f"{place[0]} partition {place[1]} ends at offset {log.offsets_end[place]}, and the earlier run had read it up to {offset}:"
                " a part of the log is gone, or this is another one"
            )
    found = last_records(log, {place: last.offset for place, last in state.last_records.items()})
    for place, last in sorted(state.last_records.items()):
        if found.get(place) != last:
            raise CouldNotVerify(
                f"offset {last.offset} of {place[0]} partition {place[1]}, the last record of it that the earlier run had read, is not what"
                " it was: this is another log, or it was cut and has grown again; verify it from its start, without --checkpoint-from"
            )
    ordering, payload = (
        records_since(of, topic, state.offsets_next) for topic, of in (("ordering", log.ordering), ("payload", log.payload))
    )
    return msgspec.structs.replace(log, ordering=ordering, payload=payload)


def join(log: Log, state: State, keys: Keys | None, stages: Stages) -> Joined:
    """Read the log, of which `state` is the part before. `keys` as in `contents.read_contents`.

    Raises `CouldNotVerify` for a log of a newer format.
    """
    payload = state.orphans.unionByName(log.payload)
    # What a record is, but for its value, is asked for many times; its value once.
    places = stages.keep(
        "payload records", contents.keyed(log.payload, is_orphan=False).union(contents.keyed(state.orphans, is_orphan=True))
    )
    records = stages.keep("ordering records", ordering_records.parse(log.ordering))
    _refuse_newer(records)
    gone = missing_offsets(records, places.where(~F.col("is_orphan")), _edges(log, state))
    judged = order.judge(records, log.payload_partitions, state.lives, state.log_time_ms, stages)
    entries = stages.keep("entries that count", contents.with_places(judged.entries, places))
    undecided = _undecided(entries)
    if undecided is not None:
        entries = entries.where(F.col("offset") < undecided.from_offset)
    read = contents.split(stages.keep("contents", contents.read_contents(entries, payload, log.notary_name, keys)))
    repeated = stages.keep("repetitions", positions.repetitions(read.requests, state.ids))
    return Joined(
        requests=stages.keep("first occurrences", positions.with_positions(read.requests, repeated, state.decided)),
        checkpoints=judged.checkpoints,
        unreadable=read.unreadable,
        faults=read.faults,
        records=records,
        lives=judged.lives,
        entries=entries,
        payload=payload,
        places=places,
        gone=gone,
        undecided=undecided,
    )


def _refuse_newer(records: DataFrame) -> None:
    (newer,) = (
        records.where(F.col("format_version") > FORMAT_VERSION).agg(F.min(F.struct("offset", "format_version")).alias("first")).collect()
    )
    if newer.first is not None:
        raise CouldNotVerify(
            f"ordering record {newer.first.offset} activates format version {newer.first.format_version}, and this software reads"
            f" {FORMAT_VERSION}: verify with a newer version"
        )


def _undecided(entries: DataFrame) -> Undecided | None:
    first = F.min(F.struct("offset", "incarnation", "sequence", "partition")).alias("first")
    (hole,) = entries.where(F.col("content_offset").isNull()).agg(first).collect()
    if hole.first is None:
        return None
    offset, incarnation, sequence, partition = hole.first
    (behind,) = entries.where(F.col("offset") >= offset).agg(F.count("*").alias("entries"), F.sum("count").alias("requests")).collect()
    batch = tuple(int.from_bytes(octets, "big") for octets in (incarnation, sequence))
    return Undecided(offset, behind.entries, behind.requests, f"no payload of batch {batch} is in payload partition {partition}")


def _edges(log: Log, state: State) -> DataFrame:
    """topic, partition and offset: just before the first record that should be there, and just behind the last."""
    edges = [(*place, state.offsets_next.get(place, 0) - 1) for place in log.offsets_end]
    return log.ordering.sparkSession.createDataFrame(
        edges + [(*place, end) for place, end in log.offsets_end.items()], "topic string, partition int, offset bigint"
    )
