"""The body of a submission, from its first piece until the gate has decoded it; and the turns of complete bodies, party by party."""

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Set
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from joiner import AdmittedSubmission
from ordering.errors import NotaryError
from payload import PARTY_BYTES_MAX

TURN_BYTES: Final = 4 << 10
"""The bytes of a party's bodies that are decoded in its turn, times its weight, before the next party's turn."""
ADDRESSES_SHARE_MIN: Final = 8
"""All addresses together get as many bytes as a party of weight 1: at least one for every eight of all parties."""
DEBT_BYTES_MAX: Final = 256 << 10
"""A lane that is this many bytes behind pays nothing more for bodies of its party that came in the lane of an address."""
AHEAD_BYTES_MAX: Final = 2 << 20
"""The longest lead, in bytes, that parties have over addresses, or addresses over parties. The other side catches up this much at most."""

# A longer name is no party's, and its copy would double the bytes of a body.
_match_leading_party = re.compile(rb'\s*\{\s*"party"\s*:\s*"([^"\\]{1,%d})"' % PARTY_BYTES_MAX).match


class Admission(Protocol):
    """The gate, as a body calls it."""

    def count_piece(self, body: "Body", data: bytes) -> NotaryError | None:
        """Count a piece of a body; returns the reason to reject the body instead."""
        ...

    def too_late(self) -> NotaryError:
        """Returns the reason to reject a body that was not complete in time."""
        ...

    def enter_lane(self, body: "Body") -> None:
        """Put a complete body in its lane. It is decoded from the next turn of the loop on."""
        ...

    def forget(self, body: "Body") -> None:
        """Release the bytes of a body that will not be decoded."""
        ...


class Payer(NamedTuple):
    """The client that a submission's bytes count for: a party, or an address without one."""

    name: str = ""
    """The party of the new submissions that were admitted on its connection before, if it is one; else its address. Empty: any client."""
    is_authenticated: bool = True
    """True if a new submission was admitted on its connection before."""

    @classmethod
    def of(cls, network: str, parties: Set[bytes]) -> "Payer":
        """Returns the client with this address and with these parties of admitted submissions."""
        return cls(next(iter(parties)).decode() if len(parties) == 1 else network, bool(parties) or not network)


ANY_CLIENT: Final = Payer()


class Body:
    """The body of one submission: its connection calls `piece` for each piece, then one of `complete`, `late` and `left`.

    The gate then calls `admitted` or `rejected` of a subclass: once, unless the client left.
    """

    __slots__ = ("_data", "_gate", "network", "of_party", "parties", "party", "payer", "size", "ticket", "waited_s")

    def __init__(self, gate: Admission, ticket: bytes = b"") -> None:
        """`ticket`: the ticket in the call's head, unchecked."""
        self.ticket = ticket
        self.network = ""
        """The client's address; empty if it does not matter."""
        self.parties: Set[bytes] = frozenset()
        """The parties of new submissions that were admitted on its connection before."""
        self.payer = ANY_CLIENT
        """The client that its bytes count for; the gate sets it."""
        self.party = b""
        """The party that it names in its first piece, as the first member, where our clients write it; empty if it does not."""
        self.of_party = True
        """False if it waited in the lane of its client's address."""
        self.waited_s = 0.0
        """The time for which it waited in its connection."""
        self.size = 0
        """The number of its bytes that have come."""
        self._gate = gate
        self._data: bytes | bytearray = b""  # one piece as it came, or several together: a piece may have a single byte

    def admitted(self, submission: AdmittedSubmission) -> None:
        """The gate has admitted the submission. Queue it, or pass it on, in this turn of the loop: no capacity is reserved for longer."""
        raise NotImplementedError

    def rejected(self, problem: Exception) -> None:
        """The gate has rejected the submission. A problem that is no `NotaryError` is a bug."""
        raise NotImplementedError

    def piece(self, data: bytes) -> None:
        """Take a piece."""
        if not self.size:
            self.party = leading_party(data)
        if (problem := self._gate.count_piece(self, data)) is not None:
            self.reject(problem)
        else:
            self.size += len(data)
            if isinstance(self._data, bytearray):
                self._data += data
            else:
                self._data = bytearray(self._data) + data if self._data else data

    def complete(self) -> None:
        """The body is complete: put it in its lane."""
        self._gate.enter_lane(self)

    def late(self) -> None:
        """The body was not complete in time: reject it."""
        self.reject(self._gate.too_late())

    def left(self) -> None:
        """The client has left: release the body."""
        self._gate.forget(self)

    def reject(self, problem: NotaryError) -> None:
        """Reject the submission before its body is complete: the rest of the body is not read."""
        self._gate.forget(self)
        self.rejected(problem)

    def data(self) -> bytes:
        """Returns the bytes of the body that have come."""
        return bytes(self._data)  # no copy of a single piece

    def drop(self) -> None:
        """Release the body's bytes."""
        self._data = b""
        self.size = 0


def leading_party(piece: bytes) -> bytes:
    """Returns the party of a body that begins with `piece`; empty if the party is not the first member."""
    found = _match_leading_party(piece)
    return b"" if found is None else found[1]


class Side(IntEnum):
    """The two sides that take turns: bodies in the lanes of addresses, and bodies in the lanes of parties."""

    ADDRESSES = 0
    PARTIES = 1


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A complete body in its lane."""

    body: Body
    size: int
    since_s: float


class _Lane:
    """The complete bodies of one party, or of one address."""

    __slots__ = ("bodies", "size_bytes", "turn_bytes_left", "weight")

    def __init__(self, weight: int) -> None:
        self.bodies: deque[_Waiting] = deque()
        self.size_bytes = 0
        """The bytes of `bodies`."""
        self.weight = weight
        self.turn_bytes_left = TURN_BYTES * weight
        """The bytes that it may still yield in its turn. Negative after a large body: later turns are shorter by them."""


class Lanes:
    """Complete bodies that are not decoded yet, in one lane for each party.

    Each lane in turn yields `TURN_BYTES` times its party's weight (surplus round robin). An empty lane stays while it has yielded more than
    its share and other lanes have bodies. So a party that sends one large body after another, each when the last one was taken, gets no
    more than its share. All bodies whose first member does not name a registered party share one lane, so made-up names win no turns.

    Anyone may name a party. So a body counts for its party only on a connection on which a new submission of that party was admitted. Any
    other body counts for its client's address. All addresses together have about the share of one party (`ADDRESSES_SHARE_MIN`). Such a
    body counts for its party later, once it is known to be a new submission of that party (`charge`). Otherwise a party that always opens
    new connections would get a second share.
    """

    __slots__ = ("_addresses", "_ahead_bytes", "_parties", "_weight_of")

    def __init__(self, weight_of: Callable[[bytes], int]) -> None:
        """`weight_of` returns the weight of a registered party, by its name in UTF-8; 0 if no party has that name."""
        self._weight_of = weight_of
        self._parties, self._addresses = _Ring(), _Ring()
        self._ahead_bytes = 0
        """The lead of parties over addresses, in bytes; negative if addresses lead."""

    def __bool__(self) -> bool:
        return self._parties.bodies > 0 or self._addresses.bodies > 0

    def add(self, body: Body, now_s: float) -> None:
        """Append a body to its lane."""
        key, weight = self.lane_of(body)
        body.of_party = weight > 0
        ring = self._parties if body.of_party else self._addresses
        lane = ring.lane(key, weight or 1)
        lane.bodies.append(_Waiting(body, body.size, now_s))
        lane.size_bytes += body.size
        ring.bodies += 1
        ring.size_bytes += body.size

    def charge(self, party: bytes, size_bytes: int) -> None:
        """Shorten the next turns of a party by the bytes of its bodies that were taken from the lane of an address.

        A party without a lane pays nothing: it has no share of its own meanwhile.
        """
        if (lane := self._parties.lanes.get(party)) is not None:
            lane.turn_bytes_left = min(lane.turn_bytes_left, max(lane.turn_bytes_left - size_bytes, -DEBT_BYTES_MAX))

    def age_s(self, key: bytes, now_s: float, *, of_party: bool) -> float:
        """Returns the seconds that the oldest body has waited in the lane of a registered party or an address; 0 if the lane is empty."""
        lane = (self._parties if of_party else self._addresses).lanes.get(key)
        return now_s - lane.bodies[0].since_s if lane is not None and lane.bodies else 0.0

    def ahead_bytes(self, key: bytes, *, of_party: bool) -> int:
        """Returns an estimate of the bytes that will be decoded before a body that comes now, from the weights of the lanes."""
        ring = self._parties if of_party else self._addresses
        lane, waiting_bytes = ring.lanes.get(key), self._parties.size_bytes + self._addresses.size_bytes
        if lane is None:
            return 0
        turns = ring.weights
        if of_party:
            turns += self._addresses.bodies > 0
        elif self._parties.bodies:
            turns *= 1 + min(self._parties.weights, ADDRESSES_SHARE_MIN)
        return min(waiting_bytes, (lane.size_bytes + max(0, -lane.turn_bytes_left)) * turns // lane.weight)

    def take_older(self, since_s: float, bodies_max: int) -> list[Body]:
        """Remove and return bodies that have waited since before that time, at most `bodies_max` of them."""
        older = self._parties.take_older(since_s, bodies_max)
        older += self._addresses.take_older(since_s, bodies_max - len(older))
        self._forget_shares_if_empty()
        return older

    def lane_of(self, body: Body) -> tuple[bytes, int]:
        """Returns (key, weight) of the lane for a body: the weight is 0 for the lane of an address."""
        if body.network and body.party not in body.parties:
            return body.network.encode(), 0
        weight = self._weight_of(body.party) if body.party else 0
        return (body.party, weight) if weight else (b"", 1)

    def whose_turn(self, decoding: Container[Side] = (), *, addresses: Callable[[], bool] = lambda: True) -> Side | None:
        """Returns the side of the next body; None if there is none.

        `decoding` contains a side while one of its bodies is decoded in pieces. `addresses` returns whether it may be their turn.
        """
        has_parties = self._parties.bodies > 0 or Side.PARTIES in decoding
        has_addresses = (self._addresses.bodies > 0 or Side.ADDRESSES in decoding) and addresses()
        if has_parties and (self._ahead_bytes <= 0 or not has_addresses):
            return Side.PARTIES
        return Side.ADDRESSES if has_addresses else None

    def take(self, side: Side) -> Body:
        """Remove and return the next body of that side. There must be one."""
        of_party = side is Side.PARTIES
        waiting = (self._parties if of_party else self._addresses).take()
        parties = max(1, min(self._parties.weights, ADDRESSES_SHARE_MIN))
        ahead_bytes = self._ahead_bytes + (waiting.size if of_party else -waiting.size * parties)
        self._ahead_bytes = max(-AHEAD_BYTES_MAX, min(ahead_bytes, AHEAD_BYTES_MAX))
        self._forget_shares_if_empty()
        return waiting.body

    def _forget_shares_if_empty(self) -> None:
        if not self:  # addresses may be ahead by a body that is still decoded
            self._parties, self._addresses, self._ahead_bytes = _Ring(), _Ring(), min(self._ahead_bytes, 0)


class _Ring:
    """Lanes in the order of their turns."""

    __slots__ = ("bodies", "lanes", "size_bytes", "weights")

    def __init__(self) -> None:
        self.lanes: OrderedDict[bytes, _Lane] = OrderedDict()
        """Lanes by address, or by the party that a body names first: empty for an unregistered party, or none."""
        self.bodies = self.size_bytes = self.weights = 0
        """The number of bodies in all lanes, their bytes, and the sum of the lanes' weights."""

    def lane(self, key: bytes, weight: int) -> _Lane:
        """Returns the lane of that name, with this weight from now on. A new lane has its turn last."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = _Lane(weight)
            self.weights += weight
        elif lane.weight != weight:
            self.weights += weight - lane.weight
            lane.weight = weight
        return lane

    def take(self) -> _Waiting:
        """Remove and return the next body. There must be one."""
        in_debt = 0
        while True:
            key, lane = next(iter(self.lanes.items()))
            if lane.turn_bytes_left <= 0:
                lane.turn_bytes_left += TURN_BYTES * lane.weight
                self.lanes.move_to_end(key)
                in_debt += 1
                if in_debt >= len(self.lanes):
                    self._skip_rounds()
                    in_debt = 0
            elif not lane.bodies:
                del self.lanes[key]
                self.weights -= lane.weight
            else:
                break
        waiting = lane.bodies.popleft()
        lane.turn_bytes_left -= waiting.size
        self._count_taken(lane, waiting)
        return waiting

    def _skip_rounds(self) -> None:
        """Give all lanes at once their turns of the rounds in which no lane with bodies pays off its debt: a large body costs hundreds."""
        rounds = min([-lane.turn_bytes_left // (TURN_BYTES * lane.weight) for lane in self.lanes.values() if lane.bodies])
        if rounds > 0:
            for lane in self.lanes.values():
                lane.turn_bytes_left += rounds * TURN_BYTES * lane.weight

    def take_older(self, since_s: float, bodies_max: int) -> list[Body]:
        """Remove and return bodies that have waited since before that time, at most `bodies_max`; each lane has its oldest first."""
        older: list[Body] = []
        for lane in self.lanes.values():
            while lane.bodies and lane.bodies[0].since_s < since_s:
                if len(older) == bodies_max:
                    return older
                waiting = lane.bodies.popleft()
                self._count_taken(lane, waiting)
                older.append(waiting.body)
        return older

    def _count_taken(self, lane: _Lane, waiting: _Waiting) -> None:
        lane.size_bytes -= waiting.size
        self.size_bytes -= waiting.size
        self.bodies -= 1
