"""Checks a worker's buffered payloads, and the offsets to resume from, against the payloads that may still count (R3, R5, R8)."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from tests.checkers.records import Entry, ordering_record
from tests.checkers.replay import ORDERING, LogRecord, RecordsByPartition, Replayed, by_key, replay
from tests.checkers.violation import Kind, Violation

Name = tuple[int, int]
"""The (incarnation, sequence) of a batch."""


def violations(
    by_partition: RecordsByPartition,
    replayed: Replayed,
    *,
    read_next: Mapping[int, int],
    offsets_next: Mapping[int, int],
    buffered_records: int,
    name: str = "worker",
    complete: Replayed | None = None,
) -> list[Violation]:
    """Compare a worker's joiner, after a step, with its log.

    `replayed`: the log as far as this worker has applied it, `replay(..., offset_stop=offsets_next[ORDERING])`. `read_next`: the next
    offset to read of each topic-partition (`Joiner.read_next`). `offsets_next`: the offsets from which it would read after a restart
    (`Index.joiner_state`); a topic-partition without one is read from its start. `buffered_records`: the number of payload records that it
    buffers (`Joiner.buffered_records`). `complete`: the replay of the complete log; it is computed here if it is not given.
    """
    head = offsets_next[ORDERING]
    if replayed.offset_head != head:
        return [Violation(Kind.AHEAD_OF_LOG, f"{name}, head", head, f"{replayed.offset_head}, where the log can be applied to")]
    found: list[Violation] = []
    least = most = 0
    complete = complete or replay(by_partition)
    entries = _entries_from(by_partition.get(ORDERING, ()), head)
    if complete.ended_by == "hole":
        # No later entry of the hole's name will count. A thief of the notary's key may use a name a second time.
        hole = ordering_record(by_partition[ORDERING][complete.offset_head].value)
        assert isinstance(hole, Entry)
        entries[hole.incarnation, hole.sequence] = [hole]
    contents = {(batch.incarnation, batch.sequence): batch for batch in complete.batches}
    for partition, records in by_partition.items():
        if partition == ORDERING:
            continue
        read = read_next.get(partition, 0)
        for (incarnation, sequence), candidates in by_key(records).items():
            if not _may_count(replayed, incarnation, sequence):
                # A sequence of 0 never counts, which is known once its incarnation has registered. It is dropped with the next that counts.
                if sequence == 0 and replayed.unfenced(incarnation) is not None:
                    most += sum([record.offset < read for record in candidates])
                continue
            most += sum([record.offset < read for record in candidates])
            batch = contents.get((incarnation, sequence))
            if batch is not None:
                needed = [record for record in candidates if (partition, record.offset) == (batch.partition, batch.content_offset)]
            else:
                needed = _may_be_content(candidates, partition, entries.get((incarnation, sequence), []))
            least += sum([record.offset < read for record in needed])
            if needed and needed[0].offset < offsets_next.get(partition, 0):
                place = f"{name}, partition {partition}, payload ({incarnation}, {sequence})"
                wanted = f"from {needed[0].offset} or before"
                found.append(Violation(Kind.FORGOTTEN, place, f"read again from {offsets_next[partition]}", wanted))
    if buffered_records < least:
        found.append(Violation(Kind.FORGOTTEN, f"{name}, memory", buffered_records, f"{least} payloads that may still count"))
    if buffered_records > most:
        found.append(Violation(Kind.HOARDED, f"{name}, memory", buffered_records, f"{most} payloads that may still count"))
    return found


def _entries_from(ordering: Sequence[LogRecord], head: int) -> dict[Name, list[Entry]]:
    """Returns the entries from the head on, signed or not, by batch name."""
    found: dict[Name, list[Entry]] = {}
    for record in ordering:
        decoded = ordering_record(record.value) if record.offset >= head else None
        if isinstance(decoded, Entry):
            found.setdefault((decoded.incarnation, decoded.sequence), []).append(decoded)
    return found


def _may_be_content(candidates: Sequence[LogRecord], partition: int, entries: Sequence[Entry]) -> list[LogRecord]:
    """Returns the records of a batch key that a worker must not lose; it may keep the others.

    Without an entry any value may be the one that the entry will name, so the first record of each value counts. With entries, only the
    first value that one of them names counts.
    """
    first: dict[bytes, LogRecord] = {}
    for record in candidates:
        first.setdefault(sha256(record.value or b"").digest(), record)
    if not entries:
        return list(first.values())
    named = {entry.payload_hash for entry in entries if entry.partition == partition}
    return [record for hash_, record in first.items() if hash_ in named][:1]


def _may_count(replayed: Replayed, incarnation: int, sequence: int) -> bool:
    """Returns whether an entry of that name may still count.

    It may if its incarnation has not registered, or has not ended and has a lower last sequence.
    """
    if incarnation > len(replayed.incarnations):
        return True
    state = replayed.unfenced(incarnation)
    return state is not None and sequence > state.sequence_last
