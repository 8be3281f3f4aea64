"""The value of a payload record: a batch's submissions as one JSON array (docs/formats.md, Log records).

A batch is joined from submissions that have been encoded already, when each was admitted; nothing is encoded twice. Reading
one back applies the rules of `decode_submission` to each element, by the same code: a record that a worker of this software
wrote always decodes, and one that does not is `CorruptRecord`, which counts as a fill (R3), the same in every worker since
nothing but the bytes decides. A good signature is no part of that: the worker that admitted the submission has checked it.
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
    """The payload value for submissions given as `Submission.encoded`, in their order."""
    return b"[" + b",".join(submissions) + b"]"


def decode_requests(value: bytes, notary_name: str) -> tuple[Request, ...]:
    """All requests of all submissions, in order: what the joiner needs. Only `CorruptRecord` for anything else."""
    requests: list[Request] = []
    for of_one in _each(requests_of, value, notary_name):
        requests += of_one
    return tuple(requests)


def decode_batch(value: bytes, notary_name: str) -> tuple[Submission, ...]:
    """The submissions themselves, for whoever wants party and signature. Accepts exactly what `decode_requests` does."""
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
            done.append(read(wire, prefix))  # noqa: PERF401 - how far it got says which one failed
    except Malformed as problem:
        raise CorruptRecord(f"a payload record does not decode: {within(f'[{len(done)}]', problem)}") from None
    return done
