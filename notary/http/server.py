"""Connections on one port: checked against their deadlines, and closed in order."""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from functools import partial
from typing import Final

from notary.duty_cycle import DutyCycle
from notary.http.call import Application
from notary.http.connection import Connection
from notary.http.lanes import ClientLanes
from notary.http.listener import Listener, url_of
from notary.http.machine import ConnectionState, seconds_of
from notary.http.places import Places
from notary.http.settings import HttpSettings
from notary.tls import Certificates

logger = logging.getLogger("notary.http")

UNREAD_BYTES_MAX: Final = 64 << 20
"""The limit for the bytes of answers in memory that clients do not read. It is checked with the deadlines."""
CHECKS_A_DEADLINE: Final = 8
"""The number of checks for connections past their deadline, within the shortest deadline."""
CHECK_S_MAX: Final = 1.0


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
        self.places = Places(self.settings)
        self.paused = False
        self._paused_since_s = 0.0
        """The time at which `paused` was set."""
        self.ends = False
        self.connections: set[Connection] = set()
        self._socket = listening
        self._url = url_of(listening, tls=certificates is not None)
        self._certificates = certificates
        self._listener: Listener | None = None
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
        self._listener = Listener(
            self._socket,
            self.places,
            self.lanes,
            self.duty,
            certificates=self._certificates,
            handshake_s=self.settings.head_s,
            connect=partial(Connection, self),
            not_made=self._wake_stop_if_empty,
        )
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

    def opened(self, connection: Connection) -> None:
        """Register an admitted connection, now that it is made."""
        self.connections.add(connection)
        self.places.opened(connection)
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().call_later(self._check_s, self._check)

    def closed(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.connections.discard(connection)
        self.places.closed(connection)
        self._wake_stop_if_empty()

    def _is_empty(self) -> bool:
        """Returns True if no connection is open or being made."""
        return not self.connections and (self._listener is None or self._listener.is_idle)

    def _wake_stop_if_empty(self) -> None:
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
