"""The application of an intake process: what needs no worker is done here, the rest is handed over. A plain ASGI application."""

import asyncio
import time
from collections import defaultdict
from typing import Final

from notary.admission import Admission
from notary.http.answers import Answer
from notary.http.body import Disconnected, Message, Receive, Room, Send
from notary.http.patience import Patience
from notary.http.problems import problem_of
from notary.http.submission import SUBMISSIONS, asked_of, body_of
from notary.intake.link import Link
from notary.intake.messages import Answered, Called, Counted, Down, Gate, Settings, Submitted, Up
from ordering.errors import NotaryError

COUNTED_S: Final = 0.1
"""So often at most the worker is told what was answered here; sooner when it is told anything else."""

CHECKING_S: Final = 0.005
"""A crowd may come at once, and so long it is checked before the worker is heard again, who may have no room for more of it."""


class Front:
    """One intake process's."""

    def __init__(self, settings: Settings, admission: Admission, link: Link[Down, Up]) -> None:
        self._settings = settings
        self._admission = admission
        self._link = link
        self._room = Room()
        self._reading = Patience()
        self._refusal: Answer | None = None
        self._checking = asyncio.Lock()
        self._checked_since_s = 0.0
        self._called = 0
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._refused: dict[tuple[str, int], int] = defaultdict(int)
        self._answered: dict[tuple[str, int], list[float]] = defaultdict(list)
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
        if self._refusal is None or method != b"POST" or path != SUBMISSIONS.encode():
            return None
        self._refused[SUBMISSIONS, self._refusal[0]] += 1
        self._tell_soon()
        return self._refusal

    def tell(self) -> None:
        """Tell the worker what was answered here."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for call, status in {*self._refused, *self._answered}:
            seconds = tuple(self._answered.pop((call, status), ()))
            self._link.send(Counted(call, status, self._refused.pop((call, status), 0) + len(seconds), seconds))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        since_s = time.perf_counter()
        try:
            if scope["path"] == SUBMISSIONS:
                status, headers, body = await self._submit(scope, receive, since_s)
            else:
                self.tell()  # it may be the metrics that are asked for
                self._called += 1
                status, headers, body = await self._worker_says(Called(self._called, scope["method"], scope["path"], scope["query_string"]))
        except Disconnected:
            return
        except NotaryError as problem:
            status, headers, body = problem_of(problem)
            self._answered[SUBMISSIONS, status].append(time.perf_counter() - since_s)
            self._tell_soon()
        await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def _submit(self, scope: Message, receive: Receive, since_s: float) -> Answer:
        asked = asked_of(scope)
        settings = self._settings
        with self._room.share(settings.bytes_max, lambda: 0) as take:
            if not self._link.writable.is_set():
                await self._link.writable.wait()
            # Not all who are refused were refused by the server: it reads a call that comes behind another one.
            if (refusal := self.refusal(b"POST", SUBMISSIONS.encode())) is not None:
                return refusal
            body = await body_of(scope["headers"], receive, take, self._reading, settings.http.body_ms_max / 1000)
            async with self._checking:
                if time.perf_counter() - self._checked_since_s > CHECKING_S:
                    await asyncio.sleep(0)
                    self._checked_since_s = time.perf_counter()
                # What takes work comes last.
                if (refusal := self.refusal(b"POST", SUBMISSIONS.encode())) is not None:
                    return refusal
                submission = self._admission.decode(body)
                self._admission.verify(submission)
                self._called += 1
                answer = self._worker_says(Submitted(self._called, since_s, asked, submission.encoded))
        # The body is the worker's now.
        return await answer

    def _worker_says(self, call: Submitted | Called) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[call.number] = answer
        self._link.send(call)
        return answer

    def _tell_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(COUNTED_S, self.tell)
