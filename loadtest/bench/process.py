"""A load in a process of its own: its parameters and its result are one JSON document each."""

import subprocess
import sys
from typing import Any, TypeVar

import msgspec

from loadtest.bench.service import environment

Told = TypeVar("Told")


def run_module(module: str, plan: Any, told: type[Told], seconds_max: float) -> Told:
    """Returns the output of the module's process for a plan. Raises `RuntimeError` when it fails; an interrupt ends it too."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", module, msgspec.json.encode(plan).decode()],
        stdout=subprocess.PIPE,
        timeout=seconds_max,
        check=False,
        env=environment(),
        start_new_session=True,  # a Ctrl-C is for this process, which then ends the other
    )
    if done.returncode:
        raise RuntimeError(f"the load ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=told)
