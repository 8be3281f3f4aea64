"""The parts of a worker, each alone in this process: decoding, and deciding and persisting."""

import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from loadtest.bench.figure import Figure, part_alone, rate_rows
from loadtest.bench.report import Report
from loadtest.rig.generate import payload_values, steps
from loadtest.rig.signing import NOTARY
from notary.index import Index
from payload import decode_requests

DECODE_CASES = ((1, 1), (1, 100), (4, 1), (4, 100), (1_000, 1))
"""(inputs, requests of a submission)."""
BATCH_BYTES_MAX = 512 << 10

APPLY_CASES = ((1, 1_000), (4, 1_000), (1_000, 10))
"""(inputs, requests of a step)."""
SECONDS_SHARE_MAX = 4
"""The limit on a case's total time, as a multiple of its seconds: generating the steps takes longer than applying them."""


def measure_decode(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `decode`."""
    for inputs, submission_requests in DECODE_CASES:
        values = cycle(list(islice(payload_values(seed, submission_requests, inputs, BATCH_BYTES_MAX), 8)))
        requests = octets = 0
        started, cpu = time.perf_counter(), time.process_time()
        while (took_s := time.perf_counter() - started) < seconds:
            value = next(values).value
            requests += len(decode_requests(value, NOTARY))
            octets += len(value)
        figures = {
            "requests_per_s": requests / took_s,
            "inputs_per_s": requests * inputs / took_s,
            "mb_per_s": octets / took_s / 1e6,
            "cpu_us_per_request": (time.process_time() - cpu) / requests * 1e6,
        }
        case = f"{inputs} inputs, {submission_requests} requests a submission"
        report.add("decode", case, figures, {"inputs": inputs, "submission_requests": submission_requests, "seed": seed})


def measure_apply(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `apply`."""
    for inputs, step_requests in APPLY_CASES:
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
    """Returns (requests applied, seconds for that, CPU seconds of this process without those for generating the steps).

    RocksDB's threads flush and compact between the calls too, so their time is counted all along.
    """
    requests, took_s, generating_s = 0, 0.0, 0.0
    gives_up_at, cpu = time.perf_counter() + seconds * SECONDS_SHARE_MAX, time.process_time()
    made = steps(seed, step_requests, inputs)
    while took_s < seconds and time.perf_counter() <= gives_up_at:
        began_s = time.thread_time()
        ready = next(made)
        generating_s += time.thread_time() - began_s
        started = time.perf_counter()
        index.apply(ready)
        took_s += time.perf_counter() - started
        requests += step_requests
    assert index.position_next == requests, f"{index.position_next} decisions of {requests} requests"
    return requests, took_s, time.process_time() - cpu - generating_s


FIGURES = (
    Figure("decode", "how fast is a payload record decoded?", part_alone("decode", measure_decode, 5.0), {"decode": rate_rows}),
    Figure("apply", "how fast are ordered batches decided and persisted?", part_alone("apply", measure_apply, 8.0), {"apply": rate_rows}),
)
