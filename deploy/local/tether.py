"""Ends the brokers of a `with Cluster…` block if the block's process dies in it (SIGKILL, a time limit).

The block's process has the write end of a pipe to a watcher process. However the block's process ends, the kernel closes
the pipe. Then the watcher takes down the cluster that is still in the folder.
"""

import os
import subprocess
import sys
from pathlib import Path

# Source text, not a module: a module of this package would import all of the package at its start, and take 40 MB, not 10.
_WATCH = """
import sys
sys.stdin.buffer.read()
from deploy.local import Cluster
if Cluster.exists(sys.argv[1]):
    Cluster.open(sys.argv[1]).down()
"""


def tie(directory: Path) -> "subprocess.Popen[bytes]":
    """Start the watcher of the cluster in `directory`. It takes down that cluster and ends once its `stdin` is closed."""
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
    """End the watcher, and wait for its end. Call this after the cluster was taken down."""
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait()
