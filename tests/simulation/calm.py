"""The simulated log without faults, on any event loop: to hold it to the contract of all logs."""

import asyncio
from collections.abc import Sequence

import msgspec

from ordering.clock import clock_ms
from ordering.log import Record
from tests.simulation.cluster import Cluster, SimulatedLog, SimulatedReader
from tests.simulation.plan import AppendFates, plan


class _Alive:
    """A host that never dies."""

    name = "host"
    dead = False
    cut_off = False

    def step(self, where: str) -> None:
        """Nothing happens here."""

    def polled(self, reader: SimulatedReader, records: Sequence[Record]) -> None:
        """It keeps nothing."""

    def fetched(self, reader: SimulatedReader, stream: int) -> None:
        """It remembers nothing."""


def calm_log(partitions: int) -> SimulatedLog:
    """A log that loses nothing; it still takes its time."""
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
