"""Logs for tests of commands: records appended to a directory's embedded log as a worker appends them, and forged records."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import NoReturn, TypeAlias

from notary import keys
from ordering.clock import clock_ms
from ordering.embedded import EmbeddedLog
from ordering.genesis import read_genesis
from ordering.log import ORDERING, Log
from ordering.records import Checkpoint, Entry, OrderingRecord, Register, View, batch_key
from ordering.signatures import SigningKey, sign_fill, sign_record

Written: TypeAlias = OrderingRecord | bytes | tuple[int, bytes, bytes]
NOWHERE = View(1, bytes(32))
"""A view that no worker wrote: a view never decides whether a record takes effect."""


def signing_key(file: Path) -> SigningKey:
    """Returns the key of a file, for signing log records."""
    return SigningKey(keys.load(file).private_bytes_raw())


def register(name: str, nonce: int, format_version: int = 1, view: View = NOWHERE) -> Register:
    return Register(bytes([nonce]) * 16, view, format_version, name, "0")


def entry(incarnation: int, sequence: int, payload: bytes, partition: int = 0) -> Entry:
    return Entry(incarnation, sequence, NOWHERE, clock_ms(), partition, sha256(payload).digest(), (bytes(32),))


def checkpoint(incarnation: int) -> Checkpoint:
    return Checkpoint(incarnation, NOWHERE, 0, sha256(b"").digest())


@asynccontextmanager
async def embedded_log(directory: Path, ahead_ms: int = 0) -> AsyncIterator[EmbeddedLog]:
    """Open a directory's log for the length of a block. `ahead_ms`: how far its clock is ahead of this machine's."""
    log = EmbeddedLog.open(directory / "log", lambda: clock_ms() + ahead_ms)
    try:
        yield log
    finally:
        await log.close()


def write(directory: Path, records: Sequence[Written], key_file: str = "notary-key.pem", *, ahead_ms: int = 0) -> None:
    """Append records, signed with a key of the directory; bytes as they are; (partition, key, value) to the payload topic."""

    async def run() -> None:
        async with embedded_log(directory, ahead_ms) as log:
            await append(log, records, signing_key(directory / key_file))

    asyncio.run(run())


def fill(directory: Path, of: Entry, key_file: str = "notary-key.pem") -> tuple[int, bytes, bytes]:
    """Returns a fill for an entry's batch."""
    name = batch_key(of.incarnation, of.sequence)
    return of.partition, name, sign_fill(log_id(directory), of.partition, name, of.payload_hash, signing_key(directory / key_file))


def log_id(directory: Path) -> bytes:
    async def read() -> bytes:
        async with embedded_log(directory) as log:
            return (await read_genesis(log))[1]

    return asyncio.run(read())


def log_ends(directory: Path) -> dict[int, int]:
    """Returns the end of each topic-partition."""

    async def read() -> dict[int, int]:
        async with embedded_log(directory) as log:
            return {partition: offsets.log_end for partition, offsets in (await log.offsets()).items()}

    return asyncio.run(read())


def die(*_: object, **__: object) -> NoReturn:
    """Takes the place of a step at which a command is killed."""
    raise KeyboardInterrupt


async def append(log: Log, records: Sequence[Written], key: SigningKey) -> None:
    """Append records to an open log, as `write` does."""
    _, id_ = await read_genesis(log)
    writer = await log.open_writer()
    for record in records:
        if isinstance(record, tuple):
            await writer.append(*record)
        else:
            await writer.append(ORDERING, None, record if isinstance(record, bytes) else sign_record(record, id_, key))
    await writer.close()
