"""Random faults, started and ended on a notary under load. Each fault's effect is asserted, unless another fault may hide it."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from aiokafka.errors import KafkaError

from ordering.topics import topic_names
from tests.chaos import faults, raw_requests
from tests.chaos.deployment import Deployment
from tests.chaos.faults import Fault
from tests.clients.load import Load

BROKER_ENDS_S = 5.0


async def inject(deployment: Deployment, load: Sequence[Load], seconds: float, victims: Mapping[str, Sequence[str]]) -> None:
    """Run rounds of faults for `seconds`; after each one all workers must become ready again, and all clients must make progress."""
    end_s = time.monotonic() + seconds
    for of_round in faults.rounds(deployment.seed, victims):
        if time.monotonic() > end_s:
            return
        async with asyncio.TaskGroup() as tasks:
            for fault in of_round:
                tasks.create_task(bring(deployment, fault))
        await deployment.well(load)


async def bring(deployment: Deployment, fault: Fault) -> None:
    """Start a fault, and end it."""
    brokers = deployment.brokers
    do: dict[str, Callable[[Deployment, Fault], Awaitable[None]]] = {
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
    deployment.random_faults += 1
    deployment.note(str(fault))
    await do[fault.kind](deployment, fault)
    deployment.note(f"over: {fault}")


async def _kill_worker(deployment: Deployment, fault: Fault) -> None:
    worker = deployment.workers[fault.victim]
    worker.kill()
    assert worker.process.returncode == -signal.SIGKILL, worker.messages
    await asyncio.sleep(fault.hold_s)
    deployment.begin(fault.victim)


async def _freeze_worker(deployment: Deployment, fault: Fault) -> None:
    worker = deployment.workers[fault.victim]
    await deployment.freeze(worker)
    await asyncio.sleep(fault.hold_s)
    deployment.thaw(worker)


async def _restart_worker(deployment: Deployment, fault: Fault) -> None:
    await deployment.workers[fault.victim].stop()
    await asyncio.sleep(fault.hold_s)
    deployment.begin(fault.victim)


async def _end_brokers(deployment: Deployment, fault: Fault, how: Callable[[int], None], all_of_them: bool = False) -> None:
    first = int(fault.victim)
    ends = [first, *(broker.id for broker in deployment.brokers.state.brokers if all_of_them and broker.id != first)]
    await deployment.each_broker(how, ends)
    assert [deployment.brokers.state.broker(broker).condition for broker in ends] == ["stopped"] * len(ends)
    await asyncio.sleep(fault.hold_s)
    await deployment.each_broker(deployment.brokers.start, ends)


async def _freeze_broker(deployment: Deployment, fault: Fault) -> None:
    broker = int(fault.victim)
    await asyncio.to_thread(deployment.brokers.pause, broker)
    await asyncio.sleep(fault.hold_s)
    assert deployment.brokers.state.broker(broker).condition == "paused"
    await asyncio.to_thread(deployment.brokers.resume, broker)


async def _wipe_broker(deployment: Deployment, fault: Fault) -> None:
    broker = int(fault.victim)
    await deployment.in_sync()
    await asyncio.to_thread(deployment.wipe, broker)
    await asyncio.sleep(fault.hold_s)
    await asyncio.to_thread(deployment.brokers.start, broker)
    # Until this disk is complete again the loss of another one could lose acknowledged records.
    await deployment.in_sync()


async def _move_leader(deployment: Deployment, fault: Fault) -> None:
    topic, _ = topic_names(deployment.notary.prefix)
    try:
        deployment.note(await raw_requests.move_leader(deployment.a_broker(), topic, int(fault.victim), deployment.brokers))
        await asyncio.sleep(fault.hold_s)
        deployment.note(f"broker {await deployment.ordering_leader()} leads the ordering topic")
    except (OSError, KafkaError, TimeoutError) as problem:
        deployment.note(f"it could not be moved, or seen, beside the other faults: {problem!r}")


async def _cut_off(deployment: Deployment, fault: Fault, outgoing: bool = True, incoming: bool = True) -> None:
    assert deployment.centres is not None
    lines = deployment.centres.cut_off(int(fault.victim), outgoing=outgoing, incoming=incoming)
    await asyncio.sleep(fault.hold_s)
    deployment.centres.heal(lines)


async def _cut_line(deployment: Deployment, fault: Fault) -> None:
    assert deployment.centres is not None
    one, way, other = list(fault.victim)
    both = [(">", (int(one), int(other))), ("<", (int(other), int(one)))]
    lines = [line for arrow, line in both if way in ("-", arrow)]
    for line in lines:
        deployment.centres.cut(*line)
    await asyncio.sleep(fault.hold_s)
    deployment.centres.heal(lines)


async def _slow(deployment: Deployment, fault: Fault) -> None:
    assert deployment.centres is not None
    if fault.kind == faults.FAR_AWAY:
        deployment.centres.slow(10 * deployment.delay_ms, jitter_ms=deployment.delay_ms)
    else:
        deployment.centres.slow(deployment.delay_ms, loss=0.05)
    await asyncio.sleep(fault.hold_s)
    deployment.centres.slow(deployment.delay_ms)
