"""What one process of a run has to know: all of it travels in one message, so that no process asks the command line. Pure."""

from typing import Final, Literal, TypeAlias, get_args

import msgspec

from loadtest.openloop.schedule import Stage, slots_count

Distribution: TypeAlias = Literal["fixed", "poisson", "uniform", "geometric"]
DISTRIBUTIONS: Final[tuple[str, ...]] = get_args(Distribution)

SUBMISSION_REQUESTS_MAX: Final = 1_000
INPUTS_MEAN_MAX: Final = 4_000
"""Of any distribution here hardly a draw is beyond the contract's 10,000; such a draw is cut."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. Shares are of 1: of the requests, but for `retries`, which are of the submissions."""

    submission_requests: int = 1
    inputs: float = 4.0
    """The mean number of inputs of a request."""
    inputs_distribution: Distribution = "fixed"
    double_spends: float = 0.01
    """Requests that name an input of an earlier request."""
    references: float = 0.01
    """Requests with a reference: every other one to a state that an earlier request names as its input."""
    windows: float = 0.01
    """Requests with a time window: every fourth one is shut for ever."""
    retries: float = 0.01
    """Submissions that are sent a second time, to the byte."""

    def problem(self) -> str | None:
        """What makes this no mix, if anything does."""
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
    """Names the run: what an earlier one left on its way is known by it."""
    seed: str
    stages: tuple[Stage, ...]
    mix: Mix
    urls: tuple[str, ...]
    notary_name: str
    party: str
    key_file: str | None
    """A PEM private key; None: the one of the benchmarks."""
    verifier_key: str | None
    """None: receipts are not asked for."""
    receipt_sample: float
    """The share of receipts that is verified; all must be there."""
    deadline_s: float
    """After its intended start, a submission without its whole answer has failed."""
    attempt_s: float = 0.0
    """So long one worker is waited for; 0: half of what is left until the deadline."""
    process: int = 0
    processes: int = 1

    @property
    def submissions(self) -> int:
        """How many submissions this process has to send."""
        return slots_count(self.stages, self.mix.submission_requests, self.process, self.processes)

    @property
    def seconds(self) -> float:
        """From the first intended start to the end of the last stage."""
        return sum([stage.seconds for stage in self.stages])
