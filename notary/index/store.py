"""What the index asks of a disk: a `Store` of five families of rows, sorted by key, written in batches.

The contract of every implementation:

- **All or nothing.** A batch is there whole or not at all, whatever crashes. What is written is read at once.
- **In order.** After a crash of the machine the last batches may be missing (nothing is synchronised but by `flush`), but never one
  before another that is there. The log is the truth, and rows and offsets are lost together (R8).
- What cannot be read or written raises `Exception`, of any kind: RocksDB's binding has no other.

`RocksStore` implements it, and the simulator's disk does, with its faults drawn from a seed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, overload

from ordering.errors import CorruptRecord, Fatal, NotaryError

INDEX_FORMAT_VERSION: Final = 5
STATES, DECISIONS, POSITIONS, TILES, META = "states", "decisions", "positions", "tiles", "meta"
FAMILIES: Final = (STATES, DECISIONS, POSITIONS, TILES, META)
REMEDY: Final = "Restore a snapshot, or move it away and let this worker replay the log"


class Family(Protocol):
    """One family's rows."""

    @overload
    def get(self, key: bytes) -> bytes | None: ...

    @overload
    def get(self, key: Sequence[bytes]) -> list[bytes | None]: ...

    def items(self, *, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """All rows from that key on, in the order of the keys."""
        ...


class Batch(Protocol):
    """Rows to be written together."""

    def put(self, key: bytes, value: bytes, handle: Any) -> None:
        """Write, or write over, one row of the family that the handle stands for."""
        ...


class Store(Protocol):
    """The families of one index."""

    def family(self, name: str) -> Family:
        """The rows of a family, to read."""
        ...

    def handle(self, name: str) -> Any:
        """What stands for a family in a batch."""
        ...

    def new_batch(self) -> Batch:
        """An empty batch."""
        ...

    def write(self, batch: Any) -> None:
        """All of the batch or nothing of it."""
        ...

    def flush(self) -> None:
        """What was written outlives the machine."""
        ...

    def close(self) -> None:
        """Let go of it. Nothing is lost without."""
        ...


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    """What cannot be read, or is no row, is `Fatal`: an index that lost something must not answer."""
    try:
        yield
    except CorruptRecord as problem:
        raise Fatal(f"the index {directory} is corrupt: {problem}. {REMEDY}") from problem
    except NotaryError:
        raise
    except Exception as problem:  # rocksdict raises bare Exception
        raise Fatal(f"the index {directory} cannot be read: {problem}. {REMEDY}") from problem
