"""Fetches the peers, once: `python -P -m loadtest.peers.fetch`. Debian's PostgreSQL if there is none, and etcd built from its modules."""

import sys

from deploy.commands import install_debian
from deploy.local import CannotRun
from loadtest.peers import etcd, postgresql

DEBIAN_PACKAGE = "postgresql-15"


def main() -> int:
    """Fetch what is missing; returns 0, or 2 after printing the remedy."""
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
    except CannotRun as problem:
        missing = problem
    try:
        install_debian(DEBIAN_PACKAGE)
    except CannotRun as problem:
        raise CannotRun(f"{missing}\n{problem}") from None
    postgresql.find_binaries()


if __name__ == "__main__":
    sys.exit(main())
