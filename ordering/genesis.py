"""Appends the first record of a log, and reads it to find out which notary owns the log (R10)."""

import asyncio
from typing import Final

from ordering.errors import ConfigurationError, CorruptRecord, NotReady
from ordering.log import ORDERING, Log, Record
from ordering.records import Genesis
from ordering.signatures import NO_LOG_ID, SigningKey, decode_genesis, log_id_of, sign_record

READ_S_MAX: Final = 10.0


async def append_genesis(log: Log, genesis: Genesis, owner: SigningKey) -> bytes:
    """Append the genesis record to an empty log; returns the log id. Raises `ConfigurationError` for a log with records, `OutcomeUnknown`,
    `NotReady`.

    A crash after the append leaves a complete log, which `read_genesis` accepts. If two commands append at once, the first record counts,
    and the other command fails here.
    """
    await check_empty(log)
    writer = await log.open_writer()
    value = sign_record(genesis, NO_LOG_ID, owner)
    try:
        await writer.append(ORDERING, None, value)
    finally:
        await writer.close()
    first = await first_record(log)
    if first is None or first.value != value:
        raise ConfigurationError(f"another notary was made on this log at the same time: {_whose(first)}. Name other topics")
    return log_id_of(value)


async def check_empty(log: Log) -> None:
    """Raise `ConfigurationError`, naming the owner, when the ordering topic has or has had any record. Raises `NotReady`."""
    if (first := await first_record(log)) is not None:
        raise ConfigurationError(f"the log is not empty: {_whose(first)}. Name other topics, or use the configuration of that notary")
    offsets = (await log.offsets())[ORDERING]
    if offsets.log_end:
        raise ConfigurationError(
            f"the log is not empty: its ordering records up to offset {offsets.log_end} were deleted. Name other topics, or restore them"
        )


async def read_genesis(log: Log) -> tuple[Genesis, bytes]:
    """Returns the genesis record, which names the log's owner, and the log id. Raises `ConfigurationError` without one, `NotReady`."""
    first = await first_record(log)
    if first is None:
        raise ConfigurationError(
            "the log is empty: its first record should name its notary. `notary init` makes a new log, without any decision. If this one"
            " has lost its records, restore an archive or a mirror: docs/runbook.md, 'All brokers lose their disks'"
        )
    try:
        genesis = decode_genesis(first.value)
    except CorruptRecord as problem:
        raise ConfigurationError(
            f"this log has no owner: ordering record {first.offset} should be a genesis record: {problem}."
            " Name the topics that `notary init` made, or restore the start of the log"
        ) from None
    assert first.value is not None
    return genesis, log_id_of(first.value)


async def first_record(log: Log) -> Record | None:
    """Returns the first ordering record in the log, or None when it is empty. Raises `NotReady` when it cannot be read in time."""
    offsets = (await log.offsets())[ORDERING]
    if offsets.log_start == offsets.log_end:
        return None
    reader = await log.open_reader({ORDERING: offsets.log_start})
    try:
        reader.pause(range(log.payload_partitions))
        async with asyncio.timeout(READ_S_MAX):
            while not (records := [record for record in await reader.poll(1_000) if record.partition == ORDERING]):
                pass
        return records[0]
    except TimeoutError:
        raise NotReady(f"the log did not return its first record within {READ_S_MAX:g} s") from None
    finally:
        await reader.close()


def _whose(first: Record | None) -> str:
    try:
        genesis = decode_genesis(None if first is None else first.value)
    except CorruptRecord:
        return "its first record is no genesis record"
    return f"it belongs to notary {genesis.notary_name!r}, origin {genesis.origin!r}"
