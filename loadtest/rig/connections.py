"""A minimal HTTP client: one connection, one call at a time, and only the HTTP that this service uses: a head with Content-Length, a body.

It is minimal because the load takes CPU time from a worker on the same machine.
"""

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, cast
from urllib.parse import urlsplit

import msgspec

from loadtest.rig.latencies import Percentiles, percentiles_of
from loadtest.rig.signing import Made

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE).search

REJECTED = (503, 429)
"""Status codes of rejections: nothing was admitted, and Retry-After gives the time to retry."""


class Caller(Protocol):
    """The owner of a connection, which gets its answers."""

    def answered(self, connection: "ClientConnection", answer: bytes) -> None:
        """Handle a complete answer, head and body. The connection is free again."""
        ...

    def lost(self, connection: "ClientConnection", why: str) -> None:
        """Handle the end of the connection; `why` is empty unless a call was unanswered."""
        ...


class ClientConnection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._buffer = b""
        self._length = -1
        self._transport: asyncio.Transport
        self._problem = ""
        self.waiting = False
        """True while a call has no answer yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for `call`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has the same interface

    def call(self, data: bytes) -> None:
        """Send a complete call."""
        self.waiting = True
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Returns whether either side has closed the connection."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Collect one complete answer and pass it to the caller."""
        buffer = self._buffer + data if self._buffer else data
        if self._length < 0:
            head_end = buffer.find(b"\r\n\r\n")
            if head_end < 0:
                self._buffer = buffer
                return
            found = _LENGTH(buffer, 0, head_end)
            if found is None:
                self._problem = "an answer without Content-Length, which this client does not read"
                self._transport.abort()
                return
            self._length = head_end + 4 + int(found[1])
        if len(buffer) < self._length:
            self._buffer = buffer
            return
        self._buffer, self._length, self.waiting = b"", -1, False
        self._caller.answered(self, buffer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to the caller."""
        why = f"connection lost with a submission unanswered: {self._problem or exc or 'closed by the service'}" if self.waiting else ""
        self.waiting = False
        self._caller.lost(self, why)


async def connect(url: str, make: Callable[[], ClientConnection]) -> ClientConnection:
    """Returns a connection to the service at that URL; for https, OpenSSL's own settings (SSL_CERT_FILE) define the trusted authorities."""
    address = urlsplit(url)
    trust = _trusted() if address.scheme == "https" else None
    host, port = address.hostname or "127.0.0.1", address.port or (443 if trust else 80)
    _, connection = await asyncio.get_running_loop().create_connection(make, host, port, ssl=trust)
    return connection


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


class Channel:
    """Calls to one URL, one at a time. After its connection ended, the next call needs a new one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answered_s = 0.0
        """The time at which the last byte of the last answer arrived, by `time.perf_counter`."""
        self._connection: ClientConnection | None = None
        self._answer: asyncio.Future[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, and no side has closed it."""
        return self._connection is not None and not self._connection.is_closing()

    async def open(self) -> None:
        """Connect. Raises `OSError`, or its kind `ConnectionResetError` if the service closes the connection at once."""
        self.close()
        self._connection = await connect(self.url, lambda: ClientConnection(self))

    async def call(self, data: bytes) -> bytes:
        """Send a complete call; returns the complete answer. Raises `ConnectionResetError` if the connection ends before it."""
        connection = self._connection
        if connection is None or connection.is_closing():
            raise ConnectionResetError("the service has closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        connection.call(data)
        return await self._answer

    def close(self) -> None:
        """Close the connection; a call without an answer gets none."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Read the clock, and pass the answer to `call`."""
        self.answered_s = time.perf_counter()
        # Without a call it is a rejection of the connection itself, which closes next.
        if connection is self._connection and self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def lost(self, connection: ClientConnection, why: str) -> None:
        """End the call, unless another connection has it by now."""
        if connection is self._connection and self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(why or "the service has closed the connection"))


def head_of(url: str, *, receipts: bool = True) -> bytes:
    """Returns the head of a submission's call, with `%d` in place of its length."""
    query = "" if receipts else "?receipts=false"
    host = urlsplit(url).netloc
    return f"POST /v1/submissions{query} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n".encode()


def body_of(answer: bytes) -> bytes:
    """Returns the body of an answer."""
    return answer[answer.index(b"\r\n\r\n") + 4 :]


def status_of(answer: bytes) -> int:
    """Returns the status of an answer."""
    return int(answer[9:12])


def retry_after_s(answer: bytes) -> int | None:
    """Returns the seconds in Retry-After, None if there is none."""
    found = _RETRY_AFTER(answer, 0, answer.find(b"\r\n\r\n"))
    return None if found is None else int(found[1])


# ---- clients that check Retry-After ----

# After a rejection, an impatient client retries all the time, and so measures when capacity was free. An obedient one retries after
# Retry-After.

AGAIN_S = 0.1


class ProbeResults(msgspec.Struct):
    """The results of all probes of a load."""

    waited_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The time from an impatient probe's first rejection until it was admitted."""
    waited_to_retry_after: Percentiles = msgspec.field(default_factory=Percentiles)
    """That time, as a multiple of the rejection's Retry-After value."""
    waiting: int = 0
    """The number of impatient probes not yet admitted at the end."""
    obedient_returns: int = 0
    """The number of times that obedient probes returned after the Retry-After time."""
    obedient_admitted: int = 0
    """The number of those returns that were admitted."""
    decided: int = 0
    """The number of their submissions that were decided in the steady part."""


class Probe:
    """A client that retries after a rejection, and measures the time until it is admitted."""

    def __init__(self, url: str, head: bytes, pool: deque[Made], answered: Callable[[Made, bytes], None], *, obedient: bool) -> None:
        """It takes its submissions from `pool`. An obedient one waits for Retry-After, an impatient one retries every `AGAIN_S`.

        `answered`: called with each submission that was not rejected, and its answer.
        """
        self._channel = Channel(url)
        self._head = head
        self._pool = pool
        self._answered = answered
        self.obedient = obedient
        self.waits: list[tuple[float, float]] = []
        """(seconds of the first Retry-After, seconds until admission), for submissions rejected at first."""
        self.returns: list[bool] = []
        """For each retry: True if it was admitted."""
        self.waiting = False
        """True while its submission is rejected and not admitted since."""

    async def run(self, begins_after_s: float = 0.0) -> None:
        """Send submissions until cancelled."""
        await asyncio.sleep(begins_after_s)
        while self._pool:
            made = self._pool.popleft()
            first_s, since_s = None, 0.0
            while True:
                try:
                    if not self._channel.is_open:
                        await self._channel.open()
                    sent_s = time.perf_counter()
                    answer = await self._channel.call(self._head % len(made.body) + made.body)
                except OSError:  # there is no connection, or it ended before the answer
                    await asyncio.sleep(AGAIN_S)
                    continue
                retry_s = retry_after_s(answer)
                rejected = status_of(answer) in REJECTED and retry_s is not None
                if self.waiting:
                    self.returns.append(not rejected)
                self.waiting = rejected
                if retry_s is None or not rejected:
                    self._answered(made, answer)
                    break
                if first_s is None:
                    first_s, since_s = retry_s, self._channel.answered_s
                await asyncio.sleep(retry_s if self.obedient else AGAIN_S)
            if first_s is not None:
                # The wait ends when the admitted attempt was sent: it does not include the time for the decision.
                self.waits.append((first_s, sent_s - since_s))


def results_of(probes: Sequence[Probe], decided: int) -> ProbeResults:
    """Returns the sum of what the probes measured; `decided` as in `ProbeResults`."""
    impatient, obedient = [[probe for probe in probes if probe.obedient == which] for which in (False, True)]
    waits = [wait for probe in impatient for wait in probe.waits]
    returns = [admitted for probe in obedient for admitted in probe.returns]
    return ProbeResults(
        percentiles_of([waited_s for _, waited_s in waits]),
        percentiles_of([waited_s / after_s for after_s, waited_s in waits if after_s]),
        len([probe for probe in impatient if probe.waiting]),
        len(returns),
        sum(returns),
        decided,
    )
