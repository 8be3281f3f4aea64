"""Tests broker failures (killed, frozen, restarted) under a load that two workers share."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from deploy.local import Cluster
from notary.cli.top import brokers_of, samples_of
from ordering.connection import admin
from ordering.topics import topic_names
from tests.clients.http import PAUSED
from tests.clients.load import Client, Load, until
from tests.clients.party import spend, state
from tests.kafka.workers import Notary, Worker

pytestmark = pytest.mark.kafka

BROKERS = (1, 2, 3)


@pytest.fixture
def brokers(kafka_cluster: Cluster) -> Iterator[Cluster]:
    """The brokers, which are restored at the end of the test."""
    yield kafka_cluster
    heal(kafka_cluster)


def heal(brokers: Cluster) -> None:
    for broker in brokers.state.brokers:
        if broker.condition == "paused":
            brokers.resume(broker.id)
        elif broker.condition != "running":
            brokers.start(broker.id)
    brokers.wait_until_serving()


async def ordering_leader(notary: Notary, away: int | None = None) -> int:
    """Returns the broker that leads the ordering topic, according to those other than `away`."""
    addresses = notary.bootstrap.split(",")
    known = ",".join(address for broker, address in zip(BROKERS, addresses, strict=True) if broker != away)
    async with admin(known, "test", None, 60_000) as client:
        (topic,) = await client.describe_topics([topic_names(notary.prefix)[0]])
    return int(topic["partitions"][0]["leader"])


async def sees(notary: Notary, worker: Worker, broker: int, **expected: bool) -> bool:
    """Returns whether the worker's metrics agree about a broker now: connected, leads a partition, in sync with one."""
    seen = brokers_of(samples_of((await notary.http.get(worker.url, "/metrics")).body.decode()))[str(broker)]
    assert seen.replicas > 1
    return all(bool(getattr(seen, name)) is value for name, value in expected.items())


async def not_ready(notary: Notary, workers: list[Worker], brokers: Cluster) -> None:
    """Check that workers report that they are not ready, also one that starts now; then restore the brokers, and wait until all are."""
    urls = [worker.url for worker in workers]
    in_flight = await notary.client.ask(urls[0], notary.party.submission(spend(state("in flight"))))
    assert in_flight.status in (202, 503)
    for worker in workers:
        await until(partial(notary.says, worker, 503, "not ready: "))
    refused = await notary.client.ask(urls[0], notary.party.submission(spend(state("refused"))))
    assert (refused.status, refused.json()["type"]) == (503, "/problems/not-ready")
    assert int(refused.headers["retry-after"]) >= 1
    # A look-up is still answered: a decision is final.
    [first] = [call for call in notary.history.calls if call.status == 200][:1]
    seen = await notary.http.get(urls[0], f"/v1/transactions/{first.submission.ids[0]}")
    assert seen.status == 200 or PAUSED in seen.body
    workers.append(notary.start("late"))
    await until(partial(notary.says, workers[-1], 503, "not ready: "))
    await asyncio.to_thread(heal, brokers)
    await notary.until_ready(*workers)


@pytest.mark.parametrize("how", ["kill", pytest.param("pause", marks=pytest.mark.nightly)])
async def test_ordering_leader_fails(notary: Notary, brokers: Cluster, how: str) -> None:
    """The ordering leader dies, or freezes and thaws, under load: answers resume, none is lost or contradicted.

    Then another broker fails too, and workers are not ready until both are back.
    """
    workers = await notary.start_all("a", "b")
    urls = [worker.url for worker in workers]
    fail = brokers.kill if how == "kill" else brokers.pause
    async with Load(notary.client, notary.party, urls, seed=1) as load:
        await load.until(200)
        leader = await ordering_leader(notary)
        await asyncio.to_thread(fail, leader)
        await load.until(300)
        next_leader = await ordering_leader(notary, away=leader)
        assert next_leader != leader
        if how == "kill":
            await until(partial(sees, notary, workers[0], leader, connected=False, leads=False, in_sync=False))
        # A worker that starts now gets past the broker that does not answer.
        workers += await notary.start_all("c")
        await asyncio.to_thread(fail, next_leader)
        await not_ready(notary, workers, brokers)
        for broker in (leader, next_leader):
            await until(partial(sees, notary, workers[0], broker, connected=True, in_sync=True))
        await load.until(200)
    assert 202 in notary.history.statuses()
    assert {worker.process.poll() for worker in workers} == {None}
    await notary.same_height(*workers)
    for submission in notary.history.submissions[::20]:
        returned = [await notary.client.decide([worker.url], submission) for worker in workers]
        assert returned == returned[:1] * len(workers)
    await notary.check(*workers)


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_without_brokers_workers_are_not_ready(notary: Notary, brokers: Cluster, how: str) -> None:
    """Without brokers workers report that they are not ready; they continue, or start, by themselves when the brokers are back."""
    workers = await notary.start_all("a", "b")
    async with Load(notary.client, notary.party, [worker.url for worker in workers], seed=2) as load:
        await load.until(100)
        for broker in BROKERS:
            await asyncio.to_thread(brokers.kill if how == "kill" else brokers.pause, broker)
        await not_ready(notary, workers, brokers)
        await load.until(200)
    assert 202 in notary.history.statuses()
    assert {worker.process.poll() for worker in workers} == {None}
    await notary.check(*workers)


async def test_no_answered_decision_is_lost_when_everything_is_killed(notary: Notary, brokers: Cluster) -> None:
    """All brokers and all workers but one are killed under load and restarted: no answered decision is lost.

    The other worker is stopped while no broker runs. It ends anyway, and answers admitted submissions with 202, without decisions.
    """
    names = ("a", "b")
    workers = await notary.start_all(*names)
    stopped = await notary.start("c", worker_drain_ms_max=1_000).ready()
    client = Client(notary.http, notary.history, wait_s=60)
    asked = []
    async with Load(notary.client, notary.party, [worker.url for worker in workers], seed=9) as load:
        await load.until(150)
        for worker in workers:
            worker.kill()
        for broker in BROKERS:
            await asyncio.to_thread(brokers.kill, broker)
            asked.append(asyncio.create_task(client.ask(stopped.url, notary.party.submission(spend(state(str(broker)))))))
        await until(lambda: notary.says(stopped, 503, "pending requests: "))
        await stopped.stop()
        workers = [notary.start(name) for name in names]
        await asyncio.to_thread(heal, brokers)
        await load.until(150)
        await asyncio.gather(*(worker.ready() for worker in workers))
    answers = [(answer.status, answer.json().get("decisions")) for answer in await asyncio.gather(*asked)]
    assert (202, [None]) in answers
    assert {status for status, _ in answers} <= {200, 202, 503}
    await notary.check(*workers)
