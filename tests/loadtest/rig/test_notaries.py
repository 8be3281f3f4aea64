"""Tests that processes under test end with the process that started them, and that none waits for ever."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.notaries import run_module

ROOT = Path(__file__).parents[3]
BENCH = """
import time
from loadtest.rig.notaries import interrupt_once, notary_on
interrupt_once()
with notary_on(0) as running:
    print(*running.pids["worker"], flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def _bench(tmp_path: Path, *before: str) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A process with a worker, and the pids of the worker."""
    command = [*before, sys.executable, "-P", "-c", BENCH]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as bench:
        assert bench.stdout is not None
        try:
            yield bench, [int(pid) for pid in bench.stdout.readline().split()]
        finally:
            bench.kill()


@pytest.mark.seconds
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL, signal.SIGTERM], ids=["hang-up", "kill", "terminate"])
def test_a_worker_ends_with_its_bench(tmp_path: Path, number: signal.Signals) -> None:
    """However the process of a bench ends, its worker ends; only SIGKILL leaves the temporary folder."""
    with _bench(tmp_path) as (bench, pids):
        assert pids
        bench.send_signal(number)
        bench.wait()
        while any(map(psutil.pid_exists, pids)):
            time.sleep(0.05)
    assert bool(list(tmp_path.glob("bench-notary-*"))) == (number == signal.SIGKILL)


@pytest.mark.seconds
def test_nohup_keeps_a_bench(tmp_path: Path) -> None:
    """Under nohup a bench ignores SIGHUP, as without a handler; SIGTERM still ends it in order."""
    with _bench(tmp_path, "nohup") as (bench, pids):
        bench.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert all(map(psutil.pid_exists, pids))
        bench.send_signal(signal.SIGTERM)
        bench.wait()
    assert list(tmp_path.glob("bench-notary-*")) == []


@pytest.mark.seconds
def test_a_load_that_hangs_is_an_error() -> None:
    """A load that does not end within its limit is a `RuntimeError` with a sentence, so the next measurement can follow."""
    load = ClosedLoad(["http://127.0.0.1:9"], seed=1, requests=1, inputs=1, connections=1, seconds=60.0, submissions_max=10_000, pids={})
    with pytest.raises(RuntimeError, match=r"^the load did not end within 0\.1 s$"):
        run_module("loadtest.rig.closed_loop", [load], list[LoadResult], 0.1)
