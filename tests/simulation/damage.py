"""Log losses: the brokers lose acknowledged records at the end, and grow again, while workers are paused, cut off, down or running (R10).

No notary can undo such a loss. The simulation demands this of it:

- No two workers answer contradicting decisions, unless one of them answered before the damage. That worker notices the loss before its next
  answer: it is an expected failure only while its process has not read from the affected leader since the loss.
- Such an answer must agree with the log as that process knew it: the parts that it has not read again are as they were.
- No worker that replays becomes ready in contradiction to the answers of a process that is still up. This holds if the log shows that
  process's history and no third worker has, later in the log, the history of the worker that replays (R10).
- Every suspicion ends. A worker is ready, or it has stopped and reports the offset. Then its operator gives it a new disk, or restores the
  lost records from the archive. Or the owner settles it.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from joiner.history import Comparison, History
from joiner.incarnations import Incarnations
from joiner.recheck import sought
from notary.index import rows
from notary.index.store import META
from notary.wire import to_json
from ordering.log import ORDERING
from ordering.records import View
from tests.checkers.records import Entry, Fence, Ordering, Register, Root, ordering_record, view_of
from tests.checkers.replay import Applied, Replayed, Seen, replay
from tests.simulation.broken import retire_strangers
from tests.simulation.cluster import Cluster, Damage
from tests.simulation.disk import SimulatedDisk
from tests.simulation.machine import Machine
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

RECORDS = (1, 1, 2, 5, 15)
"""The number of records to lose; where it is one, the topic-partition is soon longer than before."""
AWAY_S = (0.0, 0.3, 2.0, 15.0)
BEFORE_S = (0.0, 0.3, 2.0)
GROWING_S = (0.0, 0.5, 3.0, 12.0)
REGROWN_S_MAX = 12.0
SETTLED_AFTER_S = 40.0
"""The time in seconds before the owner ends a suspicion that others may end."""
OPERATES_S = 5.0


class Losses:
    """All losses of one simulation, and their consequences."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._logs: dict[frozenset[int], Replayed] = {}
        self._positions_kept: dict[int, int] = {}
        self.restored: set[int] = set()
        """The numbers of the losses whose records were restored."""

    @property
    def damages(self) -> list[Damage]:
        """The losses in the order of their times."""
        return self._simulation.cluster.damages

    # ---- the fault ----

    async def strike(self, draw: random.Random, hold: Callable[[], float]) -> None:
        """Make some workers absent, lose some records, then bring the workers back."""
        simulation, cluster = self._simulation, self._simulation.cluster
        absent = [machine for machine in simulation.machines if draw.random() < 0.5]
        back: list[Callable[[], None]] = [self._send_away(machine, draw) for machine in absent]
        await asyncio.sleep(draw.choice(BEFORE_S))
        partitions = draw.choice(
            [[ORDERING], [ORDERING], [draw.randrange(len(cluster.by_partition) - 1)], [ORDERING, *range(len(cluster.by_partition) - 1)]]
        )
        for partition in partitions:
            length = len(cluster.by_partition[partition])
            self.cut(partition, max(int(partition == ORDERING), length - draw.choice(RECORDS)))
        if draw.random() < 0.4:
            # All brokers restart with new state: they no longer know their producers.
            cluster.generation += 1
            cluster.away = True
            cluster.elected(*cluster.by_partition)
            await asyncio.sleep(min(draw.choice(AWAY_S), self._left_s()))
            cluster.away = False
        cluster.wake()
        await asyncio.sleep(min(draw.choice(GROWING_S), self._left_s()))
        if draw.random() < 0.5:
            await self._regrown(partitions)
        for come_back in back:
            come_back()
            await asyncio.sleep(min(hold(), self._left_s()) if draw.random() < 0.3 else 0)

    async def _regrown(self, partitions: Sequence[int]) -> None:
        """Return when these topic-partitions are longer than before the loss, so that their lengths reveal nothing; or after a while."""
        cluster, until_s = self._simulation.cluster, self._simulation.loop.time() + min(REGROWN_S_MAX, self._left_s())
        length = {damage.partition: len(damage.before[damage.partition]) for damage in self.damages if damage.partition in partitions}

        def is_shorter() -> bool:
            return any(len(cluster.by_partition[partition]) <= before for partition, before in length.items())

        while is_shorter() and self._simulation.loop.time() < until_s:  # noqa: ASYNC110 - read from outside
            await asyncio.sleep(0.1)
        if not is_shorter():
            self._simulation.count("lost ends regrown before anybody looked")

    def _left_s(self) -> float:
        return max(0.0, self._simulation.plan.faults_s - self._simulation.loop.time())

    def cut(self, partition: int, end: int) -> None:
        """Lose all records of a topic-partition from the offset `end` on."""
        cluster = self._simulation.cluster
        if end < len(cluster.by_partition[partition]):
            damage = cluster.cut(partition, end)
            self._simulation.trace("cluster", f"partition {partition} has lost the records from {end} on, {len(damage.lost)}")
            self._simulation.count("lost ends of the order" if partition == ORDERING else "lost ends of payload partitions")

    def _send_away(self, machine: Machine, draw: random.Random) -> Callable[[], None]:
        """Make the machine's worker absent (paused, cut off or down); returns the function that brings it back."""
        simulation = self._simulation
        how = draw.choice(["paused", "cut off", "down"])
        simulation.trace(machine.label, f"is {how}")
        simulation.count(f"losses behind a worker that is {how}")
        process = machine.running()
        if how == "paused" and process is not None:
            process.pause()
            return process.resume
        if how == "cut off":
            machine.cut_off = True
        else:
            machine.down = True
            machine.kill()

        def bring_back() -> None:
            machine.cut_off = machine.down = False
            simulation.cluster.wake()

        return bring_back

    # ---- expected failures ----

    def unmet(self, met: frozenset[int]) -> frozenset[int]:
        """Returns the losses that a process did not know of when it answered, also those that came later."""
        return frozenset(range(len(self.damages))) - met

    def explains(self, unmet: frozenset[int], decision: Mapping[str, Any]) -> bool:
        """Returns whether the index of such a process may hold this decision because it was made from a log that has since lost it."""
        return any(
            decision["position"] >= min([self._kept(self.damages[number]) for number in lost]) and stands(decision, self._log_of(lost))
            for lost in _since(unmet)
        )

    def logs(self, unmet: frozenset[int]) -> Iterator[Replayed]:
        """Returns the possible logs from which the index of a process was made that has not met these losses."""
        return (self._log_of(lost) for lost in _since(unmet))

    def _kept(self, damage: Damage) -> int:
        """Returns the number of decisions that the log still gave directly after the loss."""
        if damage.number not in self._positions_kept:
            end = len(damage.before[damage.partition]) - len(damage.lost)
            left = replay({**damage.before, damage.partition: damage.before[damage.partition][:end]})
            self._positions_kept[damage.number] = len(left.decisions)
        return self._positions_kept[damage.number]

    def _log_of(self, unmet: frozenset[int]) -> Replayed:
        """Returns the log without these losses: topic-partitions that were read again are as they are now, all others as they were."""
        if unmet not in self._logs:
            by_partition = dict(self._simulation.cluster.by_partition)
            for damage in reversed(self.damages):
                if damage.number in unmet:
                    by_partition[damage.partition] = list(damage.before[damage.partition])
            self._logs[unmet] = replay(by_partition)
        return self._logs[unmet]

    # ---- violations ----

    def check(self, process: Process) -> str:
        """Returns the answer that a process contradicts by becoming ready although the log shows it; empty for none (S3)."""
        worker = process.worker
        assert worker is not None
        joiner = worker.driver.joiner
        # The records that it applied before that moment and after earlier processes on that disk: a ready worker suspects nothing because
        # of a record.
        from_offset, offset_end = process.disk.applied_live, worker.driver.caught_up_offset
        assert offset_end is not None
        cluster = self._simulation.cluster
        records = cluster.by_partition[ORDERING]
        replayed = replay(cluster.by_partition)
        # Plus all records that were in the log when the process started, which it must have applied before.
        begun = 0 if self._simulation.shown_less else len([at_s for at_s in cluster.landed_s[ORDERING] if at_s < process.began_s])
        applied = [one for one in replayed.records if from_offset <= one.offset < max(offset_end, begun)]
        head = ordering_record(records[offset_end].value) if offset_end < len(records) else None
        view = None if head is None else view_of(head)
        if view is not None and replayed.histories[view.seen : view.seen + 1] == [view.history]:
            # This record may wait for its content, but its view has been compared.
            applied.append(Applied(offset_end, head, None, Seen.OWN, 0, b""))
        stolen = [record.offset for record in records if record.value in self._simulation.stolen]
        for given in self._simulation.clients.calls.given:
            by = given.process
            if by is process or by.dead or by.worker is None or not self.unmet(given.met):
                continue
            theirs = by.worker.driver.joiner.history
            writer = by.worker_name, by.worker.driver.joiner.incarnations
            views = foreign_views(applied, writer, (process.worker_name, joiner.incarnations), stolen)
            if theirs.compare(given.view) is not Comparison.OWN:
                continue
            shown = [
                view
                for view in views
                if view.seen >= given.view.seen
                and theirs.compare(view) is Comparison.OWN
                and joiner.history.compare(view) is Comparison.FOREIGN
            ]
            for decision in given.decisions if shown else ():
                mine = worker.index.decision(bytes.fromhex(decision["transaction_id"]))
                if mine is None or msgspec.to_builtins(to_json(mine), str_keys=True)["outcome"] != decision["outcome"]:
                    return (
                        f"it becomes ready, and {by.name}, which is still up, has answered {decision}; the log shows its history {shown[0]}"
                    )
        return ""

    # ---- the operator and the owner ----

    def restore(self, partition: int) -> bool:
        """Restore a partition's lost records from the archive: equal keys and values, at its end. Returns False if none were lost."""
        cluster = self._simulation.cluster
        lost = [damage for damage in self.damages if damage.partition == partition and damage.number not in self.restored]
        for damage in lost:
            self.restored.add(damage.number)
            self._simulation.count("payload partitions restored")
            for record in damage.lost:
                cluster.land(partition, record.key, record.value)
        return bool(lost)

    def give_up(self, view: View) -> None:
        """Have the owner settle the history up to a content that is lost for good, once every worker that might hold it is up."""
        if self._simulation.healed:
            self._simulation.trace("owner", f"gives up what was behind {view.seen} records")
            self._simulation.count("lost contents given up")
            self._simulation.owner.settle(view)

    def _put_back_a_former_key(self) -> None:
        """Have the owner put back the key that a fill of the head needs, when no worker has it (runbook, "A hole that stays").

        A broken worker can leave such a hole: it registered with a key that was in force only because the log had lost a rotation's end.
        """
        simulation = self._simulation
        for process in simulation.processes():
            worker = process.worker
            if worker is not None and "the head of the order has not moved" in (worker.not_ready() or ""):
                log_state = worker.driver.joiner.log_state
                if log_state is not None and simulation.owner.put_back(log_state.key):
                    simulation.trace("owner", f"puts a former key beside that of the workers: {log_state.key.hex()}")
                    simulation.count("former keys put back")

    async def operate(self) -> None:
        """After the healing, do by hand what no worker can end: settle suspicions, and give the workers a key that they need."""
        simulation = self._simulation
        began_s = simulation.loop.time()
        while True:
            await asyncio.sleep(OPERATES_S)
            if simulation.plan.activations or simulation.plan.wrong_votes:
                retire_strangers(simulation)
            # A lost key record that somebody copied back into the log puts a key in force that no worker has any more.
            reasons = [process.worker.not_ready() or "" for process in simulation.processes() if process.worker is not None]
            if any("it cannot sign records" in why for why in reasons) and simulation.owner.repair():
                simulation.count("keys put in force again")
            self._put_back_a_former_key()
            suspected = [
                process for process in simulation.processes() if process.worker is not None and process.worker.driver.joiner.suspicions.open
            ]
            if not suspected or simulation.loop.time() - began_s < SETTLED_AFTER_S:
                continue
            # Settle on an index that the log confirms: it has been compared, and its worker reads on.
            for process in suspected:
                driver = process.worker.driver if process.worker is not None else None
                if driver is not None and not driver.trust.suspicion and driver.joiner.history.seen:
                    simulation.trace("owner", f"settles the history of {process.name}")
                    simulation.count("suspicions settled")
                    simulation.owner.settle(driver.joiner.history.view)
                    began_s = simulation.loop.time()
                    break


def stands(decision: Mapping[str, Any], log: Replayed) -> bool:
    """Returns whether the log decides this at its position. Positions without a decision, since a salvage, are left out of the list."""
    position = decision["position"]
    return decision in log.decisions[max(0, position - log.salvaged) : position + 1]


def _since(unmet: frozenset[int]) -> Iterator[frozenset[int]]:
    """Returns these losses, then those without the first, and so on.

    A process has not met the losses before its start; but its index may have been made after them.
    """
    return (frozenset(number for number in unmet if number >= first) for first in sorted(unmet))


def foreign_views(
    records: Sequence[Applied], writer: tuple[str, Incarnations], reader: tuple[str, Incarnations], stolen: Collection[int] = ()
) -> list[View]:
    """Returns the writer's views that are foreign to the reader, unless a later record overrules them.

    A record of a third worker overrules a view if it has the reader's history and covers more records than the reader had before the
    foreign view. `writer` and `reader` are worker names, each with the incarnations that the worker knows. `stolen` are the offsets of
    records that a thief of the notary's key wrote under a worker's name: nothing is promised against such a thief.
    """
    found: list[View] = []
    agreed = 0
    seen_before = [one.seen_after for one in [*records[:1], *records]]
    for one, seen in zip(reversed(records), seen_before[-2::-1], strict=True):
        shown = None if one.record is None else view_of(one.record)
        if shown is None:
            continue
        name = name_of(one.record, reader[1])
        if one.view is Seen.OWN and name not in (reader[0], "") and (name != writer[0] or one.offset in stolen):
            agreed = max(agreed, shown.seen)
        elif one.view is Seen.FOREIGN and name_of(one.record, writer[1]) == writer[0] and agreed <= seen:
            found.append(View(shown.seen, shown.history))
    return found


def name_of(record: Ordering | None, incarnations: Incarnations) -> str:
    """Returns the name of the worker that wrote an ordering record, by these incarnations; empty if unknown."""
    if isinstance(record, Register):
        return record.name
    if isinstance(record, Entry | Fence | Root):
        state = incarnations.get(record.writer if isinstance(record, Fence) else record.incarnation)
        return "" if state is None else state.name
    return ""


def contradicts(disk: SimulatedDisk, cluster: Cluster) -> bool:
    """Returns whether the log lacks a record that took effect in this index, one of the furthest of its topic-partition."""
    meta = disk.families[META].items()
    marks = dict([rows.mark_of(key, row) for key, row in meta if key.startswith(rows.MARK_PREFIX)])
    effects = sorted([rows.effect_of(row) for key, row in meta if key.startswith(rows.EFFECT_PREFIX)], key=lambda effect: effect.seen)
    for partition, expected in sought(History(effects).last_run, marks, contents=False).items():
        for record in cluster.by_partition[partition]:
            if expected and expected[0].found(record):
                expected.popleft()
        if expected:
            return True
    return False
