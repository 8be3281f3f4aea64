"""The notary's issuer: receipts to the byte, and one signature for each tree size."""

import base64
import json
import random
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from notary.decision import leaf
from notary.receipts import Issuer
from notary.receipts.issue import GROUP_WIDTH, GROUPS_KEPT
from notary.tree import TILE_WIDTH, Tree, TreeView, inside_of, leaf_hash
from notary.verify import verify_receipt
from tests.model.tree import path, root
from tests.notary.receipts.grown import ORIGIN, Grown, private_key, random_decisions, verifier_key

DECISIONS = random_decisions(600)


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 33, 255, 256, 257, 512, 600])
def test_receipts_to_the_byte(size: int) -> None:
    """A receipt equals the text that this test makes from the definitions of the formats."""
    notary = Grown(DECISIONS[:size])
    leaves = [sha256(b"\x00" + leaf(decision)).digest() for decision in notary.decisions]
    text = f"{ORIGIN}\n{size}\n{base64.b64encode(root(leaves)).decode()}\n"
    signature = base64.b64encode(notary.key.key_id + private_key("notary").sign(text.encode())).decode()
    checkpoint = f"{text}\n— {ORIGIN} {signature}\n"
    assert notary.checkpoint() == checkpoint
    for index in {0, size // 2, size - 1, (size - 1) // 256 * 256, (size - 1) // 16 * 16, min(size - 1, 16)}:
        lines = "".join(base64.b64encode(node).decode() + "\n" for node in path(index, leaves))
        assert notary.receipt(index) == f"c2sp.org/tlog-proof@v1\nindex {index}\n{lines}\n{checkpoint}"


def test_an_empty_tree_has_a_checkpoint() -> None:
    """The empty tree has a checkpoint: size 0 and the root SHA-256 of nothing."""
    lines = Grown([]).checkpoint().splitlines()
    assert lines[:3] == [ORIGIN, "0", base64.b64encode(sha256(b"").digest()).decode()]


def test_a_new_key_signs_at_once() -> None:
    """After a rotation, no receipt has the former key's signature any more, although the tree has not grown."""
    notary = Grown(DECISIONS[:20])
    notary.receipt(7)
    notary.issuer().sign_with(private_key("next"))
    verify_receipt(notary.receipt(7), DECISIONS[7], [verifier_key("next")])


def test_one_signature_a_size() -> None:
    """For any number of receipts and checkpoints, each size of the tree is signed once."""
    tree = Tree()
    full: dict[Any, Any] = {}
    chance = random.Random(7)

    def view() -> TreeView:
        return views[-1]

    views = [TreeView(0, tree.edge, lambda level, index: inside_of(full[level, index]))]
    issuer = Issuer(ORIGIN, private_key("notary"), view)
    for step in range(1, 6):
        full.update(tree.append([leaf_hash(leaf(decision)) for decision in DECISIONS[tree.size : tree.size + 100]]))
        views.append(TreeView(tree.size, tree.edge, lambda level, index: inside_of(full[level, index])))
        as_it_is = Grown(DECISIONS[: tree.size])
        for position in [chance.randrange(tree.size) for _ in range(20)]:
            assert issuer.receipt(position).decode() == as_it_is.receipt(position)
        assert issuer.checkpoint() == as_it_is.checkpoint()
        assert issuer.signatures == step


def test_what_is_kept_is_bounded() -> None:
    """A client that gets every receipt of an idle notary does not fill its memory."""
    rows = inside_of(bytes(32 * TILE_WIDTH))
    size = GROUPS_KEPT * 3 * GROUP_WIDTH
    tree = Tree()
    tree.append([bytes(32)] * size)
    view = TreeView(size, tree.edge, lambda level, index: rows)
    issuer = Issuer(ORIGIN, private_key("notary"), lambda: view)
    for position in range(0, size, GROUP_WIDTH):
        issuer.receipt(position)
        assert len(issuer._groups) <= GROUPS_KEPT


@pytest.mark.parametrize("origin", [ORIGIN, 'quoted"and\\/<b>', "bücher.example/ß\u2603"])
def test_as_a_json_string(origin: str) -> None:
    """The JSON form of a receipt decodes to the same text, with any characters in its origin."""
    notary = Grown(DECISIONS[:300], origin)
    for position in (0, 17, 299):
        written = notary.issuer().receipt_json(position)
        assert written == msgspec.json.encode(notary.receipt(position))
        assert verify_receipt(json.loads(written), notary.decisions[position], notary.key).origin == origin


@pytest.mark.parametrize("position", [-1, 600, 10**6])
def test_no_receipt_of_what_is_not_there(position: int) -> None:
    """A receipt for a position without a decision is a broken invariant, and raises AssertionError."""
    with pytest.raises(AssertionError):
        Grown(DECISIONS).receipt(position)
