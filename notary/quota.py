"""The quota of each party: requests a second."""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from ordering.errors import NotaryError
from ordering.ids import excerpt
from ordering.settings import NotNegative

LATE_S: Final = 1.0
"""The time after `Retry-After` for which the tokens of a rejected client stay reserved."""


class QuotaSettings(msgspec.Struct, frozen=True):
    """The quota of a party that has none in the parties file."""

    party_requests_per_s: NotNegative = 0
    """0: no quota."""


class QuotaExceeded(NotaryError):
    """The party sent more than its quota: no part of this submission was admitted."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        self.ticket = b""
        super().__init__(what)


class Quota:
    """A token bucket for each party, one second deep; a submission larger than the bucket passes when it is full.

    A rejected submission reserves its tokens until it may be sent again. Otherwise smaller submissions of its party would use each new
    token, and the large one would never pass.
    """

    def __init__(
        self, settings: QuotaSettings, clock_s: Callable[[], float], per_s_of: Callable[[str], int | None] = lambda party: None
    ) -> None:
        """`per_s_of` returns a party's own quota, or None for that of the settings. A quota of 0 requests a second is none."""
        self._settings = settings
        self._per_s_of = per_s_of
        self._clock_s = clock_s
        # Registered parties only.
        self._buckets: dict[str, tuple[float, float]] = {}  # party -> (tokens, as of)
        self._reserved: dict[str, tuple[int, float]] = {}  # party -> (tokens, until)

    def limits(self, party: str) -> bool:
        """Returns True if the party has a quota."""
        return self._of(party) > 0

    def rejection(self, party: str, requests: int, *, reserve: bool = False) -> QuotaExceeded | None:
        """Returns the reason why the party may not send this many requests now; None if it may.

        `reserve`: the submission is verified and new, so its rejection reserves tokens, and it leaves those that another one has reserved.
        Others may use them: they are checked again once they are verified, or are copies of earlier submissions and are not charged.
        """
        if not (per_s := self._of(party)):
            return None
        now, needed = self._clock_s(), min(requests, per_s)
        missing = needed - self._tokens(party, per_s, now)
        reserved, until_s = self._reserved.get(party, (0, now))
        if missing > 0:
            wait_s = max(1, math.ceil(missing / per_s))
            if reserve and (needed >= reserved or now >= until_s):  # a smaller one must not extend the larger one's reservation
                self._reserved[party] = needed, now + wait_s + LATE_S
        elif reserve and needed < reserved and missing + reserved > 0 and now < until_s:
            wait_s = max(1, math.ceil(min((missing + reserved) / per_s, until_s - now)))
        else:
            return None
        return QuotaExceeded(f"more than {per_s} requests a second of {excerpt(party, 300)}: send the same again later", wait_s)

    def charge(self, party: str, requests: int) -> None:
        """Count requests that `rejection` has let pass in the same turn of the loop."""
        if per_s := self._of(party):
            now = self._clock_s()
            self._buckets[party] = (self._tokens(party, per_s, now) - requests, now)
            if min(requests, per_s) >= self._reserved.get(party, (0, 0.0))[0]:
                self._reserved.pop(party, None)

    def _of(self, party: str) -> int:
        own = self._per_s_of(party)
        return self._settings.party_requests_per_s if own is None else own

    def _tokens(self, party: str, per_s: int, now: float) -> float:
        tokens, as_of = self._buckets.get(party, (float(per_s), now))
        return min(float(per_s), tokens + (now - as_of) * per_s)
