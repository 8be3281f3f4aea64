"""Which URL to ask next, and when. Pure: times and chance come in.

The URL that answered last is asked first, for it is likely to answer again. One that failed is left alone for a while, longer
each time, and never less than its `Retry-After`; so the first failure costs nothing but a step to the next URL, and only when
all have failed is there a pause. Shared by all calls of a client: what one call learns about a URL, the others need not.
"""

from collections.abc import Callable, Container, Sequence

import msgspec


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for what; all in seconds. The deadline of a call goes before all of them."""

    wait_s_max: int = 10
    """For how long a worker is asked to hold the call open until all is decided (`Prefer: wait`)."""
    attempt_s_max: float = 15.0
    """One attempt, from connecting to the last byte; after it the next URL is asked."""
    connect_s_max: float = 3.0
    backoff_s_first: float = 0.1
    backoff_s_max: float = 5.0

    def pause_s(self, failures: int, chance: float) -> float:
        """How long to leave alone what failed `failures` times in a row: doubling, and by `chance` (0..1) up to half less."""
        whole = min(self.backoff_s_max, self.backoff_s_first * 2.0 ** min(failures - 1, 30))
        return whole * (0.5 + 0.5 * chance)


class _Place(msgspec.Struct):
    url: str
    failures: int = 0
    failed_at: float = float("-inf")
    not_before: float = float("-inf")


class Route:
    """The URLs of one notary, and what is known of each. Times are of one monotonic clock, in seconds."""

    def __init__(self, urls: Sequence[str], patience: Patience, chance: Callable[[], float]) -> None:
        self._places = [_Place(url) for url in urls]
        self._patience = patience
        self._chance = chance
        self._preferred = 0

    def next(self, now: float, without: Container[str] = ()) -> tuple[str, float]:
        """(URL, the time before which it must not be asked): the preferred one, else the next in turn that may be asked first.

        One of those `without` is not meant; there must be others.
        """
        turns = self._places[self._preferred :] + self._places[: self._preferred]
        place = min([place for place in turns if place.url not in without], key=lambda place: max(place.not_before, now))
        return place.url, place.not_before

    def answered(self, url: str) -> None:
        """It gave a good answer: it is asked first from now on."""
        place = self._find(url)
        place.failures, place.not_before = 0, float("-inf")
        self._preferred = self._places.index(place)

    def slow(self, url: str) -> None:
        """It is there, but could not decide in time: another one is asked first, if there is one."""
        place = self._find(url)
        place.failures, place.not_before = 0, float("-inf")
        if self._places[self._preferred] is place:
            self._preferred = (self._preferred + 1) % len(self._places)

    def failed(self, url: str, started: float, now: float, retry_after_s: float) -> None:
        """An attempt that began at `started` brought nothing."""
        place = self._find(url)
        # Attempts in flight together fail together: that is one failure, not one each.
        if started >= place.failed_at:
            place.failures += 1
            place.failed_at = now
        pause_s = max(retry_after_s, self._patience.pause_s(place.failures, self._chance()))
        place.not_before = max(place.not_before, now + pause_s)

    def _find(self, url: str) -> _Place:
        return next(place for place in self._places if place.url == url)
