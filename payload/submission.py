"""A submission: the requests of one party under one signature (docs/formats.md, Submission).

`decode_submission` decodes bodies from outside and, through `codec`, payload records. So one set of rules applies, and every worker can
read exactly what any worker admits. It checks only the base64 of the signature. Before the log, the worker verifies the signature itself,
with the party's registered key.

The payload topic has `Submission.encoded`, not the client's text: the same content in a form that every JSON parser reads in the same way,
with no white space, no repeated member, and only the contract's members in the contract's order.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Generator, Sequence
from struct import Struct
from typing import Annotated, Final

import msgspec

from ordering.errors import Malformed
from ordering.ids import TransactionId, excerpt
from ordering.pieces import completed
from payload.request import STATES_A_PIECE, Request, RequestJson, request_in_pieces, request_of, transaction_prefix
from payload.strict_json import decode_strictly, within

REQUESTS_MAX: Final = 1_000
"""The maximum number of requests of one submission; the minimum is one."""

SUBMISSION_BYTES_MAX: Final = 2 * 1024 * 1024
"""The maximum size of a body. The code that reads it off the wire rejects a larger one; decoding does not check it again."""

PARTY_BYTES_MAX: Final = 255

SMALL_BYTES: Final = 16 << 10
"""The JSON of a body up to this size is no piece of its own. All of such a body takes about a third of a millisecond at most."""

QUOTES_MAX: Final = 128_000
"""The maximum number of quotation marks in a body; a submission has fewer. More of them are short strings that are no states or hashes.

A JSON decoder would make an object of each one, in a single piece of work, before their number can be checked.
"""

_SUBMISSION_DOMAIN: Final = b"notary/submission/v1\n"
_NAME_LENGTH = Struct(">H")
_COUNT = Struct(">I")


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A decoded, well-formed submission; its signature has not been verified."""

    party: str
    signature: bytes
    requests: tuple[Request, ...]
    encoded: bytes
    """The bytes for the payload topic. Decoding them gives an equal submission; they are never longer than the body was."""


class SubmissionJson(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A submission in JSON, members in the contract's order."""

    party: Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": PARTY_BYTES_MAX})]
    signature: Annotated[str, msgspec.Meta(description="Ed25519, or ECDSA P-256 in DER", extra_json_schema={"contentEncoding": "base64"})]
    requests: Annotated[
        tuple[RequestJson, ...], msgspec.Meta(description="none twice", extra_json_schema={"minItems": 1, "maxItems": REQUESTS_MAX})
    ]


_decode_submission = msgspec.json.Decoder(SubmissionJson).decode
_encode = msgspec.json.Encoder().encode


def decode_submission(body: bytes, notary_name: str) -> Submission:
    """Decodes `body` into a submission to the notary of that name. Raises `Malformed` for anything else, never another exception."""
    wire = decode_strictly(_decode_submission, body)
    requests = completed(requests_in_pieces(wire, transaction_prefix(notary_name)))
    return Submission(wire.party, a2b_base64(wire.signature), requests, _encode(wire))


def decode_in_pieces(body: bytes, notary_name: str) -> Generator[None, None, Submission]:
    """Does the work of `decode_submission` in pieces of `STATES_A_PIECE` states, so that an event loop can do other work in between."""
    if len(body) > 2 * QUOTES_MAX and body.count(b'"') > QUOTES_MAX:
        raise Malformed(f"more than {QUOTES_MAX} quotation marks, a submission has fewer: expected requests, hashes and states")
    wire = decode_strictly(_decode_submission, body)
    if len(body) > SMALL_BYTES:
        yield
    requests = yield from requests_in_pieces(wire, transaction_prefix(notary_name))
    return Submission(wire.party, a2b_base64(wire.signature), requests, _encode(wire))


def requests_in_pieces(wire: SubmissionJson, prefix: bytes) -> Generator[None, None, tuple[Request, ...]]:
    """Returns the requests of `wire` after checking every rule for submissions, in pieces. Raises `Malformed` with the path."""
    check_party(wire.party)
    if not _is_canonical_base64(wire.signature):
        raise Malformed(
            f"expected base64 with the standard alphabet and padding and nothing else, got {excerpt(wire.signature)}",
            "signature",
        )
    if not 0 < len(wire.requests) <= REQUESTS_MAX:
        remedy = "split it" if wire.requests else "give at least one"
        raise Malformed(f"{len(wire.requests)} requests, a submission has 1 to {REQUESTS_MAX}; {remedy}", "requests")
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
    """Raise `Malformed` for an invalid party name."""
    party_bytes = len(party.encode())
    if not 0 < party_bytes <= PARTY_BYTES_MAX:
        raise Malformed(f"{party_bytes} bytes of UTF-8, a party's name has 1 to {PARTY_BYTES_MAX}", "party")


def signed_message(notary_name: str, party: str, transaction_ids: Sequence[TransactionId]) -> bytes:
    """Returns the bytes that the party signs: domain, notary name, party, and the ids in the order of the requests."""
    notary, name = notary_name.encode(), party.encode()
    head = _SUBMISSION_DOMAIN, _NAME_LENGTH.pack(len(notary)), notary, _NAME_LENGTH.pack(len(name)), name
    return b"".join((*head, _COUNT.pack(len(transaction_ids)), *transaction_ids))


def _is_canonical_base64(text: str) -> bool:
    """Returns True if decoding and encoding reproduce the text exactly, which also excludes stray bits before the padding."""
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
