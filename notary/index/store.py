"""`Store`: the storage interface that the index needs: five families of rows, sorted by key, written in batches.

The contract of every implementation:

- **Atomic.** After any crash a batch is stored completely or not at all. Reads see a batch as soon as it is written.
- **In order.** After a crash of the machine the last batches may be missing, since only `flush` syncs. No batch is stored after a missing
  one. The log is the truth, and rows and offsets are lost together (R8).
- A read or write that fails raises an `Exception` of any type: rocksdict has no exception type of its own.

`RocksStore` implements it, and so does the simulator's disk, which draws its faults from a seed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, overload

from ordering.errors import CorruptRecord, Fatal, FatalCode, NotaryError
from ordering.store import OPEN_FILES, has_no_space

INDEX_FORMAT_VERSION: Final = 5
STATES, DECISIONS, POSITIONS, TILES, META = "states", "decisions", "positions", "tiles", "meta"
FAMILIES: Final = (STATES, DECISIONS, POSITIONS, TILES, META)
REMEDY: Final = "Move the index away, then restore a snapshot or let this worker replay the log"


class Family(Protocol):
    """The rows of one family."""

    @overload
    def get(self, key: bytes) -> bytes | None: ...

    @overload
    def get(self, key: Sequence[bytes]) -> list[bytes | None]: ...

    @overload
    def get_in_passing(self, key: bytes) -> bytes | None: ...

    @overload
    def get_in_passing(self, key: Sequence[bytes]) -> list[bytes | None]:
        """As `get`, for rows that will not soon be read again: their blocks do not enter the cache."""
        ...

    def items(self, *, from_key: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yields all rows from that key on, in the order of the keys."""
        ...


class WriteBatch(Protocol):
    """Rows to be written together. An assignment of a row takes two thirds of the time of `put`."""

    def set_default_column_family(self, handle: Any) -> None:
        """Add the rows that are assigned from now on to the family of that handle."""
        ...

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Add a row as `put` does, for that family."""
        ...

    def put(self, key: bytes, value: bytes, handle: Any) -> None:
        """Add a row to the batch, for the family of that handle. The row overwrites one with the same key."""
        ...

    def delete(self, key: bytes, handle: Any) -> None:
        """Delete one row with the batch."""
        ...


class Store(Protocol):
    """The families of one index."""

    @property
    def filter_bytes(self) -> int:
        """Bytes that the bloom filters of all rows need, about; 0 for a store without."""
        ...

    @property
    def cache_bytes(self) -> int:
        """The most bytes of filters and blocks that the store keeps in memory."""
        ...

    def family(self, name: str) -> Family:
        """Returns the rows of a family, for reading."""
        ...

    def handle(self, name: str) -> Any:
        """Returns the handle by which a batch names a family."""
        ...

    def new_batch(self) -> WriteBatch:
        """Returns an empty batch."""
        ...

    def write(self, batch: Any) -> None:
        """Write the batch atomically."""
        ...

    def flush(self) -> None:
        """Sync: everything written so far survives a crash of the machine."""
        ...

    def close(self) -> None:
        """Release files and locks. A process that ends without this loses nothing."""
        ...


def raise_if_out_of_resources(directory: Path, problem: Exception) -> None:
    """Raise the error of an index that needs more space or open files: it is not damaged. Return for any other error."""
    if has_no_space(problem):
        raise Fatal(
            FatalCode.DISK_FULL,
            f"the index {directory} does not open: {problem}. Free or replace its disk, then start again (docs/runbook.md,"
            " 'A disk is full')",
        ) from problem
    if OPEN_FILES in str(problem):
        raise Fatal(
            FatalCode.OPEN_FILES,
            f"the index {directory} cannot be opened or read: {problem}. Raise the limit of the process (`ulimit -n`, `LimitNOFILE=`) or"
            " of the machine (`fs.file-max`): all files of an index stay open, and a file has at most 64 MiB",
        ) from problem


class Reading:
    """Turn errors of reading or decoding a row in this block into `Fatal`: an index that lost a row must not answer."""

    __slots__ = ("_directory",)

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        if problem is not None:
            raise_fatal(self._directory, problem)


def raise_fatal(directory: Path, problem: BaseException) -> None:
    """Raise the `Fatal` for an error of reading or decoding a row; return for any other error."""
    if isinstance(problem, CorruptRecord):
        raise Fatal(FatalCode.INDEX_DAMAGED, f"the index {directory} is corrupt: {problem}. {REMEDY}") from problem
    if isinstance(problem, (NotaryError, MemoryError)) or not isinstance(problem, Exception):
        return
    raise_if_out_of_resources(directory, problem)  # opening a new index writes its first rows
    text = str(problem) if type(problem) is Exception else repr(problem)  # rocksdict raises bare Exception, with RocksDB's text
    raise Fatal(FatalCode.INDEX_DAMAGED, f"the index {directory} cannot be read: {text}. {REMEDY}") from problem
