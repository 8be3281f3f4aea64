"""The rate at which a worker replays a log into an empty index: the time until a new worker, or one with a new disk, is ready.

The log is filled first through a real `Writer`, with the records of one incarnation. Then the parts of a real worker (reader, joiner,
decision function, index) run from offset 0 until every request is decided. The same log is also read without decoding, in the same process:
the ratio of the two is comparable between machines.
"""

import asyncio
import gc
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop

from joiner import Driver, DriverSettings, Joiner, QueueLimits, Sender, SenderSettings
from loadtest.bench.figure import Figure, part_on_brokers, rate_rows
from loadtest.bench.figures.raw import read_back
from loadtest.bench.report import Report
from loadtest.rig.generate import payload_values
from loadtest.rig.progress import progress
from loadtest.rig.signing import NOTARY
from notary.decision import Decision
from notary.index import Index
from ordering.genesis import append_genesis
from ordering.kafka import KafkaLog
from ordering.log import ORDERING, Log
from ordering.records import FORMAT_VERSION, Entry, Genesis, Register, View, batch_key
from ordering.signatures import SigningKey, sign_record
from ordering.topics import create_topics

BATCH_BYTES_MAX = 512 << 10
IN_FLIGHT = 8
RAW_READS = 2
"""Raw reads before the replay, and as many after it; the median counts."""
SECONDS_MAX = 300.0

CASES = (
    (1, 100, 40_000, "45,000 requests/s"),
    (1, 1, 20_000, None),
    (4, 100, 20_000, None),
    (1_000, 1, 120, "120,000 inputs/s"),
)
"""(inputs, requests of a submission, requests in the log for each second of the run, goal)."""


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay: its time, its CPU time, and the root over its decisions."""

    took_s: float
    cpu_s: float
    root: bytes


def measure(report: Report, bootstrap: str, brokers: int, seconds: float, seed: int) -> None:
    """Measure the figure `rebuild`."""
    for inputs, submission_requests, requests_per_s, goal in CASES:
        prefix = f"rebuild-{inputs}-{submission_requests}"
        parameters = {"brokers": brokers, "inputs": inputs, "submission_requests": submission_requests, "seed": seed}
        # A quarter of the time for each case; all of them together take twice that, filling included.
        requests = int(requests_per_s * seconds / 2)
        figures = uvloop.run(_case(bootstrap, prefix, inputs, submission_requests, requests, seed))
        report.add("rebuild", f"{inputs} inputs, {submission_requests} requests a submission", figures, parameters, goal)


async def _case(bootstrap: str, prefix: str, inputs: int, submission_requests: int, requests_min: int, seed: int) -> dict[str, Any]:
    await create_topics(bootstrap, prefix)
    log = await KafkaLog.open(bootstrap, prefix)
    try:
        requests = await _fill(log, submission_requests, inputs, requests_min, seed)
        progress(f"rebuild: {prefix}: {requests} requests are in the log")
        gc.collect()
        raw_s = [(await read_back(bootstrap, prefix))[0] for _ in range(RAW_READS)]
        with tempfile.TemporaryDirectory(prefix="bench-rebuild-") as directory:
            replayed = await replay(log, Path(directory) / "index", requests)
        raw_s += [(await read_back(bootstrap, prefix))[0] for _ in range(RAW_READS)]
    finally:
        await log.close()
    return {
        "requests_per_s": requests / replayed.took_s,
        "inputs_per_s": requests * inputs / replayed.took_s,
        "raw_read_requests_per_s": requests / median(raw_s),
        "share_of_raw_read": median(raw_s) / replayed.took_s,
        "cpu_us_per_request": replayed.cpu_s / requests * 1e6,
        "requests": requests,
    }


async def _fill(log: KafkaLog, submission_requests: int, inputs: int, requests_min: int, seed: int) -> int:
    """Fill the log with one worker's records until there are enough requests; returns the number of requests."""
    key, partitions = SigningKey(bytes(32)), log.payload_partitions
    log_id = await append_genesis(log, Genesis(bytes(16), partitions, key.public_key, key.public_key, NOTARY, "bench"), key)
    view = View(1, log_id)
    writer = await log.open_writer()
    try:
        register = Register(bytes(16), view, FORMAT_VERSION, "filler", "bench")
        await writer.append(ORDERING, None, sign_record(register, log_id, key))
        sequence = requests = 0
        made = payload_values(seed, submission_requests, inputs, BATCH_BYTES_MAX)
        while requests < requests_min:
            appends = []
            for value in islice(made, IN_FLIGHT):
                sequence += 1
                partition = sequence % partitions
                payload_hash = sha256(value.value).digest()
                entry = Entry(1, sequence, view, time.time_ns() // 1_000_000, partition, payload_hash, value.ids)
                appends.append(writer.append(partition, batch_key(1, sequence), value.value))
                appends.append(writer.append(ORDERING, None, sign_record(entry, log_id, key)))
                requests += len(value.ids)
            await asyncio.gather(*appends)
        return requests
    finally:
        await writer.close()


class _NoKeys:
    """The keys of a rebuilder, which writes nothing: none."""

    def key_for(self, public_key: bytes) -> None:
        """Returns None: it has no key."""

    def fill_key_for(self, public_key: bytes) -> None:
        """Returns None: it has no key."""

    def public_keys(self) -> list[bytes]:
        """Returns an empty list."""
        return []


async def replay(log: Log, directory: Path, requests: int) -> Replayed:
    """Replay the log into an empty index in `directory` until it has decided that many requests; returns the times and the root."""
    index = Index.open(directory, notary_name=NOTARY, log_identity=log.identity)
    verifiers = ThreadPoolExecutor(2)
    try:

        def clock_ms() -> int:
            return time.time_ns() // 1_000_000

        joiner = Joiner(index.joiner_state(), None, "rebuilder")
        sender: Sender[Decision] = Sender(
            log, joiner, _NoKeys(), "rebuilder", "bench", SenderSettings(), QueueLimits(), clock_ms, lambda: b"rebuilder's once"
        )
        driver = Driver(log, joiner, index, sender, DriverSettings(), clock_ms, executor=verifiers)
        started, cpu = time.perf_counter(), time.process_time()
        running = asyncio.create_task(driver.run())
        try:
            while index.position_next < requests:
                if running.done() and index.position_next < requests:
                    running.result()
                if time.perf_counter() - started > SECONDS_MAX:
                    raise RuntimeError(f"{index.position_next} of {requests} requests after {SECONDS_MAX:g} s")
                await asyncio.sleep(0.01)
            took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        finally:
            running.cancel()
            await asyncio.wait([running])
        # It has no key to register with, and logs that once it has read everything.
        assert index.position_next == requests, f"{index.position_next} decisions of {requests} requests"
        return Replayed(took_s, cpu_s, index.tree.root_at(requests))
    finally:
        verifiers.shutdown()
        index.close()


FIGURES = (
    Figure(
        "rebuild",
        "how fast does a worker replay a log into an empty index?",
        part_on_brokers("rebuild", measure, 1.0, 4.0),
        {"rebuild": rate_rows},
    ),
)
