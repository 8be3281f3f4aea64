"""An application from its start to its end: the worker that it serves, the calls under way, and the path of every answer."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from joiner import Ready
from notary.duty_cycle import DutyCycle
from notary.gate import SHUTTING_DOWN
from notary.http.call import TEXT, Answer, Call
from notary.http.lanes import WaitingLanes
from notary.http.problems import problem_of
from notary.http.readers import Readers
from notary.http.turns import AnswerBacklog, Turns
from notary.metrics import Metrics
from notary.worker import Worker
from ordering.errors import Fatal, NotaryError, NotReady
from ordering.ids import TransactionId, excerpt

logger = logging.getLogger("notary.http")

BUG: Final[Answer] = (500, TEXT, b"Internal Server Error\n")
NOBODY: Final[Answer] = (202, TEXT, b"")
"""The answer for a client that has left. It goes as far as the acceptor process, which then forgets the call."""


class Waiting(Protocol):
    """A call that waits for a decision."""

    def end(self) -> None:
        """End the wait: answer the call with the decisions that are known."""
        ...


TICK_S: Final = 0.05
"""Waits that end within this time share a timer. One for each wait would take twice as long as parsing the head of its call."""
ENDS_A_TURN: Final = 100
"""The number of waits that end in one turn of the loop. Each takes a few microseconds, and thousands may share a timer."""


class Deadlines:
    """The ends of the waits of an application's calls."""

    def __init__(self) -> None:
        self._ticks: dict[int, tuple[dict[Waiting, None], asyncio.Handle]] = {}
        """By tick of the loop's clock: the waits that end in it, at least one, and their timer."""

    def end_after(self, wait_s: float, waiting: Waiting) -> int:
        """End a wait after `wait_s`, or up to `TICK_S` later. Returns the tick, for `forget`."""
        loop = asyncio.get_running_loop()
        tick = math.ceil((loop.time() + wait_s) / TICK_S)
        found = self._ticks.get(tick)
        if found is None:
            found = self._ticks[tick] = {}, loop.call_at(tick * TICK_S, self._end, tick)
        found[0][waiting] = None
        return tick

    def forget(self, tick: int, waiting: Waiting) -> None:
        """The wait has ended. Its tick has no timer once all its waits have: most end long before."""
        if (found := self._ticks.get(tick)) is not None:
            same, timer = found
            same.pop(waiting, None)
            if not same:
                timer.cancel()
                del self._ticks[tick]

    def _end(self, tick: int) -> None:
        same, _ = self._ticks[tick]
        self._ticks[tick] = same, asyncio.get_running_loop().call_soon(self._end, tick)  # for those that do not end in this turn
        for waiting in [*same][:ENDS_A_TURN]:
            self.forget(tick, waiting)  # even if a bug keeps it from ending
            waiting.end()


class AwaitedDecisions:
    """The calls that wait for a decision (long polls), by transaction. The driver passes each step that is durable to `applied`."""

    def __init__(self) -> None:
        self._waiting: dict[TransactionId, dict[Callable[[], None], None]] = {}

    def when_decided(self, transaction_id: TransactionId, call_back: Callable[[], None]) -> None:
        """Call `call_back` once, when a step decides the transaction on this worker."""
        self._waiting.setdefault(transaction_id, {})[call_back] = None

    def forget(self, transaction_id: TransactionId, call_back: Callable[[], None]) -> None:
        """Do not call `call_back` any more."""
        waiting = self._waiting.get(transaction_id, {})
        waiting.pop(call_back, None)
        if not waiting:
            self._waiting.pop(transaction_id, None)

    def applied(self, ready: Ready) -> None:
        """Call the call-backs of the transactions of this step."""
        if self._waiting:
            for batch in ready.batches:
                for request in batch.requests:
                    for decided in self._waiting.pop(request.transaction_id, ()):
                        decided()


class Lifecycle:
    """The lifecycle of one application. It serves a worker from `attach` to `detach`."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.worker: Worker | None = None
        """The worker that answers the calls; None before it has started and after it has ended."""
        self.no_worker = "this worker is starting"
        """The reason why `worker` is None."""
        self.ends = False
        """True when submissions will never be admitted again."""
        self.metrics: Metrics | None = None  # served even after the worker has ended
        self.readers: Readers | None = None
        self.waiting: set[Waiting] = set()
        self.waiting_lanes = WaitingLanes(lambda party: 1 if self.worker is None else self.worker.parties.weight_of(party.decode()))
        """The lanes of the submissions in `waiting`. A long poll is no work, and anyone may send one."""
        self.deadlines = Deadlines()
        self.awaited = AwaitedDecisions()
        self.long_polls = 0
        """The number of long polls in `waiting`."""
        self.long_polls_of: dict[str, dict[Waiting, None]] = {}
        """The long polls of each address, the oldest first."""
        self.duty = DutyCycle(clock_s, self.waiting_lanes.__bool__)
        """The active slices, in which unauthenticated clients are served too."""
        self.turns = Turns(lambda: self.worker is not None and self.worker.serving_suspended() is None, self.duty)
        self.unanswered = AnswerBacklog(clock_s)
        self.admission_changed: Callable[[], None] = lambda: None
        """Called when admission of submissions stops or resumes. `reason_to_reject` returns the present state."""
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def attach(self, worker: Worker) -> None:
        """Answer calls from this worker, from now on."""
        self.worker = worker
        self.metrics = worker.metrics
        worker.driver.observers.append(self.awaited.applied)
        self.readers = Readers.of(worker.config.http, worker.config.name, worker.parties, worker.clock_ms)

    def starting(self, why: str) -> None:
        """Set the reason that `/readyz` gives while there is no worker."""
        self.no_worker = why

    def stopping(self) -> None:
        """Admit no submission from now on. Admitted ones are still answered; incomplete bodies are rejected."""
        self.ends = True
        if self.worker is not None:
            self.worker.gate.stop()
        self.admission_changed()

    def detach(self, why: str = SHUTTING_DOWN) -> None:
        """The worker ends. Nothing is read from it from now on; waiting calls are answered without a decision."""
        worker, self.worker = self.worker, None
        self.ends = True
        self.no_worker = why
        if worker is not None:
            worker.gate.stop()
        for waiting in list(self.waiting):
            waiting.end()
        self.admission_changed()

    def reason_to_reject(self, ticket: bytes = b"") -> NotaryError | None:
        """Returns the reason why no submission is admitted now, of any party; None while submissions are admitted."""
        if self.worker is None:
            return NotReady(self.no_worker)
        return NotReady(SHUTTING_DOWN) if self.ends else self.worker.gate.reason_to_reject(ticket)

    def peek(self) -> NotaryError | None:
        """Returns the same as `reason_to_reject`, but counts no rejection (`Gate.peek`)."""
        if self.worker is None or self.ends:
            return self.reason_to_reject()
        return self.worker.gate.peek()

    async def idle(self) -> None:
        """Wait until all calls are answered."""
        await self._idle.wait()

    # ---- calls ----

    def began(self) -> None:
        """Count a call as under way."""
        if not self._under_way:
            self._idle.clear()
        self._under_way += 1

    def left(self) -> None:
        """Count a call as ended: it is answered, or its client has left."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def drop(self, call: Call) -> None:
        """End a call whose client has left."""
        call.answer(NOBODY)
        self.left()

    def answer(self, call: Call, route: str, answer: Answer, since_s: float | None = None, *, after_body: bool = False) -> None:
        """Count an answer, and send it."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "a call is answered method=%s path=%s status=%d network=%s",
                excerpt(call.method),
                excerpt(call.path, 300),
                answer[0],
                call.network,
            )
        if self.metrics is not None:
            seconds = None if since_s is None else time.perf_counter() - since_s
            self.metrics.answered(route or "unknown", answer[0], seconds)
        call.answer(answer, after_body=after_body)
        self.left()

    def reject(self, call: Call, route: str, problem: Exception, since_s: float | None = None) -> None:
        """Answer a call with its problem. An exception that is no `NotaryError` is a bug: 500."""
        if isinstance(problem, Fatal):
            self.give_up(problem)
            problem = NotReady(self.no_worker)
        if isinstance(problem, NotaryError):
            self.answer(call, route, problem_of(problem), since_s)
        else:
            logger.error("a call could not be answered", exc_info=problem)
            self.answer(call, route, BUG, since_s)

    def give_up(self, problem: Fatal) -> None:
        """The index has lost data: answer nothing from it any more, and stop the worker."""
        worker = self.worker
        self.detach()
        if worker is not None:
            worker.self_check.fail(problem)
