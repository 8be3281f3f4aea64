"""A log decided a second time, all at once, with nothing of `reader.py`: what an independent verifier (Spark) makes of it."""

from typing import NamedTuple

from tests.model.log import Content, Decision, Item, Log, Record, Request, View
from tests.model.tree import digest, root


class Replayed(NamedTuple):
    """`consumed`: state -> tag of its consumer. `writers`: per worker's record in effect (offset, key)."""

    leaves: list[bytes]
    items: list[Item]
    decisions: dict[str, Decision]
    consumed: dict[int, str]
    root: bytes
    sealed: bool
    complete: bool
    writers: list[tuple[int, str]]


def replay(log: Log, broken: frozenset[str] = frozenset()) -> Replayed:
    """Decide the complete log; trimmed payloads are read too, as from an archive. `broken`: a rule that everybody has wrong."""
    first: dict[tuple[int, tuple[int, int]], list[Content]] = {}
    for partition, contents in enumerate(log.pay):
        for content in contents:
            first.setdefault((partition, content.batch), []).append(content)

    views: list[bytes] = [b"", digest(b"", *log.order[0], 0, None)]
    items: list[Item] = []
    decisions: dict[str, Decision] = {}
    consumed: dict[int, str] = {}
    names: list[str] = []  # of the incarnations
    last: dict[int, int] = {}
    over: set[int] = set()
    nonces: set[int] = set()
    keys, now, void, kind_before, low_water, settled = ["k0"], 0, False, "genesis", 0, 0
    salvage: list[Item] | None = None
    writers: list[tuple[int, str]] = []

    def add(item: Item) -> None:
        nonlocal now
        items.append(item)
        if item.decision is None:
            return
        decisions[item.decision.id] = item.decision
        if "log time goes back" not in broken:
            now = max(now, item.decision.time)
        of = digest("tag", item.decision.id).hex()[:12]
        consumed.update(dict.fromkeys(item.inputs or (), of))
        for state, _, consumer in item.decision.conflicts:
            if state not in consumed and "conflicts reserve nothing" not in broken:
                consumed[state] = consumer

    def ask(request: Request) -> None:
        if request.id in decisions:
            return
        of = digest("tag", request.id).hex()[:12]

        def taken(states: tuple[int, ...], kind: str) -> tuple[tuple[int, str, str], ...]:
            return tuple((state, kind, consumed[state]) for state in sorted(states) if consumed.get(state, of) != of)

        if conflicts := taken(request.inputs, "input"):
            outcome = "input-conflict"
        elif conflicts := taken(request.references, "reference"):
            outcome = "reference-conflict"
        else:
            outcome = "committed" if now < request.until else "outside-time-window"
        add(Item(Decision(len(items), request.id, now, outcome, conflicts), request.inputs if outcome == "committed" else ()))

    def result(*, complete: bool) -> Replayed:
        leaves = [item.leaf(position) for position, item in enumerate(items)]
        return Replayed(leaves, items, decisions, consumed, root(leaves), void or salvage is not None, complete, writers)

    def in_effect(offset: int, record: Record) -> tuple[int, Content | None] | None:
        """Returns (mark, content) if the record takes effect; raises `LookupError` for a hole."""
        nonlocal void, salvage, now, low_water, settled
        exact = "any view" in broken or record.view == View(len(views) - 1, views[-1])
        body = record.body
        if record.kind in ("register", "entry", "fence"):
            if record.signer != keys[-1] or void or salvage is not None:
                return None
            if record.kind == "register":
                if body[0] in nonces:
                    return None
                nonces.add(body[0])
                over.update(number for number, name in enumerate(names, 1) if name == body[1])
                names.append(body[1])
            elif body[0] > len(names) or body[0] in over:
                return None
            elif record.kind == "fence":
                if last.get(body[0], 0) != body[1]:
                    return None
                over.add(body[0])
            else:
                if body[1] <= last.get(body[0], 0):
                    return None
                good = [
                    content
                    for content in first.get((body[2], body[:2]), ())
                    if content.hash == body[3]
                    and (
                        content.kind == "data"
                        or (content.kind, content.signer) in (("fill", keys[-1]), ("seal", f"owner for {keys[-1]}"))
                        or (content.kind == "seal" and "a seal names no key" in broken)
                    )
                ]
                content = good[0] if good else None
                if content is None:
                    raise LookupError(offset)
                last[body[0]] = body[1]
                if content.kind == "seal":
                    void = True
                    return 2, content
                now = max(now, log.order[offset][0])
                for request in content.requests:
                    ask(request)
                writers.append((offset, record.signer))
                return (1 if content.kind == "data" else 0), content
            writers.append((offset, record.signer))
            return 0, None
        names_key = record.kind in ("begin", "items", "done", "trim", "settle")
        if record.signer != (f"owner for {keys[-1]}" if names_key else "owner") and not (names_key and "any key" in broken):
            return None
        if record.kind == "key" and body[0] not in keys and body[1] == keys[-1]:
            keys.append(body[0])
            if salvage is not None and "a key closes nothing" not in broken:
                salvage, void = None, True
            return 0, None
        if record.kind == "settle" and record.view is not None and not void and salvage is None and record.view.seen > settled:
            if record.view.seen >= len(views) or views[record.view.seen] != record.view.history:
                raise LookupError(offset)  # the owner has settled another history
            settled = record.view.seen
            return 0, None
        if record.kind == "trim" and low_water < body[0] <= len(items) and record.view is not None:
            is_own = record.view.seen < len(views) and views[record.view.seen] == record.view.history
            leaves = [item.leaf(position) for position, item in enumerate(items[: body[0]])]
            if root(leaves) == body[1] and (is_own or "a trim needs no view" in broken):
                low_water = body[0]
                return 0, None
        if (
            record.kind == "begin"
            and exact
            and body[0] == len(items)
            and (kind_before == "key" or "no key" in broken or ("a key for all attempts" in broken and salvage is not None))
        ):
            salvage, void = [], False
            return 0, None
        if record.kind == "items" and exact and salvage is not None and body[0] == len(items) + len(salvage):
            if "items count at once" in broken:
                for item in body[1]:
                    add(item)
            else:
                salvage = [*salvage, *body[1]]
            return 0, None
        if record.kind == "done" and exact and salvage is not None:
            leaves = [item.leaf(position) for position, item in enumerate([*items, *salvage])]
            if body == (len(leaves), root(leaves)):
                for item in salvage:
                    add(item)
                salvage, void, settled = None, False, len(views) - 1
                return 0, None
        return None

    for offset, (time, record) in enumerate(log.order[1:], 1):
        try:
            effect = in_effect(offset, record)
        except LookupError:
            return result(complete=False)
        if effect is not None:
            mark, used = effect
            views.append(digest(views[-1], time, record, mark, used if mark == 2 else None))
            kind_before = record.kind
    return result(complete=True)
