"""One simulated process: a whole worker, as `notary serve` runs it, on a simulated log, disk, clock and network.

Everything inside is the real thing: the HTTP application, admission, the sender, the driver and its joiner, the index, receipts, the
self-check, and the way a service starts, drains and ends. What is simulated lies under the three interfaces that a worker has to the
world: `Log`, `Store` and ASGI.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from joiner import DriverSettings, JoinerLimits
from notary.config import Config
from notary.http import App
from notary.index import Index
from notary.self_check import SelfCheckSettings
from notary.service import Ending, leaves, serve_until
from notary.worker import Surroundings, Worker
from ordering.log import Record
from tests.simulation.buffer_bound import BufferBound
from tests.simulation.cluster import Cluster, SimulatedLog
from tests.simulation.disk import SimulatedDisk, SimulatedStore
from tests.simulation.plan import Plan

HOST: ContextVar[str] = ContextVar("host", default="")
"""Whose code runs: for log lines."""


TOLD = ("/v1/submissions", "/v1/transactions", "/v1/states")


class Died(BaseException):
    """The process is gone; nothing of it may go on."""


class SimulatedConfig(Config, frozen=True):
    """A configuration with the limits of a plan, and a driver that does not look around more often than a simulation can afford."""

    plan: Plan | None = None

    @property
    def joiner_limits(self) -> JoinerLimits:
        """The plan's."""
        plan = self.plan
        assert plan is not None
        return JoinerLimits(
            hole_timeout_ms=plan.hole_timeout_ms,
            worker_timeout_ms=plan.worker_timeout_ms,
            buffer_bytes_max=plan.buffer_bytes_max,
            queue_ids_max=plan.queue_ids_max,
            step_requests_max=plan.step_requests_max,
        )

    @property
    def driver_settings(self) -> DriverSettings:
        """Slower than in production."""
        return DriverSettings(poll_ms=500, watch_s=1.0, stall_s=5.0, unreachable_s=self.worker.unreachable_ms / 1000)

    @property
    def self_check_settings(self) -> SelfCheckSettings:
        """Slower than in production."""
        return SelfCheckSettings(
            checkpoint_interval_ms=self.worker.checkpoint_interval_ms,
            worker_timeout_ms=self.worker.worker_timeout_ms,
            look_s=0.5,
            audit_s=2.0,
        )


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer as a client has it."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    health: str
    """Of a 503: what `/readyz?verbose` said in the same moment."""


class Process:
    """One life of one worker process."""

    def __init__(
        self,
        name: str,
        identity: bytes,
        config: SimulatedConfig,
        cluster: Cluster,
        disk: SimulatedDisk,
        surroundings: Surroundings,
        dies: Callable[[str], bool],
    ) -> None:
        self.name = name
        self.identity = identity
        """What the nonces of its lives begin with."""
        self.began_s = cluster.loop.time()
        self.lives: set[int] = set()
        """The incarnations that it was seen to live under."""
        self.problems: list[str] = []
        """What it must not have done."""
        self.dead = False
        self.ended = False
        """Whether it came to its end, by itself or because it was told to: then it has answered all calls."""
        self.cut_off = False
        self.log = SimulatedLog(cluster, self)
        self.stop = asyncio.Event()
        self.worker: Worker | None = None
        self._config = config
        self._buffered = BufferBound(config.joiner_limits.buffer_bytes_max)
        self._disk = disk
        self._surroundings = surroundings
        self._dies = dies
        self._app = App()
        self._main: asyncio.Task[Any] | None = None
        self._calls: dict[asyncio.Task[None], asyncio.Future[Answer | None]] = {}

    # ---- life and death ----

    async def run(self) -> tuple[Exception, ...]:
        """From the start to the end; what it could not go on from. Nothing when it died."""
        HOST.set(self.name)
        self._main = asyncio.create_task(serve_until([self._app], self._start, self.stop, self._ready))
        await asyncio.wait([self._main])
        cancelled = self._main.cancelled()
        problem = None if cancelled else self._main.exception()
        died = self.dead
        self.ended = not died and not cancelled
        self.die()
        if died or cancelled:
            return ()
        if isinstance(problem, ExceptionGroup):
            return tuple(leaves(problem))
        if isinstance(problem, Exception):
            return (problem,)
        assert problem is None, problem
        ending: Ending = self._main.result()
        return ending.problems

    def die(self) -> None:
        """From now on nothing of it has an effect: it is as if it was killed."""
        if not self.dead:
            self.dead = True
            self.log.abandon()
            # Not from inside of what is cancelled: that would go on to its next await.
            asyncio.get_running_loop().call_soon(self._bury)

    def step(self, where: str) -> None:
        """A place where it may die; raises `Died` when it does, or has."""
        if not self.dead and self._dies(where):
            self.die()
        if self.dead:
            raise Died(where)
        if self.worker is not None and self.worker.sender.incarnation is not None:
            self.lives.add(self.worker.sender.incarnation)

    def polled(self, records: Sequence[Record]) -> None:
        """Its reader is about to return these."""
        if self.worker is not None and (wrong := self._buffered.polled(self.worker.driver.joiner, records)):
            self.problems.append(wrong)

    def _bury(self) -> None:
        for call, answered in list(self._calls.items()):
            call.cancel()
            if not answered.done():
                answered.set_result(None)
        if self._main is not None:
            self._main.cancel()

    async def _start(self) -> Worker:
        await self.log.bounds()  # as the real log asks for its topics before it is open
        plan = self._config.plan
        assert plan is not None
        index = Index.over(
            SimulatedStore(self._disk, self.step),
            self._config.index_directory,
            notary_name=self._config.name,
            log_identity=self.log.identity,
            payload_partitions=self.log.payload_partitions,
            worker_name=self._config.worker.name,
        )
        self.worker = Worker(self._config, self.log, index, self._surroundings)
        return self.worker

    async def _ready(self, worker: Worker) -> None:
        pass

    # ---- HTTP ----

    @property
    def altered(self) -> frozenset[str]:
        """Whether its index was changed behind its back."""
        return self._disk.altered

    async def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[bytes, bytes | None] | None = None) -> Answer | None:
        """What a client that reached this process is answered; None when it dies first. A header that is None is not sent."""
        if self.dead:
            return None
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._answer(method, path, body, headers or {}, answered))
        self._calls[task] = answered
        task.add_done_callback(self._calls.pop)
        return await answered

    def _told(self, path: str) -> None:
        """It answers: not while its index is in dispute, or condemned (R9)."""
        agreement = None if self.worker is None else self.worker.index.agreement
        if agreement is not None and (agreement.disputed or agreement.condemned) and path.startswith(TOLD):
            self.problems.append(f"it answers {path}, and should not: {agreement.condemned or agreement.votes.told()}")

    async def _answer(
        self, method: str, path: str, body: bytes, headers: Mapping[bytes, bytes | None], answered: "asyncio.Future[Answer | None]"
    ) -> None:
        HOST.set(self.name)
        start: dict[str, Any] = {}
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if start.setdefault("read", False):
                await gone.wait()
            start["read"] = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            start.update(message)
            if message["type"] == "http.response.start" and message["status"] == 200:
                self._told(target)
            if message["type"] == "http.response.body" and not answered.done():
                health = self._health() if start["status"] == 503 else ""
                answered.set_result(None if self.dead else Answer(start["status"], dict(start["headers"]), message["body"], health))

        target, _, query = path.partition("?")
        all_headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(body), **headers}
        sent = [(name, value) for name, value in all_headers.items() if value is not None]
        try:
            await self._app(
                {"type": "http", "method": method, "path": target, "query_string": query.encode(), "headers": sent}, receive, send
            )
        except (Died, asyncio.CancelledError):
            if not self.dead:
                raise
        finally:
            if not answered.done():
                answered.set_result(None)

    def _health(self) -> str:
        """What `/readyz?verbose` says now; that is answered without a wait."""
        told: list[bytes] = []

        async def send(message: Mapping[str, Any]) -> None:
            told.append(message.get("body", b""))

        async def receive() -> dict[str, Any]:
            raise AssertionError("nothing is read")

        scope = {"type": "http", "method": "GET", "path": "/readyz", "query_string": b"verbose", "headers": []}
        with contextlib.suppress(StopIteration):
            self._app(scope, receive, send).send(None)
        return b"".join(told).decode()
