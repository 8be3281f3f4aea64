"""What an open loop (`offered`) is told, and what it tells."""

from collections.abc import Iterable, Sequence

import msgspec

from loadtest.bench.report import percentile


class Offer(msgspec.Struct, frozen=True):
    """One load."""

    urls: Sequence[str]
    seed: int
    requests: int
    """Requests of one submission."""
    inputs: int
    requests_per_s: float
    seconds: float
    decided_per_s_max: float
    """Requests that are made ahead for each second; what is refused is offered again."""
    connections_max: int
    pids: dict[str, list[int]]
    """Whose CPU seconds and memory to tell, by name."""
    probes: int = 0
    receipts: bool = True
    connections_open: bool = True
    """Whether all connections are there before the start, as those of clients that keep theirs; else each is made when it is needed."""
    drain_s_max: float = 60.0
    """So long after the end an answer may come."""


class Second(msgspec.Struct):
    """What a part of the run saw (`LOOK_S`); counts are submissions."""

    seconds: float
    decided: int
    refused: int
    worker_mib: float


class Times(msgspec.Struct):
    """How long things took."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    count: int = 0


class Offered(msgspec.Struct):
    """What became of it. Counts are submissions, of the steady part but for `errors`, `ran_out` and `unsent`."""

    seconds: float = 0.0
    due: int = 0
    sent: int = 0
    decided: int = 0
    undecided: int = 0
    """Taken in, and answered 202."""
    refused: int = 0
    dropped: int = 0
    """Sent, and the connection ended without an answer."""
    unsent: int = 0
    """Due before the end, and never sent: no connection was free."""
    decided_ms: Times = msgspec.field(default_factory=Times)
    """From when it was due to the whole answer, of those due in the steady part and decided, whenever that was."""
    answered_ms: Times = msgspec.field(default_factory=Times)
    """From when it was sent, of those sent in the steady part."""
    refused_ms: Times = msgspec.field(default_factory=Times)
    """From when it was sent to the refusal."""
    late_ms: Times = msgspec.field(default_factory=Times)
    """From when it was due until it was sent."""
    told_s: Times = msgspec.field(default_factory=Times)
    """What Retry-After said, to all."""
    probe_told_s: Times = msgspec.field(default_factory=Times)
    """What it said to the impatient, when they were refused first."""
    probe_waited_s: Times = msgspec.field(default_factory=Times)
    """How long it was then until they were taken in."""
    probe_waited_to_told: Times = msgspec.field(default_factory=Times)
    probe_waiting: int = 0
    """Impatient ones that still waited to be taken in at the end."""
    obedient_returns: int = 0
    """How often the obedient came back when they were told to."""
    obedient_taken: int = 0
    """How often they were taken in then."""
    drained_s: float = 0.0
    """From the last one due to the last answer."""
    by_time: list[Second] = msgspec.field(default_factory=list)
    cpu_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    errors: int = 0
    failures: list[str] = msgspec.field(default_factory=list)
    ran_out: bool = False


def times_of(values: Iterable[float]) -> Times:
    """Of some values."""
    ordered = sorted(values)
    return Times(percentile(ordered, 50), percentile(ordered, 99), max(ordered, default=0.0), len(ordered))
