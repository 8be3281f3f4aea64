"""Signed notes: their form, their signers, and the reasons of rejected notes."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from notary.receipts import NotVerified, VerifierKey, open_note, parse_verifier_key, sign_note
from notary.receipts.note import NOTE_BYTES_MAX, SIGNATURES_MAX, is_key_name
from tests.examples import some
from tests.notary.receipts.grown import base64_of, private_key, verifier_key

TEXT = "notary.example/a\n1\n\nblank lines are text\n"
ALICE, BOB = verifier_key("alice", "alice.example"), verifier_key("bob", "bob.example")
NOTE = sign_note(TEXT, [("alice.example", private_key("alice"))])
TWICE = sign_note(TEXT, [("alice.example", private_key("alice")), ("bob.example", private_key("bob"))])
LINE = NOTE.removeprefix(TEXT + "\n")

# From the signed-note specification's example and the note package of Go's checksum database.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETERS_NOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)


def rejected(note: str, *keys: VerifierKey) -> str:
    with pytest.raises(NotVerified) as rejection:
        open_note(note, keys or [ALICE], "malformed-checkpoint")
    return rejection.value.reason


def test_an_opened_note_has_its_text_and_keys() -> None:
    """Opening a note returns its text and the known keys that signed it, in the order of its lines."""
    assert open_note(NOTE, [ALICE], "malformed-checkpoint") == (TEXT, [ALICE])
    assert open_note(TWICE, [BOB, ALICE], "malformed-checkpoint") == (TEXT, [ALICE, BOB])
    assert open_note(TWICE, [BOB], "malformed-checkpoint") == (TEXT, [BOB])


def test_a_note_of_others() -> None:
    """A published note opens with its published key."""
    text, signed_by = open_note(PETERS_NOTE, [parse_verifier_key(PETER)], "malformed-checkpoint")
    assert text.startswith("If you think")
    assert [str(key) for key in signed_by] == [PETER]


def test_lines_of_others_say_nothing() -> None:
    """Signatures of unknown keys are skipped: other names, types, and other keys of the same name, twice, and many."""
    witness = "— witness.example " + base64_of(bytes(80)) + "\n"
    same_name = sign_note(TEXT, [("alice.example", private_key("another"))]).removeprefix(TEXT + "\n")
    same_id = "— mallory.example " + base64_of(ALICE.key_id + bytes(64)) + "\n"
    note = TEXT + "\n" + witness + witness + same_name + same_id + LINE + witness * 12
    assert open_note(note, [ALICE], "malformed-checkpoint") == (TEXT, [ALICE])


def test_each_unknown_key_has_its_reason() -> None:
    """A key of another name, another key of the same name, and no key each have their own reason, different from a bad signature."""
    assert rejected(NOTE, BOB) == "wrong-origin"
    assert rejected(NOTE, verifier_key("new", "alice.example")) == "unknown-key"
    with pytest.raises(NotVerified, match="unknown-key") as rejection:
        open_note(NOTE, [], "malformed-checkpoint")
    assert "trusted here are: none" in str(rejection.value)
    assert rejected(NOTE.replace("blank", "Blank")) == "bad-signature"


def test_a_bad_signature_rejects_the_note_despite_other_signatures() -> None:
    """One known key with a bad signature of any length makes a note invalid, also beside a good signature."""
    bad = "— bob.example " + base64_of(BOB.key_id + bytes(64)) + "\n"
    short = "— bob.example " + base64_of(BOB.key_id + b"x") + "\n"
    long = "— bob.example " + base64_of(BOB.key_id + bytes(65)) + "\n"
    for line in (bad, short, long):
        assert rejected(NOTE + line, ALICE, BOB) == "bad-signature"
        assert open_note(NOTE + line, [ALICE], "malformed-checkpoint") == (TEXT, [ALICE])


def test_no_key_signs_twice() -> None:
    """A repeated signature line is rejected: a text with its signers has one form."""
    assert rejected(NOTE + LINE) == "malformed-checkpoint"


REPLACED = [
    *(("\n", "\r\n"), ("1\n", "1\r\n"), ("1\n", "1\x00\n"), ("1\n", "1\t\n"), ("1\n", "1\x1f\n"), ("1\n", "1\ud800\n")),
    *(("— ", "- "), ("— ", "—"), ("— ", "—  "), ("— ", "—\u00a0"), ("— ", " — "), (".example ", ".example  ")),
    *(("— alice.example ", "— "), ("— alice.example", "— alice+example"), ("— alice.example", "— alice\ud800")),
    *(("— alice.example", "— alice\u2028example"), ("=\n", "\n"), ("=\n", "==\n"), ("=\n", "= \n"), ("=\n", "=x\n"), ("=\n", "=A===\n")),
]
"""A part of a note, and what makes it none in that place."""


@pytest.mark.parametrize(
    "note",
    [
        *("", "\n", "\n\n", TEXT, TEXT + "\n", TEXT + LINE, LINE, NOTE[:-1]),
        *[NOTE + more for more in ("\n", "x", "x\n", " \n", *[f"— witness.example {end}\n" for end in ("", "AAAAAA==", "QQ")])],
        *[NOTE.replace(part, other) for part, other in REPLACED],
        *[NOTE[:-10] + letter + NOTE[-9:] for letter in ("!", "-", "\u0661")],
        NOTE[:-10] + " " + NOTE[-10:],
        TEXT + "\n" + ("— witness.example " + base64_of(bytes(80)) + "\n") * SIGNATURES_MAX + LINE,
        "x" * NOTE_BYTES_MAX + "\n" + NOTE,
    ],
)
def test_what_is_no_note(note: str) -> None:
    """Anything but a text, a blank line and signature lines, in canonical base64, is no note."""
    assert rejected(note) == "malformed-checkpoint"


def test_stray_bits_before_the_padding() -> None:
    """Base64 that other decoders accept for the same bytes, but that is not canonical, is rejected."""
    at = NOTE.rindex("=") - 1
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = letters[letters.index(NOTE[at]) ^ 1]
    assert rejected(NOTE[:at] + other + NOTE[at + 1 :]) == "malformed-checkpoint"


@pytest.mark.parametrize("key", [ALICE, BOB, verifier_key("x", "ü.example/ß"), parse_verifier_key(PETER)], ids=lambda key: key.name)
def test_the_text_of_a_key(key: VerifierKey) -> None:
    """A verifier key is parsed from its text, also with a file's newline."""
    assert parse_verifier_key(str(key)) == key == parse_verifier_key(f"{key}\n")


HEAD, HASH, ENCODED = str(ALICE).split("+", 2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "+", "++", HEAD, f"{HEAD}+{HASH}", f"{HEAD}+{HASH}+"),
        # names
        *[f"{name}+{HASH}+{ENCODED}" for name in ("", f"{HEAD} x", "\ud800", f"{HEAD}x")],
        # hashes
        *[f"{HEAD}+{each}+{ENCODED}" for each in (HASH[:-1], f"0{HASH}", f"{HASH.upper()}x", "00000000")],
        # keys
        *[f"{HEAD}+{HASH}+{each}" for each in (ENCODED[:-4], f"{ENCODED}AAAA", f"{ENCODED} {ENCODED}", f"{ENCODED}+x", "é")],
        f"{HEAD}+{HASH}+Ag{ENCODED[2:]}",
    ],
)
def test_what_is_no_key(text: str) -> None:
    """A key with a wrong letter, a key of another type and any other text are rejected."""
    with pytest.raises(NotVerified) as rejection:
        parse_verifier_key(text)
    assert rejection.value.reason == "malformed-key"


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\tb", "a\nb", "a\x00b", "a\u0085b", "a\u00a0b", "a\u2003b", "a\u3000b", "a\udcffb"])
def test_what_is_no_name(name: str) -> None:
    """Key names have no white space, no plus and no control characters, and are UTF-8."""
    assert not is_key_name(name)


def test_a_key_that_is_no_point() -> None:
    """32 bytes that are no Ed25519 key verify nothing, and raise only `NotVerified`."""
    for public_key in (bytes(32), b"\xff" * 32, b"\x02" + bytes(31)):
        key = VerifierKey("alice.example", public_key)
        note = TEXT + "\n— alice.example " + base64_of(key.key_id + b"\x01" * 64) + "\n"
        assert rejected(note, key) == "bad-signature"


def test_what_a_message_quotes_cannot_command_a_terminal() -> None:
    """Names and lines of hostile notes are escaped and shortened in messages."""
    note = TEXT + f"\n— evil\x9b2J\u202e{'x' * 5000} {base64_of(bytes(80))}\n"
    with pytest.raises(NotVerified) as rejection:
        open_note(note, [ALICE], "malformed-checkpoint")
    assert str(rejection.value).isprintable()
    assert len(str(rejection.value)) < 500


def test_any_signing_key_of_a_name() -> None:
    """Two known keys of one name are distinguished by their ids."""
    old, new = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    keys = [VerifierKey("n.example", key.public_key().public_bytes_raw()) for key in (old, new)]
    assert open_note(sign_note(TEXT, [("n.example", new)]), keys, "malformed-checkpoint")[1] == [keys[1]]


@given(st.text(st.characters(), max_size=200), st.booleans())
@settings(max_examples=some(300))
def test_any_text_is_a_note_or_rejected(text: str, signed: bool) -> None:
    """For any text the only exception is `NotVerified`; a note without a known signature never opens."""
    note = text + "\n\n" + LINE if signed else text
    with pytest.raises(NotVerified):
        open_note(note, [ALICE], "malformed-checkpoint")


@given(st.text(st.characters(), max_size=100))
def test_any_text_is_a_key_or_rejected(text: str) -> None:
    """For any text of a key the only exception is `NotVerified`."""
    with pytest.raises(NotVerified):
        parse_verifier_key(text)


def test_a_key_of_small_order_signs_nothing() -> None:
    """With the neutral element as its key, a notary could deny each note: this signature would be of any text (docs/formats.md)."""
    neutral = bytes((1,)) + bytes(31)
    key = VerifierKey("alice.example", neutral)
    line = f"— alice.example {base64_of(key.key_id + neutral + bytes(32))}\n"
    for text in (TEXT, "another text\n"):
        assert rejected(f"{text}\n{line}", key) == "bad-signature"


def test_two_keys_with_one_id() -> None:
    """A notary finds two such keys in seconds. By a rotation from one to the other it could deny all earlier notes."""
    seeds = ("48682", "131343")
    both = [verifier_key(seed, "alice.example") for seed in seeds]
    assert both[0].key_id == both[1].key_id
    for seed, key in zip(seeds, both, strict=True):
        note = sign_note(TEXT, [("alice.example", private_key(seed))])
        assert open_note(note, both, "malformed-checkpoint") == open_note(note, both[::-1], "malformed-checkpoint") == (TEXT, [key])
    assert rejected(f"{TEXT}\n— alice.example {base64_of(both[0].key_id + bytes(64))}\n", *both) == "bad-signature"
