"""The value of a payload record: a batch's submissions as one JSON array (docs/formats.md, Log records).

A batch is joined from submissions that were encoded at admission; nothing is encoded twice. Decoding applies the rules of
`decode_submission` to each element, by the same code. So every record that a worker of this software wrote decodes. A record that does not
decode raises `CorruptRecord` in every worker, since only the bytes decide, and its batch decides nothing (R3). Signatures are not checked
here: the worker that admitted the submission has checked them.
"""

from collections.abc import Generator, Iterable

import msgspec

from ordering.errors import CorruptRecord, Malformed
from ordering.pieces import completed
from payload.request import STATES_A_PIECE, Request, transaction_prefix
from payload.strict_json import decode_strictly, within
from payload.submission import SubmissionJson, requests_in_pieces

_decode_batch = msgspec.json.Decoder(tuple[SubmissionJson, ...]).decode


def encode_batch(submissions: Iterable[bytes]) -> bytes:
    """Returns the payload value for submissions given as `Submission.encoded`, in their order."""
    return b"[" + b",".join(submissions) + b"]"


def decode_requests(value: bytes, notary_name: str) -> tuple[Request, ...]:
    """Returns all requests of all submissions, in order, for the joiner. Raises only `CorruptRecord`."""
    return completed(decode_requests_in_pieces(value, notary_name))


def decode_requests_in_pieces(value: bytes, notary_name: str) -> Generator[None, None, tuple[Request, ...]]:
    """Does the work of `decode_requests` in pieces of about `STATES_A_PIECE` states."""
    batch, prefix = _submissions(value), transaction_prefix(notary_name)
    requests: list[Request] = []
    cost = 0
    for number, wire in enumerate(batch):
        wire_cost = len(wire.requests) + sum([len(each.inputs) + len(each.references) for each in wire.requests])
        if (cost := cost + wire_cost) > STATES_A_PIECE:
            yield
            cost = wire_cost
        try:
            requests += yield from requests_in_pieces(wire, prefix)
        except Malformed as problem:
            raise _corrupt(within(f"[{number}]", problem)) from None
    return tuple(requests)


def _submissions(value: bytes) -> tuple[SubmissionJson, ...]:
    try:
        return decode_strictly(_decode_batch, value)
    except Malformed as problem:
        raise _corrupt(problem) from None


def _corrupt(problem: Malformed) -> CorruptRecord:
    return CorruptRecord(f"a payload record does not decode: {problem}")
