"""Tests stages and intended start times."""

from itertools import pairwise
from math import inf, nan

import pytest

from loadtest.rig.schedule import WARM_UP, Shape, Stage, arrivals, arrivals_count, stages_of


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_processes_share_every_slot_once(processes: int) -> None:
    """All processes together have the arrivals of a single process, each once and in order."""
    stages = (Stage("a", 10, 3), Stage("b", 101, 1), Stage("c", 1, 5))
    shares = [list(arrivals(stages, 1, process, processes)) for process in range(processes)]
    assert sorted([arrival for share in shares for arrival in share]) == sorted(arrivals(stages, 1))
    for process, share in enumerate(shares):
        assert share == sorted(share, key=lambda arrival: arrival.due_s)
        assert len(share) == arrivals_count(stages, 1, process, processes)


def test_starts_are_even_within_a_stage() -> None:
    """The rate counts requests. Each stage's submissions are spread evenly over its time, from its start on."""
    stages = (Stage("a", 20, 2), Stage("b", 80, 1))
    for at, stage in enumerate(stages):
        due = [arrival.due_s for arrival in arrivals(stages, 2) if arrival.stage == at]
        assert due[0] == (0, 2)[at]
        assert len(due) == stage.requests_per_s * stage.seconds / 2
        assert [later - earlier for earlier, later in pairwise(due)] == pytest.approx([2 / stage.requests_per_s] * (len(due) - 1))


@pytest.mark.parametrize(
    ("shape", "rates"),
    [
        ("steady", [100.0]),
        ("soak", [100.0]),
        ("steps", [float(step) for step in range(1_000, 10_001, 1_000)]),
        ("spike", [100.0, 500.0, 100.0]),
    ],
)
def test_shapes_have_their_rates(shape: Shape, rates: list[float]) -> None:
    """Each shape has its rates, and takes the given time, whatever its stages."""
    stages = stages_of(shape, 100.0, 30.0)
    assert [stage.requests_per_s for stage in stages] == rates
    assert sum([stage.seconds for stage in stages]) == pytest.approx(30.0)


def test_a_warm_up_comes_first_and_does_not_count() -> None:
    """The warm-up comes first, at the first stage's rate, and is the only stage that does not count."""
    stages = stages_of("steps", 1.0, 10.0, [5.0, 9.0], warm_up_seconds=3.0)
    assert stages[0] == Stage(WARM_UP, 5.0, 3.0)
    assert [stage.counts for stage in stages] == [False, True, True]


@pytest.mark.parametrize(
    ("rate", "seconds", "steps", "warm_up"),
    [
        (0.0, 1.0, [1.0], 0.0),
        (inf, 1.0, [1.0], 0.0),
        (nan, 1.0, [1.0], 0.0),
        (1.0, -1.0, [1.0], 0.0),
        (1.0, 1.0, [], 0.0),
        (1.0, 1.0, [1.0], -1.0),
        (1.0, 1.0, [1.0], nan),
    ],
)
def test_what_is_no_schedule_is_rejected(rate: float, seconds: float, steps: list[float], warm_up: float) -> None:
    """A schedule without a rate, time or steps, with a negative warm-up, or with a number that is not finite, is rejected."""
    with pytest.raises(ValueError, match="above 0"):
        stages_of("steady" if steps else "steps", rate, seconds, steps, warm_up_seconds=warm_up)
