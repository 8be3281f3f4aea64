"""Tests the rules for submissions, the ids of their requests, and the errors for invalid ones (docs/formats.md)."""

import base64
import json
import pathlib
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ordering.errors import Malformed
from ordering.ids import format_state
from payload import SUBMISSION_BYTES_MAX, Request, decode_in_pieces, decode_request, decode_submission, signed_message
from payload.submission import QUOTES_MAX

VECTORS = json.loads((pathlib.Path(__file__).parents[1] / "vectors.json").read_text())
NOTARY = VECTORS["notary"]
A, B = "aa" * 32, "bb" * 32
HASH = "cc" * 32
GOOD = {"inputs": [f"{A}:0"], "content_hash": HASH}


def body_of(*requests: object, **members: object) -> bytes:
    """Returns the body of a submission with these requests; a member given as `...` is left out."""
    submission = {"party": "O=Bank A", "signature": "AAAA", "requests": list(requests), **members}
    return json.dumps({name: value for name, value in submission.items() if value is not ...}).encode()


def vector_body(submission: dict[str, Any]) -> bytes:
    requests = [VECTORS["requests"][at]["request"] for at in submission["requests"]]
    return json.dumps({"party": VECTORS["party"], "signature": submission["signature"], "requests": requests}).encode()


@pytest.mark.parametrize("vector", VECTORS["requests"])
def test_a_request_of_the_vectors_has_its_id(vector: dict[str, Any]) -> None:
    """The ids are those of the independent program, to the byte."""
    assert decode_request(json.dumps(vector["request"]).encode(), NOTARY).transaction_id.hex() == vector["transaction_id"]


@pytest.mark.parametrize("vector", VECTORS["submissions"])
def test_a_submission_of_the_vectors_is_signed_by_its_party(vector: dict[str, Any]) -> None:
    """The signed message is the vectors' to the byte, and the party's public key verifies the decoded signature over it."""
    submission = decode_submission(vector_body(vector), NOTARY)
    ids = [request.transaction_id for request in submission.requests]
    message = signed_message(NOTARY, submission.party, ids)
    assert [transaction_id.hex() for transaction_id in ids] == [VECTORS["requests"][at]["transaction_id"] for at in vector["requests"]]
    assert message.hex() == vector["message_hex"]
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(VECTORS["party_public_key_hex"])).verify(submission.signature, message)


@pytest.mark.parametrize("vector", VECTORS["submissions"])
def test_a_submission_is_encoded_as_compact_json_in_the_contracts_order(vector: dict[str, Any]) -> None:
    """The vectors' members have the contract's order, so compact JSON of the same objects is what goes to the log."""
    body = vector_body(vector)
    assert decode_submission(body, NOTARY).encoded == json.dumps(json.loads(body), separators=(",", ":")).encode()


def test_states_come_out_in_ascending_byte_order_but_travel_as_given() -> None:
    """The id and the index use the sorted bytes, while the encoded request keeps the client's order."""
    given = [f"{B}:0", f"{A}:256", f"{A}:3"]
    submission = decode_submission(body_of({"inputs": given, "references": given[:2], "content_hash": HASH}), NOTARY)
    (request,) = submission.requests
    assert [format_state(state) for state in request.inputs] == [f"{A}:3", f"{A}:256", f"{B}:0"]
    assert [format_state(state) for state in request.references] == [f"{A}:256", f"{B}:0"]
    assert json.loads(submission.encoded)["requests"][0]["inputs"] == given


def test_white_space_order_of_members_and_escapes_change_nothing() -> None:
    """Two texts with the same meaning are the same submission, ids and encoded bytes included."""
    plain = '{"party":"\u00c5","signature":"","requests":[{"inputs":["%s:1"],"time_window":{"from":0,"until":5},"content_hash":"%s"}]}'
    shuffled = (
        '\t{ "requests" : [ {"content_hash" : "%s",\r\n "references": [], "time_window": {"until": 5, "from": -0},'
        ' "\\u0069nputs": ["%s\\u003a1"] } ], "signature":"", "party":"\\u00c5" }\n'
    )
    first = decode_submission((plain % (A, HASH)).encode(), NOTARY)
    assert decode_submission((shuffled % (HASH, A)).encode(), NOTARY) == first
    assert first.encoded == (plain % (A, HASH)).encode()


def test_the_last_of_two_equal_members_counts() -> None:
    """The last one of a repeated member counts, and only that one is encoded."""
    twice = body_of(GOOD).replace(b'"inputs":', f'"inputs": ["{B}:9"], "inputs":'.encode())
    assert decode_submission(twice, NOTARY) == decode_submission(body_of(GOOD), NOTARY)


def test_the_same_request_at_another_notary_is_another_transaction() -> None:
    """The notary's name is part of the id."""
    here, there = (decode_submission(body_of(GOOD), name).requests[0] for name in ("O=Here", "O=There"))
    assert here.transaction_id != there.transaction_id
    assert here.inputs == there.inputs


def test_an_open_end_is_the_least_or_the_greatest_i64() -> None:
    """An open end is the lowest or highest i64, so that the index compares log time without a null."""

    def window(ends: dict[str, int | None]) -> Request:
        return decode_request(json.dumps({"time_window": ends, "content_hash": HASH}).encode(), NOTARY)

    assert (window({"from": None, "until": 7}).from_ms, window({"from": None, "until": 7}).until_ms) == (-(2**63), 7)
    assert (window({"from": -7, "until": None}).from_ms, window({"from": -7, "until": None}).until_ms) == (-7, 2**63 - 1)
    largest = window({"from": -(2**53) + 1, "until": 2**53 - 1})
    assert (largest.from_ms, largest.until_ms) == (-(2**53) + 1, 2**53 - 1)


def test_limits_are_inclusive() -> None:
    """1,000 requests, 10,000 inputs and references together, a party of 255 bytes and any index of 32 bits are accepted."""
    thousand = [{"inputs": [f"{A}:{at}"], "content_hash": HASH} for at in range(1000)]
    assert len(decode_submission(body_of(*thousand), NOTARY).requests) == 1000
    states = [f"{A}:{at}" for at in range(5000)]
    widest = decode_submission(body_of({"inputs": states, "references": states, "content_hash": HASH}), NOTARY).requests[0]
    assert len(widest.inputs) + len(widest.references) == 10_000
    assert len(decode_submission(body_of(GOOD, party="\u00e9" * 127 + "x"), NOTARY).party.encode()) == 255
    assert decode_submission(body_of({**GOOD, "inputs": [f"{A}:{2**32 - 1}"]}), NOTARY).requests[0].inputs[0][32:] == b"\xff" * 4


@pytest.mark.parametrize("length", [0, 1, 2, 3, 63, 64, 65, 71, 1000])
def test_a_signature_of_any_length_decodes(length: int) -> None:
    """A signature of any length decodes; the notary then reports it as a bad signature, not as a malformed submission."""
    signature = bytes(range(256)) * 4
    text = base64.b64encode(signature[:length]).decode()
    assert decode_submission(body_of(GOOD, signature=text), NOTARY).signature == signature[:length]


DEEP = 100_000
RAW = body_of(GOOD)


def window(text: str) -> bytes:
    return f'{{"party":"P","signature":"","requests":[{{"time_window":{text},"content_hash":"{HASH}"}}]}}'.encode()


def inputs(*refs: object) -> bytes:
    return body_of(GOOD, {"inputs": list(refs), "content_hash": HASH})


HOSTILE = [
    # (the problem, body, field, a part of the message)
    ("nothing", b"", "", "not JSON: it is empty"),
    ("white space", b" \r\n", "", "not JSON: it is empty"),
    ("NUL", b"\x00", "", "invalid character at byte 0"),
    ("not JSON", b"party=me", "", "at byte 0, near b'party=me'"),
    ("comment", b"// x\n" + RAW, "", "invalid character"),
    ("byte order mark", b"\xef\xbb\xbf" + RAW, "", "byte order mark"),
    ("UTF-16", RAW.decode().encode("utf-16"), "", "not UTF-8"),
    ("truncated", RAW[:-1], "", "end inside a value"),
    ("trailing garbage", RAW + b"x", "", "trailing characters"),
    ("trailing NUL", RAW + b"\x00", "", "trailing characters"),
    ("two values", RAW + RAW, "", "trailing characters"),
    ("trailing comma", RAW[:-1] + b",}", "", "trailing comma"),
    ("NaN", window('{"from":NaN,"until":null}'), "", "invalid character"),
    ("not an object", b"[]", "", "expected an object, got an array"),
    ("null", b"null", "", "expected an object, got null"),
    ("deep arrays", b"[" * DEEP, "", "expected an object, got an array"),
    ("deep objects", b'{"requests":' * DEEP, "requests", "expected an array, got an object"),
    ("deep inputs", b'{"requests":[{"inputs":' + b"[" * DEEP, "requests[0].inputs[0]", "expected a string, got an array"),
    ("deep unknown member", b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}", "", "unknown member 'x'"),
    ("deep window", window('{"from":' + '{"from":' * DEEP), "requests[0].time_window.from", "got an object"),
    ("unknown member", body_of(GOOD, note="hi"), "", "unknown member 'note'; leave it out"),
    ("unknown member inside", body_of(GOOD, {**GOOD, "output": []}), "requests[1]", "unknown member 'output'"),
    ("unknown end", window('{"from":1,"until":2,"to":3}'), "requests[0].time_window", "unknown member 'to'"),
    ("capitals", body_of(GOOD, Party="x"), "", "unknown member 'Party'"),
    ("a name that looks like a place", body_of(GOOD, **{"x - at `$.party`": 1}), "", "unknown member 'x - at `$.party`'"),
    ("a name that forges a place", body_of(GOOD, **{"` - at `$.party": 1}), "party", "unknown member"),
    ("a name of a megabyte", body_of(GOOD, **{"n" * 2**20: 1}), "", "characters)"),
    ("a name of no characters", body_of(GOOD, **{"": 1}), "", "unknown member ''"),
    ("no party", body_of(GOOD, party=...), "party", "missing"),
    ("no signature", body_of(GOOD, signature=...), "signature", "missing"),
    ("no requests member", body_of(requests=...), "requests", "missing"),
    ("no content hash", body_of(GOOD, {"inputs": [f"{A}:0"]}), "requests[1].content_hash", "missing"),
    ("half a window", window('{"from":1}'), "requests[0].time_window.until", "missing"),
    ("the other half", window('{"until":1}'), "requests[0].time_window.from", "missing"),
    ("party of another type", body_of(GOOD, party=5), "party", "expected a string, got an integer"),
    ("party null", body_of(GOOD, party=None), "party", "got null; give a value"),
    ("party empty", body_of(GOOD, party=""), "party", "0 bytes of UTF-8"),
    ("party too long", body_of(GOOD, party="\u00e9" * 128), "party", "256 bytes of UTF-8"),
    ("lone surrogate in party", RAW.replace(b"O=Bank A", b"\\ud800 and more"), "", "surrogate pair at byte"),
    ("lone surrogate at the end", RAW.replace(b"O=Bank A", b"\\ud800"), "", "not JSON"),
    ("low surrogate first", RAW.replace(b"O=Bank A", b"\\udc00\\ud800"), "", "invalid utf-16 surrogate pair"),
    ("invalid UTF-8", RAW.replace(b"O=Bank A", b"\xff"), "", "not UTF-8: invalid start byte, byte 0xff"),
    ("surrogate in UTF-8", RAW.replace(b"O=Bank A", b"\xed\xa0\x80"), "", "not UTF-8"),
    ("overlong NUL", RAW.replace(b"O=Bank A", b"\xc0\x80"), "", "not UTF-8"),
    ("truncated UTF-8", RAW.replace(b"O=Bank A", b"\xe2\x82"), "", "not UTF-8"),
    ("invalid UTF-8 in a name", RAW.replace(b"party", b"par\xff"), "", "not UTF-8"),
    ("NUL in a string", RAW.replace(b"O=Bank A", b"a\x00b"), "", "invalid character"),
    ("line end in a string", RAW.replace(b"O=Bank A", b"a\nb"), "", "invalid character"),
    ("signature a number", body_of(GOOD, signature=1), "signature", "expected a string"),
    ("signature without padding", body_of(GOOD, signature="AA"), "signature", "got 'AA'"),
    ("signature padded too much", body_of(GOOD, signature="AAAA===="), "signature", "base64"),
    ("signature with stray bits", body_of(GOOD, signature="AB=="), "signature", "base64"),
    ("signature in URL alphabet", body_of(GOOD, signature="-_-_"), "signature", "standard alphabet"),
    ("signature with white space", body_of(GOOD, signature="AA AA"), "signature", "base64"),
    ("signature with a line end", body_of(GOOD, signature="AAAA\n"), "signature", "base64"),
    ("signature not ASCII", body_of(GOOD, signature="AAA\u00c4"), "signature", "base64"),
    ("no requests", body_of(), "requests", "0 requests, a submission has 1 to 1000; give at least one"),
    ("too many requests", body_of(*[GOOD] * 1001), "requests", "1001 requests, a submission has 1 to 1000; split it"),
    ("requests an object", body_of(requests={}), "requests", "expected an array, got an object"),
    ("request a string", body_of(GOOD, "x"), "requests[1]", "expected an object, got a string"),
    (
        "the same request twice",
        body_of(GOOD, {**GOOD, "inputs": [f"{B}:0"]}, GOOD),
        "requests[2]",
        "same transaction as requests[0]",
    ),
    ("the same request and no other", body_of(GOOD, GOOD), "requests[1]", "same transaction as requests[0]"),
    ("a request that asks nothing", body_of(GOOD, {"content_hash": HASH}), "requests[1]", "has no inputs, references or time_window"),
    (
        "one with empty lists",
        body_of({"inputs": [], "references": [], "content_hash": HASH}),
        "requests[0]",
        "has no inputs, references or time_window",
    ),
    ("inputs null", body_of({**GOOD, "inputs": None}), "requests[0].inputs", "leave the member out"),
    ("references null", body_of({**GOOD, "references": None}), "requests[0].references", "leave the member out"),
    ("inputs a string", body_of({**GOOD, "inputs": f"{A}:0"}), "requests[0].inputs", "expected an array, got a string"),
    ("input a number", inputs(f"{A}:0", 7), "requests[1].inputs[1]", "expected a string, got an integer"),
    ("input null", inputs(None), "requests[1].inputs[0]", "got null; give a value"),
    ("upper case", inputs(f"{A}:0", f"{A}:1".upper()), "requests[1].inputs[1]", "expected a state reference"),
    ("leading zero", inputs(f"{A}:00"), "requests[1].inputs[0]", ":00'"),
    ("leading zeros", inputs(f"{A}:0000000001"), "requests[1].inputs[0]", "state reference"),
    ("index 2^32", inputs(f"{A}:4294967296"), "requests[1].inputs[0]", ":4294967296'"),
    ("index of ten nines", inputs(f"{A}:9999999999", f"{B}:9999999999"), "requests[1].inputs[0]", "state reference"),
    ("index of 10,000 digits", inputs(f"{A}:{'1' * 10_000}"), "requests[1].inputs[0]", "(10065 characters)"),
    ("index negative", inputs(f"{A}:-1"), "requests[1].inputs[0]", "state reference"),
    ("index with a sign", inputs(f"{A}:+1"), "requests[1].inputs[0]", "state reference"),
    ("index with an underscore", inputs(f"{A}:1_0"), "requests[1].inputs[0]", "state reference"),
    ("index with white space", inputs(f"{A}: 1"), "requests[1].inputs[0]", "state reference"),
    ("index with a line end", inputs(f"{A}:1\n"), "requests[1].inputs[0]", "state reference"),
    ("index in another script", inputs(f"{A}:\u0661"), "requests[1].inputs[0]", "state reference"),
    ("index in full width", inputs(f"{A}:\uff11"), "requests[1].inputs[0]", "state reference"),
    ("index missing", inputs(f"{A}:"), "requests[1].inputs[0]", "state reference"),
    ("colon missing", inputs(f"{A}1"), "requests[1].inputs[0]", "state reference"),
    ("only an id", inputs(A), "requests[1].inputs[0]", "state reference"),
    ("another separator", inputs(f"{A};1"), "requests[1].inputs[0]", "state reference"),
    ("two colons", inputs(f"{A}::1"), "requests[1].inputs[0]", "state reference"),
    ("id too short", inputs(f"{A[2:]}:1"), "requests[1].inputs[0]", "state reference"),
    ("id too long", inputs(f"{A}aa:1"), "requests[1].inputs[0]", "state reference"),
    ("id with white space", inputs(f"{A[:-2]}  :1"), "requests[1].inputs[0]", "state reference"),
    ("id not hex", inputs(f"{A[:-1]}g:1"), "requests[1].inputs[0]", "state reference"),
    ("id in another script", inputs(f"{A[:-1]}\u0661:1"), "requests[1].inputs[0]", "state reference"),
    ("empty reference", inputs(""), "requests[1].inputs[0]", "got ''"),
    ("bad reference", body_of({**GOOD, "references": [f"{A}:0", "x"]}), "requests[0].references[1]", "got 'x'"),
    ("input twice", inputs(f"{A}:1", f"{B}:2", f"{A}:1"), "requests[1].inputs[2]", "is already in inputs[0]"),
    (
        "reference twice",
        body_of({**GOOD, "references": [f"{B}:2", f"{B}:2"]}),
        "requests[0].references[1]",
        "is already in references[0]",
    ),
    ("too many inputs", inputs(*(f"{A}:{at}" for at in range(10_001))), "requests[1]", "10001 inputs and 0 references"),
    (
        "too many together",
        body_of(
            {
                "inputs": [f"{A}:{at}" for at in range(6000)],
                "references": [f"{A}:{at}" for at in range(4001)],
                "content_hash": HASH,
            }
        ),
        "requests[0]",
        "at most 10000 together",
    ),
    ("content hash null", body_of({**GOOD, "content_hash": None}), "requests[0].content_hash", "give a value"),
    ("content hash empty", body_of({**GOOD, "content_hash": ""}), "requests[0].content_hash", "64 lower-case hex digits"),
    ("content hash upper case", body_of({**GOOD, "content_hash": HASH.upper()}), "requests[0].content_hash", "lower-case"),
    ("content hash short", body_of({**GOOD, "content_hash": HASH[2:]}), "requests[0].content_hash", "64 lower-case hex digits"),
    (
        "content hash long",
        body_of({**GOOD, "content_hash": HASH + "aa"}),
        "requests[0].content_hash",
        "64 lower-case hex digits",
    ),
    (
        "content hash short by what two indices are too long",
        body_of({"inputs": [f"{A}:4294967296", f"{B}:4294967296"], "content_hash": HASH[2:]}),
        "requests[0].inputs[0]",
        "state reference",
    ),
    ("window null", window("null"), "requests[0].time_window", "got null; leave the member out"),
    ("window an array", window("[1,2]"), "requests[0].time_window", "expected an object, got an array"),
    ("window empty", window("{}"), "requests[0].time_window.from", "missing"),
    ("window open at both ends", window('{"from":null,"until":null}'), "requests[0].time_window", "both ends are null"),
    ("window of no time", window('{"from":5,"until":5}'), "requests[0].time_window", "from 5 is not before until 5"),
    ("window backwards", window('{"from":6,"until":5}'), "requests[0].time_window", "from 6 is not before until 5"),
    ("1.0", window('{"from":1.0,"until":null}'), "requests[0].time_window.from", "got a number with a fraction or an exponent"),
    (
        "1e3",
        window('{"from":null,"until":1e3}'),
        "requests[0].time_window.until",
        "got a number with a fraction or an exponent",
    ),
    ("1E0", window('{"from":null,"until":1E0}'), "requests[0].time_window.until", "fraction or an exponent"),
    ("-0.0", window('{"from":null,"until":-0.0}'), "requests[0].time_window.until", "fraction or an exponent"),
    ("1e400", window('{"from":1e400,"until":null}'), "requests[0].time_window.from", "out of range"),
    ("a string of digits", window('{"from":"1","until":null}'), "requests[0].time_window.from", "got a string"),
    ("true", window('{"from":true,"until":null}'), "requests[0].time_window.from", "got a boolean"),
    ("01", window('{"from":01,"until":null}'), "", "invalid number"),
    ("+1", window('{"from":+1,"until":null}'), "", "invalid character"),
    ("2^53", window(f'{{"from":{2**53},"until":null}}'), "requests[0].time_window.from", "<= 9007199254740991"),
    ("-2^53", window(f'{{"from":null,"until":{-(2**53)}}}'), "requests[0].time_window.until", ">= -9007199254740991"),
    ("2^64", window(f'{{"from":{2**64},"until":null}}'), "requests[0].time_window.from", "9007199254740991"),
    ("-2^70", window(f'{{"from":{-(2**70)},"until":null}}'), "requests[0].time_window.from", "9007199254740991"),
    ("10,000 digits", window(f'{{"from":{"1" * 10_000},"until":null}}'), "requests[0].time_window.from", "out of range"),
    ("10,000 digits and a fraction", window(f'{{"from":{"1" * 10_000}.0,"until":null}}'), "requests[0].time_window.from", ""),
]


@pytest.mark.parametrize(("body", "where", "what"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_the_error_for_a_body_names_the_place_and_the_fault(body: bytes, where: str, what: str) -> None:
    """Each breach is `Malformed` with the request and the field, and a message that is ASCII and fits a log line."""
    with pytest.raises(Malformed) as caught:
        decode_submission(body, NOTARY)
    assert (caught.value.where, what in caught.value.what) == (where, True), caught.value.what
    assert len(caught.value.what) < 400
    assert caught.value.what.isascii()
    assert caught.value.what.isprintable()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"content_hash":null}', b'{"inputs":["x"],"content_hash":"' + HASH.encode() + b'"}'])
def test_a_single_request_is_read_by_the_same_rules(body: bytes) -> None:
    """`decode_request` rejects with field paths that start at the request itself."""
    with pytest.raises(Malformed) as caught:
        decode_request(body, NOTARY)
    assert not caught.value.where.startswith("requests")


def test_too_many_short_strings_are_refused_before_they_are_decoded() -> None:
    """A decoder would make an object of each in one piece of work, before their number could be checked."""
    body = body_of({"inputs": [""] * 64_000, "content_hash": HASH})
    with pytest.raises(Malformed, match="more than 128000 quotation marks"):
        next(decode_in_pieces(body, NOTARY))


def test_the_largest_submission_has_fewer_quotation_marks_than_the_limit() -> None:
    """The shortest states fill the largest body."""
    states = [f"{A}:{index}" for index in range(9)] + [f"{at:064x}:0" for at in range(30_000)]
    requests = [{"inputs": states[at::1000], "content_hash": HASH, "time_window": {"from": 1, "until": 2}} for at in range(1000)]
    body = json.dumps({"party": "O=Bank A", "signature": "AAAA", "requests": requests}, separators=(",", ":")).encode()
    assert len(body) > SUBMISSION_BYTES_MAX
    assert body.count(b'"') < QUOTES_MAX
