"""Scrubs an index: reads every row from the disk while the worker goes on writing, so that corrupt blocks are found before a client asks.

RocksDB checks a block's checksum only when it reads the block, so a row that no client asks for may stay corrupt for years. The scrub reads
every row of every family, in its own process with the lowest priority. It sleeps four times as long as it works. It opens a new view of the
index (`view`) for each part of the rows, so that no deleted file is kept for long.

`python -P -m notary.index.scrub DIRECTORY` exits with 0 when it could read all rows. It exits with 1, and the reason on stdout, when a row
is corrupt or cannot be read. It exits with 2, and the reason, when it cannot open an index there.
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
from ordering.errors import ConfigurationError, CorruptRecord, Fatal
from ordering.ids import STATE_REF_BYTES

PART_ROWS: Final = 500_000
REST_SHARE: Final = 4.0
DAY_S: Final = 86_400.0
EXIT_SOUND, EXIT_ROTTEN, EXIT_COULD_NOT = 0, 1, 2


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
            rest(REST_SHARE * (now_s() - began_s))
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


def main(directory: Path) -> int:
    """Scrub the index once at the lowest priority. Returns the exit code."""
    os.nice(19)
    try:
        scrub(directory, time.sleep, time.monotonic)
    except Fatal as problem:
        print(problem, flush=True)
        return EXIT_ROTTEN
    except ConfigurationError as problem:
        print(problem, flush=True)
        return EXIT_COULD_NOT
    return EXIT_SOUND


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
