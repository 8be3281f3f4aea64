"""One simulation: supervised workers, the cluster that they use, their clients, and the faults of a plan.

Faults strike for as long as the plan says. Then everything heals and progress is demanded: every client must receive every outcome, and
every worker must read the log to its end. `checks` examines the result.
"""

import asyncio
import random
from collections.abc import Callable

import msgspec

from notary.worker import Environment
from ordering.log import ORDERING
from tests.checkers.history import History
from tests.simulation import bounds, divergence, ends
from tests.simulation.calls import WAIT_S_DEFAULT, WAIT_S_MAX
from tests.simulation.clients import Clients
from tests.simulation.cluster import Cluster
from tests.simulation.damage import Losses
from tests.simulation.deployment import OTHER_NOTARY, deployment
from tests.simulation.divergence import Divergence
from tests.simulation.faults import Faults
from tests.simulation.freeing import Freeing
from tests.simulation.loop import SimulatedLoop
from tests.simulation.machine import Machine
from tests.simulation.owner import Owner
from tests.simulation.plan import HEALED_S, AppendFates, Plan
from tests.simulation.process import Process, simulated
from tests.simulation.salvaging import Salvaging

WALL_MS = 1_760_000_000_000
"""The wall clock when a simulation begins, in milliseconds since 1970."""
MEMORY_LOOK_S = 0.5
KEPT_LOOKS = 3
"""The number of comparisons of all buffered records with the log during the fault phase; each comparison takes long."""
OPERATOR_LOOKS_S = 5.0
PAUSES_S = (0.1, 1.9, 2.1, 4.0)
"""The possible durations of a pause at a step: a process must detect one of more than two seconds (R10)."""
NOTICED_S = 1.0
"""The time within which every worker polls again after a loss, so that its poll returns the new leader's epoch."""


class Simulation:
    """One simulation. `problems` lists violations of the notary's guarantees that were seen during the run."""

    def __init__(self, plan: Plan, loop: SimulatedLoop, tracing: Callable[[float, str, str], None] | None) -> None:
        self.plan = plan
        self.loop = loop
        self.tracing = tracing
        self.draw = random.Random(f"world {plan.seed}")  # another text would change what each seed draws
        self._suspending = random.Random(f"suspended at steps {plan.seed}")
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}
        self.healed = self.over = False
        self.shown_less: list[list[float]] = []
        """The periods [start, end], in seconds, in which the brokers showed less of the log than there is."""
        self.divergences: list[Divergence] = []
        self.years_ms = 0
        """The length of the idle time that has been skipped, in milliseconds."""
        self.broker_skew_ms = 0
        self.broker_stands_at_ms: int | None = None
        self.cluster = Cluster(plan, loop, self.broker_ms, self.trace)
        self.stolen: set[bytes] = set()
        """The ordering records that a thief of the notary's key has written under the incarnations of workers."""
        self.losses = Losses(self)
        self.freeing = Freeing(self)
        self.owner = Owner(self)
        self.salvaging = Salvaging(self)
        self.machines = [Machine(plan.seed, f"w{number}", f"w{number}", skew_ms) for number, skew_ms in enumerate(plan.skews_ms, 1)]
        self.began_s: dict[bytes, float] = {}
        """The start time of each process, by the prefix of its nonces."""
        self.gone: list[Machine] = []
        """Machines of duplicate worker names that no longer run; their indexes are checked too."""
        self.history = History()
        self.clients = Clients(plan, deployment().party, self.history, self.processes, self.wall_ms())
        self._nonces = 0
        self._heaviest_seen = 1
        self._supervisors: list[asyncio.Task[None]] = []

    # ---- shared by all parts ----

    def wall_ms(self) -> int:
        """Returns the true time of day."""
        return WALL_MS + self.years_ms + int(self.loop.time() * 1000)

    def broker_ms(self) -> int:
        """Returns the time of day by the brokers' clock."""
        return self.wall_ms() + self.broker_skew_ms if self.broker_stands_at_ms is None else self.broker_stands_at_ms

    def trace(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        if self.tracing is not None:
            self.tracing(self.loop.time(), who, what)

    def count(self, what: str) -> None:
        """Count an event for the report."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def problem(self, who: str, what: str) -> None:
        """Record a violation of the notary's guarantees."""
        self.trace(who, f"PROBLEM: {what}")
        self.problems.append(f"{who}: {what}")

    def processes(self) -> list[Process]:
        """Returns the processes that are running."""
        return [process for machine in self.machines if (process := machine.running()) is not None]

    # ---- the run ----

    async def run(self) -> None:
        """Run the faults, then heal everything and demand progress."""
        self.owner.begin()
        for machine in self.machines:
            self.supervise(machine)
        watching = asyncio.create_task(self._watch_memory())
        calling = asyncio.create_task(self.clients.run())
        faults = asyncio.create_task(Faults(self).run())
        await asyncio.sleep(self.plan.faults_s)
        await faults
        self.heal()
        operating = asyncio.create_task(self.losses.operate())
        if await self._progress(calling):
            await self._settle()
        for task in (calling, watching, operating):
            task.cancel()

    def supervise(self, machine: Machine) -> None:
        """Keep a process running in that machine."""
        self._supervisors.append(asyncio.create_task(self._supervise(machine)))

    def heal(self) -> None:
        """End all faults. Records that are already delayed still arrive."""
        self.trace("simulation", "everything heals")
        self.healed = True
        cluster = self.cluster
        cluster.fates = AppendFates(0, 0, 0, 0, min(0.05, self.plan.fates.delay_s))
        cluster.lag_s = min(0.05, cluster.lag_s)
        self.broker_stands_at_ms = None
        cluster.leaderless.clear()
        cluster.shown.clear()
        cluster.wake()
        self.clients.loss = 0.0
        for machine in self.machines:
            machine.cut_off = machine.down = machine.disk.full = False
            machine.wrong_clock_ms = 0
            machine.misnamed = ""
        cluster.behind_s.clear()
        cluster.slow_entries_s.clear()
        for process in self.processes():
            process.resume()

    async def stop(self) -> None:
        """End all processes and supervisors, when the checks are done."""
        for machine in self.machines:
            machine.ended = True
            if machine.process is not None:
                machine.process.die()
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.sleep(0)

    async def _progress(self, calling: "asyncio.Task[None]") -> bool:
        """Returns whether every client learns every outcome within `HEALED_S`; records a problem otherwise."""
        began_s = self.loop.time()
        # With slow payloads each submission may take as long as its payload does.
        limit_s = HEALED_S + self.plan.payload_s * self.plan.submissions
        while not calling.done() and self.loop.time() - began_s < limit_s:
            await asyncio.wait([calling], timeout=5.0)
        if not calling.done():
            answered = self.history.answered()
            open_ = [id_ for submission in self.clients.submissions for id_ in submission.ids if id_ not in answered]
            reasons = {process.name: process.worker.not_ready() for process in self.processes() if process.worker is not None}
            self.problem("clients", f"no progress {limit_s:g} s after everything healed: {len(open_)} open, workers report {reasons}")
            return False
        calling.result()
        return True

    async def _settle(self) -> None:
        """Wait until every worker has read to the end of the log, then send a sample of the decided submissions to each of them again."""
        what = ""
        try:
            async with asyncio.timeout(HEALED_S):
                await self._level()
            await divergence.found_out(self)
            async with asyncio.timeout(HEALED_S):
                await self._level()
                for machine in self.machines:
                    for submission in self.clients.submissions[:: max(1, len(self.clients.submissions) // 8)]:
                        await self.clients.insist(machine.running, submission)
                while silent := bounds.silent_incarnations(self):
                    what = f"incarnations {silent} are silent, with payloads that wait, and nobody fences them"
                    await asyncio.sleep(1)
        except TimeoutError:
            self.problem(
                "simulation", f"{HEALED_S:g} s after the last decision: {what or [self._state(machine) for machine in self.machines]}"
            )

    async def _level(self) -> None:
        """Return when every worker has read to the end and is ready."""
        while not all(self._is_level(machine) for machine in self.machines):  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.5)

    def _is_level(self, machine: Machine) -> bool:
        worker = None if machine.process is None or machine.process.dead else machine.process.worker
        # A topic-partition that had no leader until now is compared by the next poll, and may have lost records.
        if worker is None or worker.not_ready() is not None or worker.driver.uncompared:
            return False
        if self.losses.damages and self.loop.time() < self.losses.damages[-1].at_s + NOTICED_S:
            return False
        heights = {other.process.worker.index.position_next for other in self.machines if other.process and other.process.worker}
        joiner = worker.driver.joiner
        # Every admitted request is decided in the end, even if its client has long asked another worker.
        pending = worker.sender.queue.pending_requests
        return len(heights) == 1 and not pending and not joiner.queued_records and joiner.offset_head == len(self.cluster.by_partition[-1])

    def _state(self, machine: Machine) -> str:
        worker = None if machine.process is None or machine.process.dead else machine.process.worker
        if worker is None:
            return f"{machine.label}: no worker"
        joiner, end = worker.driver.joiner, len(self.cluster.by_partition[-1])
        at = f"{worker.index.position_next} positions, head {joiner.offset_head} of {end}, queued {joiner.queued_records}"
        at += f", pending {worker.sender.queue.pending_requests}"
        return f"{machine.label}: {worker.not_ready() or 'ready'}; {at}"

    # ---- processes ----

    async def _supervise(self, machine: Machine) -> None:
        while not machine.ended:
            if machine.down:
                await asyncio.sleep(0.1)
                continue
            divergence.close(self, machine)
            process = machine.process = self._process(machine)
            self.began_s[process.identity] = self.loop.time()
            machine.processes += 1
            process.cut_off = machine.cut_off
            self.trace(machine.label, "starts")
            batches = len(machine.disk.journal), len(machine.disk._altered)
            problems = await self._until_ended(process)
            # Rows that a fault has changed on the disk meanwhile were not written by the process.
            written = len(machine.disk.journal) - batches[0] > len(machine.disk._altered) - batches[1]
            if process.misnamed and (process.worker is not None or process.log.writers or written):
                self.problem(machine.label, f"its configuration has another notary's {process.misnamed}, and it begins to work")
            self.count("process ends")
            if process.became_live and process.worker is not None:
                machine.disk.applied_live = process.worker.driver.joiner.offset_head
            self._blame(process)
            for problem in problems:
                self.trace(machine.label, f"ended: {problem!r}")
                if counted := ends.classify(self, machine, process, problem):
                    self.count(counted)
                else:
                    self.problem(machine.label, f"ended by itself: {problem!r}")
            if machine.needs_disk:
                self.freeing.new_disk(machine.disk)
                machine.needs_disk = False
            await asyncio.sleep(self.draw.choice([0.0, 0.5, 3.0]))

    async def _until_ended(self, process: Process) -> tuple[Exception, ...]:
        """Run the process to its end; returns its errors.

        A quarantined worker keeps running, to report the reason, until its operator stops it.
        """
        running = asyncio.create_task(process.run())
        while not running.done():
            await asyncio.wait([running], timeout=OPERATOR_LOOKS_S)
            if process.worker is not None and process.worker.index.agreement.quarantined:
                process.stop.set()
        return running.result()

    def _process(self, machine: Machine) -> Process:
        plan = self.plan
        config = deployment().config(
            machine.name,
            {
                "limits.pending_requests_max": plan.pending_requests_max,
                "worker.checkpoint_interval_ms": plan.checkpoint_interval_ms,
                "worker.worker_timeout_ms": plan.worker_timeout_ms,
                "worker.drain_ms_max": 3_000,
                "limits.party_requests_per_s": plan.quota_per_s,
                "http.wait_ms_default": WAIT_S_DEFAULT * 1_000,
                "http.wait_ms_max": WAIT_S_MAX * 1_000,
            },
        )
        config = simulated(config, plan, clock_accepted=machine.clock_accepted)
        config = msgspec.structs.replace(config, directory=str(self.owner.directory))
        if machine.misnamed:
            config = msgspec.structs.replace(config, **{machine.misnamed: OTHER_NOTARY})
        clock = lambda: self.wall_ms() + machine.skew_ms + machine.wrong_clock_ms  # noqa: E731
        around = Environment(clock, self.loop.time, self._nonces_of(machine))
        process = Process(
            machine.label, machine.identity(), config, self.cluster, machine.disk, around, lambda where: self._dies(machine, where)
        )
        began_wrong = bool(machine.wrong_clock_ms)
        process.misnamed = machine.misnamed
        process.wrong_clock = lambda: began_wrong and bool(machine.wrong_clock_ms)
        return process

    def _nonces_of(self, machine: Machine) -> Callable[[], bytes]:
        process = machine.processes

        def nonce() -> bytes:
            self._nonces += 1
            return machine.nonce(process, self._nonces)

        return nonce

    def _dies(self, machine: Machine, where: str) -> bool:
        if self.healed:
            return False
        process = machine.running()
        if process is not None and self._suspending.random() < self.plan.pause_at_steps:
            self.trace(machine.label, f"is paused at {where}")
            self.count("pauses at a step")
            process.pause()
            self.cluster.later(self._suspending.choice(PAUSES_S), process.resume)
        if self.draw.random() >= self.plan.crash_at_steps:
            return False
        self.trace(machine.label, f"dies at {where}")
        self.count("deaths at a step")
        return True

    def _blame(self, process: Process) -> None:
        for problem in process.problems:
            self.problem(process.name, problem)
        process.problems.clear()

    async def _watch_memory(self) -> None:
        """Check the limits on memory again and again during the run.

        Each setting that bounds memory must hold, except that one submission or one poll may be larger than its limit.
        """
        plan = self.plan
        kept_looks_s = sorted([self.draw.uniform(0, self.plan.faults_s) for _ in range(KEPT_LOOKS)])
        while True:
            await asyncio.sleep(MEMORY_LOOK_S)
            if kept_looks_s and self.loop.time() >= kept_looks_s[0]:
                del kept_looks_s[0]
                self.problems += [f"at {self.loop.time():g} s: {violation}" for violation in bounds.kept(self)]
            heaviest = self._heaviest()
            for process in self.processes():
                self._look_for_suspicions(process)
                self._blame(process)
                if process.worker is None:
                    continue
                pending = process.worker.sender.queue.pending_requests
                if pending > max(plan.pending_requests_max, plan.requests_max, plan.quota_per_s):
                    self.problem(process.name, f"{pending} requests pending, {plan.pending_requests_max} allowed")
                queued = process.worker.driver.joiner.queued_ids
                if queued > plan.queue_ids_max + plan.records_per_poll_max * heaviest:
                    self.problem(process.name, f"{queued} ids and records queued, {plan.queue_ids_max} allowed, and one poll")

    def _look_for_suspicions(self, process: Process) -> None:
        """Check that no worker suspects a log that has lost nothing, and that none becomes ready against what the log shows (`damage`)."""
        suspicions = None if process.worker is None else process.worker.driver.joiner.suspicions
        if suspicions is not None and suspicions.open and not self.losses.damages and self.plan.aimed != "examined":
            self.problem(process.name, f"it suspects itself, and nothing was lost: {suspicions.describe()}")
        if suspicions is not None and suspicions.live and not process.became_live:
            process.became_live = True
            if self.losses.damages and (wrong := self.losses.check(process)):
                self.problem(process.name, wrong)

    def _heaviest(self) -> int:
        """Returns the largest weight that one ordering record, also a lost one, adds to a queue: one, plus one for each 32 bytes."""
        lost = [damage.lost for damage in self.cluster.damages if damage.partition == ORDERING]
        weights = [1 + len(record.value or b"") // 32 for records in (self.cluster.by_partition[ORDERING], *lost) for record in records]
        self._heaviest_seen = max([self._heaviest_seen, *weights])
        return self._heaviest_seen
