"""The time that Spark needs to verify a log again: `make bench-spark`, or `python -P -m loadtest.bench.spark` with

    [--requests N …] [--signatures with|without|both] [--nights] [--out bench-spark.jsonl]

Each log is generated first, as an archive without a notary: one incarnation of one worker, batches spread over the partitions, all
committed. The same seed gives the same archive, written a batch at a time. The parts of a real worker replay it from memory: the fastest
possible replay. Then `spark_join verify` runs on the log as a separate process, on two cores. There is a figure only if Spark finds the
worker's root and no violation. The figure has the sum of the stages' times in `report.json`, and the rest of the process's time, in which
Spark starts.

With `--nights` one log grows from each size to the next, in steps of at most `STEP_REQUESTS`, and each run continues from the state that
the run before it kept. After each size comes the figure: a night over `NIGHT_REQUESTS` more. It counts only if the run decides as many
requests as the log has, and finds no violation. No worker replays such a log, which may have tens of millions of requests.
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from joiner.history import extended
from loadtest.bench.figure import exit_code
from loadtest.bench.figures.rebuild import Replayed, replay
from loadtest.bench.report import Report
from loadtest.rig.arguments import count
from loadtest.rig.generate import payload_values, write_parties
from loadtest.rig.progress import Bar, progress
from loadtest.rig.signing import NOTARY
from ordering.log import ORDERING, Record
from ordering.memory import MemoryLog
from ordering.records import FORMAT_VERSION, Entry, Genesis, Register, View, batch_key, decode
from ordering.signatures import NO_LOG_ID, SigningKey, log_id_of, sign_record
from spark_join.log.archive import ARCHIVE_VERSION, Range
from spark_join.log.files import SCHEMA, ArchivedFile

PARTITIONS: Final = 16
BATCH_BYTES_MAX = 512 << 10
"""The size of a payload record, as a worker gathers it under load."""
ROW_GROUP_RECORDS = 32
"""The number of such records in 16 MiB, the size of a row group of an archive."""
T0_MS = 1_760_000_000_000
"""The time at which the worker begins; a batch follows each millisecond."""
_PR_SET_CHILD_SUBREAPER: Final = 36

REQUESTS = (250_000, 500_000, 1_000_000)
CORES = 2
MEMORY = "4g"
RATE = 10_000
"""The approximate rate at which requests are generated, replayed and verified, all together; only the progress bar uses it."""
STEP_REQUESTS, NIGHT_REQUESTS = 5_000_000, 100_000
SHUFFLED_REQUESTS = 100_000
"""The requests of a step for each partition of a shuffle; docs/spark.md has the reason."""
DOUBLE_MAX, REPLAYS_MAX = 2.2, 3


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.spark", description="The time that Spark needs to verify a log.")
    default = ", ".join([f"{each:,}" for each in REQUESTS])
    parser.add_argument("--requests", type=count, action="append", metavar="N", help=f"of the log; may be repeated (default: {default})")
    parser.add_argument("--signatures", choices=("with", "without", "both"), default="both", help="whether they are verified")
    parser.add_argument("--submission-requests", type=count, default=100, metavar="N", help="requests of a submission (default: 100)")
    parser.add_argument("--inputs", type=count, default=4, metavar="N", help="inputs of a request (default: 4)")
    parser.add_argument("--nights", action="store_true", help="one log that grows to each size, and a night after each")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is made (default: 1)")
    parser.add_argument("--out", default="bench-spark.jsonl", metavar="FILE", help="where the JSON lines are added; - is stdout")
    chosen = parser.parse_args(arguments)
    measure = _measure_nights if chosen.nights else _measure
    return exit_code(lambda report: measure(report, chosen), chosen.out)


def _measure(report: Report, chosen: argparse.Namespace) -> None:
    """Measure the figure `verify`: a line for each size, with and without signatures."""
    sizes: list[int] = sorted(chosen.requests or REQUESTS)
    ways = {"with": (True,), "without": (False,), "both": (False, True)}[chosen.signatures]
    took_s: dict[tuple[int, bool], float] = {}
    bar, all_of_it, done = Bar(), sum(sizes) * (1 + len(ways)), 0
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
            folder = Path(directory)
            archive, parties = folder / "archive", folder / "parties.json"
            with bar.during(done / all_of_it, size / all_of_it, size / RATE, f"a log of {size:,} requests, and a worker's replay"):
                signed = chosen.signatures != "without"
                log = GrowingLog(archive, records(chosen.seed, chosen.submission_requests, chosen.inputs, signed=signed))
                log.grow(size)
                write_parties(parties)
                requests = log.requests
                replayed = uvloop.run(_replayed(archive, folder / "index", requests))
            done += size
            progress(f"{requests:,} requests: a worker replays them in {replayed.took_s:.1f} s")
            for signatures in ways:
                name = f"{size:,} requests, {'with' if signatures else 'without'} signatures"
                with bar.during(done / all_of_it, size / all_of_it, size / RATE, name):
                    options = ["--parties", str(parties)] if signatures else []
                    verified, process_s = _verified(archive, folder / name, *options)
                done += size
                stages_s: dict[str, float] = verified["stages_s"]
                took_s[size, signatures] = sum(stages_s.values())
                figures: dict[str, Any] = {
                    "requests_per_s": requests / took_s[size, signatures],
                    "seconds": took_s[size, signatures],
                    "start_s": process_s - took_s[size, signatures],
                    "replay_s": replayed.took_s,
                    "replays": took_s[size, signatures] / replayed.took_s,
                    "requests": requests,
                    "stages_s": stages_s,
                }
                if (half := took_s.get((size // 2, signatures))) is not None:
                    figures["times_half_the_log"] = took_s[size, signatures] / half
                goal = f"half the log at most {DOUBLE_MAX} times" + ("" if signatures else f"; at most {REPLAYS_MAX} replays")
                right = verified["root"] == replayed.root.hex() and not verified["violations"]
                report.add("verify", name, figures, _parameters(chosen), goal, failed=not right)
    bar.end()


def _parameters(chosen: argparse.Namespace) -> dict[str, Any]:
    return {"submission_requests": chosen.submission_requests, "inputs": chosen.inputs, "seed": chosen.seed, "cores": CORES}


async def _replayed(archive: Path, index: Path, requests: int) -> Replayed:
    """Returns a worker's replay of an archive with that many requests."""
    now_ms = [0]
    log = MemoryLog(PARTITIONS, lambda: now_ms[0], "bench")
    for record in read_archive(archive):
        now_ms[0] = record.append_time_ms
        log.put(record.partition, record.key, record.value)
    return await replay(log, index, requests)


def _verified(archive: Path, out: Path, *options: str, partitions: int = 0) -> tuple[dict[str, Any], float]:
    """Returns the content of `report.json`, and the seconds that the process ran.

    `partitions`: those of each shuffle; 0 is the command's default.
    """
    command = [sys.executable, "-P", "-m", "spark_join", "verify", "--archive", str(archive), "--out", str(out), "--quiet"]
    command += ["--work", str(out.parent), "--master", f"local[{CORES}]", "--memory", MEMORY, *options]
    submitted = {"PYSPARK_SUBMIT_ARGS": f"--conf spark.sql.shuffle.partitions={partitions} pyspark-shell"} if partitions else {}
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.perf_counter()
    done = subprocess.run(command, env=os.environ | submitted, capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - started
    # Java outlives the command for a moment. As a child of this process its CPU time is not that of others.
    with suppress(ChildProcessError):
        while True:
            os.wait()
    if done.returncode == 2:
        raise RuntimeError(f"it could not be verified: {done.stderr}")
    return orjson.loads((out / "report.json").read_bytes()), took_s


# ---- nights ----


def _measure_nights(report: Report, chosen: argparse.Namespace) -> None:
    """Measure the figure `night`: a line for each size of the log before it."""
    sizes: list[int] = sorted(chosen.requests or REQUESTS)
    bar, all_of_it = Bar(), sizes[-1] + NIGHT_REQUESTS
    with tempfile.TemporaryDirectory(prefix="bench-nights-") as directory:
        folder = Path(directory)
        write_parties(folder / "parties.json")
        log = GrowingLog(folder / "archive", records(chosen.seed, chosen.submission_requests, chosen.inputs, signed=True))
        before: Path | None = None
        for size in sizes:
            while log.requests < size:
                step = min(size - log.requests, STEP_REQUESTS)
                with bar.during(log.requests / all_of_it, step / all_of_it, step / RATE, f"the log grows to {size:,} requests"):
                    found, took_s, before = _night(log, step, before, folder)
                stages_s = sum(found["stages_s"].values())
                progress(f"{log.requests:,} requests: {step:,} more took {stages_s:.0f} s of stages, {took_s:.0f} s in all")
            assert before is not None
            state_bytes = sum(file.stat().st_size for file in (before / "state").rglob("*"))
            decided = log.requests
            report.others.begin()
            found, _, before = _night(log, NIGHT_REQUESTS, before, folder)
            night_s: dict[str, float] = found["stages_s"]
            figures = {
                "seconds": sum(night_s.values()),
                "state_bytes": state_bytes,
                "state_bytes_per_input": state_bytes / decided / chosen.inputs,
                "decisions_before": decided,
                "requests": log.requests - decided,
                "stages_s": night_s,
            }
            right = found["decisions"] == log.requests and not found["violations"]
            case = f"after {decided:,} decisions"
            report.add("night", case, figures, _parameters(chosen), "64 bytes of state an input", failed=not right)
    bar.end()


def _night(log: "GrowingLog", requests: int, before: Path | None, folder: Path) -> tuple[dict[str, Any], float, Path]:
    """Archive `requests` more, and verify them from the state before. Returns the report, the process's seconds, and the new state."""
    log.grow(requests)
    out = folder / f"night-{log.ranges}"
    options = ["--parties", str(folder / "parties.json"), "--keep-state"]
    if before is not None:
        options += ["--checkpoint-from", str(before)]
    partitions = max(4 * CORES, requests // SHUFFLED_REQUESTS)
    found, took_s = _verified(log.archive, out, *options, partitions=partitions)
    if before is not None:
        shutil.rmtree(before)
    return found, took_s, out


# ---- the log as an archive ----


def records(seed: int, submission_requests: int, inputs: int, *, signed: bool) -> Iterator[Record]:
    """Yields a genesis record, a registration, then the payload and entry of each batch, without end.

    All ordering records are signed. Unsigned submissions have random bytes for signatures.
    """
    offsets = dict.fromkeys(range(ORDERING, PARTITIONS), 0)
    owner, key = (SigningKey(sha256(f"loadtest.bench {name}".encode()).digest()) for name in ("owner", "notary"))

    def record(partition: int, at_ms: int, batch: bytes | None, value: bytes) -> Record:
        offsets[partition] += 1
        return Record(partition, offsets[partition] - 1, at_ms, batch, value)

    genesis = Genesis(bytes(16), PARTITIONS, key.public_key, owner.public_key, NOTARY, "notary.example/bench")
    yield record(ORDERING, T0_MS, None, value := sign_record(genesis, NO_LOG_ID, owner))
    log_id = history = log_id_of(value)
    register = Register(bytes(16), View(1, history), FORMAT_VERSION, "filler", "bench")
    yield record(ORDERING, T0_MS, None, value := sign_record(register, log_id, key))
    history = extended(history, T0_MS, sha256(value).digest(), mark=False)
    for sequence, made in enumerate(payload_values(seed, submission_requests, inputs, BATCH_BYTES_MAX, signed=signed), 1):
        partition, at_ms = sequence % PARTITIONS, T0_MS + sequence
        yield record(partition, at_ms, batch_key(1, sequence), made.value)
        entry = Entry(1, sequence, View(sequence + 1, history), at_ms, partition, sha256(made.value).digest(), made.ids)
        yield record(ORDERING, at_ms, None, value := sign_record(entry, log_id, key))
        history = extended(history, at_ms, sha256(value).digest(), mark=True)


class GrowingLog:
    """An archive (`spark_join.log.archive`) to which ranges are added."""

    def __init__(self, archive: Path, log: Iterator[Record]) -> None:
        self.archive = archive
        self.ranges = self.requests = 0
        self._log = log
        self._ends = dict.fromkeys(range(ORDERING, PARTITIONS), 0)

    def grow(self, requests: int) -> None:
        """Add a range with as many more requests, or a few more."""
        self.ranges += 1
        folder, begins = self.archive, dict(self._ends)
        paths = {partition: _file(partition, self.ranges) for partition in begins}
        with ExitStack() as stack:
            writers: dict[int, pq.ParquetWriter] = {}
            waiting: dict[int, list[Record]] = {partition: [] for partition in paths}
            for partition, path in paths.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                writers[partition] = stack.enter_context(
                    pq.ParquetWriter(folder / path, SCHEMA, compression="zstd", use_dictionary=False, write_statistics=["offset"])
                )
            for record in self._until(self.requests + requests):
                waiting[record.partition].append(record)
                self._ends[record.partition] += 1
                if len(waiting[record.partition]) == ROW_GROUP_RECORDS:
                    _write(writers[record.partition], waiting[record.partition])
            for partition, left in waiting.items():
                _write(writers[partition], left)
        files = []
        for partition, path in paths.items():
            with open(folder / path, "rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
            first, end = begins[partition], self._ends[partition]
            files.append(ArchivedFile(path, _topic(partition), max(partition, 0), first, end, end - first, digest))  # type: ignore[arg-type]
        (folder / "ranges").mkdir(exist_ok=True)
        range_ = Range(ARCHIVE_VERSION, PARTITIONS, files)
        (folder / f"ranges/{self.ranges:08}.json").write_bytes(msgspec.json.encode(range_))

    def _until(self, requests: int) -> Iterator[Record]:
        for record in self._log:
            yield record
            if record.partition == ORDERING and isinstance(entry := decode(record.value or b""), Entry):
                self.requests += len(entry.transaction_ids)
                if self.requests >= requests:
                    return


def read_archive(folder: Path) -> Iterator[Record]:
    """Yields the records of the first range of such an archive, one topic-partition after another."""
    for partition in range(ORDERING, PARTITIONS):
        with pq.ParquetFile(folder / _file(partition, 1)) as file:
            for batch in file.iter_batches(columns=SCHEMA.names):
                for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                    yield Record(partition, *row)


def _write(writer: pq.ParquetWriter, waiting: list[Record]) -> None:
    """Write the waiting records as a row group, and clear the list."""
    columns = [[getattr(record, name) for record in waiting] for name in SCHEMA.names]
    writer.write_table(pa.table(columns, schema=SCHEMA))
    waiting.clear()


def _file(partition: int, number: int) -> str:
    return f"{_topic(partition)}/partition={max(partition, 0)}/{number:08}.parquet"


def _topic(partition: int) -> str:
    return "ordering" if partition == ORDERING else "payload"


if __name__ == "__main__":
    sys.exit(main())
