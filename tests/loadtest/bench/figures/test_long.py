"""Tests a shortened long run: its output is complete, finished or interrupted, and no process is left."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.bench.figures.long import Sample, figures_of, main
from loadtest.rig.latencies import Failures
from loadtest.rig.machine import family

pytestmark = pytest.mark.seconds


ROOT = Path(__file__).parents[4]


def test_a_run_reports_each_tenth(tmp_path: Path) -> None:
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
        assert min(tenth["worker_mib"], tenth["worker_mib_max"], tenth["index_mib"], tenth["log_mib"]) > 0
    first, last = figures["tenths"][0], figures["tenths"][-1]
    assert abs(figures["last_to_first_tenth"] - last["requests_per_s"] / first["requests_per_s"]) < 0.01
    assert figures["load_cores"] > 0


def test_after_an_interrupt_it_reports_and_leaves_nothing(tmp_path: Path) -> None:
    """After Ctrl-C a line reports it, with the requests until then, and no process is left."""
    out = tmp_path / "long.jsonl"
    options = ["--requests", "50000000", "--brokers", "0", "--warm-up", "0", "--out", str(out)]
    command = [sys.executable, "-m", "loadtest.bench.figures.long", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        # The progress bar has started, and so has the load.
        assert next((line for line in running.stderr if "tenth 1" in line), None), "it ended before it began"
        started = family([running.pid])
        assert len(started) > 2, "a worker, and the process that generates submissions"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 1
    (result,) = map(json.loads, out.read_text().splitlines())
    assert result["figures"]["interrupted"]
    assert result["figures"]["requests"] > 0
    while any(Path(f"/proc/{pid}").exists() for pid in started):  # the last one may be ending
        time.sleep(0.05)


def test_an_interrupted_run_divides_by_the_time_of_its_requests() -> None:
    """Requests that were answered after the last sample do not raise the rate up to it."""
    samples = [Sample(seconds, requests, 0, 0, {"load": 0.0}) for seconds, requests in ((0.0, 0), (2.0, 400))]
    loop = SimpleNamespace(starved_s=0.0, rejected=0, failures=Failures())
    load: Any = SimpleNamespace(requests=600, rejected=0, samples=samples, tenths=[], loop=loop)
    figures = figures_of(load)
    assert (figures["requests"], figures["seconds"], figures["requests_per_s"]) == (600, 2.0, 200.0)
