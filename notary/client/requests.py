"""Requests as programs write them, a submission's bytes, and the splitting of many requests into submissions.

A request is a `TransactionRequest` or the contract's JSON object as a mapping. Both go through `payload.decode_submission`, the code that
the workers run. So a request that passes here passes there, and both compute the same transaction ids.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from notary.client.signer import Signer
from ordering.errors import Malformed
from payload import SUBMISSION_BYTES_MAX, Request, decode_submission, signed_message

T = TypeVar("T")

BATCH_REQUESTS_MAX: Final = 100
"""Default for the requests of one submission: enough to amortize the cost of a signature, few enough to be answered soon."""

BATCH_BYTES_MAX: Final = SUBMISSION_BYTES_MAX - 4096
"""Default for the bytes of one submission's requests: party and signature, however escaped, fit into the rest of a submission."""


class TimeWindow(msgspec.Struct, frozen=True, rename={"from_ms": "from", "until_ms": "until"}):
    """`from_ms <= log time < until_ms`, in milliseconds since 1970-01-01 UTC; None is an open end."""

    from_ms: int | None = None
    until_ms: int | None = None


class TransactionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request to decide one transaction (docs/formats.md, Request). It is checked when it is submitted, not when it is created."""

    inputs: Sequence[str] = ()
    """State references, `<64 hex>:<index>`."""
    references: Sequence[str] = ()
    time_window: TimeWindow | None = None
    content_hash: str
    """A hash of everything else in the transaction, 64 lower-case hex digits."""


RequestLike: TypeAlias = TransactionRequest | Mapping[str, Any]


class PreparedRequest(msgspec.Struct, frozen=True):
    """A signed submission, ready to send; every attempt sends the same `body`."""

    requests: tuple[Request, ...]
    body: bytes

    @property
    def transaction_ids(self) -> tuple[str, ...]:
        """The ids in the order of the requests, 64 hex digits each."""
        return tuple(request.transaction_id.hex() for request in self.requests)


def prepare(requests: Iterable[RequestLike], notary_name: str, party: str, signer: Signer) -> PreparedRequest:
    """Encode, check and sign a submission. Raises `Malformed`, which names the request and the field, such as `requests[3].inputs[0]`."""
    encoded = [_encode(request, f"requests[{at}]") for at, request in enumerate(requests)]
    name = _encode(party, "party")
    decoded = decode_submission(_submission(name, b"", encoded), notary_name).requests
    # The signature covers the ids, so it is made last. It is made once, so that every attempt sends the same bytes.
    signature = signer.sign(signed_message(notary_name, party, [request.transaction_id for request in decoded]))
    body = _submission(name, b2a_base64(signature, newline=False), encoded)
    if len(body) > SUBMISSION_BYTES_MAX:
        raise Malformed(
            f"the submission has {len(body)} bytes, at most {SUBMISSION_BYTES_MAX}; cut the requests with `submissions`", "requests"
        )
    return PreparedRequest(decoded, body)


def transaction_ids(requests: Iterable[RequestLike], notary_name: str) -> tuple[str, ...]:
    """Returns the ids that these requests have at that notary, 64 hex digits each. Raises `Malformed` as `prepare` does."""
    encoded = [_encode(request, f"requests[{at}]") for at, request in enumerate(requests)]
    return tuple(each.transaction_id.hex() for each in decode_submission(_submission(b'"-"', b"", encoded), notary_name).requests)


def submissions(
    requests: Iterable[RequestLike], requests_max: int = BATCH_REQUESTS_MAX, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[list[RequestLike]]:
    """Yields the requests, in their order, in lists that each fit one submission. The iterable is read lazily."""
    return batches(requests, lambda request: len(_encode(request, "")), requests_max, bytes_max)


def batches(
    items: Iterable[T], bytes_of: Callable[[T], int], requests_max: int = BATCH_REQUESTS_MAX, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[list[T]]:
    """Splits items that represent requests as `submissions` does; `bytes_of` returns the length of an item's JSON.

    An item that is too large by itself forms a list alone; submitting it raises the error.
    """
    batch: list[T] = []
    batch_bytes = 0
    for item in items:
        item_bytes = bytes_of(item) + 1  # the JSON array's comma
        if batch and batch_bytes + item_bytes > bytes_max:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += item_bytes
        # Yield a full batch at once, since the next item may take long to arrive on a pipe.
        if len(batch) >= requests_max:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _encode(value: object, where: str) -> bytes:
    """Encodes JSON, without checking what it says. Raises `Malformed` at `where` for values that JSON cannot express."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as problem:
        raise Malformed(f"cannot be written as JSON: {problem}", where) from None


def _submission(party: bytes, signature: bytes, requests: Sequence[bytes]) -> bytes:
    return b'{"party":%b,"signature":"%b","requests":[%b]}' % (party, signature, b",".join(requests))
