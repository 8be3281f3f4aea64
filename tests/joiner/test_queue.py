"""The queue's fairness: batches and capacity are shared by party. `test_sender` tests its bounds, with one party."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joiner import AdmittedSubmission, Batch, QueueLimits, SubmissionQueue
from joiner.queue import QUANTUM
from payload import Request
from tests.examples import some
from tests.joiner.history import new_rejected, submission

Queue = SubmissionQueue[None]
REQUEST: Request = submission("any").requests[0]
BATCH = 100


class Senders:
    """Makes submissions of any size and party, which differ by their number only."""

    def __init__(self) -> None:
        self.made = 0

    def make(self, party: str, requests: int) -> AdmittedSubmission:
        """Returns the next one; its bytes are few, so that requests decide."""
        self.made += 1
        first = msgspec.structs.replace(REQUEST, transaction_id=self.made.to_bytes(32))
        return AdmittedSubmission(party, b"", (first, *(REQUEST,) * (requests - 1)), self.made.to_bytes(8))


def number(encoded: bytes) -> int:
    """Returns the place of a submission in the order in which all were made."""
    return int.from_bytes(encoded)


def queue_of(weights: Mapping[str, int] | None = None, **limits: int) -> Queue:
    """Returns a queue with capacity for all submissions of a test, unless `limits` are given."""
    queue: Queue = SubmissionQueue(QueueLimits(**{"pending_requests_max": 10**6, "batch_requests_max": BATCH, **limits}))
    queue.weight_of = lambda party: (weights or {}).get(party, 1)
    return queue


def answered(queue: Queue, batch: Batch[None]) -> None:
    """Decide all of a batch."""
    queue.answer(batch, [None] * len(batch.requests))


PARTIES = "ABC"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(PARTIES), st.integers(1, 3 * BATCH // 2)),
        st.tuples(st.sampled_from(["take", "back", "answer"]), st.just(""), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 3))
def test_all_that_was_admitted_is_counted_and_released(steps: Sequence[tuple[str, str, int]], weight: int) -> None:
    """After any puts, takes, put-backs and answers the counts are exact, each party keeps its order, and nothing is left in the end."""

    async def run() -> None:
        queue, senders = queue_of({"A": weight}), Senders()
        here: dict[int, AdmittedSubmission] = {}
        waiting: dict[str, list[int]] = {party: [] for party in PARTIES}
        batches: deque[Batch[None]] = deque()
        for step, party, size in steps:
            if step == "put":
                one = senders.make(party, size)
                queue.put(one)
                here[senders.made] = one
                waiting[party].append(senders.made)
            elif step == "take" and queue:
                batch = queue.take_batch()
                assert len(batch.requests) <= BATCH or len(batch.submissions) == 1
                for pending in batch.submissions:
                    assert waiting[pending.party].pop(0) == number(pending.encoded), "first come, first served"
                batches.append(batch)
            elif step == "back" and batches:
                batch = batches.pop()  # the sender puts back the last first
                queue.put_back(batch)
                for pending in reversed(batch.submissions):
                    waiting[pending.party].insert(0, number(pending.encoded))
            elif step == "answer" and batches:
                batch = batches.popleft()
                answered(queue, batch)
                for pending in batch.submissions:
                    del here[number(pending.encoded)]
            assert len(queue) == sum(map(len, waiting.values()))
            assert queue.queued_bytes == 8 * len(queue)
            assert (queue.pending_requests, queue.pending_bytes) == (sum(len(one.requests) for one in here.values()), 8 * len(here))
            assert queue.parties == len({one.party for one in here.values()})
        for batch in batches:
            answered(queue, batch)
        while queue:
            answered(queue, queue.take_batch())
        assert (queue.pending_requests, queue.pending_bytes, queue.queued_bytes, queue.parties) == (0, 0, 0, 0)
        assert (queue._weights, len(queue._turns), len(queue._pending)) == (0, 0, 0)
        await asyncio.wait_for(queue.drain(), 1)

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(1, 1000), min_size=1, max_size=5)), min_size=2, max_size=6),
    st.integers(5_000, 8_000),
)
@settings(max_examples=some(50))
def test_each_gets_its_weighted_share_while_it_waits(parties: Sequence[tuple[int, Sequence[int]]], requests: int) -> None:
    """While all wait none has had less than its share, by more than a round's part and a submission: none starves."""

    async def run() -> None:
        names = {f"{at}": weight for at, (weight, _) in enumerate(parties)}
        queue, senders = queue_of(names, batch_requests_max=2000), Senders()
        for name, (_, sizes) in zip(names, parties, strict=True):
            put = 0
            while put < requests:
                size = sizes[senders.made % len(sizes)]
                queue.put(senders.make(name, size))
                put += size
        had: Counter[str] = Counter()
        while all(share.waiting for share in queue._shares.values()):
            for pending in queue.take_batch().submissions:
                had[pending.party] += len(pending.requests)
            if not all(share.waiting for share in queue._shares.values()):
                break
            by_weight = {name: had[name] / weight for name, weight in names.items()}
            most = max(by_weight.values())
            for name, weight in names.items():
                assert by_weight[name] >= most - 2 * QUANTUM - 1000 * (1 + 1 / weight)

    asyncio.run(run())


async def test_bytes_count_as_well() -> None:
    """A party whose requests are large gets as many KiB as another one gets requests."""
    queue, senders = queue_of(batch_requests_max=800, batch_bytes_max=1 << 30), Senders()
    for at in range(700):
        queue.put(msgspec.structs.replace(senders.make("large", 1), encoded=at.to_bytes(4 << 10)))
        queue.put(senders.make("small", 1))
    had: Counter[str] = Counter(pending.party for pending in queue.take_batch().submissions)
    assert had == {"large": 160, "small": 640}


async def test_a_weight_that_changes_counts_from_the_next_submission() -> None:
    """A party's weight is asked for with each submission, as the parties file changes."""
    weights = {"A": 1}
    queue, senders = queue_of(weights), Senders()
    for party in "AB" * 2000:
        queue.put(senders.make(party, 1))
    assert Counter(pending.party for pending in queue.take_batch().submissions) == {"A": 64, "B": 36}
    weights["A"] = 3
    queue.put(senders.make("A", 1))
    assert queue._weights == 4
    had = Counter(pending.party for _ in range(10) for pending in queue.take_batch().submissions)
    assert 2.5 <= had["A"] / had["B"] <= 3.5


@pytest.fixture
async def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes, so the queue measures no rate: its capacity stays as large as its limits."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)


@pytest.mark.usefixtures("still")
async def test_capacity_is_left_for_small_parties() -> None:
    """One party fills its capacity: others find capacity for an equal share at once, and the first is rejected until it has as little."""
    queue, senders = queue_of(pending_requests_max=1_000), Senders()
    while new_rejected(queue, 1, 8, "A", ticketed=True) is None:
        queue.put(senders.make("A", 1))
    assert queue.pending_requests == 900, "a batch's worth is for others"
    while new_rejected(queue, 1, 8, "B") is None:
        queue.put(senders.make("B", 1))
    assert queue.pending_requests == 990, "of this a tenth is for those with tickets"
    rejected = new_rejected(queue, 1, 8, "A", ticketed=True)
    assert rejected is not None
    assert str(rejected).startswith("900 requests of this party")
    for _ in range(20):
        answered(queue, queue.take_batch())
        while new_rejected(queue, 1, 8, "B") is None:
            queue.put(senders.make("B", 1))
        while new_rejected(queue, 1, 8, "A") is None:
            queue.put(senders.make("A", 1))
    shares = {party: share.pending_requests for party, share in queue._shares.items()}
    assert 0.8 <= shares["A"] / shares["B"] <= 1.25
    assert queue.pending_requests >= 0.75 * 900


@pytest.mark.usefixtures("still")
async def test_capacity_is_shared_by_weight() -> None:
    """Two parties take all they can get, one of weight 3: each has most of its part of the capacity."""
    queue, senders = queue_of({"A": 3}, pending_requests_max=10_000), Senders()
    for _ in range(200):
        for party in "ABAB":
            while new_rejected(queue, 50, 8, party) is None:
                queue.put(senders.make(party, 50))
        answered(queue, queue.take_batch())
    shares = {party: share.pending_requests for party, share in queue._shares.items()}
    assert shares["A"] >= 0.75 * 9_900 * 3 / 4
    assert shares["B"] >= 0.75 * 9_900 * 1 / 4
    assert queue.pending_requests >= 0.85 * 10_000


async def test_retry_after_depends_on_the_own_backlog() -> None:
    """Retry-After is the party's own backlog at its part of the rate, and never later than the end of all backlogs."""
    queue, senders = queue_of(pending_requests_max=10_000), Senders()
    queue.rate.per_s = 1_000.0
    for party, count in (("A", 7_000), ("B", 500)):
        for _ in range(count):
            queue.put(senders.make(party, 1))
    queue._limits = QueueLimits(pending_requests_max=500, batch_requests_max=100)
    rejections = {party: new_rejected(queue, 1_000, 8, party) for party in "AB"}
    assert {party: rejection.retry_after_s for party, rejection in rejections.items() if rejection is not None} == {"A": 8, "B": 1}


async def test_who_brings_a_ticket_gets_the_last_part() -> None:
    """A tenth of a party's capacity is closed to submissions without a ticket, also while they are rejected until a tenth is decided."""
    queue, senders = queue_of(pending_requests_max=1_000), Senders()
    while new_rejected(queue, 1, 8, "A") is None:
        queue.put(senders.make("A", 1))
    assert queue.pending_requests == 810
    for _ in range(2):
        while queue.pending_requests < 900:
            assert new_rejected(queue, 1, 8, "A", ticketed=True) is None
            queue.put(senders.make("A", 1))
        assert new_rejected(queue, 1, 8, "A", ticketed=True) is not None
        answered(queue, queue.take_batch())
        assert new_rejected(queue, 1, 8, "A") is not None


class Worker:
    """A worker in virtual time under an open loop: it decides so many requests a second, in batches, four of them in flight."""

    TICK_S = 0.01

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_s: int, warm_s: float, seconds: float) -> None:
        self.per_s, self.warm_s, self.seconds, self.now_s = per_s, warm_s, seconds, 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        self.queue = queue_of(pending_requests_max=4 * per_s, batch_requests_max=per_s // 5)
        self.senders = Senders()

    def run(self, offered: Mapping[str, tuple[float, int]]) -> Counter[str]:
        """Offer party -> (requests a second, requests a submission); the requests decided after the warm-up, by party.

        All but the flood send again what was rejected, when the rejection asks for it, with their tickets.
        """
        due = {party: size * at / len(offered) for at, (party, (_, size)) in enumerate(offered.items())}
        later: list[tuple[float, int, AdmittedSubmission]] = []
        in_flight: deque[Batch[None]] = deque()
        decided: Counter[str] = Counter()
        budget = 0.0
        while self.now_s < self.seconds:
            self.now_s += self.TICK_S
            for party, (per_s, size) in offered.items():
                due[party] += per_s * self.TICK_S
                while due[party] >= size:
                    due[party] -= size
                    self._offer(self.senders.make(party, size), later, ticketed=False)
            while later and later[0][0] <= self.now_s:
                self._offer(heappop(later)[2], later, ticketed=True)
            budget = min(budget + self.per_s * self.TICK_S, self.per_s / 5)
            while True:
                while self.queue and len(in_flight) < 4:
                    in_flight.append(self.queue.take_batch())
                if not in_flight or len(in_flight[0].requests) > budget:
                    break
                batch = in_flight.popleft()
                budget -= len(batch.requests)
                answered(self.queue, batch)
                for pending in batch.submissions:
                    decided[pending.party] += len(pending.requests) if self.now_s > self.warm_s else 0
        return decided

    def _offer(self, one: AdmittedSubmission, later: list[tuple[float, int, AdmittedSubmission]], *, ticketed: bool) -> None:
        requests = len(one.requests)
        rejected = new_rejected(self.queue, 1, 8, ticketed=ticketed) or new_rejected(self.queue, requests, 8, one.party, ticketed=ticketed)
        if rejected is None:
            self.queue.put(one)
        elif one.party != "flood":
            heappush(later, (self.now_s + rejected.retry_after_s, number(one.encoded), one))


@pytest.mark.parametrize("per_s", [500, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("others", [2, 5, 50])
async def test_a_party_at_ten_times_its_share_costs_the_others_less_than_a_tenth(
    others: int, large: bool, per_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others send all of their share, half of them one request at a time, half of them a tenth of a second's worth: more than nine
    tenths of it are decided, of either half."""
    share, sizes = per_s / (others + 1), (1, per_s // 10)
    offered = {f"{at}": (share, sizes[at % 2]) for at in range(others)}
    # One of fifty has decided a large submission every five seconds: it takes longer to see what it gets.
    worker = Worker(monkeypatch, per_s, *((5, 25) if others < 50 else (5, 35)))
    decided = worker.run(offered | {"flood": (10 * share, sizes[large])})
    seconds = worker.seconds - worker.warm_s
    for kind in (0, 1):
        alike = [decided[f"{at}"] for at in range(kind, others, 2)]
        assert sum(alike) > 0.9 * share * seconds * len(alike)
    assert sum(decided.values()) > 0.95 * worker.per_s * seconds, "all that can be decided is"
