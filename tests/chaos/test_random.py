"""Tests random faults of workers and brokers in any order: no answer is lost or contradicted, and the notary recovers each time."""

import asyncio
import random
import signal
from functools import partial

import pytest

from tests.asking.load import until
from tests.chaos.faults import ALONE, ON_BROKERS, ON_WORKERS
from tests.chaos.flags import ChaosFlags
from tests.chaos.injection import inject
from tests.chaos.scene import Scene

WORKERS, BROKERS = ("a", "b", "c"), ("1", "2", "3")
FROZEN_S, SILENT_S = 1.5, 0.5


@pytest.mark.nightly
async def test_faults_drawn_from_a_seed(scene: Scene, chaos: ChaosFlags) -> None:
    """Workers and brokers are killed, frozen, restarted and wiped, and leaders moved, several at a time, round after round."""
    await scene.start(*WORKERS)
    victims = dict.fromkeys(ON_WORKERS, WORKERS) | dict.fromkeys((*ON_BROKERS, *ALONE), BROKERS)
    async with scene.load() as load:
        await load.until(50)
        await inject(scene, [load], chaos.seconds, victims)
    await scene.check()


async def test_each_worker_fault(scene: Scene, chaos: ChaosFlags) -> None:
    """A worker is killed, frozen beyond its timeout, and restarted: the others answer meanwhile, and it returns each time.

    Each has an acceptor process, which ends when the worker is killed, and frees its port.
    """
    await scene.start(*WORKERS, worker_worker_timeout_ms=1_000, http_acceptor_processes=1)
    order = random.Random(chaos.seed).sample(WORKERS, 3)
    async with scene.load() as load:
        for turn in range(chaos.times):
            killed, frozen, restarted = (scene.workers[order[(turn + number) % 3]] for number in range(3))
            await load.until(30)
            scene.note(f"{killed.name} is killed")
            killed.kill()
            assert killed.process.returncode == -signal.SIGKILL
            await load.until(30)
            scene.begin(killed.name)
            await scene.well([load])
            scene.note(f"{frozen.name} freezes")
            await scene.freeze(frozen)
            await load.until(60)
            await asyncio.sleep(FROZEN_S)
            scene.thaw(frozen)
            await scene.well([load])
            scene.note(f"{restarted.name} is restarted")
            await restarted.stop()
            await load.until(30)
            scene.begin(restarted.name)
            await scene.well([load])
    await scene.check()


@pytest.mark.nightly
async def test_each_leader_fault(scene: Scene, chaos: ChaosFlags) -> None:
    """The ordering leader is killed, freezes, ends, hands over: another leads each time, answers go on, and it is in sync again."""
    await scene.start("a", "b")
    brokers = scene.brokers
    async with scene.load() as load:
        for end, revive in [(brokers.kill, brokers.start), (brokers.pause, brokers.resume), (brokers.stop, brokers.start)] * chaos.times:
            await load.until(30)
            await scene.in_sync()
            leader = await scene.ordering_leader()
            scene.note(f"{end.__name__} of the ordering leader, {leader}")
            await asyncio.to_thread(end, leader)
            await scene.missed(leader)
            await load.until(50)
            await asyncio.to_thread(revive, leader)
            await scene.in_sync()
            await scene.well([load])
        for broker in random.Random(chaos.seed).sample((1, 2, 3), 3):
            await scene.move_leader(broker)
            await load.until(20)
    await scene.check()


@pytest.mark.nightly
async def test_all_brokers_killed(scene: Scene, chaos: ChaosFlags) -> None:
    """All brokers are killed at once and restarted in another order: no client is answered meanwhile, then all go on by themselves."""
    workers = await scene.start("a", "b")
    async with scene.load() as load:
        for turn in range(chaos.times):
            await load.until(50)
            order = random.Random(chaos.seed + turn).sample((1, 2, 3), 3)
            scene.note(f"all brokers die, in the order {order}, and start in the opposite one")
            await scene.each_broker(scene.brokers.kill, order)
            assert {broker.condition for broker in scene.brokers.state.brokers} == {"stopped"}
            for worker in workers:
                await until(partial(scene.notary.says, worker, 503, "not ready: "))
            decided = load.decided
            await asyncio.sleep(SILENT_S)
            assert load.decided == decided
            scene.note("nothing is decided")
            await scene.each_broker(scene.brokers.start, order[::-1])
            await scene.well([load])
    assert [worker.process.poll() for worker in workers] == [None, None]
    await scene.check()
