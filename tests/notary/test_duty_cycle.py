"""Work for unauthenticated clients is done in active slices; while other work is under way, pauses twice as long lie between them."""

import asyncio
import time
from collections.abc import Callable

import pytest

from notary.duty_cycle import PAUSE_S_MAX, DutyCycle
from tests.clients.load import until
from tests.notary.test_gate import Clock


class Watched:
    """A duty cycle on a clock that is set."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.busy = True
        self.duty = DutyCycle(self.clock, lambda: self.busy)

    async def slice_of(self, seconds: float) -> None:
        """Begin an active slice, and return after it."""
        assert self.duty.is_active()
        self.clock.now_s += seconds
        assert self.duty.is_active(), "until the end of the turn, however long it takes"
        await asyncio.sleep(0)


@pytest.fixture
def watched() -> Watched:
    """A duty cycle whose other work is under way."""
    return Watched()


async def test_a_rest_is_twice_as_long_as_the_turn_before(watched: Watched) -> None:
    """So others have two thirds of the time at least."""
    await watched.slice_of(0.004)
    assert not watched.duty.is_active()
    watched.clock.now_s += 0.0079
    assert not watched.duty.is_active()
    watched.clock.now_s += 0.0002
    assert watched.duty.is_active()


async def test_work_that_a_slice_causes_later_makes_the_rest_longer(watched: Watched) -> None:
    """A TLS handshake takes its time in later turns."""
    assert watched.duty.is_active()
    watched.duty.charge(0.002)
    await watched.slice_of(0.002)
    watched.clock.now_s += 0.0079
    assert not watched.duty.is_active()
    watched.clock.now_s += 0.0002
    assert watched.duty.is_active()


async def test_there_is_no_rest_without_other_work(watched: Watched) -> None:
    """An idle worker serves everybody at once."""
    watched.busy = False
    for _ in range(3):
        await watched.slice_of(0.004)


async def test_a_rest_is_bounded(watched: Watched) -> None:
    """A process that was stopped for a minute does not pause for a minute."""
    await watched.slice_of(60.0)
    watched.clock.now_s += PAUSE_S_MAX
    assert watched.duty.is_active()


async def test_work_waits_for_one_active_slice(watched: Watched) -> None:
    """All that waits is called in the same turn, each once, and in order. One that fails keeps none from it."""
    called: list[tuple[str, bool]] = []

    def fails() -> None:
        raise ValueError("a bug")

    def work(name: str) -> Callable[[], None]:
        def do() -> None:
            called.append((name, watched.duty.is_active()))
            watched.clock.now_s += 0.001

        return do

    first, problems = work("first"), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(repr(context["exception"])))
    await watched.slice_of(0.004)
    for each in (fails, first, work("second"), first):
        watched.duty.call(each)
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert called == [], "time passes on the clock of the cycle alone"
    watched.clock.now_s += 0.008
    await until(lambda: len(called) >= 2, 0.001)
    await asyncio.sleep(0.01)
    assert called == [("first", True), ("second", True)]
    assert problems == ["ValueError('a bug')"]


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_client_that_keeps_the_worker_busy_starves_nobody(is_busy: bool) -> None:
    """Work that is not finished asks for the next active slice, and so on. A party may always have a submission that waits."""
    duty = DutyCycle(time.perf_counter, lambda: is_busy)
    served = asyncio.Event()
    turns = 0

    def work() -> None:
        nonlocal turns
        turns += 1
        time.sleep(0.002)
        if turns == 5:
            served.set()
        else:
            duty.call(work)

    duty.call(work)
    await asyncio.wait_for(served.wait(), 10)
