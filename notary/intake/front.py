"""The application of an intake process: what needs no worker is done here, the rest is handed over. A plain ASGI application."""

import asyncio
import time
from collections import defaultdict, deque
from typing import Final

import msgspec

from notary.admission import Admission
from notary.http.answers import Answer
from notary.http.body import Disconnected, Message, Receive, Room, Send, send_answer
from notary.http.patience import Patience
from notary.http.problems import problem_of
from notary.http.submission import SUBMISSIONS, Asked, asked_of, body_of, is_submission
from notary.intake.link import Link
from notary.intake.messages import Answered, Called, Counted, Down, Gate, HandshakesFailed, Settings, Submitted, Up
from ordering.errors import NotaryError

COUNTED_S: Final = 0.1
"""So often at most the worker is told what was answered here; sooner when it is told anything else."""

CHECKING_S: Final = 0.0005
"""Of a crowd that comes at once so much is checked before it goes to the worker, who works at it meanwhile, or says that it has no room."""


class _Read(msgspec.Struct, frozen=True):
    """A submission as it came."""

    body: bytes
    asked: Asked
    since_s: float
    answer: asyncio.Future[Answer]


class Front:
    """One intake process's."""

    def __init__(self, settings: Settings, admission: Admission, link: Link[Down, Up]) -> None:
        self._settings = settings
        self._admission = admission
        self._link = link
        self._room = Room()
        self._reading = Patience()
        self._refusal: Answer | None = None
        self._read: deque[_Read] = deque()
        self._read_bytes = 0
        self._called = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._refused: dict[tuple[str, int], int] = defaultdict(int)
        self._answered: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._handshakes_failed = 0
        self._telling: asyncio.TimerHandle | None = None

    def take(self, message: Answered | Gate) -> None:
        """Hear the worker."""
        if isinstance(message, Answered):
            answer = self._answers.pop(message.number)
            if not answer.done():
                answer.set_result(message.answer)
            return
        self._refusal = message.refusal
        if message.ends:
            self._reading.cut_short()

    def refusal(self, method: bytes, path: bytes) -> Answer | None:
        """What to answer to this call without reading it, or None."""
        return self._refused_now() if is_submission(method, path) else None

    def handshake_failed(self) -> None:
        """Count a connection that did not get as far as a request."""
        self._handshakes_failed += 1
        self._tell_soon()

    def tell(self) -> None:
        """Tell the worker what was answered here."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for call, status in {*self._refused, *self._answered}:
            seconds = tuple(self._answered.pop((call, status), ()))
            self._link.send(Counted(call, status, self._refused.pop((call, status), 0) + len(seconds), seconds))
        if self._handshakes_failed:
            self._link.send(HandshakesFailed(self._handshakes_failed))
            self._handshakes_failed = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        since_s = time.perf_counter()
        try:
            if scope["path"] == SUBMISSIONS:
                answer = await self._submit(scope, receive, since_s)
            else:
                self.tell()  # it may be the metrics that are asked for
                answer = await self._call(scope)
        except Disconnected:
            return
        except NotaryError as problem:
            answer = problem_of(problem)
            self._answered[SUBMISSIONS, answer[0]].append(time.perf_counter() - since_s)
            self._tell_soon()
        await send_answer(send, answer)

    async def _call(self, scope: Message) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._called += 1
        self._hand_over(Called(self._called, scope["method"], scope["path"], scope["query_string"]), answer)
        return await answer

    async def _submit(self, scope: Message, receive: Receive, since_s: float) -> Answer:
        asked = asked_of(scope)
        settings = self._settings
        with self._room.share(settings.bytes_max, lambda: self._read_bytes) as take:
            if not self._link.writable.is_set():
                await self._link.writable.wait()
            # Not all who are refused were refused by the server: it reads a call that comes behind another one.
            if (refusal := self._refused_now()) is not None:
                return refusal
            body = await body_of(scope["headers"], receive, take, self._reading, settings.http.body_ms_max / 1000)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self._read:
            asyncio.get_running_loop().call_soon(self._check)
        self._read.append(_Read(body, asked, since_s, answer))
        self._read_bytes += len(body)
        return await answer

    def _check(self) -> None:
        """Check what was read, and hand over what is good."""
        until_s = time.perf_counter() + CHECKING_S
        while self._read and time.perf_counter() < until_s:
            read = self._read.popleft()
            self._read_bytes -= len(read.body)
            if read.answer.done():
                continue  # this process ends
            if (refusal := self._refused_now()) is not None:
                read.answer.set_result(refusal)
                continue
            try:
                submission = self._admission.decode(read.body)
                self._admission.verify(submission)
            except Exception as problem:
                read.answer.set_exception(problem)  # who asked meets it
                continue
            self._called += 1
            self._hand_over(Submitted(self._called, read.since_s, read.asked, submission.encoded), read.answer)
        if self._read:
            asyncio.get_running_loop().call_soon(self._check)

    def _hand_over(self, call: Submitted | Called, answer: asyncio.Future[Answer]) -> None:
        self._answers[call.number] = answer
        self._link.send(call)

    def _refused_now(self) -> Answer | None:
        """The refusal, counted, while the worker takes no submissions."""
        if self._refusal is not None:
            self._refused[SUBMISSIONS, self._refusal[0]] += 1
            self._tell_soon()
        return self._refusal

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(COUNTED_S, self.tell)
