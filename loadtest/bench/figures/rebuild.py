"""The rate at which a worker replays a log into an empty index: the time until a new worker, or one with a new disk, is ready.

The log is filled first through a real `Writer`, with the records of one incarnation. Then the parts of a real worker (reader, joiner,
decision function, index) run from offset 0 until every request is decided. The same log is also read without decoding, in the same process:
the ratio of the two is comparable between machines.

Also a command of its own, `make bench-ready`: the time to ready of a worker without an index, from a snapshot against a replay.

    python -P -m loadtest.bench.figures.rebuild [--requests 10000000] [--inputs 1] [--out bench-ready.jsonl]

Its log is an embedded one. `notary serve` starts three times as a separate process; the command measures the time from its start to its
ready line. The first start has no index and replays the log. The second has the index from that replay. The third has no index but a
snapshot, which it verifies and restores. If a worker ends with another number of decisions than the log has, there is no figure.
"""

import argparse
import asyncio
import gc
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import msgspec
import uvloop

from joiner import Driver, DriverSettings, Joiner, QueueLimits, Sender, SenderSettings
from loadtest.bench.figure import Figure, exit_code, part_on_brokers, rate_rows
from loadtest.bench.figures.raw import read_back
from loadtest.bench.report import Report
from loadtest.rig import notaries
from loadtest.rig.arguments import count
from loadtest.rig.generate import payload_values
from loadtest.rig.progress import Bar, progress
from loadtest.rig.signing import NOTARY
from notary import keys
from notary.config import load
from notary.decision import Decision
from notary.index import Index
from notary.open_log import open_log
from ordering.genesis import append_genesis, read_genesis
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

READY_REQUESTS: Final = 10_000_000
READY_RATE: Final = 15_000
"""The approximate rate at which requests are generated and replayed, all together; only the progress bar uses it."""
READY_S_MAX: Final = 3_600.0
NAME: Final = "worker-1"


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
        key = SigningKey(bytes(32))
        genesis = Genesis(bytes(16), log.payload_partitions, key.public_key, key.public_key, NOTARY, "bench")
        log_id = await append_genesis(log, genesis, key)
        requests = await _fill(log, log_id, key, submission_requests, inputs, requests_min, seed)
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


async def _fill(log: Log, log_id: bytes, key: SigningKey, submission_requests: int, inputs: int, requests_min: int, seed: int) -> int:
    """Fill the log with one worker's records until there are enough requests; returns the number of requests."""
    view, partitions = View(1, log_id), log.payload_partitions
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
    """No keys: a replay writes nothing."""

    def key_for(self, public_key: bytes) -> None: ...

    def fill_key_for(self, public_key: bytes) -> None: ...

    def public_keys(self) -> list[bytes]:
        return []


async def replay(log: Log, directory: Path, requests: int) -> Replayed:
    """Replay the log into an empty index in `directory` until it has decided `requests` requests. Returns the times and the root."""
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


def main(arguments: list[str] | None = None) -> int:
    """Measure the figure `ready`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -P -m loadtest.bench.figures.rebuild", description="The time to ready, from a snapshot or a replay."
    )
    parser.add_argument(
        "--requests", type=count, default=READY_REQUESTS, metavar="N", help=f"decisions in the log (default: {READY_REQUESTS:,})"
    )
    parser.add_argument("--inputs", type=count, default=1, metavar="N", help="inputs of a request (default: 1)")
    parser.add_argument("--out", default="bench-ready.jsonl", metavar="FILE", help="where the JSON lines are added; - is stdout")
    chosen = parser.parse_args(arguments)
    return exit_code(lambda report: _measure_ready(report, chosen), chosen.out)


def _measure_ready(report: Report, chosen: argparse.Namespace) -> None:
    """Add a line for each way to start."""
    with tempfile.TemporaryDirectory(prefix="bench-ready-") as directory:
        bar, folder = Bar(), Path(directory)
        with bar.during(0, 1, chosen.requests / READY_RATE, f"a log of {chosen.requests:,} requests, and three starts"):
            config = notaries.make(folder / "notary", None, "")
            decisions = uvloop.run(_fill_embedded(config, chosen.requests, chosen.inputs))
            for case, environment in (
                ("replay", {}),
                ("own index", {}),
                ("snapshot", {"NOTARY_SNAPSHOTS_URL": str(folder / "snapshots")}),
            ):
                if case == "snapshot":
                    began_s = time.monotonic()
                    notaries.notary("snapshot", "create", "--config", str(config), "--name", NAME, "--url", str(folder / "snapshots"))
                    made_s = time.monotonic() - began_s
                    shutil.rmtree(config.parent / "index")
                report.others.begin()
                began_s = time.monotonic()
                with notaries.worker(config, NAME, environment, ready_s_max=READY_S_MAX) as service:
                    ready_s = time.monotonic() - began_s
                    found = _positions(service.url)
                figures: dict[str, Any] = {"ready_s": ready_s, "decisions": decisions, "per_s": decisions / ready_s}
                if case == "snapshot":
                    figures |= {"made_s": made_s, "bytes": sum(file.stat().st_size for file in (folder / "snapshots").rglob("*"))}
                report.add("ready", case, figures, {"inputs": chosen.inputs, "log": "embedded"}, failed=found != decisions)
        bar.end()


def _positions(url: str) -> int:
    """Returns the number of decisions in a worker's index."""
    (found,) = re.findall("^notary_positions (.+)$", httpx.get(f"{url}/metrics", trust_env=False).text, re.MULTILINE)
    return int(float(found))


async def _fill_embedded(config: Path, requests_min: int, inputs: int) -> int:
    """Fill the log of a new notary on an embedded log, as `_fill` does."""
    settings = load(config)
    key = SigningKey(keys.load(settings.path(settings.key_file)).private_bytes_raw())
    log = await open_log(settings)
    try:
        _, log_id = await read_genesis(log)
        return await _fill(log, log_id, key, 100, inputs, requests_min, 1)
    finally:
        await log.close()


FIGURES = (
    Figure(
        "rebuild",
        "how fast does a worker replay a log into an empty index?",
        part_on_brokers("rebuild", measure, 1.0, 4.0),
        {"rebuild": rate_rows},
    ),
)


if __name__ == "__main__":
    sys.exit(main())
