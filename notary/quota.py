"""The quota of each party: requests a second."""

from collections.abc import Callable

import msgspec

from ordering.errors import NotaryError
from ordering.ids import excerpt
from ordering.settings import NotNegative


class QuotaSettings(msgspec.Struct, frozen=True):
    """The quota of a party that has none in the parties file."""

    party_requests_per_s: NotNegative = 0
    """0: no quota."""


class QuotaExceeded(NotaryError):
    """The party sent more than its quota; nothing of this submission was taken."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        self.ticket = b""
        super().__init__(what)


class Quota:
    """A token bucket for each party, one second deep; a submission larger than the bucket passes when it is full."""

    def __init__(
        self, settings: QuotaSettings, clock_s: Callable[[], float], per_s_of: Callable[[str], int | None] = lambda party: None
    ) -> None:
        """`per_s_of` returns a party's own quota, or None for that of the settings. A quota of 0 requests a second is none."""
        self._settings = settings
        self._per_s_of = per_s_of
        self._clock_s = clock_s
        self._buckets: dict[str, tuple[float, float]] = {}  # party -> (tokens, as of); registered parties only

    def rejection(self, party: str, requests: int) -> QuotaExceeded | None:
        """Returns the reason why the party may not send this many requests now; None if it may."""
        if not (per_s := self._of(party)):
            return None
        tokens, needed = self._tokens(party, per_s, self._clock_s()), min(requests, per_s)
        if tokens < needed:
            wait_s = max(1, round((needed - tokens) / per_s + 0.5))
            return QuotaExceeded(f"more than {per_s} requests a second of {excerpt(party, 300)}: send the same again later", wait_s)
        return None

    def charge(self, party: str, requests: int) -> None:
        """Count requests that `rejection` has let pass in the same turn of the loop."""
        if per_s := self._of(party):
            now = self._clock_s()
            self._buckets[party] = (self._tokens(party, per_s, now) - requests, now)

    def _of(self, party: str) -> int:
        own = self._per_s_of(party)
        return self._settings.party_requests_per_s if own is None else own

    def _tokens(self, party: str, per_s: int, now: float) -> float:
        tokens, as_of = self._buckets.get(party, (float(per_s), now))
        return min(float(per_s), tokens + (now - as_of) * per_s)
