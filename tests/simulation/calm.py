"""The simulated log without faults, on any event loop, so that the tests of the log contract can run on it."""

import asyncio
from collections.abc import Sequence

import msgspec

from ordering.clock import clock_ms
from ordering.log import Record
from tests.simulation.cluster import Cluster, SimulatedLog, SimulatedReader
from tests.simulation.plan import AppendFates, plan


class _Alive:
    """A host that never dies and checks nothing."""

    name = "host"
    dead = False
    cut_off = False

    def step(self, where: str) -> None: ...

    def polled(self, reader: SimulatedReader, records: Sequence[Record]) -> None: ...

    def fetched(self, reader: SimulatedReader, partition: int) -> None: ...


def calm_log(partitions: int) -> SimulatedLog:
    """Returns a log that loses nothing but has the usual delays."""
    calm = msgspec.structs.replace(
        plan(0),
        partitions=partitions,
        fates=AppendFates(0, 0, 0, 0, 0.001),
        reader_lag_s=0.002,
        append_timeout_s=30.0,
        records_per_poll_max=3,
        payload_s=0.0,
    )
    return SimulatedLog(Cluster(calm, asyncio.get_running_loop(), clock_ms, lambda who, what: None), _Alive())
