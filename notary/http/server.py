"""Connections on one port: taken in as they come, counted, watched, and ended in order."""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from notary.http.call import Answer, Application
from notary.http.connection import Connection
from notary.http.machine import ConnectionState, seconds_of
from notary.http.problems import problem_of
from notary.http.settings import HttpSettings
from notary.http.writing import encoded
from notary.tls import Certificates
from ordering.errors import ConfigurationError, Overloaded

logger = logging.getLogger("notary.http")

ACCEPTED_AT_ONCE = 128
PAUSE_S = 0.5
REFUSED_BYTES: Final = 64 << 10
LOOKS: Final = 8
"""The server looks for connections past their deadline this many times in the shortest deadline."""
LOOK_S_MAX: Final = 1.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG = 2048
READ_TURN_S = 0.002
"""The time in one turn of the loop for connections without an admitted submission, new ones too; a thousand may have bytes at once."""
PROVEN_TURN_S = 0.006
"""The same for connections with one: their bytes are read at once as long as it lasts."""
CONNECT_S = 0.0001
"""The time in which the event loop makes a connection of a socket."""
SLICE_S = 0.0005
"""The time after which another address has its turn."""
BACKLOGGED_PART: Final = 0.05
"""The part of the time in which clients of backlogged lanes are read. Most of what they send is refused, at the others' cost."""
UNREAD_S_MAX: Final = 1.0
"""Those that have waited for so long are read at any cost: each client learns when to send again."""
HELD_S: Final = 0.002
"""So often the server looks whether backlogged lanes have time again, if nothing else is to be read."""
BUSY_S = 1.0
"""So long a port may be busy: intake processes of a worker that was killed end moments after it, and it may be started again at once."""


class _Waiting(NamedTuple):
    """Something that is done for a client when it is its turn."""

    since_s: float
    do: Callable[[], None]


_Line: TypeAlias = OrderedDict[str, deque[_Waiting]]


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
        self.is_backlogged: Callable[[str], bool] = lambda lane: False
        """Returns True if submissions of this lane wait long for the application: more that are read are refused. It is set."""
        self.paused = False
        self.ends = False
        self._read_until_s: float | None = None  # None: this turn of the loop has read nothing yet
        self._slice_until_s = 0.0
        self._line: _Line = OrderedDict()
        """The connections that wait for a turn, to be read or to be made, by address, in the order of the addresses' turns."""
        self._proven_line: _Line = OrderedDict()
        """The connections of proven clients that wait to be read, by party; by address if several parties were admitted on one."""
        self._refusing_s = 0.0
        """The time left for backlogged lanes. It grows by a part of the time that passes."""
        self._counted_s = 0.0
        """The time up to which it has grown."""
        self._held: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()
        self._connections_max = connections_max = self.settings.connections_max
        self._per_address_max = self.settings.connections_per_address_max
        self._addresses: dict[str, _Address] = {}
        self._most: _Address | None = None
        """The address with the most connections, if that was looked for in this turn of the loop."""
        self._count = 0
        """The connections of all addresses, from their acceptance on."""
        self._too_many, self._too_many_of_address = [
            problem_of(Overloaded(f"{count} connections{whose} are open already: {what}", 1))
            for count, whose, what in (
                (connections_max, "", "come again later"),
                (self._per_address_max, " from your address", "use those, or come again later"),
            )
        ]
        self._gives_way = Overloaded(f"{connections_max} connections are open already, most of them from your address: come again later", 1)
        self._socket = listening
        self._url = url_of(listening, tls=certificates is not None)
        self._certificates = certificates
        self._acceptor: _Acceptor | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._look_s = min(LOOK_S_MAX, min(self.seconds) / LOOKS)
        self._empty = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self._url

    async def start(self) -> None:
        """Return when connections are taken."""
        loop = asyncio.get_running_loop()
        self._acceptor = _Acceptor(self, loop, self._socket, self._certificates)
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
        if not self._is_empty():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self.settings.last_call_s)
        if self._acceptor is not None:
            self._acceptor.end()
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
        for timer in (self._looking, self._held):
            if timer is not None:
                timer.cancel()
        self._socket.close()

    def may_read(self, *, lane: str = "") -> bool:
        """As `Host` describes it."""
        now_s = time.perf_counter()
        if self._read_until_s is None:
            self._begin_turn(now_s)
        assert self._read_until_s is not None
        if now_s > self._read_until_s + (PROVEN_TURN_S - READ_TURN_S if lane else 0):
            return False
        if (lane in self._proven_line or self.is_backlogged(lane)) if lane else self._line:
            return False
        self._slice_until_s = now_s + SLICE_S
        return True

    def slice_is_over(self) -> bool:
        """As `Host` describes it."""
        return time.perf_counter() > self._slice_until_s

    def read_later(self, connection: Connection) -> None:
        """As `Host` describes it."""
        if lane := connection.lane:
            self._line_up(self._proven_line, lane, connection.read)
        else:
            self.line_up(connection.network, connection.read)

    def charge(self, seconds: float) -> None:
        """Count work of a client that is done in the next turn as if it was done in this one."""
        assert self._read_until_s is not None, "called by what was given a turn"
        self._read_until_s -= seconds

    def line_up(self, network: str, do: Callable[[], None]) -> None:
        """Do something for a client when it is the turn of its address."""
        self._line_up(self._line, network, do)

    def _line_up(self, line: "_Line", lane: str, do: Callable[[], None]) -> None:
        now_s = time.perf_counter()
        line.setdefault(lane, deque()).append(_Waiting(now_s, do))
        if self._read_until_s is None:
            self._begin_turn(now_s)

    def _begin_turn(self, now_s: float) -> None:
        self._read_until_s = now_s + READ_TURN_S
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Take up what waits, a slice of time for each party or address in turn; at least one thing."""
        self._most = None
        now_s = time.perf_counter()
        self._refusing_s = min(self._refusing_s + (now_s - self._counted_s) * BACKLOGGED_PART, SLICE_S)
        self._counted_s = now_s
        held = 0
        try:
            held = self._take_up(self._proven_line, PROVEN_TURN_S - READ_TURN_S)
            self._take_up(self._line, READ_TURN_S)
        finally:  # a bug in one of them must not keep the others from their turns
            self._read_until_s = None
            if self._line or len(self._proven_line) > held:
                self._begin_turn(time.perf_counter())
            elif held and self._held is None:
                self._held = asyncio.get_running_loop().call_later(HELD_S, self._look_at_held)

    def _look_at_held(self) -> None:
        self._held = None
        if self._proven_line and self._read_until_s is None:
            self._begin_turn(time.perf_counter())

    def _take_up(self, line: "_Line", seconds: float) -> int:
        """Returns the number of backlogged lanes that wait for time of theirs."""
        now_s = time.perf_counter()
        until_s = self._read_until_s = now_s + seconds
        lanes, held = deque(line), 0
        while lanes and now_s <= until_s:
            lane = lanes.popleft()
            waiting, from_s = line[lane], now_s
            # A server that stops reads all that has come: it is about to close the connections.
            is_backlogged = line is self._proven_line and not self.ends and self.is_backlogged(lane)
            if is_backlogged and self._refusing_s <= 0 and now_s - waiting[0].since_s < UNREAD_S_MAX:
                held += 1
                continue
            self._slice_until_s = now_s + SLICE_S
            slice_until_s = min(self._slice_until_s, until_s)
            try:
                for _ in range(len(waiting)):  # what comes into the line meanwhile has its turn later
                    waiting.popleft().do()
                    now_s = time.perf_counter() + (until_s - self._read_until_s)  # later by what was charged
                    if now_s > slice_until_s:
                        break
            finally:
                if is_backlogged:
                    self._refusing_s -= now_s - from_s
                if waiting:
                    line.move_to_end(lane)
                    lanes.append(lane)
                else:
                    del line[lane]
        return held

    def pause(self) -> None:
        """Read no more calls."""
        self.paused = True

    def go_on(self) -> None:
        """Read calls again."""
        self.paused = False
        for connection in list(self.connections):
            connection.go_on()

    def admit(self, network: str) -> Answer | None:
        """Count a connection from its acceptance on; returns the answer to one too many instead.

        One too many for all takes the place of a connection of the address that has the most, so that an address with few gets in.
        """
        counted = self._addresses.get(network)
        mine = 0 if counted is None else counted.count
        if 0 < self._per_address_max <= mine:
            return self._too_many_of_address
        if self._count >= self._connections_max and not self._make_place(mine):
            return self._too_many
        if counted is None:
            counted = self._addresses[network] = _Address()
        counted.count += 1
        self._count += 1
        return None

    def _make_place(self, mine: int) -> bool:
        """End a connection of the address with the most; returns False if there is none to end."""
        most = self._most = self._most or max(self._addresses.values(), key=_count_of)
        if most.count > mine + 1:
            for connection in list(most.connections):
                if connection.give_way(self._gives_way):
                    self._forget(connection)
                    return True
        return False

    def release(self, network: str) -> None:
        """An admitted connection is counted no more."""
        counted = self._addresses[network]
        counted.count -= 1
        self._count -= 1
        if not counted.count:
            del self._addresses[network]

    def _forget(self, connection: Connection) -> None:
        counted = self._addresses.get(connection.network)
        if counted is not None and counted.connections.pop(connection, False) is None:
            self.release(connection.network)

    def opened(self, connection: Connection) -> None:
        """An admitted connection is there."""
        self.connections.add(connection)
        self._addresses[connection.network].connections[connection] = None
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(self._look_s, self._look)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self._forget(connection)
        self.look_whether_empty()

    def _is_empty(self) -> bool:
        """Returns True if no connection is open, or about to be."""
        return not self.connections and (self._acceptor is None or self._acceptor.is_idle)

    def look_whether_empty(self) -> None:
        """A connection is gone, or was not made."""
        if self._is_empty():
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


class _Address:
    """The connections from one address."""

    __slots__ = ("connections", "count")

    def __init__(self) -> None:
        self.connections: dict[Connection, None] = {}
        """In the order in which they were made."""
        self.count = 0
        """The number of these, and of those that are accepted and not made yet."""


_count_of = attrgetter("count")


class _Acceptor:
    """Accepts connections from one socket, as many as wait: uvloop takes one a turn of the loop, and under load turns are long.

    One too many is refused here, which costs little. To make a connection of the others costs more, so they wait for the turns of their
    addresses (`Server.line_up`): a client that opens a thousand a second delays itself.
    """

    def __init__(
        self, server: Server, loop: asyncio.AbstractEventLoop, listening: socket.socket, certificates: Certificates | None
    ) -> None:
        self._server = server
        self._certificates = certificates
        self._loop = loop
        self._listening = listening
        self._in_line: set[socket.socket] = set()
        self.connecting: set[asyncio.Task[Any]] = set()
        """Connections that are being made: with TLS, those whose handshake is under way."""
        self._closed = self._paused = False
        listening.setblocking(False)
        loop.add_reader(listening, self._accept)

    @property
    def is_idle(self) -> bool:
        """True if no accepted connection is still to be made."""
        return not self.connecting and not self._in_line

    def close(self) -> None:
        """Take in what has connected so far, and nothing more: from now on connections are refused, and none waits to be reset."""
        self._loop.remove_reader(self._listening)
        for _ in range(BACKLOG // ACCEPTED_AT_ONCE):
            if not self._paused:
                self._accept()
        self._closed = True
        self._listening.close()

    def end(self) -> None:
        """End the handshakes that are under way still, and what still waits."""
        for connecting in self.connecting:
            connecting.cancel()
        while self._in_line:
            self._in_line.pop().close()

    def _accept(self) -> None:
        server = self._server
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as problem:  # the client is gone again, or there are no more descriptors
                if problem.errno in _NO_DESCRIPTORS:
                    self._pause(problem)
                    return
                continue
            network = network_of(peer[0])
            if (refusal := server.admit(network)) is not None:
                self._refuse(connection, refusal)
                continue
            self._in_line.add(connection)
            if server.may_read():
                self._connect(connection, network)
            else:
                server.line_up(network, partial(self._connect, connection, network))

    def _refuse(self, connection: socket.socket, answer: Answer) -> None:
        with connection, contextlib.suppress(OSError):
            if self._certificates is None:
                connection.send(encoded(answer, keep_alive=False), socket.MSG_DONTWAIT)
                connection.recv(REFUSED_BYTES, socket.MSG_DONTWAIT)  # what is not read when it is closed may cost the client its answer
            else:  # before a handshake there is no way to say `overloaded`
                self._certificates.handshake_failed(ConnectionAbortedError("too many connections are open"))

    def _connect(self, connection: socket.socket, network: str) -> None:
        if connection not in self._in_line:
            return
        self._in_line.remove(connection)
        self._server.charge(CONNECT_S)
        connecting = self._loop.create_task(self._made(connection, network))
        self.connecting.add(connecting)
        connecting.add_done_callback(self._connected)

    def _connected(self, connecting: "asyncio.Task[Any]") -> None:
        self.connecting.discard(connecting)
        self._server.look_whether_empty()

    async def _made(self, connection: socket.socket, network: str) -> None:
        certificates = self._certificates
        try:
            if certificates is None:
                await self._loop.connect_accepted_socket(lambda: Connection(self._server, network), connection)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: Connection(self._server, network),
                    connection,
                    ssl=certificates.context,
                    ssl_handshake_timeout=self._server.settings.head_s,
                )
        except asyncio.CancelledError:
            connection.close()
            raise
        except OSError as problem:
            connection.close()
            self._server.release(network)
            if certificates is not None:
                certificates.handshake_failed(problem)

    def _pause(self, problem: OSError) -> None:
        logger.error("connections cannot be accepted: %s", problem)
        self._paused = True
        self._loop.remove_reader(self._listening)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = False
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)


def network_of(address: str) -> str:
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
