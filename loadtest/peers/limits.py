"""Upper bounds for the notary: the log alone, deciding alone, verifying signatures alone.

| figure | question |
|---|---|
| append and read | how many requests a second can be appended and read back, with nothing decoded or decided? |
| verify | how many a second can be decoded and their signatures verified, with nothing before or after? |
| apply | how many can be decided and persisted (`loadtest.bench.apply`)? |
| etcd alone | how many transactions a second does etcd's own client reach, without a front? |
"""

import asyncio
import tempfile
import time
import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from loadtest.bench import apply
from loadtest.bench.end_to_end import INPUTS
from loadtest.bench.generate import NOTARY, PARTY, party_key_pem, payload_values, submissions
from loadtest.bench.raw import ENTRY_BYTES, IN_FLIGHT, KEY, PARTITIONS, WARM_UP_SHARE, consumer, producer, read_all, streams
from loadtest.bench.report import Report
from loadtest.peers.etcd import Etcd
from notary.gate import Gate
from notary.parties import Parties
from ordering.topics import create_topics, topic_names

APPEND = ((1, 32 << 10), (100, 512 << 10))
"""(requests of a submission, bytes of a batch), as in `loadtest.bench.raw`."""
WARM_UP_BATCHES = 20
ALONE_IN_FLIGHT = 256


def measure(report: Report, bootstrap: str, etcd: Etcd | None, seconds: float, seed: int) -> dict[int, float]:
    """Report all limits; returns append and read in requests a second, by the requests of a submission. `etcd`: if it runs."""
    limits: dict[int, float] = {}
    for requests, batch_bytes in APPEND:
        figures = uvloop.run(_append_and_read(bootstrap, requests, batch_bytes, seconds, seed))
        limits[requests] = figures["requests_per_s"]
        report.add("limits", f"append and read, {requests} a submission", figures, {"batch_bytes": batch_bytes, "seed": seed})
    for requests in (1, 100):
        figures = _verify(requests, seconds, seed)
        report.add("limits", f"verify, {requests} a submission", figures, {"seed": seed})
    apply.measure(report, seconds / 2, seed)
    if etcd is not None:
        figures = {"requests_per_s": etcd.load_alone(seconds, ALONE_IN_FLIGHT, INPUTS)}
        report.add("limits", "etcd alone, by its own client", figures, {"in_flight": ALONE_IN_FLIGHT})
    return limits


async def _append_and_read(bootstrap: str, requests: int, batch_bytes: int, seconds: float, seed: int) -> dict[str, Any]:
    """Append to both topics, as a worker does, and read both at the same time; the records read back count."""
    prefix = f"limit-{uuid.uuid4().hex[:8]}"
    await create_topics(bootstrap, prefix, payload_partitions=PARTITIONS)
    ordering, payload = topic_names(prefix)
    values = [value for value, _ in zip(payload_values(seed, requests, INPUTS, batch_bytes), range(32), strict=False)]
    entries = [bytes(ENTRY_BYTES) + b"".join(value.ids) for value in values]
    async with consumer(bootstrap) as client:
        read_all(client, streams(prefix))
        appended, ends_at = 0, float("inf")

        async def append(send: Any) -> None:
            nonlocal appended
            while time.perf_counter() < ends_at:
                at, appended = appended % len(values), appended + 1
                both = await asyncio.gather(
                    send.send(payload, values[at].value, KEY, at % PARTITIONS), send.send(ordering, entries[at], None, 0)
                )
                await asyncio.gather(*both)

        per_batch = sum([len(value.ids) for value in values]) / len(values)
        async with producer(bootstrap) as send, asyncio.TaskGroup() as tasks:
            appending = [tasks.create_task(append(send)) for _ in range(IN_FLIGHT)]
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
        parties.write_bytes(msgspec.json.encode({PARTY: party_key_pem().decode()}))
        gate = Gate(NOTARY, Parties(parties), lambda: None, time.monotonic, bytes_max=1 << 30, body_s_max=20.0, turn_s_max=0.005)
        began, cpu, ends_at = time.perf_counter(), time.process_time(), time.perf_counter() + seconds
        done = 0
        while time.perf_counter() < ends_at:
            gate.admit(bodies[done % len(bodies)])
            done += 1
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return {"requests_per_s": done * requests / took_s, "cpu_us_per_request": cpu_s / (done * requests) * 1e6}
