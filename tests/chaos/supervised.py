"""`notary serve` that is killed when the test's process ends for any reason: `python -m tests.chaos.supervised serve ...`.

A test that is killed with SIGKILL cannot end its workers. The kernel does (prctl's PR_SET_PDEATHSIG, Linux only).
"""

import ctypes
import os
import signal
import sys

from notary import cli

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == 1:  # the parent ended before prctl
            sys.exit(2)
    sys.exit(cli.main(sys.argv[1:]))
