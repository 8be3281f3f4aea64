"""`notary size`: computes the workers, cores, disks and network for a load, from earlier measurements (docs/performance.md).

Every worker applies every request in order; submissions are spread over the workers. A worker is full when its main thread, which runs all
of its Python code, fills one core. RocksDB flushes and compacts in threads of its own, which need cores beside that one.

The numbers below were fitted to the table of stages in docs/performance.md, and `tests/notary/cli/test_size.py` compares both. RocksDB's
threads are the table's stage `native threads`; all other stages run on the main thread.
"""

import argparse
import math
from typing import Final

import msgspec

from notary.cli import json_line
from ordering.errors import ConfigurationError

CENTRES: Final = 3
REPLICAS: Final = 3
FULL_AT: Final = 0.7
"""The planned utilization of a worker's main thread; the rest is for bursts, and for slower cores."""
WORKERS_MAX: Final = 60
MEMORY_MIB: Final = 1_024
"""A worker's memory: 256 MiB of RocksDB cache, as much for buffers, and the rest for pending submissions and Python.

It lasts until the bloom filters do not fit into the cache: about ninety million requests of one input.
"""
BROKER_MEMORY_MIB: Final = 6_144
DAY_S: Final = 86_400


class _Cost(msgspec.Struct, frozen=True):
    """Microseconds of CPU, or bytes, that a request costs: a base, a part for each input, and its part of what a submission costs."""

    base: float
    per_input: float
    per_submission: float = 0.0


PARALLEL_US: Final = _Cost(9.5, 0.75, 134)
"""HTTP, decoding, signatures, look-ups and answers, in the worker that received the submission."""
LOOP_US: Final = _Cost(1.6, 0.54, 25.5)
"""Event loop, batches and self-checks, in the worker that received the submission."""
DECODE_US: Final = _Cost(3.7, 0.51, 9.1)
"""Decoding, which the other workers do again for what they read from the log."""
IN_ORDER_US: Final = _Cost(5.1, 1.8, 6.2)
"""Joining, deciding, index and tree, in each worker."""
LOG_CLIENT_US: Final = _Cost(0.8, 0.38, 7.9)
"""The client of the log, in each worker."""
ROCKSDB_US: Final = _Cost(5.5, 5.5)
"""RocksDB's threads, in each worker: by rows, one for the id and one for each input.

Fitted to the load of the table that writes the most rows: shorter loads end before a compaction.
"""
BROKER_US: Final = _Cost(1.6, 0.4, 30.5)
"""Each of three brokers."""
LOG_BYTES: Final = _Cost(147, 95, 210)
"""Both topics, one replica: a mean of uncompressed JSON with 64-character ids."""
INDEX_BYTES: Final = _Cost(150, 105)
"""One worker's index, after compaction."""
FILTER_BYTES: Final = _Cost(1.5, 1.5)
"""One worker's bloom filters: 12 bits (`IndexSettings`) for the id and for each input."""


class Load(msgspec.Struct, frozen=True):
    """A load: requests a second, inputs of a request, requests of a submission."""

    tps: float
    inputs: int
    per_submission: int

    def cost(self, part: _Cost) -> float:
        """Returns the cost of a part for a request of this load."""
        return part.base + part.per_input * self.inputs + part.per_submission / self.per_submission

    def main_thread_us(self, workers: int) -> float:
        """Returns the microseconds that the main thread of each of that many workers needs for each request that the notary decides."""
        own = self.cost(PARALLEL_US) + self.cost(LOOP_US)
        return (own + (workers - 1) * self.cost(DECODE_US)) / workers + self.cost(IN_ORDER_US) + self.cost(LOG_CLIENT_US)

    def worker_us(self, workers: int) -> float:
        """Returns the microseconds of all threads of each of that many workers for each request that the notary decides."""
        return self.main_thread_us(workers) + self.cost(ROCKSDB_US)

    def full_at(self, workers: int) -> float:
        """Returns the requests a second at which the main threads of that many workers are full."""
        return 1e6 / self.main_thread_us(workers)


class Size(msgspec.Struct, frozen=True):
    """The resources that a load needs in three data centres."""

    workers: int
    """The number of workers, a multiple of three: the same number in each centre."""
    workers_full_at_tps: int
    """Requests a second at which all workers are full."""
    left_full_at_tps: int
    """Requests a second at which the workers of two centres are full."""
    cores_of_a_worker: float
    """Cores for all threads of a worker; its main thread takes `FULL_AT` of one at most."""
    memory_mib_of_a_worker: int
    index_gib_a_year: float
    """Growth of each worker's index, in GiB."""
    filters_gib_a_year: float
    """Growth of the bloom filters of it, in GiB. Requests are fast while they are in memory (`index.cache_bytes`)."""
    cores_of_a_broker: float
    memory_mib_of_a_broker: int
    log_gib_a_day: float
    """Growth of each of three brokers' log, in GiB."""
    log_gib_a_year: float
    between_centres_mbit_s: float
    """Mbit/s that one centre sends at worst, if it has the most partition leaders: replication, and reads by workers in other centres."""
    cores: float
    """Cores of all workers and brokers together."""


def size_of(load: Load, mean_tps: float) -> Size:
    """Returns the smallest size that carries the load with one centre down. `mean_tps`: requests a second over the year, for disks.

    Raises `ConfigurationError` when no size carries the load.
    """
    for workers in range(CENTRES, WORKERS_MAX + 1, CENTRES):
        left = workers * (CENTRES - 1) // CENTRES
        if load.full_at(left) * FULL_AT >= load.tps:
            break
    else:
        most = load.full_at(WORKERS_MAX) * FULL_AT
        raise ConfigurationError(
            f"{load.tps:g} requests a second are more than any number of workers can decide, since each worker decides all requests."
            f" With inputs={load.inputs} and per-submission={load.per_submission} they decide {most:,.0f} at most. Put more requests into"
            " a submission, or split the load between notaries"
        )
    log_gib_a_day = load.cost(LOG_BYTES) * mean_tps * DAY_S / 2**30
    requests_a_year = mean_tps * DAY_S * 365
    readers_elsewhere = workers - workers // CENTRES
    cores_of_a_worker = load.tps * load.worker_us(left) / 1e6
    cores_of_a_broker = load.tps * load.cost(BROKER_US) / 1e6
    return Size(
        workers=workers,
        workers_full_at_tps=int(load.full_at(workers)),
        left_full_at_tps=int(load.full_at(left)),
        cores_of_a_worker=_cores(cores_of_a_worker),
        memory_mib_of_a_worker=MEMORY_MIB,
        index_gib_a_year=round(load.cost(INDEX_BYTES) * requests_a_year / 2**30, 1),
        filters_gib_a_year=round(load.cost(FILTER_BYTES) * requests_a_year / 2**30, 2),
        cores_of_a_broker=_cores(cores_of_a_broker),
        memory_mib_of_a_broker=BROKER_MEMORY_MIB,
        log_gib_a_day=round(log_gib_a_day, 2),
        log_gib_a_year=round(log_gib_a_day * 365, 1),
        between_centres_mbit_s=round(load.cost(LOG_BYTES) * load.tps * 8 / 1e6 * (REPLICAS - 1 + readers_elsewhere), 1),
        cores=round(workers * _cores(cores_of_a_worker) + REPLICAS * _cores(cores_of_a_broker), 1),
    )


def _cores(needed: float) -> float:
    """Returns the cores to plan, at `FULL_AT` utilization; at least a tenth of a core."""
    return max(0.1, math.ceil(needed / FULL_AT * 10) / 10)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary size`."""
    parser.add_argument("--tps", type=float, required=True, metavar="N", help="requests a second at the peak")
    parser.add_argument("--inputs", type=int, default=4, metavar="N", help="inputs of a request (default 4)")
    parser.add_argument("--per-submission", type=int, default=1, metavar="N", help="requests of a submission (default 1)")
    parser.add_argument("--mean-tps", type=float, metavar="N", help="requests a second over the year, for disks (default: the peak)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")


def run(arguments: argparse.Namespace) -> int:
    """Print the size. Returns 0; raises `ConfigurationError` for bad arguments."""
    mean_tps = arguments.tps if arguments.mean_tps is None else arguments.mean_tps
    for name, value in (("--tps", arguments.tps), ("--mean-tps", mean_tps)):
        if not 0 < value < math.inf:
            raise ConfigurationError(f"{name} {value:g} should be a number of requests a second above 0")
    for name, value in (("--inputs", arguments.inputs), ("--per-submission", arguments.per_submission)):
        if not 1 <= value <= 1_000:
            raise ConfigurationError(f"{name} {value} should be 1 to 1000")
    if mean_tps > arguments.tps:
        raise ConfigurationError(f"--mean-tps {mean_tps:g} should not exceed the peak, --tps {arguments.tps:g}")
    load = Load(arguments.tps, arguments.inputs, arguments.per_submission)
    size = size_of(load, mean_tps)
    if arguments.json:
        print(json_line(msgspec.to_builtins(size)))
        return 0
    inputs = "1 input" if load.inputs == 1 else f"{load.inputs} inputs"
    requests = "1 request" if load.per_submission == 1 else f"{load.per_submission} requests"
    print(f"{load.tps:,.0f} requests a second of {inputs}, {requests} a submission, three centres, one of which may be gone")
    print(f"workers        {size.workers}, {size.workers // CENTRES} in each centre: full at {size.workers_full_at_tps:,}/s together,")
    print(f"               at {size.left_full_at_tps:,}/s when a centre is gone")
    print(f"each worker    {size.cores_of_a_worker:g} cores, {size.memory_mib_of_a_worker:,} MiB,")
    print(f"               {size.index_gib_a_year:,} GiB of index a year, of it {size.filters_gib_a_year:,} GiB of bloom filters:")
    print("               add memory for them (index.cache_bytes), or each request reads the disk")
    print(f"brokers        {REPLICAS}, one in each centre, each {size.cores_of_a_broker:g} cores, {size.memory_mib_of_a_broker:,} MiB,")
    print(f"               {size.log_gib_a_day:,} GiB of log a day, {size.log_gib_a_year:,} a year")
    print("controllers    3, one in each centre, each 1 core, 1,024 MiB")
    print(f"network        {size.between_centres_mbit_s:,} Mbit/s out of one centre at the worst")
    print(f"together       {size.cores + CENTRES:g} cores")
    print("Computed from figures of small virtual machines (docs/performance.md). Measure on yours before you buy.")
    return 0
