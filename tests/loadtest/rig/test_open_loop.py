"""Tests the open loop and its counts of rejections, against a minimal service with known behaviour."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, islice
from types import SimpleNamespace

import msgspec
import pytest

from loadtest.rig.closed_loop import ClosedLoad
from loadtest.rig.connections import Channel, Probe
from loadtest.rig.generate import submissions
from loadtest.rig.open_loop import Offer, Offered, OpenLoop, drive
from loadtest.rig.schedule import Arrival
from tests.loadtest.service import answer_of, decisions_of, serving

pytestmark = pytest.mark.seconds


CONNECTIONS = 8
PAUSE_S_MAX = 0.2
REJECTION = answer_of(503, retry_after_s=1)


def _committed(body: bytes) -> bytes:
    return answer_of(200, decisions_of(body))


async def _offered(
    answer: Callable[[bytes], bytes | None],
    probes: int = 0,
    connections_max: int = CONNECTIONS,
    *,
    connections_open: bool = True,
    seconds: float = 1.0,
    closed_at_once: int = 0,
    drain_s_max: float = 60.0,
    decided_per_s_max: float = 60.0,
    beside: Sequence[ClosedLoad] = (),
) -> Offered:
    """Offer thirty submissions of two requests a second; an answer of None closes the connection, as the first ones are.

    If the machine pauses for long, all that is due afterwards is due at once. Then another load is offered.
    """

    def replies(head: bytes, body: bytes) -> bytes | None:
        return answer_of(200, b"{}") if head.startswith(b"GET") else answer(body)

    for seed in count(1):
        async with serving(replies, closed_at_once=closed_at_once) as url:
            offer = Offer(
                *([url], seed, 2, 1, 60.0, seconds, decided_per_s_max, connections_max, {}, probes, True, connections_open),
                beside=[msgspec.structs.replace(load, urls=[url]) for load in beside],
                drain_s_max=drain_s_max,
            )
            watched = asyncio.create_task(_longest_pause())
            try:
                offered = await drive(offer)
            finally:
                watched.cancel()
                pause_s = await watched
        if pause_s < PAUSE_S_MAX:
            return offered
    raise AssertionError


async def _longest_pause() -> float:
    """Returns, when it is cancelled, the longest time in seconds for which the event loop did not run it."""
    longest_s = 0.0
    before_s = time.monotonic()
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0.01)
            now_s = time.monotonic()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
    return longest_s


@pytest.mark.parametrize("connections_open", [True, False])
async def test_all_that_is_due_is_sent_and_decided(connections_open: bool) -> None:
    """A service that answers at once gets everything, and nothing is rejected, dropped or unsent, on old connections and on new ones."""
    result = await _offered(_committed, connections_open=connections_open)
    assert result.due == result.sent > 0
    # The measured period starts and ends between a submission and its answer.
    assert abs(result.decided - result.sent) <= CONNECTIONS
    assert (result.rejected, result.dropped, result.unsent, result.errors) == (0, 0, 0, 0)


async def test_connections_that_are_closed_before_the_start_are_replaced() -> None:
    """A service may close a silent connection while others are still being opened; the load starts with all of them."""
    result = await _offered(_committed, closed_at_once=2 * CONNECTIONS)
    assert result.decided > 0
    assert (result.dropped, result.unsent, result.errors) == (0, 0, 0)


async def test_a_service_that_closes_all_connections_fails_the_load() -> None:
    """The load ends with the address that was tried; it does not wait for ever."""
    with pytest.raises(OSError, match=r"the service at http://127\.0\.0\.1:\d+ closed 5 connections, or did not answer"):
        await _offered(_committed, closed_at_once=10_000)


async def test_rejections_are_counted_and_are_no_errors() -> None:
    """If every other submission is rejected, half of them are counted as rejected, with their Retry-After, and none as an error."""
    turns = iter(range(10_000))
    result = await _offered(lambda body: REJECTION if next(turns) % 2 else _committed(body))
    assert abs(result.rejected - result.decided) <= 1
    assert result.retry_after_s.p50 == result.retry_after_s.p99 == 1
    assert result.errors == 0


async def test_probes_find_out_when_there_was_capacity() -> None:
    """If each submission is rejected three times, a probe that retries early gets in at last, and one that obeys Retry-After does not."""
    seen: dict[bytes, int] = {}

    def answer(body: bytes) -> bytes:
        seen[body] = seen.get(body, 0) + 1
        return REJECTION if seen[body] <= 3 else _committed(body)

    result = await _offered(answer, probes=4, seconds=2.5)
    assert result.probes.waited_s.count > 0
    assert result.probes.waited_to_retry_after.p50 > 0
    assert result.probes.obedient_returns > 0
    assert (result.probes.obedient_admitted, result.errors) == (0, 0)


async def test_decisions_for_probes_are_counted() -> None:
    """Probes whose submissions are admitted send the next at once; what the service decides for them is not lost."""
    served = 0

    def answer(body: bytes) -> bytes:
        nonlocal served
        served += 1
        time.sleep(0.005)  # so that the submissions do not run out
        return _committed(body)

    result = await _offered(answer, probes=4, decided_per_s_max=2_000.0)
    assert result.probes.decided > result.decided > 0
    assert 0.5 * served < result.decided + result.probes.decided < served
    assert result.errors == 0


async def test_a_wrong_answer_to_a_probe_is_an_error() -> None:
    """Every answer that the service gave is wrong, those to probes too, and each of them is an error."""
    served = 0

    def answer(body: bytes) -> bytes:
        nonlocal served
        served += 1
        return answer_of(200, b"{}")

    result = await _offered(answer, probes=4)
    assert served - 4 <= result.errors <= served, "at the end a probe may wait for its answer"


async def test_a_probe_without_a_connection_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy service takes no connection for a moment. A probe that ended there would be missing from the figures, without an error."""
    connect, opened = Channel.open, count()

    async def refused_at_first(channel: Channel) -> None:
        if CONNECTIONS <= next(opened) < CONNECTIONS + 4:
            raise ConnectionRefusedError("connection refused")
        await connect(channel)

    def answer(body: bytes) -> bytes:
        time.sleep(0.005)  # so that the submissions do not run out
        return _committed(body)

    monkeypatch.setattr(Channel, "open", refused_at_first)
    assert (await _offered(answer, probes=4, decided_per_s_max=2_000.0)).probes.decided > 0


async def test_the_wait_of_a_probe_begins_with_its_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After counts from the rejection. The time until that is another figure."""
    answers = iter([REJECTION, answer_of(200)])
    channel = SimpleNamespace(is_open=True, answered_s=0.0)

    async def call(_: bytes) -> bytes:
        channel.answered_s += 10.0
        return next(answers)

    channel.call = call
    monkeypatch.setattr("loadtest.rig.connections.time", SimpleNamespace(perf_counter=lambda: channel.answered_s))
    probe = Probe("http://127.0.0.1:1", b"%d", deque(islice(submissions(1, 1, 1), 1)), lambda *_: None, obedient=False)
    monkeypatch.setattr(probe, "_channel", channel)
    await probe.run()
    assert probe.waits == [(1, 0.0)]


async def test_a_closed_loop_beside_it_is_measured_for_the_same_time() -> None:
    """Another party's closed loop is measured while this load runs, and no longer: afterwards it would have the service alone."""
    closed = ClosedLoad([], 99, 2, 1, 1, 4.0, 10_000, {})

    def answer(body: bytes) -> bytes:
        time.sleep(0.002)  # so that the submissions do not run out
        return _committed(body)

    result = await _offered(answer, seconds=4.0, beside=[closed])
    (beside,) = result.beside
    assert (beside.errors, beside.ran_out) == (0, False)
    assert beside.submissions > 0
    assert beside.seconds < 1.1 * result.seconds


async def test_an_answer_of_unknown_length_ends_its_connection() -> None:
    """An answer without Content-Length is no answer: the load does not wait for its end, and counts a dropped submission."""
    result = await _offered(lambda body: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert result.dropped > 0
    assert (result.decided, result.errors) == (0, 0)


async def test_submissions_without_a_connection_wait_and_are_counted() -> None:
    """With one connection to a service that never answers, one submission is sent and the others are reported as unsent."""
    result = await _offered(lambda body: b"", connections_max=1, drain_s_max=1.0)
    assert result.decided == 0
    assert result.unsent > 0
    assert result.decided_ms.count == 0
    assert result.errors == 1, "the one that left has no answer"


async def test_lag_is_only_the_own_delay() -> None:
    """With one user and a slow service all submissions but the first are late, which is not the load's own delay."""
    late: list[float] = []

    async def submit(_number: int, _arrival: Arrival, due_s: float) -> None:
        late.append(time.perf_counter() - due_s)
        await asyncio.sleep(0.05)

    loop = OpenLoop([Arrival(0, 0.02 + at / 100) for at in range(10)])
    await loop.follow(time.perf_counter(), submit)
    assert max(late) > 0.2
    assert loop.lag.count == 1
