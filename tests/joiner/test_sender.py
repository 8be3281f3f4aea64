"""The sender's bounded queue, and the rate that its Retry-After is worked out from. Its lives are in `test_driver`."""

import pytest

from joiner import QueueLimits, Sender, SenderSettings
from joiner.queue import Rate
from ordering.errors import Overloaded
from ordering.memory import MemoryLog
from tests.joiner.history import submission


def _sender(**settings: int) -> Sender[object]:
    return Sender(MemoryLog(1), SenderSettings("w1", "0", queue=QueueLimits(**settings)), lambda: 0, lambda: bytes(16))  # type: ignore[arg-type]


async def test_overloaded_by_requests() -> None:
    """When the queue holds its number of requests the next submission is refused, surely not applied, with a time to come again."""
    sender = _sender(pending_requests_max=3)
    sender.submit(submission("a", "b"))
    with pytest.raises(Overloaded) as caught:
        sender.submit(submission("c", "d"))
    assert 1 <= caught.value.retry_after_s <= 60
    assert sender.queue.pending_requests == 2
    sender.submit(submission("c"))
    assert sender.queue.pending_requests == 3


async def test_overloaded_by_bytes() -> None:
    """The queue is bounded in bytes too."""
    size = len(submission("a").encoded)
    sender = _sender(pending_bytes_max=2 * size)
    sender.submit(submission("a"))
    sender.submit(submission("b"))
    with pytest.raises(Overloaded):
        sender.submit(submission("c"))
    assert sender.queue.pending_bytes == 2 * size


async def test_the_same_again_waits_with_the_first() -> None:
    """A retry of what is still pending takes no room, makes no batch of its own, and is answered with it."""
    sender = _sender(pending_requests_max=2)
    first = sender.submit(submission("a", "b"))
    assert sender.submit(submission("a", "b")) is first
    assert (sender.queue.pending_requests, len(sender.queue)) == (2, 1)
    batch = sender.queue.take_batch()
    assert sender.submit(submission("a", "b")) is first
    sender.queue.answer(batch, ["decision of a", "decision of b"])
    assert await first == ["decision of a", "decision of b"]
    assert sender.queue.pending_requests == 0
    assert sender.submit(submission("a", "b")) is not first


async def test_one_larger_than_the_queue() -> None:
    """A submission larger than the whole queue is taken when nothing else waits: else it never could be."""
    sender = _sender(pending_requests_max=1)
    sender.submit(submission("a", "b"))
    with pytest.raises(Overloaded):
        sender.queue.check_room(1, 1)


async def test_not_ready_before_a_life() -> None:
    """Without a registered life nothing is promised."""
    assert "no registered life" in (_sender().not_ready(1) or "")


def test_rate() -> None:
    """Retry-After is the waiting requests over the rate of the last second, whole seconds, 1 to 60; 2 when nothing is known."""
    rate = Rate()
    assert rate.seconds_for(10**6) == 2
    for tenth in range(21):
        rate.add(10, 1000 + tenth / 10)
    assert rate.seconds_for(50) == 1
    assert 4 <= rate.seconds_for(500) <= 6
    assert rate.seconds_for(10**6) == 60


def test_rate_is_not_diluted_by_idle_time() -> None:
    """After a quiet hour, or a machine's uptime before the first request, the rate is that of the requests since then."""
    rate = Rate()
    for start in (100_000, 200_000):
        for tenth in range(12):
            rate.add(100, start + tenth / 10)
            assert rate.seconds_for(1000) <= 2
