"""A deterministic event loop: time passes only when nothing can run, and then at once. The same run again gives the same result.

Two things make runs repeatable: the clock is a number, and the hash of a task is its number in the order of creation. So asyncio iterates
over its sets of tasks in the same order in every process. (The library async-solipsism has such a clock, but it is under the GPL, and
supports sockets, which are not needed here.)

A host can be paused, as SIGSTOP does: none of its callbacks run until it is resumed. Its clocks go on.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

RESOLUTION_S = 1e-6
TURNS_MAX = 200_000
"""The number of turns that the loop may take without time passing."""
HOST: ContextVar[str] = ContextVar("host", default="")
"""The process whose code runs: log lines and pauses use it."""


class NothingToWaitFor(Exception):
    """Raised when every task waits and nothing will ever wake one."""


class TimeStandsStill(Exception):
    """Raised when the loop runs callbacks for ever without time passing."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash does not depend on its address in memory."""

    numbers = itertools.count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: asyncio.AbstractEventLoop, **others: Any) -> None:
        self.number = next(self.numbers)
        super().__init__(coroutine, loop=loop, **others)

    def __hash__(self) -> int:
        return self.number


class _Clock:
    """A stand-in for the selector: there are no file descriptors, so `select` only advances the clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingToWaitFor
        self._turns += 1
        if timeout > 0:
            self.now_s += max(timeout, RESOLUTION_S)
            self._turns = 0
        if self._turns > TURNS_MAX:
            self._turns = 0
            raise TimeStandsStill
        return []


class _Handle(asyncio.Handle):
    """A callback that is held back while its host is paused."""

    _loop: "SimulatedLoop"
    _context: Context

    def _run(self) -> None:
        if not self._loop.holds_back(self):
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    """A timer whose callback is held back while its host is paused."""

    _loop: "SimulatedLoop"
    _context: Context
    _scheduled: bool

    def _run(self) -> None:
        if not self._loop.holds_back(self):
            super()._run()


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop. Work for threads is done at once, and its result arrives `thread_s()` seconds later."""

    if TYPE_CHECKING:  # parts of asyncio's own loop
        _ready: deque[asyncio.Handle]
        _scheduled: list[asyncio.TimerHandle]

        def _check_closed(self) -> None: ...

    def __init__(self, thread_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self._selector = _Clock()
        self._clock_resolution = RESOLUTION_S
        self._thread_s = thread_s
        self._paused: dict[str, list[asyncio.Handle]] = {}
        NumberedTask.numbers = itertools.count()
        self.set_task_factory(lambda loop, coroutine, **others: NumberedTask(coroutine, loop=loop, **others))

    def time(self) -> float:
        """Returns the seconds since the simulation began."""
        return self._selector.now_s

    # ---- pauses ----

    def pause(self, host: str) -> None:
        """Hold back all callbacks of that host from now on."""
        self._paused.setdefault(host, [])

    def resume(self, host: str) -> None:
        """Run all callbacks of that host that came due meanwhile, in their order."""
        self._ready.extend(self._paused.pop(host, ()))

    def is_paused(self, host: str) -> bool:
        """Returns whether the callbacks of that host are held back."""
        return host in self._paused

    def holds_back(self, handle: "_Handle | _TimerHandle") -> bool:
        """Hold the callback back if its host is paused; returns whether it was held back."""
        if not self._paused:
            return False
        held = self._paused.get(handle._context.get(HOST, ""))
        if held is None:
            return False
        held.append(handle)
        return True

    def _call_soon(self, callback: Callable[..., Any], args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Schedule a callback at that time."""
        self._check_closed()
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Schedule a callback after this many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    # ---- threads ----

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Run the function now, and set its result or error on the future later."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            result = func(*args)
        except Exception as problem:
            # Python deletes `problem` when the except block ends, before the lambda runs.
            failed = problem
            self.call_later(self._thread_s(), lambda: done.done() or done.set_exception(failed))
        else:
            self.call_later(self._thread_s(), lambda: done.done() or done.set_result(result))
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
