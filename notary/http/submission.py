"""Calls that send a submission, from their head to the gate. A worker without acceptor processes uses this module; so does each of them."""

import logging
import re
import time
from typing import Final, Protocol

import msgspec

from joiner import AdmittedSubmission
from notary.bodies import Body
from notary.gate import Gate, check_json
from notary.http.call import Call, Headers, header
from notary.http.problems import MethodNotAllowed
from notary.http.query import wants_receipts
from ordering.ids import excerpt

logger = logging.getLogger("notary.http")

SUBMISSIONS: Final = "/v1/submissions"

TICKET_BYTES_MAX: Final = 128  # a ticket has 59; an acceptor process passes on no longer value
TRACEPARENT_BYTES_MAX: Final = 128  # version 00 has 55; later versions may be longer
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])", re.IGNORECASE).search


class AnswerForm(msgspec.Struct, frozen=True, gc=False):
    """The form of the answer that a client wants for a submission."""

    receipts: bool
    wait_s: int | None
    """The longest wait for the decisions, in seconds after admission; None if the client sets no wait."""
    traceparent: str = ""
    """The client's span, as W3C Trace Context writes it; unchecked."""
    ticket: bytes = b""
    """The ticket that a rejection gave the client; unchecked."""


class Taker(Protocol):
    """The application, which gets the outcome of a submission's admission. Exactly one of these methods is called for each, once."""

    def admitted(self, submission_call: "SubmissionCall", submission: AdmittedSubmission) -> None:
        """The gate has admitted the submission."""
        ...

    def rejected(self, call: Call, problem: Exception, since_s: float) -> None:
        """The submission is rejected: at its head, during its body, or later."""
        ...

    def left(self) -> None:
        """The client has left before its submission was complete."""
        ...


class SubmissionCall(Body):
    """A submission whose head has arrived: its body, and the form of the answer that the client wants."""

    __slots__ = ("_taker", "call", "form", "since_s")

    def __init__(self, call: Call, gate: Gate, taker: Taker) -> None:
        """Begin to read the submission. Raises `MethodNotAllowed`, `UnsupportedMediaType`, `Malformed` or `TooLarge`."""
        super().__init__(gate)
        self.network, self.parties, self.waited_s = call.network, call.parties, call.waited_s
        if call.method != "POST":
            raise MethodNotAllowed("submissions are sent with POST", "POST")
        self.since_s = time.perf_counter()
        """When its head came."""
        self.call = call
        self._taker = taker
        self.form, length = _form_of(call.headers, call.query)
        self.ticket = self.form.ticket
        gate.begin(self, length)
        call.reader = self

    def admitted(self, submission: AdmittedSubmission) -> None:
        """Pass the submission to the taker."""
        self._taker.admitted(self, submission)

    def rejected(self, problem: Exception) -> None:
        """Report the rejection to the taker, which answers the call."""
        if logger.isEnabledFor(logging.DEBUG):
            party = excerpt(self.party.decode(errors="replace"), 300)
            logger.debug("a submission is rejected reason=%s party=%s network=%s: %s", type(problem).__name__, party, self.network, problem)
        self._taker.rejected(self.call, problem, self.since_s)

    def left(self) -> None:
        """Release the body, and report to the taker that the client has left."""
        super().left()
        self._taker.left()


def ticket_of(headers: Headers) -> bytes:
    """Returns the ticket in a call's head, unchecked, the first of several; empty without one."""
    return (header(headers, b"ticket") or b"")[:TICKET_BYTES_MAX]


def _form_of(headers: Headers, query: bytes) -> tuple[AnswerForm, bytes | None]:
    """Returns the form of the answer that the client wants, and the body's length that the head declares."""
    content_type = prefer = b""
    traceparents: list[bytes] = []
    encodings: list[bytes] = []
    length = None
    for name, value in headers:
        if name == b"content-type":
            content_type = content_type or value
        elif name == b"content-length":
            length = value
        elif name == b"content-encoding":
            encodings.append(value)
        elif name == b"prefer":
            prefer = prefer + b"," + value if prefer else value
        elif name == b"traceparent":
            traceparents.append(value)
    check_json(content_type, encodings)
    traceparent = traceparents[0][:TRACEPARENT_BYTES_MAX] if len(traceparents) == 1 else b""  # W3C Trace Context: of two, neither counts
    wait = _WAIT(prefer) if prefer else None
    wait_s = None if wait is None else int(wait[1])
    return AnswerForm(wants_receipts(query), wait_s, traceparent.decode("latin-1"), ticket_of(headers)), length
