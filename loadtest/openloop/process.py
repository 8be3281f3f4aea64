"""One process's part of a run: generates its submissions, then sends them by the schedule, not when answers arrive.

Any free user takes the next slot, and sends its submission at the intended start, or at once if that has passed. Latency counts from the
intended start. So if a server is slow for a while, the latency includes the wait of all submissions behind it. A submission that could not
be sent before its deadline is a failure.
"""

import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import gevent
import msgspec
from gevent.event import Event
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError

from loadtest.openloop.checker import Checker, ReceivedDecision, WrongAnswer, read, same_so_far
from loadtest.openloop.generate import PlannedSubmission, generate
from loadtest.openloop.plan import LoadPlan
from loadtest.openloop.tally import StageTally, Tally
from loadtest.rig.generate import party_key
from loadtest.rig.schedule import Slot, slots
from loadtest.rig.signing import SubmissionSigner
from notary.client import Signer
from notary.receipts.note import parse_verifier_key
from notary.verify import NotVerified, VerifierKey, verify_receipt

# ---- keep-alive HTTP ----

# FastHttpUser's own client (geventhttpclient), without features that a notary does not need. `FastHttpUser` keeps cookies, follows
# redirects and builds a response object: 170 us of CPU a submission instead of 65, on the machine of README's figures. CPU time that the
# load saves is available to the notary on the same machine.

CONNECT_S_MAX = 3.0
READ_S_MAX = 3_600.0
"""The timeout of one read; `post` has a deadline for the complete reply."""
BLOCK_BYTES = 1 << 16
_HEADERS = {"Content-Type": "application/json"}


class HttpReply(NamedTuple):
    """A complete HTTP reply."""

    status: int
    retry_after_s: float
    body: bytes


class NoReply(Exception):
    """No complete reply: the submission may or may not have been admitted. The message is one of a few."""


class _Late(Exception):
    pass


class Connections:
    """One connection to each URL, opened on first use."""

    def __init__(self, urls: tuple[str, ...], path: str) -> None:
        self._urls = urls
        self._path = path
        self._clients: dict[int, HTTPClient] = {}

    def post(self, at: int, body: bytes, limit_s: float) -> HttpReply:
        """Send a body to URL number `at` and return the complete reply. Raises `NoReply`, also after `limit_s` seconds."""
        client = self._clients.get(at)
        if client is None:
            client = self._clients[at] = connect(self._urls[at])
        try:
            with gevent.Timeout(limit_s, _Late):
                response = client.request("POST", self._path, body=body, headers=_HEADERS)
                content = bytes(response.read())
        except _Late:
            self._drop(at)
            raise NoReply("late") from None
        except ConnectionRefusedError:
            self._drop(at)
            raise NoReply("refused") from None
        except (OSError, HTTPParseError) as problem:
            self._drop(at)
            raise NoReply(f"broken: {type(problem).__name__}") from None
        return HttpReply(response.status_code, _seconds(response.get("retry-after")), content)

    def close(self) -> None:
        """Close all connections."""
        for at in list(self._clients):
            self._drop(at)

    def _drop(self, at: int) -> None:
        self._clients.pop(at).close()


def connect(url: str) -> HTTPClient:
    """Returns a client for one connection at a time; for https, OpenSSL's own settings (SSL_CERT_FILE) define the trusted authorities."""
    # The library has its own list of authorities.
    tls = {"ssl_options": {"ca_certs": ssl.get_default_verify_paths().cafile}} if url.startswith("https:") else {}
    client = HTTPClient.from_url(
        url, concurrency=1, connection_timeout=CONNECT_S_MAX, network_timeout=READ_S_MAX, block_size=BLOCK_BYTES, **tls
    )
    # The pool's own hook. Without it the last segment of a large submission waits for an acknowledgement, up to 40 ms.
    setattr(client._connection_pool, "after_connect", _no_delay)  # noqa: B010 - a hook, which types call a method
    return client


def _no_delay(connection: Any) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _seconds(retry_after: object) -> float:
    return float(retry_after) if isinstance(retry_after, str) and retry_after.isdecimal() else 0.0


# ---- the process ----

MAKE_S_MAX = 0.02
"""The time for which generation runs before Locust's heartbeats get their turn."""
PROGRESS_S = 5.0
PAUSE_S_FIRST, PAUSE_S_MAX = 0.05, 1.0
_TRY_AGAIN = (429, 500, 502, 503, 504)

Record = Callable[[str, float, int, int, str | None], None]
"""Records one submission in Locust's statistics: (stage, ms, bytes of the answer, requests, reason of failure)."""


class Failed(Exception):
    """A submission that will not get a correct answer. `kind` is one of a few, for Locust's table."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class LoadProcess:
    """Generates with `make`, starts with `go`, and sends while users `work`."""

    def __init__(self, plan: LoadPlan, record: Record) -> None:
        self.plan = plan
        self.tally = Tally([StageTally() for _ in plan.stages])
        sample = Random(f"{plan.seed}/sample/{plan.process}").random
        verify = None if plan.verifier_key is None else _verifying(parse_verifier_key(plan.verifier_key))
        self.checker = Checker(receipts=verify is not None, verify=verify, sample=lambda: sample() < plan.receipt_sample)
        self._record = record
        self._submissions = plan.submissions
        self._pool = Pool()
        self._slots = enumerate(slots(plan.stages, plan.mix.submission_requests, plan.process, plan.processes))
        self._path = "/v1/submissions" + ("?receipts=false" if verify is None else "")
        self._started = Event()
        self._start_s = self._cpu_s = 0.0

    def make(self, progress: Callable[[int, int], None]) -> None:
        """Generate and sign everything, yielding to others now and then; calls `progress(made, of)` every few seconds."""
        plan = self.plan
        sign = party_key().sign if plan.key_file is None else Signer.from_file(plan.key_file).sign
        writer = SubmissionSigner(plan.notary_name, plan.party, sign)
        turn_s = reported_s = time.perf_counter()
        for made, asked in enumerate(generate(plan.mix, f"{plan.seed}/{plan.process}/{plan.processes}", plan.submissions, writer)):
            self._pool.add(asked)
            now_s = time.perf_counter()
            if now_s - turn_s > MAKE_S_MAX:
                gevent.sleep(0)
                turn_s = time.perf_counter()
            if now_s - reported_s > PROGRESS_S:
                progress(made, plan.submissions)
                reported_s = now_s
        progress(plan.submissions, plan.submissions)
        self._pool.rewind()

    def go(self, at_unix_s: float) -> None:
        """Start the run at this wall-clock time, which processes on several machines share."""
        self._start_s = time.perf_counter() + at_unix_s - time.time()
        self._cpu_s = time.process_time()
        self._started.set()

    def work(self) -> None:
        """Take the next slot and send it, until none is left; each user runs this."""
        self._started.wait()
        connections = Connections(self.plan.urls, self._path)
        try:
            for number, slot in self._slots:
                self._submit(number, slot, self._pool.take(), connections)
        finally:
            connections.close()
        self._finish()

    def report(self) -> tuple[Tally, bytes]:
        """Returns the tally so far, and the `SEEN_POSITION` records since the last report."""
        tally = self.tally
        tally.counts, tally.decided, tally.violations = self.checker.counts, self.checker.decided, self.checker.violations
        tally.cpu_seconds = time.process_time() - self._cpu_s
        return tally, self.checker.take_seen_positions()

    def close(self) -> None:
        """Delete the generated submissions."""
        self._pool.close()

    def _submit(self, number: int, slot: Slot, asked: PlannedSubmission, connections: Connections) -> None:
        plan, stage = self.plan, self.tally.stages[slot.stage]
        due_s = self._start_s + slot.due_s
        name, requests = plan.stages[slot.stage].name, len(asked.ids) // 32
        if (wait_s := due_s - time.perf_counter()) > 0:
            gevent.sleep(wait_s)
        sent_s = time.perf_counter()
        position_before = self.checker.position_highest
        octets = 0
        try:
            if sent_s - due_s > plan.deadline_s:
                raise Failed("missed", "could not be sent before its deadline: every connection was waiting for an answer")
            self.tally.sent += 1
            body = self._decided(number, asked, due_s + plan.deadline_s, connections)
            answered_s = time.perf_counter()
            octets = len(body[0])
            self.checker.answered(asked, body[1], position_before)
        except Failed as problem:
            kind, text = problem.kind, str(problem)
        except WrongAnswer as problem:
            kind, text = "wrong answer", str(problem)
        except Exception as problem:
            # This is a fault of the load, not of the notary, but every slot must be accounted for.
            kind, text = "fault of the load", f"{type(problem).__name__}: {problem}"
        else:
            latency_ms = (answered_s - due_s) * 1000
            self.tally.answered += 1
            stage.submissions += 1
            stage.latency.add(latency_ms)
            stage.late.add((sent_s - due_s) * 1000)
            stage.answered_last_s = answered_s - self._start_s
            self.tally.answered_at(stage.answered_last_s)
            self._record(name, latency_ms, octets, requests, None)
            return
        self.tally.fail(f"submission {number} of process {plan.process}: {kind}: {text}")
        self._record(name, (time.perf_counter() - due_s) * 1000, octets, requests, kind)

    def _decided(
        self, number: int, asked: PlannedSubmission, ends_s: float, connections: Connections
    ) -> tuple[bytes, Sequence[ReceivedDecision]]:
        """Send the same bytes to one worker after another until all is decided; returns the answer's bytes and decisions."""
        urls = len(self.plan.urls)
        known: Sequence[ReceivedDecision | None] | None = None
        last = "nothing"
        for attempt in count():
            left_s = ends_s - time.perf_counter()
            if left_s <= 0:
                raise Failed("no answer by the deadline", f"after {attempt} attempts, the last ended with {last}")
            try:
                # Half of the time left if there is another worker: one that hangs must not use up all of it.
                limit_s = left_s if urls == 1 else min(left_s, self.plan.attempt_s or max(left_s / 2, 1.0))
                reply = connections.post((number + attempt) % urls, asked.body, limit_s)
            except NoReply as problem:
                last = str(problem)
                turns = (attempt + 1) // urls
                # Immediately at the next worker; with a pause after all were tried.
                pause_s = 0.0 if (attempt + 1) % urls else min(PAUSE_S_MAX, PAUSE_S_FIRST * 2.0 ** min(turns, 10))
            else:
                if reply.status not in (200, 202, *_TRY_AGAIN):
                    raise Failed(f"status {reply.status}", reply.body[:300].decode(errors="replace"))
                if reply.status in (200, 202):
                    now = read(reply.body, asked.ids, complete=reply.status == 200)
                    known = now if known is None else same_so_far(known, now)
                    if reply.status == 200:
                        return reply.body, [decision for decision in now if decision is not None]
                last, pause_s = f"status {reply.status}", max(reply.retry_after_s, PAUSE_S_FIRST)
            self.tally.retry(last)
            gevent.sleep(min(pause_s, max(0.0, ends_s - time.perf_counter())))
        raise AssertionError("the loop has no end of its own")

    def _finish(self) -> None:
        """Called by each user that finds no slot left; the last one finds all slots accounted for."""
        if self.tally.answered + self.tally.failed == self._submissions and not self.tally.finished:
            # If an answer is missing, it could explain any other answer.
            if not self.tally.failed:
                self.checker.settle()
            self.tally.finished = True


_LENGTH = struct.Struct(">I")


class Pool:
    """Submissions generated ahead, in an unnamed file: a soak of hours does not fit in memory, and sequential reads are cheap.

    The queue is first filled, then emptied, in order. The file disappears when it is closed, or with the process.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115 - `close` closes it
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(PlannedSubmission).decode
        self.bytes = 0

    def add(self, asked: PlannedSubmission) -> None:
        """Append a submission."""
        record = self._encode(asked)
        self._file.write(_LENGTH.pack(len(record)))
        self._file.write(record)
        self.bytes += len(record)

    def rewind(self) -> None:
        """Switch from filling to taking."""
        self._file.seek(0)

    def take(self) -> PlannedSubmission:
        """Returns the next submission; there must be one."""
        (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
        return self._decode(self._file.read(length))

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _verifying(key: VerifierKey) -> Callable[[ReceivedDecision], str | None]:
    def verify(received: ReceivedDecision) -> str | None:
        decision: dict[str, Any] = msgspec.to_builtins(received)
        try:
            verify_receipt(decision.pop("receipt"), decision, key)
        except NotVerified as problem:
            return f"{problem.reason}: {problem}"
        return None

    return verify
