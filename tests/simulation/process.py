"""One simulated process: a complete worker, as `notary serve` runs it, on a simulated log, disk, clock and network.

All code in it is the product's: the HTTP application, admission, the sender, the driver and its joiner, the index, receipts, the
self-check, and the start, drain and shutdown of the service. Only what lies under a worker's three interfaces to its environment is
simulated: `Log`, `Store` and calls.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from typing import Any

import msgspec

from joiner import Joiner, JoinerLimits, Ready
from notary.config import Config
from notary.decision import Decision
from notary.http import call as http
from notary.http.app import App
from notary.http.call import Call
from notary.index import Index
from notary.open_log import check_genesis
from notary.service import Ending, reasons, serve_until
from notary.worker import Environment, Worker
from ordering.genesis import read_genesis
from ordering.log import Record
from ordering.records import View
from payload import Request
from tests.joiner.compared import restored
from tests.simulation.bounds import BufferBound
from tests.simulation.cluster import Cluster, SimulatedLog, SimulatedReader
from tests.simulation.disk import SimulatedDisk, SimulatedStore
from tests.simulation.log_checks import LogChecks
from tests.simulation.loop import HOST, SimulatedLoop
from tests.simulation.plan import Plan

DECISION_PATHS = ("/v1/submissions", "/v1/transactions", "/v1/states")

STEPS_PER_SNAPSHOT = 8


class Died(BaseException):
    """Raised inside a process that is dead, so that none of its code continues."""


def simulated(config: Config, plan: Plan, *, clock_accepted: bool) -> Config:
    """Returns a configuration with the limits of a plan, and with parts that check their environment as rarely as a simulation requires."""
    return msgspec.structs.replace(
        config,
        joiner=JoinerLimits(
            hole_timeout_ms=plan.hole_timeout_ms,
            worker_timeout_ms=plan.worker_timeout_ms,
            buffer_bytes_max=plan.buffer_bytes_max,
            fence_bytes_min=0,
            queue_ids_max=plan.queue_ids_max,
            step_requests_max=plan.step_requests_max,
            large_bytes=300 if plan.seed % 5 == 3 else JoinerLimits().large_bytes,
        ),
        driver=msgspec.structs.replace(config.driver, poll_ms=500, stall_ms=5_000, clock_accepted=clock_accepted),
        self_check=msgspec.structs.replace(config.self_check, look_ms=500, audit_interval_ms=2_000),
    )


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer as the client receives it."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    health: str
    """The text of `/readyz?verbose` at the same moment, for a 503."""
    met: frozenset[int]
    """The numbers of the losses that the process could have noticed when it answered."""
    view: View | None
    """The process's view of the log at that moment."""


class _Watched:
    """An index whose steps are checked as they are applied."""

    def __init__(self, process: "Process", index: Index) -> None:
        self._process = process
        self._index = index

    def prepare(self, requests: Sequence[Request]) -> Iterator[None]:
        """Have the index look up the requests of a large batch."""
        return self._index.prepare(requests)

    def apply(self, ready: Ready) -> Sequence[Sequence[Decision]]:
        """Apply the step to the index and check it; returns the index's decisions."""
        decisions = self._index.apply(ready)
        self._process.applied(ready)
        return decisions


class Process:
    """One run of one worker process."""

    def __init__(
        self,
        name: str,
        identity: bytes,
        config: Config,
        cluster: Cluster,
        disk: SimulatedDisk,
        environment: Environment,
        dies: Callable[[str], bool],
    ) -> None:
        self.name = name
        self.worker_name = config.worker.name
        self.identity = identity
        """The prefix of the nonces of its incarnations."""
        self.began_s = cluster.loop.time()
        self.incarnations: set[int] = set()
        """The incarnations under which it was seen to run."""
        self.problems: list[str] = []
        """The violations that this process has committed."""
        self.dead = False
        self.ended = False
        """True if it ended by itself or on request, not by a crash: then it has answered all calls."""
        self.cut_off = False
        self.paused_s: list[float] = []
        """The times at which it was paused and resumed, alternating."""
        self.became_live = False
        self.misnamed = ""
        """The setting in which its configuration names another notary; empty for none."""
        self.wrong_clock: Callable[[], bool] = lambda: False
        """Returns whether its clock is wrong by years, and was when it started."""
        self._cluster = cluster
        self._epochs_met: dict[int, int] = {}
        self.log = SimulatedLog(cluster, self)
        self.stop = asyncio.Event()
        self.worker: Worker | None = None
        self._config = config
        self._buffered = BufferBound(config.joiner.buffer_bytes_max)
        self._looked = LogChecks(cluster, self.paused_s)
        self._applied = 0
        self._restored = Joiner(limits=config.joiner, worker_name=config.worker.name)
        self.disk = disk
        self._environment = environment
        self._dies = dies
        self._app = App(clock_s=lambda: asyncio.get_running_loop().time())
        self._main: asyncio.Task[Any] | None = None
        self._calls: set[asyncio.Future[Answer | None]] = set()

    # ---- start and end ----

    async def run(self) -> tuple[Exception, ...]:
        """Run from start to end; returns the errors that ended it, none if it was killed."""
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
            return tuple(reasons(problem))
        if isinstance(problem, Exception):
            return (problem,)
        assert problem is None, problem
        ending: Ending = self._main.result()
        return ending.problems

    def die(self) -> None:
        """Kill the process: from now on nothing that it does has an effect."""
        if not self.dead:
            self.dead = True
            self.resume()
            self.log.abandon()
            # Called later, because a task that is cancelled from inside itself would run on to its next await.
            asyncio.get_running_loop().call_soon(self._bury)

    def step(self, where: str) -> None:
        """A point where the process may die. Raises `Died` when it does, or already has."""
        if not self.dead and self._dies(where):
            self.die()
        if self.dead:
            raise Died(where)
        if self.worker is not None and self.worker.sender.incarnation is not None:
            self.incarnations.add(self.worker.sender.incarnation)

    def polled(self, reader: SimulatedReader, records: Sequence[Record]) -> None:
        """Check the records that its reader is about to return."""
        driver = None if self.worker is None else self.worker.driver
        if driver is None or driver._reader is not reader:
            return
        looked = driver._recheck.done and not driver._recheck.waits_for
        if wrong := self._buffered.polled(driver.joiner, records, looked=looked):
            self.problems.append(wrong)
        self._looked.polled(reader, driver.joiner, records)

    def fetched(self, reader: SimulatedReader, partition: int) -> None:
        """Note that its reader has fetched from the present leader: earlier losses there can be noticed from now on."""
        if self.worker is not None and self.worker.driver._reader is reader:
            self._epochs_met[partition] = self._cluster.epochs[partition]

    @property
    def met(self) -> frozenset[int]:
        """The numbers of the losses that this process can have noticed, because it has read from the leader that had them.

        A loss does not count while its partition has lost its leader again before it could be compared: the other partitions need not wait
        for it (R10).
        """
        epochs = self._epochs_met
        recheck = None if self.worker is None else self.worker.driver._recheck
        waiting = recheck.waits_for if recheck is not None and recheck.done else frozenset()
        return frozenset(
            [
                damage.number
                for damage in self._cluster.damages
                if epochs.get(damage.partition, -1) >= damage.epoch and damage.partition not in waiting
            ]
        )

    @property
    def interrupted(self) -> bool:
        """True if its reader has seen an interruption, perhaps before it returned from its poll."""
        reader = None if self.worker is None else self.worker.driver._reader
        return isinstance(reader, SimulatedReader) and bool(reader.interruptions)

    # ---- pauses ----

    @property
    def loop(self) -> SimulatedLoop:
        """The event loop that runs it."""
        loop = self._cluster.loop
        assert isinstance(loop, SimulatedLoop)
        return loop

    def pause(self) -> None:
        """Suspend all its tasks, as SIGSTOP does."""
        if not self.dead and not self.loop.is_paused(self.name):
            self.paused_s.append(self.loop.time())
            self.loop.pause(self.name)

    def resume(self) -> None:
        """Continue its tasks; the process is not notified."""
        if self.loop.is_paused(self.name) and len(self.paused_s) % 2:
            self.paused_s.append(self.loop.time())
            self.loop.resume(self.name)

    def was_paused_since(self, at_s: float) -> bool:
        """Returns whether it was paused at any time since then."""
        return bool(self.paused_s) and (len(self.paused_s) % 2 == 1 or self.paused_s[-1] >= at_s)

    def _bury(self) -> None:
        for answered in list(self._calls):
            if not answered.done():
                answered.set_result(None)
        if self._main is not None:
            self._main.cancel()

    async def _start(self) -> Worker:
        config = self._config
        genesis, log_id = await read_genesis(self.log)
        check_genesis(config, genesis)
        index = Index.over(
            SimulatedStore(self.disk, self.step),
            config.index_directory,
            notary_name=genesis.notary_name,
            log_identity=f"{self.log.identity} {log_id.hex()}",
            worker_name=config.worker.name,
        )
        self.worker = Worker(config, self.log, index, self._environment)
        self.worker.driver._applier = _Watched(self, index)
        return self.worker

    async def _ready(self, worker: Worker) -> None:
        pass

    # ---- HTTP ----

    async def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[bytes, bytes | None] | None = None) -> Answer | None:
        """Returns the answer to a call that has reached this process, None if it dies first. A header whose value is None is not sent."""
        if self.dead:
            return None
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        context = copy_context()
        context.run(HOST.set, self.name)
        self._calls.add(answered)
        answered.add_done_callback(self._calls.discard)
        asyncio.get_running_loop().call_soon(self._answer, method, path, body, headers or {}, answered, context=context)
        return await answered

    def _view(self) -> View | None:
        joiner = None if self.worker is None else self.worker.driver.joiner
        return joiner.history.view if joiner is not None and joiner.history.seen else None

    def applied(self, ready: Ready) -> None:
        """Check a step that the process has just applied."""
        assert self.worker is not None
        reader = self.worker.driver._reader
        assert isinstance(reader, SimulatedReader)
        if wrong := self._looked.applied(reader, ready):
            self.problems.append(wrong)
        self._restore_joiner(self.worker.driver.joiner)
        agreement = self.worker.index.agreement
        for name in agreement.votes.incarnations if agreement.in_disagreement else ():
            incarnation, size = agreement.outvoted.get(name, (-1, 0))
            if agreement.votes.incarnations[name] == incarnation and agreement.votes.size >= size:
                self.problems.append(f"a vote of {name} that was outvoted at {size} decisions opens a root disagreement again")

    def _restore_joiner(self, joiner: Joiner) -> None:
        """Now and then, compare the joiner with one that is restored from its snapshot, and have it go on from that snapshot."""
        self._applied += 1
        if self._applied % STEPS_PER_SNAPSHOT:
            return
        if differ := restored(joiner, self._restored):
            self.problems.append(f"a joiner restored from a snapshot differs in {', '.join(differ)}")
        joiner.restore(self._restored.snapshot())

    def _check_answer(self, path: str) -> None:
        """Check that the process may answer this path now.

        It must not answer during a root disagreement or while it is quarantined (R9), nor admit a submission while its clock is wrong by
        years (R6).
        """
        reader = None if self.worker is None else self.worker.driver._reader
        if path.startswith(DECISION_PATHS) and (wrong := self._looked.answers(reader if isinstance(reader, SimulatedReader) else None)):
            self.problems.append(wrong)
        if path == "/v1/submissions" and self.wrong_clock():
            self.problems.append("it admits a submission while its clock is wrong by years")
        agreement = None if self.worker is None else self.worker.index.agreement
        if agreement is not None and (agreement.in_disagreement or agreement.quarantined) and path.startswith(DECISION_PATHS):
            self.problems.append(f"it answers {path}, and should not: {agreement.quarantined or agreement.votes.rendered()}")

    def _answer(
        self, method: str, path: str, body: bytes, headers: Mapping[bytes, bytes | None], answered: "asyncio.Future[Answer | None]"
    ) -> None:
        """Have the application answer the call as an HTTP connection would."""

        def respond(call: Call, answer: http.Answer, after_body: bool) -> None:
            status, answer_headers, returned = answer
            if status == 200:
                self._check_answer(target)
            if not answered.done():
                health = self._health() if status == 503 else ""
                answered.set_result(None if self.dead else Answer(status, dict(answer_headers), returned, health, self.met, self._view()))

        target, _, query = path.partition("?")
        all_headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(body), **headers}
        sent = [(name, value) for name, value in all_headers.items() if value is not None]
        call = Call(method, target, query.encode(), sent, respond)
        with contextlib.suppress(Died):
            self._app.take(call)
            if call.reader is not None:
                call.reader.piece(body)
            if call.reader is not None and not answered.done():
                call.reader.complete()

    def _health(self) -> str:
        """Returns the text of `/readyz?verbose` now; the application answers that at once."""
        returned: list[bytes] = []
        self._app.take(Call("GET", "/readyz", b"verbose", [], lambda call, answer, after_body: returned.append(answer[2])))
        return b"".join(returned).decode()
