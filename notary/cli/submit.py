"""`notary submit`: signs and submits requests, and writes the decisions (docs/command-line.md).

Three activities run concurrently. A reader splits the requests into submissions, up to `--in-flight` submissions are with the notary, and a
writer writes the answers in the order of the requests. Memory is bounded by the submissions in flight.

Running the same command again is always safe: the same requests have the same transaction ids, and each is decided once (R7). So after any
error the command writes the decisions that it has, and names the other requests on stderr. The exit code is then 2. It is 1 if a worker
returned an outcome without a valid receipt, which is not written.
"""

import argparse
import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from ssl import SSLContext
from typing import IO, Any, Final, TypeAlias, TypeVar

import msgspec

from notary.cli import ProgressLine
from notary.client import (
    BATCH_REQUESTS_MAX,
    SUBMISSION_DEADLINE_S,
    Answer,
    AsyncClient,
    Contradiction,
    KnownNotaries,
    Rejected,
    Signer,
    Unanswered,
    Unproven,
    batches,
    tls_context,
)
from notary.client.request_file import RequestRead, read_requests
from notary.client.trust import FILE_VARIABLE
from notary.exit_codes import EXIT_COULD_NOT, EXIT_DONE, EXIT_NO
from ordering.errors import ConfigurationError, Malformed, NotaryError
from payload import REQUESTS_MAX

T = TypeVar("T")
_Batch: TypeAlias = list[RequestRead]


IN_FLIGHT_MAX: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `notary submit`."""
    parser.add_argument("file", metavar="FILE", help="requests: a JSON array, or one JSON object a line; - for standard input")
    parser.add_argument("--key", metavar="FILE", required=True, help="the party's private key, PEM (Ed25519 or ECDSA P-256)")
    parser.add_argument("--party", metavar="NAME", required=True, help="the party's name, as the notary knows it")
    parser.add_argument("--url", metavar="URL[,URL...]", required=True, help="the notary's workers; tried in turn until one answers")
    parser.add_argument("--notary-name", metavar="NAME", help="the notary's name (default: ask the notary)")
    key = "the notary's verifier key, by which receipts are checked; may be given again (default: the one trusted on first use)"
    parser.add_argument("--verifier-key", metavar="KEY", action="append", help=key)
    known = f"where keys trusted on first use are kept (default: ${FILE_VARIABLE}, else in ~/.config)"
    parser.add_argument("--known-notaries", metavar="FILE", help=known)
    batch = f"requests of one submission, under one signature (default {BATCH_REQUESTS_MAX})"
    parser.add_argument("--batch", metavar="N", type=_up_to(REQUESTS_MAX), default=BATCH_REQUESTS_MAX, help=batch)
    flight = "submissions in flight (default 1: decided in the order of the file); more are faster, in any order"
    parser.add_argument("--in-flight", metavar="N", type=_up_to(IN_FLIGHT_MAX), default=1, help=flight)
    deadline = f"how long to try for each submission (default {SUBMISSION_DEADLINE_S:g})"
    parser.add_argument("--deadline", metavar="SECONDS", type=seconds, default=SUBMISSION_DEADLINE_S, help=deadline)
    add_tls_arguments(parser)
    parser.add_argument("--fail-on-rejection", action="store_true", help="exit with 1 if any request is rejected")
    parser.add_argument("--json", action="store_true", help="no effect: decisions are always written as JSON, one a line")


def add_tls_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TLS arguments of a client, which `notary top` has too."""
    parser.add_argument("--tls-ca", metavar="FILE", help="authorities that certify the workers, PEM (default: those of this machine)")
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate for workers that ask for one, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM (default: it is in the certificate's file)")


def tls_of(arguments: argparse.Namespace) -> SSLContext | None:
    """Returns the TLS context of the TLS arguments; None for the machine's default. Raises `ConfigurationError`."""
    files = (arguments.tls_ca, arguments.tls_cert, arguments.tls_key)
    return None if files == (None, None, None) else tls_context(*files)


def run(arguments: argparse.Namespace) -> int:
    """Submit the requests. Returns the exit code."""
    signer = Signer.from_file(arguments.key)
    urls = [url.strip() for url in arguments.url.split(",") if url.strip()]
    # Make the client before the file is opened: it checks its arguments, and nothing is left open if they are wrong.
    client = AsyncClient(
        urls,
        arguments.party,
        signer,
        notary_name=arguments.notary_name,
        tls=tls_of(arguments),
        verifier_keys=arguments.verifier_key or (),
        known_notaries=KnownNotaries(arguments.known_notaries, _print_error),
    )
    stream, name = _open(arguments.file)
    tally = _Tally()
    failure: BaseException | None = None
    try:
        asyncio.run(_interruptible(_Run(arguments, client, stream, name, tally).run()))
    except* (NotaryError, OSError) as group:
        failure = group.exceptions[0]
    if isinstance(failure, Unproven):
        _print_error(str(failure))
        return EXIT_NO
    if failure is not None:
        raise failure  # without its group, as `notary.cli` expects it
    tally.report()
    if any(isinstance(problem, Unproven) for problem in tally.problems):
        return EXIT_NO
    if tally.problems:
        return EXIT_COULD_NOT
    return EXIT_NO if tally.rejected and arguments.fail_on_rejection else EXIT_DONE


async def _interruptible(run: Coroutine[Any, Any, None]) -> None:
    """Awaits `run`, and raises `KeyboardInterrupt` after SIGINT.

    `asyncio.run` alone cancels its task within the signal handler, between any two steps of a callback. If that one sets the result of a
    future that the task awaits, the future is cancelled when it is set, and asyncio prints a traceback. The event loop cancels between two
    callbacks.
    """
    task = asyncio.current_task()
    assert task is not None
    if threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    try:
        await run
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class _Outcome(msgspec.Struct, frozen=True):
    """The result of a submission: an answer for each request; None for some if `problem` is set."""

    answers: tuple[Answer | None, ...]
    problem: NotaryError | None = None


class _Run:
    """One run of the command: a reader, a task for each submission in flight, and a writer."""

    def __init__(self, arguments: argparse.Namespace, client: AsyncClient, stream: IO[bytes], name: str, tally: "_Tally") -> None:
        self._arguments = arguments
        self._client = client
        self._stream = stream
        self._name = name
        self._tally = tally
        self._in_read = False
        self._over = False
        self._slots = asyncio.Semaphore(arguments.in_flight)
        # In the order of the requests; bounded by the slots.
        self._sent: asyncio.Queue[tuple[_Batch, asyncio.Task[_Outcome]] | None] = asyncio.Queue()

    async def run(self) -> None:
        """Read, submit and write until the requests end or an error stops it; the tally has the results."""
        try:
            async with self._client as client:
                deadline_s = self._arguments.deadline
                name = await client.notary_name(deadline_s=deadline_s)
                async with asyncio.TaskGroup() as group:
                    reader = group.create_task(self._read_all(name, group))
                    await self._write_all(reader)
        finally:
            # A read that still runs, for example from a silent pipe, holds the stream's lock. Then the reader closes the stream.
            self._over = True
            if not self._in_read:
                self._stream.close()

    async def _read_all(self, notary_name: str, group: asyncio.TaskGroup) -> None:
        submissions = _submissions(read_requests(self._stream, self._name, notary_name), self._arguments.batch)

        def read() -> _Batch | None:
            try:
                return next(submissions, None)
            finally:
                self._in_read = False
                if self._over:
                    self._stream.close()

        is_empty = True
        try:
            while True:
                await self._slots.acquire()
                self._in_read = True
                if (batch := await _in_thread(read)) is None:
                    if is_empty:  # its producer failed, or the name is wrong
                        raise ConfigurationError(f"{self._name} has no request: give one JSON object a line, or a JSON array of them")
                    break
                is_empty = False
                self._sent.put_nowait((batch, group.create_task(self._submit(batch))))
        except (ConfigurationError, Malformed) as problem:
            self._tally.problems.append(problem)
        except OSError as problem:
            self._tally.problems.append(ConfigurationError(f"{self._name} cannot be read: {problem.strerror}"))
        finally:
            self._sent.put_nowait(None)

    async def _submit(self, batch: _Batch) -> _Outcome:
        try:
            requests = [each.request for each in batch]
            return _Outcome(tuple(await self._client.submit(requests, deadline_s=self._arguments.deadline)))
        except (Unanswered, Rejected, Unproven, Contradiction) as problem:
            return _Outcome(problem.answers, problem)
        except NotaryError as problem:
            return _Outcome((None,) * len(batch), problem)

    async def _write_all(self, reader: "asyncio.Task[None]") -> None:
        write = _writer()
        while (sent := await self._sent.get()) is not None:
            batch, submission = sent
            outcome = await submission
            lines = b"".join([msgspec.json.encode(answer) + b"\n" for answer in outcome.answers if answer is not None])
            if lines:
                await _in_thread(partial(write, lines))
            self._tally.add(batch, outcome)
            # Release the slot only now, so that decisions that are not written yet are bounded too.
            self._slots.release()
            if outcome.problem is not None:
                # Send no more submissions, since they would probably fail too. Wait for those in flight, and write their answers.
                reader.cancel()


class _Tally:
    """The counts and problems of a run; reports them on stderr."""

    def __init__(self) -> None:
        self.problems: list[NotaryError] = []
        self.committed = self.rejected = 0
        self._unknown: list[RequestRead] = []
        self._not_admitted: list[RequestRead] = []
        self._progress = ProgressLine()

    def add(self, batch: _Batch, outcome: _Outcome) -> None:
        """Count a finished submission."""
        if outcome.problem is not None:
            self.problems.append(outcome.problem)
        for each, answer in zip(batch, outcome.answers, strict=True):
            if answer is None:
                problem = outcome.problem
                is_known = not problem.may_be_decided if isinstance(problem, Rejected) else isinstance(problem, Malformed)
                (self._not_admitted if is_known else self._unknown).append(each)
            elif answer.committed:
                self.committed += 1
            else:
                self.rejected += 1
        self._progress.show(self._counts())

    def report(self) -> None:
        """Print the errors, the requests without an answer, the remedy, and the counts."""
        self._progress.end()
        for each in self._unknown:
            _print_error(f"outcome unknown: {each.where}, transaction {each.transaction_id}")
        if self._not_admitted:
            first, last = self._not_admitted[0], self._not_admitted[-1]
            others = f" to {last.where}, {len(self._not_admitted)} requests" if len(self._not_admitted) > 1 else ""
            _print_error(f"not admitted: {first.where}{others}")
        for text in dict.fromkeys(str(problem) for problem in self.problems):
            _print_error(text)
        if self._unknown:
            _print_error("the same command again is safe: decisions never change, and are written again")
        elif self.problems:
            written = "the written decisions are final: " if self.committed + self.rejected else ""
            _print_error(f"{written}correct the cause, and run the command again")
        _print_error(self._counts())

    def _counts(self) -> str:
        counts = {"unknown": len(self._unknown), "not admitted": len(self._not_admitted)}
        others = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return f"{self.committed + self.rejected} requests decided: {self.committed} committed, {self.rejected} rejected{others}"


def _submissions(requests: Iterator[RequestRead], requests_max: int) -> Iterator[_Batch]:
    """Yields the requests as submissions that the contract allows: none too large, none with the same transaction twice."""
    for batch in batches(requests, lambda each: each.request_bytes, requests_max):
        apart: dict[str, RequestRead] = {}
        for each in batch:
            if each.transaction_id in apart:
                yield list(apart.values())
                apart = {}
            apart[each.transaction_id] = each
        yield list(apart.values())


def _open(file: str) -> tuple[IO[bytes], str]:
    try:
        if file == "-":
            # Open a separate reader: a thread blocked in `sys.stdin` would hold a lock that Python needs at exit.
            return open(0, "rb", closefd=False), "standard input"
        return open(file, "rb"), file
    except OSError as problem:
        raise ConfigurationError(f"{file} cannot be read: {problem.strerror}; give a file of requests, or - for standard input") from None


def _writer() -> Callable[[bytes], None]:
    """Returns a function that writes complete lines to stdout at once. Raises `ConfigurationError` when stdout is closed.

    Call it in a thread: the reader of our output may be slow, while the submissions in flight have deadlines.
    """
    if sys.stdout is None:
        raise ConfigurationError("standard output is closed, so decisions could not be written: no request was sent")
    try:
        # A separate writer, for the reason in `_open`. If stdout is no file (the caller of `main` captured it), there is no such lock.
        raw: IO[bytes] | None = open(sys.stdout.fileno(), "wb", closefd=False)  # noqa: SIM115 - it lives as long as the process
    except OSError:
        raw = None

    def write(lines: bytes) -> None:
        try:
            if raw is None:
                sys.stdout.write(lines.decode())
            else:
                raw.write(lines)
                raw.flush()
        except BrokenPipeError:
            raise
        except OSError as problem:
            raise ConfigurationError(f"standard output cannot be written: {problem.strerror}; run the same command again") from None

    return write


async def _in_thread(function: Callable[[], T]) -> T:
    """Calls `function` in a daemon thread and returns its result: unlike an executor's thread, it does not block the process's exit."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # so that a caller that is cancelled leaves it as it is

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as problem:
            done.set_exception(problem)

    threading.Thread(target=work, name="notary-submit", daemon=True).start()
    return await asyncio.wrap_future(done)


def _print_error(text: str) -> None:
    print(f"notary submit: {text}", file=sys.stderr)


def _up_to(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 to {most}")

    return parse


def seconds(text: str) -> float:
    """Parses an argument: a number of seconds above 0. Raises `ArgumentTypeError`."""
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if 0 < given < float("inf"):
        return given
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
