"""The turns in which connections are made and read: how much in one turn of the event loop, whose first, and which of them wait.

Clients wait in one line for each party, if a submission of theirs was admitted on the connection, and else in one for each address. Each
line in turn has a slice of time. Proven clients have time of their own: those with an admitted submission on their connection, and those on
new connections from an address that had one lately, so that clients who come back are not behind strangers.

Submissions of a backlogged line wait long at the gate, and more of them would be refused. Reading only to refuse costs the others' time. So
while a line is backlogged its clients are read for a small part of the time, the oldest first, and they are refused; when it is not, the
newest is read first (adaptive LIFO). So what is decided was sent a moment ago, and the others learn late that they come too often.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Set
from typing import Final, NamedTuple, TypeAlias

from notary.gate import SHORT_FOR_S

READ_TURN_S = 0.0003
"""The time in one turn of the loop for unproven clients; a thousand may have bytes at once."""
PROVEN_TURN_S = 0.006
"""The same for proven ones: their bytes are read at once as long as it lasts."""
ADDRESSES_MAX: Final = 10_000
"""The addresses with an admitted submission that are remembered, the latest."""
PROVEN_SHORT_S = 0.001
"""The same while clients of the other kind wait too, and for `SHORT_FOR_S` after: decisions need many turns (docs/decisions/pieces.md)."""
SLICE_S = 0.0005
"""The time after which another line has its turn."""
BACKLOGGED_PART: Final = 0.05
"""The part of the time in which clients of backlogged lines are read."""
REFUSING_S_MAX: Final = 0.002
"""The time for them grows up to this."""
LATE_S: Final = 5.0
"""Those that have waited for so long are read at any cost, before newer ones: each client learns when to send again."""
UNREAD_BYTES_MAX: Final = 128 << 20
"""So are the oldest while those that wait keep more bytes than this in memory."""
NEWEST_FIRST_S: Final = 0.1
"""Where a client has waited for so long, which is longer than a burst lasts, the newest of its line is read first."""
HELD_S: Final = 0.002
"""So often backlogged lines are looked at, if nothing else is to be read."""


class ClientKey(NamedTuple):
    """Clients with the same address and parties share a line."""

    network: str
    """Its address (`notary.http.call.Call.network`)."""
    parties: Set[bytes] = frozenset()
    """The parties of submissions that were admitted on its connection."""

    @property
    def line(self) -> str:
        """Its party, if it has one; its address if it has none, or several."""
        return next(iter(self.parties)).decode() if len(self.parties) == 1 else self.network


class _Waiting(NamedTuple):
    """Something that is done for a client when it is its turn."""

    since_s: float
    client: ClientKey
    do: Callable[[float], None]
    """It gets the time for which it has waited, in seconds."""
    size: int


_Lines: TypeAlias = OrderedDict[tuple[str, bool], deque[_Waiting]]
"""By the name of the line, and whether it is that of begun bodies."""


class ClientLines:
    """The lines of one server."""

    def __init__(self) -> None:
        self.is_backlogged: Callable[[ClientKey], bool] = lambda client: False
        """Returns True if submissions of this client would wait long for the application: more that are read are refused. It is set."""
        self.ends = False
        """True once the server stops: it reads all that has come, since it is about to close the connections."""
        self._until_s: float | None = None  # None: this turn of the loop has read nothing yet
        self._slice_until_s = self._short_until_s = 0.0
        self._unproven: _Lines = OrderedDict()
        """In the order of their turns, as the next."""
        self._proven: _Lines = OrderedDict()
        self._refusing_s = 0.0
        """The time left for backlogged lines. It grows by a part of the time that passes."""
        self._counted_s = 0.0
        """The time up to which it has grown."""
        self._held: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        """The bytes that those that wait keep."""
        self._proven_addresses: dict[str, None] = {}
        """In the order in which they were last proven."""

    def stop(self) -> None:
        """Look no more."""
        if self._held is not None:
            self._held.cancel()

    def remember(self, network: str) -> None:
        """Remember an address: a call was answered on a connection that had an admitted submission."""
        addresses = self._proven_addresses
        addresses.pop(network, None)
        addresses[network] = None
        if len(addresses) > ADDRESSES_MAX:
            del addresses[next(iter(addresses))]

    def _is_proven(self, client: ClientKey) -> bool:
        return bool(client.parties) or client.network in self._proven_addresses

    def may_go(self, client: ClientKey, *, begun: bool = False) -> bool:
        """Returns True if something may be done for a client at once, which begins a slice of time.

        False once clients have used up their time of this turn of the loop, or others wait for a turn. Proven clients have more time, and
        wait only for others of their line. `begun`: the rest of a body is to be read, which was let in when its first piece came. It has
        a line of its own, which is never backlogged: half a body would only fill the memory.
        """
        now_s = time.perf_counter()
        if self._until_s is None:
            self._begin_turn(now_s)
        assert self._until_s is not None
        is_proven = self._is_proven(client)
        if now_s > self._until_s + (self._proven_s(now_s) - READ_TURN_S if is_proven else 0):
            return False
        if (client.line, begun) in (self._proven if is_proven else self._unproven):
            return False
        if not begun and not self.ends and self.is_backlogged(client):
            return False
        self._slice_until_s = now_s + SLICE_S
        return True

    def slice_is_over(self) -> bool:
        """Returns True when the slice is used up: what is left is to wait for another turn."""
        return time.perf_counter() > self._slice_until_s

    def charge(self, seconds: float) -> None:
        """Count work for a client that is done in the next turn as if it was done in this one."""
        assert self._until_s is not None, "called by what was given a turn"
        self._until_s -= seconds

    def wait(self, client: ClientKey, do: Callable[[float], None], *, size: int = 0, begun: bool = False) -> None:
        """Call `do` in a later turn of the loop, when it is the turn of its line (`may_go`). The client's `size` bytes are in memory."""
        self._unread_bytes += size
        now_s = time.perf_counter()
        is_proven = self._is_proven(client)
        lines = self._proven if is_proven else self._unproven
        if not is_proven:
            self._short_until_s = now_s + SHORT_FOR_S
        lines.setdefault((client.line, begun), deque()).append(_Waiting(now_s, client, do, size))
        if self._until_s is None:
            self._begin_turn(now_s)

    def _proven_s(self, now_s: float) -> float:
        return PROVEN_SHORT_S if now_s < self._short_until_s else PROVEN_TURN_S

    def _begin_turn(self, now_s: float) -> None:
        self._until_s = now_s + READ_TURN_S
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Take up what waits, a slice of time for each line in turn; at least one thing."""
        now_s = time.perf_counter()
        self._refusing_s = min(self._refusing_s + (now_s - self._counted_s) * BACKLOGGED_PART, REFUSING_S_MAX)
        self._counted_s = now_s
        held = 0
        try:
            held += self._take_up(self._proven, self._proven_s(now_s) - READ_TURN_S)
            held += self._take_up(self._unproven, READ_TURN_S)
        finally:  # a bug in one of them must not keep the others from their turns
            self._until_s = None
            if len(self._unproven) + len(self._proven) > held:
                self._begin_turn(time.perf_counter())
            elif held and self._held is None:
                self._held = asyncio.get_running_loop().call_later(HELD_S, self._look_at_held)

    def _look_at_held(self) -> None:
        self._held = None
        if (self._proven or self._unproven) and self._until_s is None:
            self._begin_turn(time.perf_counter())

    def _may_wait(self, oldest: _Waiting, now_s: float) -> bool:
        return self._refusing_s <= 0 and now_s - oldest.since_s < LATE_S and self._unread_bytes <= UNREAD_BYTES_MAX

    def _take_up(self, lines: _Lines, seconds: float) -> int:
        """Returns the number of backlogged lines that wait for time of theirs."""
        now_s = time.perf_counter()
        until_s = self._until_s = now_s + seconds
        names, held = deque(lines), 0
        while names and now_s <= until_s:
            name = names.popleft()
            waiting, from_s = lines[name], now_s
            begun = name[1]
            is_backlogged = not begun and not self.ends and self.is_backlogged(waiting[0].client)
            if is_backlogged and self._may_wait(waiting[0], now_s):
                held += 1
                continue
            self._slice_until_s = now_s + SLICE_S
            slice_until_s = min(self._slice_until_s, until_s)
            try:
                for _ in range(len(waiting)):  # what comes into the line meanwhile has its turn later
                    newest_first = not is_backlogged and NEWEST_FIRST_S < now_s - waiting[0].since_s < LATE_S
                    next_one = waiting.pop() if newest_first else waiting.popleft()
                    self._unread_bytes -= next_one.size
                    next_one.do(now_s - next_one.since_s)
                    now_s = time.perf_counter() + (until_s - self._until_s)  # later by what was charged
                    if now_s > slice_until_s:
                        break
            finally:
                if is_backlogged:
                    self._refusing_s -= now_s - from_s
                if waiting:
                    lines.move_to_end(name)
                    names.append(name)
                else:
                    del lines[name]
        return held
