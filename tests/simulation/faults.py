"""The faults of a plan: each gets a random time, and its target is drawn when it strikes."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from notary.index.store import DECISIONS
from ordering.log import ORDERING
from ordering.records import FORMAT_VERSION, SALVAGE_FORMAT, Activate, Register, Retire, View
from ordering.signatures import sign_record
from tests.checkers.replay import replay
from tests.simulation import divergence
from tests.simulation.aimed import Aimed
from tests.simulation.broken import OLD, Broken, retire_strangers
from tests.simulation.forger import Forger
from tests.simulation.machine import Machine
from tests.simulation.plan import CLOCK_STANDS_AT_MS, FAULTS_S

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

HOLDS_S = (0.1, 0.7, 3.0, 12.0)
"""The possible durations, in seconds, of a fault that does not heal by itself."""
YEAR_MS = 365 * 86_400_000
PARTITIONS_MAX = 8


class Faults:
    """The faults of one simulation."""

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.draw = random.Random(f"faults {simulation.plan.seed}")
        self._forger = Forger(simulation, self.draw)
        self._aimed = Aimed(simulation)
        self._broken = Broken(simulation)

    async def run(self) -> None:
        """Run all faults, each at its time."""
        plan = self.simulation.plan
        kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (plan.crashes, self._crash),
            (plan.machine_crashes, self._machine_crash),
            (plan.stops, self._stop),
            (plan.stalls, self._stall),
            (plan.cut_offs, self._cut_off),
            (plan.leaderless, self._leaderless),
            (plan.cuts, self._cut),
            (plan.snapshots, self._snapshot),
            (plan.wiped, self._wipe),
            (plan.full_disks, self._fill),
            (plan.altered_rows, self._alter),
            (plan.clock_jumps * 3, self._jump),
            (plan.clocks_stand, self._stand),
            (plan.forgers, self._forger.write),
            (plan.duplicate_name, self._duplicate_name),
            (plan.late_registers, self._register_late),
            (plan.diverged, self._diverge),
            (plan.damages, lambda: self.simulation.losses.strike(self.draw, lambda: self.draw.choice(HOLDS_S))),
            (plan.pauses, self._pause),
            (plan.rotations, self._rotate),
            (plan.grown, self._grow),
            (plan.retired, self._retire),
            (plan.wrong_clocks, self._start_with_a_wrong_clock),
            (plan.jump_of_years, self._jump_by_years),
            (plan.aimed_losses, self._aimed.strike),
            (plan.misnamed, self._misname),
            (plan.votes_repeated, self._repeat_vote),
            (plan.broken, self._broken.strike),
            (plan.stolen_names, self._broken.steal),
            (plan.wrong_votes, self._broken.vote),
            (plan.floods, self._forger.flood),
            (plan.activations, self._activate),
            (plan.trims, self._trim),
            (plan.frees, self._free),
            (plan.salvages, self.simulation.salvaging.strike),
        ]
        async with asyncio.TaskGroup() as tasks:
            for count, strike in kinds:
                for _ in range(count):
                    tasks.create_task(self._at(self.draw.uniform(0, plan.faults_s), strike))

    async def _at(self, at_s: float, strike: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(at_s)
        await strike()

    async def _hold(self) -> None:
        await asyncio.sleep(self.draw.choice(HOLDS_S))

    def _machine(self) -> Machine:
        return self.draw.choice(self.simulation.machines)

    def _record(self, who: str, what: str, counted: str) -> None:
        self.simulation.trace(who, what)
        self.simulation.count(counted)

    async def _crash(self) -> None:
        machine = self._machine()
        if machine.kill():
            self._record(machine.label, "is killed", "crashes")

    async def _machine_crash(self) -> None:
        machine = self._machine()
        machine.kill()
        self._record(machine.label, f"its machine crashes, {machine.disk.lose_unflushed()} batches are lost", "machine crashes")

    async def _stop(self) -> None:
        machine = self._machine()
        if (process := machine.running()) is not None:
            process.stop.set()
            self._record(machine.label, "is asked to end", "orderly ends")

    async def _stall(self) -> None:
        machine = self._machine()
        if (process := machine.running()) is not None and process.log.readers:
            main = None if process.worker is None else process.worker.driver._reader
            for reader in process.log.readers:
                reader.stalled |= reader is main or (main is None and reader is process.log.readers[-1])
            self._record(machine.label, "its reader fails without a word", "stalled readers")

    async def _cut_off(self) -> None:
        machine = self._machine()
        machine.cut_off = True
        self._record(machine.label, "is cut off from the brokers", "cut off")
        await self._hold()
        machine.cut_off = False
        self.simulation.cluster.wake()

    async def _leaderless(self) -> None:
        cluster = self.simulation.cluster
        partition = self.draw.choice(list(cluster.by_partition))
        cluster.leaderless.add(partition)
        self._record("cluster", f"partition {partition} has no leader", "partitions without a leader")
        await self._hold()
        cluster.leaderless.discard(partition)
        cluster.elected(partition)

    async def _cut(self) -> None:
        cluster = self.simulation.cluster
        partitions = [partition for partition, records in cluster.by_partition.items() if records and partition not in cluster.shown]
        if not partitions:
            return
        partition = self.draw.choice(partitions)
        cluster.shown[partition] = max(int(partition == ORDERING), self.draw.randrange(len(cluster.by_partition[partition])))
        self._record(
            "cluster", f"partition {partition} shows {cluster.shown[partition]} of {len(cluster.by_partition[partition])}", "cut logs"
        )
        cluster.elected(partition)
        shown = [cluster.loop.time(), float("inf")]
        self.simulation.shown_less.append(shown)
        await self._hold()
        shown[1] = cluster.loop.time()
        cluster.shown.pop(partition, None)
        cluster.elected(partition)

    async def _snapshot(self) -> None:
        machine = self._machine()
        batches = len(machine.disk.journal)
        await self._hold()
        if batches <= len(machine.disk.journal) and not machine.disk.altered:
            machine.kill()
            self._record(machine.label, f"a snapshot of {batches} of {len(machine.disk.journal)} batches is put back", "snapshots")
            machine.disk.restore(batches)

    async def _wipe(self) -> None:
        machine = self._machine()
        machine.kill()
        self.simulation.freeing.new_disk(machine.disk)
        self._record(machine.label, "gets a new disk", "new disks")

    async def _fill(self) -> None:
        machine = self._machine()
        machine.disk.full = True
        self._record(machine.label, "its disk is full", "full disks")
        await self._hold()
        machine.disk.full, machine.disk.full_until_s = False, self.simulation.loop.time()

    async def _alter(self) -> None:
        machine = self._machine()
        if (id_ := machine.disk.alter(DECISIONS)) is None:
            return
        self._record(machine.label, "a row of its index is changed", "altered rows")
        if (process := machine.running()) is not None and self.draw.random() < 0.5:
            await self.simulation.clients.look_up(process, id_.hex())

    async def _jump(self) -> None:
        jump_ms = self.draw.choice([-100_000, -1_000, 1_000, 30_000, 100_000])
        if self.draw.random() < 0.5:
            self.simulation.broker_skew_ms += jump_ms
            self._record("cluster", f"its clock jumps by {jump_ms} ms", "clock jumps")
        else:
            machine = self._machine()
            machine.skew_ms += jump_ms
            self._record(machine.label, f"its clock jumps by {jump_ms} ms", "clock jumps")

    async def _stand(self) -> None:
        simulation = self.simulation
        simulation.broker_stands_at_ms = -(-simulation.broker_ms() // CLOCK_STANDS_AT_MS) * CLOCK_STANDS_AT_MS
        self._record("cluster", "its clock stops", "stopped clocks")
        await self._hold()
        simulation.broker_stands_at_ms = None

    async def _diverge(self) -> None:
        if label := divergence.strike(self.simulation, self.draw):
            self._record(label, "may decide otherwise from now on", "altered states")

    async def _repeat_vote(self) -> None:
        """Copy the vote of an outvoted worker into the log again, after another size has been compared and before that worker restarts."""
        simulation = self.simulation
        while simulation.loop.time() < simulation.plan.faults_s:
            await asyncio.sleep(0.1)
            for process in simulation.processes():
                agreement = None if process.worker is None else process.worker.index.agreement
                for name, (incarnation, size) in () if agreement is None or agreement.in_disagreement else agreement.outvoted.items():
                    machine = next(machine for machine in simulation.machines if machine.name == name)
                    machine.down = True  # its operator delays the restart
                    if agreement is None or agreement.votes.size <= size:
                        continue
                    vote = divergence.vote(simulation, incarnation, size)
                    if vote is not None:
                        simulation.cluster.land(ORDERING, vote.key, vote.value, forged=True)
                        self._record("forger", f"writes a vote of {name} again", "outvoted votes repeated")
                        await asyncio.sleep(1)
                    machine.down = False
                    return

    async def _pause(self) -> None:
        machine = self._machine()
        if (process := machine.running()) is not None:
            process.pause()
            self._record(machine.label, "is paused", "pauses")
            await self._hold()
            process.resume()

    # ---- the owner ----

    async def _rotate(self) -> None:
        owner = self.simulation.owner
        if self.simulation.salvaging.one_at_a_time.locked():
            return
        if self.draw.random() < 0.3 and owner.offer_again():
            self._record("owner", "offers a former key again", "former keys offered")
            return
        times = self.draw.choice([1, 1, 2])
        if owner.rotate(times):
            self._record("owner", f"puts another key in force, {times} times", "rotations" if times == 1 else "rotations of two at once")

    async def _grow(self) -> None:
        count = len(self.simulation.cluster.by_partition) - 1 + self.draw.choice([0, 1, 1, 2])
        if count <= PARTITIONS_MAX:
            self.simulation.owner.add_partitions(count)
            self._record("owner", f"declares {count} payload partitions", "partitions added")

    async def _retire(self) -> None:
        incarnations = [process.worker.sender.incarnation for process in self.simulation.processes() if process.worker is not None]
        incarnation = self.draw.choice([self.draw.randint(1, 9), *incarnations])
        # `notary retire` looks the incarnation up in the log, so it never retires one that has not started.
        begun = len(replay(self.simulation.cluster.by_partition).incarnations)
        if incarnation is not None and incarnation <= begun:
            self.simulation.owner.write(Retire(incarnation))
            self._record("owner", f"retires incarnation {incarnation}", "retired incarnations")

    async def _activate(self) -> None:
        """Activate format version 2, sometimes while a worker with older software has a vote: then it counts after that one is retired."""
        simulation, owner = self.simulation, self.simulation.owner
        if self.draw.random() < 0.5:
            replayed = replay(simulation.cluster.by_partition)
            record = Register(self.draw.randbytes(16), View(replayed.seen, replayed.history), FORMAT_VERSION - 1, OLD, "older")
            simulation.cluster.land(ORDERING, None, sign_record(record, owner.log_id, owner.in_force()))
            owner.write(Activate(SALVAGE_FORMAT))
            self._record("owner", "activates a version that a worker cannot read", "activations that a worker cannot read")
            await self._hold()
            retire_strangers(simulation)
        owner.write(Activate(SALVAGE_FORMAT))
        self._record("owner", "activates format version 2", "activations")

    async def _trim(self) -> None:
        if self.simulation.owner.trim(self.draw):
            self._record("owner", "declares payloads unneeded", "trims")

    async def _free(self) -> None:
        freeing = self.simulation.freeing
        for _ in range(2):
            freeing.take(self._machine())
            await self._hold()
        if freed := freeing.free(self.draw):
            self._record("owner", f"frees {freed} payload records", "payloads freed")

    # ---- clocks that are wrong by years ----

    async def _start_with_a_wrong_clock(self) -> None:
        machine = self._machine()
        if machine.wrong_clock_ms:
            return
        machine.kill()
        machine.wrong_clock_ms = self.draw.choice([-20, -1, 1, 20]) * YEAR_MS
        self._record(machine.label, f"its clock is wrong by {machine.wrong_clock_ms // YEAR_MS} years", "clocks wrong by years")
        await asyncio.sleep(self.draw.choice([3.0, 12.0]))
        machine.wrong_clock_ms = 0

    async def _jump_by_years(self) -> None:
        """Let more than a year pass, or set the brokers' clock wrong for a while; an operator then confirms the clocks."""
        simulation = self.simulation
        if self.draw.random() < 0.5:
            simulation.years_ms = YEAR_MS
            self._record("simulation", "a year passes", "years passed")
        else:
            jump_ms = self.draw.choice([-1, 1]) * YEAR_MS
            simulation.broker_skew_ms += jump_ms
            self._record("cluster", f"its clock jumps by {jump_ms} ms", "clocks of brokers wrong by years")
            await self._hold()
            if self.draw.random() < 0.7:
                simulation.broker_skew_ms -= jump_ms
        await asyncio.sleep(self.draw.choice([1.0, 8.0]))
        for machine in simulation.machines:
            machine.clock_accepted = True
            if (process := machine.running()) is not None:
                process.stop.set()

    # ---- a configuration of another notary ----

    async def _misname(self) -> None:
        """Start a worker with another notary's configuration; its operator corrects it a while later."""
        machine = self._machine()
        if machine.misnamed:
            return
        machine.kill()
        machine.misnamed = self.draw.choice(["name", "origin"])
        self._record(machine.label, f"its configuration has another notary's {machine.misnamed}", "misnamed workers")
        await asyncio.sleep(self.draw.choice([3.0, 12.0]))
        machine.misnamed = ""

    async def _duplicate_name(self) -> None:
        """Start a second process with the same worker name, on a disk of its own."""
        simulation = self.simulation
        machine = self._machine()
        other = Machine(simulation.plan.seed, machine.label + "'", machine.name, 0)
        simulation.machines.append(other)
        simulation.supervise(other)
        self._record(other.label, f"a second process of the name {machine.name}", "duplicate names")
        await asyncio.sleep(min(self.draw.choice([3.0, 20.0]), max(0.0, simulation.plan.faults_s - simulation.loop.time())))
        other.ended = True
        other.kill()
        simulation.machines.remove(other)
        simulation.gone.append(other)

    async def _register_late(self) -> None:
        """Append register records of a process that is gone: the brokers deliver them only now. All are of the same worker name."""
        machine = self.simulation.machines[0]
        for _ in range(self.draw.choice([1, 2, 3]) if self.simulation.plan.faults_s > FAULTS_S else 1):
            record = Register(self.draw.randbytes(16), View(1, self.simulation.owner.log_id), FORMAT_VERSION, machine.name, "gone")
            self.simulation.cluster.land(
                ORDERING, None, sign_record(record, self.simulation.owner.log_id, self.simulation.owner.in_force())
            )
            self._record(machine.label, "a register record of a process that is gone comes late", "late register records")
            await asyncio.sleep(self.draw.choice([2.0, 10.0]))
