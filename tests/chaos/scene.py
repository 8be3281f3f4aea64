"""A notary under load, and everything that is done to it."""

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from aiokafka.errors import KafkaError

from deploy.centres import Centres
from deploy.local import Cluster
from deploy.local.state import Broker
from ordering.topics import topic_names
from tests.asking.load import Load, until
from tests.chaos import brokers_say, faults
from tests.chaos.faults import Fault
from tests.checkers.history import Decided
from tests.kafka.workers import Notary, Worker

LEASHED = ("-m", "tests.chaos.leashed")
# A worker that is to stop while no broker is there need not make a scenario long; checkpoints and audits come often.
SETTINGS: dict[str, int | str] = {"worker_drain_ms_max": 3_000, "worker_checkpoint_interval_ms": 500, "worker_audit_interval_ms": 100}
BROKER_ENDS_S = 5.0
FORWARD = 20
"""So many more submissions are decided after each round of faults: progress."""


class Scene:
    """A notary, its brokers, its workers by name, and perhaps the data centres that they live in."""

    def __init__(
        self, notary: Notary, brokers: Cluster, note: Callable[[str], None], seed: int, centres: Centres | None = None, delay_ms: float = 0
    ) -> None:
        self.notary = notary
        self.brokers = brokers
        self.note = note
        self.seed = seed
        self.centres = centres
        self._delay_ms = delay_ms
        self.workers: dict[str, Worker] = {}
        self._settings: dict[str, dict[str, int | str]] = {}
        self._decisions = 0
        self._faults = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """No worker is left, and the brokers are well."""
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGCONT)
        await self.notary.end()
        self.heal_lines()
        await self.heal_brokers()
        await asyncio.to_thread(self.brokers.wait_until_serving)

    async def start(self, *names: str, **settings: int | str) -> list[Worker]:
        """Start workers, and wait until they are ready."""
        started = [self.begin(name, **settings) for name in names]
        return [await worker.ready() for worker in started]

    def begin(self, name: str, **settings: int | str) -> Worker:
        """Start one worker, for the first time or again with what it was started with."""
        self._settings[name] = self._settings.get(name, SETTINGS) | settings
        own: dict[str, Any] = dict(self._settings[name])
        self.workers[name] = self.notary.start(name, entry=LEASHED, **own)
        return self.workers[name]

    @property
    def urls(self) -> list[str]:
        """Where the workers listen."""
        return [worker.url for worker in self.workers.values()]

    def load(self, clients: int = 12) -> Load:
        """Clients that keep asking, and retry at any worker."""
        return Load(self.notary.client, self.notary.party, self.urls, seed=self.seed, clients=clients)

    # What the brokers say.

    def a_broker(self, *but: int) -> Broker:
        """One that runs."""
        return next(broker for broker in self.brokers.state.brokers if broker.condition == "running" and broker.id not in but)

    async def ordering_leader(self, *but: int) -> int:
        """The broker that leads the ordering topic, as one that is not among `but` says."""
        return await brokers_say.ordering_leader(self.a_broker(*but), self.notary.prefix)

    async def active_controller(self) -> int:
        """The broker whose controller is active."""
        return await brokers_say.active_controller(self.a_broker())

    async def in_sync(self) -> None:
        """Wait until every partition of this notary has all its replicas in sync."""

        async def all_in_sync() -> bool:
            try:
                found = await brokers_say.partitions(self.a_broker(), self.notary.prefix)
            except (OSError, KafkaError, TimeoutError):  # it is only starting
                return False
            return bool(found) and all(sorted(partition["isr"]) == sorted(partition["replicas"]) for partition in found)

        await until(all_in_sync, 0.2)
        self.note("all replicas are in sync")

    # Faults.

    async def torment(self, load: Sequence[Load], seconds: float, victims: dict[str, Sequence[str]]) -> None:
        """Round after round of faults for so long; after each one all workers are ready again, and all clients get on."""
        end_s = time.monotonic() + seconds
        for of_round in faults.rounds(self.seed, victims):
            if time.monotonic() > end_s:
                return
            async with asyncio.TaskGroup() as tasks:
                for fault in of_round:
                    tasks.create_task(self.bring(fault))
            await self.well(load)

    async def well(self, load: Sequence[Load]) -> None:
        """Wait until all workers are ready and every client has got on."""
        for worker in self.workers.values():
            await worker.ready()
        await self.notary.until_ready(*self.workers.values())
        for each in load:
            await each.until(FORWARD)
        self.note("all well")

    async def bring(self, fault: Fault) -> None:
        """A fault, and its end."""
        do: dict[str, Callable[[Fault], Awaitable[None]]] = {
            faults.KILL_WORKER: self._kill_worker,
            faults.FREEZE_WORKER: self._freeze_worker,
            faults.RESTART_WORKER: self._restart_worker,
            faults.KILL_BROKER: partial(self._end_brokers, how=self.brokers.kill),
            faults.RESTART_BROKER: partial(self._end_brokers, how=partial(self.brokers.stop, grace_seconds=BROKER_ENDS_S)),
            faults.FREEZE_BROKER: self._freeze_broker,
            faults.KILL_ALL_BROKERS: partial(self._end_brokers, how=self.brokers.kill, all_of_them=True),
            faults.WIPE_BROKER: self._wipe_broker,
            faults.MOVE_LEADER: self._move_leader,
            faults.CUT_OFF: self._cut_off,
            faults.CUT_OUTGOING: partial(self._cut_off, incoming=False),
            faults.CUT_INCOMING: partial(self._cut_off, outgoing=False),
            faults.CUT_LINE: self._cut_line,
            faults.FAR_AWAY: self._slow,
            faults.LOSSY: self._slow,
        }
        await asyncio.sleep(fault.after_s)
        self._faults += 1
        self.note(str(fault))
        await do[fault.kind](fault)
        self.note(f"over: {fault}")

    async def _kill_worker(self, fault: Fault) -> None:
        self.workers[fault.victim].kill()
        await asyncio.sleep(fault.hold_s)
        self.begin(fault.victim)

    async def _freeze_worker(self, fault: Fault) -> None:
        process = self.workers[fault.victim].process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(fault.hold_s)
        process.send_signal(signal.SIGCONT)

    async def _restart_worker(self, fault: Fault) -> None:
        await self.workers[fault.victim].stop()
        await asyncio.sleep(fault.hold_s)
        self.begin(fault.victim)

    async def _end_brokers(self, fault: Fault, how: Callable[[int], None], all_of_them: bool = False) -> None:
        first = int(fault.victim)
        ends = [first, *(broker.id for broker in self.brokers.state.brokers if all_of_them and broker.id != first)]
        await self.each_broker(how, ends)
        await asyncio.sleep(fault.hold_s)
        await self.each_broker(self.brokers.start, ends)

    async def each_broker(self, do: Callable[[int], None], brokers: Sequence[int]) -> None:
        """Do something to brokers, one after the other."""
        for broker in brokers:
            await asyncio.to_thread(do, broker)

    async def _freeze_broker(self, fault: Fault) -> None:
        await asyncio.to_thread(self.brokers.pause, int(fault.victim))
        await asyncio.sleep(fault.hold_s)
        await asyncio.to_thread(self.brokers.resume, int(fault.victim))

    async def _wipe_broker(self, fault: Fault) -> None:
        broker = int(fault.victim)
        await self.in_sync()
        await asyncio.to_thread(self.wipe, broker)
        await asyncio.sleep(fault.hold_s)
        await asyncio.to_thread(self.brokers.start, broker)
        # Until it has everything again the loss of another disk could lose what was acknowledged.
        await self.in_sync()

    def wipe(self, broker: int) -> None:
        """Kill a broker, and take all of its disk: its partitions, and its share of what the controllers know."""
        self.brokers.kill(broker)
        shutil.rmtree(self.brokers.directory / f"broker-{broker}" / "data")

    async def _move_leader(self, fault: Fault) -> None:
        try:
            await self.move_leader(int(fault.victim))
        except (OSError, KafkaError, TimeoutError) as problem:
            self.note(f"it could not be moved beside the other faults: {problem!r}")
        await asyncio.sleep(fault.hold_s)

    async def move_leader(self, broker: int) -> None:
        """Have this broker lead the ordering topic."""
        topic, _ = topic_names(self.notary.prefix)
        self.note(await brokers_say.move_leader(self.a_broker(), topic, broker, self.brokers))

    async def _cut_off(self, fault: Fault, outgoing: bool = True, incoming: bool = True) -> None:
        assert self.centres is not None
        lines = self.centres.cut_off(int(fault.victim), outgoing=outgoing, incoming=incoming)
        await asyncio.sleep(fault.hold_s)
        self.centres.heal(lines)

    async def _cut_line(self, fault: Fault) -> None:
        assert self.centres is not None
        one, way, other = fault.victim
        both = [(">", (int(one), int(other))), ("<", (int(other), int(one)))]
        lines = [line for arrow, line in both if way in ("-", arrow)]
        for line in lines:
            self.centres.cut(*line)
        await asyncio.sleep(fault.hold_s)
        self.centres.heal(lines)

    async def _slow(self, fault: Fault) -> None:
        assert self.centres is not None
        if fault.kind == faults.FAR_AWAY:
            self.centres.slow(10 * self._delay_ms, jitter_ms=self._delay_ms)
        else:
            self.centres.slow(self._delay_ms, loss=0.05)
        await asyncio.sleep(fault.hold_s)
        self.centres.slow(self._delay_ms)

    # Healing and checking.

    def heal_lines(self) -> None:
        """No line is cut or slower than it should be."""
        if self.centres is not None:
            self.centres.heal()
            self.centres.slow(self._delay_ms)

    async def heal_brokers(self) -> None:
        """Every broker runs."""
        for broker in self.brokers.state.brokers:
            if broker.condition == "paused":
                await asyncio.to_thread(self.brokers.resume, broker.id)
            elif broker.condition != "running":
                await asyncio.to_thread(self.brokers.start, broker.id)

    async def check(self) -> list[Decided]:
        """Everything is well: all indexes are equal, and explain all that was ever answered."""
        await asyncio.to_thread(self.brokers.wait_until_serving)
        decisions = await self.notary.check(*self.workers.values())
        self._decisions = len(decisions)
        return decisions

    def seen(self) -> str:
        """What was seen, for people."""
        first_s: dict[bytes, float] = {}
        took_s: dict[bytes, float] = {}
        for call in self.notary.history.calls:
            sent_s = first_s.setdefault(call.submission.body, call.sent_s)
            if call.status == 200:
                took_s.setdefault(call.submission.body, call.answered_s - sent_s)
        if not took_s:
            return "nothing was decided"
        waits = sorted(took_s.values())
        seconds = max(call.answered_s for call in self.notary.history.calls) - min(first_s.values())
        statuses = ", ".join(f"{count} x {status or 'broken'}" for status, count in sorted(self.notary.history.statuses().items()))
        return (
            f"{self._decisions} decisions of {len(took_s)} submissions in {seconds:.0f} s, {self._faults} random faults; answered after"
            f" {waits[len(waits) // 2] * 1000:.0f} ms (median), {waits[len(waits) * 99 // 100] * 1000:.0f} ms (p99),"
            f" {waits[-1]:.1f} s (longest); calls: {statuses}"
        )
