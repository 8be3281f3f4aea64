"""The choice of a payload partition for a batch.

Any partition is correct: the entry names it, and readers follow it (R3). A good choice avoids partitions without a leader, where appends
would hang, and keeps the bytes in the worker's data centre, if one is configured. A small batch goes to the broker that leads the ordering
topic: one produce request carries both of its records there (docs/decisions/batches.md). Large batches are spread over the brokers.
"""

from collections.abc import Mapping
from typing import Final

from ordering.log import Leader

SMALL_BYTES_MAX: Final = 128 * 1024
"""Up to this size a batch costs its brokers more for its produce requests than for its bytes."""


class PartitionChoice:
    """Rotates over the best partitions. Deterministic: the choices follow from the arguments, call by call."""

    def __init__(self, data_centre: str | None) -> None:
        self._data_centre = data_centre
        self._last = -1

    def choose(self, leaders: Mapping[int, Leader], batch_bytes: int) -> int | None:
        """Returns the next partition, or None when none has a leader.

        `leaders`: partition -> its leader. The batch has at most `batch_bytes`.
        """
        candidates = list(leaders)
        if self._data_centre is not None:
            candidates = [partition for partition in candidates if leaders[partition].data_centre == self._data_centre] or candidates
        if batch_bytes <= SMALL_BYTES_MAX:
            candidates = [partition for partition in candidates if leaders[partition].leads_ordering] or candidates
        if not candidates:
            return None
        # Take the next higher number, not a running count: so no partition is starved when others appear and disappear.
        later = [partition for partition in candidates if partition > self._last]
        self._last = min(later or candidates)
        return self._last
