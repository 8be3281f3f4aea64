"""The simulated disk under an index: whole batches, in order, and what a crash of the machine takes off their end.

`SimulatedDisk` outlives the process; `SimulatedStore` is one opening of it, as `notary.index.store` asks for it.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from notary.index.store import FAMILIES

Row = tuple[str, bytes, bytes | None]
"""(family, key, value); None takes the row away, which only a fault does."""
FLUSHED_CHANCE = 0.2
"""How likely the system writes out all that is there so far, after a batch."""


class SimulatedDisk:
    """The batches that were written, and how many of them outlive the machine."""

    def __init__(self, seed: str) -> None:
        self._draw = random.Random(seed)
        self.full = False
        self.full_until_s = float("-inf")
        """When it was not full any more."""
        self.wipe()

    def wipe(self) -> None:
        """A new disk."""
        self.journal: list[list[Row]] = []
        self.flushed = 0
        self.judged_live = 0
        """The ordering offset up to which processes that were ready have judged the log, for this disk."""
        self._altered: list[tuple[int, str]] = []
        self._load()

    @property
    def altered(self) -> frozenset[str]:
        """The families in which a row was changed by something that is not the index."""
        return frozenset([family for _, family in self._altered])

    def write(self, rows: list[Row]) -> None:
        """One batch: all of it or nothing."""
        if self.full:
            raise Exception("IO error: No space left on device")  # as rocksdict raises it
        self.journal.append(rows)
        self._apply(rows)
        if self._draw.random() < FLUSHED_CHANCE:
            self.flush()

    def flush(self) -> None:
        """All so far outlives the machine."""
        self.flushed = len(self.journal)

    def lose_unflushed(self) -> int:
        """The machine stops: any number of batches that were not flushed are lost, the last first. How many."""
        kept = self._draw.randint(self.flushed, len(self.journal))
        lost = len(self.journal) - kept
        self.restore(kept)
        return lost

    def restore(self, batches: int) -> None:
        """Go back to how it was after so many batches."""
        del self.journal[batches:]
        self._altered = [(at, family) for at, family in self._altered if at < batches]
        self.flushed = len(self.journal)
        self._load()

    def alter(self, family: str, *, remove: bool = False) -> bytes | None:
        """Change one row behind the index's back, or take it away; its key, None when there is no row."""
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
        """Every row, sorted."""
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
    """One family's rows, to read."""

    def __init__(self, disk: SimulatedDisk, name: str) -> None:
        self._disk = disk
        self._name = name

    def get(self, key: Any) -> Any:
        """One row, or as many as keys."""
        rows = self._disk.families[self._name]
        return [rows.get(each) for each in key] if isinstance(key, list) else rows.get(key)

    def items(self, *, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """All from that key on."""
        return iter([(key, row) for key, row in sorted(self._disk.families[self._name].items()) if from_key is None or key >= from_key])


class SimulatedBatch:
    """Rows to be written together."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def put(self, key: bytes, value: bytes, handle: Any) -> None:
        """One more row."""
        self.rows.append((handle, key, value))


class SimulatedStore:
    """A `Store`. `step` is where the process may die."""

    def __init__(self, disk: SimulatedDisk, step: Callable[[str], None]) -> None:
        self._disk = disk
        self._step = step
        self._families = {name: SimulatedFamily(disk, name) for name in FAMILIES}

    def family(self, name: str) -> SimulatedFamily:
        """The rows of a family, to read."""
        return self._families[name]

    def handle(self, name: str) -> str:
        """What stands for a family in a batch."""
        return name

    def new_batch(self) -> SimulatedBatch:
        """An empty batch."""
        return SimulatedBatch()

    def write(self, batch: SimulatedBatch) -> None:
        """All of it or nothing."""
        self._step("before the write")
        self._disk.write(batch.rows)
        self._step("after the write")

    def flush(self) -> None:
        """What was written outlives the machine."""
        self._disk.flush()

    def close(self) -> None:
        """Nothing to let go of."""
