"""Detects stalls: how long a topic-partition with more to read has made no progress. Pure: offsets and times are arguments.

A reader that failed silently looks like one with nothing to read: its polls return nothing. The log end offset, requested by another
client, distinguishes them: a reader is stalled if it is below that end and its offset does not change.
"""

from collections.abc import Mapping


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
