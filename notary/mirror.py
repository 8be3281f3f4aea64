"""Copies a log into the mirror's topics in another cluster, until it is stopped (docs/salvage.md, Failover and failback).

A mirror has the records of each topic-partition in their order, with their append times. They are as workers read them: each record that
the brokers return, at the offset that they gave it, without headers (`ordering.batches`). A process keeps no state: the last record of a
topic-partition in the mirror shows where to continue in the log.

| situation | behaviour |
|---|---|
| a crash, a lost broker | it begins again behind the mirror's last records; it may repeat some, and a record counts once |
| reading was interrupted (R10) | the same: nothing is appended before the log is known to have the last record of each topic-partition |
| the log lost one of these records, or is another log | it stops: further records would have another history than the mirror |
| a payload partition has no leader | the others are copied; that one once it has a leader |
| the log has more payload partitions | the mirror gets as many |
| records were freed that the mirror never had, or deleted in it | it stops: a failover would forget their decisions |
| the mirror lost its end, or another process appended to it | it begins again behind the mirror's last records |
| the mirror lost its end, and later records came into that place | it stops: records are missing in the middle |
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from ordering.clock import clock_ms
from ordering.errors import ConfigurationError, NotaryError, NotReady, OutcomeUnknown, OutOfRange
from ordering.kafka import KafkaLog, KafkaWriter
from ordering.log import ORDERING, LogOffsets, Reader, Record, describe

logger = logging.getLogger("notary.mirror")

POLL_MS: Final = 200
AGAIN_S: Final = 1.0
REPORT_S: Final = 10.0
"""The time between two log lines."""
PARTITIONS_S: Final = 60.0
"""The time between two looks at the number of payload partitions, and at those without a leader."""
CONTRADICTED_S: Final = 10.0
"""The log must lack a record of the mirror for this long before copying stops: a broker that was elected a moment ago may lag."""
READ_S_MAX: Final = 30.0
"""The deadline for the mirror's brokers to return their last records, and for the log's brokers to return any record sought."""
LOOK_BACK: Final = 10
"""The search for a record begins this many offsets before the expected one, and ten times as many before it if it is not found there."""
LAST_RECORDS: Final = 10
"""The last record of the mirror is among the last offsets, this many at most: markers of transactions may follow it."""


class OtherLog(NotaryError):
    """The log does not have the mirror's last record."""


class LogMirror:
    """Copies one log. One event loop."""

    def __init__(self, source: KafkaLog, target: KafkaLog, add_partitions: Callable[[int], Awaitable[None]]) -> None:
        """`add_partitions` extends the payload topic of the target to that many partitions."""
        self._source = source
        self._target = target
        self._add_partitions = add_partitions
        self._copied_to: dict[int, int] = {}  # per topic-partition: the offset in the log of the mirror's last record, as far as known
        self._look_back: defaultdict[int, int] = defaultdict(lambda: LOOK_BACK)
        self._contradicted_since_s: float | None = None
        self.copied = 0
        """Counts the records that the mirror acknowledged."""
        self.lag_records = 0
        """The number of records that the mirror lacked at `compared_ms`; of a partition left out, those not copied since the start."""
        self.partitions_left_out = 0
        """The number of topic-partitions that were not copied then, since they had no leader."""
        self.compared_ms = 0
        """The time when both clusters last answered, in milliseconds since 1970; 0 before the first time."""

    async def run(self) -> None:
        """Copy until cancelled. Raises `ConfigurationError` if the log lacks a record of the mirror, or the mirror lacks some."""
        now_s = asyncio.get_running_loop().time
        while True:
            try:
                await self._copy()
                continue
            except (OtherLog, OutOfRange) as problem:
                if self._contradicted_since_s is None:
                    self._contradicted_since_s = now_s()
                if now_s() - self._contradicted_since_s >= CONTRADICTED_S:
                    raise ConfigurationError(
                        f"{problem}. Either the log lost records or was created again, or records were freed in it before they were copied,"
                        " or another program wrote into the mirror. Find out which (docs/runbook.md, 'Failover to a mirror')"
                    ) from None
                logger.warning("the log lacks a record of the mirror, reading it again: %s", problem)
            except (NotReady, OutcomeUnknown) as problem:
                self._contradicted_since_s = None  # nobody knows for how long it contradicted
                logger.warning("copying was interrupted, trying again: %s", problem)
            await asyncio.sleep(AGAIN_S)

    async def _copy(self) -> None:
        """Copy from behind the mirror's last records until other partitions are to be copied. Raises the errors that `run` handles."""
        await self._extend()
        log, mirror = await self._source.offsets(), await self._target.offsets()
        partitions = frozenset(log.keys() & mirror.keys() & set(self._partitions()))
        if partitions != set(self._partitions()):
            logger.warning("%s has no leader and is not copied now", describe(min(set(self._partitions()) - partitions)))
        if freed := [partition for partition in partitions if log[partition].log_start and not mirror[partition].log_end]:
            raise ConfigurationError(
                f"the records of {describe(min(freed))} before offset {log[min(freed)].log_start} were freed (`notary trim`) and not copied"
                " before: a failover to this mirror would forget their decisions. A mirror must begin before the first trim"
                " (docs/runbook.md, 'Failover to a mirror')"
            )
        if deleted := [partition for partition in partitions if mirror[partition].log_start]:
            raise ConfigurationError(
                f"the records of {describe(min(deleted))} before offset {mirror[min(deleted)].log_start} were deleted in the mirror: a"
                " failover to it would forget their decisions. Make the mirror anew (docs/runbook.md, 'Failover to a mirror')"
            )
        ends = {partition: mirror[partition].log_end for partition in partitions}
        sought = await self._last_records({partition: mirror[partition] for partition in partitions})
        begin = {partition: log[partition].log_start for partition in partitions}
        for partition, record in list(sought.items()):
            known, expected = self._copied_to.get(partition), record.offset
            if known is not None and known + 1 == log[partition].log_start == log[partition].log_end:
                del sought[partition]  # all records were freed, after they were copied
            else:
                at = min(expected if known is None else known, log[partition].log_end)
                begin[partition] = max(begin[partition], at - self._look_back[partition])
        reader = await self._source.open_reader(begin)
        try:
            ends_of_log = {partition: offsets.log_end for partition, offsets in log.items()}
            copy = _Copy(reader, frozenset(self._partitions()), partitions, ends, ends_of_log)
            held = await self._find(copy, sought, {partition for partition in sought if begin[partition] > log[partition].log_start})
            self._contradicted_since_s = None
            writer = await self._target.open_writer()
            try:
                await self._copy_with(copy, writer, held)
            finally:
                await writer.close()
        finally:
            await reader.close()

    def _partitions(self) -> range:
        return range(ORDERING, self._source.payload_partitions)

    async def _find(self, copy: "_Copy", sought: dict[int, Record], from_later: set[int]) -> list[Record]:
        """Read up to the first copy of each record sought; returns the records behind them that were read too.

        Nothing is appended before all are found: the mirror may be another log's. `from_later`: the partitions that are not read from the
        beginning of the log.
        """
        behind: list[Record] = []
        first = set(from_later)
        now_s = asyncio.get_running_loop().time
        read_s = now_s()
        while sought:
            copy.pause_all_but(sought)
            records = await copy.poll()
            if records:
                read_s = now_s()
            elif now_s() - read_s >= READ_S_MAX:
                raise NotReady(f"the log's brokers return no records of {describe(min(sought))}")
            for record in records:
                partition = record.partition
                wanted = sought.get(partition)
                if wanted is None:
                    behind.append(record)
                elif partition in first and record.append_time_ms >= wanted.append_time_ms:
                    self._look_further_back(partition)  # an equal record may be before this one
                elif _same(record, wanted):
                    del sought[partition]
                    self._copied_to[partition] = record.offset
                    self._look_back.pop(partition, None)
                    if record.offset > wanted.offset:
                        logger.error(
                            "the mirror may lack records of %s: its last one is at offset %d there and at %d in the log. Only transactions"
                            " in the log explain that. Stop this process, and look at `notary failover --plan`",
                            *(describe(partition), wanted.offset, record.offset),
                        )
                first.discard(partition)
            for partition, wanted in sought.items():
                if copy.reader.offset_next(partition) >= copy.ends_of_log[partition]:
                    if partition in from_later:
                        self._look_further_back(partition)
                    raise OtherLog(
                        f"the log does not have the mirror's last record of {describe(partition)}, at offset {wanted.offset} there"
                    )
        copy.pause_all_but(copy.partitions)
        return behind

    def _look_further_back(self, partition: int) -> None:
        self._look_back[partition] *= 10
        raise NotReady(f"the mirror's last record of {describe(partition)} has another offset in the log: it is searched for")

    async def _copy_with(self, copy: "_Copy", writer: KafkaWriter, records: Sequence[Record]) -> None:
        now_s = asyncio.get_running_loop().time
        report_s, look_s = now_s() + REPORT_S, now_s() + PARTITIONS_S
        while True:
            found = defaultdict[int, list[Record]](list)
            for record in records:
                found[record.partition].append(record)
            # Payloads first: an entry in the mirror should not wait for its payload.
            payloads = [self._append(copy, writer, partition, some) for partition, some in found.items() if partition != ORDERING]
            await asyncio.gather(*payloads)
            if ORDERING in found:
                await self._append(copy, writer, ORDERING, found[ORDERING])
            if now_s() >= report_s:
                report_s = now_s() + REPORT_S
                await self._report(copy)
            if now_s() >= look_s:
                look_s = now_s() + PARTITIONS_S
                await self._extend()
                log, mirror = await self._source.offsets(), await self._target.offsets()
                if copy.partitions != log.keys() & mirror.keys() & set(self._partitions()):
                    return
            records = await copy.poll()

    async def _append(self, copy: "_Copy", writer: KafkaWriter, partition: int, records: Sequence[Record]) -> None:
        copy.ends[partition] = await writer.copy(partition, records, copy.ends[partition])
        self._copied_to[partition] = records[-1].offset
        self.copied += len(records)

    async def _last_records(self, offsets: Mapping[int, LogOffsets]) -> dict[int, Record]:
        """Returns the mirror's last record of each topic-partition that has any."""
        begin = {partition: max(of.log_start, of.log_end - LAST_RECORDS) for partition, of in offsets.items()}
        found: dict[int, Record] = {}
        reader = await self._target.open_reader(begin)
        try:
            reader.pause(set(range(ORDERING, self._target.payload_partitions)) - offsets.keys())
            async with asyncio.timeout(READ_S_MAX):
                while left := [partition for partition, of in offsets.items() if reader.offset_next(partition) < of.log_end]:
                    found |= {record.partition: record for record in await reader.poll(POLL_MS)}
        except TimeoutError:
            raise NotReady(f"the mirror's brokers do not return the last records of {describe(min(left))}") from None
        finally:
            await reader.close()
        for partition, of in offsets.items():
            if partition not in found and begin[partition] > of.log_start:
                raise ConfigurationError(
                    f"{describe(partition)} of the mirror ends with {LAST_RECORDS} offsets without a record, as transactions leave them:"
                    " another program writes there. Make the mirror anew (docs/runbook.md, 'Failover to a mirror')"
                )
        return found

    async def _extend(self) -> None:
        """Give the mirror as many payload partitions as the log has."""
        with contextlib.suppress(NotReady):
            await self._source.has_partitions(self._source.payload_partitions + 1)
        count = self._source.payload_partitions
        if self._target.payload_partitions < count:
            await self._add_partitions(count)
            await self._target.has_partitions(count)
            logger.info("the mirror has %d payload partitions now", count)

    async def _report(self, copy: "_Copy") -> None:
        log, mirror = await self._source.offsets(), await self._target.offsets()
        for partition in copy.partitions & mirror.keys():
            if (begin := mirror[partition].log_start) or mirror[partition].log_end != copy.ends[partition]:
                raise NotReady(
                    f"{describe(partition)} of the mirror has the offsets {begin} to {mirror[partition].log_end}, expected 0 to"
                    f" {copy.ends[partition]}: it is compared again"
                )
        copied_to = {partition: offset + 1 for partition, offset in self._copied_to.items()}
        copied_to |= {partition: copy.reader.offset_next(partition) for partition in copy.partitions}
        lag = sum([max(0, offsets.log_end - copied_to.get(partition, offsets.log_start)) for partition, offsets in log.items()])
        missing = [describe(partition) for partition in self._partitions() if partition not in copy.partitions]
        self.lag_records, self.partitions_left_out, self.compared_ms = lag, len(missing), clock_ms()
        logger.info("copied=%d lag_records=%d%s", self.copied, lag, f" not_copied={', '.join(missing)}" if missing else "")


class _Copy:
    """One run of copying, until a failure."""

    def __init__(
        self,
        reader: Reader,
        all_partitions: frozenset[int],
        partitions: frozenset[int],
        ends: dict[int, int],
        ends_of_log: Mapping[int, int],
    ) -> None:
        self.reader = reader
        self._all = all_partitions
        self.partitions = partitions
        """The topic-partitions that have a leader on both sides."""
        self.ends = ends
        """Per topic-partition: the offset of the next record in the mirror."""
        self.ends_of_log = ends_of_log
        """The log end offsets at the start: each record of the mirror must be before it."""
        self._interruptions = reader.interruptions

    def pause_all_but(self, partitions: Collection[int]) -> None:
        """Read these topic-partitions only."""
        self.reader.pause(self._all - frozenset(partitions))

    async def poll(self) -> list[Record]:
        """Returns the next records. Raises `NotReady` when reading was interrupted (R10)."""
        records = await self.reader.poll(POLL_MS)
        if self.reader.interruptions != self._interruptions:
            raise NotReady("reading was interrupted: the log is compared with the mirror's last records first")
        return records


def _same(one: Record, other: Record) -> bool:
    return (one.append_time_ms, one.key, one.value) == (other.append_time_ms, other.key, other.value)
