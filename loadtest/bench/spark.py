"""The time that Spark needs to verify a log again: `make bench-spark`, or `python -P -m loadtest.bench.spark` with

    [--requests N …] [--signatures with|without|both] [--out bench-spark.jsonl]

Each log is generated first, as an archive, and replayed from memory by the parts of a real worker: the fastest possible replay. Then
`spark_join verify` runs on it as a process of its own, on two cores; unless it finds the worker's root and no violation, there is no
figure. The figure is the sum of its stages, from `report.json`, and separately the rest of the process's time: Spark's start.

Exit codes: 0 measured; 1 a log was not verified; 2 a measurement was impossible, or it was interrupted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from loadtest.bench.alone import exit_code
from loadtest.bench.archive import PARTITIONS, read_archive, records, write_archive
from loadtest.bench.generate import PARTY, party_key_pem
from loadtest.bench.rebuild import Replayed, replay
from loadtest.bench.report import Bar, Report, lines_to, progress
from loadtest.rig import interrupt_once
from ordering.log import ORDERING
from ordering.memory import MemoryLog
from ordering.records import Entry, decode

REQUESTS = (250_000, 500_000, 1_000_000)
CORES = 2
MEMORY = "4g"
RATE = 10_000
"""The approximate rate at which requests are generated, replayed and verified, all together; only the progress bar uses it."""
DOUBLE_MAX, REPLAYS_MAX = 2.2, 3


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.spark", description="How long Spark takes to verify a log.")
    told = ", ".join([f"{each:,}" for each in REQUESTS])
    parser.add_argument("--requests", type=int, action="append", metavar="N", help=f"of the log; may be repeated (default: {told})")
    parser.add_argument("--signatures", choices=("with", "without", "both"), default="both", help="whether they are verified")
    parser.add_argument("--submission-requests", type=int, default=100, metavar="N", help="requests of a submission (default: 100)")
    parser.add_argument("--inputs", type=int, default=4, metavar="N", help="inputs of a request (default: 4)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs there, and take those that are there")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    parser.add_argument(
        "--json", "--out", dest="out", default="bench-spark.jsonl", metavar="FILE", help="where the JSON lines go; - is stdout"
    )
    chosen = parser.parse_args(arguments)

    def measured() -> Report:
        with lines_to(chosen.out) as lines:
            report = Report(lines, sys.stderr if chosen.out == "-" else sys.stdout)
            _measure(report, chosen)
            report.print_table()
        return report

    interrupt_once()
    return exit_code(measured)


class _Log(msgspec.Struct, frozen=True):
    """An archive, and a worker's replay of it."""

    archive: Path
    parties: Path
    requests: int
    replayed: Replayed


def _measure(report: Report, chosen: argparse.Namespace) -> None:
    """Measure the figure `verify`: a line for each size, with and without signatures."""
    sizes: list[int] = sorted(chosen.requests or REQUESTS)
    ways = {"with": (True,), "without": (False,), "both": (False, True)}[chosen.signatures]
    took_s: dict[tuple[int, bool], float] = {}
    bar, all_of_it, done = Bar(), sum(sizes) * (1 + len(ways)), 0
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
            with bar.during(done / all_of_it, size / all_of_it, size / RATE, f"a log of {size:,} requests, and a worker's replay"):
                log = _made(Path(directory), size, chosen)
            done += size
            progress(f"{log.requests:,} requests: a worker replays them in {log.replayed.took_s:.1f} s")
            for signatures in ways:
                name = f"{size:,} requests, {'with' if signatures else 'without'} signatures"
                with bar.during(done / all_of_it, size / all_of_it, size / RATE, name):
                    said, process_s = _verified(log, Path(directory) / name, signatures=signatures)
                done += size
                stages_s: dict[str, float] = said["stages_s"]
                took_s[size, signatures] = sum(stages_s.values())
                figures: dict[str, Any] = {
                    "requests_per_s": log.requests / took_s[size, signatures],
                    "seconds": took_s[size, signatures],
                    "start_s": process_s - took_s[size, signatures],
                    "replay_s": log.replayed.took_s,
                    "replays": took_s[size, signatures] / log.replayed.took_s,
                    "requests": log.requests,
                    "stages_s": stages_s,
                }
                if (half := took_s.get((size // 2, signatures))) is not None:
                    figures["times_half_the_log"] = took_s[size, signatures] / half
                parameters = {
                    "submission_requests": chosen.submission_requests,
                    "inputs": chosen.inputs,
                    "seed": chosen.seed,
                    "cores": CORES,
                }
                goal = f"half the log at most {DOUBLE_MAX} times" + ("" if signatures else f"; at most {REPLAYS_MAX} replays")
                right = said["root"] == log.replayed.root.hex() and not said["violations"]
                report.add("verify", name, figures, parameters, goal, failed=not right)
    bar.end()


def _made(directory: Path, requests_min: int, chosen: argparse.Namespace) -> _Log:
    signed = chosen.signatures != "without"
    name = f"{requests_min}-{chosen.submission_requests}-{chosen.inputs}-{chosen.seed}-{'signed' if signed else 'unsigned'}"
    archive, parties = (chosen.logs or directory) / name, directory / "parties.json"
    if not archive.exists():
        made = records(chosen.seed, requests_min, chosen.submission_requests, chosen.inputs, signed=signed)
        unfinished = archive.with_suffix(".unfinished")
        write_archive(unfinished, made)
        unfinished.rename(archive)
    parties.write_text(json.dumps({PARTY: party_key_pem().decode()}))
    return _Log(archive, parties, *uvloop.run(_replayed(archive, directory / "index")))


async def _replayed(archive: Path, index: Path) -> tuple[int, Replayed]:
    """Returns the number of requests in it, and a worker's replay."""
    requests, now_ms = 0, [0]
    log = MemoryLog(PARTITIONS, lambda: now_ms[0], "bench")
    for record in read_archive(archive):
        now_ms[0] = record.append_time_ms
        log.put(record.stream, record.key, record.value)
        if record.stream == ORDERING and isinstance(said := decode(record.value or b""), Entry):
            requests += len(said.transaction_ids)
    return requests, await replay(log, index, requests)


def _verified(log: _Log, out: Path, *, signatures: bool) -> tuple[dict[str, Any], float]:
    """Returns the content of `report.json`, and the seconds that the process ran."""
    command = [sys.executable, "-P", "-m", "spark_join", "verify", "--archive", str(log.archive), "--out", str(out), "--quiet"]
    command += ["--work", str(log.parties.parent), "--master", f"local[{CORES}]", "--memory", MEMORY]
    started = time.perf_counter()
    done = subprocess.run([*command, *(["--parties", str(log.parties)] if signatures else [])], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise RuntimeError(f"it could not be verified: {done.stderr}")
    return json.loads((out / "report.json").read_text()), time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
