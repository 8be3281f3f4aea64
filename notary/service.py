"""A worker's service from start to end: wait for the log, serve calls, answer the admitted submissions, stop.

    no log yet -> started -> ready -> stopping (SIGTERM, or a fatal error) -> detached

The code is the same for a process that listens on a port and for a simulated one: `start` makes the worker, and the `App`s answer calls.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import msgspec

from notary.http.app import App
from notary.worker import Worker
from ordering.errors import Fatal, NotaryError, NotReady

logger = logging.getLogger("notary.serve")

LOG_RETRY_S = 1.0
ANSWERS_LEAVE_S = 1.0


class Ending(msgspec.Struct, frozen=True):
    """The end of a service; `problems` holds the fatal errors that ended it, if any."""

    problems: tuple[Exception, ...] = ()

    @property
    def failed(self) -> bool:
        """True if a fatal error ended the service."""
        return bool(self.problems)


async def serve_until(
    apps: Sequence[App],
    start: Callable[[], Awaitable[Worker]],
    stop: asyncio.Event,
    when_started: Callable[[Worker], Coroutine[None, None, None]],
) -> Ending:
    """Serve until `stop` is set or the worker ends. `when_started` runs as a concurrent task once the worker has started.

    If `start` raises `NotReady`, it is called again every `LOG_RETRY_S`. Any other error of `start` is raised.
    """
    stopping = asyncio.create_task(stop.wait())
    try:
        worker = await _until_started(apps, start, stopping)
        if worker is None:
            return Ending()
        try:
            for app in apps:
                app.attach(worker)
            return await _until_stopped(worker, apps, stopping, when_started)
        finally:
            try:
                worker.close()
            finally:
                await worker.log.close()
    finally:
        stopping.cancel()


async def _until_started(apps: Sequence[App], start: Callable[[], Awaitable[Worker]], stopping: asyncio.Task[bool]) -> Worker | None:
    """Returns a worker once the log can be reached; None if `stopping` is done first."""
    reported = ""
    while not stopping.done():
        try:
            return await start()
        except NotReady as problem:
            for app in apps:
                app.starting("the log cannot be reached yet")
            if str(problem) != reported and not stopping.done():
                reported = str(problem)
                logger.warning("the log cannot be reached yet, trying every %g s: %s", LOG_RETRY_S, problem)
        await asyncio.wait([stopping], timeout=LOG_RETRY_S)
    return None


async def _until_stopped(
    worker: Worker, apps: Sequence[App], stopping: asyncio.Task[bool], when_started: Callable[[Worker], Coroutine[None, None, None]]
) -> Ending:
    running = asyncio.create_task(worker.run())
    beside = asyncio.create_task(when_started(worker))
    problems: tuple[Exception, ...] = ()
    try:
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        for app in apps:
            app.stopping()
        if not running.done():
            logger.info("stopping: answering the admitted submissions requests=%d", worker.sender.queue.pending_requests)
            await asyncio.wait(
                [running, asyncio.create_task(worker.sender.queue.drain())],
                timeout=worker.config.service.drain_s_max,
                return_when=asyncio.FIRST_COMPLETED,
            )
            await _idle(apps)
    finally:
        # Calls that still wait (the drain took too long, or this worker must not answer any more) get "outcome unknown".
        for app in apps:
            app.detach()
        await _idle(apps)
        beside.cancel()
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            pass
        except ExceptionGroup as group:
            problems = tuple(reasons(group))
            for problem in problems:
                if isinstance(problem, Fatal):
                    logger.error("stopped: %s code=%s", problem, problem.code)
                elif isinstance(problem, NotaryError):
                    logger.error("stopped: %s", problem)
                else:
                    logger.error("stopped by an unexpected error: %r", problem, exc_info=problem)
    if worker.index.agreement.quarantined:
        # The process stays up and reports the reason until a signal ends it: restarts by a supervisor would only fail again.
        for app in apps:
            app.detach(worker.serving_suspended() or "")
        await asyncio.wait([stopping])
    return Ending(problems)


async def _idle(apps: Sequence[App]) -> None:
    """Wait until the calls that can be answered now are answered, at most `ANSWERS_LEAVE_S`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWERS_LEAVE_S):
            for app in apps:
                await app.idle()


def reasons(group: ExceptionGroup) -> list[Exception]:
    """Returns the exceptions of nested groups, as one list. Several tasks may end for the same `NotaryError`: it is listed once.

    Bugs are all listed: two with the same text may have different tracebacks.
    """
    found: list[Exception] = []
    known: set[tuple[type[Exception], str]] = set()
    for problem in group.exceptions:
        for each in reasons(problem) if isinstance(problem, ExceptionGroup) else [problem]:
            if not isinstance(each, NotaryError) or (type(each), str(each)) not in known:
                found.append(each)
            known.add((type(each), str(each)))
    return found
