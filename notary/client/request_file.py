"""Requests from a file or a pipe: one JSON object a line, or one JSON array of them (docs/command-line.md, submit).

Lines are read one by one, so a file may be larger than memory and a pipe may never end. An array is read completely, since only its last
byte ends it. Empty lines are skipped. Each request is checked when it is read; an error names the line or the array's item, counted from 1.
"""

from collections.abc import Iterator
from typing import IO, Final

import msgspec

from notary.client.requests import TransactionRequest
from ordering.errors import Malformed
from payload import SUBMISSION_BYTES_MAX, decode_request
from payload.strict_json import decode_strictly

LINE_BYTES_MAX: Final = SUBMISSION_BYTES_MAX

_decode = msgspec.json.Decoder(TransactionRequest).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class RequestRead(msgspec.Struct, frozen=True):
    """A request and its place in the input, such as `requests.jsonl line 17`."""

    where: str
    transaction_id: str
    request: TransactionRequest
    request_bytes: int


def read_requests(stream: IO[bytes], name: str, notary_name: str) -> Iterator[RequestRead]:
    """Yields the requests of a file or pipe; errors call it `name`. Raises `Malformed` at the first bad request, and `OSError`."""
    number = 0
    begun = False
    while line := stream.readline(LINE_BYTES_MAX + 1):
        number += 1
        text = line.strip()
        where = f"{name} line {number}"
        if not text:
            continue
        if not begun and text.startswith(b"["):
            yield from _array(line + stream.read(), name if number == 1 else f"{name} from line {number}", notary_name)
            return
        begun = True
        if len(line) > LINE_BYTES_MAX:
            raise Malformed(f"longer than {LINE_BYTES_MAX} bytes, which no submission holds; give one request a line", where)
        yield _request(text, where, notary_name)


def _array(text: bytes, name: str, notary_name: str) -> Iterator[RequestRead]:
    try:
        items = decode_strictly(_decode_array, text)
    except Malformed as problem:
        raise Malformed(problem.what, f"{name}, a JSON array") from None
    for number, item in enumerate(items, 1):
        yield _request(bytes(item), f"{name} item {number}", notary_name)


def _request(text: bytes, where: str, notary_name: str) -> RequestRead:
    try:
        transaction_id = decode_request(text, notary_name).transaction_id.hex()
    except Malformed as problem:
        if problem.what.startswith("not JSON"):
            problem = Malformed(f"{problem.what}; give each JSON object on a line of its own, or all in one JSON array", problem.where)
        raise Malformed(problem.what, f"{where}, {problem.where}" if problem.where else where) from None
    return RequestRead(where, transaction_id, _decode(text), len(text))
