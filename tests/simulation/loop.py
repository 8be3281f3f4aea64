"""An event loop without a world outside: time passes only when nothing can run, and then at once. The same run again is the same.

Two things make asyncio repeat itself: the clock is a number, and tasks hash by the order in which they were made, so that the sets of
tasks that asyncio keeps are walked in the same order in every process. (A library does the first: async-solipsism, under the GPL, and
with sockets, which are not needed here.)

A host can be paused, as SIGSTOP does: nothing that runs in its name runs until it is resumed. Its clocks go on.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

RESOLUTION_S = 1e-6
TURNS_MAX = 200_000
"""How often the loop may turn without time passing."""
HOST: ContextVar[str] = ContextVar("host", default="")
"""The process whose code runs: for log lines, and for pauses."""


class NothingToWaitFor(Exception):
    """Every task waits, and nothing will ever wake one."""


class TimeStandsStill(Exception):
    """Something runs again and again, and never waits."""


class NumberedTask(asyncio.Task[Any]):
    """A task with a hash that does not depend on where it lies in memory."""

    numbers = itertools.count()

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, loop: asyncio.AbstractEventLoop, **others: Any) -> None:
        self.number = next(self.numbers)
        super().__init__(coroutine, loop=loop, **others)

    def __hash__(self) -> int:
        return self.number


class _Clock:
    """Takes the place of a selector: there is nothing to select from, so waiting is letting time pass."""

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
    """A callback that waits while the host in whose name it runs is paused."""

    def _run(self) -> None:
        if not self._loop.holds_back(self):
            super()._run()


class _TimerHandle(asyncio.TimerHandle):
    """The same at a time."""

    def _run(self) -> None:
        if not self._loop.holds_back(self):
            super()._run()


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop. What another loop hands to threads is done at once, and its result comes `thread_s()` later."""

    def __init__(self, thread_s: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self._selector = _Clock()
        self._clock_resolution = RESOLUTION_S
        self._thread_s = thread_s
        self._paused: dict[str, list[asyncio.Handle]] = {}
        NumberedTask.numbers = itertools.count()
        self.set_task_factory(lambda loop, coroutine, **others: NumberedTask(coroutine, loop=loop, **others))

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._selector.now_s

    # ---- pauses ----

    def pause(self, host: str) -> None:
        """From now on nothing runs in the name of that host."""
        self._paused.setdefault(host, [])

    def resume(self, host: str) -> None:
        """Everything that was due meanwhile runs now, in its order."""
        self._ready.extend(self._paused.pop(host, ()))

    def is_paused(self, host: str) -> bool:
        """Whether nothing runs in its name."""
        return host in self._paused

    def holds_back(self, handle: asyncio.Handle) -> bool:
        """Whether a callback that is due waits because its host is paused."""
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
        """Run it at that time."""
        self._check_closed()
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """Run it after so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    # ---- threads ----

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Do it now; tell the result later."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            result = func(*args)
        except Exception as problem:
            # Else the lambda would have no `problem` any more when it runs.
            failed = problem
            self.call_later(self._thread_s(), lambda: done.done() or done.set_exception(failed))
        else:
            self.call_later(self._thread_s(), lambda: done.done() or done.set_result(result))
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
