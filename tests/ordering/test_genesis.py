"""Tests the first record of a log: making a log one's own, and reading its owner (R10)."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError
from ordering.genesis import append_genesis, check_empty, first_record, read_genesis
from ordering.log import ORDERING, Log
from ordering.memory import MemoryLog
from ordering.records import Activate, Genesis
from ordering.signatures import NO_LOG_ID, SigningKey, log_id_of, sign_record

OWNER, NOTARY, OTHER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))


def genesis(name: str = "O=N", owner: SigningKey = OWNER) -> Genesis:
    return Genesis(os.urandom(16), 2, NOTARY.public_key, owner.public_key, name, "notary.example/x")


@pytest.fixture(params=["memory", "embedded"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    """An empty log of each kind that needs no brokers."""
    if request.param == "memory":
        opened: Log = MemoryLog(2)
    else:
        EmbeddedLog.create(tmp_path / "log", 2)
        opened = EmbeddedLog.open(tmp_path / "log")
    yield opened
    await opened.close()


async def put(log: Log, value: bytes | None, key: bytes | None = None, partition: int = ORDERING) -> None:
    writer = await log.open_writer()
    await writer.append(partition, key, value)
    await writer.close()


async def test_a_log_says_whose_it_is(log: Log) -> None:
    """The genesis record is read as it was appended; its hash is the log id."""
    made = genesis()
    log_id = await append_genesis(log, made, OWNER)
    assert await read_genesis(log) == (made, log_id)
    first = await first_record(log)
    assert first is not None
    assert log_id == log_id_of(first.value or b"")
    assert (await log.offsets())[ORDERING].log_end == 1


async def test_what_comes_later_does_not_count(log: Log) -> None:
    """A second genesis record changes nothing."""
    made = genesis()
    log_id = await append_genesis(log, made, OWNER)
    await put(log, sign_record(genesis("O=Thief", OTHER), NO_LOG_ID, OTHER))
    assert await read_genesis(log) == (made, log_id)


async def test_a_log_that_belongs_to_somebody_is_not_made_ours(log: Log) -> None:
    """A log that has a genesis record is rejected: the message names its notary and origin, and nothing is appended."""
    await append_genesis(log, genesis("O=First"), OWNER)
    for refused in (check_empty(log), append_genesis(log, genesis("O=Second"), OTHER)):
        with pytest.raises(ConfigurationError, match=r"belongs to notary 'O=First', origin 'notary\.example/x'"):
            await refused
    assert (await log.offsets())[ORDERING].log_end == 1


async def test_a_log_with_any_record_is_not_made_ours(log: Log) -> None:
    """A log with any record at all is not empty, and is rejected."""
    await put(log, b"something")
    with pytest.raises(ConfigurationError, match="not empty: its first record is no genesis record"):
        await append_genesis(log, genesis(), OWNER)


async def test_payloads_alone_do_not_make_a_log_somebodys(log: Log) -> None:
    """Only the ordering topic decides about the owner of a log: a stray payload does not make it non-empty, and is never asked for."""
    await put(log, b"stray", b"key", partition=0)
    await append_genesis(log, genesis(), OWNER)
    assert (await read_genesis(log))[0].notary_name == "O=N"


async def test_an_empty_log_is_nobodys(log: Log) -> None:
    """An empty log has no owner; the message says to create it with `notary init`."""
    await check_empty(log)
    assert await first_record(log) is None
    with pytest.raises(ConfigurationError, match=r"the log is empty.*notary init"):
        await read_genesis(log)


FIRST: dict[str, tuple[bytes | None, str]] = {
    "garbage": (b"garbage", "at least"),
    "nothing": (None, "at least"),
    "another-kind": (sign_record(Activate(1), bytes(32), OWNER), "kind activate"),
    "forged": (sign_record(genesis(), NO_LOG_ID, OTHER), "not signed by the owner that it names"),
    "of-another-log": (sign_record(genesis(), bytes([1]) * 32, OWNER), "not signed by the owner that it names"),
    "cut": (sign_record(genesis(), NO_LOG_ID, OWNER)[:-1], "genesis|decode|bytes|signed"),
}


@pytest.mark.parametrize(("value", "why"), FIRST.values(), ids=FIRST)
async def test_a_log_that_begins_with_anything_else_is_nobodys(log: Log, value: bytes | None, why: str) -> None:
    """A log with another first record has no owner: the message has that record's offset and the reason."""
    await put(log, value, key=b"k")
    await put(log, sign_record(genesis(), NO_LOG_ID, OWNER))
    with pytest.raises(ConfigurationError, match=f"this log has no owner: ordering record 0 .*({why})"):
        await read_genesis(log)


async def test_of_two_at_once_one_gets_the_log() -> None:
    """If two append genesis before either has read back, the first record counts, and the other's attempt is rejected with its name."""
    log = MemoryLog(2)
    made: list[bytes | BaseException] = list(
        await asyncio.gather(
            append_genesis(_Slow(log), genesis("O=A"), OWNER), append_genesis(_Slow(log), genesis("O=B"), OTHER), return_exceptions=True
        )
    )
    first, log_id = await read_genesis(log)
    [refused] = [each for each in made if isinstance(each, BaseException)]
    assert isinstance(refused, ConfigurationError)
    assert "at the same time" in str(refused)
    assert first.notary_name in str(refused)
    assert log_id in made


class _Slow(MemoryLog):
    """A log whose writer yields to other tasks before it appends."""

    def __init__(self, log: MemoryLog) -> None:
        self.__dict__ = log.__dict__

    async def open_writer(self):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        return await super().open_writer()
