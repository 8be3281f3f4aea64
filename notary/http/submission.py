"""How a submission comes: what its head says, and its body, for a worker that reads itself and for an intake process alike."""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from notary.http.answers import Headers
from notary.http.body import Message, Receive, check_json, read_body
from notary.http.patience import Patience
from notary.http.problems import MethodNotAllowed
from notary.http.query import wants_receipts
from ordering.errors import Malformed, NotReady
from payload import SUBMISSION_BYTES_MAX

SUBMISSIONS: Final = "/v1/submissions"
_PATH: Final = SUBMISSIONS.encode()
SHUTTING_DOWN: Final = "this worker is shutting down: send the same to another, or here again later"

TRACEPARENT_BYTES_MAX: Final = 128  # of 55; later versions may add to it
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])", re.IGNORECASE).search


def is_submission(method: bytes, path: bytes) -> bool:
    """Whether a call hands in a submission."""
    return method == b"POST" and path == _PATH


class Asked(msgspec.Struct, frozen=True, gc=False):
    """How a submission is to be answered."""

    receipts: bool
    wait_ms: int | None
    """At most so long after it was taken in; None when the client does not say."""
    traceparent: str = ""
    """The client's span, as W3C Trace Context writes it; unchecked."""


def asked_of(scope: Message) -> Asked:
    """What the head says. Raises `MethodNotAllowed`, `UnsupportedMediaType`, `Malformed`."""
    if scope["method"] != "POST":
        raise MethodNotAllowed("submissions are sent with POST", "POST")
    headers = scope["headers"]
    check_json(headers)
    receipts = wants_receipts(scope["query_string"])
    prefer = traceparent = b""
    for name, value in headers:
        if name == b"prefer":
            prefer = prefer + b"," + value if prefer else value
        elif name == b"traceparent":
            traceparent = value[:TRACEPARENT_BYTES_MAX]
    wait = _WAIT(prefer)
    return Asked(receipts, None if wait is None else int(wait[1]) * 1000, traceparent.decode("latin-1"))


async def body_of(headers: Headers, receive: Receive, take: Callable[[int], None], reading: Patience, seconds_max: float) -> bytes:
    """The whole body. Raises what `read_body` does, and when it is not complete in time, or `reading` is cut short before."""
    try:
        async with reading.at_most(seconds_max):
            return await read_body(headers, receive, SUBMISSION_BYTES_MAX, take)
    except TimeoutError:
        if reading.is_over:
            raise NotReady(SHUTTING_DOWN) from None
        raise Malformed(f"the body was not complete after {seconds_max:g} s: send it without pauses") from None
