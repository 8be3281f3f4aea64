"""Ends the brokers of a `with Cluster…` block whose process died without leaving the block (SIGKILL, a time limit).

The block holds the writing end of a pipe to this process. The system closes it however the block's process ends; then
whatever cluster is still in the folder is taken down.
"""

import os
import subprocess
import sys
from pathlib import Path

# Not a module of its own: it would import this whole room, and shall weigh little while it waits (10 MB against 40).
_WATCH = """
import sys
sys.stdin.buffer.read()
from deploy.local import Cluster
if Cluster.exists(sys.argv[1]):
    Cluster.open(sys.argv[1]).down()
"""


def tie(directory: Path) -> "subprocess.Popen[bytes]":
    """Start the watcher of the cluster in `directory`. Close its `stdin` to let it go."""
    search_path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _WATCH, str(directory)],
        env=os.environ | {"PYTHONPATH": search_path},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it must outlive a Ctrl-C that ends the block
    )


def release(watcher: "subprocess.Popen[bytes]") -> None:
    """Let the watcher go: it finds no cluster and ends."""
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait()
