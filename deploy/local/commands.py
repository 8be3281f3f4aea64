"""Runs commands of this machine: `run` runs one to its end, `install_debian` installs Debian packages."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.errors import CannotRun


def run(command: Sequence[str | Path], cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its stdout. `environment` adds variables. Raises CannotRun with its output if it fails."""
    variables = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as problem:
        raise CannotRun(f"{command[0]} does not run: {problem}") from None
    if done.returncode:
        raise CannotRun(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return done.stdout


def install_debian(*packages: str) -> None:
    """Install Debian packages, without recommended ones. Raises CannotRun, also if this is not Debian or the user is not root."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise CannotRun(f"{names} must be installed: that needs Debian and root, so install it by hand, or run this as root")
    print(f"installing Debian's {names}", file=sys.stderr, flush=True)
    # At this run level Debian packages do not start the services that they install.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    run(["apt-get", "update", "-qq"], environment=quiet)
    run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages], environment=quiet)
