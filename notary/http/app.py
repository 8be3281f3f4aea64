"""Routes: where each call goes (docs/http.md).

A submission's path: `App.take` -> `submission.SubmissionCall` -> `notary.gate` -> `App.admitted` -> `InFlight` -> `joiner.Sender` -> its
answer -> the connection. No step is an asyncio task: each calls the next one. Long work is done in pieces (`turns`).
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from joiner import AdmittedSubmission
from notary.bodies import ANY_CLIENT, Payer
from notary.gate import SHUTTING_DOWN
from notary.http.call import Call
from notary.http.health import HEALTH
from notary.http.in_flight import InFlight
from notary.http.lifecycle import Lifecycle
from notary.http.lookups import LOOK_UPS
from notary.http.problems import problem_of
from notary.http.reads import LOOK_UP_US, OPENAPI, Read
from notary.http.submission import SUBMISSIONS, AnswerForm, SubmissionCall, ticket_of
from notary.worker import Worker
from ordering.errors import NotaryError, NotReady
from ordering.pieces import Pieces
from payload import Submission

METRICS_US: Final = 400
"""The estimated time to answer `/metrics`."""


class App(Lifecycle):
    """The service of one worker; `attach` gives it the worker once there is one."""

    def __init__(self, *, service: bool = True, health: bool = True, clock_s: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock_s)
        self._service = service
        self._health = health

    def attach(self, worker: Worker) -> None:
        """Answer calls from this worker, from now on.

        The worker's gate decodes bodies of unauthenticated clients only in active slices (`DutyCycle`). It decodes no body while decided
        submissions have waited too long for their answers (`AnswerBacklog`).
        """
        super().attach(worker)
        if self._service:
            worker.gate.duty = self.duty
            queue = worker.sender.queue
            queue.has_unanswered = self.unanswered.is_standing

            def caught_up() -> None:
                queue.capacity_freed()
                self.admission_changed()

            self.unanswered.caught_up = caught_up

    def take(self, call: Call) -> None:
        """Route a call whose head has arrived."""
        self.began()
        self._start(call)

    def _start(self, call: Call) -> None:
        route = self._route(call.path)
        try:
            if route == SUBMISSIONS:
                self._read_submission(call)
            else:
                Read(self, call, route).start()
        except Exception as problem:
            self.reject(call, route, problem)

    def _route(self, path: str) -> str:
        """Returns the route of a path; empty if this port has none for it."""
        if self._service:
            if path in (SUBMISSIONS, OPENAPI):
                return path
            for route in LOOK_UPS:
                if path.startswith(route) if route.endswith("/") else path == route:
                    return route
        return path if self._health and path in HEALTH else ""

    # ---- submissions ----

    def _read_submission(self, call: Call) -> None:
        """Pass a submission to the gate. Under overload reject it unread, so that the worker has its time for admitted submissions."""
        since_s = time.perf_counter()
        worker = self.worker
        if worker is None or self.ends:
            self.rejected(call, self.reason_to_reject() or NotReady(SHUTTING_DOWN), since_s)
            return
        gate = worker.gate
        if call.method == "POST" and not gate.is_open:
            problem = gate.reason_to_reject(ticket_of(call.headers), at_head=True)
            if problem is not None:
                self.answer(call, SUBMISSIONS, problem_of(problem), after_body=True)
                return
        try:
            SubmissionCall(call, gate, self)
        except NotaryError as problem:
            self.rejected(call, problem, since_s)

    def admitted(self, submission_call: SubmissionCall, submission: AdmittedSubmission) -> None:
        """Queue a submission that the gate has admitted."""
        call, form, since_s = submission_call.call, submission_call.form, submission_call.since_s
        InFlight(self, call, submission, form, since_s, submission_call.payer, of_party=submission_call.of_party).start()

    def rejected(self, call: Call, problem: Exception, since_s: float) -> None:
        """Answer a submission that was rejected: at its head, during its body, or later."""
        self.reject(call, SUBMISSIONS, problem, since_s)

    # ---- calls of acceptor processes ----

    def take_verified(self, call: Call, submission: Submission, form: AnswerForm, since_s: float, payer: Payer = ANY_CLIENT) -> None:
        """Queue a submission that an acceptor process has read and verified. `since_s`: when its head came, by `time.perf_counter`."""
        self.began()
        try:
            if (problem := self.reason_to_reject(form.ticket)) is not None:
                raise problem
            assert self.worker is not None
            if self.unanswered.is_standing():
                self.admission_changed()
            InFlight(self, call, self.worker.gate.admit_verified(submission, form.ticket, payer), form, since_s, payer).start()
        except Exception as problem:
            self.rejected(call, problem, since_s)
            self.admission_changed()

    def take_read(self, call: Call) -> None:
        """Answer a call that only reads, in the turn of its client's address: calls that an acceptor process has read arrive together."""
        self.began()
        self.turns.do(self._read_in_turn(call), network=call.network)

    def _read_in_turn(self, call: Call) -> Pieces[None]:
        self._start(call)
        if not call.gone:
            yield METRICS_US if call.path == "/metrics" else LOOK_UP_US

    def answered_before(self, route: str, status: int, count: int, seconds: Sequence[float]) -> None:
        """Count calls that an acceptor process answered by itself; `seconds`: the durations of those that its gate checked."""
        if self.metrics is not None:
            self.metrics.answered(route, status, count=count - len(seconds))
            for each in seconds:
                self.metrics.answered(route, status, each)
