"""Tests properties over all inputs: decoding is total, ids are the contract's, and encoding is a fixed point.

The JSON rules are written here a second time, naively, from docs/formats.md alone; ids and signed messages are in `tests.notary.party`.
"""

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ordering.errors import CorruptRecord, Malformed
from ordering.ids import parse_hash
from payload import (
    Submission,
    decode_in_pieces,
    decode_request,
    decode_requests,
    decode_submission,
    encode_batch,
    signed_message,
)
from payload import request as request_module
from payload import submission as submission_module
from tests.examples import some
from tests.notary.party import message_to_sign, transaction_id

# No deadline: machines here are shared, so the duration of an example means nothing.
SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOTARY = "O=Notär,L=London"

# Only a few ids and indices, so that equal states, common prefixes and every length of index are frequent.
hashes = st.sampled_from(["00" * 32, "ff" * 32, "0123456789abcdef" * 4]) | st.binary(min_size=32, max_size=32).map(bytes.hex)
indices = st.sampled_from([0, 1, 9, 10, 255, 256, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
states = st.builds(lambda transaction_id, index: f"{transaction_id}:{index}", hashes, indices)
times = st.integers(-(2**53) + 1, 2**53 - 1)
windows = st.one_of(
    st.builds(lambda at: {"from": at, "until": None}, times),
    st.builds(lambda at: {"from": None, "until": at}, times),
    st.lists(times, min_size=2, max_size=2, unique=True).map(lambda ends: {"from": min(ends), "until": max(ends)}),
)
requests: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"content_hash": hashes},
    optional={
        "inputs": st.lists(states, max_size=6, unique=True),
        "references": st.lists(states, max_size=6, unique=True),
        "time_window": windows,
    },
).filter(lambda request: request.get("inputs") or request.get("references") or "time_window" in request)
parties = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
requests_of_one = st.lists(requests, min_size=1, max_size=4, unique_by=lambda request: expected_id(request, NOTARY))
submissions = st.fixed_dictionaries(
    {
        "party": parties,
        "signature": st.binary(max_size=80).map(lambda signature: base64.b64encode(signature).decode()),
        "requests": requests_of_one,
    }
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | states | hashes,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["party", "signature", "requests", "inputs", "references", "time_window", "content_hash", "from", "until", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def naive_state(text: str) -> bytes:
    id_, index = text.split(":")
    return bytes.fromhex(id_) + struct.pack(">I", int(index))


def expected_id(request: dict[str, Any], notary: str) -> bytes:
    """Returns the id by the contract's formula, from the parsed JSON."""
    return bytes.fromhex(transaction_id(request, notary))


def naive_encoding(submission: dict[str, Any]) -> bytes:
    """Returns a worker's encoding: the contract's members in its order, empty ones left out, no white space."""
    kept = [
        {
            **{member: request[member] for member in ("inputs", "references") if request.get(member)},
            **({"time_window": {end: request["time_window"][end] for end in ("from", "until")}} if "time_window" in request else {}),
            "content_hash": request["content_hash"],
        }
        for request in submission["requests"]
    ]
    ordered = {"party": submission["party"], "signature": submission["signature"], "requests": kept}
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()


def accepted_or_none(decode: Any, error: type[Exception], body: bytes) -> Any:
    """Returns `decode(body)`, None if it raises `error` with a message; any other exception fails the test."""
    try:
        return decode(body, NOTARY)
    except error as problem:
        if not str(problem):
            raise
        return None


def outcome(body: bytes) -> Submission | None:
    """Returns the submission, None if it is malformed. A batch of just this body must be accepted exactly when the body is."""
    submission: Submission | None = accepted_or_none(decode_submission, Malformed, body)
    value = encode_batch([body])
    in_batch = accepted_or_none(decode_requests, CorruptRecord, value)
    if submission is not None:
        assert in_batch == submission.requests
    else:
        # White space alone, or several values with commas between them, make an array that does not have one element.
        assert in_batch is None or len(json.loads(value)) != 1
    return submission


@given(requests, parties)
@SHARED
def test_ids_are_those_of_the_naive_formula(request: dict[str, Any], notary: str) -> None:
    """The ids are those of the naive formula, for any valid request at any notary."""
    decoded = decode_request(json.dumps(request).encode(), notary)
    assert decoded.transaction_id == expected_id(request, notary)
    assert list(decoded.inputs) == sorted(naive_state(text) for text in request.get("inputs", []))
    assert list(decoded.references) == sorted(naive_state(text) for text in request.get("references", []))
    assert decoded.content_hash.hex() == request["content_hash"]


@given(submissions)
@SHARED
def test_the_encoding_is_a_fixed_point(submission: dict[str, Any]) -> None:
    """An encoded submission decodes to itself, and never grows."""
    body = json.dumps(submission, ensure_ascii=False).encode()
    once = decode_submission(body, NOTARY)
    assert once.encoded == naive_encoding(submission) or b"\\" in once.encoded  # json and msgspec escape control characters differently
    assert json.loads(once.encoded) == json.loads(naive_encoding(submission))
    assert decode_submission(once.encoded, NOTARY) == once
    assert len(once.encoded) <= len(body)
    assert decode_requests(encode_batch([once.encoded, once.encoded]), NOTARY) == 2 * once.requests


@given(submissions, st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]), st.booleans())
@SHARED
def test_the_text_of_the_json_does_not_matter(submission: dict[str, Any], random: Any, indent: Any, ascii_only: bool) -> None:
    """Members in any order, any white space and any escapes give the same submission and the same encoded bytes."""

    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            members = list(value.items())
            random.shuffle(members)
            return {name: shuffled(member) for name, member in members}
        return [shuffled(each) for each in value] if isinstance(value, list) else value

    rewritten = json.dumps(shuffled(submission), indent=indent, ensure_ascii=ascii_only).encode()
    assert decode_submission(rewritten, NOTARY) == decode_submission(json.dumps(submission).encode(), NOTARY)


@given(parties, parties, st.lists(st.binary(min_size=32, max_size=32), max_size=5))
@SHARED
def test_the_signed_message_is_the_contracts(notary: str, party: str, ids: list[bytes]) -> None:
    """The signed message is the domain, both names with their lengths, the count and the ids, in order."""
    assert signed_message(notary, party, ids) == message_to_sign(notary, party, ids)


@given(st.binary(max_size=200))
@SHARED
def test_decoding_arbitrary_bytes_is_total(body: bytes) -> None:
    """Any bytes are a submission or `Malformed`, a batch or `CorruptRecord`."""
    outcome(body)
    accepted_or_none(decode_requests, CorruptRecord, body)


@given(anything)
@settings(SHARED, max_examples=some(300))
def test_decoding_arbitrary_json_is_total(value: Any) -> None:
    """Any JSON decodes or is rejected, with the contract's names in wrong places, and with the extensions of Python's json."""
    outcome(json.dumps(value).encode())
    outcome(json.dumps({"party": "P", "signature": "", "requests": value}).encode())
    outcome(json.dumps({"party": "P", "signature": "", "requests": [value]}).encode())


@given(submissions, st.data())
@settings(SHARED, max_examples=some(300))
def test_decoding_mutated_submissions_is_total(submission: dict[str, Any], data: st.DataObject) -> None:
    """A valid body with a few bytes changed, cut or doubled is rejected, or decodes to a submission that encodes to itself."""
    body = bytearray(json.dumps(submission, ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        end = min(len(body), at + data.draw(st.integers(0, 4)))
        body[at:end] = data.draw(st.binary(max_size=4) | st.sampled_from([b'"', b",", b"}", b"]", b"\\", b"0", b"null", b"\\ud800"]))
    accepted = outcome(bytes(body))
    if accepted is not None:
        assert decode_submission(accepted.encoded, NOTARY) == accepted
        naive = json.loads(bytes(body))
        assert [request.transaction_id for request in accepted.requests] == [expected_id(each, NOTARY) for each in naive["requests"]]


near_states = st.builds(
    lambda head, middle, tail: head + middle + tail,
    hashes | st.sampled_from(["00" * 31, "00" * 33, "0A" * 32, "0 " * 32, "00" * 31 + "  ", "", "\u0660" * 64]),
    st.sampled_from([":", "", "::", ";", ": "]),
    indices.map(str) | st.sampled_from(["", "00", "01", "-1", "+1", "1_0", " 1", "1 ", "\u0661", "4294967296", "9" * 11, "9" * 5000]),
)
near_hashes = hashes | st.sampled_from(["", "00" * 31, "00" * 33, "0A" * 32, "00" * 31 + "  ", "00" * 30, "0" * 63])


@given(st.lists(states | near_states, max_size=4), st.lists(states | near_states, max_size=3), near_hashes)
@example(["00" * 32 + ":4294967296", "ff" * 32 + ":4294967296"], [], "00" * 31)
@settings(SHARED, max_examples=some(500))
def test_the_short_cut_is_right_for_whatever_it_accepts(inputs: list[str], references: list[str], content_hash: str) -> None:
    """One `fromhex` for all of a request gives the same as decoding value by value, and accepts no other value."""
    wire = request_module.RequestJson(inputs=tuple(inputs), references=tuple(references), content_hash=content_hash)

    def plainly() -> tuple[list[bytes], list[bytes], bytes]:
        read = request_module._states_plainly
        return read(wire.inputs, "inputs"), read(wire.references, "references"), parse_hash(wire.content_hash, "content_hash")

    quick = request_module._states_quickly(wire.inputs, wire.references, wire.content_hash)
    if quick is None:
        with pytest.raises(Malformed):
            plainly()
    else:
        assert quick == plainly()


@given(st.lists(st.lists(states | near_states, max_size=9), min_size=1, max_size=3), near_hashes)
@settings(SHARED, max_examples=some(200))
def test_pieces_together_are_the_same(inputs: list[list[str]], content_hash: str) -> None:
    """Decoding in pieces, however small, accepts and refuses what decoding at once does, with the same place and words."""
    requests = [{"inputs": each, "references": each[::2], "content_hash": content_hash} for each in inputs]
    body = json.dumps({"party": "A", "signature": "", "requests": requests}).encode()

    def complete() -> Submission:
        return decode_submission(body, NOTARY)

    def pieces() -> Submission:
        with pytest.MonkeyPatch.context() as patch:
            for module in (request_module, submission_module):
                patch.setattr(module, "STATES_A_PIECE", 3)
            decoding = decode_in_pieces(body, NOTARY)
            while True:
                try:
                    next(decoding)
                except StopIteration as done:
                    found: Submission = done.value
                    return found

    def outcome(of: Callable[[], Submission]) -> Submission | str:
        try:
            return of()
        except Malformed as problem:
            return str(problem)

    assert outcome(pieces) == outcome(complete)
