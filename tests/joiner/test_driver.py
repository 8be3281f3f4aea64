"""Tests of complete workers on a log that injects faults. The tests of rule R10 are in `test_driver_certified`."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

import notary.index.index
import payload.codec
import payload.submission
from joiner import DriverSettings, JoinerLimits, Ready, SenderSettings, core
from notary.decision import Decision, Outcome
from ordering.errors import Fatal, FatalCode, NotReady, OutcomeUnknown, OutOfRange
from ordering.log import ORDERING, LogOffsets, Record
from ordering.records import FORMAT_VERSION, Activate, Entry, Retire, batch_key, decode
from ordering.signatures import sign_seal
from payload import Request, decode_requests_in_pieces
from tests.joiner.faulty import DRIVER, PARTITIONS, REOPEN_MS, FaultyLog, Start, Worker, id_of, is_fill, ready_worker, reason
from tests.joiner.history import KEY, OWNER, ask
from tests.turns import counted_turns

# ---- submissions and answers ----


async def test_submission_is_decided(start: Start) -> None:
    """A submission gets its decisions in the order of its requests; a retry gets the same ones."""
    worker = start()
    decisions = await worker.decided("a", "b")
    assert [decision.transaction_id for decision in decisions] == [id_of("a"), id_of("b")]
    assert [decision.position for decision in decisions] == [0, 1]
    assert {decision.outcome for decision in decisions} == {Outcome.COMMITTED}
    assert await worker.decided("b", "a") == decisions[::-1]
    assert worker.index.position_next == 2


async def test_two_workers_are_equal(start: Start) -> None:
    """Two workers on one log that both admit overlapping submissions have the same rows in the end, and gave the same answers."""
    workers = [start("w1"), start("w2")]
    asked = [(workers[n % 2], f"{n // 3}", f"{n % 7} of its own") for n in range(60)]
    answers = await asyncio.gather(*[worker.decided(*labels) for worker, *labels in asked])
    for worker in workers:
        await worker.until(lambda worker=worker: worker.driver.joiner.read_next()[ORDERING] == worker.log.end(ORDERING))  # type: ignore[misc]
    first, second = [worker.index.contents() for worker in workers]
    assert first == second
    assert workers[0].index.position_next == len({label for _, *labels in asked for label in labels})
    for answer in answers:
        assert [workers[0].index.decision(decision.transaction_id) for decision in answer] == answer


async def test_a_restart_continues_behind_the_last_record(start: Start, log: FaultyLog) -> None:
    """A worker that restarts on its index continues behind the last applied record, and repeats its earlier decisions."""
    worker = start()
    decisions = await worker.decided("a")
    await worker.stop()
    again = start()
    assert again.driver.joiner.read_next()[ORDERING] > 0
    assert await again.decided("a") == decisions
    assert await again.incarnations() == 2


async def test_drain_answers_every_admitted_submission(start: Start) -> None:
    """After `drain` every admitted submission has its answer, and nothing is pending."""
    worker = start()
    answers = [ask(worker.sender, f"{n}") for n in range(40)]
    await worker.sender.queue.drain()
    assert all(answer.done() for answer in answers)
    assert (worker.sender.queue.pending_requests, worker.sender.queue.pending_bytes, worker.sender.unresolved) == (0, 0, {})


async def test_a_client_that_left_makes_no_error(start: Start) -> None:
    """A submission whose client has disconnected is decided without an error."""
    worker = start()
    ask(worker.sender, "a").cancel()
    await worker.sender.queue.drain()
    decision = worker.index.decision(id_of("a"))
    assert decision is not None
    assert await worker.decided("a") == [decision]


@pytest.mark.parametrize("paused_s", [0, 3], ids=["slow", "paused"])
async def test_a_batch_that_takes_long_to_prepare_is_applied(start: Start, paused_s: int) -> None:
    """A batch whose preparation takes longer than an interruption is applied at once. A pause within a piece is still an interruption."""
    now_s = 0.0
    worker = start(limits=JoinerLimits(hole_timeout_ms=20, large_bytes=1_000), now_s=lambda: now_s)
    prepared = 0

    def slow(requests: Sequence[Request]) -> Iterator[None]:
        nonlocal now_s, prepared
        prepared += bool(requests)
        for number in range(20 if requests else 0):
            now_s += paused_s if number == 10 and prepared == 1 and paused_s else 0.5
            yield

    worker.index.prepare = slow  # type: ignore[method-assign]
    assert len(await worker.decided(*[str(number) for number in range(30)])) == 30
    assert (prepared, worker.driver.interruptions) == ((2, 1) if paused_s else (1, 0))


async def test_a_large_batch_leaves_turns_of_the_loop(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker decodes another worker's large batch, and looks its rows up, a piece in a turn of the loop; then it applies it in one."""
    for module in (payload.codec, payload.submission):
        monkeypatch.setattr(module, "STATES_A_PIECE", 10)
    monkeypatch.setattr(notary.index.index, "LOOKED_UP_AT_ONCE", 10)
    limits = JoinerLimits(hole_timeout_ms=20, large_bytes=5_000)
    writer, reader = start("w1", limits=limits), start("w2", limits=limits)
    began: list[int] = []
    applied: list[int] = []

    decode, apply = decode_requests_in_pieces, reader.index.apply

    def decoding(value: bytes, notary_name: str) -> Generator[None, None, tuple[Request, ...]]:
        began.append(turns.count)
        return decode(value, notary_name)

    def applying(ready: Ready) -> Sequence[Sequence[Decision]]:
        if any(batch.requests for batch in ready.batches):
            applied.append(turns.count)
        return apply(ready)

    monkeypatch.setattr(core, "decode_requests_in_pieces", decoding)
    monkeypatch.setattr(reader.index, "apply", applying)
    async with counted_turns() as turns:
        decisions = await writer.decided(*[str(number) for number in range(100)])
        await reader.until(lambda: reader.index.position_next == 100)
    assert (len(began), len(applied)) == (1, 1), "the writer does not decode its own batch"
    assert applied[0] - began[0] >= 20
    assert [reader.index.decision(decision.transaction_id) for decision in decisions] == decisions


# ---- R4: holes ----


async def test_filled_batch_is_sent_again(start: Start, log: FaultyLog) -> None:
    """A worker fills its own batch whose payload is late, sends it again and decides it once; the late payload is ignored."""
    late = asyncio.Event()

    async def delay(partition: int, key: bytes | None, value: bytes | None) -> None:
        if key == batch_key(1, 1) and not is_fill(value):
            await late.wait()

    log.on_append = delay
    worker = start()
    (decision,) = await worker.decided("a")
    assert worker.sender.batches_sent_again == 1
    assert [entry.sequence for entry in log.entries()] == [1, 2]
    late.set()
    assert (await worker.decided("b"))[0].position == 1
    assert await worker.decided("a") == [decision]


def _never_gathers(worker: Worker) -> None:
    """Send each batch at once, as a worker does under load, also while one before it is on its way."""
    worker.sender._settings = msgspec.structs.replace(worker.sender._settings, batch_bytes_early=0)


async def test_no_entry_overtakes_one_that_waits_for_its_payload(start: Start, log: FaultyLog) -> None:
    """After a fill, entries wait for their payloads; batches after a slow payload wait with it, and the sequences stay without a gap."""
    late, slow = asyncio.Event(), asyncio.Event()

    async def delay(partition: int, key: bytes | None, value: bytes | None) -> None:
        waits = {batch_key(1, 1): late, batch_key(1, 3): slow}.get(key or b"")
        if waits is not None and not is_fill(value):
            await waits.wait()

    log.on_append = delay
    worker = start()
    _never_gathers(worker)
    assert len(await worker.decided("a")) == 1
    first = asyncio.ensure_future(worker.decided("b"))
    await worker.until(lambda: 3 in worker.sender._session.appending_since)  # type: ignore[union-attr]
    # Even where the time of slow payloads is over meanwhile.
    worker.sender._sequential_until_s = 0.0
    second = asyncio.ensure_future(worker.decided("c"))
    polls = worker.driver._polls
    await worker.until(lambda: worker.driver._polls > polls + 5)
    assert [entry.sequence for entry in log.entries()] == [1, 2]
    slow.set()
    assert [[decision.position for decision in await answer] for answer in (first, second)] == [[1], [2]]
    assert [entry.sequence for entry in log.entries()] == [1, 2, 3, 4]
    late.set()


async def test_a_payload_that_fails_leaves_no_gap(start: Start, log: FaultyLog) -> None:
    """A batch whose payload fails before its entry is sent is the last of its incarnation: no later one is sent in it."""
    late, fails = asyncio.Event(), asyncio.Event()
    failed: list[bytes | None] = []

    async def fail(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition != ORDERING and not is_fill(value):
            if key == batch_key(1, 1):
                await late.wait()
            elif not failed and key == batch_key(1, 3):
                failed.append(key)
                await fails.wait()
                raise OutcomeUnknown("the broker went away")

    log.on_append = fail
    worker = start()
    _never_gathers(worker)
    await worker.decided("a")
    first = asyncio.ensure_future(worker.decided("b"))
    await worker.until(lambda: bool(failed))
    second = asyncio.ensure_future(worker.decided("c"))
    polls = worker.driver._polls
    await worker.until(lambda: worker.driver._polls > polls + 5)
    fails.set()
    answers = await asyncio.gather(first, second)
    assert sorted(decision.position for answer in answers for decision in answer) == [1, 2]
    assert failed
    assert [entry.sequence for entry in log.entries() if entry.incarnation == 1] == [1, 2]
    late.set()


async def test_restart_behind_the_own_hole(start: Start, log: FaultyLog) -> None:
    """The only worker is killed between its two sends: its next process fills the hole although its register record comes behind it."""
    log.register("w1", "before")
    log.entry(1, 1, "lost")
    worker = start()
    assert await worker.incarnations() == 2
    assert len(await worker.decided("lost")) == 1


async def test_fill_fails_while_registering(start: Start, log: FaultyLog) -> None:
    """A fill whose append fails before the worker has an incarnation is only tried again."""
    log.register("dead")
    log.entry(1, 1, "lost")
    failures = [OutcomeUnknown("lost"), OutcomeUnknown("lost")]

    async def fail(partition: int, key: bytes | None, value: bytes | None) -> None:
        if is_fill(value) and failures:
            raise failures.pop()

    log.on_append = fail
    worker = start()
    assert len(await worker.decided("a")) == 1
    assert not failures


async def test_a_submission_that_never_counts_is_reported_as_unknown(start: Start, log: FaultyLog) -> None:
    """A submission whose batches never count, first for a fill and then for fences, is reported as unknown after a limited number."""
    tries = itertools.count()

    async def lose(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition == ORDERING or is_fill(value):
            return
        if not next(tries):
            await asyncio.Event().wait()
        raise OutcomeUnknown("it timed out")

    log.on_append = lose
    worker = start(attempts_max=3)
    with pytest.raises(OutcomeUnknown):
        await worker.decided("a")
    assert worker.sender.queue.pending_requests == 0


# ---- R5: incarnations ----


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("ordering", [False, True], ids=["payload", "entry"])
async def test_a_failed_append_ends_the_incarnation(start: Start, log: FaultyLog, ordering: bool, applied: bool) -> None:
    """A failed append, lost or applied, ends the incarnation; the submission is decided once, in this incarnation or the next."""
    failed: list[int] = []

    async def fail(partition: int, key: bytes | None, value: bytes | None) -> None:
        is_batch = value is not None and (partition != ORDERING or isinstance(decode(value), Entry))
        if is_batch and (partition == ORDERING) == ordering and not failed:
            failed.append(partition)
            if applied:
                log.put(partition, key, value)
            raise OutcomeUnknown("the broker went away")

    log.on_append = fail
    worker = start()
    (decision,) = await worker.decided("a")
    assert failed
    assert await worker.incarnations(besides=1) == 2
    assert decision.position == 0
    assert await worker.decided("a") == [decision]
    assert worker.index.position_next == 1


async def test_a_worker_pauses_between_incarnations_that_end_at_once(start: Start, log: FaultyLog) -> None:
    """If every incarnation ends at its first append the worker pauses between them: each leaves a record that is kept for ever."""

    async def reject(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition != ORDERING and not is_fill(value):
            raise OutcomeUnknown("not authorized")

    log.on_append = reject
    began_s = asyncio.get_running_loop().time()
    worker = start(attempts_max=5)
    with pytest.raises(OutcomeUnknown):
        await worker.decided("a")
    assert asyncio.get_running_loop().time() - began_s >= 5 * REOPEN_MS / 1000
    assert worker.index.decision(id_of("a")) is None


async def test_a_failed_registration_is_sent_again(start: Start, log: FaultyLog) -> None:
    """A register record whose append failed is sent again with a new nonce; if it arrives late it fences that incarnation."""
    late: list[bytes] = []

    async def fail(partition: int, key: bytes | None, value: bytes | None) -> None:
        if value is not None and partition == ORDERING and not late:
            late.append(value)
            raise OutcomeUnknown("the broker went away")

    log.on_append = fail
    worker = start()
    first = await worker.incarnations()
    log.put(ORDERING, None, late[0])
    assert await worker.incarnations(besides=first) == 3
    assert len(await worker.decided("a")) == 1


async def test_fenced_in_the_step_that_registers(start: Start, log: FaultyLog) -> None:
    """A worker that reads its register record together with its fence does not continue in an incarnation that never counts."""

    async def fence_at_once(partition: int, key: bytes | None, value: bytes | None) -> None:
        if partition == ORDERING and log.end(ORDERING) == 1:
            # Its own record is in the log, acknowledged late; a duplicate's record comes right behind it, and one poll returns both.
            log.put(partition, key, value)
            log.register("w1", "duplicate")

    log.on_append = fence_at_once
    worker = start()
    assert len(await worker.decided("a")) == 1
    assert await worker.incarnations() == 3


async def test_fenced_with_batches_on_their_way(start: Start, log: FaultyLog) -> None:
    """A batch of a fenced incarnation that was in flight is sent again by the next one."""
    worker = start()
    first = await worker.incarnations()

    async def fence_before_the_entry(partition: int, key: bytes | None, value: bytes | None) -> None:
        if value is not None and partition == ORDERING and isinstance(decode(value), Entry) and decode(value).incarnation == first:  # type: ignore[union-attr]
            log.fence(first, 0)

    log.on_append = fence_before_the_entry
    assert len(await worker.decided("a")) == 1
    assert worker.sender.batches_sent_again == 1
    assert await worker.incarnations() == 2


async def test_a_worker_with_a_duplicate_name_stops(start: Start, log: FaultyLog) -> None:
    """A worker that another process of its name fences three times stops and reports that two processes share the name."""
    worker = start()
    incarnation = None
    for n in range(3):
        incarnation = await worker.incarnations(besides=incarnation)
        log.register("w1", f"duplicate {n}")
    fatal = await worker.dies()
    assert "two processes share a name" in str(fatal)


async def test_incarnations_that_lasted_are_not_counted_as_duplicate_names(
    start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late records of former processes never stop a worker whose incarnations last in between, however many come."""
    monkeypatch.setattr("joiner.sender.DUPLICATE_NAME_SESSION_S", 0.0)
    worker = start()
    incarnation = None
    for n in range(5):
        incarnation = await worker.incarnations(besides=incarnation)
        log.register("w1", f"late {n}")
    await worker.incarnations(besides=incarnation)
    assert len(await worker.decided("a")) == 1


async def test_an_incarnation_that_lasted_is_none_of_the_three(start: Start, log: FaultyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker stops after three lost incarnations of which none lasted: one that lasted and two that did not are not enough."""
    monkeypatch.setattr("joiner.sender.DUPLICATE_NAME_SESSION_S", 0.0)
    worker = start()
    incarnation = await worker.incarnations()
    log.register("w1", "late")
    for n in range(2):
        incarnation = await worker.incarnations(besides=incarnation)
        monkeypatch.setattr("joiner.sender.DUPLICATE_NAME_SESSION_S", 60.0)
        log.register("w1", f"duplicate {n}")
    incarnation = await worker.incarnations(besides=incarnation)
    assert len(await worker.decided("a")) == 1
    log.register("w1", "duplicate 2")
    assert (await worker.dies()).code is FatalCode.DUPLICATE_WORKER_NAME


async def test_own_register_records_are_not_duplicate_names(start: Start, log: FaultyLog) -> None:
    """A worker that fences its own earlier incarnations, however often, does not count as a duplicate of itself."""
    worker = start()
    incarnation = await worker.incarnations()
    for n in range(5):
        log.fence(incarnation, 0)
        incarnation = await worker.incarnations(besides=incarnation)
        assert incarnation == n + 2
    assert len(await worker.decided("a")) == 1


# ---- the reader ----


async def test_reader_that_stands_still(start: Start, log: FaultyLog) -> None:
    """A reader that returns nothing while the log grows is replaced, and the records that it missed are read again."""

    def swallow(records: list[Record]) -> list[Record]:
        return [] if log.readers == 1 else records

    log.on_poll = swallow
    worker = start()
    assert len(await worker.decided("a")) == 1
    assert worker.driver.readers_remade >= 1


async def test_a_worker_stops_before_a_newer_version(start: Start, log: FaultyLog) -> None:
    """A worker stops before a record that activates a version that it cannot read; a restart stops there again."""
    log.register("w2", version=FORMAT_VERSION + 1)
    log.put_signed(Activate(FORMAT_VERSION + 1))
    ends = log.ends()
    worker = start()
    assert (await worker.dies()).code is FatalCode.FORMAT_TOO_NEW
    await worker.stop()
    again = start()
    assert (await again.dies()).code is FatalCode.FORMAT_TOO_NEW
    assert (again.joiner.history.seen, log.ends()) == (2, ends)


async def test_a_worker_neither_answers_nor_appends_behind_a_seal(start: Start, log: FaultyLog) -> None:
    """From a sealed entry on a worker is not ready, registers nothing and says why; a submission waits."""
    log.register("w2", version=2)
    log.put_signed(Activate(2))
    log.entry(1, 1, "lost", partition=1)
    entry, name = log.entries()[-1], batch_key(1, 1)
    log.put(1, name, sign_seal(log.log_id, 1, name, entry.payload_hash, KEY.public_key, OWNER))
    ends = log.ends()
    worker = start()
    await worker.until(reason(worker, "the owner restores lost decisions"))
    assert worker.joiner.hole is None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await worker.decided("a")
    assert log.ends() == ends


# ---- the state of reading ----


async def test_partition_that_gives_nothing(start: Start, log: FaultyLog) -> None:
    """A worker is not ready while its reader returns nothing of a topic-partition that has records, although its polls succeed."""
    worker = await ready_worker(start, driver=DriverSettings(poll_ms=10, watch_ms=20, unreachable_ms=100))
    silent = True
    log.on_poll = lambda records: [record for record in records if record.partition != 1 or not silent]
    log.put(1, batch_key(9, 9), None)
    await worker.until(reason(worker, "payload partition 1 has records that could not be read"))
    assert list(worker.driver.stalls.partitions_s) == [1]
    assert worker.driver.stalls.longest_s > 0.1
    silent = False
    worker.driver._new_reader_why = "the test wants another"
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_reader_that_fails_again_and_again(start: Start, log: FaultyLog) -> None:
    """A worker whose polls all fail is not ready and reports their error, although it can fetch the log end offsets."""
    worker = await ready_worker(start, driver=DriverSettings(poll_ms=10, watch_ms=20, unreachable_ms=100))

    def fail(records: list[Record]) -> list[Record]:
        raise NotReady("a record does not match its checksum")

    log.on_poll = fail
    await worker.until(reason(worker, "the log cannot be read now: a record does not match its checksum"))
    await worker.until(lambda: worker.driver.poll_age_s > 0.1)
    log.on_poll = None
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_head_that_does_not_move(start: Start, log: FaultyLog) -> None:
    """A worker with a hole that no worker can fill is not ready; when the hole is filled it is ready again."""
    worker = await ready_worker(start)
    log.without_leader = {2}
    log.entry(1, 9, "lost", partition=2)
    await worker.until(reason(worker, "the head of the order has not moved for more than 0.1 s"))
    assert worker.driver.stalls.head_s > DRIVER.stall_s
    log.without_leader = set()
    await worker.until(lambda: worker.driver.joiner.hole is None and worker.driver.not_ready() is None)


async def test_idle_readers_are_left_alone(start: Start, log: FaultyLog) -> None:
    """A reader at the end of the log is not replaced, and its head does not count as stalled."""
    worker = await ready_worker(start, driver=DriverSettings(poll_ms=10, watch_ms=10, stall_ms=50))
    looks = _count_looks(log)
    await worker.until(lambda: looks() > 20)
    assert (worker.driver.stalls.head_s, worker.driver.stalls.longest_s) == (0, 0)
    assert (worker.driver.readers_remade, log.readers) == (0, 1)
    assert worker.driver.not_ready() is None


def _count_looks(log: FaultyLog) -> Callable[[], int]:
    looks = 0

    def count(log_offsets: dict[int, LogOffsets]) -> None:
        nonlocal looks
        looks += 1

    log.on_offsets = count
    return lambda: looks


async def test_partition_that_ends_with_a_marker(start: Start, log: FaultyLog) -> None:
    """A topic-partition that ends with a transaction's marker is read to its end: its holes are filled."""
    log.markers = {ORDERING: 1, 0: 1, 1: 2, 2: 1}
    log.register("dead")
    log.entry(1, 1, "lost", partition=1)
    worker = start(driver=DriverSettings(poll_ms=10, watch_ms=10, stall_ms=100))
    assert len(await worker.decided("a")) == 1
    looks = _count_looks(log)
    await worker.until(lambda: looks() > 20)
    assert (worker.driver.stalls.head_s, worker.driver.stalls.longest_s) == (0, 0)
    assert (worker.driver.lag_records, worker.driver.readers_remade) == (0, 0)


async def test_a_reader_that_lost_records_says_nothing(start: Start, log: FaultyLog) -> None:
    """The position of a failed reader does not count: it may be behind records that the reader lost."""
    worker = await ready_worker(start)

    def lose(records: list[Record]) -> list[Record]:
        raise NotReady("the reader failed")

    read_next = worker.driver._read_next()[1]
    log.on_poll = lambda records: lose(records) if records else records
    log.put(1, batch_key(9, 9), None)
    await worker.until(lambda: worker.driver._no_reader == "the reader failed")
    assert worker.driver._read_next()[1] == read_next
    log.on_poll = None
    await worker.until(lambda: worker.driver._read_next()[1] == read_next + 1)


# ---- a log that lost records ----


@pytest.mark.parametrize("grown", [False, True], ids=["cut", "grown-again"])
async def test_log_cut_under_a_running_worker(start: Start, log: FaultyLog, grown: bool) -> None:
    """A log that was cut before records that a running worker has read makes it not ready, and stops it, also if it grows again."""
    worker = await ready_worker(start)
    ends = log.ends()
    await worker.decided("b")
    log.cut(*ends)
    await worker.until(reason(worker, "the log contradicts this worker's index"))
    if grown:
        log.regrow(ends)
    ends = log.ends()
    assert (await worker.dies()).code is FatalCode.INDEX_AHEAD_OF_LOG
    assert (log.ends(), worker.index.position_next) == (ends, 2)


@pytest.mark.parametrize("grown", [False, True], ids=["cut", "grown-again"])
async def test_restart_on_a_log_that_was_cut(start: Start, log: FaultyLog, grown: bool) -> None:
    """A worker that starts on a log that was cut, and may have grown again, stops; it has appended nothing and decided nothing."""
    worker = await ready_worker(start)
    ends = log.ends()
    await worker.decided("b")
    await worker.stop()
    log.cut(*ends)
    if grown:
        log.regrow(ends)
    ends = log.ends()
    again = start()
    assert again.driver.not_ready() is not None
    fatal = str(await again.dies())
    assert ("is not the one that this index has applied" if grown else "ahead of its log") in fatal
    assert (log.ends(), again.index.position_next) == (ends, 2)


async def test_log_cut_and_grown_again_while_nobody_read(start: Start, log: FaultyLog) -> None:
    """A new reader begins with the last record applied, so it notices that the log lost its end meanwhile, even if it is longer now."""
    worker = await ready_worker(start, driver=DriverSettings(poll_ms=10, watch_ms=20, contradiction_ms=200))
    ends = log.ends()
    await worker.decided("b")

    def lost(records: list[Record]) -> list[Record]:
        # Within one turn of the event loop, so that no look at the log end offset comes in between.
        log.on_poll = None
        log.regrow(ends)
        raise NotReady("the connection broke")

    log.on_poll = lost
    assert (await worker.dies()).code is FatalCode.INDEX_AHEAD_OF_LOG
    assert worker.index.position_next == 2


async def test_what_was_read_of_a_log_that_was_cut_is_forgotten(start: Start, log: FaultyLog) -> None:
    """Records that were read and not applied before the log lost them are dropped: the worker decides the same as a new worker."""
    limits = JoinerLimits(hole_timeout_ms=10**9)
    worker = await ready_worker(start, limits=limits)
    ends = log.ends()
    log.register("w9")
    log.entry(2, 1, "lost")  # a hole: records behind it are not applied
    log.register("w8")
    await worker.until(lambda: worker.driver.joiner.queued_records == 2)
    kept = ends[0] + 1

    def lost(records: list[Record]) -> list[Record]:
        log.on_poll = None
        log.cut(kept, *ends[1:])
        for name in ("w5", "w6", "w7"):
            log.register(name)
        raise NotReady("the connection broke")

    log.on_poll = lost
    await worker.until(lambda: worker.driver.joiner.offset_head == kept + 3)
    names = [worker.driver.joiner.incarnations.get(incarnation) for incarnation in range(2, 6)]
    assert [state and state.name for state in names] == ["w9", "w5", "w6", "w7"]


@pytest.mark.parametrize("running", [False, True], ids=["at-start", "running"])
async def test_log_that_answers_from_the_past(start: Start, log: FaultyLog, running: bool) -> None:
    """Log end offsets that are outdated for a while stop no worker: it is not ready meanwhile, then it continues."""
    worker = start(driver=DriverSettings(poll_ms=10, watch_ms=20, contradiction_ms=3_600_000))
    decisions = await worker.decided("a")
    if not running:
        await worker.stop()
    late = True

    def lag(log_offsets: dict[int, LogOffsets]) -> None:
        if late:
            log_offsets[ORDERING] = LogOffsets(0, 1)

    log.on_offsets = lag
    if not running:
        worker = start(driver=DriverSettings(poll_ms=10, watch_ms=20, contradiction_ms=3_600_000))
    await worker.until(reason(worker, "the log contradicts this worker's index"))
    late = False
    assert await worker.decided("a") == decisions
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_an_answer_that_was_long_on_its_way(start: Start, log: FaultyLog, caplog: pytest.LogCaptureFixture) -> None:
    """Records that are applied while a request for the log end offsets is in flight raise no suspicion."""
    worker = await ready_worker(start)
    log_offsets, looks = log.offsets, 0

    async def far_away() -> Mapping[int, LogOffsets]:
        nonlocal looks
        found = await log_offsets()
        await worker.decided(f"meanwhile {looks}")
        looks += 1
        return found

    log.offsets = far_away  # type: ignore[method-assign]
    await worker.until(lambda: looks > 3)
    assert [record.getMessage() for record in caplog.records if "contradicts the index" in record.getMessage()] == []


async def test_a_reader_gets_old_metadata(start: Start, log: FaultyLog) -> None:
    """A reader whose offset is out of range stops no worker if the log itself has that offset."""
    worker = start(driver=DriverSettings(poll_ms=10, watch_ms=20, contradiction_ms=3_600_000))
    decisions = await worker.decided("a")
    suspicions: list[str | None] = []

    def out_of_range(records: list[Record]) -> list[Record]:
        if len(suspicions) < 3:
            suspicions.append(worker.driver.not_ready())
            raise OutOfRange("nothing to read at this offset")
        return records

    log.on_poll = out_of_range
    await worker.until(lambda: len(suspicions) == 3)
    assert await worker.decided("a") == decisions
    await worker.until(lambda: worker.driver.not_ready() is None)


async def test_log_that_has_failed(start: Start, log: FaultyLog) -> None:
    """A log that reports that it cannot go on stops the worker at once: that is no contradiction, and will not pass."""
    worker = await ready_worker(start, driver=DriverSettings(poll_ms=10, watch_ms=20, contradiction_ms=3_600_000))

    def fail(_: object) -> Any:
        raise Fatal(FatalCode.INDEX_UNWRITABLE, "the disk failed")

    log.on_poll = log.on_offsets = fail
    assert (await worker.dies()).code is FatalCode.INDEX_UNWRITABLE


# ---- log lines for the operator ----


async def test_no_leader_is_reported_once(start: Start, log: FaultyLog, caplog: pytest.LogCaptureFixture) -> None:
    """The loss of the last partition leader is logged once, and so is the first new leader."""
    caplog.set_level(logging.INFO, "notary.sender")
    worker = start()
    await worker.incarnations()
    for times in (1, 2):
        log.without_leader = set(range(PARTITIONS))
        answers = [ask(worker.sender, f"{times} {n}") for n in range(5)]
        for _ in range(5):
            await asyncio.sleep(2 * REOPEN_MS / 1000)
        assert not any(answer.done() for answer in answers)
        log.without_leader = set()
        await asyncio.gather(*answers)
        assert sum("no payload partition has a leader" in message for message in caplog.messages) == times
        assert sum("has a leader again" in message for message in caplog.messages) == times


async def test_a_worker_without_a_leader_for_long_is_not_ready(start: Start, log: FaultyLog) -> None:
    """Admitted submissions would wait for ever. It becomes ready again once a payload partition has a leader, also if none waits."""
    worker = await ready_worker(start)
    log.without_leader = set(range(PARTITIONS))
    worker.sender._settings = SenderSettings(reopen_wait_ms=10, append_wait_ms_max=100)
    answer = ask(worker.sender, "b")
    await asyncio.sleep(0.05)
    assert worker.sender.not_ready() is None
    await asyncio.sleep(0.2)
    assert worker.sender.not_ready() == "no payload partition has had a leader for more than 0.1 s"
    log.without_leader = set()
    assert worker.sender.not_ready() is None
    await answer


async def test_a_worker_retired_in_the_step_of_its_register_record_stops(start: Start, log: FaultyLog) -> None:
    """It was paused after that record. It must not take part again by itself."""
    retired = False

    def with_retire(records: list[Record]) -> list[Record]:
        nonlocal retired
        if retired or not any(record.partition == ORDERING and record.value and record.value[1] == 2 for record in records):
            return records
        retired = True
        log.put_signed(Retire(1))
        return [*records, *log.read(ORDERING, log.end(ORDERING) - 1, 1 << 20, 1)]

    log.on_poll = with_retire
    assert (await start().dies()).code is FatalCode.RETIRED


async def test_two_moments_of_contradiction_do_not_stop_a_worker(start: Start, log: FaultyLog) -> None:
    """Each is one reply of a broker that lags behind. No payload partition has a leader, so no comparison ends in between."""
    worker = await ready_worker(start)
    log.without_leader = set(range(PARTITIONS))
    log.on_poll = lambda records: [record for record in records if record.partition == ORDERING]
    offsets, lagging = log.offsets, True

    async def of_a_broker_that_lags() -> Mapping[int, LogOffsets]:
        nonlocal lagging
        found = dict(await offsets())
        if lagging:
            lagging = False
            found[ORDERING] = msgspec.structs.replace(found[ORDERING], log_end=0)
        return found

    log.offsets = of_a_broker_that_lags  # type: ignore[method-assign]
    driver = worker.driver
    await worker.until(lambda: driver.trust.refuted)
    await asyncio.sleep(3 * driver._settings.contradiction_s)
    lagging = True
    await asyncio.sleep(3 * driver._settings.contradiction_s)
    assert not worker.running.done()


async def test_a_comparison_that_waits_for_a_leader_extends_no_contradiction(start: Start, log: FaultyLog) -> None:
    """After one lagging reply the worker also waits for partitions without a leader. The next leader may lag for a moment too."""
    worker = await ready_worker(start)
    log.without_leader = set(range(PARTITIONS))
    log.on_poll = lambda records: [record for record in records if record.partition == ORDERING]
    driver = worker.driver
    driver._contradicted("the first reply lags", driver._now_s())
    await asyncio.sleep(3 * driver._settings.contradiction_s)
    driver._contradicted("the new leader lags", driver._compared_since_s)
    assert not worker.running.done()
