"""Tests brokers that lose acknowledged records and grow again: R10 and R11 with real brokers and real worker processes."""

import asyncio
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.local import Cluster
from joiner.settings import DriverSettings
from tests.checkers.history import Decided
from tests.clients.load import until
from tests.clients.party import spend, state
from tests.kafka.conftest import Owner
from tests.kafka.workers import Notary, opened

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker, whose disk tests may restore to an earlier copy."""
    with Cluster.create(tmp_path_factory.mktemp("tails") / "cluster", brokers=1) as made:
        yield made


@pytest.fixture
def broker(cluster: Cluster) -> Cluster:
    """The same, running: a test that failed may have left it down."""
    cluster.up()
    return cluster


@pytest.fixture
async def notary(broker: Cluster, kafka_prefix: str, tmp_path: Path) -> AsyncIterator[Notary]:
    async with opened(tmp_path / "notary", broker.bootstrap, kafka_prefix, 2) as made:
        yield made


def _data(broker: Cluster) -> Path:
    return broker.directory / "broker-1" / "data"


def _copy_disk(broker: Cluster, to: Path) -> None:
    """Copy the disk as it is at one moment, as a snapshot of a volume does."""
    broker.pause(1)
    subprocess.run(["cp", "-r", "--sparse=always", _data(broker), to], check=True)
    broker.resume(1)


def _put_back(broker: Cluster, copy: Path, partitions: str = "") -> None:
    """Kill the broker, restore its disk from the copy, or the topic-partitions whose names start with `partitions`, and start it."""
    broker.kill(1)
    names = [path.name for path in copy.iterdir() if path.name.startswith(partitions)] if partitions else [""]
    assert names
    for name in names:
        shutil.rmtree(_data(broker) / name)
        shutil.copytree(copy / name, _data(broker) / name)
    broker.start(1)
    broker.wait_until_serving()


async def _spend(notary: Notary, url: str, *labels: str) -> list[Decided]:
    return [(await notary.client.decide([url], notary.party.submission(spend(state(label), content=label))))[0] for label in labels]


async def test_a_cut_log_behind_a_paused_worker(notary: Notary, broker: Cluster, tmp_path: Path) -> None:
    """The brokers lose their tail behind a paused worker and grow past it by another worker: the first one answers nothing and stops."""
    first = await notary.start("a", entry=("-m", "tests.kafka.quickly_contradicted"), index="index-a").ready()
    await _spend(notary, first.url, "before 1", "before 2")
    await asyncio.to_thread(_copy_disk, broker, tmp_path / "copy")
    await notary.until_ready(first)
    await _spend(notary, first.url, "coin", "lost 2", "lost 3")
    first.process.send_signal(signal.SIGSTOP)
    paused_s = time.monotonic()

    await asyncio.to_thread(_put_back, broker, tmp_path / "copy")
    second = await notary.start("b", index="index-b").ready()
    # Another transaction consumes the same state: the log that is left does not know that it was consumed.
    for label in ("coin", "new 2", "new 3", "new 4", "new 5"):
        answer = await notary.client.answered(second.url, notary.party.submission(spend(state(label), content="again")))
        assert answer.status == 200

    # A broker restarts in less than a second here. A shorter pause is no interruption (`DriverSettings.interrupted_after_ms`).
    await asyncio.sleep(max(0.0, paused_s + DriverSettings().interrupted_after_s + 0.5 - time.monotonic()))
    first.process.send_signal(signal.SIGCONT)
    while first.process.poll() is None:
        try:
            answer = await notary.http.call_once(first.url, "GET", "/v1/checkpoint")
        except (ConnectionError, TimeoutError, OSError):
            continue
        assert answer.status == 503, answer.body
        await asyncio.sleep(0.05)
    assert await first.ended() == 2
    assert "is not the one that this index has applied" in first.messages or "the index is ahead of its log" in first.messages
    assert await notary.says(second, 200)


@pytest.mark.nightly
async def test_a_cut_payload_partition(notary: Notary, broker: Cluster, kafka_prefix: str, tmp_path: Path) -> None:
    """If an answered request's payload is lost, its reader stops, a replaying worker stops and names the entry; a restore heals both."""
    first = await notary.start("a", index="index-a").ready()
    await _spend(notary, first.url, "before 1", "before 2")
    await asyncio.to_thread(_copy_disk, broker, tmp_path / "copy")
    await notary.until_ready(first)
    await _spend(notary, first.url, "lost 1", "lost 2", "lost 3", "lost 4")
    height = await notary.same_height(first)
    await first.stop()
    await asyncio.to_thread(_copy_disk, broker, tmp_path / "complete")
    await asyncio.to_thread(_put_back, broker, tmp_path / "copy", f"{kafka_prefix}.payload-")

    again = notary.start("a", index="index-a")
    assert await again.ended() == 2
    assert "the log ends at" in again.messages
    fresh = notary.start("c", index="index-c", worker_hole_timeout_ms=300)
    assert await fresh.ended() == 2
    # The incarnation is any: the worker may have registered again after its broker's restart.
    assert re.search(r"content is lost: the payload of batch \([1-9]\d*, ", fresh.messages)

    await asyncio.to_thread(_put_back, broker, tmp_path / "complete", f"{kafka_prefix}.payload-")
    again, fresh = notary.start("a", index="index-a"), notary.start("c", index="index-c")
    await asyncio.gather(again.ready(), fresh.ready())
    await until(lambda: notary.says(fresh, 200))
    assert await notary.same_height(again, fresh) == height
    await _spend(notary, fresh.url, "after")
    await notary.check(again, fresh)


async def test_an_index_restores_what_was_lost(notary: Notary, broker: Cluster, owner: Owner, kafka_prefix: str, tmp_path: Path) -> None:
    """Brokers lose the end of both topics, and an index restores it: a worker on an empty disk has all answers and the same rows.

    `tests/rehearsals/test_tails.py` has the loss of one topic, and Spark.
    """
    first = await notary.start("a", index="index-a").ready()
    await _spend(notary, first.url, "before 1", "before 2")
    await asyncio.to_thread(_copy_disk, broker, tmp_path / "copy")
    await notary.until_ready(first)
    decided = await _spend(notary, first.url, "coin", "lost 2", "lost 3")
    await first.stop()
    await asyncio.to_thread(_put_back, broker, tmp_path / "copy", kafka_prefix)

    survivor = notary.directory / "index-a" / "a"
    done = await owner("salvage", "--index", survivor, "--yes")
    assert (done["decisions"], done["decisions_put_back"], done["seals"]) == (5, 3, False)
    assert (done["lost"], done["no_consistency_proof"]) == ([], [])

    second = await notary.start("b", index="index-b").ready()
    assert await _spend(notary, second.url, "coin", "lost 2", "lost 3") == decided
    assert await notary.same_height(second) == 5
    # The same state in another transaction: the log knows again that it is consumed.
    again = (await notary.client.decide([second.url], notary.party.submission(spend(state("coin"), content="again"))))[0]
    assert again["reason"] == "input-conflict"
    await notary.check(second)
    before, after = await notary.rows(first), await notary.rows(second)
    for family in ("states", "decisions", "positions"):
        assert dict(before[family]).items() <= dict(after[family]).items()
