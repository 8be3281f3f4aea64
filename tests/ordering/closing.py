"""Closes a log at the end of a test, after the readers and writers that the test has opened on it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from ordering.log import Log

LogT = TypeVar("LogT", bound=Log)


@asynccontextmanager
async def closing(log: LogT) -> AsyncIterator[LogT]:
    """Yields the log; closes all that was opened on it, the last first, and then the log."""
    async with AsyncExitStack() as opened:
        opened.push_async_callback(log.close)

        def kept(open_: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def open_and_keep(*arguments: Any) -> Any:
                made = await open_(*arguments)
                opened.push_async_callback(made.close)
                return made

            return open_and_keep

        own: Any = log
        own.open_writer, own.open_reader = kept(log.open_writer), kept(log.open_reader)
        yield log
