"""The worker's side: it starts its acceptor processes, handles their messages, replaces one that dies or hangs, and ends them."""

import asyncio
import contextlib
import logging
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from notary.acceptor.link import BUFFER_BYTES, Link
from notary.acceptor.messages import (
    AcceptorSettings,
    AdmissionState,
    AnswerCounts,
    Answered,
    ClientLeft,
    Down,
    End,
    HandshakesFailed,
    LookupCall,
    Ping,
    ReadAgain,
    Serving,
    Submitted,
    Up,
)
from notary.config import Config
from notary.http.app import App
from notary.http.call import Answer, Call
from notary.http.listener import bind, url_of
from notary.http.problems import problem_of
from notary.http.settings import parse_listen
from notary.http.submission import SUBMISSIONS
from notary.tls import Certificates
from ordering.errors import Fatal, FatalCode, Overloaded

logger = logging.getLogger("notary.acceptor")

ADMISSION_CHECK_S: Final = 0.05
"""While submissions are rejected, of all parties or of one, the worker checks at this interval whether to admit them again.

A full queue opens again when a tenth of the requests that are decided in `pending_ms_max` has been decided. So it does not run empty.
"""
AGAIN_S: Final = 2.0
"""The minimum time between two starts of a process."""
ENDS_S: Final = 2.0
"""The time that a process needs to end after its deadline, or after it has lost its link."""
PING_S: Final = 3.0
"""The time between two pings."""
PINGS_MAX: Final = 5
"""A process that has answered none of so many pings hangs."""
START_PINGS_MAX: Final = 20
"""A process that does not serve after so many intervals of `PING_S` hangs. It takes a second to start, and more on a busy machine."""


class AcceptorPool:
    """All acceptor processes of one worker, in place of a `Server`."""

    def __init__(self, config: Config, app: App, *, log_level: str, log_json: bool, certificates: Certificates | None = None) -> None:
        """Bind the port. Raises `ConfigurationError`, for example when another notary listens on it; `NotReady` as `bind` does.

        `certificates`: the worker's own view of the TLS files, for its metrics. Each process reads the files itself.
        """
        self._certificates = certificates
        host, port = parse_listen(config.http.listen)
        self._config = config
        self._app = app
        self._log_level = log_level
        self._log_json = log_json
        # Bind the first socket unshared: this fails if any process has the port, even another notary's acceptor process. Then share it.
        self._listening = [bind(host, port)]
        self._listening[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        host, port = self._listening[0].getsockname()[:2]
        self._listening += [bind(host, port, shared=True) for _ in range(config.http.acceptor_processes - 1)]
        self._processes: list[_Process] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._admission = AdmissionState(None)
        self._next_check: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """The URL of the service."""
        return url_of(self._listening[0], tls=self._certificates is not None)

    async def start(self) -> None:
        """Start all processes; returns when all accept connections. Raises `Fatal` when one ends instead."""
        self._app.admission_changed = self._check_if_changed
        self._check()
        for at in range(len(self._listening)):
            self._processes.append(await self._started(at))
        loop = asyncio.get_running_loop()
        for process in self._processes:
            watching = loop.create_task(process.watch())
            await process.serves_or_ended.wait()
            watching.cancel()
            if process.ended.is_set():
                raise Fatal(
                    FatalCode.ACCEPTOR_ENDED,
                    f"acceptor process {process.name} ended with {await process.exit_code()} before it served: its last log lines say why",
                )
        self._keeping = [loop.create_task(self._keep(at)) for at in range(len(self._processes))]
        if self._certificates is not None:
            self._keeping.append(loop.create_task(self._certificates.follow()))

    def read_again(self, log_level: str) -> None:
        """Make the processes read certificates and parties again, and log from this level on."""
        self._log_level = log_level
        for process in self._processes:
            process.send(ReadAgain(log_level))

    async def stop(self, seconds_max: float) -> None:
        """Make the processes accept no more connections, send the pending answers, and end."""
        for keeping in self._keeping:
            keeping.cancel()
        for process in self._processes:
            process.send(End(seconds_max))
        for process in self._processes:
            await process.exit_code(seconds_max + ENDS_S)
        if self._next_check is not None:
            self._next_check.cancel()
        for listening in self._listening:
            listening.close()

    async def _started(self, at: int) -> "_Process":
        """Start a process on socket `at` and return it. Raises `OSError`."""
        config, of, http = self._config, len(self._listening), self._config.http
        settings = AcceptorSettings(
            process=f"{config.worker.name}/{at + 1}",
            notary_name=config.name,
            parties_file=str(config.path(config.parties_file)),
            http=msgspec.structs.replace(
                http,
                connections_max=math.ceil(http.connections_max / of),
                connections_per_address_max=math.ceil(http.connections_per_address_max / of),
            ),
            tls=config.tls_files,
            bytes_max=math.ceil(config.queue.pending_bytes_max / of),
            log_level=self._log_level,
            log_json=self._log_json,
        )
        process = _Process(settings, self._listening[at], self._app, self._certificates)
        await process.connect()
        process.send(self._admission)
        return process

    async def _keep(self, at: int) -> None:
        """Restart the process on socket `at` whenever it ends or hangs. Connections that arrive meanwhile wait.

        If a process ends before it serves, its successor may do the same. Then the other processes get all connections until one serves.
        """
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            process = self._processes[at]
            await process.watch()
            logger.warning("acceptor process %s ended with %d, starting it again", process.name, await process.exit_code())
            if not process.served:
                with contextlib.suppress(OSError):  # no descriptor is free: the next try comes soon
                    self._listening[at] = _bound_again(self._listening[at])
            await asyncio.sleep(started_s + AGAIN_S - loop.time())
            started_s = loop.time()
            try:
                self._processes[at] = await self._started(at)
            except OSError as problem:
                process.served = False
                logger.warning("acceptor process %s cannot be started: %s", process.name, problem)

    def _check_if_changed(self) -> None:
        # Only the first of several rejections in a row triggers a check, since a check may send a message to every process.
        admission, behind = self._admission, self._app.unanswered.is_standing()
        rejects = admission.rejection is not None or admission.full is not None
        if self._next_check is None or self._app.ends or rejects == (self._app.peek() is None) or admission.behind != behind:
            self._check()

    def _check(self) -> None:
        """Check whether submissions are admitted, and notify the processes of a change."""
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None
        problem, worker = self._app.peek(), self._app.worker
        admission = AdmissionState(
            None if problem is None or isinstance(problem, Overloaded) else problem_of(problem),
            self._app.ends,
            (str(problem), problem.retry_after_s) if isinstance(problem, Overloaded) else None,
            {} if worker is None else worker.sender.queue.full_parties(),
            self._app.unanswered.is_standing(),
            b"" if worker is None else worker.tickets.key,
        )
        if admission != self._admission:
            self._admission = admission
            for process in self._processes:
                process.send(admission)
        if admission.rejection is not None or admission.full is not None or admission.full_parties or admission.behind:
            self._next_check = asyncio.get_running_loop().call_later(ADMISSION_CHECK_S, self._check)


class _Process:
    """One acceptor process, from its start to its end."""

    def __init__(self, settings: AcceptorSettings, listening: socket.socket, app: App, certificates: Certificates | None) -> None:
        self.name = settings.process
        self.serves_or_ended = asyncio.Event()
        self.ended = asyncio.Event()
        self._app = app
        self._certificates = certificates
        self.served = False
        """True once it has accepted connections."""
        self._pings = 0
        """The number of pings since its last answer to one."""
        self._calls: dict[int, Call] = {}
        """The calls under way, by number."""
        self._link: Link[Up, Down] = Link(Up, self._take, self._lost, reads_while_it_may_write=True)
        self._linked, theirs = socket.socketpair()
        with theirs:
            for end in (self._linked, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            handed = (listening.fileno(), theirs.fileno())
            command = [sys.executable, "-P", "-m", "notary.acceptor", msgspec.json.encode(settings).decode(), *map(str, handed)]
            # The process inherits the blocked signals: a terminal or supervisor sends them to all processes, but they are for the worker.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=handed)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    async def connect(self) -> None:
        """Connect the link; called once, before anything else."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._link, self._linked)

    def send(self, message: Down) -> None:
        """Send it a message."""
        self._link.send(message)

    async def watch(self) -> None:
        """Returns when it has ended. Kills it if it hangs.

        Pings are counted, not the time. So nothing is killed after a pause of this process or of the machine.
        """
        while not self.ended.is_set():
            if self._pings == (PINGS_MAX if self.served else START_PINGS_MAX):
                hangs = "has answered no ping" if self.served else "does not serve"
                logger.warning("acceptor process %s %s after %g s, killing it", self.name, hangs, self._pings * PING_S)
                self._process.kill()
            self._pings += 1
            if self.served:
                self.send(Ping())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), PING_S)

    async def exit_code(self, seconds_max: float = ENDS_S) -> int:
        """Returns its exit code; kills it if it does not end in time."""
        try:
            return await asyncio.to_thread(self._process.wait, seconds_max)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def _take(self, message: Up) -> None:
        if isinstance(message, Submitted):
            call = self._calls[message.number] = Call("POST", SUBMISSIONS, b"", [], self._answer(message.number))
            call.network = "" if message.payer.is_authenticated else message.payer.name
            self._app.take_verified(call, message.submission, message.form, message.since_s, message.payer)
        elif isinstance(message, LookupCall):
            called = Call(message.method, message.path, message.query, [], self._answer(message.number))
            called.network, called.may_read = message.network, message.may_read
            self._calls[message.number] = called
            self._app.take_read(called)
        elif isinstance(message, ClientLeft):
            if (left := self._calls.get(message.number)) is not None:
                _client_left(left, half=message.half)
        elif isinstance(message, AnswerCounts):
            self._app.answered_before(message.call, message.status, message.count, message.seconds)
        elif isinstance(message, HandshakesFailed):
            if self._certificates is not None:
                self._certificates.handshakes_failed += message.count
        elif isinstance(message, Serving):
            self.served, self._pings = True, 0
            self.serves_or_ended.set()

    def _answer(self, number: int) -> Callable[[Call, Answer, bool], None]:
        def answer(call: Call, answer: Answer, after_body: bool) -> None:
            self._calls.pop(number, None)
            self._link.send(Answered(number, answer, next(iter(call.parties), b"").decode()))

        return answer

    def _lost(self) -> None:
        self.ended.set()
        self.serves_or_ended.set()
        for call in list(self._calls.values()):
            _client_left(call)


def _client_left(call: Call, *, half: bool = False) -> None:
    """End the wait of a submission, or a long poll if it has begun. `half`: the client may still read an answer."""
    if not half:
        call.leave()
    call.may_wait = False  # its turn may come later
    if call.left is not None:
        call.left()


def _bound_again(listening: socket.socket) -> socket.socket:
    """Returns a socket at the same address that does not listen, and closes the given one. Raises `OSError`.

    It is not bound with `SO_REUSEADDR`: then another program could take the port while no socket of ours listens.
    """
    again = socket.socket(listening.family, listening.type)
    try:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        again.bind(listening.getsockname())
    except OSError:
        again.close()
        raise
    listening.close()
    return again
