"""The schedule of an open loop: stages of constant rate, and the intended start of each submission. Pure.

Rates count requests (transactions) a second, for submissions of any size. Submissions are spread evenly over a stage. The n-th one of
the run belongs to process n mod the number of processes, so that each process has its share of every moment.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

Shape: TypeAlias = Literal["steady", "steps", "soak", "spike"]
SHAPES: Final[tuple[str, ...]] = get_args(Shape)

STEPS: Final = tuple(range(1_000, 10_001, 1_000))
"""The default rates of the steps, in requests a second."""
SECONDS: Final[dict[str, float]] = {"steady": 60.0, "steps": 600.0, "soak": 3_600.0, "spike": 60.0}
SPIKE_SHARE: Final = 0.2
"""The spike's share of the run, in its middle."""
SPIKE_TIMES: Final = 5.0
"""The default rate of the spike, as a multiple of the rate around it."""
WARM_UP: Final = "warm-up"


class Stage(msgspec.Struct, frozen=True):
    """A period of constant rate."""

    name: str
    requests_per_s: float
    seconds: float

    @property
    def counts(self) -> bool:
        """True if its times go into a figure. Its answers are always checked."""
        return self.name != WARM_UP


class Arrival(NamedTuple):
    """One submission of the schedule."""

    stage: int
    due_s: float
    """Its intended start, in seconds from the start of the run."""


def stages_of(
    shape: Shape,
    rate: float,
    seconds: float | None = None,
    steps: Sequence[float] = STEPS,
    spike_rate: float | None = None,
    warm_up_seconds: float = 0.0,
) -> tuple[Stage, ...]:
    """Returns the stages of a shape; a warm-up before them has the rate of the first. Raises `ValueError` for an impossible schedule."""
    seconds = SECONDS[shape] if seconds is None else seconds
    if shape == "steps":
        stages = [Stage(f"{step:,g}/s", step, seconds / len(steps)) for step in steps]
    elif shape == "spike":
        peak = SPIKE_TIMES * rate if spike_rate is None else spike_rate
        around = seconds * (1 - SPIKE_SHARE) / 2
        parts = (("before", rate, around), ("spike", peak, seconds * SPIKE_SHARE), ("after", rate, around))
        stages = [Stage(f"{name}, {each:,g}/s", each, length) for name, each, length in parts]
    else:
        stages = [Stage(f"{rate:,g}/s", rate, seconds)]
    positive = [seconds, *[stage.requests_per_s for stage in stages]]
    if not stages or not all(0 < number < inf for number in positive) or not 0 <= warm_up_seconds < inf:
        raise ValueError("rates and times must be numbers above 0")
    if warm_up_seconds:
        stages.insert(0, Stage(WARM_UP, stages[0].requests_per_s, warm_up_seconds))
    return tuple(stages)


def submissions_of(stage: Stage, submission_requests: int) -> int:
    """Returns the number of submissions in a stage, at least one."""
    return max(1, round(stage.requests_per_s * stage.seconds / submission_requests))


def arrivals(stages: Sequence[Stage], submission_requests: int, process: int = 0, processes: int = 1) -> Iterator[Arrival]:
    """Yields the arrivals of one process, in order."""
    begins_s, number = 0.0, 0
    for at, stage in enumerate(stages):
        count = submissions_of(stage, submission_requests)
        for own in range((process - number) % processes, count, processes):
            yield Arrival(at, begins_s + own * stage.seconds / count)
        begins_s += stage.seconds
        number += count


def arrivals_count(stages: Sequence[Stage], submission_requests: int, process: int = 0, processes: int = 1) -> int:
    """Returns the number of arrivals of one process."""
    total = sum([submissions_of(stage, submission_requests) for stage in stages])
    return len(range(process, total, processes))
