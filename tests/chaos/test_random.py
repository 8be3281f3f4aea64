"""Whatever happens to workers and brokers, in whatever order: no answer is lost or contradicted, and it goes on when it is over."""

import random

from tests.chaos.faults import ALONE, ON_BROKERS, ON_WORKERS
from tests.chaos.flags import Violence
from tests.chaos.scene import Scene

WORKERS, BROKERS = ("a", "b", "c"), ("1", "2", "3")


async def test_faults_drawn_from_a_seed(scene: Scene, violence: Violence) -> None:
    """Workers and brokers are killed, frozen, restarted and wiped, and leaders moved, several at a time, round after round."""
    await scene.start(*WORKERS)
    victims = dict.fromkeys(ON_WORKERS, WORKERS) | dict.fromkeys((*ON_BROKERS, *ALONE), BROKERS)
    async with scene.load() as load:
        await load.until(50)
        await scene.torment([load], violence.seconds, victims)
    await scene.check()


async def test_all_brokers_killed(scene: Scene, violence: Violence) -> None:
    """All brokers are killed at once, and started in another order than they died: the workers go on by themselves."""
    workers = await scene.start("a", "b")
    async with scene.load() as load:
        for turn in range(violence.times):
            await load.until(50)
            order = random.Random(violence.seed + turn).sample((1, 2, 3), 3)
            scene.note(f"all brokers die, in the order {order}, and start in the opposite one")
            await scene.each_broker(scene.brokers.kill, order)
            await scene.each_broker(scene.brokers.start, order[::-1])
            await scene.well([load])
    assert [worker.process.poll() for worker in workers] == [None, None]
    await scene.check()
