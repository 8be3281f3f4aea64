"""Scrubs an index: reads every row from the disk while the worker goes on writing, so that corrupt blocks are found before a client asks.

RocksDB checks a block's checksum only when it reads the block, so a row that no client asks for may stay corrupt for years. The scrub reads
every row of every family, in its own process with the lowest priority. It sleeps four times as long as it works. It opens a new view of the
index (`view`) for each part of the rows, so that no deleted file is kept for long.

`python -P -m notary.index.scrub DIRECTORY` exits with 0 when it could read all rows. It exits with 65, and the reason on stdout, when a row
is corrupt, or the disk could not return it. Any other code means that the scrub was not completed, for example for want of memory, space or
open files. Then nothing is known about the rows.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from notary.decision import from_row
from notary.index import rows
from notary.index.store import DECISIONS, FAMILIES, STATES, Reading
from notary.index.view import viewing
from ordering.errors import ConfigurationError, CorruptRecord, Fatal, FatalCode
from ordering.ids import STATE_REF_BYTES

PART_ROWS: Final = 500_000
REST_RATIO: Final = 4.0
"""The time that the scrub sleeps after each part, divided by the time that the part took."""
EXIT_SOUND, EXIT_COULD_NOT = 0, 2
EXIT_CORRUPT: Final = 65
"""EX_DATAERR of sysexits.h. Python itself ends with 1 after a bug."""
ATTEMPTS_MAX: Final = 2
_NO_FILE: Final = "No such file"
_DATA_ERRORS: Final = ("Corruption", "Input/output error", _NO_FILE)
"""Parts of RocksDB's errors that the data causes. Most other errors mean that the process lacks a resource."""


def scrub(directory: Path, rest: Callable[[float], None], now_s: Callable[[], float]) -> int:
    """Read every row once. Returns their number. Raises `Fatal` for the first row that cannot be read or decoded."""
    read = 0
    for family in FAMILIES:
        key: bytes | None = None
        while True:
            began_s = now_s()
            with viewing(directory) as view:
                found, key = _part(view.rows_of(family, key), family, directory)
            read += found
            if found < PART_ROWS:
                break
            rest(REST_RATIO * (now_s() - began_s))
    return read


def _part(part: Iterator[tuple[bytes, bytes]], family: str, directory: Path) -> tuple[int, bytes | None]:
    count, last = 0, None
    with Reading(directory):
        for key, row in part:
            if family == STATES:
                if len(key) != STATE_REF_BYTES:
                    raise CorruptRecord(f"a state's key has {len(key)} bytes, not {STATE_REF_BYTES}")
                rows.state_of(row)
            elif family == DECISIONS:
                from_row(key, row)
            count, last = count + 1, key
            if count == PART_ROWS:
                break
    return count, last


def main(directory: Path, attempts: int = ATTEMPTS_MAX) -> int:
    """Scrub the index once at the lowest priority. Returns the exit code. A missing file counts only if the last attempt misses it too."""
    os.nice(19)
    try:
        scrub(directory, time.sleep, time.monotonic)
    except Fatal as problem:
        if attempts > 1 and _NO_FILE in str(problem):
            return main(directory, attempts - 1)  # another process may have removed the links to the files
        print(problem, flush=True)
        return EXIT_CORRUPT if _is_corruption(problem) else EXIT_COULD_NOT
    except (ConfigurationError, OSError, MemoryError) as problem:
        print(problem, flush=True)
        return EXIT_COULD_NOT
    return EXIT_SOUND


def _is_corruption(problem: Fatal) -> bool:
    """Returns True if the data caused the error. A sound index must not be quarantined, since a quarantine lasts for ever."""
    cause = problem.__cause__
    while isinstance(cause, Fatal):
        cause = cause.__cause__
    if problem.code is not FatalCode.INDEX_DAMAGED:
        return False
    return cause is None or isinstance(cause, CorruptRecord) or any(part in str(cause) for part in _DATA_ERRORS)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
