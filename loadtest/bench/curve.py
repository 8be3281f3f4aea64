"""The throughput-latency curve: an open loop at rising shares of the capacity, from nearly idle to past it (`offered`)."""

from loadtest.bench.end_to_end import Case, failed, name_of
from loadtest.bench.offer import Offer
from loadtest.bench.overload import capacity_of, figures_of, run_offer
from loadtest.bench.report import Report, progress
from loadtest.rig import Place

SHARES = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
SHARES_QUICK = (0.1, 0.5, 0.8, 1.0, 1.25)
CONNECTIONS_MAX = 500


def measure(report: Report, place: Place, case: Case, seconds: float, seed: int, shares: tuple[float, ...] = SHARES) -> None:
    """Measure the figure `curve`: one line for each share of the rate that a closed loop reached just before."""
    capacity = capacity_of(place, case, seconds, seed)
    if failed(capacity):
        raise RuntimeError("the capacity could not be measured: the closed loop saw errors")
    capacity_per_s = capacity.requests / capacity.seconds
    for number, share in enumerate(shares, 2):
        offer = Offer(
            urls=place.urls,
            seed=seed + number,
            requests=case.requests,
            inputs=case.inputs,
            requests_per_s=share * capacity_per_s,
            seconds=seconds,
            decided_per_s_max=1.5 * capacity_per_s,
            connections_max=CONNECTIONS_MAX,
            pids=dict(place.pids),
        )
        outcome = run_offer(offer)
        for failure in outcome.failures:
            progress(f"load: {failure}")
        told = figures_of(offer, outcome)
        figures = {"share_of_capacity": share, "capacity_requests_per_s": capacity_per_s} | {name: told[name] for name in TOLD}
        parameters = {"log": place.log_name, "workers": len(place.urls), "open_loop": True} | {
            name: getattr(offer, name) for name in ("requests", "inputs", "seconds", "connections_max", "seed", "receipts")
        }
        report.add("curve", f"{name_of(case, place)}, at {share:.0%}", figures, parameters, failed=bool(outcome.errors))


TOLD = (
    "due_requests_per_s", "goodput_requests_per_s", "latency_ms_p50", "latency_ms_p99", "refused_share", "unsent_share", "late_ms_p99",
    "worker_cores", "load_cores", "machine_cores", "errors",
)  # fmt: skip
"""The figures of an open loop that go into the line."""
