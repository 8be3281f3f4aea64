"""Tests random faults of workers and brokers in any order: no answer is lost or contradicted, and the notary recovers each time."""

import asyncio
import random
import signal

import pytest

from tests.chaos.deployment import Deployment
from tests.chaos.faults import ALONE, ON_BROKERS, ON_WORKERS
from tests.chaos.flags import ChaosFlags
from tests.chaos.injection import inject

WORKERS, BROKERS = ("a", "b", "c"), ("1", "2", "3")
FROZEN_S = 1.5


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
