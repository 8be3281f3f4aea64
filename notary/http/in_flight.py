"""A submission in flight, from its admission by the gate to its answer. If it is not decided yet, it is queued for the log."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from joiner import AdmittedSubmission, Pending
from notary.bodies import Payer
from notary.decision import CONFLICT_US, CONFLICTS_A_PIECE, Decision
from notary.http.call import JSON, Call
from notary.http.lanes import Lane, lane_of
from notary.http.lifecycle import BUG, Lifecycle
from notary.http.submission import SUBMISSIONS, AnswerForm
from notary.index import ROW_US, TILE_US
from notary.wire import encode_decision, encode_decisions, encode_in_pieces
from ordering.errors import Fatal
from ordering.ids import excerpt
from ordering.pieces import Pieces

logger = logging.getLogger("notary.http")

RETRY_AFTER_UNDECIDED_S: Final = 1
COPIED_BYTES_PER_US: Final = 2_000
IDS_A_PIECE: Final = 200
DECISION_US: Final = 2
"""The time to write a decision without conflicts as JSON."""
RECEIPT_US: Final = 5
"""The time to make a receipt from tiles that are in memory."""
PIECE_US: Final = 100
"""The time after which an answer to a submission pauses: pausing after each decision would cost a tenth of the time to answer."""


class InFlight:
    """One submission: `start` queues it, `_decided` or the end of its wait calls `end`, and `_answer` answers it."""

    __slots__ = (
        "_app",
        "_call",
        "_counted_bytes",
        "_counts",
        "_decisions",
        "_form",
        "_lane",
        "_of_party",
        "_party",
        "_payer",
        "_pending",
        "_since_s",
        "_submission",
        "_tick",
        "_tracing",
        "_worker",
    )

    def __init__(
        self,
        app: Lifecycle,
        call: Call,
        submission: AdmittedSubmission,
        form: AnswerForm,
        since_s: float,
        payer: Payer,
        *,
        of_party: bool = True,
    ) -> None:
        """`since_s`: when its head came, by `time.perf_counter`. `payer`: the client that it counts for at the gate. `of_party`: it came in
        its party's lane (`notary.bodies`).
        """
        assert app.worker is not None, "its gate has stopped"
        self._app = app
        self._worker = app.worker
        self._call = call
        self._submission: AdmittedSubmission | Pending[Decision] = submission
        """Once it is queued, the queue's object: if many calls send the same requests, memory has them once."""
        self._party = submission.party.encode()
        self._payer = payer
        self._counted_bytes = 0
        """While the requests are looked up: the bytes that the gate counts for them."""
        self._form = form
        self._since_s = since_s
        self._of_party = of_party
        self._decisions: Sequence[Decision] | None = None
        self._pending: Pending[Decision] | None = None
        self._counts = False
        """True for one of the calls that wait for a decided submission: `AnswerBacklog` counts its answer. Copies use no capacity."""
        self._lane: Lane = b""
        """The lane in which it waits, empty before. A copy, which anyone may send, waits in that of its party."""
        self._tick = 0
        """The tick in which its wait for the decisions ends (`Deadlines`); 0 before the wait."""
        self._tracing: AbstractContextManager[None] | None = None

    def start(self) -> None:
        """Queue the submission. If it may be a retry, check first whether all its requests are decided."""
        worker, submission = self._worker, self._submission
        assert isinstance(submission, AdmittedSubmission)
        # A decided request stays decided (R7): its retry needs neither the log nor a wait. One look-up, of the first request, excludes
        # most submissions.
        may_be_retried = worker.index.has_decided([submission.requests[0].transaction_id])
        if worker.tracing is not None:
            self._tracing = worker.tracing.submission(submission.encoded, len(submission.requests), self._form.traceparent, self._since_s)
            self._tracing.__enter__()
        self._app.waiting.add(self)
        if may_be_retried:
            self._wait_in(self._party)
            self._counted_bytes = len(submission.encoded)
            worker.gate.count_bytes(self._counted_bytes, self._payer)
            self._app.turns.do(self._check_whether_retried(), party=submission.party)
        else:
            self._queue()

    def _check_whether_retried(self) -> Pieces[None]:
        """Answer the submission if all its requests are decided; else queue it, if there still is capacity and quota."""
        app, requests = self._app, self._submission.requests
        try:
            for at in range(0, len(requests), IDS_A_PIECE):
                if self._may_not_read():
                    break
                piece = requests[at : at + IDS_A_PIECE]
                if not self._worker.index.has_decided([request.transaction_id for request in piece]):
                    submission = self._submission
                    assert isinstance(submission, AdmittedSubmission)
                    self._release()
                    if (reason := app.reason_to_reject(self._form.ticket)) is not None:
                        raise reason
                    self._worker.gate.check_verified(submission, self._form.ticket)
                    self._queue()
                    return
                yield len(piece) * ROW_US
        except Exception as problem:
            self._release()
            self._no_longer_waits()
            self._end_trace()
            app.reject(self._call, SUBMISSIONS, problem, self._since_s)
            app.admission_changed()
            return
        if self in app.waiting:
            self.end()

    def _queue(self) -> None:
        """Queue the submission for the log, and wait for its decisions as long as the client wants."""
        submission = self._submission
        assert isinstance(submission, AdmittedSubmission)
        pending = self._submission = self._worker.sender.submit(submission)
        is_copy = pending.requests is not submission.requests
        self._wait_in(self._party if is_copy else lane_of(self._party, self._call.network, self._call.parties))
        if not is_copy:
            self._call.add_party(self._party)
            self._worker.gate.count_new(submission, self._form.ticket, of_party=self._of_party)
        settings, asked_s = self._worker.config.http, self._form.wait_s
        wait_ms = min(settings.wait_ms_default if asked_s is None else asked_s * 1000, settings.wait_ms_max)
        if not wait_ms or self._call.gone:
            self.end()
            return
        self._call.when_gone = self.end  # this frees the head of the call; the submission stays in the queue
        self._pending = pending
        pending.waiters[self._decided] = None
        self._tick = self._app.deadlines.end_after(wait_ms / 1000, self)

    def _decided(self, decisions: Sequence[Decision] | None) -> None:
        """End the wait with the decisions of the log; with None if the worker has ended."""
        pending, self._pending, self._decisions = self._pending, None, decisions
        self._counts = pending is not None and next(iter(pending.waiters)) == self._decided
        if self._counts:
            self._app.unanswered.enter()
        self.end()

    def end(self) -> None:
        """End the wait. The answer is made in a later turn of the loop (`Turns`)."""
        if self._tick:
            self._app.deadlines.forget(self._tick, self)
        if self._pending is not None:
            del self._pending.waiters[self._decided]
            self._pending = None
        self._call.when_gone = None
        self._no_longer_waits()
        self._app.turns.do(self._finish(), party=self._submission.party, counts=self._counts)

    def _wait_in(self, lane: Lane) -> None:
        if self._lane:
            self._app.waiting_lanes.leave(self._lane, self._party)
        self._lane = lane
        self._app.waiting_lanes.enter(lane, self._party)

    def _no_longer_waits(self) -> None:
        if self in self._app.waiting:
            self._app.waiting.remove(self)
            if self._lane:
                self._app.waiting_lanes.leave(self._lane, self._party)

    def _finish(self) -> Pieces[int]:
        try:
            return (yield from self._answer())
        finally:  # a bug in one answer must not keep the gate from decoding
            self._release()
            if self._counts:
                self._app.unanswered.leave()

    def _answer(self) -> Pieces[int]:
        """Answer with 200 if all requests are decided, else with 202: a 503 would mean that no request was admitted.

        Returns the estimated time of the last piece.
        """
        worker, requests = self._worker, self._submission.requests
        decisions: list[bytes | None] = []
        spent_us = 0
        try:
            for at, request in enumerate(requests):
                if spent_us >= PIECE_US:
                    yield spent_us
                    spent_us = 0
                # A worker that has ended answers nothing from its index: a wrong index may be the reason why it ended.
                if self._call.gone or self._may_not_read():
                    break
                decision: Decision | None
                if self._decisions is None:
                    decision = yield from worker.index.decision_in_pieces(request.transaction_id)
                else:
                    decision = self._decisions[at]
                if decision is None:
                    decisions.append(None)
                    continue
                receipt, took_us = self._receipt(decision)
                spent_us += took_us + DECISION_US
                if len(decision.conflicts) <= CONFLICTS_A_PIECE:
                    spent_us += len(decision.conflicts) * CONFLICT_US
                    decisions.append(encode_decision(decision, receipt))
                else:
                    decisions.append((yield from encode_in_pieces(decision, receipt)))
        except Fatal as problem:
            self._app.give_up(problem)
        except Exception:
            logger.exception("a call could not be answered")
            self._end_trace()
            self._app.answer(self._call, SUBMISSIONS, BUG, self._since_s)
            return spent_us
        if self._call.gone:
            self._end_trace()
            self._app.drop(self._call)
            return spent_us
        if self._may_not_read() or len(decisions) < len(requests):  # a suspension may have begun and ended since
            decisions = [None] * len(requests)
        status, headers = 200, JSON
        if None in decisions:
            status, headers = 202, [*JSON, (b"retry-after", b"%d" % RETRY_AFTER_UNDECIDED_S)]
        if logger.isEnabledFor(logging.DEBUG):
            undecided = decisions.count(None)
            logger.debug(
                "decisions are returned party=%s requests=%d undecided=%d", excerpt(self._submission.party, 300), len(requests), undecided
            )
        self._end_trace()
        body = encode_decisions(decisions)
        self._app.answer(self._call, SUBMISSIONS, (status, headers, body), self._since_s)
        return spent_us + len(body) // COPIED_BYTES_PER_US

    def _receipt(self, decision: Decision) -> tuple[bytes, int]:
        """Returns (the decision's receipt as a JSON string, empty if none is wanted; the time that it took, in microseconds)."""
        if not self._form.receipts:
            return b"", 0
        tree = self._worker.index.tree
        tiles_read = tree.tiles_read
        receipt = self._worker.issuer.receipt_json(decision.position)
        return receipt, RECEIPT_US + (tree.tiles_read - tiles_read) * TILE_US

    def _release(self) -> None:
        """Stop counting the submission's bytes at the gate: it is queued, rejected or answered."""
        if self._counted_bytes:
            self._worker.gate.count_bytes(-self._counted_bytes, self._payer)
            self._counted_bytes = 0

    def _may_not_read(self) -> bool:
        return self._app.turns.is_suspended or self._app.worker is not self._worker

    def _end_trace(self) -> None:
        if self._tracing is not None:
            self._tracing.__exit__(None, None, None)
