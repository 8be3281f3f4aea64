"""Runs `notary ...` and kills this process with SIGKILL before the n-th change of a file.

    python -m tests.notary.snapshots.dying N FOLDER notary-arguments...

Changes of RocksDB's own are not counted. A run that is not killed prints the number of changes in FOLDER as the last line of stderr.
"""

import os
import signal
import sys

from notary import cli

CHANGES = ("os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
seen = 0


def count(event: str, arguments: tuple[object, ...]) -> None:
    """Python's audit hook: dies before the n-th change in the folder."""
    global seen
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wxa+")
    if (writes or event in CHANGES) and any(str(each).startswith(sys.argv[2]) for each in arguments):
        seen += 1
        if seen == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.addaudithook(count)
    code = cli.main(sys.argv[3:])
    print(seen, file=sys.stderr)
    sys.exit(code)
