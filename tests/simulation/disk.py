"""The simulated disk under an index: atomic batches, in order, of which a machine crash may lose the last ones.

`SimulatedDisk` outlives the process; `SimulatedStore` is one opening of it, with the interface that `notary.index.store` uses.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from notary.index.store import FAMILIES

Row = tuple[str, bytes, bytes | None]
"""(family, key, value). A value of None deletes the row."""
FLUSHED_CHANCE = 0.2
"""The probability that the system flushes everything so far after a batch."""


class SimulatedDisk:
    """The batches that were written, and the number of them that survive a machine crash."""

    def __init__(self, seed: str) -> None:
        self._draw = random.Random(seed)
        self.full = False
        self.full_until_s = float("-inf")
        """The time at which it stopped being full."""
        self.wipe()

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.journal: list[list[Row]] = []
        self.flushed = 0
        self.applied_live = 0
        """The ordering offset up to which ready processes on this disk have applied the log."""
        self._altered: list[tuple[int, str]] = []
        self._load()

    @property
    def altered(self) -> frozenset[str]:
        """The families in which a fault has changed a row."""
        return frozenset([family for _, family in self._altered])

    def write(self, rows: list[Row]) -> None:
        """Write one batch atomically."""
        if self.full:
            raise Exception("IO error: No space left on device")  # as rocksdict raises it
        self.journal.append(rows)
        self._apply(rows)
        if self._draw.random() < FLUSHED_CHANCE:
            self.flush()

    def flush(self) -> None:
        """Make all batches so far survive a machine crash."""
        self.flushed = len(self.journal)

    def lose_unflushed(self) -> int:
        """Lose a random number of the last unflushed batches, as when the machine crashes; returns the number lost."""
        kept = self._draw.randint(self.flushed, len(self.journal))
        lost = len(self.journal) - kept
        self.restore(kept)
        return lost

    def restore(self, batches: int) -> None:
        """Return to the state after this many batches."""
        del self.journal[batches:]
        self._altered = [(at, family) for at, family in self._altered if at < batches]
        self.flushed = len(self.journal)
        self._load()

    def alter(self, family: str, *, remove: bool = False) -> bytes | None:
        """Flip one bit of a random row, or delete the row, without the index's knowledge; returns its key, None if there is no row."""
        rows = self.families[family]
        if not rows:
            return None
        key = self._draw.choice(sorted(rows))
        row = bytearray(rows[key])
        row[self._draw.randrange(len(row))] ^= 1 << self._draw.randrange(8)
        self._altered.append((len(self.journal), family))
        self.journal.append([(family, key, None if remove else bytes(row))])
        self._apply(self.journal[-1])
        return key

    def contents(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Returns every row, sorted by key, by family."""
        return {name: sorted(rows.items()) for name, rows in self.families.items()}

    def _load(self) -> None:
        self.families: dict[str, dict[bytes, bytes]] = {name: {} for name in FAMILIES}
        for rows in self.journal:
            self._apply(rows)

    def _apply(self, rows: list[Row]) -> None:
        for family, key, value in rows:
            if value is None:
                self.families[family].pop(key, None)
            else:
                self.families[family][key] = value


class SimulatedFamily:
    """One column family, read-only."""

    def __init__(self, disk: SimulatedDisk, name: str) -> None:
        self._disk = disk
        self._name = name

    def get(self, key: Any) -> Any:
        """Returns the row of one key, or a list of rows for a list of keys."""
        rows = self._disk.families[self._name]
        return [rows.get(each) for each in key] if isinstance(key, list) else rows.get(key)

    get_in_passing = get

    def items(self, *, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Returns all rows from that key on, sorted."""
        return iter([(key, row) for key, row in sorted(self._disk.families[self._name].items()) if from_key is None or key >= from_key])


class SimulatedBatch:
    """Rows that are written together."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._handle: Any = None

    def set_default_column_family(self, handle: Any) -> None:
        """Add the rows that are assigned from now on to that family."""
        self._handle = handle

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Add one row to that family."""
        self.rows.append((self._handle, key, value))

    def put(self, key: bytes, value: bytes, handle: Any) -> None:
        """Add one row."""
        self.rows.append((handle, key, value))

    def delete(self, key: bytes, handle: Any) -> None:
        """Delete one row."""
        self.rows.append((handle, key, None))


class SimulatedStore:
    """A `Store` on a simulated disk. It calls `step` wherever the process may die."""

    filter_bytes = cache_bytes = 0

    def __init__(self, disk: SimulatedDisk, step: Callable[[str], None]) -> None:
        self._disk = disk
        self._step = step
        self._families = {name: SimulatedFamily(disk, name) for name in FAMILIES}

    def family(self, name: str) -> SimulatedFamily:
        """Returns a column family, read-only."""
        return self._families[name]

    def handle(self, name: str) -> str:
        """Returns the value by which a batch names a column family."""
        return name

    def new_batch(self) -> SimulatedBatch:
        """Returns an empty batch."""
        return SimulatedBatch()

    def write(self, batch: SimulatedBatch) -> None:
        """Write the batch atomically."""
        self._step("before the write")
        self._disk.write(batch.rows)
        self._step("after the write")

    def flush(self) -> None:
        """Make all writes so far survive a machine crash."""
        self._disk.flush()

    def close(self) -> None:
        """Close the store; nothing needs to be released."""
