"""The body of a submission, from its first piece until the gate has decoded it; and the turns that complete bodies take, party by party."""

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Set
from typing import Final, Protocol

import msgspec

from joiner import AdmittedSubmission
from ordering.errors import NotaryError

TURN_BYTES: Final = 4 << 10
"""The bytes of one party's bodies that are decoded before it is the next party's turn."""
ADDRESSES_SHARE_MIN: Final = 8
"""Addresses have as much together as one party, and at least as much as one of eight."""
AHEAD_BYTES_MAX: Final = 2 << 20
"""The lead that parties, or addresses, have at most when bodies of the other ones come: those catch up so much."""

_party_first = re.compile(rb'\s*\{\s*"party"\s*:\s*"([^"\\]+)"').match


class Admission(Protocol):
    """The gate, as a body calls it."""

    def count_piece(self, body: "Body", data: bytes) -> NotaryError | None:
        """Count a piece of a body; returns the reason to refuse the body instead."""
        ...

    def too_late(self) -> NotaryError:
        """Returns the reason to refuse a body that was not complete in time."""
        ...

    def ask(self, body: "Body") -> None:
        """Decode a body that is complete, with all that came in this turn of the loop."""
        ...

    def forget(self, body: "Body") -> None:
        """Release the bytes of a body, which is not decoded any more."""
        ...


class Body:
    """The body of one submission: its connection calls `piece` for each piece, then one of `whole`, `late` and `left`.

    The gate then calls `admitted` or `refused` of a subclass: once, unless the client left.
    """

    __slots__ = ("_gate", "_pieces", "network", "parties", "size", "ticket", "unread_s")

    def __init__(self, gate: Admission, ticket: bytes = b"") -> None:
        """`ticket`: as its head has it, unchecked."""
        self.ticket = ticket
        self.network = ""
        """The client's address; empty if it does not matter."""
        self.parties: Set[bytes] = frozenset()
        """The parties of submissions that were admitted on its connection before."""
        self.unread_s = 0.0
        """The time for which it waited in its connection."""
        self.size = 0
        """The bytes of it that have come."""
        self._gate = gate
        self._pieces: list[bytes] = []

    @property
    def is_unproven(self) -> bool:
        """True for one on a connection of a client on which no submission was admitted."""
        return bool(self.network) and not self.parties

    def admitted(self, submission: AdmittedSubmission) -> None:
        """It may come in. It is to be queued, or handed over, in this turn of the loop: its room is not kept."""
        raise NotImplementedError

    def refused(self, problem: Exception) -> None:
        """It may not; a problem that is no `NotaryError` is a bug."""
        raise NotImplementedError

    def piece(self, data: bytes) -> None:
        """Take a piece."""
        if (problem := self._gate.count_piece(self, data)) is not None:
            self.refuse(problem)
        else:
            self.size += len(data)
            self._pieces.append(data)

    def whole(self) -> None:
        """It is complete."""
        self._gate.ask(self)

    def late(self) -> None:
        """It was not complete in time."""
        self.refuse(self._gate.too_late())

    def left(self) -> None:
        """The client went away."""
        self._gate.forget(self)

    def refuse(self, problem: NotaryError) -> None:
        """It is not read on."""
        self._gate.forget(self)
        self.refused(problem)

    def data(self) -> bytes:
        """Returns the bytes that have come of it."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def party(self) -> bytes:
        """Returns the party that stands first in it, as our clients write it; empty where another member does."""
        return party_first(self._pieces[0]) if self._pieces else b""

    def drop(self) -> None:
        """Let go of its bytes."""
        self._pieces = []
        self.size = 0


def party_first(piece: bytes) -> bytes:
    """Returns the party of a body that begins with `piece`, if it stands first there; empty where it does not."""
    found = _party_first(piece)
    return b"" if found is None else found[1]


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A complete body in its lane."""

    body: Body
    size: int
    since_s: float


class _Lane:
    """The complete bodies of one party."""

    __slots__ = ("bodies", "left_bytes", "size_bytes")

    def __init__(self) -> None:
        self.bodies: deque[_Waiting] = deque()
        self.size_bytes = 0
        """The bytes of these."""
        self.left_bytes = TURN_BYTES


class Lanes:
    """Complete bodies that are not decoded, in one lane a party. Each lane in turn yields so many bytes (surplus round robin).

    A lane that is empty stays while it has yielded more than its share and other lanes have bodies: a party that sends one large body
    after another, each when the last one was taken, has no more than its share either. All bodies that name no registered party first
    are in one lane, so made-up names win no turns.

    Anyone may name a party. So a body counts for its party only on a connection on which a submission of that party was admitted, and
    else for the address of its client. All addresses together have the share of one party, however many they are.
    """

    __slots__ = ("_addresses", "_ahead_bytes", "_is_registered", "_parties")

    def __init__(self, is_registered: Callable[[bytes], bool]) -> None:
        """`is_registered` returns True for the name of a registered party, in UTF-8."""
        self._is_registered = is_registered
        self._parties, self._addresses = _Ring(), _Ring()
        self._ahead_bytes = 0
        """The bytes that parties have yielded more than addresses."""

    def __bool__(self) -> bool:
        return self._parties.bodies > 0 or self._addresses.bodies > 0

    def add(self, body: Body, now_s: float) -> None:
        """Append a body to its lane."""
        key, of_party = self.lane_of(body, body.party())
        ring = self._ring(of_party=of_party)
        lane = ring.lanes.get(key)
        if lane is None:
            lane = ring.lanes[key] = _Lane()
        lane.bodies.append(_Waiting(body, body.size, now_s))
        lane.size_bytes += body.size
        ring.bodies += 1
        ring.size_bytes += body.size

    def age_s(self, key: bytes, now_s: float, *, of_party: bool) -> float:
        """Returns the wait so far of the oldest body in the lane of that registered party, or of that address; 0 when that is empty."""
        lane = self._ring(of_party=of_party).lanes.get(key)
        return now_s - lane.bodies[0].since_s if lane is not None and lane.bodies else 0.0

    def ahead_bytes(self, key: bytes, *, of_party: bool) -> int:
        """Returns the bytes that are decoded before a body that comes now: all that wait, or less by its lane's turns."""
        ring = self._ring(of_party=of_party)
        lane, waiting_bytes = ring.lanes.get(key), self._parties.size_bytes + self._addresses.size_bytes
        if lane is None:
            return 0
        turns = len(ring.lanes)
        if of_party:
            turns += self._addresses.bodies > 0
        elif self._parties.bodies:
            turns *= 1 + max(len(self._parties.lanes), ADDRESSES_SHARE_MIN)
        return min(waiting_bytes, lane.size_bytes * turns)

    def take_older(self, since_s: float) -> list[Body]:
        """Remove and return the bodies that have waited since before that time."""
        return [body for ring in (self._parties, self._addresses) for body in ring.take_older(since_s)]

    def lane_of(self, body: Body, party: bytes) -> tuple[bytes, bool]:
        """Returns the key of the lane of a body of that party, and whether it is one of a party."""
        if body.network and party not in body.parties:
            return body.network.encode(), False
        return (party if party and self._is_registered(party) else b""), True

    def _ring(self, *, of_party: bool) -> "_Ring":
        return self._parties if of_party else self._addresses

    def is_turn_of_parties(self, decoding: Container[bool] = ()) -> bool:
        """Returns True if a body of a party is next, False if one of an address is.

        `decoding` has True while a body of a party is decoded in pieces, and False while one of an address is.
        """
        of_party, of_address = self._parties.bodies > 0 or True in decoding, self._addresses.bodies > 0 or False in decoding
        return of_party and (self._ahead_bytes <= 0 or not of_address)

    def take(self, *, of_party: bool) -> Body:
        """Remove and return the next body of a party, or of an address. There must be one."""
        waiting = self._ring(of_party=of_party).take()
        parties = max(1, min(len(self._parties.lanes), ADDRESSES_SHARE_MIN))
        ahead_bytes = self._ahead_bytes + (waiting.size if of_party else -waiting.size * parties)
        self._ahead_bytes = max(-AHEAD_BYTES_MAX, min(ahead_bytes, AHEAD_BYTES_MAX))
        if not self:  # addresses may be ahead by a body that is still decoded
            self._parties, self._addresses, self._ahead_bytes = _Ring(), _Ring(), min(self._ahead_bytes, 0)
        return waiting.body


class _Ring:
    """Lanes in the order of their turns."""

    __slots__ = ("bodies", "lanes", "size_bytes")

    def __init__(self) -> None:
        self.lanes: OrderedDict[bytes, _Lane] = OrderedDict()
        """By the party that stands first, empty for one that is not registered, or none; or by address."""
        self.bodies = self.size_bytes = 0

    def take(self) -> _Waiting:
        """Remove and return the next body. There must be one."""
        while True:
            key, lane = next(iter(self.lanes.items()))
            if lane.left_bytes <= 0:
                lane.left_bytes += TURN_BYTES
                self.lanes.move_to_end(key)
            elif not lane.bodies:
                del self.lanes[key]
            else:
                break
        waiting = lane.bodies.popleft()
        lane.left_bytes -= waiting.size
        self._took(lane, waiting)
        return waiting

    def take_older(self, since_s: float) -> list[Body]:
        """Remove and return the bodies that have waited since before that time; each lane has its oldest first."""
        older: list[Body] = []
        for lane in self.lanes.values():
            while lane.bodies and lane.bodies[0].since_s < since_s:
                waiting = lane.bodies.popleft()
                self._took(lane, waiting)
                older.append(waiting.body)
        return older

    def _took(self, lane: _Lane, waiting: _Waiting) -> None:
        lane.size_bytes -= waiting.size
        self.size_bytes -= waiting.size
        self.bodies -= 1
