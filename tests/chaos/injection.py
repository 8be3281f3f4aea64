"""Random faults, started and ended on a notary under load. Each fault's effect is asserted, unless another fault may hide it."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from aiokafka.errors import KafkaError

from ordering.topics import topic_names
from tests.asking.load import Load
from tests.chaos import brokers_say, faults
from tests.chaos.faults import Fault
from tests.chaos.scene import Scene

BROKER_ENDS_S = 5.0


async def inject(scene: Scene, load: Sequence[Load], seconds: float, victims: Mapping[str, Sequence[str]]) -> None:
    """Run rounds of faults for `seconds`; after each one all workers must become ready again, and all clients must make progress."""
    end_s = time.monotonic() + seconds
    for of_round in faults.rounds(scene.seed, victims):
        if time.monotonic() > end_s:
            return
        async with asyncio.TaskGroup() as tasks:
            for fault in of_round:
                tasks.create_task(bring(scene, fault))
        await scene.well(load)


async def bring(scene: Scene, fault: Fault) -> None:
    """Start a fault, and end it."""
    brokers = scene.brokers
    do: dict[str, Callable[[Scene, Fault], Awaitable[None]]] = {
        faults.KILL_WORKER: _kill_worker,
        faults.FREEZE_WORKER: _freeze_worker,
        faults.RESTART_WORKER: _restart_worker,
        faults.KILL_BROKER: partial(_end_brokers, how=brokers.kill),
        faults.RESTART_BROKER: partial(_end_brokers, how=partial(brokers.stop, grace_seconds=BROKER_ENDS_S)),
        faults.FREEZE_BROKER: _freeze_broker,
        faults.KILL_ALL_BROKERS: partial(_end_brokers, how=brokers.kill, all_of_them=True),
        faults.WIPE_BROKER: _wipe_broker,
        faults.MOVE_LEADER: _move_leader,
        faults.CUT_OFF: _cut_off,
        faults.CUT_OUTGOING: partial(_cut_off, incoming=False),
        faults.CUT_INCOMING: partial(_cut_off, outgoing=False),
        faults.CUT_LINE: _cut_line,
        faults.FAR_AWAY: _slow,
        faults.LOSSY: _slow,
    }
    await asyncio.sleep(fault.after_s)
    scene.random_faults += 1
    scene.note(str(fault))
    await do[fault.kind](scene, fault)
    scene.note(f"over: {fault}")


async def _kill_worker(scene: Scene, fault: Fault) -> None:
    worker = scene.workers[fault.victim]
    worker.kill()
    assert worker.process.returncode == -signal.SIGKILL, worker.messages
    await asyncio.sleep(fault.hold_s)
    scene.begin(fault.victim)


async def _freeze_worker(scene: Scene, fault: Fault) -> None:
    worker = scene.workers[fault.victim]
    await scene.freeze(worker)
    await asyncio.sleep(fault.hold_s)
    scene.thaw(worker)


async def _restart_worker(scene: Scene, fault: Fault) -> None:
    await scene.workers[fault.victim].stop()
    await asyncio.sleep(fault.hold_s)
    scene.begin(fault.victim)


async def _end_brokers(scene: Scene, fault: Fault, how: Callable[[int], None], all_of_them: bool = False) -> None:
    first = int(fault.victim)
    ends = [first, *(broker.id for broker in scene.brokers.state.brokers if all_of_them and broker.id != first)]
    await scene.each_broker(how, ends)
    assert [scene.brokers.state.broker(broker).condition for broker in ends] == ["stopped"] * len(ends)
    await asyncio.sleep(fault.hold_s)
    await scene.each_broker(scene.brokers.start, ends)


async def _freeze_broker(scene: Scene, fault: Fault) -> None:
    broker = int(fault.victim)
    await asyncio.to_thread(scene.brokers.pause, broker)
    await asyncio.sleep(fault.hold_s)
    assert scene.brokers.state.broker(broker).condition == "paused"
    await asyncio.to_thread(scene.brokers.resume, broker)


async def _wipe_broker(scene: Scene, fault: Fault) -> None:
    broker = int(fault.victim)
    await scene.in_sync()
    await asyncio.to_thread(scene.wipe, broker)
    await asyncio.sleep(fault.hold_s)
    await asyncio.to_thread(scene.brokers.start, broker)
    # Until this disk is complete again the loss of another one could lose acknowledged records.
    await scene.in_sync()


async def _move_leader(scene: Scene, fault: Fault) -> None:
    topic, _ = topic_names(scene.notary.prefix)
    try:
        scene.note(await brokers_say.move_leader(scene.a_broker(), topic, int(fault.victim), scene.brokers))
        await asyncio.sleep(fault.hold_s)
        scene.note(f"broker {await scene.ordering_leader()} leads the ordering topic")
    except (OSError, KafkaError, TimeoutError) as problem:
        scene.note(f"it could not be moved, or seen, beside the other faults: {problem!r}")


async def _cut_off(scene: Scene, fault: Fault, outgoing: bool = True, incoming: bool = True) -> None:
    assert scene.centres is not None
    lines = scene.centres.cut_off(int(fault.victim), outgoing=outgoing, incoming=incoming)
    await asyncio.sleep(fault.hold_s)
    scene.centres.heal(lines)


async def _cut_line(scene: Scene, fault: Fault) -> None:
    assert scene.centres is not None
    one, way, other = list(fault.victim)
    both = [(">", (int(one), int(other))), ("<", (int(other), int(one)))]
    lines = [line for arrow, line in both if way in ("-", arrow)]
    for line in lines:
        scene.centres.cut(*line)
    await asyncio.sleep(fault.hold_s)
    scene.centres.heal(lines)


async def _slow(scene: Scene, fault: Fault) -> None:
    assert scene.centres is not None
    if fault.kind == faults.FAR_AWAY:
        scene.centres.slow(10 * scene.delay_ms, jitter_ms=scene.delay_ms)
    else:
        scene.centres.slow(scene.delay_ms, loss=0.05)
    await asyncio.sleep(fault.hold_s)
    scene.centres.slow(scene.delay_ms)
