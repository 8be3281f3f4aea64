"""Tests random faults of workers and brokers in any order: no answer is lost or contradicted, and the notary recovers each time."""

import asyncio
import random
import signal
from functools import partial

import pytest

from tests.chaos.deployment import Deployment
from tests.chaos.faults import ALONE, ON_BROKERS, ON_WORKERS
from tests.chaos.flags import ChaosFlags
from tests.chaos.injection import inject
from tests.clients.load import until

WORKERS, BROKERS = ("a", "b", "c"), ("1", "2", "3")
FROZEN_S, SILENT_S = 1.5, 0.5


@pytest.mark.nightly
async def test_faults_drawn_from_a_seed(deployment: Deployment, chaos: ChaosFlags) -> None:
    """Workers and brokers are killed, frozen, restarted and wiped, and leaders moved, several at a time, round after round."""
    await deployment.start(*WORKERS)
    victims = dict.fromkeys(ON_WORKERS, WORKERS) | dict.fromkeys((*ON_BROKERS, *ALONE), BROKERS)
    async with deployment.load() as load:
        await load.until(50)
        await inject(deployment, [load], chaos.seconds, victims)
    await deployment.check()


async def test_others_answer_during_each_worker_fault(deployment: Deployment, chaos: ChaosFlags) -> None:
    """A worker is killed, frozen beyond its timeout, and restarted: the others answer meanwhile, and it returns each time.

    Each has an acceptor process, which ends when the worker is killed, and frees its port.
    """
    await deployment.start(*WORKERS, worker_worker_timeout_ms=1_000, http_acceptor_processes=1)
    order = random.Random(chaos.seed).sample(WORKERS, 3)
    async with deployment.load() as load:
        for turn in range(chaos.times):
            killed, frozen, restarted = (deployment.workers[order[(turn + number) % 3]] for number in range(3))
            await load.until(30)
            deployment.note(f"{killed.name} is killed")
            killed.kill()
            assert killed.process.returncode == -signal.SIGKILL
            await load.until(30)
            deployment.begin(killed.name)
            await deployment.well([load])
            deployment.note(f"{frozen.name} freezes")
            await deployment.freeze(frozen)
            await load.until(60)
            await asyncio.sleep(FROZEN_S)
            deployment.thaw(frozen)
            await deployment.well([load])
            deployment.note(f"{restarted.name} is restarted")
            await restarted.stop()
            await load.until(30)
            deployment.begin(restarted.name)
            await deployment.well([load])
    await deployment.check()


@pytest.mark.nightly
async def test_another_broker_leads_after_each_leader_fault(deployment: Deployment, chaos: ChaosFlags) -> None:
    """The ordering leader is killed, freezes, ends, hands over: another leads each time, answers go on, and it is in sync again."""
    await deployment.start("a", "b")
    brokers = deployment.brokers
    async with deployment.load() as load:
        for end, revive in [(brokers.kill, brokers.start), (brokers.pause, brokers.resume), (brokers.stop, brokers.start)] * chaos.times:
            await load.until(30)
            await deployment.in_sync()
            leader = await deployment.ordering_leader()
            deployment.note(f"{end.__name__} of the ordering leader, {leader}")
            await asyncio.to_thread(end, leader)
            await deployment.missed(leader)
            await load.until(50)
            await asyncio.to_thread(revive, leader)
            await deployment.in_sync()
            await deployment.well([load])
        for broker in random.Random(chaos.seed).sample((1, 2, 3), 3):
            await deployment.move_leader(broker)
            await load.until(20)
    await deployment.check()


@pytest.mark.nightly
async def test_all_brokers_killed(deployment: Deployment, chaos: ChaosFlags) -> None:
    """All brokers are killed at once and restarted in another order: no client is answered meanwhile, then all go on by themselves."""
    workers = await deployment.start("a", "b")
    async with deployment.load() as load:
        for turn in range(chaos.times):
            await load.until(50)
            order = random.Random(chaos.seed + turn).sample((1, 2, 3), 3)
            deployment.note(f"all brokers die, in the order {order}, and start in the opposite one")
            await deployment.each_broker(deployment.brokers.kill, order)
            assert {broker.condition for broker in deployment.brokers.state.brokers} == {"stopped"}
            for worker in workers:
                await until(partial(deployment.notary.says, worker, 503, "not ready: "))
            decided = load.decided
            await asyncio.sleep(SILENT_S)
            assert load.decided == decided
            deployment.note("nothing is decided")
            await deployment.each_broker(deployment.brokers.start, order[::-1])
            await deployment.well([load])
    assert [worker.process.poll() for worker in workers] == [None, None]
    await deployment.check()
