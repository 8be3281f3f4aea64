"""Tests the sizes and the failures of the loads of the bench."""

import pytest

from loadtest.bench.figures.overload import _together
from loadtest.bench.figures.peers import _figures
from loadtest.bench.loads import ahead_of, failed
from loadtest.rig.closed_loop import LoadResult
from loadtest.rig.latencies import Latencies
from loadtest.rig.open_loop import Offered


@pytest.mark.parametrize(("requests", "inputs", "published"), [(1, 4, 9_436), (10, 4, 15_170), (100, 4, 41_715), (100, 1, 56_944)])
def test_more_is_generated_than_was_ever_decided(requests: int, inputs: int, published: int) -> None:
    """Without a warm-up there are 1.5 times the requests of the fastest results in docs/performance.md."""
    assert ahead_of(requests, inputs, 20.0) * requests / 20.0 > 1.4 * published


def test_a_warm_up_gives_the_size() -> None:
    """After a warm-up there are twice its requests; a warm-up with a pause does not make the load too small."""
    assert ahead_of(100, 4, 10.0, 50_000.0) == 10_000
    assert ahead_of(100, 4, 10.0, 1.0) == ahead_of(100, 4, 10.0) // 4


@pytest.mark.parametrize(
    "offered", [Offered(due=9, sent=9, rejected=9), Offered(due=9, sent=9, undecided=9)], ids=["rejected", "undecided"]
)
def test_a_load_without_a_decision_failed(offered: Offered) -> None:
    """An open loop without any decided submission failed, as a closed loop without any request does."""
    assert failed(offered)
    assert failed(LoadResult())
    assert not failed(Offered(due=9, sent=9, decided=1, rejected=8))


def test_one_load_that_ran_out_is_kept() -> None:
    """The figures of several open loops show that one of them ran out, whichever it was."""
    ran_out, complete = {"rate": 1.0, "ran_out": True}, {"rate": 3.0}
    assert _together([ran_out, complete]) == _together([complete, ran_out]) == {"rate": 2.0, "ran_out": True}
    assert not _together([complete, complete])["ran_out"]


def test_percentiles_are_those_of_all_rounds() -> None:
    """The p99 of two equal rounds, of 10 ms and of 1,000 ms, is 1,000 ms and not the mean of both."""
    rounds = []
    for ms in (10.0, 1_000.0):
        latencies = Latencies()
        for _ in range(100):
            latencies.add(ms)
        cpu_seconds = dict.fromkeys(("server", "worker", "load", "machine"), 1.0)
        rounds.append(LoadResult(requests=100, submissions=100, seconds=1.0, histogram=latencies.encode(), cpu_seconds=cpu_seconds))
    figures = _figures(rounds)
    assert figures["latency_ms_p50"] == pytest.approx(10, rel=1e-3)
    assert figures["latency_ms_p99"] == pytest.approx(1_000, rel=1e-3)
