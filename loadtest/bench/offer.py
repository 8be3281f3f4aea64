"""The parameters and results of an open loop (`offered`)."""

from collections.abc import Iterable, Sequence

import msgspec

from loadtest.bench.report import percentile


class Offer(msgspec.Struct, frozen=True):
    """The parameters of one load."""

    urls: Sequence[str]
    seed: int
    requests: int
    """Requests of one submission."""
    inputs: int
    requests_per_s: float
    seconds: float
    decided_per_s_max: float
    """The requests generated ahead for each second; rejected ones are offered again."""
    connections_max: int
    pids: dict[str, list[int]]
    """The processes whose CPU seconds and memory to report, by name."""
    probes: int = 0
    receipts: bool = True
    connections_open: bool = True
    """True if all connections are opened before the start, like those of long-lived clients; else each is opened when needed."""
    drain_s_max: float = 60.0
    """The time after the end in which answers are still awaited."""


class Second(msgspec.Struct):
    """The results of one interval of the run (`LOOK_S`); counts are submissions."""

    seconds: float
    decided: int
    refused: int
    worker_mib: float


class Percentiles(msgspec.Struct):
    """The percentiles of some durations."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    count: int = 0


class Offered(msgspec.Struct):
    """The results of one load. Counts are submissions of the steady part, except `errors`, `ran_out` and `unsent`."""

    seconds: float = 0.0
    due: int = 0
    sent: int = 0
    decided: int = 0
    undecided: int = 0
    """Admitted, and answered 202."""
    refused: int = 0
    dropped: int = 0
    """Sent, and the connection ended without an answer."""
    unsent: int = 0
    """Due before the end, and never sent: no connection was free."""
    decided_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From the intended start to the complete answer, for those due in the steady part and decided at any time."""
    answered_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From sending to the answer, for those sent in the steady part."""
    refused_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From sending to the rejection."""
    late_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """From the intended start to sending."""
    told_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The Retry-After values in all rejections."""
    probe_told_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The first Retry-After value that each impatient probe received."""
    probe_waited_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The time from that rejection until the impatient probe was admitted."""
    probe_waited_to_told: Percentiles = msgspec.field(default_factory=Percentiles)
    probe_waiting: int = 0
    """The number of impatient probes not yet admitted at the end."""
    obedient_returns: int = 0
    """The number of times that obedient probes returned after the Retry-After time."""
    obedient_taken: int = 0
    """The number of those returns that were admitted."""
    drained_s: float = 0.0
    """From the last intended start to the last answer."""
    by_time: list[Second] = msgspec.field(default_factory=list)
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False


def times_of(values: Iterable[float]) -> Percentiles:
    """Returns the percentiles of some values."""
    ordered = sorted(values)
    return Percentiles(percentile(ordered, 50), percentile(ordered, 99), max(ordered, default=0.0), len(ordered))
