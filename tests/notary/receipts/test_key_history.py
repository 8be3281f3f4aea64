"""The key history: trust goes forward from key to key, by endorsements only."""

import json
from functools import cache
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notary.receipts import NotVerified, VerifierKey, sign_note
from notary.receipts.key_history import KEYS_MAX, decode_history, endorse, follow
from notary.verify import trusted_keys
from notary.wire import HistoricKey
from tests.examples import some
from tests.notary.receipts.grown import ORIGIN, private_key, verifier_key

SEEDS = ["first", "second", "third", "fourth"]
KEYS = [verifier_key(seed) for seed in SEEDS]


@cache
def history(*seeds: str, name: str = ORIGIN) -> tuple[HistoricKey, ...]:
    """Returns the key history of a notary that had these keys."""
    keys = [verifier_key(seed, name) for seed in seeds]
    endorsed = [endorse(keys[at], private_key(seeds[at]), keys[at + 1]) for at in range(len(keys) - 1)]
    return (HistoricKey(str(keys[0])), *endorsed)


HISTORY = history(*SEEDS)
ENCODED = msgspec.json.encode(HISTORY)


def rejected(trusted: list[VerifierKey], keys: tuple[HistoricKey, ...]) -> str:
    with pytest.raises(NotVerified) as rejection:
        follow(trusted, keys)
    return rejection.value.reason


@pytest.mark.parametrize("known", range(4))
def test_trust_goes_forward_only(known: int) -> None:
    """A client that trusts one key gets the keys after it, and none before it."""
    assert follow([KEYS[known]], HISTORY) == KEYS[known:]


def test_others_are_not_followed() -> None:
    """The history of another notary, or one without a trusted key, adds no key."""
    stranger = verifier_key("stranger")
    assert follow([stranger], HISTORY) == [stranger]
    assert follow([], HISTORY) == []
    assert follow([KEYS[0]], history("x", "y", name="notary.example/other")) == [KEYS[0]]


def test_keys_known_already_need_no_endorsement() -> None:
    """A key that is trusted already needs no endorsement: the operator may have given it in another way."""
    bare = tuple([HistoricKey(str(key)) for key in KEYS])
    assert follow(KEYS, bare) == KEYS
    assert follow(KEYS[1:], bare) == KEYS[1:]


def test_each_bad_endorsement_is_rejected() -> None:
    """A missing endorsement, one by or of another key or notary, one with other text, and one with a changed signature add no trust."""
    first, second = HISTORY[0], HISTORY[1]
    by_another = endorse(KEYS[0], private_key("thief"), KEYS[1])
    of_another = HistoricKey(second.verifier_key, HISTORY[2].endorsement)
    other_words = sign_note(f"notary/key/v2\n{ORIGIN}\n{KEYS[0]}\n{KEYS[1]}\n", [(ORIGIN, private_key("first"))])
    more_words = sign_note(f"notary/key/v1\n{ORIGIN}\n{KEYS[0]}\n{KEYS[1]}\nx\n", [(ORIGIN, private_key("first"))])
    other_way = sign_note(f"notary/key/v1\n{ORIGIN}\n{KEYS[1]}\n{KEYS[0]}\n", [(ORIGIN, private_key("first"))])
    checkpoint = sign_note(f"{ORIGIN}\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n", [(ORIGIN, private_key("first"))])
    for endorsement in (None, "", "x", other_words, more_words, other_way, checkpoint, (second.endorsement or "")[:-1]):
        assert rejected([KEYS[0]], (first, HistoricKey(second.verifier_key, endorsement))) == "bad-endorsement"
    assert rejected([KEYS[0]], (first, by_another)) == "bad-endorsement"
    assert rejected([KEYS[0]], (first, of_another)) == "bad-endorsement"


def test_a_key_that_is_skipped_breaks_the_chain() -> None:
    """A missing key, or two keys in the wrong order, break the chain."""
    assert rejected([KEYS[0]], (HISTORY[0], *HISTORY[2:])) == "bad-endorsement"
    assert rejected([KEYS[0]], (HISTORY[0], HISTORY[2], HISTORY[1], HISTORY[3])) == "bad-endorsement"


def test_no_notary_speaks_for_another() -> None:
    """A key may only be followed by a key of the same name, even with a valid endorsement."""
    other = verifier_key("first", "notary.example/other")
    assert rejected([KEYS[0]], (HISTORY[0], endorse(KEYS[0], private_key("first"), other))) == "bad-endorsement"


def test_a_key_that_comes_twice() -> None:
    """A list with a key that appears twice adds only endorsed keys."""
    again = (*HISTORY, HISTORY[1], HISTORY[2])
    assert follow([KEYS[0]], again) == KEYS
    assert follow([KEYS[3]], (*HISTORY, HistoricKey(str(KEYS[3])))) == [KEYS[3]]


@pytest.mark.parametrize(
    "encoded",
    [
        *(b"", b"{}", b"[]", b"null", b"7", b'"x"', b"[1]", b"[[]]", b"[{}]", b'{"keys": []}', b'{"keys": null}', b"\xff"),
        *(b'[{"verifier_key": 1}]', b'[{"verifier_key": "x", "endorsement": 1}]', b'[{"verifier_key": "x", "other": 1}]'),
        b"[" * 100_000,
        msgspec.json.encode([HISTORY[0]] * (KEYS_MAX + 1)),
        ENCODED[:-1],
        ENCODED + b"x",
    ],
)
def test_what_is_no_history(encoded: bytes) -> None:
    """Anything but an array of keys is rejected as malformed."""
    with pytest.raises(NotVerified) as rejection:
        decode_history(encoded)
    assert rejection.value.reason == "malformed-key"
    with pytest.raises(NotVerified) as rejection:
        trusted_keys([KEYS[0]], encoded)
    assert rejection.value.reason == "malformed-key"


def test_the_forms_of_a_history() -> None:
    """The array and the notary's complete answer are accepted, as text and as parsed JSON."""
    answer = {"name": "O=Notary", "keys": json.loads(ENCODED)}
    for given_ in (HISTORY, ENCODED, ENCODED.decode(), answer, answer["keys"], json.dumps(answer)):
        assert trusted_keys([str(KEYS[1])], given_) == KEYS[1:]
    assert decode_history(ENCODED) == HISTORY


# Real endorsements, some of them by a thief, and one that a thief got the second key to make.
CHAINS = [("first", "second", "third", "fourth"), ("second", "thief", "accomplice"), ("stranger", "third"), ("stranger", "first")]
_PIECES: list[dict[str, str | None]] = [
    piece
    for keys in (*[history(*chain) for chain in CHAINS], history("first", "thief", name="notary.example/other"))
    for piece in msgspec.to_builtins(keys)
]
_ENDORSEMENTS = [piece["endorsement"] for piece in _PIECES]


def endorsed_from(seed: str) -> set[VerifierKey]:
    """Returns the key, and all keys that a holder of this key may come to trust."""
    found = {seed}
    while more := {new for chain in CHAINS for old, new in pairwise(chain) if old in found} - found:
        found |= more
    return {verifier_key(each) for each in found}


pieces = st.sampled_from(_PIECES) | st.builds(
    lambda piece, endorsement: {**piece, "endorsement": endorsement}, st.sampled_from(_PIECES), st.sampled_from(_ENDORSEMENTS)
)


@given(st.lists(pieces, min_size=1, max_size=6), st.sampled_from([*SEEDS, "thief", "stranger"]))
@settings(max_examples=some(400), deadline=None)
def test_no_pieces_make_trust(chosen: list[dict[str, str | None]], known: str) -> None:
    """For any combination of real and stolen endorsements, a key is trusted only if each key before it endorsed the next."""
    try:
        found = follow([verifier_key(known)], [HistoricKey(**piece) for piece in chosen])  # type: ignore[arg-type]
    except NotVerified:
        return
    assert set(found) <= endorsed_from(known)


@given(st.integers(0, len(ENCODED) - 1), st.integers(0, 255), st.integers(0, 3))
@settings(max_examples=some(400), deadline=None)
def test_no_changed_byte_makes_trust(at: int, byte: int, known: int) -> None:
    """A history with one changed byte adds no trust that the unchanged one does not add, and raises only `NotVerified`."""
    changed = ENCODED[:at] + bytes([byte]) + ENCODED[at + 1 :]
    try:
        found = trusted_keys([KEYS[known]], changed)
    except NotVerified:
        return
    assert set(found) <= set(KEYS[known:])


@given(st.binary(max_size=200) | st.text(st.characters(), max_size=100))
def test_anything_is_a_history_or_rejected(given_: bytes | str) -> None:
    """For any input the only exception is `NotVerified`."""
    with pytest.raises(NotVerified):
        trusted_keys([KEYS[0]], given_)
