"""The parameters of one process in a run. They travel in one message, so that no process reads the command line. Pure."""

from typing import Final, Literal, TypeAlias, get_args

import msgspec

from loadtest.openloop.schedule import Stage, slots_count

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
