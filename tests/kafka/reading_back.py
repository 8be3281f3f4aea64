"""Reads back the data of a notary whose workers have ended: its log, Kafka or embedded, and the rows of an index."""

from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from notary.config import Config
from notary.open_log import open_log
from ordering.log import Log, Record
from tests.checkers.indexes import FAMILIES, Rows
from tests.checkers.replay import RecordsByPartition
from tests.ordering.closing import closing

POLL_MS = 200


async def read_log_records(config: Config) -> RecordsByPartition:
    """Returns every record of both topics, up to the log end offsets at the call."""
    async with closing(await open_log(config)) as log:
        return await records_of(log)


async def records_of(log: Log) -> RecordsByPartition:
    """Returns the same of an open log."""
    ends = {partition: offsets.log_end for partition, offsets in (await log.offsets()).items()}
    by_partition: dict[int, list[Record]] = {partition: [] for partition in ends}
    reader = await log.open_reader({})
    while any(reader.offset_next(partition) < end for partition, end in ends.items()):
        for record in await reader.poll(POLL_MS):
            by_partition[record.partition].append(record)
    await reader.close()
    return by_partition


def read_rows(directory: Path) -> Rows:
    """Returns every row of an index that no process has open. The index is opened read-only, so RocksDB changes nothing either."""
    raw = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(directory))}
    store = Rdict(str(directory), options=raw, column_families=families, access_type=AccessType.read_only())
    try:
        return {name: [*store.get_column_family(name).items()] for name in FAMILIES}
    finally:
        store.close()
