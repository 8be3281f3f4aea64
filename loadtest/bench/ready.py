"""The time to ready of a worker without an index, from a snapshot against a replay: `python -P -m loadtest.bench.ready` with

    [--requests 10000000] [--inputs 1] [--out bench-ready.jsonl]

The log is an embedded one, and written without a worker: signed entries of one incarnation whose requests all commit. Then `notary serve`
starts three times as a process of its own, and the time from its start to its ready line counts: without an index, so that it replays the
log; with the index that it has then; and without an index beside a snapshot, which it verifies and restores by itself. A worker that ends
with another number of decisions than the log has makes no figure.

Exit codes: 0 measured; 1 a worker lacked decisions; 2 a measurement was impossible, or it was interrupted.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
import urllib.request
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import uvloop

from loadtest.bench.figure import exit_code
from loadtest.bench.report import Report, report_to
from loadtest.rig import notaries
from loadtest.rig.generate import payload_values
from loadtest.rig.progress import Bar
from notary import keys
from notary.config import load
from notary.open_log import open_log
from ordering.genesis import read_genesis
from ordering.log import ORDERING
from ordering.records import FORMAT_VERSION, Entry, Register, View, batch_key
from ordering.signatures import SigningKey, sign_record

REQUESTS: Final = 10_000_000
BATCH_BYTES_MAX: Final = 512 << 10
RATE: Final = 15_000
"""The approximate rate at which requests are generated and replayed, all together; only the progress bar uses it."""
READY_S_MAX: Final = 3_600.0
AT_ONCE: Final = 8
NAME: Final = "worker-1"


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -P -m loadtest.bench.ready", description="The time to ready, from a snapshot or a replay."
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, metavar="N", help=f"decisions in the log (default: {REQUESTS:,})")
    parser.add_argument("--inputs", type=int, default=1, metavar="N", help="inputs of a request (default: 1)")
    parser.add_argument("--out", default="bench-ready.jsonl", metavar="FILE", help="where the JSON lines go; - is stdout")
    chosen = parser.parse_args(arguments)
    return exit_code(lambda report: _measure(report, chosen), report_to(chosen.out))


def _measure(report: Report, chosen: argparse.Namespace) -> None:
    """Measure the figure `ready`: a line for each way to start."""
    with tempfile.TemporaryDirectory(prefix="bench-ready-") as directory:
        bar, folder = Bar(), Path(directory)
        with bar.during(0, 1, chosen.requests / RATE, f"a log of {chosen.requests:,} requests, and three starts"):
            config = notaries.make(folder / "notary", None, "")
            decisions = uvloop.run(_write(config, chosen.requests, chosen.inputs))
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
                report.begin()
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
    with urllib.request.urlopen(f"{url}/metrics") as answer:  # noqa: S310 - a worker of our own
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("notary_positions ")]
    return int(float(line.split()[1]))


async def _write(config: Path, requests_min: int, inputs: int) -> int:
    """Append a registration, and the payload and entry of each batch, until there are enough requests; returns their number."""
    settings = load(config)
    key = SigningKey(keys.load(settings.path(settings.key_file)).private_bytes_raw())
    log = await open_log(settings)
    try:
        _, log_id = await read_genesis(log)
        view, partitions = View(1, log_id), log.payload_partitions
        writer = await log.open_writer()
        await writer.append(ORDERING, None, sign_record(Register(bytes(16), view, FORMAT_VERSION, "filler", "bench"), log_id, key))
        requests, payloads, entries = 0, [], []
        for sequence, made in enumerate(payload_values(1, 100, inputs, BATCH_BYTES_MAX), 1):
            partition = sequence % partitions
            payloads.append(writer.append(partition, batch_key(1, sequence), made.value))
            sent_at_ms = time.time_ns() // 1_000_000
            entry = Entry(1, sequence, view, sent_at_ms, partition, sha256(made.value).digest(), made.ids)
            entries.append((ORDERING, None, sign_record(entry, log_id, key)))
            requests += len(made.ids)
            if len(payloads) == AT_ONCE or requests >= requests_min:
                await asyncio.gather(*payloads)
                for each in entries:  # in their order
                    await writer.append(*each)
                payloads, entries = [], []
            if requests >= requests_min:
                return requests
        raise AssertionError("payload values never end")
    finally:
        await log.close()


if __name__ == "__main__":
    sys.exit(main())
