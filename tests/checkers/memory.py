"""What a worker keeps in memory and where it would read on, held against the payloads that can still count (R5, R8)."""

from collections.abc import Mapping

from tests.checkers.replay import ORDERING, Replayed, Streams, first_contents
from tests.checkers.violation import Kind, Violation


def violations(
    streams: Streams,
    replayed: Replayed,
    *,
    read_next: Mapping[int, int],
    offsets_next: Mapping[int, int],
    buffered_records: int,
    name: str = "worker",
) -> list[Violation]:
    """Hold a worker's joiner, after a step, against its log.

    `replayed`: the log as far as this worker has judged it, `replay(..., offset_stop=offsets_next[ORDERING])`. `read_next`: how far it has
    read each stream (`Joiner.read_next`). `offsets_next`: from where it would read again (`Index.joiner_state`). `buffered_records`: how
    many payloads it keeps (`Joiner.buffered_records`).
    """
    head = offsets_next[ORDERING]
    if replayed.offset_end != head:
        return [Violation(Kind.AHEAD_OF_LOG, f"{name}, head", head, f"{replayed.offset_end}, where the log can be judged to")]
    found: list[Violation] = []
    least = most = 0
    for partition, records in streams.items():
        if partition == ORDERING:
            continue
        for (incarnation, sequence), record in first_contents(records).items():
            if not _may_count(replayed, incarnation, sequence):
                # A sequence of 0 never counts, which shows when its life has registered; it is let go with the next that counts.
                most += sequence == 0 and record.offset < read_next[partition] and replayed.life(incarnation) is not None
                continue
            if record.offset < offsets_next[partition]:
                place = f"{name}, partition {partition}, payload ({incarnation}, {sequence})"
                found.append(
                    Violation(Kind.FORGOTTEN, place, f"read again from {offsets_next[partition]}", f"from {record.offset} or before")
                )
            if record.offset < read_next[partition]:
                least += 1
                most += 1
    if buffered_records < least:
        found.append(Violation(Kind.FORGOTTEN, f"{name}, memory", buffered_records, f"{least} payloads that may still count"))
    if buffered_records > most:
        found.append(Violation(Kind.HOARDED, f"{name}, memory", buffered_records, f"{most} payloads that may still count"))
    return found


def _may_count(replayed: Replayed, incarnation: int, sequence: int) -> bool:
    """Whether an entry of that name may count yet: its life has not registered, or goes on and has not come so far."""
    if incarnation > len(replayed.lives):
        return True
    life = replayed.life(incarnation)
    return life is not None and sequence > life.sequence_last
