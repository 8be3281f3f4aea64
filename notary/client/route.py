"""`Route`: chooses the URL of the next attempt, and its time. Pure: times and random numbers are arguments.

The URL that answered last is tried first, since it is likely to answer again. A URL that failed gets a back-off, which doubles with each
failure and is never shorter than its `Retry-After`. So after a first failure the next URL is tried at once, and the client waits only when
all URLs have failed. All calls of a client share one route.
"""

from collections.abc import Callable, Container, Sequence

import msgspec


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policy, in seconds. The deadline of a call overrides every limit here."""

    wait_s_max: int = 10
    """The long poll: the longest time for which a worker should hold a call open until all is decided (`Prefer: wait`)."""
    attempt_s_max: float = 15.0
    """The longest attempt, from connecting to the last byte; after it the client tries the next URL."""
    connect_s_max: float = 3.0
    backoff_s_first: float = 0.1
    backoff_s_max: float = 5.0

    def pause_s(self, failures: int, chance: float) -> float:
        """Returns the back-off after that many failures in a row: it doubles each time, and `chance` (0..1) takes off up to half of it."""
        backoff_s = min(self.backoff_s_max, self.backoff_s_first * 2.0 ** min(failures - 1, 30))
        return backoff_s * (0.5 + 0.5 * chance)


class _Endpoint(msgspec.Struct):
    url: str
    failures: int = 0
    failed_at: float = float("-inf")
    not_before: float = float("-inf")


class Route:
    """The URLs of one notary, with the failures and back-off of each. All times are seconds of one monotonic clock."""

    def __init__(self, urls: Sequence[str], retry_policy: RetryPolicy, chance: Callable[[], float]) -> None:
        self._endpoints = [_Endpoint(url) for url in urls]
        self._retry_policy = retry_policy
        self._chance = chance
        self._preferred = 0

    def next(self, now: float, without: Container[str] = ()) -> tuple[str, float]:
        """Returns (URL, the time before which it must not be tried): the URL that may be tried first, by turn from the preferred one on.

        URLs in `without` are left out; there must be others.
        """
        turns = self._endpoints[self._preferred :] + self._endpoints[: self._preferred]
        endpoint = min([endpoint for endpoint in turns if endpoint.url not in without], key=lambda endpoint: max(endpoint.not_before, now))
        return endpoint.url, endpoint.not_before

    def answered(self, url: str) -> None:
        """Record a good answer: this URL is tried first from now on."""
        endpoint = self._find(url)
        endpoint.failures, endpoint.not_before = 0, float("-inf")
        self._preferred = self._endpoints.index(endpoint)

    def slow(self, url: str, not_before: float) -> None:
        """Record an answer without all decisions. Another URL is tried first from now on, if there is one; this one at `not_before`."""
        endpoint = self._find(url)
        endpoint.failures, endpoint.not_before = 0, not_before
        if self._endpoints[self._preferred] is endpoint:
            self._preferred = (self._preferred + 1) % len(self._endpoints)

    def failed(self, url: str, started: float, now: float, retry_after_s: float) -> None:
        """Record a failed attempt that began at `started`, and extend the back-off of its URL."""
        endpoint = self._find(url)
        # Attempts in flight at the same time fail together, which counts as one failure.
        if started >= endpoint.failed_at:
            endpoint.failures += 1
            endpoint.failed_at = now
        pause_s = max(retry_after_s, self._retry_policy.pause_s(endpoint.failures, self._chance()))
        endpoint.not_before = max(endpoint.not_before, now + pause_s)

    def _find(self, url: str) -> _Endpoint:
        return next(endpoint for endpoint in self._endpoints if endpoint.url == url)
