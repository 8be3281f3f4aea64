"""One party's share of a worker's queue: its submissions that wait, and how much room it may take of what all have.

Room is shared by dynamic thresholds (Choudhury and Hahne, Dynamic Queue Length Thresholds, 1998): a party may fill a fixed part of what the
others leave, so there is always room for one that has little, a lone party gets nearly all of it, and no shares need to be configured.
"""

from collections import deque
from typing import Final, Generic, TypeVar

Waiting = TypeVar("Waiting")

OPENS_AT: Final = 0.9
"""A door that was closed opens again at this share of its room."""
PLAIN, TICKETED = 8, 9
"""A party of weight 1 may have so many times the room that is left, without and with a ticket: alone 8/9 of all, two of them 8/17 each."""
TICKETS_PART: Final = 10
"""A party may have all of its equal part where that is more; the last tenth of it with a ticket only."""


class Door:
    """Lets submissions into some room, of requests and of bytes.

    Once one was refused all are, until a tenth has been decided, and there is room for the largest that was refused, up to half of all
    room: near the bound every submission would be decoded before its size tells that there is none, and only small ones would get in.
    """

    __slots__ = ("_wanted", "full")

    def __init__(self) -> None:
        self.full = False
        self._wanted = 0  # requests of the largest that was refused

    def refuses(self, requests: int, size_bytes: int, here: int, here_bytes: int, requests_max: int, bytes_max: int) -> bool:
        """Returns True if there is no room for so much more beside the present requests and bytes."""
        if self.full and here_bytes <= OPENS_AT * bytes_max:
            room = requests_max - min(self._wanted, requests_max // 2)
            if here <= min(OPENS_AT * requests_max, room):
                self.full, self._wanted = False, 0
        if not self.full and here + requests <= requests_max and here_bytes + size_bytes <= bytes_max:
            return False
        self.full, self._wanted = True, max(self._wanted, requests)
        return True


class Share(Generic[Waiting]):
    """One party's part of the queue. It exists while the party waits for something."""

    __slots__ = ("deficit", "pending_bytes", "pending_requests", "plain", "ticketed", "waiting", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.waiting: deque[Waiting] = deque()
        """In no batch, first come first served."""
        self.deficit = 0
        """Requests that it may still take this round (Shreedhar and Varghese, Efficient Fair Queuing using Deficit Round Robin, 1995)."""
        self.pending_requests = 0
        self.pending_bytes = 0
        self.plain = Door()
        self.ticketed = Door()

    def refuses(
        self, requests: int, size_bytes: int, room: tuple[int, int], here: tuple[int, int], weights: int, *, ticketed: bool
    ) -> bool:
        """Returns True if the party has no room for so much more; `room` and `here`, of all parties, are (requests, bytes)."""
        door, times = (self.ticketed, TICKETED) if ticketed else (self.plain, PLAIN)
        own, own_bytes = self.pending_requests, self.pending_bytes
        requests_max = self._room(room[0], here[0] - own, weights, times)
        bytes_max = self._room(room[1], here[1] - own_bytes, weights, times)
        return door.refuses(requests, size_bytes, own, own_bytes, requests_max, bytes_max)

    def _room(self, room: int, others: int, weights: int, times: int) -> int:
        """The part of the room that this party may have, beside what others have of it."""
        part, equal = times * self.weight, room * self.weight // weights
        return max((room - others) * part // (part + 1), equal if times == TICKETED else equal - equal // TICKETS_PART)
