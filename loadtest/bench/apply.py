"""The rate at which ordered batches are decided and persisted: the decision function and the index alone."""

import tempfile
import time
from pathlib import Path

from loadtest.bench.generate import NOTARY, steps
from loadtest.bench.report import Report
from notary.index import Index

CASES = ((1, 1_000), (4, 1_000), (1_000, 10))
"""(inputs, requests of a step)."""

SECONDS_SHARE_MAX = 4
"""The limit on a case's total time, as a multiple of its seconds: generating the steps takes longer than applying them."""


def measure(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `apply`."""
    for inputs, step_requests in CASES:
        with tempfile.TemporaryDirectory(prefix="bench-apply-") as directory:
            index = Index.open(Path(directory) / "index", notary_name=NOTARY, log_identity="bench")
            try:
                requests, took_s, cpu_s = _apply(index, seconds, seed, inputs, step_requests)
            finally:
                index.close()
        figures = {
            "requests_per_s": requests / took_s,
            "inputs_per_s": requests * inputs / took_s,
            "cpu_us_per_request": cpu_s / requests * 1e6,
            "requests": requests,
        }
        case = f"{inputs} inputs, {step_requests} requests a step"
        report.add("apply", case, figures, {"inputs": inputs, "step_requests": step_requests, "seed": seed})


def _apply(index: Index, seconds: float, seed: int, inputs: int, step_requests: int) -> tuple[int, float, float]:
    """Returns (requests applied, seconds for that, CPU seconds of this process for that)."""
    requests, took_s, cpu_s = 0, 0.0, 0.0
    gives_up_at = time.perf_counter() + seconds * SECONDS_SHARE_MAX
    for ready in steps(seed, step_requests, inputs):
        started, cpu = time.perf_counter(), time.process_time()
        index.apply(ready)
        took_s += time.perf_counter() - started
        cpu_s += time.process_time() - cpu
        requests += step_requests
        if took_s >= seconds or time.perf_counter() > gives_up_at:
            break
    assert index.position_next == requests, f"{index.position_next} decisions of {requests} requests"
    return requests, took_s, cpu_s
