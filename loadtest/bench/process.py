"""A load in a process of its own: what it is told and what it tells are one JSON each."""

import subprocess
import sys
from typing import Any, TypeVar

import msgspec

from loadtest.bench.service import environment

Told = TypeVar("Told")


def run_module(module: str, plan: Any, told: type[Told], seconds_max: float) -> Told:
    """What the module's process prints, given the plan. RuntimeError when it fails; it does not outlive an interrupt of this one."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module, msgspec.json.encode(plan).decode()],
        stdout=subprocess.PIPE,
        timeout=seconds_max,
        check=False,
        env=environment(),
        start_new_session=True,  # a Ctrl-C is for this process, which then ends that one
    )
    if done.returncode:
        raise RuntimeError(f"the load ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=told)
