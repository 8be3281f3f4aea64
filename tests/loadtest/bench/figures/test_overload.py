"""Tests the loads of the bench on a real worker: a closed loop, the curve and the overload."""

import io
import json
from itertools import count

import pytest

from loadtest.bench.figures import end_to_end
from loadtest.bench.figures.overload import measure_curve, measure_overload
from loadtest.bench.loads import Case
from loadtest.bench.report import Report
from loadtest.rig.notaries import workers_on

pytestmark = pytest.mark.seconds


CASE = Case(20, 1)


def test_a_closed_loop_and_a_curve_of_a_real_worker() -> None:
    """A closed loop, and an open one at half of its rate: each result line has all its measures."""
    lines = io.StringIO()
    report = Report(lines, io.StringIO())
    with workers_on(None) as running:
        end_to_end.measure(report, running, CASE, 0.4, 1)
        for seed in count(1_000, 100):  # until the machine does not pause
            measure_curve(report, running, CASE, 0.4, seed, shares=(0.5,))
            closed, *_, half = map(json.loads, lines.getvalue().splitlines())
            if 0 < half["figures"]["due_requests_per_s"] < half["figures"]["capacity_requests_per_s"]:
                break
    assert not closed["failed"]
    assert not half["failed"]
    assert closed["case"] == "20 a submission, 1 input, embedded log"
    assert closed["figures"]["requests_per_s"] > 0
    assert half["case"] == "20 a submission, 1 input, embedded log, at 50%"


@pytest.mark.nightly
def test_an_overload_of_a_real_worker() -> None:
    """Three times the capacity, in turn with closed loops, on one worker: the result line has all measures."""
    lines = io.StringIO()
    with workers_on(None) as running:
        measure_overload(Report(lines, io.StringIO()), running, 1.0, 2_000, case=CASE, times=3.0, pairs=2, connections_max=64)
    (overload,) = map(json.loads, lines.getvalue().splitlines())
    assert not overload["failed"]
    figures = overload["figures"]
    for rate in ("goodput_requests_per_s", "capacity_requests_per_s"):
        assert 0 < figures[f"{rate}_min"] <= figures[rate] <= figures[f"{rate}_max"]
    share = figures["goodput_requests_per_s"] / figures["capacity_requests_per_s"]
    assert figures["goodput_share_of_capacity"] == pytest.approx(share, rel=0.001)
    assert figures["due_requests_per_s"] > figures["capacity_requests_per_s"]
    expected = {"rejected_share", "wait_to_retry_after_p50", "latency_ms_p99", "retry_after_s_p50", "worker_cores", "load_cores"}
    assert expected <= set(figures)
    assert figures["by_time"]
    assert all(moment["worker_mib"] > 0 for moment in figures["by_time"])
