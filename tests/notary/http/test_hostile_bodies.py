"""Bodies that break the contract get a 4xx problem with the reason, and nothing of them reaches the log."""

import base64
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.notary.http.checked_client import MARKER, CheckedClient
from tests.notary.party import Bank, fresh_hash, fresh_state, spend

# Once: an acceptor process passes bodies on as they are. `test_parsing_hostile.py` has random ones with and without.
pytestmark = [
    pytest.mark.parametrize("acceptors", [0], ids=["alone"], indirect=True, scope="session"),
    pytest.mark.usefixtures("nothing_logged"),
]

STATE = f"{'ab' * 32}:0"
PARTY = "O=Bank A,L=London,C=GB"
"""The party of `bank`: for an unregistered party only the name is decoded."""
HUGE = "1" + "0" * 10_000


def signed_raw(bank: Bank, replace: str, by: str) -> bytes:
    """A good submission with a piece of its text replaced."""
    text = bank.body(spend(STATE, time_window={"from": 1, "until": 2})).decode()
    assert replace in text
    return text.replace(replace, by, 1).encode()


NOT_JSON: dict[str, bytes] = {
    "empty": b"",
    "only-white-space": b" \n\t ",
    "words": b"hello " + MARKER.encode(),
    "cut": b'{"party": "O=A", "sig',
    "two-documents": b"{}{}",
    "trailing-comma": b'{"party": "O=A",}',
    "single-quotes": b"{'party': 'O=A'}",
    "not-a-number": b"NaN",
    "invalid-utf-8": b'{"party": "\xff\xfe", "signature": "", "requests": []}',
    "utf-16": '{"party": "O=A"}'.encode("utf-16"),
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "nul": b'{"party": "a\x00b"}',
    "nul-alone": b"\x00",
    "lone-surrogate": b'{"party": "\\ud800", "signature": "", "requests": []}',
    "control-character": b'{"party": "a\nb"}',
    "deep-arrays": b"[" * 100_000,
    "deep-objects": b'{"requests":' * 100_000,
    "deep-in-an-unknown-member": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge-integer": HUGE.encode(),
    "huge-exponent": b"1e999999999",
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_what_is_not_json_is_malformed(client: CheckedClient, body: bytes) -> None:
    """A body that is no JSON object of the contract is rejected as malformed, with a reason."""
    answer = client.post(body)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed")
    assert answer.json()["detail"]


SHAPES: dict[str, tuple[Any, str]] = {
    "array": ([], ""),
    "null": (None, ""),
    "string": (MARKER, ""),
    "no-members": ({}, "party"),
    "no-signature": ({"party": PARTY, "requests": []}, "signature"),
    "no-requests": ({"party": PARTY, "signature": ""}, "requests"),
    "unknown-member": ({"party": PARTY, "signature": "", "requests": [], MARKER: 1}, ""),
    "party-number": ({"party": 1, "signature": "", "requests": []}, "party"),
    "party-empty": ({"party": "", "signature": "", "requests": [spend()]}, "party"),
    "party-too-long": ({"party": "é" * 128, "signature": "", "requests": [spend()]}, "party"),
    "signature-null": ({"party": PARTY, "signature": None, "requests": []}, "signature"),
    "signature-not-base64": ({"party": PARTY, "signature": "*" * 88, "requests": [spend()]}, "signature"),
    "signature-not-ascii": ({"party": PARTY, "signature": "é", "requests": [spend()]}, "signature"),
    "signature-unpadded": ({"party": PARTY, "signature": "AAA", "requests": [spend()]}, "signature"),
    "requests-object": ({"party": PARTY, "signature": "", "requests": {}}, "requests"),
    "requests-empty": ({"party": PARTY, "signature": "", "requests": []}, "requests"),
    "requests-too-many": ({"party": PARTY, "signature": "", "requests": [spend()] * 1001}, "requests"),
    "request-number": ({"party": PARTY, "signature": "", "requests": [spend(), 1]}, "requests[1]"),
    "request-null": ({"party": PARTY, "signature": "", "requests": [None]}, "requests[0]"),
}


@pytest.mark.parametrize(("value", "where"), SHAPES.values(), ids=SHAPES)
def test_a_submission_of_another_shape_is_malformed_there(client: CheckedClient, value: Any, where: str) -> None:
    """JSON that is no submission is rejected, and `where` names the member."""
    answer = client.post(json.dumps(value).encode())
    assert (answer.status_code, answer.json().get("where", "")) == (400, where), answer.text


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-member": ({MARKER: 1}, "requests[1]"),
    "inputs-null": ({"inputs": None}, "requests[1].inputs"),
    "inputs-string": ({"inputs": STATE}, "requests[1].inputs"),
    "input-number": ({"inputs": [STATE, 7]}, "requests[1].inputs[1]"),
    "input-empty": ({"inputs": [""]}, "requests[1].inputs[0]"),
    "input-capitals": ({"inputs": [STATE.upper()]}, "requests[1].inputs[0]"),
    "input-short": ({"inputs": [STATE[1:]]}, "requests[1].inputs[0]"),
    "input-without-index": ({"inputs": [STATE[:64]]}, "requests[1].inputs[0]"),
    "input-leading-zero": ({"inputs": [STATE[:64] + ":01"]}, "requests[1].inputs[0]"),
    "input-index-too-large": ({"inputs": [STATE[:64] + ":4294967296"]}, "requests[1].inputs[0]"),
    "input-index-huge": ({"inputs": [STATE[:64] + ":" + HUGE]}, "requests[1].inputs[0]"),
    "input-index-negative": ({"inputs": [STATE[:64] + ":-1"]}, "requests[1].inputs[0]"),
    "input-index-arabic-digits": ({"inputs": [STATE[:64] + ":١"]}, "requests[1].inputs[0]"),
    "input-newline": ({"inputs": [STATE + "\n"]}, "requests[1].inputs[0]"),
    "input-nul": ({"inputs": [STATE + "\0"]}, "requests[1].inputs[0]"),
    "input-twice": ({"inputs": [STATE, fresh_state(), STATE]}, "requests[1].inputs[2]"),
    "reference-twice": ({"references": [STATE, STATE]}, "requests[1].references[1]"),
    "too-many-inputs": ({"inputs": [f"{'ab' * 32}:{index}" for index in range(10_001)]}, "requests[1]"),
    "asks-nothing": ({"inputs": [], "references": []}, "requests[1]"),
    "content-hash-short": ({"content_hash": "ab"}, "requests[1].content_hash"),
    "content-hash-capitals": ({"content_hash": "AB" * 32}, "requests[1].content_hash"),
    "content-hash-null": ({"content_hash": None}, "requests[1].content_hash"),
    "window-null": ({"time_window": None}, "requests[1].time_window"),
    "window-array": ({"time_window": [1, 2]}, "requests[1].time_window"),
    "window-without-ends": ({"time_window": {"from": None, "until": None}}, "requests[1].time_window"),
    "window-empty": ({"time_window": {"from": 5, "until": 5}}, "requests[1].time_window"),
    "window-backwards": ({"time_window": {"from": 6, "until": 5}}, "requests[1].time_window"),
    "window-unknown-member": ({"time_window": {"from": 1, "until": 2, "zone": MARKER}}, "requests[1].time_window"),
    "window-text": ({"time_window": {"from": "1", "until": 2}}, "requests[1].time_window.from"),
    "window-boolean": ({"time_window": {"from": True, "until": 2}}, "requests[1].time_window.from"),
    "window-too-late": ({"time_window": {"from": 1, "until": 2**53}}, "requests[1].time_window.until"),
    "window-too-early": ({"time_window": {"from": -(2**53), "until": 2}}, "requests[1].time_window.from"),
}


@pytest.mark.parametrize(("members", "where"), REQUESTS.values(), ids=REQUESTS)
def test_one_malformed_request_rejects_all_of_its_submission(
    client: CheckedClient, bank: Bank, members: dict[str, Any], where: str
) -> None:
    """One bad request between good ones rejects the complete submission, and `where` names request and field."""
    good = bank.submission(spend(), spend())
    bad = {**spend(STATE), **members}
    body = {**good, "requests": [good["requests"][0], bad, good["requests"][1]]}
    answer = client.post(json.dumps(body).encode())
    assert (answer.status_code, answer.json().get("where", "")) == (400, where), answer.text
    assert answer.json()["detail"].startswith(where)


NUMBERS = ["1.0", "1e3", "1E0", "-0.0", HUGE, "-" + HUGE, "1" + "0" * 400 + ".0", "01", "+1", "0x1", "1_0", "Infinity"]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:8])
def test_a_time_is_a_plain_integer(client: CheckedClient, bank: Bank, number: str) -> None:
    """A time with a fraction, an exponent or too many digits is malformed, even if its value would be valid."""
    answer = client.post(signed_raw(bank, '"from": 1', f'"from": {number}'))
    assert answer.status_code == 400, answer.text


def test_the_same_transaction_twice_is_malformed(client: CheckedClient, bank: Bank) -> None:
    """A transaction id may appear once in a submission: the error names both places."""
    request = spend()
    other_text = dict(reversed(request.items()))
    answer = client.post(bank.body(request, spend(), other_text))
    assert (answer.status_code, answer.json()["where"]) == (400, "requests[2]")
    assert "requests[0]" in answer.json()["detail"]


def test_a_duplicate_member_of_another_type_is_malformed(client: CheckedClient, bank: Bank) -> None:
    """The last of two equal members counts, but an earlier one of the wrong type is still rejected."""
    assert client.post(signed_raw(bank, '{"party"', '{"party": 1, "party"')).status_code == 400


def test_the_last_of_two_members_is_what_the_signature_must_bind(client: CheckedClient, bank: Bank) -> None:
    """A second `content_hash` behind the signed one makes another transaction, which has no valid signature."""
    answer = client.post(signed_raw(bank, '"time_window"', f'"content_hash": "{fresh_hash()}", "time_window"'))
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/bad-signature")


def test_an_error_message_does_not_repeat_a_long_value(client: CheckedClient) -> None:
    """A problem quotes an excerpt of the bad value, in ASCII, never all of it."""
    answer = client.post(json.dumps({"party": PARTY, "signature": "\u2028" * 100_000, "requests": [spend()]}).encode())
    assert answer.status_code == 400
    assert len(answer.content) < 1_000
    assert answer.content.isascii()


def test_an_unknown_party_gets_that_error(client: CheckedClient, bank: Bank) -> None:
    """A party that is not registered gets 401 unknown-party. A name that differs by a space is another party."""
    for body in (Bank(f"O={MARKER}").body(spend()), bank.body(spend(), party=bank.name.replace(",", ", "))):
        answer = client.post(body)
        assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unknown-party")


def _with_signature(signature: bytes) -> Callable[[Bank], bytes]:
    return lambda bank: bank.body(spend(), signature=base64.b64encode(signature).decode())


def _flipped(bank: Bank) -> bytes:
    submission = bank.submission(spend())
    signature = bytearray(base64.b64decode(submission["signature"]))
    signature[5] ^= 1
    return json.dumps({**submission, "signature": base64.b64encode(signature).decode()}).encode()


def _malleable(bank: Bank) -> bytes:
    """Returns a valid signature with the group's order added to its second half, which a lax verifier accepts."""
    submission = bank.submission(spend())
    signature = base64.b64decode(submission["signature"])
    order = 2**252 + 27742317777372353535851937790883648493
    second = (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    return json.dumps({**submission, "signature": base64.b64encode(signature[:32] + second).decode()}).encode()


ONE, TWO = spend(), spend()
SIGNATURES: dict[str, Callable[[Bank], bytes]] = {
    "wrong-key": lambda bank: Bank(bank.name).body(ONE),
    "another-notary": lambda bank: Bank(bank.name, notary="O=Another Notary", key=bank.key).body(ONE),
    "another-message": lambda bank: bank.body(ONE, requests=[TWO]),
    "another-order": lambda bank: bank.body(ONE, TWO, requests=[TWO, ONE]),
    "a-request-less": lambda bank: bank.body(ONE, TWO, requests=[ONE]),
    "empty": _with_signature(b""),
    "short": _with_signature(b"\1" * 63),
    "long": _with_signature(b"\1" * 65),
    "very-long": _with_signature(b"\1" * 1_000_000),
    "zeros": _with_signature(bytes(64)),
    "garbage-in-der": _with_signature(bytes.fromhex("3006020100020100")),
    "flipped-bit": _flipped,
    "malleable": _malleable,
    "ecdsa-for-an-ed25519-party": lambda bank: Bank(bank.name, p256=True).body(ONE),
}


@pytest.mark.parametrize("make", SIGNATURES.values(), ids=SIGNATURES)
def test_a_signature_that_is_not_good_is_rejected(client: CheckedClient, bank: Bank, make: Callable[[Bank], bytes]) -> None:
    """Every kind of bad signature gets 403 bad-signature."""
    answer = client.post(make(bank))
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/bad-signature"), answer.text


MEDIA_TYPES = [
    *("", "text/plain", "application/jsonp", "é/json", ";"),
    *("application/json; charset=latin-1", "application/json; charset", "application/json; charset=utf-8; profile=x"),
]


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
def test_another_media_type_is_unsupported(client: CheckedClient, bank: Bank, media_type: str) -> None:
    """A body that is not declared as JSON in UTF-8 gets 415."""
    headers = {"content-type": media_type.encode()} if media_type else {}
    answer = client.ask("POST", "/v1/submissions", content=bank.body(spend()), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")
    assert "without parameters or with charset=utf-8 alone" in answer.json()["detail"]


@pytest.mark.parametrize("encodings", [["gzip"], ["identity", "gzip"], ["gzip", "identity"], [""]])
def test_a_compressed_body_is_unsupported(client: CheckedClient, bank: Bank, encodings: list[str]) -> None:
    """A compressed body gets 415: the service decompresses nothing, so that a small body cannot expand."""
    headers = [("content-type", "application/json"), *[("content-encoding", encoding) for encoding in encodings]]
    answer = client.ask("POST", "/v1/submissions", content=gzip.compress(bank.body(spend())), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")


def test_the_name_of_no_coding_has_any_case(client: CheckedClient) -> None:
    """RFC 9110, 8.4.1. The body is read, and is no submission."""
    assert client.post(b"{}", content_encoding="Identity").status_code == 400
