"""Tests percentiles: of histograms, and exact ones of a few values."""

import pytest

from loadtest.rig.latencies import Failures, Latencies, percentile, percentiles_of


@pytest.mark.parametrize(
    ("count", "percent"), [(1_000, 0), (1_000, 50), (1_000, 100), (60, 99), (101, 99), (600, 99.9), (1_001, 99.9), (3, 50)]
)
def test_a_histogram_is_exact_to_a_thousandth(count: int, percent: float) -> None:
    """A percentile is at most 0.1 % above the true one, also of few values: HdrHistogram itself has a p99 that 59 of 60 do not exceed."""
    latencies = Latencies()
    for ms in range(1, count + 1):
        latencies.add(ms)
    wanted = percentile(range(1, count + 1), percent)
    assert wanted <= latencies.percentile_ms(percent) <= wanted * 1.001
    assert latencies.count == count


def test_nothing_has_no_latency() -> None:
    """Without values every percentile is 0."""
    assert Latencies().percentiles() == percentiles_of([])
    assert Latencies().percentile_ms(50) == 0


@pytest.mark.parametrize("ms", [0.0, 1e-9, 1e12])
def test_every_duration_counts(ms: float) -> None:
    """A duration below the first bucket or beyond the last one is counted there, and not dropped."""
    latencies = Latencies()
    latencies.add(ms)
    assert latencies.count == 1
    assert 0 < latencies.percentile_ms(100) < 3_700_000


def test_histograms_add_up_and_travel() -> None:
    """Two histograms together have the values of both, also after a way as text."""
    low, high = Latencies(), Latencies()
    for ms in range(1, 11):
        low.add(ms)
        high.add(ms + 100)
    low.add_all(Latencies.decode(high.encode()))
    assert low.count == 20
    assert low.percentile_ms(50) == pytest.approx(10, rel=1e-3)
    assert low.percentile_ms(100) == pytest.approx(110, rel=1e-3)


@pytest.mark.parametrize(("percent", "wanted"), [(50, 5), (90, 9), (99, 10), (100, 10), (0, 1)])
def test_percentile_is_the_lowest_value(percent: float, wanted: float) -> None:
    """A percentile is the lowest value that at least this share of the values does not exceed."""
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == wanted


def test_the_first_failures_are_kept() -> None:
    """All failures are counted, and the first few are described."""
    failures = Failures()
    for number in range(100):
        failures.add(f"failure {number}")
    assert failures.count == 100
    assert failures.first[0] == "failure 0"
    assert len(failures.first) < 10
