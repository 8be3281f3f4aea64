"""What the joiner should emit, worked out the slow and obvious way from the complete log at once (R2, R3, R5, R6).

Shares no code with the joiner, and not even its formats: a history is plain tuples, and what it encodes to is the business of the test.

Ordering: ("register", nonce, name) | ("fence", incarnation, last) | ("entry", incarnation, sequence, sent_at, at, partition, labels)
          | ("other",)
Payload, by partition: (incarnation, sequence, labels) | (incarnation, sequence, None) | None for garbage
`labels` name the batch's requests; content that does not decode is given as the label "?".
"""

from typing import Any


def joined(ordering: list[tuple[Any, ...]], payloads: list[list[Any]]) -> tuple[list[tuple[Any, ...]], int]:
    """([(offset, incarnation, sequence, log time, labels or None when filled)], the offset of the first hole or the log's end)."""
    batches: list[tuple[Any, ...]] = []
    log_time = 0
    for offset, record in enumerate(ordering):
        if record[0] != "entry":
            continue
        _, incarnation, sequence, sent_at, at, partition, labels = record
        if partition >= len(payloads) or not _alive(ordering[:offset], incarnation, batches):
            continue
        if any(sequence <= batch[2] for batch in batches if batch[1] == incarnation):
            continue
        contents = [payload[2] for payload in payloads[partition] if payload and payload[:2] == (incarnation, sequence)]
        if not contents:
            return batches, offset
        log_time = max(log_time, min(at, sent_at + 60_000))
        batches.append((offset, incarnation, sequence, log_time, labels if contents[0] == labels else None))
    return batches, len(ordering)


def _alive(before: list[tuple[Any, ...]], incarnation: int, batches: list[tuple[Any, ...]]) -> bool:
    """Whether that life is registered and not fenced after these ordering records."""
    registers: list[tuple[int, str]] = []
    nonces = set()
    for offset, record in enumerate(before):
        if record[0] == "register" and record[1] not in nonces:
            nonces.add(record[1])
            registers.append((offset, record[2]))
    if not 1 <= incarnation <= len(registers):
        return False
    begun, name = registers[incarnation - 1]
    if any(other == name for _, other in registers[incarnation:]):
        return False
    for offset, record in enumerate(before):
        if record[0] == "fence" and record[1] == incarnation and offset > begun:
            counted = [batch[2] for batch in batches if batch[1] == incarnation and batch[0] < offset]
            if record[2] == max(counted, default=0):
                return False
    return True
