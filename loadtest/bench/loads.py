"""The loads of the bench: the parameters, the process and the figures of a closed loop and of an open loop for one case."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.latencies import Percentiles
from loadtest.rig.notaries import RunningNotary, notary_name, run_module
from loadtest.rig.open_loop import Offer, Offered
from loadtest.rig.progress import progress

INPUTS: Final = 4
WARM_UP_S_MAX: Final = 4.0


class Case(msgspec.Struct, frozen=True):
    """One kind of load."""

    requests: int
    inputs: int
    connections: int = 0
    """The connections to each worker; 0 for as many as keep it busy."""

    @property
    def connections_each(self) -> int:
        """The connections to each worker."""
        as_usual = 16 if self.inputs > 100 else {1: 64, 10: 32}.get(self.requests, 24)
        return self.connections or as_usual

    @property
    def text(self) -> str:
        """Names the requests of a submission, and the connections if they are others than usual."""
        return f"{self.requests} a submission" + (f", {self.connections} connections" if self.connections else "")


def name_of(case: Case, running: RunningNotary) -> str:
    """Returns the name of a case on that notary."""
    inputs = "1 input" if case.inputs == 1 else f"{case.inputs:,} inputs"
    connections = f", {case.connections} connections" if case.connections else ""
    notary = notary_name(running.brokers, len(running.urls), running.acceptors)
    return f"{case.requests} a submission, {inputs}, {notary}{connections}"


AHEAD_SHARE: Final = 2.0
"""The requests to generate, as a multiple of those at the warm-up's rate: caches and the brokers' code were cold then."""
AHEAD_SHARE_MIN: Final = 0.25
"""The fewest requests to generate, as a share of those without a warm-up: a short warm-up may have had a pause."""


def ahead_of(requests: int, inputs: int, seconds: float, requests_per_s: float = 0.0) -> int:
    """Returns the number of submissions to generate for a closed loop of this length.

    `requests_per_s`: the rate in a warm-up; 0 if there was none, for more than any known machine decides.
    """
    per_s = 375 if inputs > 100 else {1: 14_000, 10: 3_000}.get(requests, (90_000 if inputs == 1 else 65_000) / requests)
    if requests_per_s:
        per_s = max(AHEAD_SHARE * requests_per_s / requests, AHEAD_SHARE_MIN * per_s)
    return max(1, int(per_s * seconds))


def closed_load(
    running: RunningNotary, case: Case, seconds: float, seed: int, *, receipts: bool = True, requests_per_s: float = 0.0
) -> ClosedLoad:
    """Returns the parameters of a closed loop for that case; `requests_per_s` as in `ahead_of`."""
    return ClosedLoad(
        urls=running.urls,
        # Each load has its own states: they can be consumed only once.
        seed=seed,
        requests=case.requests,
        inputs=case.inputs,
        connections=case.connections_each * len(running.urls),
        seconds=seconds,
        submissions_max=ahead_of(case.requests, case.inputs, seconds, requests_per_s),
        pids=dict(running.pids),
        receipts=receipts,
    )


def parameters_of(load: ClosedLoad, log: str) -> dict[str, Any]:
    """Returns the parameters of a load for its line; `log` is the name of the log under test."""
    kept = {key: value for key, value in msgspec.structs.asdict(load).items() if key not in ("urls", "pids", "marked", "submissions_max")}
    return {"log": log, "workers": len(load.urls), **kept}


def run_load(load: ClosedLoad) -> LoadResult:
    """Run one closed loop in its own process; returns its result."""
    return run_loads([load])[0]


def run_loads(loads: Sequence[ClosedLoad]) -> list[LoadResult]:
    """Run closed loops at once, in one process; returns their results."""
    load, connections = loads[0], sum([each.connections for each in loads])
    progress(f"load: {load.requests} requests a submission, {load.inputs} inputs, {connections} connections, {load.seconds:g} s")
    # Generating the bodies takes as long as sending them, on a busy machine several times as long.
    results = run_module("loadtest.rig.closed_loop", list(loads), list[LoadResult], load.seconds * 10 + 120)
    if any(result.ran_out for result in results):
        progress("load: no submissions were left before the end")
    return results


def load_figures(result: LoadResult) -> dict[str, Any]:
    """Returns the figures of a closed loop."""
    thousands = max(result.requests, 1) / 1000
    figures: dict[str, Any] = {
        "requests_per_s": result.requests_per_s,
        "latency_ms_p50": result.latency_ms_p50,
        "latency_ms_p99": result.latency_ms_p99,
        "errors": result.errors,
        "others_cores": result.others_cores,
    }
    for name, spent_s in sorted(result.cpu_seconds.items()):
        if name != "machine":
            figures[f"{name}_cpu_s_per_1000"] = spent_s / thousands
    if result.ran_out:
        figures["ran_out"] = True
    return figures


def failed(result: LoadResult | Offered) -> bool:
    """Returns True if a load had an error, or no request was decided; prints its failures."""
    for failure in result.failures:
        progress(f"load: {failure}")
    decided = result.requests if isinstance(result, LoadResult) else result.decided
    return bool(result.errors) or not decided


def capacity_of(running: RunningNotary, case: Case, seconds: float, seed: int) -> float:
    """Returns the requests a second of a closed loop, after a warm-up. Raises `RuntimeError` when it saw errors."""
    warm_up = run_load(closed_load(running, case, min(WARM_UP_S_MAX, seconds / 2), seed))
    result = run_load(closed_load(running, case, seconds, seed + 1, requests_per_s=warm_up.requests_per_s))
    if failed(result) or not result.requests_per_s:
        raise RuntimeError("the capacity could not be measured: the closed loop saw errors")
    return result.requests_per_s


def offer_for(running: RunningNotary, case: Case, seconds: float, seed: int, *, rate: float, capacity: float, **options: Any) -> Offer:
    """Returns the parameters of an open loop for that case: `rate` requests a second are due, and about `capacity` are decided."""
    return Offer(
        urls=running.urls,
        seed=seed,
        requests=case.requests,
        inputs=case.inputs,
        requests_per_s=rate,
        seconds=seconds,
        decided_per_s_max=1.5 * capacity,
        pids=dict(running.pids),
        **options,
    )


def offer_parameters(offer: Offer, running: RunningNotary, *names: str) -> dict[str, Any]:
    """Returns the parameters of an open loop for its line; `names` are those besides the usual ones."""
    names = ("requests", "inputs", "seconds", "connections_max", "seed", "receipts", *names)
    return {"log": running.log_name, "workers": len(running.urls)} | {name: getattr(offer, name) for name in names}


def run_offer(offer: Offer) -> Offered:
    """Run one open loop in its own process; returns its results."""
    progress(f"load: {offer.requests_per_s:,.0f} requests/s are due, {offer.requests} a submission, {offer.seconds:g} s")
    return run_module("loadtest.rig.open_loop", offer, Offered, offer.seconds * 10 + 180)


def offer_figures(offer: Offer, offered: Offered) -> dict[str, Any]:
    """Returns the figures of an open loop. `wait`: the time until a rejected client that keeps retrying is admitted."""
    seconds = offered.seconds or 1e-9
    answers = offered.decided + offered.undecided + offered.rejected + offered.dropped
    returns = offered.probes.obedient_returns
    memory = [second.worker_mib for second in offered.by_time]
    figures: dict[str, Any] = {
        "due_requests_per_s": offered.due * offer.requests / seconds,
        "sent_requests_per_s": offered.sent * offer.requests / seconds,
        # The worker decides the probes' submissions too.
        "goodput_requests_per_s": (offered.decided + offered.probes.decided) * offer.requests / seconds,
        **{f"{name}_share": getattr(offered, name) / answers if answers else 0.0 for name in ("rejected", "undecided", "dropped")},
        "unsent_share": offered.unsent * offer.requests / (offer.requests_per_s * offer.seconds),
        "latency_ms_p50": _of(offered.decided_ms, "p50"),
        "latency_ms_p99": _of(offered.decided_ms, "p99"),
        "from_sending_ms_p50": _of(offered.answered_ms, "p50"),
        "from_sending_ms_p99": _of(offered.answered_ms, "p99"),
        "late_ms_p99": _of(offered.late_ms, "p99"),
        "rejection_ms_p50": _of(offered.rejected_ms, "p50"),
        "rejection_ms_p99": _of(offered.rejected_ms, "p99"),
        "retry_after_s_p50": _of(offered.retry_after_s, "p50"),
        "wait_s_p50": _of(offered.probes.waited_s, "p50"),
        "wait_s_p99": _of(offered.probes.waited_s, "p99"),
        "wait_to_retry_after_p50": _of(offered.probes.waited_to_retry_after, "p50"),
        "waits": offered.probes.waited_s.count,
        "still_waiting": offered.probes.waiting,
        "obedient_returns": returns,
        "obedient_admitted_share": offered.probes.obedient_admitted / returns if returns else None,
        "worker_mib_first": memory[0] if memory else 0.0,
        "worker_mib_max": max(memory, default=0.0),
        **{f"{who}_cores": cpu_s / seconds for who, cpu_s in sorted(offered.cpu_seconds.items())},
        "errors": offered.errors,
        "by_time": [
            {
                "seconds": second.seconds,
                "requests_per_s": second.decided * offer.requests / (second.seconds - before),
                "rejected_requests_per_s": second.rejected * offer.requests / (second.seconds - before),
                "worker_mib": second.worker_mib,
            }
            for before, second in zip([0.0, *[each.seconds for each in offered.by_time]], offered.by_time, strict=False)
        ],
    }
    if offered.ran_out:
        figures["ran_out"] = True
    return figures


def _of(percentiles: Percentiles, which: str) -> float | None:
    """Returns None if there are no values: 0 would look like the best."""
    return float(getattr(percentiles, which)) if percentiles.count else None
