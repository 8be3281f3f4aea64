"""Connections on one port: accepted, counted, checked against their deadlines, and closed in order."""

import asyncio
import contextlib
import errno
import logging
import math
import socket
import time
from collections import Counter
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from notary.duty_cycle import DutyCycle
from notary.http.call import Answer, Application
from notary.http.connection import Connection
from notary.http.lanes import ClientKey, ClientLanes
from notary.http.machine import GIVES_WAY, ConnectionState, seconds_of
from notary.http.problems import problem_of
from notary.http.settings import HttpSettings
from notary.http.writing import encoded
from notary.tls import Certificates
from ordering.errors import ConfigurationError, NotReady, Overloaded

logger = logging.getLogger("notary.http")

ACCEPT_TURN_S = 0.0003
"""The time in one active slice of the loop (`DutyCycle`) in which connections are accepted, and those above a limit rejected."""
PAUSE_S = 0.5
"""The time for which no connection is accepted after the process ran out of descriptors or memory."""
REJECTED_BYTES: Final = 64 << 10
"""The number of bytes that are read from a rejected connection before it is closed."""
UNREAD_BYTES_MAX: Final = 64 << 20
"""The limit for the bytes of answers in memory that clients do not read. It is checked with the deadlines."""
NEW_CLIENTS_PART: Final = 8
"""One in this many of all places, rounded up, is for connections without an admitted submission, before those of parties. As many
connections that end with the answer to their call may be open beyond all places."""
PARTIES_S: Final = 0.05
"""The time for which a list of all connections of parties is used. To make it of 2,000 connections takes about a millisecond."""
CHECKS_A_DEADLINE: Final = 8
"""The number of checks for connections past their deadline, within the shortest deadline."""
CHECK_S_MAX: Final = 1.0
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG = 2048
CONNECT_S = 0.0001
"""The time that the event loop takes to make a connection of an accepted socket."""
HANDSHAKE_S = 0.0005
"""The same with TLS. The handshake takes place in later turns, so its time also counts in the active slice that begins it."""
BUSY_S = 1.0
"""The time that `bind` waits for a busy port. A worker may restart at once after a kill, before its old acceptor processes have ended."""


class Server:
    """One application on one port."""

    def __init__(
        self,
        application: Application,
        listening: socket.socket,
        *,
        settings: HttpSettings | None = None,
        certificates: Certificates | None = None,
        duty: DutyCycle | None = None,
    ) -> None:
        """With `certificates` it speaks TLS, and reads changed certificate files while it serves. It serves unauthenticated clients only in
        the active slices of `duty`.
        """
        self.application = application
        self.settings = settings or HttpSettings()
        self.seconds = tuple([seconds_of(self.settings, state) for state in ConnectionState])
        self.duty = duty or DutyCycle(time.perf_counter)
        self.lanes = ClientLanes(self.duty)
        self.paused = False
        self._paused_since_s = 0.0
        """The time at which `paused` was set."""
        self.ends = False
        self.connections: set[Connection] = set()
        self._connections_max = connections_max = self.settings.connections_max
        self._per_address_max = self.settings.connections_per_address_max
        self._addresses: dict[str, _Address] = {}
        self._largest: list[tuple[int, str]] | None = None
        """A heap of (negative count, address), the address with the most connections first. It exists for one turn of the loop. Each change
        of a count adds an entry, and the earlier entries of that address are out of date.
        """
        self._new_clients_max = math.ceil(connections_max / NEW_CLIENTS_PART)
        self._of_parties: list[tuple[int, list[Connection]]] | None = None
        """For each party its weight and its connections, each list with the oldest of an address first. It exists for `PARTIES_S`, or until
        one of them closes.
        """
        self._last_answers: set[Connection] = set()
        """Connections that are counted no longer, and end with the answer to their call."""
        self.weight_of: Callable[[bytes], int] = lambda party: 1
        """Returns the weight of a party, by its name in UTF-8; 0 if it is not registered. The application sets it."""
        self._count = 0
        """The connections of all addresses, from their acceptance on."""
        self._too_many, self._too_many_of_address = [
            problem_of(Overloaded(f"{count} connections{whose} are open already: {what}", 1))
            for count, whose, what in (
                (connections_max, "", "retry later"),
                (self._per_address_max, " from your address", "reuse them, or retry later"),
            )
        ]
        self._place_taken = Overloaded(f"{connections_max} connections are open already, most of them from your address: retry later", 1)
        self._share_exceeded = Overloaded(
            f"{connections_max} connections are open already, and your party has more than its share of them: retry later", 1
        )
        self._socket = listening
        self._url = url_of(listening, tls=certificates is not None)
        self._certificates = certificates
        self._listener: _Listener | None = None
        self._next_check: asyncio.TimerHandle | None = None
        self._check_s = min(CHECK_S_MAX, min(self.seconds) / CHECKS_A_DEADLINE)
        self._empty = asyncio.Event()
        self._following_certificates: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL at which clients reach this server."""
        return self._url

    async def start(self) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._listener = _Listener(self, loop, self._socket, self._certificates)
        if self._certificates is not None:
            self._following_certificates = loop.create_task(self._certificates.follow())

    async def stop(self, seconds_max: float) -> None:
        """Accept no more connections, send the answers under way, then close all connections.

        A client may just have sent a call on a connection that is idle here. If the server closed this connection, the call would fail
        without an answer. So for a moment (`last_call_s`) each call is still answered, as the last one of its connection. Then idle
        connections are closed.
        """
        if self._listener is not None:
            self._listener.close()
        if self._following_certificates is not None:
            self._following_certificates.cancel()
        self.ends = self.lanes.ends = True
        self._empty.clear()
        if not self._is_empty():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self.settings.last_call_s)
        if self._listener is not None:
            self._listener.end()
        for connection in list(self.connections):
            connection.stop()
        if self.connections:
            self._check_s = min(self._check_s, self.settings.goodbye_s / CHECKS_A_DEADLINE)
            self._check()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds_max)
            except TimeoutError:
                logger.warning(
                    "connections still open after the drain deadline connections=%d after_s=%g", len(self.connections), seconds_max
                )
                for connection in list(self.connections):
                    connection.abort()
        self.lanes.stop()
        if self._next_check is not None:
            self._next_check.cancel()
        self._socket.close()

    def pause(self) -> None:
        """Read no more calls."""
        if not self.paused:
            self.paused, self._paused_since_s = True, asyncio.get_running_loop().time()

    def go_on(self) -> None:
        """Read calls again."""
        if self.paused:
            self.paused = False
            paused_s = asyncio.get_running_loop().time() - self._paused_since_s
            for connection in list(self.connections):
                connection.postpone(paused_s)
                connection.go_on()  # it may pause again

    def admit(self, network: str) -> Answer | None:
        """Count a connection from its acceptance on; returns the rejection instead if it exceeds a limit.

        Above the limit for all addresses, the new connection replaces one of the address with the most, or of a party with more than its
        share. So an address with few connections can still connect.
        """
        counted = self._addresses.get(network)
        own_count = 0 if counted is None else counted.count
        if 0 < self._per_address_max <= own_count:
            return self._too_many_of_address
        if self._count >= self._connections_max and not (self._make_place(own_count) or self._make_place_of_party(own_count)):
            return self._too_many
        if counted is None:
            counted = self._addresses[network] = _Address()
        self._count_more(network, counted, 1)
        return None

    def _count_more(self, network: str, counted: "_Address", connections: int) -> None:
        counted.count += connections
        self._count += connections
        if self._largest is not None:
            heappush(self._largest, (-counted.count, network))

    def _make_place(self, own_count: int) -> bool:
        """End a connection without an admitted submission, of the address with the most connections.

        Returns False if none may end at an address with more than `own_count` + 1.
        """
        if self._largest is None:
            asyncio.get_running_loop().call_soon(self._forget_largest)
            self._largest = [(-each.count, network) for network, each in self._addresses.items()]
            heapify(self._largest)
        while self._largest and -self._largest[0][0] > own_count + 1:
            count, network = heappop(self._largest)
            most = self._addresses.get(network)
            if most is None or most.count != -count:
                continue
            if most.accepted:
                next(iter(most.accepted)).give_up()
                return True
            for connection in list(most.connections):
                if not connection.parties and connection.give_way(self._place_taken):
                    self._forget(connection)
                    return True
        return False

    def _make_place_of_party(self, own_count: int) -> bool:
        """End a connection of the party that has the most by weight, while unauthenticated connections have less than their part.

        Parties have more than the rest then, and that party has more than its share of it. Returns False for an address that has that part
        by itself: its clients cost no look at all connections.
        """
        if own_count >= self._new_clients_max:
            return False
        if self._of_parties is None:
            asyncio.get_running_loop().call_later(PARTIES_S, self._forget_parties)
            self._of_parties = self._connections_of_parties()
        if self._count - sum([len(connections) for _, connections in self._of_parties]) >= self._new_clients_max:
            return False
        _, connections = max(self._of_parties, key=lambda each: len(each[1]) / each[0])
        connection = min(connections, key=lambda each: GIVES_WAY.index(each.state))
        if not connection.give_way(self._share_exceeded):  # it has a submission that is being decided
            if len(self._last_answers) >= self._new_clients_max:
                return False
            connection.stop()
            self._last_answers.add(connection)
        connections.remove(connection)
        self._forget(connection)
        return True

    def _connections_of_parties(self) -> list[tuple[int, list[Connection]]]:
        """Returns (weight, connections) for each party. Connections with several parties are a proxy's: its address has their weights."""
        by_lane: dict[str, list[Connection]] = {}
        for each in self._addresses.values():
            for connection in each.connections:
                if connection.parties:
                    by_lane.setdefault(connection.client.lane, []).append(connection)
        weights = [sum(map(self.weight_of, set().union(*[each.parties for each in lane]))) for lane in by_lane.values()]
        return [(max(1, weight), lane) for weight, lane in zip(weights, by_lane.values(), strict=True)]

    def _forget_largest(self) -> None:
        self._largest = None

    def _forget_parties(self) -> None:
        self._of_parties = None

    def release(self, network: str) -> None:
        """Stop counting an admitted connection."""
        counted = self._addresses[network]
        self._count_more(network, counted, -1)
        if not counted.count:
            del self._addresses[network]

    def add_accepted(self, accepted: "_AcceptedSocket", network: str) -> None:
        """Register an admitted socket, until `remove_accepted`."""
        self._addresses[network].accepted[accepted] = None

    def remove_accepted(self, accepted: "_AcceptedSocket", network: str) -> None:
        """Forget an admitted socket: a connection was made of it, or will not be."""
        if (counted := self._addresses.get(network)) is not None:  # the connection may be closed already
            counted.accepted.pop(accepted, None)

    def _forget(self, connection: Connection) -> None:
        counted = self._addresses.get(connection.network)
        if counted is not None and counted.connections.pop(connection, False) is None:
            self.release(connection.network)

    def opened(self, connection: Connection) -> None:
        """Register an admitted connection, now that it is made."""
        self.connections.add(connection)
        self._addresses[connection.network].connections[connection] = None
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().call_later(self._check_s, self._check)

    def closed(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.connections.discard(connection)
        self._last_answers.discard(connection)
        if connection.parties:  # strangers that connect and leave must not cost a new list each time
            self._of_parties = None
        self._forget(connection)
        self.wake_stop_if_empty()

    def _is_empty(self) -> bool:
        """Returns True if no connection is open or being made."""
        return not self.connections and (self._listener is None or self._listener.is_idle)

    def wake_stop_if_empty(self) -> None:
        """Wake `stop` if no connection is left. Called when one is closed, or could not be made."""
        if self._is_empty():
            self._empty.set()

    def _check(self) -> None:
        """End connections past their deadline. One timer for all costs less than one for each step of each call."""
        if self._next_check is not None:
            self._next_check.cancel()
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in list(self.connections):
            try:
                connection.check(now_s)
            except Exception:  # a bug in one connection must not keep the others without deadlines
                logger.exception("a connection could not be checked")
                connection.abort()
        self._bound_unread()
        self._next_check = loop.call_later(self._check_s, self._check) if self.connections else None

    def _bound_unread(self) -> None:
        """While clients leave more than `UNREAD_BYTES_MAX` unread, end connections: first those of the address with the most.

        Connections of parties end last.
        """
        unread = {connection: connection.unread_bytes for connection in self.connections if connection.unread_bytes}
        total = sum(unread.values())
        if total <= UNREAD_BYTES_MAX:
            return
        by_address: Counter[str] = Counter()
        for connection, size in unread.items():
            by_address[connection.network] += size
        for connection in sorted(unread, key=lambda each: (bool(each.parties), -by_address[each.network], -unread[each])):
            connection.abort()
            if (total := total - unread[connection]) <= UNREAD_BYTES_MAX:
                return


class _Address:
    """The connections from one address."""

    __slots__ = ("accepted", "connections", "count")

    def __init__(self) -> None:
        self.connections: dict[Connection, None] = {}
        """In the order in which they were made."""
        self.accepted: dict[_AcceptedSocket, None] = {}
        """The accepted sockets that are no connection yet, in the order in which they were accepted."""
        self.count = 0
        """The number of connections and accepted sockets."""


class _AcceptedSocket:
    """An accepted socket, until a connection is made of it in the turn of its address. With TLS, a handshake comes first."""

    def __init__(
        self,
        server: Server,
        connection: socket.socket,
        network: str,
        certificates: Certificates | None,
        ended: "Callable[[_AcceptedSocket], None]",
    ) -> None:
        """`ended` is called once: when the connection is made, or will not be made."""
        self._server, self._socket, self._network = server, connection, network
        self._certificates = certificates
        self._ended = ended
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        server.add_accepted(self, network)

    def start(self, waited_s: float = 0.0) -> None:
        """Make the connection."""
        if not self._is_over:
            if self._certificates is None:
                self._server.lanes.charge(CONNECT_S)
            else:
                self._server.lanes.charge(HANDSHAKE_S)
                self._server.duty.charge(HANDSHAKE_S)
            self._task = asyncio.get_running_loop().create_task(self._make())

    def give_up(self) -> None:
        """Close the socket, and release its place at once."""
        self._end()
        if self._connection is None:  # not started: a task that has not begun would not close it
            self._socket.close()
        if self._task is not None:
            self._task.cancel()

    def _connected(self) -> Connection:
        self._connection = Connection(self._server, self._network, self._hand_over_place)
        return self._connection

    def _hand_over_place(self) -> bool:
        """The connection is made, and has the place from now on. Returns False if the place was lost before."""
        if self._is_over:
            return False
        self._end()
        return True

    async def _make(self) -> None:
        certificates = self._certificates
        handshake: dict[str, Any] = (
            {} if certificates is None else {"ssl": certificates.context, "ssl_handshake_timeout": self._server.settings.head_s}
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._connected, self._socket, **handshake)
        except asyncio.CancelledError:
            self._socket.close()
            raise
        except OSError as problem:
            self._socket.close()
            if certificates is not None:
                certificates.handshake_failed(problem)
        finally:
            self._end()
            self._connection = None  # which has this object

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._server.remove_accepted(self, self._network)
        self._ended(self)
        if self._connection is None or not self._connection.is_connected:
            self._server.release(self._network)
            self._server.wake_stop_if_empty()


class _Listener:
    """Accepts connections from one socket, many in a turn of the loop. uvloop would accept one a turn, and under load turns are long.

    A socket beyond the limits is rejected here, which costs little. Making a connection of an accepted socket costs more, so it waits for
    the turn of its address (`ClientLanes`). A client that opens a thousand connections a second delays only itself.
    """

    def __init__(
        self, server: Server, loop: asyncio.AbstractEventLoop, listening: socket.socket, certificates: Certificates | None
    ) -> None:
        self._server = server
        self._certificates = certificates
        self._loop = loop
        self._listening = listening
        self._accepted: set[_AcceptedSocket] = set()
        self._closed = self._paused = False
        listening.setblocking(False)
        loop.add_reader(listening, self._accept)

    @property
    def is_idle(self) -> bool:
        """True if no accepted connection is still to be made."""
        return not self._accepted

    def close(self) -> None:
        """Accept the connections that wait, then close the socket. Later clients are rejected at once, not reset after a wait."""
        self._loop.remove_reader(self._listening)
        for _ in range(BACKLOG):
            if self._paused or not self._accept_next():
                break
        self._closed = True
        self._listening.close()

    def end(self) -> None:
        """End handshakes that are under way, and sockets that wait for their turn."""
        for accepted in list(self._accepted):
            accepted.give_up()

    def _accept(self) -> None:
        if not self._server.duty.is_active():
            self._loop.remove_reader(self._listening)
            self._server.duty.call(self._accept_again)
        else:
            self._accept_some()

    def _accept_some(self) -> None:
        until_s = time.perf_counter() + ACCEPT_TURN_S
        while self._accept_next() and time.perf_counter() < until_s:
            pass

    def _accept_next(self) -> bool:
        """Accept or reject a connection. Returns False if none waits, or no more can be accepted."""
        server = self._server
        try:
            connection, peer = self._listening.accept()
        except BlockingIOError:
            return False
        except OSError as problem:  # the client is gone again, or there are no more descriptors
            if problem.errno in _NO_DESCRIPTORS:
                self._pause(problem)
                return False
            return True
        network = network_of(peer[0])
        if (rejection := server.admit(network)) is not None:
            self._reject(connection, rejection)
            return True
        accepted = _AcceptedSocket(server, connection, network, self._certificates, self._accepted.discard)
        self._accepted.add(accepted)
        if server.lanes.may_go(client := ClientKey(network)):
            accepted.start()
        else:
            server.lanes.wait(client, accepted.start)
        return True

    def _reject(self, connection: socket.socket, answer: Answer) -> None:
        with connection, contextlib.suppress(OSError):
            if self._certificates is None:
                connection.send(encoded(answer, keep_alive=False), socket.MSG_DONTWAIT)
                # A close while bytes wait sends a reset, which may cost the client its answer.
                connection.recv(REJECTED_BYTES, socket.MSG_DONTWAIT)
            else:  # before a handshake no answer can be sent
                self._certificates.handshake_failed(ConnectionAbortedError("too many connections are open"))

    def _pause(self, problem: OSError) -> None:
        logger.warning("connections cannot be accepted: %s", problem)
        self._paused = True
        self._loop.remove_reader(self._listening)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self._accept_again()

    def _accept_again(self) -> None:
        if not (self._closed or self._paused):
            self._loop.add_reader(self._listening, self._accept)
            self._accept_some()  # at once: the loop calls the reader only in its next turn


def network_of(address: str) -> str:
    """Returns the part of a client's address that the client cannot choose: the first 64 bits of IPv6, all of IPv4."""
    if ":" not in address or "." in address:
        return address.rpartition(":")[2]
    return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])[:8].hex()


def url_of(listening: socket.socket, *, tls: bool = False) -> str:
    """Returns the URL at which clients reach a listening socket."""
    host, port = listening.getsockname()[:2]
    return ("https" if tls else "http") + (f"://[{host}]:{port}" if ":" in host else f"://{host}:{port}")


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a socket that listens at `host` and `port`; port 0 takes a free one. Raises `ConfigurationError` if it cannot listen.

    Raises `NotReady` if the name has no address, or this machine does not have the address: when it starts, its network may not be up yet.

    `shared`: other processes of this user may listen there too, if all of them share (`SO_REUSEPORT`). Connections are spread over them.
    """
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            return _listening(host, port, shared=shared)
        except (OSError, UnicodeError) as problem:  # the host's name may not be a valid name
            if getattr(problem, "errno", None) == errno.EADDRINUSE and time.monotonic() < until_s:
                time.sleep(0.02)
                continue
            what = f"cannot listen on {host}:{port}: {getattr(problem, 'strerror', None) or problem}"
            raise NotReady(what) if _may_be_temporary(problem) else ConfigurationError(what) from None


def _may_be_temporary(problem: Exception) -> bool:
    if isinstance(problem, socket.gaierror):
        return problem.errno in (socket.EAI_AGAIN, socket.EAI_NONAME)
    return isinstance(problem, OSError) and problem.errno == errno.EADDRNOTAVAIL


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
