"""The front of one peer, in its own process: `python -P -m loadtest.peers.serve KIND ADDRESS PORT PARTIES`. Started by `front.start`."""

import sys
from pathlib import Path

import uvloop

from loadtest.peers import etcd, postgresql
from loadtest.peers.front import Open, serve

KINDS: dict[str, Open] = {"postgresql": postgresql.open_decider, "etcd": etcd.open_decider}

if __name__ == "__main__":
    kind, address, port, parties = sys.argv[1:]
    uvloop.run(serve(KINDS[kind], address, int(port), Path(parties)))
