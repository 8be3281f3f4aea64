"""The text of a receipt has one form, and every other text is rejected."""

import pytest

from notary.receipts import NotVerified, Proof, proof_of
from notary.receipts.note import NOTE_BYTES_MAX
from notary.receipts.proof import HASHES_MAX
from tests.notary.receipts.grown import base64_of

HASHES = tuple([bytes([number]) * 32 for number in range(3)])
LINES = "".join(base64_of(node) + "\n" for node in HASHES)
HEAD = "c2sp.org/tlog-proof@v1\nindex 5\n"
CHECKPOINT = "anything\n\n— at all\n"
GOOD = f"{HEAD}{LINES}\n{CHECKPOINT}"


def test_a_receipt_is_parsed_as_rendered() -> None:
    """Parsing a receipt returns its index, its hashes and the checkpoint's exact text."""
    assert proof_of(GOOD) == Proof(5, HASHES, CHECKPOINT)


def test_the_least_and_the_most() -> None:
    """A tree of one leaf has an empty proof; a proof has at most 63 hashes."""
    assert proof_of("c2sp.org/tlog-proof@v1\nindex 0\n\n" + CHECKPOINT) == Proof(0, (), CHECKPOINT)
    line = base64_of(bytes(32)) + "\n"
    assert len(proof_of(f"c2sp.org/tlog-proof@v1\nindex {2**63 - 1}\n{line * HASHES_MAX}\n{CHECKPOINT}").hashes) == HASHES_MAX


FIRST = base64_of(HASHES[0])


BAD = {
    "empty": "",
    "only-the-head": HEAD,
    "cut-in-the-proof": f"{HEAD}{LINES}",
    "cut-in-a-hash": f"{HEAD}{LINES[:-20]}",
    "no-blank-line": f"{HEAD}{LINES}{CHECKPOINT}",
    "another-version": GOOD.replace("@v1", "@v2"),
    "a-line-before": "\n" + GOOD,
    "white-space-before": " " + GOOD,
    "byte-order-mark": "\ufeff" + GOOD,
    "crlf": GOOD.replace("\n", "\r\n"),
    "crlf-in-the-proof": GOOD.replace(FIRST + "\n", FIRST + "\r\n"),
    "extra": GOOD.replace("index", "extra eA==\nindex"),
    "extra-after": GOOD.replace("5\n", "5\nextra eA==\n"),
    "no-index": GOOD.replace("index 5\n", ""),
    "index-twice": GOOD.replace("index 5\n", "index 5\nindex 5\n"),
    "index-in-capitals": GOOD.replace("index", "INDEX"),
    "leading-zero": GOOD.replace("index 5", "index 05"),
    "minus": GOOD.replace("index 5", "index -5"),
    "plus": GOOD.replace("index 5", "index +5"),
    "fraction": GOOD.replace("index 5", "index 5.0"),
    "two-spaces": GOOD.replace("index 5", "index  5"),
    "a-space-after": GOOD.replace("index 5", "index 5 "),
    "no-number": GOOD.replace("index 5", "index "),
    "other-digits": GOOD.replace("index 5", "index ٥"),
    "beyond-every-tree": GOOD.replace("index 5", f"index {2**63}"),
    "very-long-index": GOOD.replace("index 5", "index " + "5" * 10_000),
    "hash-too-short": GOOD.replace(FIRST, base64_of(bytes(31))),
    "hash-too-long": GOOD.replace(FIRST, base64_of(bytes(33))),
    "empty-hash": GOOD.replace(FIRST, "="),
    "two-hashes-on-a-line": GOOD.replace(FIRST + "\n", FIRST),
    "no-padding": GOOD.replace(FIRST, FIRST[:-1]),
    "too-much-padding": GOOD.replace(FIRST, FIRST + "="),
    "stray-bits": GOOD.replace(FIRST, FIRST[:-2] + "B="),
    "url-alphabet": GOOD.replace(FIRST, FIRST.replace("A", "_", 1)),
    "white-space-in-a-hash": GOOD.replace(FIRST, FIRST[:4] + " " + FIRST[4:]),
    "white-space-after-a-hash": GOOD.replace(FIRST, FIRST + " "),
    "hex": GOOD.replace(FIRST, "00" * 32),
    "too-many-hashes": GOOD.replace(FIRST + "\n", (FIRST + "\n") * 62),
    "lone-surrogate": GOOD.replace(FIRST, "\ud800"),
    "too-long": GOOD + "x" * NOTE_BYTES_MAX,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_no_receipt(text: str) -> None:
    """Every other form is rejected as malformed, so a receipt holds no unverified data."""
    assert text != GOOD
    with pytest.raises(NotVerified) as rejection:
        proof_of(text)
    assert rejection.value.reason == "malformed-receipt"
