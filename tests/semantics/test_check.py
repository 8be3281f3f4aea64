"""Tests that the check at the end of every test with real workers can fail: one change in a worker's remaining data is found.

Log, index and answers are those of one process on an embedded log, made once.
"""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Options, Rdict

from notary import keys
from ordering.log import ORDERING
from ordering.records import Checkpoint, decode
from ordering.signatures import SigningKey, sign_record
from tests.checkers.history import History
from tests.checkers.records import Entry, Ordering, Root, ordering_record
from tests.checkers.remains import Remains
from tests.checkers.violation import Kind
from tests.clients.load import Load
from tests.kafka.reading_back import read_rows
from tests.kafka.workers import Notary, Worker, opened

pytestmark = pytest.mark.seconds

KEYS: list[SigningKey] = []
"""The keys of the notary whose data is changed."""


@dataclass(frozen=True)
class Left:
    """The remaining data of a notary after a short run."""

    remains: Remains
    index: Path


async def short_life(directory: Path, alter: Callable[[Notary], None] = lambda notary: None) -> tuple[Notary, Worker]:
    """Run a load, then the check; `alter` may change the data in between."""
    async with opened(directory) as notary:
        worker = await notary.start("a", worker_checkpoint_interval_ms=200).ready()
        async with Load(notary.client, notary.party, [worker.url], seed=1) as load:
            await load.until(150)
        alter(notary)
        await notary.check(worker)
    return notary, worker


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """One notary's data for all tests; no test changes it."""

    async def live() -> Left:
        notary, worker = await short_life(tmp_path_factory.mktemp("left") / "notary")
        KEYS[:] = [SigningKey(keys.load(notary.directory / "notary-key.pem").private_bytes_raw())]
        return Left(await notary.remains(worker), notary.directory / "index" / worker.name)

    return asyncio.run(live())


def test_what_an_honest_worker_left(left: Left) -> None:
    """An honest worker's data is clean, and has all that is changed below: receipts in half of the answers, rejections, roots."""
    remains = left.remains
    assert remains.violations() == []
    asked = [any("receipt" in decision for decision in call.decisions if decision) for call in remains.history.calls if call.status == 200]
    assert 0.3 < sum(asked) / len(asked) < 0.7
    assert {decision["outcome"] for decision in remains.replayed.decisions} == {"committed", "rejected"}
    assert any(checkpoint.counted for checkpoint in remains.replayed.checkpoints)


async def test_a_wrong_answer_fails_the_check(tmp_path: Path) -> None:
    """A test whose notary answered one decision differently from the log fails, and its message says so."""

    def alter(notary: Notary) -> None:
        notary.history = answered_otherwise(notary.history, log_time=1)

    with pytest.raises(AssertionError, match=rf"{Kind.CHANGED}|{Kind.CONTRADICTION}"):
        await short_life(tmp_path / "notary", alter)


def answered_otherwise(history: History, **members: Any) -> History:
    """Returns the history with these members changed in the first decision of the last answer with a receipt."""
    number, call = max(
        (number, call) for number, call in enumerate(history.calls) if any("receipt" in decision for decision in call.decisions if decision)
    )
    first, *others = call.decisions
    calls = list(history.calls)
    calls[number] = replace(call, decisions=[{**(first or {}), **members}, *others])
    return History(calls, history.submissions)


def other_answer(remains: Remains) -> Remains:
    return replace(remains, history=answered_otherwise(remains.history, log_time=1))


def receipt_of_another(remains: Remains) -> Remains:
    other = next(remains.history.receipts())
    return replace(remains, history=answered_otherwise(remains.history, receipt=other["receipt"]))


def receipts_of_another_key(remains: Remains) -> Remains:
    name, hash_, key = remains.verifier_keys[0].split("+", 2)
    return replace(remains, verifier_keys=[f"{name}+{hash_[::-1]}+{key}"])


def without_last(kind: type[Ordering]) -> Callable[[Remains], Remains]:
    """Returns a change: the log loses its last record of a kind."""

    def alter(remains: Remains) -> Remains:
        order = list(remains.by_partition[ORDERING])
        del order[max(number for number, record in enumerate(order) if isinstance(ordering_record(record.value), kind))]
        return replace(remains, by_partition={**remains.by_partition, ORDERING: order})

    return alter


def other_root(remains: Remains) -> Remains:
    order = list(remains.by_partition[ORDERING])
    number = max(number for number, record in enumerate(order) if isinstance(ordering_record(record.value), Root))
    checkpoint = decode(order[number].value)
    assert isinstance(checkpoint, Checkpoint)
    # Signed again, because a faulty worker has the key.
    wrong = sign_record(msgspec.structs.replace(checkpoint, root=bytes(32)), remains.replayed.log_id, KEYS[0])
    order[number] = msgspec.structs.replace(order[number], value=wrong)  # type: ignore[type-var]
    return replace(remains, by_partition={**remains.by_partition, ORDERING: order})


@pytest.mark.parametrize(
    ("alter", "kind"),
    [
        (other_answer, Kind.CHANGED),
        (receipt_of_another, Kind.OTHER_POSITION),
        (receipts_of_another_key, Kind.BAD_SIGNATURE),
        (without_last(Entry), Kind.LOST),
        (other_root, Kind.OTHER_TREE),
    ],
)
def test_what_was_altered_is_found(left: Left, alter: Callable[[Remains], Remains], kind: Kind) -> None:
    """A change of an answer, a receipt, the key, or a record of the log is found."""
    assert kind in {violation.kind for violation in alter(left.remains).violations()}


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("states", Kind.WRONG_STATE),
        ("decisions", Kind.WRONG_DECISION),
        ("positions", Kind.WRONG_POSITION),
        ("tiles", Kind.WRONG_TILE),
    ],
)
def test_a_row_altered_on_disk_is_found(left: Left, tmp_path: Path, family: str, kind: Kind) -> None:
    """A flipped bit in one row of any family, in RocksDB's own files, is found."""
    index = shutil.copytree(left.index, tmp_path / "index")
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(index))}
    store = Rdict(str(index), options=Options(raw_mode=True), column_families=families)
    rows = store.get_column_family(family)
    key, value = next(rows.items())
    rows[key] = value[:7] + bytes([value[7] ^ 1]) + value[8:]
    rows.close()
    store.close()
    altered = replace(left.remains, indexes={"a": read_rows(index)})
    assert [violation.kind for violation in altered.violations()] == [kind]
