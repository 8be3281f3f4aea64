"""Tests workers that lose their disk, share a name, meet forged records, or find another log than their own."""

import asyncio
import json
import os
import shutil
import signal
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete

from notary.config import load
from ordering.connection import admin
from ordering.records import Activate, Checkpoint, Fence, OrderingRecord, Partitions, Register, Retire, Settle, View, batch_key
from ordering.signatures import endorse_key
from ordering.topics import create_topics, topic_names
from tests.checkers import indexes
from tests.clients.load import Load, until
from tests.clients.party import spend, state
from tests.kafka.reading_back import read_log_records
from tests.kafka.second_hand import Hand
from tests.kafka.workers import Notary

pytestmark = pytest.mark.kafka


def producer(notary: Notary) -> AIOKafkaProducer:
    """Returns a producer, started by `async with`, that can write to the topics and is no worker."""
    return AIOKafkaProducer(bootstrap_servers=notary.bootstrap, acks="all", max_request_size=4 << 20)


async def test_a_worker_without_its_index_replays_to_the_same_rows(notary: Notary) -> None:
    """A worker whose index is gone replays the log from its start, to the same rows."""
    a, b = await notary.start_all("a", "b")
    async with Load(notary.client, notary.party, [a.url, b.url], seed=3) as load:
        await load.until(150)
        a.kill()
        shutil.rmtree(notary.directory / "index" / "a")
        again = notary.start("a")
        await load.until(100)
        await again.ready()
        await load.until(100)
    await notary.check(again, b)


async def test_workers_killed_in_turn_contradict_nothing(notary: Notary) -> None:
    """Workers that are killed again and again, in turn, contradict nothing, and each catches up from its index."""
    names = ("a", "b")
    workers = dict(zip(names, await notary.start_all(*names), strict=True))
    async with Load(notary.client, notary.party, [worker.url for worker in workers.values()], seed=4) as load:
        for turn in range(4):
            await load.until(60)
            name = names[turn % 2]
            workers[name].kill()
            await load.until(20)
            workers[name] = await notary.start(name).ready()
    await notary.check(*workers.values())


async def test_a_worker_contradicts_nothing_after_a_freeze(notary: Notary) -> None:
    """A worker that freezes with batches in flight contradicts nothing after the thaw, whatever its peer did meanwhile."""
    settings: dict[str, Any] = {"worker_hole_timeout_ms": 300, "worker_worker_timeout_ms": 500, "log_append_timeout_ms": 1_500}
    frozen, peer = notary.start("a", **settings), notary.start("b", **settings)
    await asyncio.gather(frozen.ready(), peer.ready())
    submissions = [notary.party.submission(spend(state(str(number // 2)), content=str(number))) for number in range(300)]
    asked = [asyncio.create_task(notary.client.decide([frozen.url], submission)) for submission in submissions]
    await notary.until_metric(peer, "notary_positions ")
    frozen.process.send_signal(signal.SIGSTOP)
    async with Load(notary.client, notary.party, [peer.url], seed=8) as load:
        started = time.monotonic()
        # Longer than all its time limits.
        while time.monotonic() < started + 3:
            await load.until(20)
        frozen.process.send_signal(signal.SIGCONT)
        await load.until(50)
    for submission, (decision,) in zip(submissions, await asyncio.gather(*asked), strict=True):
        assert await notary.client.decide([peer.url], submission) == [decision]
    await notary.check(frozen, peer)


async def test_one_of_two_workers_with_one_name_stops(notary: Notary) -> None:
    """One of two processes that share a name stops and reports why; the other continues, and no answer is contradicted."""
    first, peer = await notary.start_all("a", "b")
    second = notary.start("a", process="duplicate", index="elsewhere")
    async with Load(notary.client, notary.party, [first.url, second.url, peer.url], seed=5) as load:
        await until(lambda: any(worker.process.poll() is not None for worker in (first, second)))
        await load.until(100)
    (stays,) = [worker for worker in (first, second) if worker.process.poll() is None]
    (stopped,) = {first, second} - {stays}
    assert await stopped.ended() == 2
    assert "two processes share a name" in stopped.messages
    assert "Traceback" not in stopped.messages
    await stays.ready()
    await notary.same_height(stays, peer)
    for submission in notary.history.submissions[::20]:
        assert await notary.client.decide([stays.url], submission) == await notary.client.decide([peer.url], submission)
    decisions = await notary.check(stays, peer)
    # The records that the other one had applied when it stopped are a prefix of the same log.
    applied = indexes.decisions_of(await notary.rows(stopped))
    assert applied == decisions[: len(applied)]


async def test_second_process_on_one_index(notary: Notary) -> None:
    """A second process of one name on the same machine finds the index in use, and ends; the first continues."""
    (first,) = await notary.start_all("a")
    second = notary.start("a", process="duplicate")
    assert await second.ended() == 2
    assert "Traceback" not in second.messages
    assert "in use" in second.messages or "lock" in second.messages.lower()
    await notary.client.decide([first.url], notary.party.submission(spend(state("x"))))
    assert await notary.metric(first, "notary_incarnation ") == 1
    await notary.check(first)


async def test_forged_records_are_skipped_by_all_workers(notary: Notary) -> None:
    """Records without a valid signature are skipped by all workers alike and counted; they stop no worker and change no decision."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    await notary.client.decide(urls, notary.party.submission(spend(state("before"))))
    await notary.same_height(*workers)
    true = await read_log_records(load(notary.directory / "notary.toml", {}, {}))
    asked = notary.party.submission(spend(state("stolen")))
    content = json.dumps([json.loads(asked.body) | {"signature": "AA=="}]).encode()
    ids = (bytes.fromhex(asked.ids[0]),)
    async with Load(notary.client, notary.party, urls, seed=6) as load_, producer(notary) as made:
        await load_.until(50)
        hand = await Hand.of(notary, made, stolen_key=False)
        garbage = [b"", b"\x00", b"not a record", b"\x01\xff of an unknown kind", b"\x63\x01 of an unknown version", os.urandom(300), None]
        for value in (*garbage, b"\x01\x05\xff\xff", b"\x01\x05\xff\xff" + bytes(64)):
            await hand.ordering(value, key=b"key")
        unsigned: list[OrderingRecord] = [
            hand.entry(1, 2**40, content, ids),
            hand.entry(2, 2**40, content, ids, partition=4_000_000),
            Register(os.urandom(16), hand.view, 1, "a", "0"),
            Fence(1, hand.view, 1, 0),
            Checkpoint(1, hand.view, 1, os.urandom(32)),
            Activate(65_535),
            Retire(1),
            Partitions(1_000),
            endorse_key(hand.key, hand.log_id, hand.key.public_key),
            Settle(View(2**40, os.urandom(32))),
        ]
        for record in unsigned:
            await hand.record(record)
        # Copies of true records, by a writer that has only read them.
        for partition, records in true.items():
            for copy in records:
                await (hand.ordering(copy.value) if partition < 0 else hand.payload(partition, copy.key, copy.value))
        for sequence in range(1, 200):
            entry = hand.entry(1 + sequence % 2, sequence, content, ids, partition=sequence % 4)
            await hand.fill(entry)
            await hand.payload(entry.partition, batch_key(entry.incarnation, sequence), content)
        for key in (None, b"", b"short key", os.urandom(17)):
            await hand.payload(0, key, b"[]")
        await load_.until(100)
    await notary.same_height(*workers)
    for worker in workers:
        assert await notary.metric(worker, 'notary_log_anomalies_total{kind="malformed"}') >= len(garbage) + 4
        assert await notary.metric(worker, 'notary_log_anomalies_total{kind="unsigned"}') >= len(unsigned)
        assert await notary.metric(worker, 'notary_log_anomalies_total{kind="foreign-view"}') == 0
        assert await notary.metric(worker, "notary_incarnation ") in (1, 2)
        assert (await notary.http.get(worker.url, f"/v1/transactions/{asked.ids[0]}")).status == 404
    await notary.check(*workers)


async def test_content_of_a_broken_worker(notary: Notary) -> None:
    """Content with the hash in a signed entry decides nothing if it is junk or has other ids, and the workers report it."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    honest = notary.party.submission(spend(state("stolen")))
    unasked = json.dumps([json.loads(honest.body)]).encode()
    async with producer(notary) as made:
        hand = await Hand.of(notary, made, stolen_key=True)
        await hand.register("broken")
        for sequence, content in enumerate((b"junk", b"[]", b"null", unasked), 1):
            await hand.payload(sequence % 4, batch_key(3, sequence), content)
            await hand.record(hand.entry(3, sequence, content, (os.urandom(32),), sequence % 4))
    await notary.client.decide(urls, notary.party.submission(spend(state("after"))))
    await notary.same_height(*workers)
    for worker in workers:
        assert await notary.metric(worker, 'notary_log_anomalies_total{kind="bad-content"}') == 4
        assert (await notary.http.get(worker.url, f"/v1/transactions/{honest.ids[0]}")).status == 404
    decisions = await notary.check(*workers)
    assert len(decisions) == 1


async def test_stolen_key_used_for_a_living_worker(notary: Notary) -> None:
    """An entry under a live worker's name, far ahead of it, costs that worker its incarnation and no more: its clients are answered."""
    (worker,) = await notary.start_all("a")
    async with producer(notary) as made:
        hand = await Hand.of(notary, made, stolen_key=True)
        await hand.record(hand.entry(1, 2**40, b"nowhere", (os.urandom(32),)))
    await notary.client.decide([worker.url], notary.party.submission(spend(state("mine"))))
    await notary.check(worker, forged=True)


async def test_no_worker_starts_on_a_log_without_its_start(notary: Notary) -> None:
    """If the log has lost its start, no worker starts on the rest; a running worker continues."""
    (worker,) = await notary.start_all("a")
    await notary.client.decide([worker.url], notary.party.submission(spend(state("x"))))
    ordering = TopicPartition(topic_names(notary.prefix)[0], 0)
    async with admin(notary.bootstrap, "test", None, 60_000) as client:
        await client.delete_records({ordering: RecordsToDelete(1)})
    late = notary.start("b")
    assert await late.ended() == 2
    assert "this log has no owner" in late.messages
    assert "Traceback" not in late.messages
    await notary.client.decide([worker.url], notary.party.submission(spend(state("y"))))
    await worker.stop()
    rows = await notary.rows(worker)  # the log can no longer show it
    notary.history.check(indexes.decisions_of(rows), indexes.consumed_of(rows))


async def test_no_worker_starts_on_a_log_made_anew(notary: Notary) -> None:
    """If the topics were deleted and created again, no worker starts on them: they have no genesis record."""
    (worker,) = await notary.start_all("a")
    await notary.client.decide([worker.url], notary.party.submission(spend(state("x"))))
    await worker.stop()
    async with admin(notary.bootstrap, "test", None, 60_000) as client:
        await client.delete_topics(list(topic_names(notary.prefix)))
        while set(topic_names(notary.prefix)) & set(await client.list_topics()):  # noqa: ASYNC110 - asked of a broker
            await asyncio.sleep(0.1)
    await create_topics(notary.bootstrap, notary.prefix, 4)
    again = notary.start("a")
    assert await again.ended() == 2
    assert "the log is empty" in again.messages
    assert "Traceback" not in again.messages
