"""The lanes of clients: they determine which clients are served in a turn of the event loop, in which order, and for how long.

A client waits in the lane of its party if a submission was admitted on its connection, else in the lane of its address. The lanes take
turns, a slice of time each. Authenticated clients (`notary.duty_cycle`) have more time in each turn than others. So returning clients do
not wait behind unknown ones.

A lane is backlogged if its submissions wait long at the gate. The gate would reject further submissions of that lane, and reading them only
to reject them would cost the other lanes' time. So clients of a backlogged lane are read for a small part of the time, the oldest first,
and are rejected.
Once the lane is not backlogged, its newest client is read first (adaptive LIFO). So the submissions that are decided were sent just before.
The price: the clients of rejected submissions learn late that they send too many.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Set
from typing import Final, NamedTuple, TypeAlias, TypeVar

from notary.duty_cycle import DutyCycle

UNAUTHENTICATED_TURN_S = 0.0003
"""The time for unauthenticated clients in one active slice (`DutyCycle`): a thousand of them may have sent bytes at once."""
AUTHENTICATED_TURN_S = 0.006
"""The time in one turn for authenticated clients: within it, their bytes are read at once."""
ADDRESSES_MAX: Final = 10_000
"""The number of remembered addresses with an admitted submission. The oldest is forgotten first."""
SLICE_S = 0.0005
"""The time slice of one lane, after which the next lane has its turn."""
BACKLOGGED_PART: Final = 0.05
"""The part of the time in which clients of backlogged lanes are read, besides those that have waited for `LATE_S`."""
REJECTING_S_MAX: Final = 0.002
"""The maximum unused time of that part that is saved for later turns."""
LATE_S: Final = 5.0
"""A client that has waited this long is read in any case, before newer ones, so that each client learns when to send again."""
WAITING_BYTES_MAX: Final = 128 << 20
"""While the bytes of waiting clients exceed this limit, the oldest clients are read in any case, too."""
NEWEST_FIRST_S: Final = 0.1
"""The newest client of a lane is read first if the oldest has waited this long, which is longer than a burst lasts."""
CREDIT_S_MAX: Final = 0.02
"""The unused time that a lane saves, while submissions of other parties wait."""
CREDITS_MAX: Final = 1_000
"""The number of lanes whose time is remembered; then all begin anew."""
BACKLOG_CHECK_S: Final = 0.002
"""The time between two checks of the backlogged lanes while no other lane has waiting clients."""


Lane: TypeAlias = bytes | str
"""A party's name in UTF-8, or an address. No party gets into the lane of an address by its name."""


class ClientKey(NamedTuple):
    """The properties of a client that determine its lane."""

    network: str
    """Its address (`notary.http.call.Call.network`)."""
    parties: Set[bytes] = frozenset()
    """The parties of new submissions that were admitted on its connection."""

    @property
    def lane(self) -> Lane:
        """Its party if it has exactly one, else its address."""
        return next(iter(self.parties)) if len(self.parties) == 1 else self.network


def lane_of(party: bytes, network: str, parties: Set[bytes]) -> Lane:
    """Returns the lane in which a submission of `party` waits: on a connection of one party that of `party`, else that of the address.

    This holds on another party's connection, too. Otherwise a party that sends copies of others' submissions would have their parts.
    """
    return party if len(parties) == 1 else network


class _Waiting(NamedTuple):
    """Work for a client in a later turn: to make its connection, or to read from it."""

    since_s: float
    client: ClientKey
    do: Callable[[float], None]
    """Does the work. Its argument is the time for which the work has waited, in seconds."""
    size: int


class WaitingLanes:
    """The lanes with submissions that wait for decisions, and the weights of the parties of these submissions. One event loop."""

    def __init__(self, weight_of: Callable[[bytes], int]) -> None:
        """`weight_of` returns the weight of a party."""
        self._weight_of = weight_of
        self._submissions: dict[tuple[Lane, bytes], tuple[int, int]] = {}
        """For each lane and party the number of submissions, and the party's weight at the latest one."""
        self._parties: dict[Lane, tuple[int, int]] = {}
        """The same for each party: it counts once, in however many lanes its submissions wait."""
        self._weights: dict[Lane, int] = {}
        """For each lane the weights of its parties. A proxy's lane has many."""
        self._total = 0
        """The weights of all parties."""

    def __bool__(self) -> bool:
        return bool(self._submissions)

    def enter(self, lane: Lane, party: bytes) -> None:
        """A submission of this party waits in this lane from now on."""
        weight = self._weight_of(party)
        self._total += _count_one(self._parties, party, weight)
        self._weights[lane] = self._weights.get(lane, 0) + _count_one(self._submissions, (lane, party), weight)

    def leave(self, lane: Lane, party: bytes) -> None:
        """Such a submission waits no longer."""
        self._total -= _discount_one(self._parties, party)
        self._weights[lane] -= _discount_one(self._submissions, (lane, party))
        if not self._weights[lane]:
            del self._weights[lane]

    def part_of(self, lane: Lane) -> float:
        """Returns the part of the time for a lane: its weight, divided by its weight and those of all other parties; 1.0 without others.

        Its weight is the sum of those of its parties with such submissions. Without one it is that of the party, and 1 for an address.
        """
        own = self._weights.get(lane) or self._parties.get(lane, (0, 0))[1]
        if (others := self._total - own) <= 0:  # a weight that has changed may be in one of the two sums only
            return 1.0
        own = own or (self._weight_of(lane) if isinstance(lane, bytes) else 1)
        return own / (own + others)


_Key = TypeVar("_Key")


def _count_one(counted: dict[_Key, tuple[int, int]], key: _Key, weight: int) -> int:
    """Count one more submission of this weight. Returns the change of the key's weight."""
    count, before = counted.get(key, (0, 0))
    counted[key] = count + 1, weight
    return weight - before


def _discount_one(counted: dict[_Key, tuple[int, int]], key: _Key) -> int:
    """Count one submission less. Returns the weight that the key loses."""
    count, weight = counted.pop(key)
    if count == 1:
        return weight
    counted[key] = count - 1, weight
    return 0


_Lanes: TypeAlias = OrderedDict[tuple[Lane, bool], deque[_Waiting]]
"""The lanes by name, and by whether the lane is for bodies that have begun."""


class ClientLanes:
    """The lanes of one server. One event loop."""

    def __init__(self, duty: DutyCycle) -> None:
        """In the active slices of `duty`, unauthenticated clients are served too."""
        self._duty = duty
        self.is_backlogged: Callable[[ClientKey], bool] = lambda client: False
        """Returns True if the client's lane is backlogged. The application sets it."""
        self.part_of: Callable[[Lane], float] = lambda lane: 1.0
        """Returns the part of the time that a lane may have (`WaitingLanes.part_of`). The application sets it."""
        self.ends = False
        """True once the server stops. Then all bytes that have come are read, since the server is about to close the connections."""
        self._until_s: float | None = None  # the end of this turn; None while no turn has begun
        self._slice_until_s = 0.0
        self._credits: dict[Lane, tuple[float, float]] = {}
        """For each lane the time that it has left, in seconds, and when that was computed."""
        self._served: tuple[Lane, float] | None = None
        """The lane that `may_go` admitted last in this turn, and when."""
        self._unauthenticated: _Lanes = OrderedDict()
        """In the order of their turns, as `_authenticated`."""
        self._authenticated: _Lanes = OrderedDict()
        self._rejecting_s = 0.0
        """The time left for backlogged lanes. It grows by a part of the time that passes."""
        self._counted_s = 0.0
        """The time at which `_rejecting_s` was last increased."""
        self._backlog_timer: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0
        """The bytes in memory of the waiting clients."""
        self._authenticated_addresses: dict[str, None] = {}
        """Addresses with an admitted submission, the latest last."""

    def stop(self) -> None:
        """Cancel the timer."""
        if self._backlog_timer is not None:
            self._backlog_timer.cancel()

    def remember(self, network: str) -> None:
        """Remember an address: a call was answered on a connection that had an admitted submission."""
        addresses = self._authenticated_addresses
        addresses.pop(network, None)
        addresses[network] = None
        if len(addresses) > ADDRESSES_MAX:
            del addresses[next(iter(addresses))]

    def _is_authenticated(self, client: ClientKey, lane: Lane, now_s: float) -> bool:
        """Returns True if the client, in its lane, may have the time of authenticated ones.

        While submissions in other lanes wait, its lane has this for its part of the time. A decision takes many turns of the loop, so a
        party with cheap calls could otherwise fill all of them.
        """
        if not (client.parties or client.network in self._authenticated_addresses):
            return False
        part = self.part_of(lane)
        if part == 1 or self.ends:
            return True
        left_s, at_s = self._credits.get(lane, (CREDIT_S_MAX, now_s))
        return left_s + (now_s - at_s) * part > 0

    def _count(self, lane: Lane, from_s: float, until_s: float) -> None:
        """Take this time from a lane's credit."""
        if (part := self.part_of(lane)) == 1:
            self._credits.pop(lane, None)
            return
        if len(self._credits) > CREDITS_MAX:
            self._credits.clear()
        left_s, at_s = self._credits.get(lane, (CREDIT_S_MAX, from_s))
        left_s = min(left_s + (until_s - at_s) * part, CREDIT_S_MAX)
        self._credits[lane] = left_s - (until_s - from_s), until_s

    def _count_served(self, now_s: float) -> None:
        if self._served is not None:
            lane, from_s = self._served
            self._served = None
            self._count(lane, from_s, min(now_s, from_s + SLICE_S))  # other work of the turn may follow

    def may_go(self, client: ClientKey, *, begun: bool = False) -> bool:
        """Returns True if work for a client may be done at once. It begins a slice of time.

        Returns False once the time of this turn is used up, or while other clients of its lane wait. `begun`: the work is to read the rest
        of a body, which was accepted with its first piece. Such work has a lane of its own, which is never backlogged: half a body would
        only fill the memory.
        """
        now_s = time.perf_counter()
        if self._until_s is None:
            self._begin_turn(now_s)
        assert self._until_s is not None
        self._count_served(now_s)
        lane = client.lane
        is_authenticated = self._is_authenticated(client, lane, now_s)
        if not (is_authenticated or self.ends or self._duty.is_active()):
            return False
        if now_s > self._until_s + (AUTHENTICATED_TURN_S - UNAUTHENTICATED_TURN_S if is_authenticated else 0):
            return False
        if (lane, begun) in (self._authenticated if is_authenticated else self._unauthenticated):
            return False
        if not begun and not self.ends and self.is_backlogged(client):
            return False
        self._slice_until_s = now_s + SLICE_S
        if is_authenticated:
            self._served = lane, now_s
        return True

    def slice_is_over(self) -> bool:
        """Returns True when the slice is used up: the rest of the work must wait for another turn."""
        return time.perf_counter() > self._slice_until_s

    def charge(self, seconds: float) -> None:
        """Take time from this turn, for work that this turn causes in the next one."""
        assert self._until_s is not None, "called in a turn"
        self._until_s -= seconds

    def wait(self, client: ClientKey, do: Callable[[float], None], *, size: int = 0, begun: bool = False) -> None:
        """Call `do` when it is the turn of the client's lane, in a later turn of the loop (`may_go`). `size`: its bytes in memory."""
        self._waiting_bytes += size
        now_s, lane = time.perf_counter(), client.lane
        lanes = self._authenticated if self._is_authenticated(client, lane, now_s) else self._unauthenticated
        lanes.setdefault((lane, begun), deque()).append(_Waiting(now_s, client, do, size))
        if self._until_s is None:
            self._begin_turn(now_s)

    def _begin_turn(self, now_s: float) -> None:
        self._until_s = now_s + UNAUTHENTICATED_TURN_S
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Do waiting work, a slice of time for each lane in turn, and at least one piece of work."""
        now_s = time.perf_counter()
        self._rejecting_s = min(self._rejecting_s + (now_s - self._counted_s) * BACKLOGGED_PART, REJECTING_S_MAX)
        self._counted_s = now_s
        self._count_served(now_s)
        must_wait = 0
        is_active = self.ends or self._duty.is_active()
        try:
            must_wait += self._serve(self._authenticated, AUTHENTICATED_TURN_S - UNAUTHENTICATED_TURN_S)
            if is_active:
                must_wait += self._serve(self._unauthenticated, UNAUTHENTICATED_TURN_S)
        finally:  # a bug in one client's work must not keep the others from their turns
            self._until_s = None
            if len(self._authenticated) + len(self._unauthenticated) * is_active > must_wait:
                self._begin_turn(time.perf_counter())
            elif must_wait and self._backlog_timer is None:
                self._backlog_timer = asyncio.get_running_loop().call_later(BACKLOG_CHECK_S, self._check_backlogged)
            if self._unauthenticated and not is_active:
                self._duty.call(self._go_on)

    def _check_backlogged(self) -> None:
        self._backlog_timer = None
        self._go_on()

    def _go_on(self) -> None:
        if (self._authenticated or self._unauthenticated) and self._until_s is None:
            self._until_s = time.perf_counter()
            self._end_turn()

    def _may_wait(self, oldest: _Waiting, now_s: float) -> bool:
        return self._rejecting_s <= 0 and now_s - oldest.since_s < LATE_S and self._waiting_bytes <= WAITING_BYTES_MAX

    def _serve(self, lanes: _Lanes, seconds: float) -> int:
        """Do the work of these lanes for this many seconds. Returns the number of backlogged lanes that must wait."""
        now_s = time.perf_counter()
        until_s = self._until_s = now_s + seconds
        names, must_wait = deque(lanes), 0
        while names and now_s <= until_s:
            name = names.popleft()
            waiting, from_s = lanes[name], now_s
            begun = name[1]
            is_backlogged = not begun and not self.ends and self.is_backlogged(waiting[0].client)
            if is_backlogged and self._may_wait(waiting[0], now_s):
                must_wait += 1
                continue
            is_late = is_backlogged and now_s - waiting[0].since_s >= LATE_S
            self._slice_until_s = now_s + SLICE_S
            # A backlogged lane has one client at a time: another lane may be backlogged for a moment only.
            slice_until_s = now_s if is_backlogged else min(self._slice_until_s, until_s)
            try:
                for _ in range(len(waiting)):  # work that is added meanwhile has its turn later
                    newest_first = not is_backlogged and NEWEST_FIRST_S < now_s - waiting[0].since_s < LATE_S
                    next_one = waiting.pop() if newest_first else waiting.popleft()
                    self._waiting_bytes -= next_one.size
                    next_one.do(now_s - next_one.since_s)
                    now_s = time.perf_counter() + (until_s - self._until_s)  # plus the time that `charge` took from this turn
                    if now_s > slice_until_s:
                        break
            finally:
                if lanes is self._authenticated:
                    self._count(name[0], from_s, now_s)
                if is_backlogged and not is_late:
                    self._rejecting_s -= now_s - from_s
                if waiting:
                    lanes.move_to_end(name)
                    names.append(name)
                else:
                    del lanes[name]
        return must_wait
