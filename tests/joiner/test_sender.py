"""Tests the sender's bounded queue. `test_driver` tests its incarnations, `test_rate` the rate that bounds it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from joiner import FillWanted, Joiner, QueueLimits, Sender, SenderSettings
from joiner.queue import BUSY_REQUESTS
from joiner.rate import Pace, Shortest
from joiner.ready import FenceWanted, Ready
from joiner.sender import _Session
from ordering.errors import Overloaded
from ordering.log import ORDERING, Record
from ordering.memory import MemoryLog
from ordering.records import batch_key
from ordering.signatures import is_fill
from tests.joiner.faulty import PARTITIONS, FaultyLog, Keys, Start, ready_worker
from tests.joiner.history import KEY, PARTY, History, ask, new_rejected, signing_key, submission


def _joiner(*behind: Record) -> Joiner:
    """Returns a joiner that has read the genesis record and these."""
    joiner = Joiner()
    joiner.step([History().genesis, *behind], 0)
    return joiner


def _sender(joiner: Joiner | None = None, log: MemoryLog | None = None, **settings: int) -> Sender[object]:
    queue = QueueLimits(**settings)
    return Sender(log or MemoryLog(1), joiner or _joiner(), Keys(KEY), "w1", "0", SenderSettings(), queue, lambda: 0, lambda: bytes(16))


async def test_a_queue_full_of_requests_rejects() -> None:
    """A submission beyond the queue's maximum number of requests is rejected, surely not applied, with a time to retry after."""
    sender = _sender(pending_requests_max=3)
    ask(sender, "a", "b")
    with pytest.raises(Overloaded) as caught:
        ask(sender, "c", "d")
    assert 1 <= caught.value.retry_after_s <= 60
    assert sender.queue.pending_requests == 2
    ask(sender, "c")
    assert sender.queue.pending_requests == 3


async def test_a_queue_full_of_bytes_rejects() -> None:
    """The queue is bounded in bytes too."""
    size = len(submission("a").encoded)
    sender = _sender(pending_bytes_max=5 * size)
    for label in "abc":
        ask(sender, label)
    with pytest.raises(Overloaded):
        ask(sender, "d")
    assert sender.queue.pending_bytes == 3 * size, "the rest is kept for other parties, and for those with tickets"


async def test_the_same_again_waits_with_the_first() -> None:
    """A retry of a pending submission uses no space, makes no batch of its own, and gets the same answer."""
    sender = _sender(pending_requests_max=2)
    first, other = ask(sender, "a", "b"), ask(sender, "a", "b")
    assert (sender.queue.pending_requests, len(sender.queue)) == (2, 1)
    batch = sender.queue.take_batch()
    third = ask(sender, "a", "b")
    sender.queue.answer(batch, ["decision of a", "decision of b"])
    assert await first == await other == await third == ["decision of a", "decision of b"]
    assert sender.queue.pending_requests == 0
    assert not ask(sender, "a", "b").done()


async def test_one_larger_than_the_queue() -> None:
    """A submission larger than the complete queue is admitted when nothing else waits: otherwise it could never be."""
    sender = _sender(pending_requests_max=1)
    ask(sender, "a", "b")
    assert new_rejected(sender.queue, 1, 1) is not None
    assert new_rejected(sender.queue, 1, 1, "O=B") is not None


async def test_not_ready_before_it_has_registered() -> None:
    """Without a registered incarnation nothing is admitted."""
    assert "no incarnation yet" in (_sender().not_ready() or "")


async def test_not_ready_while_something_holds_it_back() -> None:
    """While appends are forbidden, submissions are rejected for the same reason."""
    sender = _sender()
    sender.may_not_append = lambda: "the log is being looked at"
    assert sender.not_ready() == "the log is being looked at"


async def test_not_ready_without_the_key_in_force() -> None:
    """A sender without the key in force names the key that it needs and the keys that it has."""
    second = signing_key("second")
    why = _sender(_joiner(History().rotate(second))).not_ready() or ""
    assert f"the key in force in this log is {second.public_key.hex()}, and this worker has {KEY.public_key.hex()}" in why


async def test_a_fill_is_signed_with_the_key_in_force() -> None:
    """A fill is signed for its partition, key and hash, needs no incarnation, and is appended even while nothing else may be."""
    log = MemoryLog(2)
    sender = _sender(log=log)
    sender.may_not_append = lambda: "suspended"
    sender._writer = await log.open_writer()
    sender._session = _Session(1, sender._writer, KEY)
    await sender.append_fill(FillWanted(1, 7, 8, bytes(32)))
    await sender.append_fence(FenceWanted(7, 8))
    await sender.append_checkpoint(0, bytes(32))
    (record,) = log.read(1, 0, 1 << 20, 10)
    assert record.key == batch_key(7, 8)
    assert is_fill(record.value or b"", History().log_id, 1, batch_key(7, 8), bytes(32), KEY.public_key)
    assert log.end(ORDERING) == 0


async def test_no_fill_without_the_key_in_force() -> None:
    """A sender without the key in force appends no fill, because no reader would accept it."""
    log = MemoryLog(2)
    sender = _sender(_joiner(History().rotate(signing_key("second"))), log)
    sender._writer = await log.open_writer()
    await sender.append_fill(FillWanted(1, 7, 8, bytes(32)))
    assert log.end(1) == 0


async def test_a_full_queue_opens_when_a_tenth_is_decided() -> None:
    """After a rejection the queue rejects small submissions too until a tenth is free, so that they do not keep large ones out for ever."""
    sender = _sender(pending_requests_max=20, batch_requests_max=1)
    queue = sender.queue
    for number in range(17):
        ask(sender, f"{number}")
    assert new_rejected(queue, 1, 1, PARTY) is None
    assert new_rejected(queue, 2, 1, PARTY) is not None
    assert new_rejected(queue, 1, 1, PARTY) is not None
    queue.answer(queue.take_batch(), [None])
    assert (queue.pending_requests, new_rejected(queue, 2, 1, PARTY) is None, new_rejected(queue, 3, 1, PARTY) is None) == (16, True, False)
    assert new_rejected(queue, 1, 1, PARTY) is not None, "there is no capacity for the one of three"


async def test_a_large_one_gets_in() -> None:
    """A full queue opens only when the largest rejected submission fits: small ones do not keep it out for ever."""
    sender = _sender(pending_requests_max=20, batch_requests_max=1)
    queue = sender.queue
    for number in range(18):
        ask(sender, f"{number}")
    assert new_rejected(queue, 8, 1, PARTY) is not None
    while new_rejected(queue, 1, 1, PARTY) is not None:
        queue.answer(queue.take_batch(), [None])
    assert queue.pending_requests == 10
    assert new_rejected(queue, 8, 1, PARTY) is None


async def test_no_more_than_is_decided_in_time() -> None:
    """With a known rate, only as many requests wait as are decided within the maximum wait; one batch may always be gathered."""
    sender = _sender(pending_requests_max=1_000, batch_requests_max=10, pending_ms_max=2_000)
    queue = sender.queue
    for number in range(36):
        ask(sender, f"{number}")
    queue.rate.per_s = 20.5
    rejection = new_rejected(queue, 2, 1, PARTY)
    assert rejection is not None
    assert rejection.retry_after_s == 2
    queue.rate.per_s = 1_000.0
    assert new_rejected(queue, 2, 1, PARTY) is None
    queue.rate.per_s = 0.1
    for _ in range(3):
        batch = queue.take_batch()
        queue.answer(batch, [None] * len(batch.requests))
    assert queue.pending_requests == 6
    ask(sender, *(f"{number}" for number in range(50, 53)))
    assert new_rejected(queue, 1, 1, PARTY) is not None, "a batch's worth, but for the part of those with tickets"
    assert new_rejected(queue, 1, 1, PARTY, ticketed=True) is None
    queue.answer(queue.take_batch(), [None] * 9)
    assert new_rejected(queue, 10, 1, PARTY) is None


async def test_no_batch_is_sent_while_the_log_has_one_that_is_not_applied() -> None:
    """A batch that is acknowledged and not decided shows that reading is behind: the next ones wait in the queue, which parties share.

    In the log they would wait first come first served, and one party's backlog there would delay all.
    """
    sender = _sender(batch_requests_max=4)
    sender._session = session = _Session(1, await sender._log.open_writer(), KEY)
    for label in "ab":
        assert not sender.reading_is_behind()
        ask(sender, label)
        async with asyncio.TaskGroup() as sends:
            sender._send_what_is_due(session, sends)
    assert sender.reading_is_behind()
    for label in "cdefghi":
        ask(sender, label)
    async with asyncio.TaskGroup() as sends:
        sender._send_what_is_due(session, sends)
        assert sender.batches_sent == 2
        sender.queue.answer(sender.unresolved.pop((1, 1)), [None])
        sender._send_what_is_due(session, sends)
        assert sender.batches_sent == 3
        assert not sender.reading_is_behind(), "the log has not acknowledged it yet"


async def test_a_worker_is_busy_with_the_work_of_some_milliseconds() -> None:
    """Admitted and unanswered requests keep the worker busy when they are 30 ms of its work, and what it does while it appends twice."""
    sender = _sender(batch_requests_max=10_000)
    queue = sender.queue
    queue.pace.answered(1, 0.0)
    queue.pace.answered(1_250, 0.25)
    assert queue.pace.per_s == 5_000
    seen = []
    for number in range(BUSY_REQUESTS + 244):
        if number in (BUSY_REQUESTS, 300):
            seen.append(queue.is_busy)
        ask(sender, f"{number}")
    queue.append_s = lambda: 0.02
    seen.append(queue.is_busy)
    queue.append_s = lambda: 0.02001
    seen.append(queue.is_busy)
    batch = queue.take_batch()
    queue.append_s = lambda: 0.0
    seen.append(queue.is_busy)
    queue.answer(batch, [None] * len(batch.requests))
    seen.append(queue.is_busy)
    assert seen == [False, True, True, False, True, False]


def test_the_pace_is_the_fastest_quarter_second_of_the_last_two_seconds() -> None:
    """A pause does not lower the pace at once, and idle times do in the end. The first answers began before it was measured."""
    pace = Pace()
    seen = []
    for now_s, requests in ((5.0, 900), (5.1, 50), (5.25, 50), (5.5, 20), (6.0, 10), *[(6.25 + at / 4, 5) for at in range(8)]):
        pace.answered(requests, now_s)
        seen.append(pace.per_s)
    assert seen == [0, 0, 400, 400, 400, *[400] * 5, 80, 20, 20]


def test_the_shortest_append_of_the_last_windows_counts() -> None:
    """An append that was fast long ago says nothing of the log as it is now."""
    shortest = Shortest(10.0)
    seen = [shortest.value()]
    for now_s, took_s in ((100.0, 0.3), (105.0, 0.2), (109.0, 0.4), (110.0, 0.5), (119.0, 0.6), (120.0, 0.7)):
        shortest.measured(took_s, now_s)
        seen.append(shortest.value())
    assert seen == [0, 0.3, 0.2, 0.2, 0.2, 0.2, 0.5]


async def test_each_submission_of_a_batch_gets_its_own_decisions() -> None:
    """Each submission of a batch gets its own decisions, in the order of its requests."""
    sender = _sender()
    answers = [ask(sender, *labels) for labels in (("a", "b"), ("c",), ("d", "e"))]
    batch = sender.queue.take_batch()
    sender.queue.answer(batch, ["A", "B", "C", "D", "E"])
    assert [list(await answer) for answer in answers] == [["A", "B"], ["C"], ["D", "E"]]


async def test_all_of_a_batch_is_put_back() -> None:
    """Every submission of a batch that will never count returns to the front of the queue, in order."""
    sender = _sender()
    for number in range(20):
        ask(sender, f"{number}")
    batch = sender.queue.take_batch()
    ask(sender, "later")
    sender.queue.put_back(batch)
    again = sender.queue.take_batch()
    assert again.requests == (*batch.requests, *submission("later").requests)


async def test_what_is_in_flight_goes_back_when_another_key_is_in_force() -> None:
    """A key record invalidates everything that the former key signed: it is queued again at once, and the incarnation ends."""
    sender, second = _sender(), signing_key("second")
    writer = await MemoryLog(1).open_writer()
    sender._session = session = _Session(1, writer, KEY)
    for sequence, label in enumerate("ab", 1):
        ask(sender, label)
        sender.unresolved[1, sequence] = sender.queue.take_batch()
    history = History()
    history.rotate(second)
    joiner = Joiner()
    ready = joiner.step(history.by_partition[ORDERING], 0)
    sender.resolve(Ready({}, 0, log_state=ready.log_state), [])
    assert sender.unresolved == {}
    assert sender.queue.take_batch().requests == (*submission("a").requests, *submission("b").requests)
    assert session.broken == "another key of the notary is in force"


async def test_waiting_for_a_leader_leaves_one_timer(log: FaultyLog, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no payload partition has a leader, wake-ups do not add up timers: each would wake the sender and leave another."""
    worker = await ready_worker(start)
    log.without_leader |= set(range(PARTITIONS))
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        handle = call_later(delay, callback, *arguments)
        if callback == worker.sender._wake.set:
            timers.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_later", noted)
    for number in range(20):
        ask(worker.sender, f"waits {number}")
        before = len(timers)
        await worker.until(lambda before=before: len(timers) > before)  # type: ignore[misc]
        assert sum(not handle.cancelled() and handle.when() > loop.time() for handle in timers) <= 1
    log.without_leader.clear()
    await worker.decided("b")


@asynccontextmanager
async def without_leaders(log: FaultyLog, start: Start) -> AsyncIterator[tuple[Sender[Any], Callable[[], None]]]:
    """Yields a sender with a submission and without a leader, and the function that sends; a leader returns at the end."""
    worker = await ready_worker(start)
    sender = worker.sender
    session = sender._session
    assert session is not None
    async with asyncio.TaskGroup() as sends:
        log.without_leader = set(range(PARTITIONS))
        sender._settings = SenderSettings(append_wait_ms_max=100)
        answer = ask(sender, "b")
        sender._send_what_is_due(session, sends)
        yield sender, lambda: sender._send_what_is_due(session, sends)
        log.without_leader = set()
    sender.wake()
    await answer


@pytest.mark.parametrize("why", ["empty queue", "suspended", "reading behind"])
async def test_the_time_without_a_leader_begins_again(log: FaultyLog, start: Start, why: str) -> None:
    """The partitions had a leader while nothing was to be sent. Their next loss is a new one, whatever time has passed since the first."""
    async with without_leaders(log, start) as (sender, send):
        await asyncio.sleep(0.2)
        assert "no payload partition has had a leader" in (sender.not_ready() or "")
        log.without_leader = set()
        with pytest.MonkeyPatch.context() as meanwhile:
            if why == "empty queue":
                meanwhile.setattr(type(sender.queue), "__len__", lambda queue: 0)
            elif why == "suspended":
                meanwhile.setattr(sender, "may_not_append", lambda: "the log is compared")
            else:
                meanwhile.setattr(sender, "reading_is_behind", lambda: True)
            send()
        log.without_leader = set(range(PARTITIONS))
        send()
        assert sender.not_ready() is None


async def test_without_a_leader_a_worker_stays_not_ready_while_its_reading_is_behind(log: FaultyLog, start: Start) -> None:
    """Appends in flight are acknowledged after the loss. Without leaders their payloads cannot be read, so reading stays behind."""
    async with without_leaders(log, start) as (sender, send):
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(sender, "reading_is_behind", lambda: True)
            send()
            await asyncio.sleep(0.2)
            send()
            assert "no payload partition has had a leader" in (sender.not_ready() or "")
