"""Stages and intended starts."""

from itertools import pairwise

import pytest

from loadtest.openloop.schedule import WARM_UP, Shape, Stage, begin_of, slots, slots_count, stages_of, submissions_of


def test_the_rate_counts_requests() -> None:
    """A hundred requests a submission make a hundredth of the submissions."""
    stage = Stage("s", 10_000, 3)
    assert submissions_of(stage, 1) == 30_000
    assert submissions_of(stage, 100) == 300


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_processes_share_every_slot_once(processes: int) -> None:
    """All processes together have the slots that one process would have, each once and each in order."""
    stages = (Stage("a", 10, 3), Stage("b", 101, 1), Stage("c", 1, 5))
    shares = [list(slots(stages, 1, process, processes)) for process in range(processes)]
    assert sorted([slot for share in shares for slot in share]) == sorted(slots(stages, 1))
    for process, share in enumerate(shares):
        assert share == sorted(share, key=lambda slot: slot.due_s)
        assert len(share) == slots_count(stages, 1, process, processes)


def test_starts_are_even_within_a_stage() -> None:
    """Every stage's submissions are spread over its time, from its beginning on, at one distance."""
    stages = (Stage("a", 20, 2), Stage("b", 80, 1))
    for at, stage in enumerate(stages):
        due = [slot.due_s for slot in slots(stages, 2) if slot.stage == at]
        assert due[0] == begin_of(stages, at)
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
def test_shapes(shape: Shape, rates: list[float]) -> None:
    """Each shape has its rates, and takes the time that was given, whatever its stages."""
    stages = stages_of(shape, 100.0, 30.0)
    assert [stage.requests_per_s for stage in stages] == rates
    assert sum([stage.seconds for stage in stages]) == pytest.approx(30.0)


def test_a_warm_up_comes_first_and_does_not_count() -> None:
    """It runs at the first stage's rate; of all stages it alone is not timed."""
    stages = stages_of("steps", 1.0, 10.0, [5.0, 9.0], warm_up_seconds=3.0)
    assert stages[0] == Stage(WARM_UP, 5.0, 3.0)
    assert [stage.counts for stage in stages] == [False, True, True]


@pytest.mark.parametrize(
    ("rate", "seconds", "steps", "warm_up"), [(0.0, 1.0, [1.0], 0.0), (1.0, -1.0, [1.0], 0.0), (1.0, 1.0, [], 0.0), (1.0, 1.0, [1.0], -1.0)]
)
def test_what_is_no_schedule_is_refused(rate: float, seconds: float, steps: list[float], warm_up: float) -> None:
    """No rate, no time, no steps, or a warm-up of less than nothing."""
    with pytest.raises(ValueError, match="more than nothing"):
        stages_of("steady" if steps else "steps", rate, seconds, steps, warm_up_seconds=warm_up)
