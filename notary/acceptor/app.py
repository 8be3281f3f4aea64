"""The application of an acceptor process. Its gate checks submissions; valid ones, and all other calls, are handed to the worker."""

import asyncio
import logging
import os
import time
from collections import defaultdict
from typing import Final

from joiner import AdmittedSubmission
from notary.acceptor.link import Link
from notary.acceptor.messages import (
    AcceptorSettings,
    AdmissionState,
    AnswerCounts,
    Answered,
    ClientLeft,
    Down,
    HandshakesFailed,
    LookupCall,
    Submitted,
    Up,
)
from notary.duty_cycle import DutyCycle
from notary.gate import Gate
from notary.http.call import Answer, Call
from notary.http.lanes import Lane, WaitingLanes, lane_of
from notary.http.lifecycle import BUG
from notary.http.lookups import LOOK_UPS, TRANSACTIONS, shows_decisions
from notary.http.problems import problem_of
from notary.http.readers import Readers
from notary.http.submission import SUBMISSIONS, SubmissionCall, ticket_of
from notary.parties import Parties
from notary.tickets import Tickets
from ordering.clock import clock_ms, uptime_s
from ordering.errors import NotaryError, Overloaded
from payload import Submission

logger = logging.getLogger("notary.acceptor")

COUNTED_S: Final = 0.1
"""The delay after which answers made here are reported to the worker. A call that is no submission brings the report at once."""

CHECKING_S: Final = 0.0005
"""The time for which a part of a burst is checked before it is handed over. So the worker starts early, or reports that it is full."""


class NotAdmitting(NotaryError):
    """The worker rejects all submissions now; `answer` is its answer to all submissions."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__("the worker rejects all submissions now")


class WorkersCapacity:
    """The worker's capacity, as last reported. Submissions without capacity are rejected here; only the worker admits."""

    pending_bytes = 0

    def __init__(self) -> None:
        self.is_busy = False
        """True while the worker's answers are behind. Pending submissions do not count: the processes have cores of their own."""
        self.full: tuple[str, int] | None = None
        self.full_parties: dict[str, int] = {}

    def __contains__(self, submission: Submission) -> bool:
        return False

    def is_calm(self, requests: int, size_bytes: int) -> bool:
        """Returns True while no submission must be rejected."""
        return self.full is None and not self.full_parties

    def rejection(
        self, requests: int, size_bytes: int, party: str | None = None, *, ticketed: bool = False, reserve: bool = False
    ) -> Overloaded | None:
        """Returns the reason why the worker would reject a submission. Only the worker knows the capacity left for tickets."""
        if ticketed:
            return None
        if self.full is not None:
            return Overloaded(*self.full)
        after_s = self.full_parties.get(party or "")
        if after_s is None:
            return None
        return Overloaded("too many requests of this party are waiting already: send the same again later", after_s)


class AcceptorApp:
    """The application of one acceptor process."""

    def __init__(self, settings: AcceptorSettings, parties: Parties, link: Link[Down, Up]) -> None:
        self._capacity = WorkersCapacity()
        # All processes use the worker's clock, and its key, which arrives before any rejection. Random first numbers keep their tickets
        # distinct.
        self._tickets = Tickets(b"", uptime_s, int.from_bytes(os.urandom(8)))
        self.gate = Gate(
            settings.notary_name,
            parties,
            lambda: self._rejection,
            uptime_s,
            bytes_max=settings.bytes_max,
            body_s_max=settings.http.body_s,
            turn_s_max=CHECKING_S,
            capacity=self._capacity,
            tickets=self._tickets,
        )
        self._readers = Readers.of(settings.http, settings.notary_name, parties, clock_ms)
        self._link = link
        self._rejection: NotAdmitting | None = None
        self._called = 0
        self._calls: dict[int, Call] = {}
        self._submitted: dict[int, tuple[Lane, bytes, int]] = {}
        """By number, the submissions that were handed over and are not answered: the lane, the party, and the bytes to charge to it.

        These are the bytes of a body that was decoded in the lane of its client's address.
        """
        self.waiting_lanes = WaitingLanes(lambda party: parties.weight_of(party.decode()))
        """The lanes of these submissions. Those of other processes take none of this one's time."""
        self.duty = DutyCycle(time.perf_counter, self.waiting_lanes.__bool__)
        """The active slices, in which unauthenticated clients are served too."""
        self._rejected: dict[tuple[str, int], int] = defaultdict(int)
        self._answered: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._handshakes_failed = 0
        self._report_timer: asyncio.TimerHandle | None = None

    def handle_message(self, message: Answered | AdmissionState) -> None:
        """Handle a message of the worker."""
        if isinstance(message, Answered):
            call = self._calls.pop(message.number)
            call.left = None
            size_bytes = 0
            if message.number in self._submitted:
                lane, party, size_bytes = self._submitted.pop(message.number)
                self.waiting_lanes.leave(lane, party)
            if message.party:
                call.add_party(message.party.encode())
                self.gate.charge_lane(message.party, size_bytes)
                self._tickets.use(ticket_of(call.headers), message.party)
            call.answer(message.answer)
            return
        self._rejection = None if message.rejection is None else NotAdmitting(message.rejection)
        self._capacity.full, self._capacity.full_parties, self._capacity.is_busy = message.full, message.full_parties, message.behind
        self._tickets.key = message.ticket_key
        if message.ends:
            self.gate.stop()
        elif not message.behind:
            self.gate.resume()

    def handshake_failed(self) -> None:
        """Count a connection that did not get as far as a request."""
        self._handshakes_failed += 1
        self._report_soon()

    def report(self) -> None:
        """Report the answers made here to the worker."""
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        for call, status in {*self._rejected, *self._answered}:
            seconds = tuple(self._answered.pop((call, status), ()))
            self._link.send(AnswerCounts(call, status, self._rejected.pop((call, status), 0) + len(seconds), seconds))
        if self._handshakes_failed:
            self._link.send(HandshakesFailed(self._handshakes_failed))
            self._handshakes_failed = 0

    # ---- called by the server ----

    def take(self, call: Call) -> None:
        """Handle the head of a call."""
        if call.path != SUBMISSIONS:
            self.report()  # the call may ask for the metrics
            may_read = False
            if self._readers is not None and shows_decisions(call.path) and call.method in ("GET", "HEAD"):
                try:
                    self._readers.check(call)
                except NotaryError as rejection:
                    answer = problem_of(rejection)
                    self._count(answer[0], next(route for route in LOOK_UPS if call.path.startswith(route)))
                    call.answer(answer)
                    return
                may_read = True
            self._hand_over(call, LookupCall(self._number(), call.method, call.path, call.query, call.network, may_read))
            return
        since_s = time.perf_counter()
        try:
            if call.method == "POST" and not (self._rejection is None and self.gate.is_open):
                problem = self._rejection or self.gate.reason_to_reject(ticket_of(call.headers), at_head=True)
                if problem is not None:
                    answer = problem.answer if isinstance(problem, NotAdmitting) else problem_of(problem)
                    self._count(answer[0])
                    call.answer(answer, after_body=True)
                    return
            SubmissionCall(call, self.gate, self)
        except NotaryError as problem:
            self.rejected(call, problem, since_s)

    # ---- called by the gate ----

    def admitted(self, submission_call: SubmissionCall, submission: AdmittedSubmission) -> None:
        """Hand the submission to the worker. Its gate makes the final decision on admission."""
        number, call = self._number(), submission_call.call
        party = submission.party.encode()
        lane = lane_of(party, call.network, call.parties)
        self._submitted[number] = lane, party, 0 if submission_call.of_party else len(submission.encoded)
        self.waiting_lanes.enter(lane, party)
        self._hand_over(call, Submitted(number, submission_call.since_s, submission_call.form, submission, submission_call.payer))

    def rejected(self, call: Call, problem: Exception, since_s: float) -> None:
        """Answer a rejected call here."""
        if isinstance(problem, NotAdmitting):
            self._count(problem.answer[0])
            call.answer(problem.answer)
            return
        if not isinstance(problem, NotaryError):
            logger.error("a call could not be answered", exc_info=problem)
        answer = problem_of(problem) if isinstance(problem, NotaryError) else BUG
        self._answered[SUBMISSIONS, answer[0]].append(time.perf_counter() - since_s)
        self._report_soon()
        call.answer(answer)

    def left(self) -> None:
        """Do nothing: clients that leave are not counted."""

    def _number(self) -> int:
        self._called += 1
        return self._called

    def _hand_over(self, call: Call, message: Submitted | LookupCall) -> None:
        self._calls[message.number] = call
        self._link.send(message)
        gone, half = ClientLeft(message.number), ClientLeft(message.number, half=True)
        call.when_gone = lambda: self._link.send(gone)
        if isinstance(message, LookupCall) and message.path.startswith(TRANSACTIONS) and message.query:  # it may be a long poll
            call.left = lambda: self._link.send(half)
            if not call.may_wait:
                self._link.send(half)
        if call.gone:
            self._link.send(gone)

    def _count(self, status: int, route: str = SUBMISSIONS) -> None:
        """Count a call that was rejected without being read."""
        self._rejected[route, status] += 1
        self._report_soon()

    def _report_soon(self) -> None:
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(COUNTED_S, self.report)
