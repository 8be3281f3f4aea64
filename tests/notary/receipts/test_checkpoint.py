"""Checkpoints: origin, size and root only, signed by the key of that origin."""

import pytest

from notary.receipts import NotVerified, SignedCheckpoint, VerifierKey, checkpoint_of, sign_note
from notary.tree import EMPTY_ROOT
from tests.notary.receipts.grown import ORIGIN, base64_of, private_key, verifier_key

ROOT = bytes(range(32))
KEY = verifier_key("notary")
GOOD = f"{ORIGIN}\n20852163\n{base64_of(ROOT)}\n"


def signed(text: str, *others: tuple[str, str]) -> str:
    """Returns the text, signed by the notary, and by others with these names and seeds."""
    return sign_note(text, [(ORIGIN, private_key("notary")), *[(name, private_key(seed)) for name, seed in others]])


def rejected(note: str, *keys: VerifierKey) -> str:
    with pytest.raises(NotVerified) as rejection:
        checkpoint_of(note, keys or [KEY])
    return rejection.value.reason


def test_a_checkpoint_is_decoded_as_encoded() -> None:
    """Decoding a signed checkpoint returns the same checkpoint."""
    checkpoint = SignedCheckpoint(ORIGIN, 20852163, ROOT)
    assert checkpoint.text() == GOOD
    assert checkpoint_of(signed(GOOD), [KEY]) == checkpoint


def test_cosignatures_of_witnesses_do_no_harm() -> None:
    """Witnesses may sign after the notary, with known or unknown keys."""
    note = signed(GOOD, ("witness.example", "witness"))
    assert checkpoint_of(note, [KEY]).size == checkpoint_of(note, [verifier_key("witness", "witness.example"), KEY]).size == 20852163


def test_the_ends_of_the_range() -> None:
    """Sizes from 0, with the root of the empty tree, to 2^63 - 1 are accepted."""
    assert checkpoint_of(signed(SignedCheckpoint(ORIGIN, 0, EMPTY_ROOT).text()), [KEY]).size == 0
    assert checkpoint_of(signed(SignedCheckpoint(ORIGIN, 2**63 - 1, ROOT).text()), [KEY]).size == 2**63 - 1


@pytest.mark.parametrize(
    "size", ["", "-1", "+1", "01", "00", "1.0", "1e3", " 1", "1 ", "0x1", "1_000", "١", "½", str(2**63), "9" * 30, "9" * 5000]
)
def test_what_is_no_size(size: str) -> None:
    """Leading zeros, signs, other digits and sizes from 2^63 on are rejected, even when signed."""
    assert rejected(signed(f"{ORIGIN}\n{size}\n{base64_of(ROOT)}\n")) == "malformed-checkpoint"


@pytest.mark.parametrize(
    "root",
    [
        "",
        "x",
        base64_of(ROOT)[:-1],
        base64_of(ROOT) + "=",
        base64_of(ROOT) + " ",
        base64_of(ROOT)[:-2] + "9=",
        base64_of(ROOT[:-1]),
        base64_of(ROOT + b"x"),
        base64_of(b"\xff" * 32).replace("/", "_"),
        ROOT.hex(),
    ],
)
def test_what_is_no_root(root: str) -> None:
    """A root is 32 bytes in canonical base64."""
    assert rejected(signed(f"{ORIGIN}\n1\n{root}\n")) == "malformed-checkpoint"


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "extension\n",
        GOOD + "\n",
        "\n" + GOOD,
        GOOD.replace("\n", "\n\n", 1),
        f"{ORIGIN}\n1\n",
        f"{ORIGIN}\n",
        "\n",
        f"{ORIGIN}\n0\n{base64_of(ROOT)}\n",
    ],
    ids=["extension", "blank-after", "blank-before", "blank-inside", "no-root", "no-size", "nothing", "size-0-with-a-root"],
)
def test_extension_and_missing_lines_are_rejected(text: str) -> None:
    """A signed text with extension lines, missing lines, or size 0 with another root is rejected."""
    assert rejected(signed(text)) == "malformed-checkpoint"


def test_the_origin_is_the_signers() -> None:
    """The key of one notary is not accepted for another origin, and a witness's for none."""
    other = SignedCheckpoint("notary.example/other", 1, ROOT).text()
    assert rejected(signed(other)) == "wrong-origin"
    assert rejected(sign_note(other, [("notary.example/other", private_key("other"))])) == "wrong-origin"
    witnessed = sign_note(GOOD, [("witness.example", private_key("witness"))])
    assert rejected(witnessed, KEY, verifier_key("witness", "witness.example")) == "wrong-origin"


def test_each_bad_signature_has_its_reason() -> None:
    """A bad signature, a signature by another key of the same name, and a note without a known signer have different reasons."""
    assert rejected(signed(GOOD).replace("20852163", "20852164")) == "bad-signature"
    assert rejected(signed(GOOD), verifier_key("another")) == "unknown-key"
    assert rejected(GOOD) == "malformed-checkpoint"


def test_an_endorsement_is_no_checkpoint() -> None:
    """An endorsement, which the notary's key also signs, is not accepted as a checkpoint."""
    endorsement = f"notary/key/v1\n{ORIGIN}\n{KEY}\n{verifier_key('next')}\n"
    assert rejected(signed(endorsement)) == "malformed-checkpoint"
