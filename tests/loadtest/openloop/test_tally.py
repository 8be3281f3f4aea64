"""Tests that only a complete and clean run has a result."""

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from loadtest.openloop.checker import Ledger
from loadtest.openloop.plan import LoadPlan, Mix
from loadtest.openloop.tally import StageTally, Tally, decode, encode, figure, lines_of, reasons_against, total
from loadtest.rig.schedule import stages_of
from tests.loadtest.openloop.test_ledger import _seen

PLAN = LoadPlan(
    run="r", seed="s", stages=stages_of("steady", 10.0, 2.0, warm_up_seconds=1.0), mix=Mix(submission_requests=2), urls=("http://a",),
    notary_name="n", party="p", key_file=None, verifier_key=None, receipt_sample=0.0, deadline_s=1.0,
)  # fmt: skip


def _complete() -> Tally:
    stages = []
    for submissions in (5, 10):
        stage = StageTally(submissions, answered_last_s=3.5)
        for ms in range(1, submissions + 1):
            stage.latency.add(ms)
        stages.append(stage)
    return Tally(stages, answered=15, decided=30, counts={"committed": 30}, finished=True)


def _reasons(tally: Tally) -> list[str]:
    ledger = Ledger(0)
    ledger.add(_seen(*[(position, 1) for position in range(30)]))
    ledger.close(alone=True)
    return reasons_against(tally, ledger, submissions=15)


def test_a_complete_run_has_a_figure() -> None:
    """A result separates requests from submissions, leaves the warm-up out, and counts the time until the last answer."""
    assert _reasons(_complete()) == []
    found = figure(PLAN, _complete())
    assert (found["requests"], found["submissions"]) == (20, 10)
    [stage] = found["stages"]
    assert stage["requests_per_s"] == 20 / 2.5
    assert stage["latency_ms_max"] == 10
    assert any("10/s" in line for line in lines_of(found))


@pytest.mark.parametrize(("cores", "lag_ms", "warned"), [(0.5, 1, False), (0.95, 1, True), (0.5, 20, True)])
def test_a_load_short_of_cpu_warns(cores: float, lag_ms: float, warned: bool) -> None:
    """The figure has the cores of the busiest process and its own delay; a warning follows when the load was short of CPU time."""
    tallies = [_complete(), _complete()]
    tallies[0].cores = 0.1
    tallies[1].cores = cores
    tallies[1].lag.add(lag_ms)
    found = figure(PLAN, total(tallies, 2))
    assert (found["load_cores_of_busiest"], found["load_lag_ms_p99"]) == (cores, lag_ms)
    assert any("short of CPU time" in line for line in lines_of(found)) is warned


def _spoil(name: str, value: object) -> Callable[[Tally], None]:
    return lambda tally: setattr(tally, name, value)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_spoil("answered", 14), "interrupted: 1 of 15"),
        (_spoil("finished", False), "interrupted"),
        (lambda tally: tally.fail("no answer"), "1 of 15 submissions failed"),
        (_spoil("violations", ["a double spend"]), "the notary broke its promises"),
        (_spoil("decided", 31), "31 transactions were decided, at 30 positions"),
    ],
)
def test_anything_wrong_has_none(spoil: Callable[[Tally], None], why: str) -> None:
    """After any failure there is the reason instead of a result."""
    tally = _complete()
    spoil(tally)
    assert any(why in reason for reason in _reasons(tally))


def test_a_gap_has_none() -> None:
    """A violation that the ledger found counts like that of any process."""
    ledger = Ledger(0)
    ledger.add(_seen((0, 1), (2, 1)))
    ledger.close(alone=True)
    assert any("gaps" in reason for reason in reasons_against(_complete(), ledger, submissions=15))


def test_processes_add_up() -> None:
    """Counts, times and failures of all processes are added; the run is finished when all are."""
    one, other = _complete(), _complete()
    other.fail("it failed")
    other.finished = False
    complete = total([one, other], 2)
    assert (complete.answered, complete.failed, complete.decided, complete.counts) == (30, 1, 60, {"committed": 60})
    assert complete.stages[1].latency.count == 2 * one.stages[1].latency.count
    assert complete.stages[1].latency.percentiles() == replace(one.stages[1].latency.percentiles(), count=20)
    assert complete.failures == ["it failed"]
    assert not complete.finished
    assert not total([], 2).finished


def test_a_tally_travels() -> None:
    """A tally arrives at the coordinator as it was, its histograms included."""
    tally = decode(json.loads(json.dumps(encode(_complete()))))
    assert tally.counts == {"committed": 30}
    assert tally.stages[1].latency.count == 10
    assert tally.stages[1].latency.percentile_ms(100) == pytest.approx(10, rel=1e-3)
