"""Which payload partition a batch goes to: one that can take it now, near by if there is one, each in its turn.

Any choice is right: the entry names the partition, and readers follow it (R3). A good one keeps the bytes inside the data
centre, spreads them over the brokers, and stays away from partitions without a leader, whose appends would hang.
"""

from collections.abc import Mapping


class PartitionChoice:
    """Takes turns over the partitions at hand. Deterministic: the choices follow from the leaders given, call by call."""

    def __init__(self, data_centre: str | None) -> None:
        self._data_centre = data_centre
        self._last = -1

    def choose(self, leaders: Mapping[int, str | None]) -> int | None:
        """The next partition, or None when none has a leader. `leaders`: partition -> its leader's data centre (or None)."""
        near = [partition for partition, data_centre in leaders.items() if data_centre == self._data_centre]
        # A worker that was not told its own data centre is near to none: then all are alike.
        candidates = near if near and self._data_centre is not None else list(leaders)
        if not candidates:
            return None
        # The next higher number rather than a running count: when partitions come and go, none is starved.
        later = [partition for partition in candidates if partition > self._last]
        self._last = min(later or candidates)
        return self._last
