"""uvicorn, started and stopped from inside a running loop, on a socket of its own, taking connections in as they come."""

import asyncio
import contextlib
import errno
import functools
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from notary.http.answers import Answer
from notary.http.protocol import PatientProtocol
from notary.tls import Certificates
from ordering.errors import ConfigurationError

log = logging.getLogger("notary.http")

ACCEPTED_AT_ONCE = 128
PAUSE_S = 0.5
GOODBYE_S = 1.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG = 2048
BUSY_S = 1.0
"""So long a port may be busy: intake processes of a worker that was killed end moments after it, and it may be started again at once."""


class Server:
    """One application on one port."""

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        *,
        connections_max: int = 2_000,
        head_s_max: float = 10.0,
        keep_alive_s: float = 75.0,
        refusal: Callable[[bytes, bytes], Answer | None] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """With `certificates` it speaks TLS, and follows their files while it serves."""
        self._socket = listening
        self._certificates = certificates

        class Protocol(PatientProtocol):
            pass

        Protocol.connections_max = connections_max
        Protocol.head_s_max = head_s_max
        if refusal is not None:
            Protocol.refusal = staticmethod(refusal)
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, math.ceil(keep_alive_s)),
            backlog=BACKLOG,
        )
        self._server = _QuietServer(config, certificates)
        self._serving: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return url_of(self._socket, tls=self._certificates is not None)

    async def start(self) -> None:
        """Return when connections are taken."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.005)
        if self._certificates is not None:
            self._following = asyncio.create_task(self._certificates.follow())

    async def stop(self, seconds_max: float) -> None:
        """Take no more connections, let the answers on their way leave, end."""
        self._server.config.timeout_graceful_shutdown = max(1, int(seconds_max))
        self._server.should_exit = True
        if self._following is not None:
            self._following.cancel()
        if self._serving is not None:
            await self._serving
        self._socket.close()


class _Acceptor:
    """Takes connections in from one socket, as many as wait: uvloop takes one a turn of the loop, and under load turns are long."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        protocol: Callable[[], PatientProtocol],
        certificates: Certificates | None,
        *,
        handshakes_max: int,
        handshake_s_max: float,
    ) -> None:
        self._certificates = certificates
        self._handshakes_max = handshakes_max
        self._handshake_s_max = handshake_s_max
        self._loop = loop
        self._listening = listening
        self._protocol = protocol
        self._connecting: set[asyncio.Task[Any]] = set()
        self._closed = False
        listening.setblocking(False)
        loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Take no more in."""
        self._closed = True
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """As a server of asyncio has it; `close` leaves nothing to wait for."""

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as problem:  # the client is gone again, or there are no more descriptors
                if problem.errno in _NO_DESCRIPTORS:
                    self._pause(problem)
                    return
                continue
            if self._certificates is None:
                made = self._connect(connection)
            elif len(self._connecting) < self._handshakes_max:
                made = self._connect_tls(connection, self._certificates)
            else:
                connection.close()  # before a handshake there is no way to say `overloaded`
                self._certificates.handshake_failed(ConnectionAbortedError("too many handshakes are under way"))
                continue
            connecting = self._loop.create_task(made)
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            _, protocol = await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()
            return
        if self._closed:
            protocol.shutdown()  # the server has looked for connections to end, and this was none yet

    async def _connect_tls(self, connection: socket.socket, certificates: Certificates) -> None:
        protocol = self._protocol()
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=certificates.context, ssl_handshake_timeout=self._handshake_s_max
            )
        except OSError as problem:
            connection.close()
            certificates.handshake_failed(problem)
            return
        if self._closed:
            protocol.shutdown()  # as above; what came with the end of the handshake is answered first

    def _pause(self, problem: OSError) -> None:
        log.error("no connection can be taken: %s", problem)
        self._loop.remove_reader(self._listening)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)


class _QuietServer(uvicorn.Server):
    """Signals are the command's affair, not the server's, and connections are taken in as they come."""

    def __init__(self, config: uvicorn.Config, certificates: Certificates | None) -> None:
        super().__init__(config)
        self._certificates = certificates

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections in."""
        config, loop = self.config, asyncio.get_running_loop()
        made: Any = config.http_protocol_class
        protocol = functools.partial(made, config=config, server_state=self.server_state, app_state={})
        self.servers = [
            _Acceptor(loop, listening, protocol, self._certificates, handshakes_max=made.connections_max, handshake_s_max=made.head_s_max)  # type: ignore[misc]
            for listening in sockets or []
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what is under way end, and hang up on clients that do not answer TLS's goodbye: idle ones do not read."""
        hanging_up = asyncio.create_task(self._hang_up()) if self._certificates is not None else None
        try:
            await super().shutdown(sockets)
        finally:
            if hanging_up is not None:
                hanging_up.cancel()

    async def _hang_up(self) -> None:
        closing: set[Any] = set()
        while True:
            await asyncio.sleep(GOODBYE_S)
            before, closing = closing, {each for each in self.server_state.connections if each.transport.is_closing()}
            for connection in before & closing:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def url_of(listening: socket.socket, *, tls: bool = False) -> str:
    """Where clients reach a socket that listens."""
    host, port = listening.getsockname()[:2]
    return ("https" if tls else "http") + (f"://[{host}]:{port}" if ":" in host else f"://{host}:{port}")


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that listens there, on a free port for 0; `ConfigurationError` when it cannot.

    Shared, others of this user may listen there as well, if they all share; connections are then spread over them.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            return _listening(host, port, shared=shared)
        except (OSError, UnicodeError) as problem:  # a host's name may be none that can be looked up
            if getattr(problem, "errno", None) == errno.EADDRINUSE and time.monotonic() < until_s:
                time.sleep(0.02)
                continue
            why = getattr(problem, "strerror", None) or problem
            raise ConfigurationError(f"cannot listen on {host}:{port}: {why}") from None


def _listening(host: str, port: int, *, shared: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind(address)
        # Two sockets may bind one port until one of them listens: only then is it surely ours.
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
