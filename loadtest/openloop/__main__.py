"""Brokers, workers and Locust in one command: `python -P -m loadtest.openloop [--brokers 3] [--workers 2] [--web] [Locust's options]`.

Exit codes are Locust's: 0 with a figure, 1 without; and 2 when the notary could not be started.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.local import CannotRun
from deploy.local.process import python_path, tied
from loadtest.openloop.plan import add_arguments
from loadtest.rig.arguments import count
from loadtest.rig.notaries import interrupt_once, notary_on, verifier_key
from loadtest.rig.progress import progress

STOP_S_MAX = 60.0
_ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a notary, load it, stop it; returns the exit code."""
    # Locust answers --help before it reads its file, so the file's own options are listed here.
    theirs = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    add_arguments(theirs)
    parser = argparse.ArgumentParser(
        prog="python -P -m loadtest.openloop",
        description="Load a notary of its own with Locust. All other options are Locust's, with those that its file adds to them:",
        epilog=theirs.format_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--brokers", type=int, choices=(0, 1, 3), default=3, help="Kafka brokers; 0: the embedded log, of one worker (default: 3)"
    )
    parser.add_argument("--workers", type=count, default=2, help="workers on these brokers (default: 2)")
    parser.add_argument("--web", action="store_true", help="open Locust's web UI on loopback instead of running at once")
    chosen, others = parser.parse_known_args(arguments)
    if chosen.workers > 1 and not chosen.brokers:
        parser.error("an embedded log has one worker: add --workers 1")
    interrupt_once()
    try:
        with notary_on(chosen.brokers, chosen.workers) as running:
            mode = [] if chosen.web else ["--headless"]
            if chosen.web:
                progress("Locust logs the URL of its web UI; Ctrl-C here ends it, with its workers and brokers")
            return _locust(["--host", ",".join(running.urls), "--verifier-key", verifier_key(running.config), *mode, *others])
    except (CannotRun, RuntimeError, OSError) as problem:
        progress(f"cannot go on: {problem}")
        return 2
    except KeyboardInterrupt:
        progress("interrupted")
        return 1


def _locust(arguments: Sequence[str]) -> int:
    """Run Locust as its users do; after an interrupt it gets time to report that there is no figure."""
    locust = subprocess.Popen(
        [*tied(), sys.executable, "-P", "-m", "locust", "-f", str(_ROOT / "loadtest" / "locustfile.py"), *arguments],
        env=os.environ | {"PYTHONPATH": python_path()},
    )
    try:
        return locust.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            locust.send_signal(signal.SIGINT)
            return locust.wait(STOP_S_MAX) or 1
        raise
    finally:
        if locust.poll() is None:
            locust.kill()
            locust.wait()


if __name__ == "__main__":
    sys.exit(main())
