"""Tests a mirror in another cluster, the failover to it, and the way back: `notary mirror`, brokers and workers as real processes."""

import argparse
import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from deploy.local import Cluster
from notary import cli
from notary.cli import failover
from notary.cli import owner as owner_commands
from notary.index.view import viewing
from notary.mirror import LogMirror
from ordering.batches import WithoutHeaders
from ordering.errors import ConfigurationError, NotReady
from ordering.kafka import KafkaLog
from ordering.log import ORDERING
from ordering.records import Checkpoint, Entry, batch_key, decode
from ordering.topics import add_partitions, create_topics, free_records
from tests.checkers.history import Decided
from tests.checkers.indexes import Rows
from tests.clients.load import until
from tests.clients.party import spend, state
from tests.kafka.conftest import Owner
from tests.kafka.mirrors import Mirror
from tests.kafka.workers import Notary, Worker, opened

pytestmark = pytest.mark.kafka

PARTITIONS = 4
LARGE = 3_000_000
"""More than a producer sends, or a consumer reads, with settings of its own."""
Copied: TypeAlias = dict[TopicPartition, list[tuple[int, bytes | None, bytes | None]]]
"""The records of each topic-partition: time, key, value."""


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[Cluster]]:
    """Two clusters of one broker each."""
    with Cluster.create(tmp_path / "source", brokers=1) as source, Cluster.create(tmp_path / "target", brokers=1) as target:
        yield [source, target]


@pytest.fixture
async def mirrored(clusters: list[Cluster], kafka_prefix: str, tmp_path: Path) -> AsyncIterator[Notary]:
    """A notary on the first cluster."""
    async with opened(tmp_path / "notary", clusters[0].bootstrap, kafka_prefix, PARTITIONS) as made:
        yield made


async def _read(bootstrap: str, prefix: str) -> Copied:
    """Returns all records of both topics, as workers read them."""
    partitions = [TopicPartition(f"{prefix}.ordering", 0), *[TopicPartition(f"{prefix}.payload", each) for each in range(PARTITIONS)]]
    found: Copied = {partition: [] for partition in partitions}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    WithoutHeaders(consumer._client)
    async with consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while [each for each in partitions if await consumer.position(each) < ends[each]]:
            for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                found[partition] += [(each.timestamp, each.key, each.value) for each in records]
    return found


async def _append(bootstrap: str, records: Copied) -> None:
    """Append these records, as a mirroring process would that is late."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=2 * LARGE) as producer:
        for partition, some in records.items():
            for timestamp, key, value in some:
                await producer.send_and_wait(partition.topic, value, key, partition.partition, timestamp)


@asynccontextmanager
async def _load(notary: Notary, worker: Worker, decided: list[Decided]) -> AsyncIterator[None]:
    """Have requests decided one after the other inside the block; those answered are added to `decided`, which is by position."""
    stop = False

    async def ask() -> None:
        while not stop:
            decided.append(await _decide(notary, worker, len(decided)))
            assert decided[-1]["position"] == len(decided) - 1
            await asyncio.sleep(0.01)

    calling = asyncio.create_task(ask())
    try:
        yield
    finally:
        stop = True
        await calling


async def _decide(notary: Notary, worker: Worker, number: int, content: str = "") -> Decided:
    request = spend(state(f"coin {number}"), content=content or str(number))
    return (await notary.client.decide([worker.url], notary.party.submission(request)))[0]


async def _found(notary: Notary, worker: Worker, transaction_id: object) -> int:
    return (await notary.http.get(worker.url, f"/v1/transactions/{transaction_id}")).status


async def _rows_of_stopped(notary: Notary, worker: Worker) -> Rows:
    await worker.stop()
    return await notary.rows(worker)


async def _unreachable(*arguments: object) -> None:
    """Stands for a command that is killed before this step."""
    raise NotReady("killed here")


def _use(notary: Notary, before: str, after: str) -> None:
    """Change brokers or topics in the configuration, as an operator does after a failover."""
    file = notary.directory / "notary.toml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def _check_kept(before: Rows, after: Rows, size: int) -> None:
    """Check that the first decisions are the same, byte by byte."""
    positions = [(key, id_) for key, id_ in before["positions"] if int.from_bytes(key) < size]
    ids = {id_ for _, id_ in positions}
    kept = {"positions": positions, "decisions": [(id_, row) for id_, row in before["decisions"] if id_ in ids]}
    for family, rows in kept.items():
        assert len(rows) == size
        assert dict(rows).items() <= dict(after[family]).items(), family


@pytest.mark.nightly
async def test_a_failover_and_the_way_back(
    clusters: list[Cluster], mirrored: Notary, owner: Owner, kafka_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover keeps all that the mirror has and names the rest; late records of the old side count nowhere; then the way back."""
    (source, target), notary = clusters, mirrored
    ordering = TopicPartition(f"{kafka_prefix}.ordering", 0)
    old_index = notary.directory / "index-old" / "old"
    decided: list[Decided] = []
    assert (await owner("failover", "--to", target.bootstrap, "--prepare"))["format_active"]
    payload = TopicPartition(f"{kafka_prefix}.payload", 1)
    large = (b"a key", bytes(LARGE))
    await _append(source.bootstrap, {payload: [(1, *large)]})
    old = await notary.start("old", index="index-old").ready()

    with Mirror(notary.directory / "notary.toml", target.bootstrap) as mirror:
        async with _load(notary, old, decided):

            async def is_under_way() -> bool:
                mirror.check_alive()
                return len((await _read(target.bootstrap, kafka_prefix))[ordering]) > 50

            await until(is_under_way, 0.5)
            early = notary.start("new", index="index-new", log_bootstrap=target.bootstrap)
            assert await early.ended() == 2
            assert "`notary failover --to" in early.messages
            assert "the mirror still grows" in await owner("failover", "--to", target.bootstrap, "--plan", fails=True)
            mirror.pause()
            shown = len(decided)
            await until(lambda: len(decided) > shown + 20)
        last_ms = time.time() * 1_000
        complete = await _read(source.bootstrap, kafka_prefix)
        # The disaster: the brokers, their disks and the mirroring process.
        source.kill(1)
        source.down()
        mirror.stop()
    old.kill()
    copied = await _read(target.bootstrap, kafka_prefix)
    for partition, records in copied.items():
        assert records == complete[partition][: len(records)], partition
    assert copied[payload][0][1:] == large

    plan = await owner("failover", "--to", target.bootstrap, "--plan", "--index", old_index)
    kept = plan["kept"]
    assert 50 < kept < len(decided)
    assert (plan["end"], plan["decisions_put_back"], plan["lost"]) == (len(decided), len(decided) - kept, [])
    began_s = time.monotonic()
    done = await owner("failover", "--to", target.bootstrap, "--yes")
    assert (done["kept"], done["decisions"]) == (kept, kept)
    decided_s, done_ms = time.monotonic(), plan["mirror"]["log_time_ms"]
    _use(notary, notary.bootstrap, target.bootstrap)
    new = await notary.start("new", index="index-new").ready()
    assert await _decide(notary, new, kept - 1) == decided[kept - 1]
    up_s = time.monotonic()
    lost = [await _found(notary, new, decided[position]["transaction_id"]) for position in range(kept, len(decided))]
    assert set(lost) == {404}

    # Records of the old side that come late: they are signed with a key that is no longer in force.
    await _append(target.bootstrap, {partition: records[len(copied[partition]) :] for partition, records in complete.items()})
    late = len(complete[ordering]) - len(copied[ordering])
    await notary.until_metric(new, 'notary_log_anomalies_total{kind="unsigned"', late)
    assert await notary.same_height(new) == kept
    again = await _decide(notary, new, kept, content="the same states, another transaction")
    assert (again["outcome"], again["position"]) == ("committed", kept)

    before, after = await notary.rows(old), await _rows_of_stopped(notary, new)
    _check_kept(before, after, kept)
    with viewing(old_index) as one, viewing(notary.directory / "index-new" / "new") as other:
        assert one.tree.over(0, kept) == other.tree.over(0, kept)

    with Cluster.create(tmp_path / "home", brokers=1) as home:
        back = ["failover", "--to", home.bootstrap, "--work", tmp_path / "back"]
        await owner(*back, "--prepare")
        with Mirror(notary.directory / "notary.toml", home.bootstrap) as mirror:
            await _until_complete(mirror, target, home, kafka_prefix)
            mirror.stop()
        plan = await owner(*back, "--plan", "--index", notary.directory / "index-new" / "new")
        assert (plan["kept"], plan["end"], plan["mirror"]["missing"]) == (kept + 1, kept + 1, [])
        with monkeypatch.context() as failing:
            failing.setattr(failover, "use_append_times", _unreachable)
            assert "killed here" in await owner(*back, "--yes", fails=True)
        _use(notary, target.bootstrap, home.bootstrap)
        early = notary.start("home", index="index-home")
        assert await early.ended() == 2
        done = await owner(*back, "--yes")
        assert (done["resumed"], done["decisions"]) == (True, kept + 1)
        assert "are no mirror: " in await owner(*back, "--yes", fails=True)
        last = await notary.start("home", index="index-home").ready()
        assert await _decide(notary, last, kept, content="the same states, another transaction") == again
        _check_kept(after, await _rows_of_stopped(notary, last), kept + 1)

    behind_s = (last_ms - done_ms) / 1_000
    print(
        f"lost {len(decided) - kept} of {len(decided)} decisions, the last {behind_s:.1f} s; failover {decided_s - began_s:.1f} s,"
        f" worker with {kept} decisions {up_s - decided_s:.1f} s"
    )


@pytest.mark.nightly
async def test_a_killed_mirroring_loses_nothing(
    clusters: list[Cluster], mirrored: Notary, owner: Owner, kafka_prefix: str, tmp_path: Path
) -> None:
    """`notary mirror` is killed while it copies, and continues: the mirror gets each record, at its offset in the log."""
    (source, target), notary = clusters, mirrored
    decided: list[Decided] = []
    await owner("failover", "--to", target.bootstrap, "--prepare")
    old = await notary.start("old", index="index-old").ready()
    with Mirror(notary.directory / "notary.toml", target.bootstrap) as mirror:

        async def copied(number: int) -> None:
            async def enough() -> bool:
                mirror.check_alive()
                return sum(map(len, (await _read(target.bootstrap, kafka_prefix)).values())) > number

            await until(enough, 0.2)

        async with _load(notary, old, decided):
            await copied(50)
            mirror.kill()
            shown = len(decided)
            await until(lambda: len(decided) > shown + 50)
            mirror.start()
            await copied(2 * shown)
        await old.stop()
        await _until_complete(mirror, source, target, kafka_prefix)
        mirror.stop()
    plan = await owner("failover", "--to", target.bootstrap, "--plan", "--index", notary.directory / "index-old" / "old")
    assert (plan["kept"], plan["end"], plan["mirror"]["missing"]) == (len(decided), len(decided), [])


async def _until_complete(mirror: Mirror, source: Cluster, target: Cluster, prefix: str) -> None:
    async def is_complete() -> bool:
        mirror.check_alive()
        return await _read(target.bootstrap, prefix) == await _read(source.bootstrap, prefix)

    await until(is_complete, 0.5)


async def test_a_mirror_with_gaps(
    notary: Notary, kafka_cluster: Cluster, owner: Owner, kafka_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is missing in the middle of a mirror is noticed, and the mirror refused; a missing payload is named, and sealed."""
    monkeypatch.setattr(failover, "QUIET_S", 0.1)  # nothing writes to these mirrors
    bootstrap = kafka_cluster.bootstrap
    ordering = TopicPartition(f"{kafka_prefix}.ordering", 0)
    worker = await notary.start("a", worker_checkpoint_interval_ms=500).ready()
    decided = [await _decide(notary, worker, number) for number in range(6)]

    async def shows_all() -> bool:
        values = [value or b"" for _, _, value in (await _read(bootstrap, kafka_prefix))[ordering]]
        return any(isinstance(record, Checkpoint) and record.tree_size == len(decided) for record in map(decode, values))

    await until(shows_all, 0.5)
    await worker.stop()
    assert "are no mirror: " in await owner("failover", "--to", bootstrap, "--plan", fails=True)
    records = await _read(bootstrap, kafka_prefix)
    entries = [number for number, (_, _, value) in enumerate(records[ordering]) if isinstance(decode(value), Entry)]
    third = decode(records[ordering][entries[2]][2])
    assert isinstance(third, Entry)

    async def mirror_without(name: str, lost: TopicPartition, lost_key: bytes | None, lost_number: int) -> None:
        await create_topics(bootstrap, name, PARTITIONS, mirror=True)
        _use(notary, f'"{before}"', f'"{name}"')
        for partition, some in records.items():
            kept = [each for number, each in enumerate(some) if partition != lost or (number != lost_number and each[1] != lost_key)]
            await _append(bootstrap, {TopicPartition(partition.topic.replace(kafka_prefix, name, 1), partition.partition): kept})

    before = kafka_prefix
    await mirror_without(f"{kafka_prefix}-a", ordering, b"", entries[2])
    message = await owner("failover", "--to", bootstrap, "--plan", "--work", tmp_path / "first", fails=True)
    assert "no prefix of the log: 'a' saw another history" in message

    before = f"{kafka_prefix}-a"
    content = TopicPartition(f"{kafka_prefix}.payload", third.partition)
    await mirror_without(f"{kafka_prefix}-b", content, batch_key(third.incarnation, third.sequence), -1)
    plan = await owner("failover", "--to", bootstrap, "--plan")
    assert (plan["kept"], plan["seals"], plan["mirror"]["missing"][0]) == (2, True, [2, 2])
    assert [each["missing"] for each in plan["mirror"]["waiting"]] == [True, False, False, False]
    assert plan["mirror"]["decided_at_source"] == 6
    done = await owner("failover", "--to", bootstrap, "--yes", "--index", notary.directory / "index" / "a")
    assert (done["seals"], done["decisions"], done["decisions_put_back"], done["lost"]) == (True, 6, 4, [])
    again = await notary.start("b", index="index-b").ready()
    assert [await _decide(notary, again, number) for number in range(6)] == decided


async def test_a_failover_after_the_notarys_key_was_lost(notary: Notary, kafka_cluster: Cluster, owner: Owner, kafka_prefix: str) -> None:
    """The machines of the old side had all copies of it. Only with `--lost` the failover's key begins a new history."""
    bootstrap, name = kafka_cluster.bootstrap, f"{kafka_prefix}-m"
    worker = await notary.start("a").ready()
    decided = [await _decide(notary, worker, number) for number in range(3)]
    await worker.stop()
    await create_topics(bootstrap, name, PARTITIONS, mirror=True)
    copied = {
        TopicPartition(f"{name}{at.topic.removeprefix(kafka_prefix)}", at.partition): records
        for at, records in (await _read(bootstrap, kafka_prefix)).items()
    }
    await _append(bootstrap, copied)
    _use(notary, f'"{kafka_prefix}"', f'"{name}"')
    notary.lost_keys += [each["verifier_key"] for each in json.loads((notary.directory / "notary-keys.json").read_text())]
    (notary.directory / "notary-key.pem").unlink()
    assert "If it is lost everywhere, give --lost" in await owner("failover", "--to", bootstrap, "--yes", fails=True)
    assert await _read(bootstrap, name) == copied, "nothing was appended"
    done = await owner("failover", "--to", bootstrap, "--lost", "--yes")
    assert (done["decisions"], done["lost"], done["endorsed"]) == (3, [], False)
    again = await notary.start("b", index="index-b").ready()
    assert [await _decide(notary, again, number) for number in range(3)] == decided


async def test_of_two_failovers_only_one_takes_effect(
    notary: Notary,
    kafka_cluster: Cluster,
    owner: Owner,
    kafka_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While a second machine asks its operator, a first one fails over. The key that its workers then have stays in force."""
    bootstrap, name = kafka_cluster.bootstrap, f"{kafka_prefix}-m"
    worker = await notary.start("a").ready()
    decided = [await _decide(notary, worker, number) for number in range(3)]
    await worker.stop()
    await create_topics(bootstrap, name, PARTITIONS, mirror=True)
    records = await _read(bootstrap, kafka_prefix)
    await _append(bootstrap, {TopicPartition(f"{name}{at.topic.removeprefix(kafka_prefix)}", at.partition): records[at] for at in records})
    _use(notary, f'"{kafka_prefix}"', f'"{name}"')
    other = shutil.copytree(notary.directory, tmp_path / "other")
    loop = asyncio.get_running_loop()

    async def first() -> None:
        await owner("failover", "--to", bootstrap, "--yes")

    def agreed(arguments: argparse.Namespace, *_: object) -> bool:
        if not arguments.yes:
            asyncio.run_coroutine_threadsafe(first(), loop).result()
        return True

    monkeypatch.setattr(owner_commands, "agreed", agreed)
    given = ["failover", "--to", bootstrap, "--config", str(other / "notary.toml")]
    assert await asyncio.to_thread(cli.main, given) == 2
    assert "another failover has taken effect meanwhile" in capsys.readouterr().err
    for file in ("notary-key.pem", "notary-keys.json"):
        shutil.copy(notary.directory / file, other / file)
    assert await asyncio.to_thread(cli.main, [*given, "--yes"]) == 2
    assert "are no mirror: " in capsys.readouterr().err
    again = await notary.start("b", index="index-b").ready()
    assert [await _decide(notary, again, number) for number in range(3)] == decided


async def test_no_mirror_begins_after_contents_were_freed(notary: Notary, kafka_cluster: Cluster, owner: Owner, kafka_prefix: str) -> None:
    """It would lack them, and a failover to it would forget their decisions."""
    bootstrap = kafka_cluster.bootstrap
    worker = await notary.start("a").ready()
    for number in range(6):
        await _decide(notary, worker, number)
    await worker.stop()
    source = await KafkaLog.open(bootstrap, kafka_prefix)
    ends = {partition: offsets.log_end for partition, offsets in (await source.offsets()).items() if partition != ORDERING}
    await free_records(bootstrap, kafka_prefix, source.payload_topic_id, {each: end - 1 for each, end in ends.items() if end > 1})
    other = notary.directory / "mirror.toml"
    other.write_text((notary.directory / "notary.toml").read_text().replace(f'"{kafka_prefix}"', f'"{kafka_prefix}-m"'))
    assert "were freed (`notary trim`)" in await owner("failover", "--to-config", other, "--prepare", fails=True)
    await create_topics(bootstrap, f"{kafka_prefix}-m", PARTITIONS, mirror=True)
    target = await KafkaLog.open(bootstrap, f"{kafka_prefix}-m", mirror=True)
    try:
        with pytest.raises(ConfigurationError, match="a failover to this mirror would forget their decisions"):
            await LogMirror(source, target, partial(add_partitions, bootstrap, f"{kafka_prefix}-m")).run()
    finally:
        await source.close()
        await target.close()
