"""Tickets: a client that was refused, and comes back in its time, goes before those that come for the first time (docs/http.md, Tickets).

A ticket is a MAC over when it counts and for which party, so nothing is kept of those given out; of those used, until they count no more.
It opens the last part of a room and nothing else: quota, signature and the party's share stay what they are.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from struct import Struct
from typing import Final

USED_MAX: Final = 1 << 15
"""The maximum number of used tickets that are remembered; no other is valid while there are so many."""
OPEN_S_MIN: Final = 5
"""A ticket is valid from the end of its `Retry-After`, for as many seconds as that had, and for so many at least."""

_MAC_BYTES: Final = 16
_BODY: Final = Struct(">QIQ8s")  # not before, ms; for so long, ms; number; party's hash, zeros for any
_TEXT_BYTES: Final = -(-(_BODY.size + _MAC_BYTES) * 4 // 3)
_ANYBODY: Final = bytes(8)


class Tickets:
    """Issues tickets, and verifies its own: with a key that a worker makes when it starts, and shares with its intake processes."""

    def __init__(self, key: bytes, clock_s: Callable[[], float], first: int = 0) -> None:
        """`first` is the number of the first ticket. Processes that share a key begin far apart."""
        self.key = key
        self._clock_s = clock_s
        self._number = first
        self._used: dict[int, int] = {}  # number -> when it counts no more, ms
        self._look_ms = 0
        self.used = 0

    def give(self, after_s: int, party: str = "") -> bytes:
        """Returns a ticket that is valid after so many seconds, for that party; without a name it is valid for any."""
        self._number = self._number + 1 & 0xFFFFFFFFFFFFFFFF
        from_ms, open_ms = int((self._clock_s() + after_s) * 1000), max(after_s, OPEN_S_MIN) * 1000
        body = _BODY.pack(from_ms, open_ms, self._number, _hash(party))
        return urlsafe_b64encode(body + self._mac(body)).rstrip(b"=")

    def counts(self, ticket: bytes, party: str | None = None) -> bool:
        """Returns True if the ticket is ours and valid now for that party; without one, for any."""
        return self._read(ticket, party) is not None

    def use(self, ticket: bytes, party: str) -> None:
        """Mark a valid ticket as used: it is never valid again."""
        if (read := self._read(ticket, party)) is None:
            return
        number, until_ms = read
        self._used[number] = until_ms
        self.used += 1

    def _read(self, ticket: bytes, party: str | None) -> tuple[int, int] | None:
        """Returns a ticket's number and the end of its time; None for one that is not valid."""
        if len(ticket) != _TEXT_BYTES:
            return None
        try:
            data = urlsafe_b64decode(ticket + b"=" * (-len(ticket) % 4))
        except ValueError:
            return None
        body = data[: _BODY.size]
        if not hmac.compare_digest(data[_BODY.size :], self._mac(body)):
            return None
        from_ms, open_ms, number, whose = _BODY.unpack(body)
        now_ms = int(self._clock_s() * 1000)
        if not from_ms <= now_ms < from_ms + open_ms or number in self._used or not self._has_room(now_ms):
            return None
        return (number, from_ms + open_ms) if party is None or whose in (_ANYBODY, _hash(party)) else None

    def _has_room(self, now_ms: int) -> bool:
        """Returns True if one more can be remembered as used. Forgets those whose time is over, once a second at most."""
        if len(self._used) >= USED_MAX and now_ms >= self._look_ms:
            self._look_ms = now_ms + 1000
            self._used = {number: until_ms for number, until_ms in self._used.items() if until_ms > now_ms}
        return len(self._used) < USED_MAX

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self.key, body, "sha256")[:_MAC_BYTES]


def _hash(party: str) -> bytes:
    return hashlib.sha256(party.encode()).digest()[:8] if party else _ANYBODY
