"""A notary under load, the faults that strike it, and the checks that they did."""

import asyncio
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiokafka.errors import KafkaError

from deploy.centres import Centres
from deploy.local import Cluster
from deploy.local.state import Broker
from ordering.topics import topic_names
from tests.chaos import raw_requests
from tests.checkers.history import Decided
from tests.clients.load import Load, until
from tests.clients.party import spend, state
from tests.kafka.workers import Notary, Worker

SUPERVISED = ("-m", "tests.chaos.supervised")
# A short drain keeps scenarios short in which a worker stops without brokers; checkpoints and audits come often.
SETTINGS: dict[str, int | str] = {"worker_drain_ms_max": 3_000, "worker_checkpoint_interval_ms": 500, "worker_audit_interval_ms": 100}
FORWARD = 20
"""The number of new submissions that must be decided after each round of faults."""


class Deployment:
    """A notary, its brokers, its workers by name, and perhaps the data centres in which they run."""

    def __init__(
        self, notary: Notary, brokers: Cluster, note: Callable[[str], None], seed: int, centres: Centres | None = None, delay_ms: float = 0
    ) -> None:
        self.notary = notary
        self.brokers = brokers
        self.note = note
        self.seed = seed
        self.centres = centres
        self.delay_ms = delay_ms
        self.workers: dict[str, Worker] = {}
        self._settings: dict[str, dict[str, int | str]] = {}
        self._decisions = 0
        self._asked = 0
        self.random_faults = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End all workers and restore the brokers."""
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
        """Start one worker, for the first time or again with its earlier settings."""
        self._settings[name] = self._settings.get(name, SETTINGS) | settings
        own: dict[str, Any] = dict(self._settings[name])
        self.workers[name] = self.notary.start(name, entry=SUPERVISED, **own)
        return self.workers[name]

    @property
    def urls(self) -> list[str]:
        """The addresses of the workers."""
        return [worker.url for worker in self.workers.values()]

    def load(self, clients: int = 12) -> Load:
        """Returns clients that submit all the time, and retry at any worker."""
        return Load(self.notary.client, self.notary.party, self.urls, seed=self.seed, clients=clients)

    # Requests to the brokers.

    def a_broker(self, *but: int) -> Broker:
        """Returns a running broker other than `but`."""
        return next(broker for broker in self.brokers.state.brokers if broker.condition == "running" and broker.id not in but)

    async def ordering_leader(self, *but: int) -> int:
        """Returns the broker that leads the ordering topic, according to a broker other than `but`."""
        return await raw_requests.ordering_leader(self.a_broker(*but), self.notary.prefix)

    async def active_controller(self, *but: int) -> int:
        """Returns the broker whose controller is active, according to a broker other than `but`."""
        return await raw_requests.active_controller(self.a_broker(*but))

    async def in_sync(self) -> None:
        """Wait until every partition of this notary has all its replicas in sync, according to all brokers: one may be outdated."""

        async def all_in_sync() -> bool:
            try:
                reported = [await raw_requests.partitions(broker, self.notary.prefix) for broker in self.brokers.state.brokers]
            except (OSError, KafkaError, TimeoutError):  # one is still starting
                return False
            return all(found and all(sorted(each["isr"]) == sorted(each["replicas"]) for each in found) for found in reported)

        await until(all_in_sync, 0.2)
        self.note("all replicas are in sync")

    async def missed(self, broker: int) -> None:
        """Wait until the others have noticed that a broker is gone: it leads no partition, and is no in-sync replica."""

        async def noticed() -> bool:
            try:
                found = await raw_requests.partitions(self.a_broker(broker), self.notary.prefix)
            except (OSError, KafkaError, TimeoutError):  # they are electing a controller
                return False
            return bool(found) and all(partition["leader"] not in (broker, -1) and broker not in partition["isr"] for partition in found)

        await until(noticed, 0.1)
        self.note(f"broker {broker} is missed: it leads nothing, and is not in sync")

    # Faults.

    async def freeze(self, worker: Worker) -> None:
        """Stop a worker with SIGSTOP. Returns when the kernel reports that it is stopped."""
        worker.process.send_signal(signal.SIGSTOP)
        await until(lambda: frozen(worker))

    def thaw(self, worker: Worker) -> None:
        """Resume a worker that has been frozen until now."""
        assert frozen(worker)
        worker.process.send_signal(signal.SIGCONT)

    async def each_broker(self, do: Callable[[int], None], brokers: Sequence[int]) -> None:
        """Call `do` for each broker, one after the other."""
        for broker in brokers:
            await asyncio.to_thread(do, broker)

    def wipe(self, broker: int) -> None:
        """Kill a broker and delete its disk: its partitions, and its replica of the controllers' metadata."""
        self.brokers.kill(broker)
        shutil.rmtree(self.data(broker))

    def data(self, broker: int) -> Path:
        """Returns the data directory of a broker."""
        return self.brokers.directory / f"broker-{broker}" / "data"

    async def move_leader(self, broker: int) -> None:
        """Make this broker the leader of the ordering topic, and wait until the brokers report it."""
        topic, _ = topic_names(self.notary.prefix)
        self.note(await raw_requests.move_leader(self.a_broker(), topic, broker, self.brokers))

        async def leads() -> bool:
            return await self.ordering_leader() == broker

        await until(leads, 0.1)
        self.note(f"broker {broker} leads the ordering topic")

    # Healing and checking.

    async def well(self, load: Sequence[Load]) -> None:
        """Wait until all workers are ready, each has decided a new submission, and every client has made progress."""
        for worker in self.workers.values():
            await worker.ready()
        await self.notary.until_ready(*self.workers.values())
        for name, worker in self.workers.items():
            self._asked += 1
            await self.notary.client.decide([worker.url], self.notary.party.submission(spend(state(f"{name} is well/{self._asked}"))))
        for each in load:
            await each.until(FORWARD)
        self.note("all well")

    def heal_lines(self) -> None:
        """Restore all lines: none is cut or slower than configured."""
        if self.centres is not None:
            self.centres.heal()
            self.centres.slow(self.delay_ms)

    async def heal_brokers(self) -> None:
        """Start or resume every broker."""
        for broker in self.brokers.state.brokers:
            if broker.condition == "paused":
                await asyncio.to_thread(self.brokers.resume, broker.id)
            elif broker.condition != "running":
                await asyncio.to_thread(self.brokers.start, broker.id)

    async def check(self) -> list[Decided]:
        """Check that the log, read back, explains every index and every answer (`Notary.check`); returns the decisions."""
        await asyncio.to_thread(self.brokers.wait_until_serving)
        decisions = await self.notary.check(*self.workers.values())
        self._decisions = len(decisions)
        return decisions

    def seen(self) -> str:
        """Returns the measurements of this scenario as text."""
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
            f"{self._decisions} decisions of {len(took_s)} submissions in {seconds:.0f} s, {self.random_faults} random faults;"
            f" answered after {waits[len(waits) // 2] * 1000:.0f} ms (median), {waits[len(waits) * 99 // 100] * 1000:.0f} ms (p99),"
            f" {waits[-1]:.1f} s (longest); calls: {statuses}"
        )


def frozen(worker: Worker) -> bool:
    """Returns whether the kernel reports a worker's process as stopped."""
    return Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
