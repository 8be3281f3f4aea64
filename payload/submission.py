"""A submission: what one party asks under one signature (docs/formats.md, Submission).

`decode_submission` is the gate for bodies from outside and, through `codec`, for payload records: one set of rules, so that
what a worker admits is exactly what every other worker will read. It does not look at the signature beyond its base64:
whether it is a good one is the worker's question, asked before the log, with the key that the notary holds for the party.

What goes to the payload topic is not the client's text but `Submission.encoded`, the same content in the one form that
every JSON parser reads alike: no white space, no member twice, only the contract's members in the contract's order.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Generator, Iterable
from struct import Struct
from typing import Final

import msgspec

from ordering.errors import Malformed
from ordering.ids import TransactionId, excerpt
from payload.request import STATES_A_PIECE, Request, RequestJson, request_in_pieces, request_of, transaction_prefix
from payload.strict_json import decode_strictly, within

REQUESTS_MAX: Final = 1_000
"""Requests of one submission; it has at least one."""

SUBMISSION_BYTES_MAX: Final = 2 * 1024 * 1024
"""A body larger than this is refused by whoever reads it off the wire; decoding does not look at it again."""

PARTY_BYTES_MAX: Final = 255

_SUBMISSION_DOMAIN: Final = b"notary/submission/v1\n"
_NAME_LENGTH = Struct(">H")
_COUNT = Struct(">I")


class Submission(msgspec.Struct, frozen=True, gc=False):
    """An admissible submission; its signature has not been checked here."""

    party: str
    signature: bytes
    requests: tuple[Request, ...]
    encoded: bytes
    """The bytes for the payload topic. Decoding them gives this very submission; they are never longer than the body was."""


class SubmissionJson(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A submission as JSON has it, members in the contract's order."""

    party: str
    signature: str
    requests: tuple[RequestJson, ...]


_decode_submission = msgspec.json.Decoder(SubmissionJson).decode
_encode = msgspec.json.Encoder().encode


def decode_submission(body: bytes, notary_name: str) -> Submission:
    """The submission that `body` is at the notary of that name; `Malformed` for anything else, never another exception."""
    return submission_of(decode_strictly(_decode_submission, body), transaction_prefix(notary_name))


def decode_in_pieces(body: bytes, notary_name: str) -> Generator[None, None, Submission]:
    """The same in pieces of `STATES_A_PIECE` states, between which an event loop has turns for others."""
    wire = decode_strictly(_decode_submission, body)
    yield
    requests = yield from _requests_in_pieces(wire, transaction_prefix(notary_name))
    return Submission(wire.party, a2b_base64(wire.signature), requests, _encode(wire))


def submission_of(wire: SubmissionJson, prefix: bytes) -> Submission:
    """The submission that `wire` says; `Malformed`, placed within the submission, if it breaks the contract."""
    requests = requests_of(wire, prefix)
    return Submission(wire.party, a2b_base64(wire.signature), requests, _encode(wire))


def requests_of(wire: SubmissionJson, prefix: bytes) -> tuple[Request, ...]:
    """The requests of `wire`, after every rule for submissions has been held against it; raises like `submission_of`."""
    pieces = _requests_in_pieces(wire, prefix)
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            requests: tuple[Request, ...] = done.value
            return requests


def _requests_in_pieces(wire: SubmissionJson, prefix: bytes) -> Generator[None, None, tuple[Request, ...]]:
    check_party(wire.party)
    if not _is_canonical_base64(wire.signature):
        raise Malformed(
            f"expected base64 with the standard alphabet and padding and nothing else, got {excerpt(wire.signature)}",
            "signature",
        )
    if not 0 < len(wire.requests) <= REQUESTS_MAX:
        raise Malformed(f"{len(wire.requests)} requests, a submission has 1 to {REQUESTS_MAX}; split it", "requests")
    requests: list[Request] = []
    states = 0
    try:
        for each in wire.requests:
            count = len(each.inputs) + len(each.references)
            if (states := states + count + 1) > STATES_A_PIECE:
                yield
                states = count
            requests.append(request_of(each, prefix) if count <= STATES_A_PIECE else (yield from request_in_pieces(each, prefix)))
    except Malformed as problem:
        raise within(f"requests[{len(requests)}]", problem) from None
    if len(requests) > 1 and len({request.transaction_id for request in requests}) != len(requests):
        raise _twice(requests)
    return tuple(requests)


def check_party(party: str) -> None:
    """Raise `Malformed` for a name that no party can have."""
    party_bytes = len(party.encode())
    if not 0 < party_bytes <= PARTY_BYTES_MAX:
        raise Malformed(f"{party_bytes} bytes of UTF-8, a party's name has 1 to {PARTY_BYTES_MAX}", "party")


def signed_message(notary_name: str, party: str, transaction_ids: Iterable[TransactionId]) -> bytes:
    """What the party signs: domain, notary name, party, and the ids in the order of the requests."""
    notary, name, ids = notary_name.encode(), party.encode(), tuple(transaction_ids)
    return b"".join(
        (
            _SUBMISSION_DOMAIN,
            _NAME_LENGTH.pack(len(notary)),
            notary,
            _NAME_LENGTH.pack(len(name)),
            name,
            _COUNT.pack(len(ids)),
            *ids,
        )
    )


def _is_canonical_base64(text: str) -> bool:
    """Whether encoding what it decodes to gives the very text again, which excludes stray bits before the padding too."""
    try:
        return b2a_base64(a2b_base64(text), newline=False).decode() == text
    except ValueError:
        return False


def _twice(requests: list[Request]) -> Malformed:
    seen: dict[TransactionId, int] = {}
    for at, request in enumerate(requests):
        if (first := seen.setdefault(request.transaction_id, at)) != at:
            return Malformed(
                f"the same transaction as requests[{first}], {request.transaction_id.hex()}; give each once", f"requests[{at}]"
            )
    raise AssertionError("called when an id stands there twice")
