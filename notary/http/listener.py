"""The listening socket: connections are accepted, or rejected, and made in the turn of their address."""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from notary.duty_cycle import DutyCycle
from notary.http.call import Answer
from notary.http.connection import Connection
from notary.http.lanes import ClientKey, ClientLanes
from notary.http.places import Places
from notary.http.writing import encoded
from notary.tls import Certificates
from ordering.errors import ConfigurationError, NotReady

logger = logging.getLogger("notary.http")

ACCEPT_TURN_S = 0.0003
"""The time in one active slice of the loop (`DutyCycle`) in which connections are accepted, and those above a limit rejected."""
PAUSE_S = 0.5
"""The time for which no connection is accepted after the process ran out of descriptors or memory."""
REJECTED_BYTES: Final = 64 << 10
"""The number of bytes that are read from a rejected connection before it is closed."""
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BACKLOG = 2048
CONNECT_S = 0.0001
"""The time that the event loop takes to make a connection of an accepted socket."""
HANDSHAKE_S = 0.0005
"""The same with TLS. The handshake takes place in later turns, so its time also counts in the active slice that begins it."""
BUSY_S = 1.0
"""The time that `bind` waits for a busy port. A worker may restart at once after a kill, before its old acceptor processes have ended."""


class _Accepted:
    """An accepted socket, until a connection is made of it in the turn of its address. With TLS, a handshake comes first."""

    def __init__(self, listener: "Listener", connection: socket.socket, network: str) -> None:
        self._listener, self._socket, self._network = listener, connection, network
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        listener.places.add_accepted(self, network)

    def start(self, waited_s: float = 0.0) -> None:
        """Make the connection."""
        if not self._is_over:
            if self._listener.certificates is None:
                self._listener.lanes.charge(CONNECT_S)
            else:
                self._listener.lanes.charge(HANDSHAKE_S)
                self._listener.duty.charge(HANDSHAKE_S)
            self._task = asyncio.get_running_loop().create_task(self._make())

    def give_up(self) -> None:
        """Close the socket, and release its place at once."""
        self._end()
        if self._connection is None:  # not started: a task that has not begun would not close it
            self._socket.close()
        if self._task is not None:
            self._task.cancel()

    def _connected(self) -> Connection:
        self._connection = self._listener.connect(self._network, self._hand_over_place)
        return self._connection

    def _hand_over_place(self) -> bool:
        """The connection is made, and has the place from now on. Returns False if the place was lost before."""
        if self._is_over:
            return False
        self._end()
        return True

    async def _make(self) -> None:
        certificates = self._listener.certificates
        handshake: dict[str, Any] = (
            {} if certificates is None else {"ssl": certificates.context, "ssl_handshake_timeout": self._listener.handshake_s}
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
        self._listener.places.remove_accepted(self, self._network)
        self._listener.forget(self)
        if self._connection is None or not self._connection.is_connected:
            self._listener.places.release(self._network)
            self._listener.not_made()


class Listener:
    """Accepts connections from one socket, many in a turn of the loop. uvloop would accept one a turn, and under load turns are long.

    A socket beyond the limits is rejected here, which costs little. Making a connection of an accepted socket costs more, so it waits for
    the turn of its address (`ClientLanes`). A client that opens a thousand connections a second delays only itself.
    """

    def __init__(
        self,
        listening: socket.socket,
        places: Places,
        lanes: ClientLanes,
        duty: DutyCycle,
        *,
        certificates: Certificates | None,
        handshake_s: float,
        connect: Callable[[str, Callable[[], bool]], Connection],
        not_made: Callable[[], None],
    ) -> None:
        """`connect` returns a new connection from an address; its second argument is `Connection`'s `has_place`. `not_made` is called when
        no connection was made of an accepted socket. With `certificates` a client must shake hands within `handshake_s`.
        """
        self.places, self.lanes, self.duty = places, lanes, duty
        self.certificates = certificates
        self.handshake_s = handshake_s
        self.connect = connect
        self.not_made = not_made
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._accepted: set[_Accepted] = set()
        self._closed = self._paused = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

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

    def forget(self, accepted: _Accepted) -> None:
        """Forget an accepted socket: its connection is made, or will not be made."""
        self._accepted.discard(accepted)

    def _accept(self) -> None:
        if not self.duty.is_active():
            self._loop.remove_reader(self._listening)
            self.duty.call(self._accept_again)
        else:
            self._accept_some()

    def _accept_some(self) -> None:
        until_s = time.perf_counter() + ACCEPT_TURN_S
        while self._accept_next() and time.perf_counter() < until_s:
            pass

    def _accept_next(self) -> bool:
        """Accept or reject a connection. Returns False if none waits, or no more can be accepted."""
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
        if (rejection := self.places.take(network)) is not None:
            self._reject(connection, rejection)
            return True
        accepted = _Accepted(self, connection, network)
        self._accepted.add(accepted)
        if self.lanes.may_go(client := ClientKey(network)):
            accepted.start()
        else:
            self.lanes.wait(client, accepted.start)
        return True

    def _reject(self, connection: socket.socket, answer: Answer) -> None:
        with connection, contextlib.suppress(OSError):
            if self.certificates is None:
                connection.send(encoded(answer, keep_alive=False), socket.MSG_DONTWAIT)
                # A close while bytes wait sends a reset, which may cost the client its answer.
                connection.recv(REJECTED_BYTES, socket.MSG_DONTWAIT)
            else:  # before a handshake no answer can be sent
                self.certificates.handshake_failed(ConnectionAbortedError("too many connections are open"))

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
            if getattr(problem, "errno", None) == errno.EADDRINUSE:
                what += ". Stop the process that listens there, or give another port"
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
