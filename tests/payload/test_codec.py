"""Tests payload records: a batch decodes to its submissions, and any other value is a corrupt record, for every worker alike (R3)."""

import json

import pytest

from ordering.errors import CorruptRecord
from payload import Submission, decode_requests, decode_requests_in_pieces, decode_submission, encode_batch

NOTARY = "O=Notary"


def submission(party: str, *indices: int) -> Submission:
    requests = [{"inputs": [f"{'ab' * 32}:{index}"], "content_hash": "00" * 32} for index in indices]
    return decode_submission(json.dumps({"party": party, "signature": "AAAA", "requests": requests}).encode(), NOTARY)


def test_a_batch_is_a_json_array_of_its_submissions() -> None:
    """The value is a JSON array for any parser, without white space, and nothing was encoded again."""
    first, second = submission("A", 1), submission("B", 2, 3)
    value = encode_batch([first.encoded, second.encoded])
    assert value == b"[" + first.encoded + b"," + second.encoded + b"]"
    assert [each["party"] for each in json.loads(value)] == ["A", "B"]


def test_a_batch_comes_back_unchanged() -> None:
    """The decoded requests are the original ones, in order."""
    submissions = (submission("A", 1), submission("B", 2, 3), submission("C", 4))
    value = encode_batch([each.encoded for each in submissions])
    assert decode_requests(value, NOTARY) == tuple(request for each in submissions for request in each.requests)


def test_a_batch_of_nothing_decodes() -> None:
    """A batch without submissions decodes to no requests; the joiner compares that with the entry."""
    assert decode_requests(encode_batch([]), NOTARY) == ()


def test_two_submissions_of_one_batch_may_ask_the_same() -> None:
    """Two submissions of one batch may have the same request, because clients do not know of each other; R7 decides the second one."""
    value = encode_batch([submission("A", 1).encoded, submission("B", 1).encoded])
    assert len({request.transaction_id for request in decode_requests(value, NOTARY)}) == 1


GOOD = submission("A", 1).encoded


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "not JSON: it is empty"),
        (b"null", "expected an array, got null"),
        (GOOD, "expected an array, got an object"),
        (b"[" + GOOD, "end inside a value"),
        (b"[" + GOOD + b"]\n[]", "trailing characters"),
        (b"[" + GOOD + b",]", "trailing comma"),
        (b"[" + GOOD + b",7]", "[1]: expected an object, got an integer"),
        (b"[" * 100_000, "[0]: expected an object, got an array"),
        (b"[" + GOOD + b"," + GOOD.replace(b'"A"', b'""') + b"]", "[1].party: 0 bytes"),
        (b"[" + GOOD + b"," + GOOD.replace(b'"AAAA"', b'"AAA"') + b"]", "[1].signature: expected base64"),
        (b"[" + GOOD + b"," + GOOD.replace(b":1", b":01") + b"]", "[1].requests[0].inputs[0]: expected a state reference"),
        (b"[" + GOOD.replace(b'"content_hash"', b'"hash"') + b"]", "[0].requests[0]: unknown member 'hash'"),
        (b"[" + GOOD.replace(b'"A"', b'"\xff"') + b"]", "not UTF-8"),
    ],
)
def test_what_no_worker_writes_is_a_corrupt_record(value: bytes, message: str) -> None:
    """A bad value is rejected, with the number of the submission."""
    with pytest.raises(CorruptRecord) as refused:
        decode_requests(value, NOTARY)
    assert message in str(refused.value)


def test_a_large_batch_is_decoded_in_pieces() -> None:
    """Many submissions of one state each, some of a hundred, or one large request take a piece for each thousand requests and states."""
    small, large = submission("A", 1), submission("A", *range(100))
    request = {"inputs": [f"{'ab' * 32}:{index}" for index in range(4_000)], "content_hash": "00" * 32}
    single = decode_submission(json.dumps({"party": "A", "signature": "AAAA", "requests": [request]}).encode(), NOTARY)
    for batch, pieces in (([small] * 2_000, 4), ([large] * 20, 4), ([single], 5)):
        decoding = decode_requests_in_pieces(encode_batch([each.encoded for each in batch]), NOTARY)
        assert sum(1 for _ in decoding) in range(pieces - 1, pieces + 2)
