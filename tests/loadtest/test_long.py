"""Tests a shortened long run: its output is complete, finished or interrupted, and no process is left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from loadtest.bench.ahead import Ahead
from loadtest.bench.facts import family
from loadtest.bench.generate import submissions
from loadtest.bench.long import main

pytestmark = pytest.mark.seconds


ROOT = Path(__file__).parents[2]


def test_a_run_tells_of_each_tenth(tmp_path: Path) -> None:
    """A run reports ten tenths with rates, costs, memory and disk, their last-to-first ratio, and the cost of the load itself."""
    out = tmp_path / "long.jsonl"
    arguments = ["--requests", "5000", "--submission-requests", "50", "--brokers", "0", "--warm-up", "0", "--out", str(out)]
    assert main(arguments) == 0
    (result,) = map(json.loads, out.read_text().splitlines())
    figures = result["figures"]
    assert figures["requests"] == 5_000
    assert len(figures["tenths"]) == 10
    for tenth in figures["tenths"]:
        assert tenth["requests_per_s"] > 0
        assert min(tenth["worker_mib"], tenth["index_mib"], tenth["log_mib"]) > 0
    first, last = figures["tenths"][0], figures["tenths"][-1]
    assert abs(figures["last_to_first_tenth"] - last["requests_per_s"] / first["requests_per_s"]) < 0.01
    assert figures["load_cores"] > 0


async def test_submissions_made_elsewhere_are_the_same() -> None:
    """Submissions from the other process are exactly those that this one would make."""
    async with Ahead.of(7, 3, 2, 20) as ahead:
        await ahead.filled()
        taken = [ahead.take() for _ in range(20)]
        assert taken == list(islice(submissions(7, 3, 2), 20))
        assert (ahead.take(), ahead.left) == (None, 0)


async def test_a_maker_that_ends_early_is_noticed() -> None:
    """The end of the process that makes submissions is noticed, so that nothing waits for more."""
    async with Ahead.of(7, 100, 2, 10_000_000) as ahead:
        await ahead.filled()
        os.kill(ahead.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not ahead.problem:
                ahead.take()
                await ahead.more()
        assert "ended" in ahead.problem


def test_interrupted_it_tells_what_it_has_and_leaves_nothing(tmp_path: Path) -> None:
    """After Ctrl-C a line reports it, with the requests until then, and no process is left."""
    out = tmp_path / "long.jsonl"
    command = [sys.executable, "-m", "loadtest.bench.long", "--requests", "50000000", "--brokers", "0", "--warm-up", "0", "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        # The progress bar has started, and so has the load.
        assert next((line for line in running.stderr if "tenth 1" in line), None), "it ended before it began"
        started = family([running.pid])
        assert len(started) > 2, "a worker, a maker"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 1
    (result,) = map(json.loads, out.read_text().splitlines())
    assert result["figures"]["interrupted"]
    assert result["figures"]["requests"] > 0
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
