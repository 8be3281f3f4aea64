"""Copies a log into the mirror's topics in another cluster, until it is stopped (docs/salvage.md, Failover and failback).

A mirror has the records of each topic-partition in their order, with their append times. They are as workers read them: each record that
the brokers return, at the offset that they gave it, without headers (`ordering.batches`). A process keeps no state: the last record of a
topic-partition in the mirror shows where to continue in the log.

| situation | behaviour |
|---|---|
| a crash, a lost broker | it begins again behind the mirror's last records; it may repeat some, and a record counts once |
| reading was interrupted (R10) | the same: the log is copied further only if it still has the mirror's last record |
| the log lost that record, or is another log | it stops: further records would have another history than the mirror |
| the log has more payload partitions | the mirror gets as many |
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from ordering.errors import ConfigurationError, NotaryError, NotReady, OutcomeUnknown, OutOfRange
from ordering.kafka import KafkaLog, KafkaWriter
from ordering.local_reader import describe
from ordering.log import ORDERING, Reader, Record

logger = logging.getLogger("notary.mirror")

POLL_MS: Final = 200
AGAIN_S: Final = 1.0
REPORT_S: Final = 10.0
PARTITIONS_S: Final = 60.0
"""The time between two looks at the number of payload partitions."""
CONTRADICTED_S: Final = 10.0
"""The log must lack a record for this time: a broker that was elected a moment ago may lag."""
READ_S_MAX: Final = 30.0
"""The time within which the mirror's brokers return their last record."""


class OtherLog(NotaryError):
    """The log does not have the mirror's last record."""


class LogMirror:
    """Copies one log. One event loop."""

    def __init__(self, source: KafkaLog, target: KafkaLog, add_partitions: Callable[[int], Awaitable[None]]) -> None:
        """`add_partitions` extends the payload topic of the target to that many partitions."""
        self._source = source
        self._target = target
        self._add_partitions = add_partitions
        self._offsets_copied: dict[int, int] = {}  # per topic-partition: the offset in the log of the mirror's last record
        self._search: set[int] = set()  # topic-partitions whose last record is searched for from the beginning of the log
        self.copied = 0
        """Counts the records that the mirror acknowledged."""

    async def run(self) -> None:
        """Copy until cancelled. Raises `ConfigurationError` if the log lacks a record of the mirror."""
        contradicted_since_s: float | None = None
        now_s = asyncio.get_running_loop().time
        while True:
            copied = self.copied
            try:
                await self._copy()
                continue
            except (OtherLog, OutOfRange) as problem:
                if contradicted_since_s is None or self.copied > copied:
                    contradicted_since_s = now_s()
                if now_s() - contradicted_since_s >= CONTRADICTED_S:
                    raise ConfigurationError(
                        f"{problem}. The mirror is a copy of another history: the log lost records, or was created again. Keep the mirror,"
                        " and find out which side is right (docs/runbook.md, 'Failover to a mirror')"
                    ) from None
                logger.warning("the log lacks a record of the mirror, reading it again: %s", problem)
            except (NotReady, OutcomeUnknown) as problem:
                contradicted_since_s = None
                logger.warning("copying was interrupted, trying again: %s", problem)
            await asyncio.sleep(AGAIN_S)

    async def _copy(self) -> None:
        """Copy from behind the mirror's last records until the log has more partitions. Raises the errors that `run` handles."""
        await self._extend()
        log, mirror = await self._source.offsets(), await self._target.offsets()
        partitions = range(ORDERING, self._source.payload_partitions)
        if missing := [partition for partition in partitions if partition not in log or partition not in mirror]:
            raise NotReady(f"{describe(missing[0])} has no leader")
        ends = {partition: mirror[partition].log_end for partition in partitions}
        sought = await self._last_records(ends)
        begin = {partition: offsets.log_start for partition, offsets in log.items()}
        for partition in sought.keys() - self._search:
            # In most mirrors each record has the offset that it has in the log.
            expected = self._offsets_copied.get(partition, ends[partition] - 1)
            if log[partition].log_start <= expected < log[partition].log_end:
                begin[partition] = expected
            else:
                self._search_for(partition)
        writer = await self._target.open_writer()
        try:
            reader = await self._source.open_reader(begin)
            try:
                copy = _Copy(reader, writer, ends, sought, {partition: log[partition].log_end for partition in sought})
                await self._copy_with(copy)
            finally:
                await reader.close()
        finally:
            await writer.close()

    async def _copy_with(self, copy: "_Copy") -> None:
        interruptions, now_s = copy.reader.interruptions, asyncio.get_running_loop().time
        report_s, extend_s = now_s() + REPORT_S, now_s() + PARTITIONS_S
        while True:
            records = await copy.reader.poll(POLL_MS)
            if copy.reader.interruptions != interruptions:
                raise NotReady("reading was interrupted: the log is compared with the mirror's last records first")
            found = defaultdict[int, list[Record]](list)
            for record in records:
                if record.partition not in copy.sought:
                    found[record.partition].append(record)
                elif _same(record, copy.sought[record.partition]):
                    del copy.sought[record.partition]
                    self._search.discard(record.partition)
                    self._offsets_copied[record.partition] = record.offset
                elif record.partition not in self._search:
                    self._search_for(record.partition)
                    raise NotReady("the log is read again, from its beginning")
            self._check_found(copy)
            # Payloads first: an entry in the mirror should not wait for its payload.
            payloads = [self._append(copy, partition, some) for partition, some in found.items() if partition != ORDERING]
            await asyncio.gather(*payloads)
            if ORDERING in found:
                await self._append(copy, ORDERING, found[ORDERING])
            if now_s() >= report_s:
                report_s = now_s() + REPORT_S
                await self._report(copy.reader)
            if now_s() >= extend_s:
                extend_s = now_s() + PARTITIONS_S
                if await self._extend():
                    return

    async def _append(self, copy: "_Copy", partition: int, records: Sequence[Record]) -> None:
        copy.ends[partition] = await copy.writer.copy(partition, records, copy.ends[partition])
        self._offsets_copied[partition] = records[-1].offset
        self.copied += len(records)

    def _search_for(self, partition: int) -> None:
        logger.info("the mirror's last record of %s has another offset in the log: it is searched for", describe(partition))
        self._search.add(partition)

    def _check_found(self, copy: "_Copy") -> None:
        """Raise `OtherLog` if the log was read to its end, and a record of the mirror was not in it."""
        for partition, record in copy.sought.items():
            if copy.reader.offset_next(partition) >= copy.ends_of_log[partition]:
                if partition not in self._search:
                    self._search_for(partition)
                    raise NotReady("the log is read again, from its beginning")
                raise OtherLog(f"the log does not have the mirror's last record of {describe(partition)}, at offset {record.offset} there")

    async def _last_records(self, ends: Mapping[int, int]) -> dict[int, Record]:
        """Returns the mirror's last record of each topic-partition that has any."""
        wanted = {partition: end - 1 for partition, end in ends.items() if end}
        found: dict[int, Record] = {}
        reader = await self._target.open_reader(wanted)
        try:
            async with asyncio.timeout(READ_S_MAX):
                while wanted.keys() - found.keys():
                    found |= {record.partition: record for record in await reader.poll(POLL_MS)}
        except TimeoutError:
            missing = min(wanted.keys() - found.keys())
            raise NotReady(f"the mirror's brokers do not return the last record of {describe(missing)}") from None
        finally:
            await reader.close()
        return found

    async def _extend(self) -> bool:
        """Give the mirror as many payload partitions as the log has; returns True if it had fewer."""
        with contextlib.suppress(NotReady):
            await self._source.has_partitions(self._source.payload_partitions + 1)
        count = self._source.payload_partitions
        if self._target.payload_partitions >= count:
            return False
        await self._add_partitions(count)
        await self._target.has_partitions(count)
        logger.info("the mirror has %d payload partitions now", count)
        return True

    async def _report(self, reader: Reader) -> None:
        lag = sum([offsets.log_end - reader.offset_next(partition) for partition, offsets in (await self._source.offsets()).items()])
        logger.info("copied=%d lag_records=%d", self.copied, max(0, lag))


class _Copy:
    """One run of copying, until a failure."""

    def __init__(
        self, reader: Reader, writer: KafkaWriter, ends: dict[int, int], sought: dict[int, Record], ends_of_log: Mapping[int, int]
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.ends = ends
        """Per topic-partition: the offset of the next record in the mirror."""
        self.sought = sought
        """The mirror's last records that the log has not returned yet. Records before them are not copied."""
        self.ends_of_log = ends_of_log
        """The log end offsets at the start: the record sought must be before it."""


def _same(one: Record, other: Record) -> bool:
    return (one.append_time_ms, one.key, one.value) == (other.append_time_ms, other.key, other.value)
