"""The batches that the joiner should emit, computed in the slow and obvious way from the complete log (R2, R3, R5, R6, R10).

Shares no code and no formats with the joiner: a history is plain tuples, and the test encodes them.

Ordering: ("genesis",) | ("register", nonce, name, signer) | ("fence", incarnation, last, signer) | ("retire", incarnation, signer)
          | ("entry", incarnation, sequence, sent_at, at, partition, labels, named, signer) | ("key", new key, key that it follows, signer)
          | ("partitions", count, signer) | ("other",)
Payload, by partition: (incarnation, sequence, labels) | (incarnation, sequence, "fill", named, signer) | None for garbage
`labels` name the batch's requests, `named` the labels of the payload whose hash the entry or fill has; content that does not decode is
given as the label "?". Keys and signers are numbers, 0 the first key in force; the owner is "owner".
"""

from typing import Any

Batches = list[tuple[Any, ...]]


def joined(ordering: list[tuple[Any, ...]], payloads: list[list[Any]], partitions: int) -> tuple[Batches, list[tuple[int, bool]], int]:
    """Returns the batches, the records that took effect, and the offset of the first hole or the log end offset.

    A batch is (offset, incarnation, sequence, log time, whether it was filled, its labels); a record that took effect is (offset, whether
    it is an entry joined with its payload).
    """
    batches: Batches = []
    effects: list[tuple[int, bool]] = []
    log_time = 0
    for offset, record in enumerate(ordering):
        before = [ordering[earlier] for earlier, _ in effects]
        keys = [0, *[one[1] for one in before if one[0] == "key"]]
        declared = max([partitions, *[one[1] for one in before if one[0] == "partitions"]])
        mark = False
        match record:
            case ("genesis",):
                counts = offset == 0
            case ("register", nonce, _, signer):
                counts = signer == keys[-1] and not any(one[:2] == ("register", nonce) for one in before)
            case ("fence", incarnation, last, signer):
                counted = [batch[2] for batch in batches if batch[1] == incarnation]
                counts = signer == keys[-1] and _alive(before, incarnation) and last == max(counted, default=0)
            case ("retire", incarnation, signer):
                counts = signer == "owner" and _alive(before, incarnation)
            case ("key", new, follows, signer):
                counts = signer == "owner" and follows == keys[-1] and new not in keys
            case ("partitions", count, signer):
                counts = signer == "owner" and count > declared
            case ("entry", incarnation, sequence, sent_at, at, partition, labels, named, signer):
                counts = signer == keys[-1] and partition < declared and _alive(before, incarnation)
                counts = counts and not any(batch[1] == incarnation and sequence <= batch[2] for batch in batches)
                if counts:
                    content = _content(payloads[partition], (incarnation, sequence), named, keys[-1])
                    if content is None:
                        return batches, effects, offset
                    mark = content == "payload"
                    log_time = max(log_time, min(at, sent_at + 60_000))
                    decides = labels if mark and named == labels else ()
                    batches.append((offset, incarnation, sequence, log_time, not mark, decides))
            case _:
                counts = False
        if counts:
            effects.append((offset, mark))
    return batches, effects, len(ordering)


def _content(partition: list[Any], name: tuple[int, int], named: Any, key: int) -> str | None:
    """Returns "payload" or "fill" for the first record under that name that is either (the named payload, or a valid fill), else None."""
    for record in partition:
        if record is None or record[:2] != name:
            continue
        if record[2:] == (named,):
            return "payload"
        if record[2:] == ("fill", named, key):
            return "fill"
    return None


def _alive(before: list[tuple[Any, ...]], incarnation: int) -> bool:
    """Returns whether that incarnation has registered and has not ended after these records, which all took effect."""
    registered = 0
    alive: dict[int, str] = {}
    for record in before:
        if record[0] == "register":
            registered += 1
            alive = {number: name for number, name in alive.items() if name != record[2]} | {registered: record[2]}
        elif record[0] in ("fence", "retire"):
            alive.pop(record[1], None)
    return incarnation in alive
