"""Workers that lose their disk, share a name, meet forged records, or find another log than theirs."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from ordering.records import Checkpoint, Entry, Fence, Register, batch_key, encode
from ordering.topics import create_topics, topic_names
from tests.asking.load import Load, until
from tests.asking.party import spend, state
from tests.checkers import indexes
from tests.kafka.workers import Notary

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def producer(notary: Notary) -> AsyncIterator[AIOKafkaProducer]:
    """Somebody who can write to the topics and is no worker."""
    made = AIOKafkaProducer(bootstrap_servers=notary.bootstrap, acks="all", max_request_size=4 << 20)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_disk_lost(notary: Notary) -> None:
    """A worker whose index is gone replays the log from its beginning, to the same rows."""
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


async def test_crash_under_load(notary: Notary) -> None:
    """Workers killed again and again, in turn, contradict nothing, and each catches up from the index that it had."""
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


async def test_worker_frozen(notary: Notary) -> None:
    """A worker that freezes with batches on their way contradicts nothing after the thaw, whatever its peer did meanwhile."""
    settings = {"worker_hole_timeout_ms": 300, "worker_worker_timeout_ms": 500, "log_append_timeout_ms": 1_500}
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


async def test_namesakes(notary: Notary) -> None:
    """Of two processes that share a name one stops and says why; the other goes on, and no answer is contradicted."""
    first, peer = await notary.start_all("a", "b")
    second = notary.start("a", process="namesake", index="elsewhere")
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
    # What the other one had applied when it stopped is the beginning of the same story.
    applied = indexes.decisions_of(await notary.rows(stopped))
    assert applied == decisions[: len(applied)]


async def test_second_process_on_one_index(notary: Notary) -> None:
    """A second process of one name on the same machine finds the index in use, and ends; the first goes on undisturbed."""
    (first,) = await notary.start_all("a")
    second = notary.start("a", process="namesake")
    assert await second.ended() == 2
    assert "Traceback" not in second.messages
    assert "in use" in second.messages or "lock" in second.messages.lower()
    await notary.client.decide([first.url], notary.party.submission(spend(state("x"))))
    assert await notary.metric(first, "notary_incarnation ") == 1
    await notary.check(first)


async def test_forged_records(notary: Notary) -> None:
    """Records that no worker wrote are skipped by all alike, counted, and stop nobody; nor do they change a decision."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    await notary.client.decide(urls, notary.party.submission(spend(state("before"))))
    await notary.same_height(*workers)
    ordering, payload = topic_names(notary.prefix)
    ids = (os.urandom(32),)
    forged_entries = [
        b"",
        b"\x00",
        b"not a record",
        b"\x01\xff of an unknown kind",
        b"\x63\x01 of an unknown version",
        os.urandom(300),
        encode(Entry(99, 1, 0, 0, ids)),  # of a life that is not registered
        encode(Entry(1, 1, 0, 0, ids)),  # of a sequence that is past, or counts as a hole and is filled
        encode(Entry(1, 2**63, 0, 4_000_000, ids)),  # in a partition that is not there
        encode(Entry(2, 1, 0, 1, ids))[:-1],
        encode(Entry(2, 1, 0, 1, ids)) + b"\x00",
        encode(Fence(77, 0)),
        encode(Fence(1, 1_000_000)),
        encode(Register(b"n" * 16, 1, "somebody else", "0"))[:-2],
    ]
    forged_payloads: list[tuple[bytes | None, bytes | None]] = [
        (None, b"no key"),
        (b"", b""),
        (b"short key", b"[]"),
        (os.urandom(17), os.urandom(100)),
        (batch_key(1, 1), b"comes too late"),
        (batch_key(2**40, 1), b"of a life that may yet come"),
        (batch_key(1, 2**40), b"of a sequence that may yet come"),
        (batch_key(2, 2**40), None),
    ]
    async with Load(notary.client, notary.party, urls, seed=6) as load:
        await load.until(50)
        async with producer(notary) as forger:
            for value in forged_entries:
                await forger.send_and_wait(ordering, value, partition=0)
            await forger.send_and_wait(ordering, None, key=b"key", partition=0)
            for key, content in forged_payloads:
                for partition in range(4):
                    await forger.send_and_wait(payload, content, key, partition=partition)
        await load.until(100)
    await notary.same_height(*workers)
    for worker in workers:
        assert await notary.metric(worker, 'notary_log_notices_total{kind="malformed"}') >= 10 + 4 * 4
        assert await notary.metric(worker, 'notary_log_notices_total{kind="skipped"}') >= 3
        assert "malformed stream=-1" in worker.messages
    await notary.check(*workers)


async def test_forged_content(notary: Notary) -> None:
    """A counted entry whose content is junk, or is not what the entry names, counts as a fill, and the workers say so."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    ordering, payload = topic_names(notary.prefix)
    honest = notary.party.submission(spend(state("stolen")))
    unasked = json.dumps([json.loads(honest.body)]).encode()
    async with producer(notary) as forger:
        await forger.send_and_wait(ordering, encode(Register(b"f" * 16, 1, "forger", "0")), partition=0)
        for sequence, content in enumerate((b"junk", b"[]", b"null", unasked), 1):
            await forger.send_and_wait(payload, content, batch_key(3, sequence), partition=sequence % 4)
            await forger.send_and_wait(ordering, encode(Entry(3, sequence, 0, sequence % 4, (os.urandom(32),))), partition=0)
    await notary.client.decide(urls, notary.party.submission(spend(state("after"))))
    await notary.same_height(*workers)
    for worker in workers:
        assert await notary.metric(worker, 'notary_log_notices_total{kind="bad-content"}') == 4
        assert (await notary.http.get(worker.url, f"/v1/transactions/{honest.ids[0]}")).status == 404
    decisions = await notary.check(*workers)
    assert len(decisions) == 1


async def test_forged_entry_of_a_living_worker(notary: Notary) -> None:
    """An entry under a living worker's name, far ahead of it, costs it that life and no more: its clients are answered."""
    (worker,) = await notary.start_all("a")
    async with producer(notary) as forger:
        await forger.send_and_wait(topic_names(notary.prefix)[0], encode(Entry(1, 2**40, 0, 0, (os.urandom(32),))), partition=0)
    await notary.client.decide([worker.url], notary.party.submission(spend(state("mine"))))
    await notary.check(worker, forged=True)


async def test_forged_batch_of_a_living_worker(notary: Notary) -> None:
    """A whole batch forged under the name of one in flight is decided, and is not taken for the answer to what was asked."""
    worker = await notary.start("a", worker_hole_timeout_ms=60_000).ready()
    ordering, payload = topic_names(notary.prefix)
    stolen, mine = (notary.party.submission(spend(state(text))) for text in ("stolen", "mine"))
    notary.history.submissions.append(stolen)
    async with producer(notary) as forger:
        ids = (bytes.fromhex(stolen.ids[0]),)
        await forger.send_and_wait(ordering, encode(Entry(1, 1, 0, 3, ids)), partition=0)
        asked = asyncio.create_task(notary.client.decide([worker.url], mine))
        waiting = asyncio.create_task(notary.until_metric(worker, "notary_batches_sent "))
        await asyncio.wait([waiting, asked], return_when=asyncio.FIRST_COMPLETED)
        assert not asked.done(), asked.result()
        # The head is a hole, and the worker's own batch of that name waits behind it.
        content = json.dumps([json.loads(stolen.body)]).encode()
        await forger.send_and_wait(payload, content, batch_key(1, 1), partition=3)
    (decision,) = await asked
    assert decision["transaction_id"] == mine.ids[0]
    decisions = await notary.check(worker)
    assert [decision["transaction_id"] for decision in decisions] == [*stolen.ids, *mine.ids]


async def test_log_time_is_held_back(notary: Notary) -> None:
    """An entry whose sender claims a time long past or to come moves log time no further than the brokers' clock."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    ordering, payload = topic_names(notary.prefix)
    async with producer(notary) as forger:
        await forger.send_and_wait(ordering, encode(Register(b"f" * 16, 1, "forger", "0")), partition=0)
        for sequence, sent_at_ms in enumerate((-(2**63), 2**62), 1):
            await forger.send_and_wait(payload, None, batch_key(3, sequence), partition=0)
            await forger.send_and_wait(ordering, encode(Entry(3, sequence, sent_at_ms, 0, (os.urandom(32),))), partition=0)
    (before,) = await notary.client.decide(urls, notary.party.submission(spend(state("one"))))
    (after,) = await notary.client.decide(urls[::-1], notary.party.submission(spend(state("two"))))
    assert before["log_time"] <= after["log_time"] < before["log_time"] + 3_600_000
    await notary.check(*workers)


async def test_forged_checkpoint(notary: Notary) -> None:
    """A checkpoint record of a life that never was changes nothing."""
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    await notary.client.decide(urls, notary.party.submission(spend(state("before"))))
    async with producer(notary) as forger:
        await forger.send_and_wait(topic_names(notary.prefix)[0], encode(Checkpoint(99, 2**60, os.urandom(32))), partition=0)
    await notary.client.decide(urls, notary.party.submission(spend(state("after"))))
    await notary.check(*workers)


async def test_records_deleted(notary: Notary) -> None:
    """When the log lost its beginning, a new worker refuses to start from what is left; the others go on."""
    (worker,) = await notary.start_all("a")
    await notary.client.decide([worker.url], notary.party.submission(spend(state("x"))))
    ordering = TopicPartition(topic_names(notary.prefix)[0], 0)
    admin = AIOKafkaAdminClient(bootstrap_servers=notary.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ordering: RecordsToDelete(1)})
    finally:
        await admin.close()
    late = notary.start("b")
    assert await late.ended() == 2
    assert "the log lost records" in late.messages
    assert "Traceback" not in late.messages
    await notary.client.decide([worker.url], notary.party.submission(spend(state("y"))))
    await worker.stop()
    rows = await notary.rows(worker)  # the log cannot tell any more
    notary.history.check(indexes.decisions_of(rows), indexes.consumed_of(rows))


async def test_log_made_anew(notary: Notary) -> None:
    """When the topics were deleted and made again, a worker with an index of the old ones refuses to start, and says why."""
    (worker,) = await notary.start_all("a")
    await notary.client.decide([worker.url], notary.party.submission(spend(state("x"))))
    await worker.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=notary.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics(list(topic_names(notary.prefix)))
        while set(topic_names(notary.prefix)) & set(await admin.list_topics()):  # noqa: ASYNC110 - asked of a broker
            await asyncio.sleep(0.1)
    finally:
        await admin.close()
    await create_topics(notary.bootstrap, notary.prefix, 4)
    again = notary.start("a")
    assert await again.ended() == 2
    assert "is not ours" in again.messages
    assert "Traceback" not in again.messages
