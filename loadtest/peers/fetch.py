"""What the peers need, once: `python -m loadtest.peers.fetch`. Debian's PostgreSQL if there is none, and etcd built from its modules."""

import os
import shutil
import subprocess
import sys

from deploy.local import CannotRun
from loadtest.peers import etcd, postgresql

DEBIAN_PACKAGE = "postgresql-15"


def main() -> int:
    """Fetch what is missing; 0, or 2 with what to do."""
    try:
        _fetch_postgresql()
        etcd.build()
    except CannotRun as problem:
        print(f"peers: {problem}", file=sys.stderr)
        return 2
    return 0


def _fetch_postgresql() -> None:
    try:
        postgresql.find_binaries()
        return
    except CannotRun:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise
    print(f"peers: installing Debian's {DEBIAN_PACKAGE}", file=sys.stderr, flush=True)
    # At this level Debian's packages do not start what they install: the server that they would run on port 5432 is none of ours.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", "--no-install-recommends", DEBIAN_PACKAGE]):
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise CannotRun(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}")
    postgresql.find_binaries()


if __name__ == "__main__":
    sys.exit(main())
