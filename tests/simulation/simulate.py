"""One seed, from its plan to the list of its problems."""

import asyncio
import contextvars
import gc
import hashlib
import logging
import random
from collections.abc import Callable
from typing import Any

import msgspec

from tests.simulation.checks import violations
from tests.simulation.loop import HOST, NothingToWaitFor, SimulatedLoop, TimeStandsStill
from tests.simulation.plan import plan
from tests.simulation.process import Died
from tests.simulation.salvaging import salvage_plan
from tests.simulation.simulation import Simulation

Tracing = Callable[[float, str, str], None]


class Outcome(msgspec.Struct, frozen=True):
    """The result of one seed."""

    seed: int
    problems: list[str]
    digest: str
    """A hash of the log, of every call with its answer, and of all disks: the same for the same seed on every machine."""
    virtual_s: float
    counts: dict[str, int]


def simulate(seed: int, tracing: Tracing | None = None, *, salvage: bool = False) -> Outcome:
    """Run one seed, with a salvage (`salvaging`) or without. `tracing` gets (seconds, host, event) for everything that happens."""
    threads = random.Random(f"threads {seed}")
    loop = SimulatedLoop(lambda: threads.choice([0.0, 0.001, 0.02]))
    stop_listening = _listen(loop, tracing)
    asyncio.set_event_loop(loop)
    drawn = salvage_plan(plan(seed)) if salvage else plan(seed)
    simulation = Simulation(drawn, loop, tracing)
    loop.set_exception_handler(lambda _, context: _nobody_looked(simulation, context))
    collecting = gc.isenabled()
    gc.disable()  # Collected between the seeds: reference cycles are the only garbage.
    try:
        try:
            loop.run_until_complete(simulation.run())
        except NothingToWaitFor:
            simulation.problem("simulation", "everything waits, for ever")
        except TimeStandsStill:
            simulation.problem("simulation", "something runs again and again, and time does not advance")
        except (Exception, BaseExceptionGroup) as problem:
            simulation.problem("simulation", f"a client or a fault failed: {problem!r}")
        try:
            problems_found = violations(simulation)
        except Exception as problem:
            problems_found = [*simulation.problems, f"what is left could not be checked: {problem!r}"]
        simulation.counts["decisions"] = max(len(machine.disk.families["positions"]) for machine in simulation.machines)
        simulation.counts["calls"] = len(simulation.history.calls)
        simulation.over = True
        loop.run_until_complete(simulation.stop())
        return Outcome(seed, problems_found, _digest(simulation), round(loop.time(), 3), dict(sorted(simulation.counts.items())))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(5))
        simulation.owner.close()
        asyncio.set_event_loop(None)
        loop.close()
        stop_listening()
        if collecting:
            gc.enable()


def _nobody_looked(simulation: Simulation, context: dict[str, Any]) -> None:
    """Record an unhandled error of a callback or of an abandoned task as a problem; only `Died` is expected there."""
    problem = context.get("exception")
    unexpected = problem.split(Died)[1] if isinstance(problem, BaseExceptionGroup) else problem
    if not simulation.over and unexpected is not None and not isinstance(unexpected, Died):
        simulation.problem("loop", f"{context['message']}: {unexpected!r}")


def _digest(simulation: Simulation) -> str:
    """Returns a hash over the log, all answers and all disks."""
    hashed = hashlib.sha256()
    for partition in sorted(simulation.cluster.by_partition):
        for record in simulation.cluster.by_partition[partition]:
            hashed.update(repr(record).encode())
    for call in simulation.history.calls:
        hashed.update(
            repr((call.url, call.sent_s, call.answered_s, call.status, call.decisions)).encode() + call.submission.body + (call.body or b"")
        )
    hashed.update(repr(simulation.clients.looked_up).encode())
    for machine in (*simulation.machines, *simulation.gone):
        hashed.update(repr((machine.label, machine.disk.flushed, machine.disk.journal)).encode())
    return hashed.hexdigest()[:16]


def _listen(loop: SimulatedLoop, tracing: Tracing | None) -> Callable[[], None]:
    """Send log lines to the trace, or drop them; returns the function that restores logging."""
    if tracing is None:
        logging.disable(logging.CRITICAL)
        return lambda: logging.disable(logging.NOTSET)
    trace = tracing

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            host = contextvars.copy_context().get(HOST, "")
            trace(loop.time(), host, f"{record.levelname.lower()}: {record.getMessage()}")

    handler = Handler()
    root, of_asyncio = logging.getLogger(), logging.getLogger("asyncio")
    before, level, level_of_asyncio = root.handlers[:], root.level, of_asyncio.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    of_asyncio.setLevel(logging.CRITICAL)

    def undo() -> None:
        root.handlers[:] = before
        root.setLevel(level)
        of_asyncio.setLevel(level_of_asyncio)

    return undo
