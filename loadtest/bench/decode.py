"""The rate at which a payload record is decoded: every worker does this for every request of all others."""

import time

from loadtest.bench.generate import NOTARY, payload_values
from loadtest.bench.report import Report
from payload import decode_requests

CASES = ((1, 1), (1, 100), (4, 1), (4, 100), (1_000, 1))
"""(inputs, requests of a submission)."""

BATCH_BYTES_MAX = 512 << 10


def measure(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `decode`."""
    for inputs, submission_requests in CASES:
        made = payload_values(seed, submission_requests, inputs, BATCH_BYTES_MAX)
        values = [value for value, _ in zip(made, range(8), strict=False)]
        requests = octets = at = 0
        started, cpu = time.perf_counter(), time.process_time()
        while (took_s := time.perf_counter() - started) < seconds:
            value = values[at % len(values)]
            requests += len(decode_requests(value.value, NOTARY))
            octets += len(value.value)
            at += 1
        figures = {
            "requests_per_s": requests / took_s,
            "inputs_per_s": requests * inputs / took_s,
            "mb_per_s": octets / took_s / 1e6,
            "cpu_us_per_request": (time.process_time() - cpu) / requests * 1e6,
        }
        case = f"{inputs} inputs, {submission_requests} requests a submission"
        report.add("decode", case, figures, {"inputs": inputs, "submission_requests": submission_requests, "seed": seed})
