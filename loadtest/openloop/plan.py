"""The schedule of a run, and the parameters of one process in it. Pure.

Rates count requests (transactions) a second, whatever the requests of a submission. Submissions are spread evenly over a stage; the n-th of
the run belongs to process n mod the number of processes, so that each has its share of every moment. The parameters travel in one message,
so that no process reads the command line.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

Shape: TypeAlias = Literal["steady", "steps", "soak", "spike"]
SHAPES: Final[tuple[str, ...]] = get_args(Shape)

STEPS: Final = tuple(range(1_000, 10_001, 1_000))
"""The default rates of the steps, in requests a second."""
SECONDS: Final[dict[str, float]] = {"steady": 60.0, "steps": 600.0, "soak": 3_600.0, "spike": 60.0}
"""The default length of a run."""
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


class Slot(NamedTuple):
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
        rates = [("", step) for step in steps]
        lengths = [seconds / max(1, len(rates))] * len(rates)
    elif shape == "spike":
        peak = SPIKE_TIMES * rate if spike_rate is None else spike_rate
        rates = [("before, ", rate), ("spike, ", peak), ("after, ", rate)]
        around = seconds * (1 - SPIKE_SHARE) / 2
        lengths = [around, seconds * SPIKE_SHARE, around]
    else:
        rates, lengths = [("", rate)], [seconds]
    if not rates or any(each <= 0 for _, each in rates) or seconds <= 0 or warm_up_seconds < 0:
        raise ValueError("rates and times must be more than nothing")
    stages = [Stage(f"{name}{each:,g}/s", each, length) for (name, each), length in zip(rates, lengths, strict=True)]
    if warm_up_seconds:
        stages.insert(0, Stage(WARM_UP, rates[0][1], warm_up_seconds))
    return tuple(stages)


def submissions_of(stage: Stage, submission_requests: int) -> int:
    """Returns the number of submissions in a stage, at least one."""
    return max(1, round(stage.requests_per_s * stage.seconds / submission_requests))


def slots(stages: Sequence[Stage], submission_requests: int, process: int = 0, processes: int = 1) -> Iterator[Slot]:
    """Yields the slots of one process, in order."""
    begins_s, number = 0.0, 0
    for at, stage in enumerate(stages):
        count = submissions_of(stage, submission_requests)
        for own in range((process - number) % processes, count, processes):
            yield Slot(at, begins_s + own * stage.seconds / count)
        begins_s += stage.seconds
        number += count


def slots_count(stages: Sequence[Stage], submission_requests: int, process: int = 0, processes: int = 1) -> int:
    """Returns the number of slots of one process."""
    total = sum([submissions_of(stage, submission_requests) for stage in stages])
    return len(range(process, total, processes))


def begin_of(stages: Sequence[Stage], at: int) -> float:
    """Returns the begin of a stage, in seconds from the start of the run."""
    return sum([stage.seconds for stage in stages[:at]])


Distribution: TypeAlias = Literal["fixed", "poisson", "uniform", "geometric"]
DISTRIBUTIONS: Final[tuple[str, ...]] = get_args(Distribution)

SUBMISSION_REQUESTS_MAX: Final = 1_000
INPUTS_MEAN_MAX: Final = 4_000
"""With this mean hardly any draw of any distribution exceeds the contract's 10,000; such a draw is capped."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """The mix of requests. Shares are fractions of 1: of the requests, except `retries`, which is a share of the submissions."""

    submission_requests: int = 1
    inputs: float = 4.0
    """The mean number of inputs of a request."""
    inputs_distribution: Distribution = "fixed"
    double_spends: float = 0.01
    """Requests that name an input of an earlier request."""
    references: float = 0.01
    """Requests with a reference: every other one to a state that is an input of an earlier request."""
    windows: float = 0.01
    """Requests with a time window: every fourth one is shut for ever."""
    retries: float = 0.01
    """Submissions that are sent a second time, byte for byte."""

    def problem(self) -> str | None:
        """Returns the first invalid option of this mix, or None."""
        if not 1 <= self.submission_requests <= SUBMISSION_REQUESTS_MAX:
            return f"--requests-per-submission is 1 to {SUBMISSION_REQUESTS_MAX:,}"
        if not 1 <= self.inputs <= INPUTS_MEAN_MAX:
            return f"--inputs is 1 to {INPUTS_MEAN_MAX:,}"
        for name in ("double_spends", "references", "windows", "retries"):
            if not 0 <= getattr(self, name) <= 0.5:
                return f"--{name.replace('_', '-')} is a share, 0 to 0.5"
        return None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a run."""

    run: str
    """Identifies the run, so that late messages of an earlier one are recognised."""
    seed: str
    stages: tuple[Stage, ...]
    mix: Mix
    urls: tuple[str, ...]
    notary_name: str
    party: str
    key_file: str | None
    """A PEM private key; None: that of the benchmarks."""
    verifier_key: str | None
    """None: receipts are not requested."""
    receipt_sample: float
    """The share of receipts to verify; all must be present."""
    deadline_s: float
    """A submission without a complete answer this long after its intended start has failed."""
    attempt_s: float = 0.0
    """The time to wait for one worker; 0: half of the time until the deadline."""
    process: int = 0
    processes: int = 1

    @property
    def submissions(self) -> int:
        """The number of submissions that this process has to send."""
        return slots_count(self.stages, self.mix.submission_requests, self.process, self.processes)

    @property
    def seconds(self) -> float:
        """The time from the first intended start to the end of the last stage."""
        return sum([stage.seconds for stage in self.stages])
