"""The plan of a salvage in words: the decisions put back, those lost for good, and the answers that it contradicts. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from notary.salvage.choice import Choice
from notary.salvage.reach import BATCHES_SHOWN, Reach, WaitingBatch
from notary.salvage.statements import THE_LOG, ChoiceRefused, KeptLog, Receipt, Witness, named
from ordering.salvage import Decided, Hashed, Lost

RANGES_SHOWN: Final = 5
FORKED_SHOWN: Final = 10


def facts_of(choice: Choice) -> dict[str, Any]:
    """Returns the choice for programs."""
    return {
        "kept": choice.first,
        "end": choice.end,
        "root": choice.root.hex(),
        "decisions_put_back": choice.count(Decided),
        "hashes": choice.positions(Hashed),
        "lost": choice.positions(Lost),
        "same_roots_to": choice.same_roots_to,
        "no_consistency_proof": [{"size": each.size, "root": each.root.hex(), "source": each.name} for each in choice.forked],
    }


def lines_of(
    choice: Choice, indexes: Sequence[Witness], receipts: Sequence[Receipt], counts: Mapping[str, tuple[int, int]], reach: Reach
) -> Iterator[str]:
    """Yields the plan for people, a line each. `counts`: the number of receipts and requests, by their source."""
    for index in indexes:
        yield f"source         index {index.name}, {index.tree.size:,} decisions"
    for name, (of_receipts, of_requests) in counts.items():
        yield f"source         {name}, {of_receipts:,} receipts and {of_requests:,} requests"
    if receipts:
        yield f"receipts       {len(receipts):,}, up to a tree of {max(receipt.size for receipt in receipts):,} decisions"
    if reach.waiting:
        hole = reach.waiting[0]
        yield f"seal           the log ends at the entry of batch ({hole.incarnation}, {hole.sequence}), whose content is missing:"
        yield "               it is sealed, and decides nothing, even if its payload comes back later"
    if decisions := choice.count(Decided):
        yield f"put back       {decisions:,} decisions, as they were: positions {_ranges(choice.positions(Decided))}"
    if hashes := choice.positions(Hashed):
        yield f"hash alone     positions {_ranges(hashes)}: nobody has these decisions, only the hashes of their leaves"
        yield "               A receipt of one of them verifies for ever. The notary cannot answer it again, and its states are free"
    if lost := choice.positions(Lost):
        yield f"lost           positions {_ranges(lost)}: nobody knows these decisions"
        yield "               Their transactions may be sent again and may be decided otherwise. This contradicts each answer that"
        yield "               was given for one of them, for ever: ask all parties for their receipts before you go on"
    kept = lost[0][0] if lost else choice.end
    if lost:
        yield f"checkpoints    of sizes up to {kept:,} keep their roots. From larger ones that were signed before,"
        yield f"               up to {choice.end:,}, no consistency proof leads to the new tree; their receipts still verify"
    elif _behind(choice, reach):
        yield f"checkpoints    of sizes up to {choice.end:,} keep their roots; from larger ones nothing leads to the new tree"
    else:
        yield "checkpoints    all keep their roots, and are consistent with the new tree"
    if choice.same_roots_to < kept:
        yield f"               except those above {choice.same_roots_to:,} from before the salvage that declared that position lost"
    for each in choice.forked[:FORKED_SHOWN]:
        yield f"               size {each.size:,}, root {each.root.hex()}, in {each.name}"
    if len(choice.forked) > FORKED_SHOWN:
        yield f"               and {len(choice.forked) - FORKED_SHOWN} more (--json lists them)"
    yield f"the log gets   {choice.end:,} decisions with the root {choice.root.hex()}"


def lines_forgotten(choice: Choice, reach: Reach) -> Iterator[str]:
    """Yields lines about the batches that the salvage gives up: no source has their decisions."""
    if not (behind := _behind(choice, reach)):
        return
    first, last = max(choice.end, behind[0].first), behind[-1].end - 1
    yield f"forgotten      what was answered for positions {first:,} to at most {last:,}: no source has these decisions"
    for batch in behind[:BATCHES_SHOWN]:
        yield f"               batch ({batch.incarnation}, {batch.sequence}), {batch.requests:,} requests: {batch.where}"
    if len(behind) > BATCHES_SHOWN:
        yield f"               and {len(behind) - BATCHES_SHOWN:,} more batches"
    if reach.decided_at_source > choice.end:
        yield f"               a checkpoint behind them shows that a worker had decided {reach.decided_at_source:,}"
    yield "               Their transactions may be sent again and may be decided otherwise: ask all parties for their receipts first"


def _behind(choice: Choice, reach: Reach) -> list[WaitingBatch]:
    """Returns the waiting batches that are neither put back nor declared lost."""
    return [batch for batch in reach.waiting if batch.end > choice.end]


def sides_of(
    refusal: ChoiceRefused, log: KeptLog, indexes: Sequence[Witness], receipts: Sequence[Receipt], until: int | None
) -> Iterator[str]:
    """Yields, for each side of a refusal, the answers that are contradicted if it is left out.

    `until`: the offset of the ordering record that decided the position of the refusal, if the log can be restored up to it.
    """
    sizes = {source.name: source.tree.size for source in (log, *indexes)}
    held = {receipt.name: receipt.position for receipt in receipts}
    position = refusal.position
    for side in refusal.sides:
        ends = [sizes[name] for name in side if name in sizes]
        if ends and max(ends) > position:
            answers = f"the answers for positions {_range((position, max(ends) - 1))} that it has"
        elif positions := sorted({held[name] for name in side if name in held}):
            answers = f"the answers for positions {_ranges([(at, at) for at in positions])}"
        else:
            answers = "no answer"
        if THE_LOG in side:
            how = f"copy the log up to before position {position} into new topics, and salvage there"
            if until is not None:
                how = f"archive it, restore that into new topics with --until {until}, and salvage there"
            yield f"               without {named(side)}: {how}"
            yield f"               (docs/salvage.md). It contradicts {answers}"
        else:
            yield f"               without {named(side)}: contradicts {answers}"


def after(facts: dict[str, Any], *, embedded: bool) -> Iterator[str]:
    """Yields lines about the completed salvage and the operator's next steps."""
    if facts["resumed"]:
        yield "completed      a salvage that took effect in an earlier run"
    else:
        yield f"took effect    ordering record {facts['offset']}"
    yield f"the log has    {facts['decisions']:,} decisions with the root {facts['root']}, read back and compared"
    yield f"new key        {facts['verifier_key']}"
    if not facts["endorsed"]:
        yield "               Nothing endorses it: give it to every client and verifier"
    if embedded:
        yield "next           move old indexes away, and start the worker"
        return
    yield f"next           copy {facts['key_file']} and {facts['key_history_file']} to every worker's machine:"
    yield "               workers without the key cannot write. Move old indexes away, and start the workers"


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join([_range(each) for each in ranges[:RANGES_SHOWN]])
    return shown + (f" and {len(ranges) - RANGES_SHOWN} more ranges" if len(ranges) > RANGES_SHOWN else "")


def _range(positions: tuple[int, int]) -> str:
    first, last = positions
    return str(first) if first == last else f"{first} to {last}"
