"""The choice of a payload partition for a batch: one with a leader, in the worker's data centre if possible, in rotation.

Any choice is correct: the entry names the partition, and readers follow it (R3). A good choice keeps the bytes inside the data centre,
spreads them over the brokers, and avoids partitions without a leader, where appends would hang.
"""

from collections.abc import Mapping


class PartitionChoice:
    """Rotates over the usable partitions. Deterministic: the choices follow from the leaders given, call by call."""

    def __init__(self, data_centre: str | None) -> None:
        self._data_centre = data_centre
        self._last = -1

    def choose(self, leaders: Mapping[int, str | None]) -> int | None:
        """Returns the next partition, or None when none has a leader. `leaders`: partition -> its leader's data centre (or None)."""
        near = [partition for partition, data_centre in leaders.items() if data_centre == self._data_centre]
        # Without a configured data centre, all partitions are equally near.
        candidates = near if near and self._data_centre is not None else list(leaders)
        if not candidates:
            return None
        # Take the next higher number, not a running count: so no partition is starved when others appear and disappear.
        later = [partition for partition in candidates if partition > self._last]
        self._last = min(later or candidates)
        return self._last
