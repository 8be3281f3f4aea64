"""One party's share of a worker's queue: its pending submissions, and the part of the queue's capacity that it may use.

The parties share the capacity by dynamic thresholds (Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998). A party may use a fixed
part of the capacity that the others leave. So a party with few pending submissions is always admitted, and a single party gets nearly all
of the capacity. No shares need to be configured.
"""

from collections import deque
from typing import Final, Generic, TypeVar

Waiting = TypeVar("Waiting")

OPENS_AT: Final = 0.9
"""A limiter that is full admits again when no more than this share of its capacity is used."""
PLAIN, TICKETED = 8, 9
"""A party of weight 1 may use this many times the free capacity, without and with a ticket: one party 8/9 of all, two 8/17 each."""
TICKETS_PART: Final = 10
"""A party may use its equal part of the capacity if that is more, but the last tenth of it only with a ticket."""


class Limiter:
    """Admits submissions up to a capacity in requests and in bytes.

    After a rejection it rejects all submissions until a tenth of the capacity is free and the largest rejected one fits. (It waits
    for at most half of the capacity.) Otherwise, near the limit, a worker would decode every submission only to find that it does not fit,
    and would admit only small ones.
    """

    __slots__ = ("_wanted", "_wanted_bytes", "full")

    def __init__(self) -> None:
        self.full = False
        self._wanted = self._wanted_bytes = 0  # the most requests, and the most bytes, of a rejected submission

    def rejects(
        self, requests: int, size_bytes: int, here: int, here_bytes: int, requests_max: int, bytes_max: int, *, reserve: bool
    ) -> bool:
        """Returns True if an addition of this size does not fit besides the present requests and bytes.

        With `reserve`, it keeps capacity free for this addition.
        """
        if self.full:
            capacity = requests_max - min(self._wanted, requests_max // 2)
            capacity_bytes = bytes_max - min(self._wanted_bytes, bytes_max // 2)
            if here <= min(OPENS_AT * requests_max, capacity) and here_bytes <= min(OPENS_AT * bytes_max, capacity_bytes):
                self.full, self._wanted, self._wanted_bytes = False, 0, 0
        if not self.full and here + requests <= requests_max and here_bytes + size_bytes <= bytes_max:
            return False
        if reserve or here >= requests_max or here_bytes >= bytes_max:
            self.want(requests if reserve else 1, size_bytes if reserve else 1)
        return True

    def want(self, requests: int, size_bytes: int) -> None:
        """Reject all submissions until one of this size fits."""
        self.full, self._wanted, self._wanted_bytes = True, max(self._wanted, requests), max(self._wanted_bytes, size_bytes)


class Limiters:
    """Two limiters of one capacity: for submissions without a ticket, and for those with one, which may use more of it."""

    __slots__ = ("plain", "ticketed")

    def __init__(self) -> None:
        self.plain = Limiter()
        self.ticketed = Limiter()

    def one(self, *, ticketed: bool) -> Limiter:
        """Returns the limiter for submissions with a ticket, or for those without."""
        return self.ticketed if ticketed else self.plain

    def rejects(
        self,
        requests: int,
        size_bytes: int,
        here: int,
        here_bytes: int,
        requests_max: int,
        bytes_max: int,
        *,
        ticketed: bool,
        reserve: bool,
    ) -> bool:
        """Returns the result of one limiter. The maxima are those with a ticket, or those without."""
        rejects = self.one(ticketed=ticketed).rejects(requests, size_bytes, here, here_bytes, requests_max, bytes_max, reserve=reserve)
        if rejects and ticketed and reserve:  # submissions without a ticket wait too: they must not go before those with one
            self.plain.want(requests, size_bytes)
        return rejects


class Share(Generic[Waiting]):
    """One party's part of the queue. It exists while the party has pending submissions."""

    __slots__ = ("deficit", "limiters", "pending_bytes", "pending_requests", "waiting", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.waiting: deque[Waiting] = deque()
        """The submissions that are not in a batch, first come, first served."""
        self.deficit = 0
        """The cost that it may still send this round (Shreedhar and Varghese, Efficient Fair Queuing using Deficit Round Robin, 1995)."""
        self.pending_requests = 0
        self.pending_bytes = 0
        self.limiters = Limiters()

    def rejects(
        self,
        requests: int,
        size_bytes: int,
        capacity: tuple[int, int],
        here: tuple[int, int],
        weights: int,
        *,
        ticketed: bool,
        reserve: bool,
    ) -> bool:
        """Returns True if an addition of this size exceeds the party's part. `capacity` and `here` are (requests, bytes) of all parties."""
        times = TICKETED if ticketed else PLAIN
        own, own_bytes = self.pending_requests, self.pending_bytes
        requests_max = self._capacity(capacity[0], here[0] - own, weights, times)
        bytes_max = self._capacity(capacity[1], here[1] - own_bytes, weights, times)
        return self.limiters.rejects(requests, size_bytes, own, own_bytes, requests_max, bytes_max, ticketed=ticketed, reserve=reserve)

    def _capacity(self, capacity: int, others: int, weights: int, times: int) -> int:
        """Returns the part of the capacity that this party may use; `others` is the part that the others use."""
        part, equal = times * self.weight, capacity * self.weight // weights
        return max((capacity - others) * part // (part + 1), equal if times == TICKETED else equal - equal // TICKETS_PART)
