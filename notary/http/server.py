"""Connections on one port: taken in as they come, counted, watched, and ended in order."""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

from notary.http.call import Application
from notary.http.connection import Connection
from notary.http.machine import ConnectionState, seconds_of
from notary.http.settings import HttpSettings
from notary.tls import Certificates
from ordering.errors import ConfigurationError, NotaryError, Overloaded

logger = logging.getLogger("notary.http")

ACCEPTED_AT_ONCE = 128
PAUSE_S = 0.5
LOOKS: Final = 8
"""Of a deadline: so often it is looked whether a connection is past one."""
LOOK_S_MAX: Final = 1.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG = 2048
READ_TURN_S = 0.004
"""The time in one turn of the loop for the bytes of connections without an admitted submission; a thousand may have some at once."""
BUSY_S = 1.0
"""So long a port may be busy: intake processes of a worker that was killed end moments after it, and it may be started again at once."""


class Server:
    """One application on one port."""

    def __init__(
        self,
        application: Application,
        listening: socket.socket,
        *,
        settings: HttpSettings | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        """With `certificates` it speaks TLS, and follows their files while it serves."""
        self.application = application
        self.settings = settings or HttpSettings()
        self.seconds = tuple([seconds_of(self.settings, state) for state in ConnectionState])
        self.paused = False
        self.ends = False
        self._read_until_s: float | None = None  # None: this turn of the loop has read nothing yet
        self._to_read: dict[str, deque[Connection]] = {}
        """The connections with bytes that wait for a turn, by address, in the order of the addresses' turns."""
        self.connections: set[Connection] = set()
        self._addresses: defaultdict[str, int] = defaultdict(int)
        self._connections_max = self.settings.connections_max
        self._per_address_max = self.settings.connections_per_address_max
        self._socket = listening
        self._certificates = certificates
        self._acceptor: _Acceptor | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._look_s = min(LOOK_S_MAX, min(self.seconds) / LOOKS)
        self._empty = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return url_of(self._socket, tls=self._certificates is not None)

    async def start(self) -> None:
        """Return when connections are taken."""
        loop = asyncio.get_running_loop()
        self._acceptor = _Acceptor(
            loop,
            self._socket,
            lambda: Connection(self),
            self._certificates,
            handshakes_max=self._connections_max,
            handshake_s_max=self.settings.head_s,
        )
        if self._certificates is not None:
            self._following = loop.create_task(self._certificates.follow())

    async def stop(self, seconds_max: float) -> None:
        """Take no more connections, let the answers on their way leave, end.

        A call may be on its way on a connection that is idle here. So for a moment each call is still answered, as the last one of its
        connection; only then idle connections are closed. The client would otherwise see its call fail without an answer.
        """
        if self._acceptor is not None:
            self._acceptor.close()
        if self._following is not None:
            self._following.cancel()
        self.ends = True
        self._empty.clear()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self.settings.last_call_s)
        for connection in list(self.connections):
            connection.stop()
        if self.connections:
            self._look_s = min(self._look_s, self.settings.goodbye_s / LOOKS)
            self._look()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds_max)
            except TimeoutError:
                logger.warning("connections=%d had not ended after %g s", len(self.connections), seconds_max)
                for connection in list(self.connections):
                    connection.abort()
        if self._looking is not None:
            self._looking.cancel()
        self._socket.close()

    def may_read(self) -> bool:
        """As `Host` describes it."""
        now_s = time.perf_counter()
        if self._read_until_s is None:
            self._begin_turn(now_s)
        assert self._read_until_s is not None
        return now_s < self._read_until_s and not self._to_read

    def read_later(self, connection: Connection) -> None:
        """As `Host` describes it."""
        self._to_read.setdefault(_network(connection.address), deque()).append(connection)

    def _begin_turn(self, now_s: float) -> None:
        self._read_until_s = now_s + READ_TURN_S
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Read connections that waited, one of each address in turn; at least one."""
        self._read_until_s = None
        until_s = time.perf_counter() + READ_TURN_S
        while self._to_read:
            address, connections = next(iter(self._to_read.items()))
            del self._to_read[address]
            connection = connections.popleft()
            if connections:
                self._to_read[address] = connections
            connection.go_on()
            if (now_s := time.perf_counter()) > until_s:
                break
        if self._to_read:
            self._begin_turn(now_s)

    def pause(self) -> None:
        """Read no more calls."""
        self.paused = True

    def go_on(self) -> None:
        """Read calls again."""
        self.paused = False
        for connection in list(self.connections):
            connection.go_on()

    def opened(self, connection: Connection) -> NotaryError | None:
        """Count a connection; return what it is answered with when there are too many."""
        self.connections.add(connection)
        network = _network(connection.address)
        self._addresses[network] += 1
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(self._look_s, self._look)
        if len(self.connections) > self._connections_max:
            return Overloaded(f"{self._connections_max} connections are open already: come again later", 1)
        if 0 < self._per_address_max < self._addresses[network]:
            return Overloaded(
                f"{self._per_address_max} connections from {connection.address} are open already: use those, or come again later", 1
            )
        return None

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        network = _network(connection.address)
        self._addresses[network] -= 1
        if not self._addresses[network]:
            del self._addresses[network]
        if not self.connections:
            self._empty.set()

    def _look(self) -> None:
        """End what has taken too long. One timer for all: setting one for each step of each call costs more than looking at all of them."""
        if self._looking is not None:
            self._looking.cancel()
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in list(self.connections):
            connection.look(now_s)
        self._looking = loop.call_later(self._look_s, self._look) if self.connections else None


class _Acceptor:
    """Takes connections in from one socket, as many as wait: uvloop takes one a turn of the loop, and under load turns are long."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        protocol: Callable[[], Connection],
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
            protocol.stop()  # the server has looked for connections to end, and this was none yet

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
            protocol.stop()  # as above; what came with the end of the handshake is answered first

    def _pause(self, problem: OSError) -> None:
        logger.error("no connection can be taken: %s", problem)
        self._loop.remove_reader(self._listening)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)


def _network(address: str) -> str:
    """The part of a client's address that it cannot choose: of IPv6 the first 64 bits, of IPv4 all."""
    if ":" not in address or "." in address:
        return address.rpartition(":")[2]
    return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8].hex()


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
