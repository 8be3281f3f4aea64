"""The checks after a simulation: the checkers, which share no code with the notary, examine everything that it left."""

from itertools import chain

from ordering.log import ORDERING
from tests.checkers import receipts
from tests.checkers.records import Register, Settle, view_of
from tests.checkers.replay import Replayed, Seen, replay
from tests.checkers.violation import Kind
from tests.simulation import bounds, expected
from tests.simulation.damage import stands
from tests.simulation.ends import duplicate_names_unnoticed
from tests.simulation.faults import YEAR_MS
from tests.simulation.machine import IDENTITY_BYTES
from tests.simulation.plan import FAULTS_S
from tests.simulation.salvaging import has_gaps
from tests.simulation.simulation import Simulation

MANY = 8
UNKNOWN = (Kind.POSITION_GAP, Kind.NO_EARLIER_CAUSE, Kind.WRONG_REASON, Kind.WRONG_CONFLICTS, Kind.WRONG_CONSUMED)
"""The kinds that are no violations if a salvage left positions without a decision."""
JUMPS_MS = 400_000
SHOWN_S = 20.0
"""The extra time for a fill that was sent before the log showed that its hole was passed."""


def violations(simulation: Simulation) -> list[str]:
    """Returns all violations."""
    replayed = replay(simulation.cluster.by_partition)
    if replayed.ended_by != "end" and not simulation.problems:
        return [f"the log is not decided to its end: {replayed.ended_by} at {replayed.offset_head}"]
    compared = expected.compared(simulation, replayed)
    readings = simulation.clients.readings
    found = expected.index_violations(simulation, replayed)
    answers_wrong = compared.history.violations(replayed.decisions, set(replayed.consumed))
    found += [one for one in answers_wrong if one.kind not in UNKNOWN] if has_gaps(replayed) else answers_wrong
    found += receipts.violations(simulation.owner.verifier_keys, chain(compared.receipts, readings.receipts), replayed.tree, readings.notes)
    found += bounds.kept(simulation)
    simulation.counts.update(simulation.clients.calls.counts)
    simulation.counts.update(_load(simulation))
    simulation.counts.update(simulation.cluster.fates_met)
    simulation.counts["holes filled"] = len([batch for batch in replayed.batches if batch.filled])
    simulation.counts["incarnations fenced by peers"] = len(
        [state for state in replayed.incarnations if state.fenced and not state.fenced_by]
    )
    looked_up = [decision for decision in compared.looked_up if not stands(decision, replayed)]
    problems = (
        simulation.problems
        + simulation.clients.problems
        + expected.wrong_roots(simulation, replayed)
        + duplicate_names_unnoticed(simulation)
    )
    problems += [*readings.violations(replayed), *simulation.clients.hostile.found_in(chain(*simulation.cluster.by_partition.values()))]
    problems += [
        *_registered_early(simulation, replayed),
        *_views(simulation, replayed),
        *_passed_holes(simulation, replayed),
        *_forged(simulation, replayed),
        *_log_time(simulation, replayed),
    ]
    problems += expected.contradictions(simulation)
    problems += simulation.salvaging.violations(replayed)
    problems += [f"looked up {decision}: the log decides otherwise" for decision in looked_up]
    return problems + [str(violation) for violation in found]


def _views(simulation: Simulation, replayed: Replayed) -> list[str]:
    """Returns foreign views: without a loss every correctly signed record has a view of the log's own history."""
    foreign = [one for one in replayed.records if one.view is Seen.FOREIGN]
    simulation.counts["foreign views"] = len(foreign)
    simulation.counts["interruptions"] = sum(
        [process.worker.driver.interruptions for process in simulation.processes() if process.worker is not None]
    )
    simulation.counts["losses that took nothing from an index"] = int(bool(simulation.losses.damages) and not foreign)
    return [] if simulation.losses.damages else [f"a view is not the log's history: {one.record}" for one in foreign]


def _registered_early(simulation: Simulation, replayed: Replayed) -> list[str]:
    """Returns registrations that came too early: a worker first reads all records that were in the log at its start (R10)."""
    if simulation.losses.damages or simulation.plan.cuts:
        return []  # in these plans the log may have ended earlier
    landed_s = simulation.cluster.landed_s[ORDERING]
    found: list[str] = []
    for one in replayed.records:
        if one.why_not is None and isinstance(one.record, Register):
            began_s = simulation.began_s.get(one.record.nonce[:IDENTITY_BYTES])
            there = [other.seen_after for other in replayed.records if began_s is not None and landed_s[other.offset] < began_s]
            if there and one.record.view.seen < there[-1]:
                found.append(
                    f"{one.record.name} registers at {one.offset}, has read {one.record.view.seen} records, and there were {there[-1]}"
                )
    return found


def _passed_holes(simulation: Simulation, replayed: Replayed) -> list[str]:
    """Returns fills of holes that a record in the log had already passed (R10). A fill that was lost and came back is no violation."""
    cluster = simulation.cluster
    seen_after = {one.offset: one.seen_after for one in replayed.records}
    found: list[str] = []
    for batch in replayed.batches if cluster.damages else ():
        fill = cluster.by_partition[batch.partition][batch.content_offset]
        came_back = any(fill.value == lost.value for damage in cluster.damages for lost in damage.lost)
        if not batch.signed_fill or came_back:
            continue
        filled_s = cluster.landed_s[batch.partition][batch.content_offset]
        if any(from_s < filled_s and until_s > filled_s - SHOWN_S for from_s, until_s in simulation.shown_less):
            continue  # the worker that filled it may have read from an outdated broker
        # Views of a longer history lose their effect when the owner settles this history, or a part of it.
        stands = [
            one.offset
            for one in replayed.records
            if isinstance(one.record, Settle)
            and one.record.view.seen < seen_after[batch.offset]
            and replayed.histories[one.record.view.seen] == one.record.view.history
        ]
        given_up = max(stands, default=-1)
        for one in replayed.records:
            passed = (
                one.view is not None
                and one.record is not None
                and (view := view_of(one.record)) is not None
                and view.seen >= seen_after[batch.offset]
            )
            if passed and one.offset > max(batch.offset, given_up) and cluster.landed_s[ORDERING][one.offset] < filled_s - SHOWN_S:
                found.append(f"batch ({batch.incarnation}, {batch.sequence}) is filled, and ordering record {one.offset} had passed it")
                break
    return found


def _forged(simulation: Simulation, replayed: Replayed) -> list[str]:
    """Checks that records written without the keys changed no decision (a copy of a lost record may restore it)."""
    if not simulation.cluster.forged or simulation.losses.damages:
        return []
    forged = {id(record) for record in simulation.cluster.forged}
    by_partition = {
        partition: [record for record in records if id(record) not in forged]
        for partition, records in simulation.cluster.by_partition.items()
    }
    honest = replay(by_partition)
    same = (
        honest.decisions == replayed.decisions and honest.histories == replayed.histories and honest.incarnations == replayed.incarnations
    )
    return [] if same else ["records without a good signature have changed something"]


def _log_time(simulation: Simulation, replayed: Replayed) -> list[str]:
    """Checks that one clock alone that is wrong by years does not move log time by more than a minute."""
    latest_ms = (
        simulation.wall_ms()
        + max(60_000, *[machine.skew_ms for machine in simulation.machines], simulation.broker_skew_ms % YEAR_MS)
        + 60_000
        + JUMPS_MS
    )
    ahead_ms = replayed.log_time - latest_ms
    return [f"log time is {ahead_ms} ms further than any clock"] if ahead_ms > 0 and not simulation.plan.jump_of_years else []


def _load(simulation: Simulation) -> dict[str, int]:
    """Returns counts of large loads."""
    payloads = chain.from_iterable(records for partition, records in simulation.cluster.by_partition.items() if partition != ORDERING)
    sizes = [(record.value or b"").count(b'"party":') for record in payloads]
    return {
        "batches": len([size for size in sizes if size]),
        "batches of many": len([size for size in sizes if size >= MANY]),
        "bursts": int(simulation.plan.in_bursts),
        "slow payloads": int(simulation.cluster.payload_s > 0),
        "long plans": int(simulation.plan.faults_s > FAULTS_S),
    }
