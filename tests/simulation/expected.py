"""The answers to clients, without expected failures: wrong answers of a process that a fault affected, while it could not know."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from notary.index.store import STATES
from tests.checkers import indexes, receipts
from tests.checkers.history import Call, History
from tests.checkers.replay import Replayed
from tests.checkers.violation import Kind, Violation
from tests.simulation.broken import WRONG
from tests.simulation.damage import contradicts, stands

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

Decided = Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """The answers that are compared with the log."""

    history: History
    receipts: list[Decided]
    looked_up: list[Decided]


def compared(simulation: "Simulation", replayed: Replayed) -> Compared:
    """Returns all answers except the expected failures, which differ from the log because of a fault."""
    calls: list[Call] = []
    proven: list[Decided] = []
    for number, call in enumerate(simulation.history.calls):
        name, at_s, unmet = (
            call.url,
            call.answered_s,
            simulation.losses.unmet(simulation.clients.calls.met_in_call.get(number, frozenset())),
        )
        decisions = [None if one is None or _is_expected(simulation, replayed, name, at_s, unmet, one) else one for one in call.decisions]
        same = decisions == list(call.decisions)
        calls.append(call if same else replace(call, status=202, decisions=decisions, body=None))
        proven += [
            one
            for one in decisions
            if one is not None and "receipt" in one and not _other_tree(simulation, replayed, name, at_s, unmet, one)
        ]
    looked_up: list[Decided] = [
        one
        for name, at_s, one in simulation.clients.looked_up
        if not _is_expected(
            simulation, replayed, name, at_s, simulation.losses.unmet(simulation.clients.calls.met_when_returned[id(one)]), one
        )
    ]
    return Compared(History(calls, simulation.history.submissions), proven, looked_up)


def contradictions(simulation: "Simulation") -> list[str]:
    """Returns the answers of two workers that contradict each other, though both knew of all losses until then (S1).

    The final log decides which answers stand, and the decisions that `compared` leaves out have been lost since. Here no failure is
    expected: between two losses there is one log, and all workers that have met the earlier losses answer from that one.
    """
    damages = simulation.losses.damages
    found: list[str] = []
    first: dict[tuple[int, str], tuple[str, Decided]] = {}
    requests = {id_: request for each in simulation.history.submissions for id_, request in zip(each.ids, each.requests, strict=True)}
    for name, at_s, met, decision in _answers(simulation) if damages else ():
        lost = len([damage for damage in damages if damage.at_s <= at_s])
        if len(met) < lost:
            continue
        id_ = decision["transaction_id"]
        texts = [id_, *(f"input {state}" for state in requests[id_].get("inputs", ()) if decision["outcome"] == "committed")]
        for what in texts:
            other, before = first.setdefault((lost, what), (name, decision))
            if before != decision:
                found.append(f"{other} has answered {before}, and {name} {decision}, and both knew of {lost} losses")
    simulation.counts["answers after a loss"] = len([1 for lost, _ in first if lost])
    return found


def _answers(simulation: "Simulation") -> Iterator[tuple[str, float, frozenset[int], Decided]]:
    """Yields all answers: the worker, the time in seconds, the losses that it knew of, and the decision without its receipt."""
    for number, call in enumerate(simulation.history.calls):
        for one in call.decisions:
            if one is not None and len(one) > 1:
                met = simulation.clients.calls.met_in_call.get(number, frozenset())
                yield call.url, call.answered_s, met, {member: value for member, value in one.items() if member != "receipt"}
    for name, at_s, one in simulation.clients.looked_up:
        plain = {member: value for member, value in one.items() if member != "receipt"}
        yield name, at_s, simulation.clients.calls.met_when_returned[id(one)], plain


def index_violations(simulation: "Simulation", replayed: Replayed) -> list[Violation]:
    """Compares the indexes of all workers with the log, except those that hold what the log has lost; returns the violations."""
    machines = (*simulation.machines, *simulation.gone)
    of_now = [machine for machine in machines if not contradicts(machine.disk, simulation.cluster)]
    sound = {machine.label: machine.disk.contents() for machine in of_now if not machine.disk.altered}
    found = indexes.all_violations(sound, replayed)
    for machine in of_now:
        if machine.disk.altered == {STATES}:
            # It changed no decision, or its worker would have been quarantined; all its other rows must be right.
            found += [
                one for one in indexes.violations(machine.disk.contents(), replayed, machine.label) if one.kind is not Kind.WRONG_STATE
            ]
    return found


def wrong_roots(simulation: "Simulation", replayed: Replayed) -> list[str]:
    """Returns workers' roots that differ from the log's (R9), except those of a broken worker, or of one whose decisions differ."""
    roots = [root for root in replayed.checkpoints if root.counted]
    simulation.counts["checkpoints"] = len(roots)
    wrong = [root for root in roots if root.size > replayed.size or root.root != replayed.root(root.size)]
    expected = [
        root
        for root in wrong
        if (writer := replayed.incarnations[root.incarnation - 1]).name == WRONG
        or any(one.wrote(writer.nonce) for one in simulation.divergences)
    ]
    simulation.counts["wrong roots"] = len(expected)
    return [
        f"checkpoint of incarnation {root.incarnation} at {root.size} decisions has another root than the log"
        for root in wrong
        if root not in expected
    ]


def _is_expected(simulation: "Simulation", replayed: Replayed, name: str, at_s: float, unmet: frozenset[int], decision: Decided) -> bool:
    plain = {member: value for member, value in decision.items() if member != "receipt"}
    if not plain:
        return False
    if unmet and simulation.losses.explains(unmet, plain):
        # It may have been decided again with the same outcome, at another log time.
        simulation.count("answers from a lost log")
        return True
    if stands(plain, replayed):
        return False
    if any(one.excuses(name, at_s) and one.explains(plain, replayed) for one in simulation.divergences):
        simulation.count("answers of a diverged index")
        return True
    return False


def _other_tree(simulation: "Simulation", replayed: Replayed, name: str, at_s: float, unmet: frozenset[int], decision: Decided) -> bool:
    """Returns whether only its receipt's tree is an expected failure: that of the lost log, or of a worker whose decisions may differ."""
    if any(one.excuses(name, at_s) for one in simulation.divergences):
        found = receipts.violations(simulation.owner.verifier_keys, [decision], replayed.tree)
        return {violation.kind for violation in found} == {Kind.OTHER_TREE}
    return any(not receipts.violations(simulation.owner.verifier_keys, [decision], log.tree) for log in simulation.losses.logs(unmet))
