"""Brokers that lose acknowledged records for good: `notary salvage` restores the decisions from an index, with real brokers and workers."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import Cluster
from notary import cli
from tests.asking.party import spend, state
from tests.checkers.history import Decided
from tests.kafka.workers import Notary

pytestmark = pytest.mark.kafka


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Cluster]:
    """One broker of the test's own, whose disk it may restore to an earlier copy."""
    with Cluster.create(tmp_path / "cluster", brokers=1) as cluster:
        yield cluster


@pytest.fixture
async def notary(broker: Cluster, kafka_prefix: str, tmp_path: Path) -> AsyncIterator[Notary]:
    made = await asyncio.to_thread(Notary, tmp_path / "notary", broker.bootstrap, kafka_prefix, partitions=2)
    try:
        yield made
    finally:
        await made.end()


def _copy_disk(broker: Cluster, to: Path) -> None:
    broker.down(keep_data=True)
    shutil.copytree(broker.directory / "broker-1" / "data", to)
    broker.up()


def _put_back(broker: Cluster, copy: Path, prefix: str) -> None:
    """Restore the topic-partitions whose names start with `prefix` from the copy."""
    data = broker.directory / "broker-1" / "data"
    broker.down(keep_data=True)
    names = [path.name for path in copy.iterdir() if path.name.startswith(prefix)]
    assert names
    for name in names:
        shutil.rmtree(data / name)
        shutil.copytree(copy / name, data / name)
    broker.up()


@pytest.mark.parametrize("lost", ["", ".payload-"], ids=["both topics", "the payload topic"])
async def test_the_end_of_the_log_is_lost(
    notary: Notary, broker: Cluster, kafka_prefix: str, tmp_path: Path, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers lose the end of both topics, or of one; an index restores it: a worker on an empty disk has all answers and the same rows."""

    async def owner(*arguments: object) -> dict[str, Any]:
        capsys.readouterr()
        given = [*map(str, arguments), "--config", str(notary.directory / "notary.toml"), "--json"]
        code = await asyncio.to_thread(cli.main, given)
        printed = capsys.readouterr()
        assert code == 0, printed.out + printed.err
        said: dict[str, Any] = json.loads(printed.out)
        return said

    async def spent(url: str, *labels: str) -> list[Decided]:
        return [(await notary.client.decide([url], notary.party.submission(spend(state(label), content=label))))[0] for label in labels]

    await owner("activate", 2)
    first = await notary.start("a", index="index-a").ready()
    await spent(first.url, "before 1", "before 2")
    await asyncio.to_thread(_copy_disk, broker, tmp_path / "copy")
    await notary.until_ready(first)
    decided = await spent(first.url, "coin", "lost 2", "lost 3")
    await first.stop()
    await asyncio.to_thread(_put_back, broker, tmp_path / "copy", f"{kafka_prefix}{lost}")

    survivor = notary.directory / "index-a" / "a"
    done = await owner("salvage", "--index", survivor, "--yes")
    assert (done["decisions"], done["decisions_put_back"], done["seals"]) == (5, 3, bool(lost))
    assert (done["lost"], done["no_consistency_proof"]) == ([], [])

    second = await notary.start("b", index="index-b").ready()
    assert await spent(second.url, "coin", "lost 2", "lost 3") == decided
    assert await notary.same_height(second) == 5
    # The same state in another transaction: the log knows again that it is consumed.
    again = (await notary.client.decide([second.url], notary.party.submission(spend(state("coin"), content="again"))))[0]
    assert again["reason"] == "input-conflict"
    await second.stop()
    before, after = await notary.rows(first), await notary.rows(second)
    for family in ("states", "decisions", "positions"):
        assert dict(before[family]).items() <= dict(after[family]).items()
