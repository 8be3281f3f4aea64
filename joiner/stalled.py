"""Detects stalls: how long a topic-partition with more to read has made no progress. Pure: offsets and times are arguments.

A reader that failed silently looks like one with nothing to read: its polls return nothing. The log end offset, requested by another
client, distinguishes them: a reader is stalled if it is below that end and its offset does not change.
"""

from collections.abc import Mapping

from joiner.settings import DriverSettings
from ordering.log import ORDERING, describe


class StallDetector:
    """For each topic-partition below its end: its last offset, and the time since when it has that offset."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def update(self, at: Mapping[int, int], ends: Mapping[int, int], now_s: float) -> dict[int, float]:
        """Compare the offsets `at` with `ends`. Returns the seconds without progress of each topic-partition that is below its end.

        A topic-partition without an end is not stalled. If a call leaves one out, its time begins again at the next call.
        """
        self._seen = {name: (at[name], self._since(name, at[name], now_s)) for name, end in ends.items() if at[name] < end}
        return {name: now_s - since_s for name, (_, since_s) in self._seen.items()}

    def _since(self, name: int, offset: int, now_s: float) -> float:
        before = self._seen.get(name)
        return before[1] if before is not None and before[0] == offset else now_s


class Stalls:
    """The stalls of one worker's reader and of the head, as of the watchdog's last check."""

    def __init__(self, settings: DriverSettings, now_s: float) -> None:
        self._settings = settings
        self._partitions, self._head = StallDetector(), StallDetector()
        self._remade_at_s = now_s
        self.partitions_s: Mapping[int, float] = {}
        """Per topic-partition with records left to read: the seconds without progress."""
        self.head_s = 0.0
        """The seconds for which the head has not moved although the log continues after it."""

    @property
    def longest_s(self) -> float:
        """The longest of `partitions_s`; 0 when there is none."""
        return max(self.partitions_s.values(), default=0.0)

    def update(self, at: Mapping[int, int], ends: Mapping[int, int], head_next: int, head_end: int | None, now_s: float) -> str:
        """Compare the reader's offsets `at` with the ends of what it reads, and the head with the end of the ordering topic.

        Returns the reason why another reader must replace it; empty if none must.
        """
        self.head_s = self._head.update({ORDERING: head_next}, {} if head_end is None else {ORDERING: head_end}, now_s).get(ORDERING, 0.0)
        self.partitions_s = self._partitions.update(at, ends, now_s)
        if min(self.longest_s, now_s - self._remade_at_s) <= self._settings.stall_s:
            return ""
        self._remade_at_s = now_s
        return "the reader made no progress although the log has more records"

    def not_ready(self) -> str | None:
        """Returns the reason why answers might not be fresh because of a stall; None when there is none."""
        unreachable_s, stall_s = self._settings.unreachable_s, self._settings.stall_s
        stalled = [partition for partition, seconds in self.partitions_s.items() if seconds > unreachable_s]
        if stalled:
            return f"{describe(min(stalled))} has records that could not be read for more than {unreachable_s:g} s"
        if self.head_s > stall_s:
            return f"the head of the order has not moved for more than {stall_s:g} s, although the log has records after it"
        return None
