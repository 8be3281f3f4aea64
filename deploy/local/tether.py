"""Ends the processes of a `with` block, such as the brokers of a `Cluster`, if the block's process dies in it (SIGKILL, a time limit).

The block's process has the write end of a pipe to a watcher process. However the block's process ends, the kernel closes the pipe. Then the
watcher ends the processes that the files in the block's folder name.
"""

import os
import subprocess
import sys
from pathlib import Path

from deploy.local.process import python_path


def tie(directory: Path, ending: str) -> "subprocess.Popen[bytes]":
    """Start the watcher of `directory`. Once its `stdin` is closed, it runs the Python statements `ending` with that argument, and ends."""
    # Source text, not a module: a module would import all of its package at its start, and take 40 MB, not 10.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"import sys\nsys.stdin.buffer.read()\n{ending}", str(directory)],
        env=os.environ | {"PYTHONPATH": python_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it must outlive a Ctrl-C that ends the block
    )


def release(watcher: "subprocess.Popen[bytes]") -> None:
    """End the watcher, and wait for its end. Call this after the processes have ended."""
    assert watcher.stdin is not None
    watcher.stdin.close()
    watcher.wait()
