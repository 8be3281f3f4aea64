"""Tests the figure `fairness` on a real worker: ten parties, and one of them sends more."""

import io
import json

import pytest

from loadtest.bench.figures import all_figures
from loadtest.bench.figures.fairness import PARTIES, measure
from loadtest.bench.loads import Case
from loadtest.bench.report import Report, ResultLine
from loadtest.rig.notaries import workers_on

pytestmark = pytest.mark.seconds


@pytest.mark.nightly
def test_both_ways_of_a_greedy_party() -> None:
    """Ten parties are decided in every load, the nine keep some of their rate, and the table has a row for each way."""
    lines = io.StringIO()
    with workers_on(None, parties=PARTIES) as running:
        measure(Report(lines, io.StringIO()), running, Case(20, 1), 2.0, 1)
    found = [ResultLine(**json.loads(line)) for line in lines.getvalue().splitlines()]
    assert [line.case.partition(",")[0] for line in found] == ["10 times the connections", "10 times its rate"]
    for line in found:
        figures = line.figures
        assert not line.failed
        assert 0 < figures["least_kept"] <= figures["others_kept"]
        assert figures["greedy_requests_per_s"] > 0
        assert figures["others_latency_ms_p99"] > 0
        assert figures["worker_cores"] > 0
    head, *rows = all_figures()["fairness"].tables["fairness"](found)
    assert [len(row) for row in rows] == [len(head)] * 2
