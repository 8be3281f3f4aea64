"""Tickets: a client that was rejected, and retries at the stated time, is preferred to clients without a ticket (docs/http.md, Tickets).

A ticket is a MAC over its time and party, so the issuer stores nothing for it. A used ticket is remembered until it expires. A ticket opens
the last part of the capacity and nothing else: quota, signature and the party's share stay as they are.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from struct import Struct
from typing import Final

USED_MAX: Final = 1 << 15
"""The maximum number of used tickets that are remembered. While it is reached, no ticket is valid."""
OPEN_S_MIN: Final = 5
"""A ticket is valid from the end of its `Retry-After` on, for as many seconds again, and at least for this many."""

_MAC_BYTES: Final = 16
_BODY: Final = Struct(">QIQ8s")  # valid from, ms; valid for, ms; number; hash of the party, zeros for any
_TEXT_BYTES: Final = -(-(_BODY.size + _MAC_BYTES) * 4 // 3)
_ANYBODY: Final = bytes(8)


class Tickets:
    """Issues and verifies tickets, with a key that a worker makes at its start and shares with its acceptor processes."""

    def __init__(self, key: bytes, clock_s: Callable[[], float], first: int = 0) -> None:
        """`first` is the number of the first ticket. Processes that share a key begin far apart."""
        self.key = key
        self._clock_s = clock_s
        self._number = first
        self._used: dict[int, int] = {}  # number -> expiry, ms
        self._check_ms = 0
        self.used = 0

    def give(self, after_s: int, party: str = "") -> bytes:
        """Returns a ticket that is valid after `after_s` seconds, for a party; for any party if the name is empty."""
        self._number = self._number + 1 & 0xFFFFFFFFFFFFFFFF
        from_ms, open_ms = int((self._clock_s() + after_s) * 1000), max(after_s, OPEN_S_MIN) * 1000
        body = _BODY.pack(from_ms, open_ms, self._number, _hash(party))
        return urlsafe_b64encode(body + self._mac(body)).rstrip(b"=")

    def counts(self, ticket: bytes, party: str | None = None) -> bool:
        """Returns True if the ticket is ours and valid now: for `party`, or for any party if that is None."""
        return self._read(ticket, party) is not None

    def use(self, ticket: bytes, party: str) -> None:
        """Mark a valid ticket as used: it is never valid again."""
        if (read := self._read(ticket, party)) is None:
            return
        number, until_ms = read
        self._used[number] = until_ms
        self.used += 1

    def _read(self, ticket: bytes, party: str | None) -> tuple[int, int] | None:
        """Returns a ticket's number and expiry, ms; None if it is not valid."""
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
        if not from_ms <= now_ms < from_ms + open_ms or number in self._used or not self._has_capacity(now_ms):
            return None
        return (number, from_ms + open_ms) if party is None or whose in (_ANYBODY, _hash(party)) else None

    def _has_capacity(self, now_ms: int) -> bool:
        """Returns True if one more used ticket can be remembered. Forgets expired ones, once a second at most."""
        if len(self._used) >= USED_MAX and now_ms >= self._check_ms:
            self._check_ms = now_ms + 1000
            self._used = {number: until_ms for number, until_ms in self._used.items() if until_ms > now_ms}
        return len(self._used) < USED_MAX

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self.key, body, "sha256")[:_MAC_BYTES]


def _hash(party: str) -> bytes:
    return hashlib.sha256(party.encode()).digest()[:8] if party else _ANYBODY
