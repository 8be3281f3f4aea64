"""The value of a payload record: a batch's submissions as one JSON array (docs/formats.md, Log records).

A batch is joined from submissions that were encoded at admission; nothing is encoded twice. Decoding applies the rules of
`decode_submission` to each element, by the same code. So a record that a worker of this software wrote always decodes. One that does not
raises `CorruptRecord` and counts as a fill (R3), in every worker alike, since only the bytes decide. Signatures are not checked here: the
worker that admitted the submission has done that.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from ordering.errors import CorruptRecord, Malformed
from payload.request import Request, transaction_prefix
from payload.strict_json import decode_strictly, within
from payload.submission import Submission, SubmissionJson, requests_of, submission_of

T = TypeVar("T")

_decode_batch = msgspec.json.Decoder(tuple[SubmissionJson, ...]).decode


def encode_batch(submissions: Iterable[bytes]) -> bytes:
    """Returns the payload value for submissions given as `Submission.encoded`, in their order."""
    return b"[" + b",".join(submissions) + b"]"


def decode_requests(value: bytes, notary_name: str) -> tuple[Request, ...]:
    """Returns all requests of all submissions, in order, for the joiner. Raises only `CorruptRecord`."""
    requests: list[Request] = []
    for of_one in _each(requests_of, value, notary_name):
        requests += of_one
    return tuple(requests)


def decode_batch(value: bytes, notary_name: str) -> tuple[Submission, ...]:
    """Returns the submissions, with party and signature. Accepts exactly what `decode_requests` accepts. Raises only `CorruptRecord`."""
    return tuple(_each(submission_of, value, notary_name))


def _each(read: Callable[[SubmissionJson, bytes], T], value: bytes, notary_name: str) -> list[T]:
    prefix = transaction_prefix(notary_name)
    done: list[T] = []
    try:
        batch = decode_strictly(_decode_batch, value)
    except Malformed as problem:
        raise CorruptRecord(f"a payload record does not decode: {problem}") from None
    try:
        for wire in batch:
            done.append(read(wire, prefix))  # noqa: PERF401 - the length of `done` is the index of the element that failed
    except Malformed as problem:
        raise CorruptRecord(f"a payload record does not decode: {within(f'[{len(done)}]', problem)}") from None
    return done
