"""The results of `loadtest.peers`: other systems at the notary's work, and the upper bounds for all of them.

| limit | question |
|---|---|
| append and read | how many requests a second can be appended and read back, with nothing decoded or decided? |
| verify | how many a second can be decoded and their signatures verified, with nothing before or after? |
| etcd alone | how many transactions a second does etcd's own client reach, without an HTTP adapter? |
"""

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Final

import uvloop

from loadtest.bench.figure import Figure, case_of, columns, formatted, number
from loadtest.bench.figures.raw import (
    ENTRY_BYTES,
    IN_FLIGHT,
    PARTITIONS,
    WARM_UP_SHARE,
    append_both,
    consumer,
    payload_partitions,
    producer,
    read_all,
    topic_partitions,
)
from loadtest.bench.loads import INPUTS, Case
from loadtest.bench.report import Report
from loadtest.rig.closed_loop import LoadResult
from loadtest.rig.generate import payload_values, submissions, write_parties
from loadtest.rig.latencies import Latencies
from loadtest.rig.progress import progress
from loadtest.rig.signing import NOTARY
from notary.gate import Gate
from notary.parties import Parties
from ordering.topics import create_topics

GOALS: Final = {"postgresql": "the notary does 3 times as much", "etcd": "the notary does 10 times as much"}
LIMIT_GOAL: Final = {100: "at least half of append and read"}
WRONG_LISTED: Final = 5


def add_results(
    report: Report,
    results: Mapping[str, Sequence[LoadResult]],
    case: Case,
    parameters: Mapping[str, Any],
    wrong: Mapping[str, Sequence[str]],
    append_and_read: float | None,
    others_share: float | None,
) -> None:
    """Report all peers' loads of one size. `append_and_read`: the rate of the log alone, in requests a second."""
    rates = {name: mean([each.requests_per_s for each in of_one]) for name, of_one in results.items()}
    for name, of_one in results.items():
        figures, goal = _figures(of_one), GOALS.get(name)
        if "notary" in rates:
            figures["notary_times"] = rates["notary"] / rates[name] if rates[name] else 0.0
        if name == "notary" and append_and_read:
            figures["share_of_append_and_read"] = rates[name] / append_and_read
            goal = LIMIT_GOAL.get(case.requests)
        for text in wrong[name][:WRONG_LISTED]:
            progress(f"{name} is wrong: {text}")
        failed = bool(wrong[name]) or bool(figures["errors"]) or not rates[name]
        about = {"peer": name, "requests": case.requests, "inputs": INPUTS, "connections": case.connections_each, **parameters}
        report.add("peers", f"{name}, {case.text}", figures, about, goal, failed=failed, others_share=others_share)


def _figures(of_one: Sequence[LoadResult]) -> dict[str, Any]:
    latencies = Latencies()
    for each in of_one:
        latencies.add_all(Latencies.decode(each.histogram))
    figures: dict[str, Any] = {
        "requests_per_s": mean([each.requests_per_s for each in of_one]),
        "requests_per_s_of_rounds": [round(each.requests_per_s) for each in of_one],
        "latency_ms_p50": latencies.percentile_ms(50),
        "latency_ms_p99": latencies.percentile_ms(99),
    }
    requests = max(sum([each.requests for each in of_one]), 1)
    for process in ("server", "worker", "load"):
        figures[f"{process}_cpu_s_per_1000"] = sum([each.cpu_seconds[process] for each in of_one]) / requests * 1000
    figures["others_cores"] = mean([each.others_cores for each in of_one])
    figures["errors"] = sum([each.errors for each in of_one])
    if any(each.ran_out for each in of_one):
        figures["ran_out"] = True
    return figures


# ---- limits ----

APPEND = ((1, 32 << 10), (100, 512 << 10))
"""(requests of a submission, bytes of a batch), as in `raw`."""
WARM_UP_BATCHES = 20
ALONE_IN_FLIGHT = 256


def measure_limits(
    report: Report, bootstrap: str, etcd_alone: Callable[[float, int, int], float] | None, seconds: float, seed: int
) -> dict[int, float]:
    """Report all limits; returns append and read in requests a second, by the requests of a submission.

    `etcd_alone`: `Etcd.load_alone`, if it runs.
    """
    limits: dict[int, float] = {}
    for requests, batch_bytes in APPEND:
        figures = uvloop.run(_append_and_read(bootstrap, requests, batch_bytes, seconds, seed))
        limits[requests] = figures["requests_per_s"]
        report.add("limits", f"append and read, {requests} a submission", figures, {"batch_bytes": batch_bytes, "seed": seed})
    for requests in (1, 100):
        figures = _verify(requests, seconds, seed)
        report.add("limits", f"verify, {requests} a submission", figures, {"seed": seed})
    if etcd_alone is not None:
        figures = {"requests_per_s": etcd_alone(seconds, ALONE_IN_FLIGHT, INPUTS)}
        report.add("limits", "etcd alone, by its own client", figures, {"in_flight": ALONE_IN_FLIGHT})
    return limits


async def _append_and_read(bootstrap: str, requests: int, batch_bytes: int, seconds: float, seed: int) -> dict[str, Any]:
    """Append to both topics, as a worker does, and read both at the same time; the records read back count."""
    prefix = f"limit-{uuid.uuid4().hex[:8]}"
    await create_topics(bootstrap, prefix, payload_partitions=PARTITIONS)
    values = list(islice(payload_values(seed, requests, INPUTS, batch_bytes), 32))
    entries = [bytes(ENTRY_BYTES) + b"".join(value.ids) for value in values]
    async with consumer(bootstrap) as client:
        read_all(client, topic_partitions(prefix))
        appended, ends_at = 0, float("inf")

        async def append(send: Any, partitions: Sequence[int]) -> None:
            nonlocal appended
            while time.perf_counter() < ends_at or appended == before:
                at, appended = appended % len(values), appended + 1
                await append_both(send, prefix, partitions[at % len(partitions)], values[at].value, entries[at])

        per_batch = sum([len(value.ids) for value in values]) / len(values)
        async with producer(bootstrap) as send, asyncio.TaskGroup() as tasks:
            partitions = await payload_partitions(send, prefix, batch_bytes)
            appending = [tasks.create_task(append(send, partitions)) for _ in range(IN_FLIGHT)]
            warm_at, counts_from = time.perf_counter() + seconds * WARM_UP_SHARE, 0.0
            read = before = 0
            while read < 2 * appended or not all(task.done() for task in appending):
                read += sum(map(len, (await client.getmany(timeout_ms=100)).values()))
                if not counts_from and read >= 2 * WARM_UP_BATCHES and time.perf_counter() >= warm_at:
                    counts_from, before = time.perf_counter(), appended
                    ends_at = counts_from + seconds
            took_s = time.perf_counter() - counts_from
        # Counts the appends since then, all of which were read: a reader that lags makes the time longer, never the count larger.
        return {"requests_per_s": (appended - before) * per_batch / took_s, "requests_per_batch": per_batch}


def _verify(requests: int, seconds: float, seed: int) -> dict[str, Any]:
    """Measure a worker's steps before the log: decode, and verify the signature."""
    bodies = [made.body for made in islice(submissions(seed, requests, INPUTS), max(1, 2_000 // requests))]
    with tempfile.TemporaryDirectory(prefix="limit-") as directory:
        parties = Path(directory) / "parties.json"
        write_parties(parties)
        gate = Gate(NOTARY, Parties(parties), lambda: None, time.monotonic, bytes_max=1 << 30, body_s_max=20.0, turn_s_max=0.005)
        began, cpu, ends_at = time.perf_counter(), time.process_time(), time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < ends_at:
            gate.admit(bodies[done % len(bodies)])
            done += 1
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return {"requests_per_s": done * requests / took_s, "cpu_us_per_request": cpu_s / (done * requests) * 1e6}


# ---- tables ----


_peer_rows = columns(
    ("system, 4 inputs a request", case_of),
    ("requests/s", "requests_per_s"),
    ("p50", number("latency_ms_p50", " ms")),
    ("p99", number("latency_ms_p99", " ms")),
    ("the notary, as a multiple of that", "notary_times"),
    ("goal", lambda line: line.goal or ""),
    ("of append and read alone", formatted("share_of_append_and_read", "{:.0%}")),
)

_limit_rows = columns(("the limits, each alone", lambda line: line.case), ("requests/s", "requests_per_s"))

FIGURES = (
    Figure("peers", "how fast are other systems at the same work?", tables={"peers": _peer_rows}),
    Figure("limits", "what are the upper bounds?", tables={"limits": _limit_rows}),
)
