"""uvicorn, with limits on a client's patience and on ours, started and stopped from inside a running loop.

uvicorn keeps connections, parses with httptools and applies backpressure; it bounds neither the size nor the time of a request's head, nor
the number of connections with an answer of our form. `PatientProtocol` adds these three.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from notary.http.problems import problem_of
from ordering.errors import ConfigurationError, Malformed, Overloaded

HEAD_BYTES_MAX = 32 << 10


class PatientProtocol(HttpToolsProtocol):
    """A connection whose heads are bounded in size and time."""

    connections_max = 2_000
    head_s_max = 10.0

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse one connection too many; give the others a time for their first head."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._end_with(*problem_of(Overloaded(f"{self.connections_max} connections are open already: come again later", 1)))
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head, and watch its time from the first byte on."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing() or not self._in_head:
            self._disarm()
        elif self._head_bytes > HEAD_BYTES_MAX:
            self._end_with(*problem_of(Malformed(f"the head of the request has more than {HEAD_BYTES_MAX} bytes")))
        elif self._head_timer is None and self._head_bytes:
            self._arm()

    def on_headers_complete(self) -> None:
        """The head is over."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes belong to another head."""
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets a problem document too."""
        self._end_with(*problem_of(Malformed("this is not a request of HTTP/1.1")))

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.head_s_max, self._head_too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._end_with(*problem_of(Malformed(f"the head of the request was not complete after {self.head_s_max:g} s")))

    def _end_with(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        lines = [b"HTTP/1.1 %d \r\n" % status]
        lines += [name + b": " + value + b"\r\n" for name, value in headers]
        lines += [b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body), body]
        self._disarm()
        self.transport.write(b"".join(lines))
        self.transport.close()


class Server:
    """One application on one port."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        connections_max: int = 2_000,
        head_s_max: float = 10.0,
        keep_alive_s: float = 75.0,
    ) -> None:
        self._socket = _bind(host, port)

        class Protocol(PatientProtocol):
            pass

        Protocol.connections_max = connections_max
        Protocol.head_s_max = head_s_max
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(keep_alive_s),
            backlog=2048,
        )
        self._server = _QuietServer(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Return when connections are taken."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.005)

    async def stop(self, seconds_max: float) -> None:
        """Take no more connections, let the answers on their way leave, end."""
        self._server.config.timeout_graceful_shutdown = max(1, int(seconds_max))
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()


class _QuietServer(uvicorn.Server):
    """Signals are the command's affair, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as problem:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {problem.strerror or problem}") from None
    return listening
