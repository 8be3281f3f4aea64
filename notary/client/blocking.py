"""The blocking client, for programs without an event loop.

It runs the asyncio client in its own thread, since a plain blocking client could not keep a deadline: a socket's timeout starts again with
every byte that arrives. It also works where a loop is running already, such as in a notebook, and threads may share it. It does not survive
a fork: create it in the child process.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from notary.client.answers import Answer, NotaryDescription, StateAnswer
from notary.client.client import LOOKUP_DEADLINE_S, SUBMISSION_DEADLINE_S, AsyncClient
from notary.client.requests import RequestLike
from notary.client.route import RetryPolicy
from notary.client.signer import Signer
from notary.client.transport import current_traceparent
from notary.client.trust import KnownNotaries

T = TypeVar("T")

_Started: TypeAlias = Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]


class Client:
    """The blocking form of `AsyncClient`, with the same arguments, guarantees and errors. It must be closed: use it with `with`."""

    def __init__(
        self,
        urls: Sequence[str],
        party: str = "",
        signer: Signer | None = None,
        *,
        notary_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        tls: SSLContext | None = None,
        verifier_keys: Sequence[str] | str = (),
        known_notaries: KnownNotaries | None = None,
    ) -> None:
        trust: dict[str, Any] = {"verifier_keys": verifier_keys, "known_notaries": known_notaries}
        self._client = AsyncClient(urls, party, signer, notary_name=notary_name, retry_policy=retry_policy, tls=tls, **trust)
        self._lock = threading.Lock()
        self._closed = False
        started: _Started = Future()
        # A daemon thread: a program that forgets to close the client can still exit.
        self._thread = threading.Thread(target=self._run, args=(started,), name="notary-client", daemon=True)
        self._thread.start()
        self._loop, self._stop = started.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread. Pending calls in other threads raise `CancelledError`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def submit(
        self,
        requests: Iterable[RequestLike],
        *,
        deadline_s: float = SUBMISSION_DEADLINE_S,
        receipts: bool = True,
        traceparent: str | None = None,
    ) -> list[Answer]:
        """Blocks as `AsyncClient.submit` awaits."""
        asked = list(requests)  # iterated here, not in the other thread: an iterable may only work in its own thread
        span = current_traceparent() if traceparent is None else traceparent  # read here: the current span belongs to this thread
        return self._call(lambda client: client.submit(asked, deadline_s=deadline_s, receipts=receipts, traceparent=span))

    def transaction(self, transaction_id: str | bytes, *, deadline_s: float = LOOKUP_DEADLINE_S, receipts: bool = True) -> Answer | None:
        """Blocks as `AsyncClient.transaction` awaits."""
        return self._call(lambda client: client.transaction(transaction_id, deadline_s=deadline_s, receipts=receipts))

    def state(self, state: str | bytes, *, deadline_s: float = LOOKUP_DEADLINE_S) -> StateAnswer:
        """Blocks as `AsyncClient.state` awaits."""
        return self._call(lambda client: client.state(state, deadline_s=deadline_s))

    def notary(self, *, deadline_s: float = LOOKUP_DEADLINE_S) -> NotaryDescription:
        """Blocks as `AsyncClient.notary` awaits."""
        return self._call(lambda client: client.notary(deadline_s=deadline_s))

    def notary_name(self, *, deadline_s: float = LOOKUP_DEADLINE_S) -> str:
        """Blocks as `AsyncClient.notary_name` awaits."""
        return self._call(lambda client: client.notary_name(deadline_s=deadline_s))

    def _call(self, ask: Callable[[AsyncClient], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await ask(self._client)

        # Hold the lock, so that no call is scheduled after the stop: the loop would never complete it.
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed; make another")
            future = asyncio.run_coroutine_threadsafe(asked(), self._loop)
        try:
            return future.result()
        finally:
            # On Ctrl-C, cancel the attempt too. This does nothing once the future is done.
            future.cancel()

    def _run(self, started: "_Started") -> None:
        try:
            asyncio.run(self._live(started))
        except Exception as problem:
            if started.done():
                raise
            started.set_exception(problem)  # the loop could not start: `__init__` must raise, not wait for ever

    async def _live(self, started: "_Started") -> None:
        """Keep the asyncio client open until `close`. Then `asyncio.run` cancels all pending calls."""
        stop = asyncio.Event()
        async with self._client:
            started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
