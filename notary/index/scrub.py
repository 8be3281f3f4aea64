"""Reads a whole index from its disk, beside the worker that writes it: rotten bytes are found before somebody asks for them.

RocksDB checks a block's checksum when it reads the block, so a row that nobody asks for may be rotten for years. This goes through every
row of every family, in a process of its own with the lowest priority, and rests four times as long as it works. It reads views of the
index (`view`), a part at a time, so that no deleted file is kept for long.

`python -P -m notary.index.scrub DIRECTORY` ends with 0 when all rows could be read, with 1 and the reason on stdout when one could not.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from notary.decision import from_row
from notary.index import rows
from notary.index.store import DECISIONS, FAMILIES, STATES, reading
from notary.index.view import viewing
from ordering.errors import ConfigurationError, CorruptRecord, Fatal
from ordering.ids import STATE_REF_BYTES

PART_ROWS: Final = 500_000
REST_SHARE: Final = 4.0
DAY_S: Final = 86_400.0
EXIT_SOUND, EXIT_ROTTEN, EXIT_COULD_NOT = 0, 1, 2


def scrub(directory: Path, rest: Callable[[float], None], now_s: Callable[[], float]) -> int:
    """Read every row once; how many there are. Raises `Fatal` for the first that cannot be read or is no row."""
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
    with reading(directory):
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
    """One round; its exit code."""
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
