"""One process's part of a run: generates its submissions, then sends them by the schedule, not when answers arrive.

    python -P -m loadtest.openloop.process     records on standard input and output, as below

It is a child of a Locust process, since Locust patches the standard library of its own process, and asyncio does not work there. The parent
(`run.Member`) writes the plan, reads until the share is generated, and writes the start. Both sides write records of MessagePack, each
after its length (4 bytes, big-endian):

| from | record |
|---|---|
| the parent | a `LoadPlan` |
| the child | `progress`: submissions generated so far; several of them |
| the child | `made`: true; or `problem`: the error |
| the parent | a `Start` |
| the child | `tally`: the results so far; `seen_positions` and `timed` (`TimedSubmission`s): those since the last such record |

A submission that could not be sent before its deadline is a failure.
"""

import asyncio
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import IO, Any, NamedTuple

import msgspec
import uvloop

from loadtest.openloop.checker import Checker, ReceivedDecision, WrongAnswer, read, same_so_far
from loadtest.openloop.generate import PlannedSubmission, generate
from loadtest.openloop.plan import LoadPlan
from loadtest.openloop.tally import StageTally, Tally, encode
from loadtest.rig.connections import Channel, body_of, head_of, retry_after_s, status_of
from loadtest.rig.generate import party_key
from loadtest.rig.open_loop import OpenLoop
from loadtest.rig.schedule import Arrival, arrivals
from loadtest.rig.signing import SubmissionSigner
from notary.client import Signer
from notary.receipts.note import parse_verifier_key
from notary.verify import NotVerified, VerifierKey, verify_receipt

CONNECT_S_MAX = 3.0
PROGRESS_S = 5.0
REPORT_S = 1.0
PAUSE_S_FIRST, PAUSE_S_MAX = 0.05, 1.0
_TRY_AGAIN = (429, 502, 503, 504)
_LENGTH = struct.Struct(">I")


class Start(msgspec.Struct, frozen=True):
    """The start of the run in one process."""

    at_unix_s: float
    """By the wall clock, which processes on several machines share."""
    users: int
    """Each user has one connection to each URL, and one submission in flight at most."""


class TimedSubmission(NamedTuple):
    """One submission for Locust's statistics."""

    stage: str
    ms: float
    octets: int
    requests: int
    failure: str | None
    """The kind of failure, one of a few."""


def write(file: IO[bytes], message: Any) -> None:
    """Append one record."""
    record = msgspec.msgpack.encode(message)
    file.write(_LENGTH.pack(len(record)) + record)


def read_next(file: IO[bytes]) -> Any:
    """Returns the next record as plain objects, or None at the end of the file, which may be within a record."""
    head = file.read(_LENGTH.size)
    (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (0,)
    record = file.read(length)
    return msgspec.msgpack.decode(record) if length and len(record) == length else None


class NoReply(Exception):
    """No complete reply: the submission may or may not have been admitted. The message is one of a few."""


class Failed(Exception):
    """A submission that will not get a correct answer. `kind` is one of a few, for Locust's table."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class LoadProcess:
    """Generates with `make`, then sends with `run`."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.tally = Tally([StageTally() for _ in plan.stages])
        sample = Random(f"{plan.seed}/sample/{plan.process}").random
        verify = None if plan.verifier_key is None else _verifying(parse_verifier_key(plan.verifier_key))
        self.checker = Checker(receipts=verify is not None, verify=verify, sample=lambda: sample() < plan.receipt_sample)
        # The submissions, in an unnamed file: a soak of hours does not fit in memory, and sequential reads are cheap.
        self._pool: IO[bytes] = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115 - it ends with the process
        self._heads = [head_of(url, receipts=verify is not None) for url in plan.urls]
        self._timed: list[TimedSubmission] = []
        self._start_s = 0.0

    def make(self, progress: Callable[[int], None]) -> None:
        """Generate and sign everything; calls `progress(made)` every few seconds."""
        plan = self.plan
        sign = party_key().sign if plan.key_file is None else Signer.from_file(plan.key_file).sign
        writer = SubmissionSigner(plan.notary_name, plan.party, sign)
        reported_s = time.perf_counter()
        for made, asked in enumerate(generate(plan.mix, f"{plan.seed}/{plan.process}/{plan.processes}", plan.submissions, writer)):
            write(self._pool, asked)
            if time.perf_counter() - reported_s > PROGRESS_S:
                progress(made)
                reported_s = time.perf_counter()
        progress(plan.submissions)
        self._pool.seek(0)

    async def run(self, start: Start, report: Callable[[Any], None]) -> None:
        """Send everything; calls `report` in a thread, every second and at the end."""
        plan = self.plan
        self._start_s = time.perf_counter() + start.at_unix_s - time.time()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        loop = OpenLoop(arrivals(plan.stages, plan.mix.submission_requests, plan.process, plan.processes))
        channels = [[Channel(url) for url in plan.urls] for _ in range(start.users)]
        users = asyncio.gather(*[loop.follow(self._start_s, partial(self._submit, own)) for own in channels])
        self.tally.lag = loop.lag
        while not self.tally.finished:
            await asyncio.wait([users], timeout=REPORT_S)
            self.tally.cores = (time.process_time() - cpu_s) / (time.perf_counter() - began_s)
            if users.done():
                users.result()
                # If an answer is missing, it could explain any other answer.
                if not self.tally.failed:
                    self.checker.settle()
                self.tally.finished = True
            self.tally.cpu_seconds = time.process_time() - cpu_s
            results, self._timed = self._results(), []
            await asyncio.to_thread(report, results)
        for channel in [channel for own in channels for channel in own]:
            channel.close()

    def _results(self) -> Any:
        tally, checker = self.tally, self.checker
        tally.counts, tally.decided, tally.violations = checker.counts, checker.decided, checker.violations
        return {"tally": encode(tally), "seen_positions": checker.take_seen_positions(), "timed": self._timed}

    async def _submit(self, channels: Sequence[Channel], number: int, arrival: Arrival, due_s: float) -> None:
        plan, stage = self.plan, self.tally.stages[arrival.stage]
        asked = msgspec.convert(read_next(self._pool), PlannedSubmission)
        name, requests = plan.stages[arrival.stage].name, len(asked.ids) // 32
        sent_s = time.perf_counter()
        position_before = self.checker.position_highest
        octets = 0
        try:
            if sent_s - due_s > plan.deadline_s:
                raise Failed("missed", "could not be sent before its deadline: every connection was waiting for an answer")
            octets, answered_s, decisions = await self._decided(channels, number, asked, due_s + plan.deadline_s)
            self.checker.answered(asked, decisions, position_before)
        except Failed as problem:
            kind, text = problem.kind, str(problem)
        except WrongAnswer as problem:
            kind, text = "wrong answer", str(problem)
        except Exception as problem:
            # This is a fault of the load, not of the notary, but every arrival must be accounted for.
            kind, text = "fault of the load", f"{type(problem).__name__}: {problem}"
        else:
            latency_ms = (answered_s - due_s) * 1000
            self.tally.answered += 1
            stage.submissions += 1
            stage.latency.add(latency_ms)
            stage.late.add((sent_s - due_s) * 1000)
            stage.answered_last_s = answered_s - self._start_s
            self.tally.answered_at(stage.answered_last_s)
            self._timed.append(TimedSubmission(name, latency_ms, octets, requests, None))
            return
        self.tally.fail(f"submission {number} of process {plan.process}: {kind}: {text}")
        self._timed.append(TimedSubmission(name, (time.perf_counter() - due_s) * 1000, octets, requests, kind))

    async def _decided(
        self, channels: Sequence[Channel], number: int, asked: PlannedSubmission, ends_s: float
    ) -> tuple[int, float, Sequence[ReceivedDecision]]:
        """Send the same bytes to one worker after another until all is decided; returns the answer's length, its time and decisions."""
        urls = len(channels)
        known: Sequence[ReceivedDecision | None] | None = None
        last = "nothing"
        for attempt in count():
            left_s = ends_s - time.perf_counter()
            if left_s <= 0:
                raise Failed("no answer by the deadline", f"after {attempt} attempts, the last ended with {last}")
            at = (number + attempt) % urls
            try:
                # Half of the time left if there is another worker: one that hangs must not use up all of it.
                limit_s = left_s if urls == 1 else min(left_s, self.plan.attempt_s or max(left_s / 2, 1.0))
                answer = await _post(channels[at], self._heads[at], asked.body, limit_s)
            except NoReply as problem:
                last = str(problem)
                turns = (attempt + 1) // urls
                # Immediately at the next worker; with a pause after all were tried.
                pause_s = 0.0 if (attempt + 1) % urls else min(PAUSE_S_MAX, PAUSE_S_FIRST * 2.0 ** min(turns, 10))
            else:
                status, body = status_of(answer), body_of(answer)
                if status not in (200, 202, *_TRY_AGAIN):
                    raise Failed(f"status {status}", body[:300].decode(errors="replace"))
                if status in (200, 202):
                    now = read(body, asked.ids, complete=status == 200)
                    known = now if known is None else same_so_far(known, now)
                    if status == 200:
                        return len(body), channels[at].answered_s, [decision for decision in now if decision is not None]
                last, pause_s = f"status {status}", max(retry_after_s(answer) or 0.0, PAUSE_S_FIRST)
            self.tally.retry(last)
            await asyncio.sleep(min(pause_s, max(0.0, ends_s - time.perf_counter())))
        raise AssertionError("the loop has no end of its own")


async def _post(channel: Channel, head: bytes, body: bytes, limit_s: float) -> bytes:
    """Returns the complete answer, head and body. Raises `NoReply`, also after `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            if not channel.is_open:
                async with asyncio.timeout(CONNECT_S_MAX):
                    await channel.open()
            return await channel.call(head % len(body) + body)
    except TimeoutError:
        channel.close()  # the answer to this call is not the next one's
        raise NoReply("late") from None
    except ConnectionRefusedError:
        raise NoReply("refused") from None
    except OSError as problem:
        raise NoReply(f"broken: {problem}") from None


def _verifying(key: VerifierKey) -> Callable[[ReceivedDecision], str | None]:
    def verify(received: ReceivedDecision) -> str | None:
        decision: dict[str, Any] = msgspec.to_builtins(received)
        try:
            verify_receipt(decision.pop("receipt"), decision, key)
        except NotVerified as problem:
            return f"{problem.reason}: {problem}"
        return None

    return verify


def main() -> None:
    """Run one process's part; see the top of this file."""
    records, results = sys.stdin.buffer, sys.stdout.buffer

    def send(message: Any) -> None:
        write(results, message)
        results.flush()

    process = LoadProcess(msgspec.convert(read_next(records), LoadPlan))
    try:
        process.make(lambda made: send({"progress": made}))
    except Exception as problem:
        send({"problem": f"making the requests: {type(problem).__name__}: {problem}"})
        return
    send({"made": True})
    if (start := read_next(records)) is not None:
        uvloop.run(process.run(msgspec.convert(start, Start), send))


if __name__ == "__main__":
    main()
