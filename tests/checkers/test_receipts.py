"""Tests that receipts and checkpoints that prove something else, or nothing, are found, under the right kind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.checkpoint import SignedCheckpoint
from notary.receipts.note import VerifierKey, sign_note
from tests.checkers import receipts
from tests.checkers.honest import Honest, busy
from tests.checkers.replay import Replayed, replay
from tests.checkers.signed_log import ORIGIN, private_key
from tests.checkers.tree import Tree
from tests.checkers.violation import Kind
from tests.model.tree import path

KEY = private_key("notary")
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
TRUSTED = str(VerifierKey(ORIGIN, KEY.public_key().public_bytes_raw()))
OTHER_TRUSTED = str(VerifierKey(ORIGIN, OTHER_KEY.public_key().public_bytes_raw()))
ZEROS = receipts.b64encode(bytes(32)).decode()
Fault = Callable[[dict[str, Any], Tree], dict[str, Any]]
"""Returns the members of a decision that it changes."""


@pytest.fixture(scope="module")
def notary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    """One notary for all tests; no test changes it."""
    made = busy(tmp_path_factory.mktemp("receipts") / "index", spends=12)
    yield made
    made.index.close()


@pytest.fixture(scope="module")
def replayed(notary: Honest) -> Replayed:
    return replay(notary.log.by_partition)


def _signed(size: int, root: bytes, *keys: Ed25519PrivateKey, origin: str = ORIGIN) -> str:
    return sign_note(SignedCheckpoint(ORIGIN, size, root).text(), [(origin, key) for key in keys or (KEY,)])


def _heard(notary: Honest) -> list[dict[str, Any]]:
    return [dict(decision) for decision in notary.history.receipts()]


def _head(receipt: str) -> str:
    return receipt.partition("\n\n")[0]


def test_honest_receipts_hold(notary: Honest, replayed: Replayed) -> None:
    """Every receipt of every answer verifies, and every checkpoint, at all sizes that occurred."""
    assert len({receipt["receipt"].partition("\n\n")[2] for receipt in _heard(notary)}) > 5
    assert receipts.violations([notary.key], _heard(notary), replayed.tree, notary.notes) == []
    assert receipts.violations([OTHER_TRUSTED, notary.key], _heard(notary), replayed.tree, notary.notes) == []


def test_every_path_of_every_size_holds(replayed: Replayed) -> None:
    """Paths made by the definition of RFC 6962 lead to the root, for every leaf of trees of every shape."""
    heard = []
    tree = replayed.tree
    leaves = [tree.over(at, at + 1) for at in range(tree.size)]
    for size in range(1, tree.size + 1):
        note = _signed(size, tree.root(size))
        for index in range(size):
            lines = [f"index {index}", *[receipts.b64encode(node).decode() for node in path(index, leaves[:size])], "", note]
            heard.append({**replayed.decisions[index], "receipt": receipts.HEAD + "\n".join(lines)})
    assert receipts.violations([TRUSTED], heard, tree) == []


def _lines(change: Callable[[list[str]], list[str]]) -> Fault:
    return lambda decision, tree: {"receipt": "\n".join(change(decision["receipt"].split("\n")))}


def _note(make: Callable[[Tree], str]) -> Fault:
    return lambda decision, tree: {"receipt": f"{_head(decision['receipt'])}\n\n{make(tree)}"}


def _alters_the_signature(decision: dict[str, Any], tree: Tree) -> dict[str, Any]:
    line = decision["receipt"].rpartition(" ")[2]
    signature = bytearray(receipts.b64decode(line))
    signature[-1] ^= 1
    return {"receipt": decision["receipt"].replace(line, receipts.b64encode(signature).decode() + "\n")}


def _alters_the_root(decision: dict[str, Any], tree: Tree) -> dict[str, Any]:
    note = decision["receipt"].partition("\n\n")[2]
    return {"receipt": decision["receipt"].replace(note.split("\n")[2], ZEROS)}


FAULTS: dict[str, tuple[Fault, Kind]] = {
    "alters the decision": (lambda decision, tree: {"log_time": decision["log_time"] + 1}, Kind.BAD_PROOF),
    "alters a hash": (_lines(lambda lines: [*lines[:2], ZEROS, *lines[3:]]), Kind.BAD_PROOF),
    "leaves out a hash": (_lines(lambda lines: lines[:2] + lines[3:]), Kind.BAD_PROOF),
    "adds a hash": (lambda decision, tree: {"receipt": decision["receipt"].replace("\n\n", f"\n{ZEROS}\n\n", 1)}, Kind.BAD_PROOF),
    "proves another position": (_lines(lambda lines: [lines[0], f"index {int(lines[1][6:]) + 1}", *lines[2:]]), Kind.OTHER_POSITION),
    "proves under a tree that ends before": (_note(lambda tree: _signed(1, tree.root(1))), Kind.BAD_PROOF),
    "is of no outcome": (lambda decision, tree: {"reason": "no reason"}, Kind.BAD_PROOF),
    "alters the signature": (_alters_the_signature, Kind.BAD_SIGNATURE),
    "alters the root": (_alters_the_root, Kind.BAD_SIGNATURE),
    "is signed by another": (_note(lambda tree: _signed(tree.size, tree.root(tree.size), OTHER_KEY)), Kind.BAD_SIGNATURE),
    "is signed under another name": (
        _note(lambda tree: _signed(tree.size, tree.root(tree.size), origin="notary.example/elsewhere")),
        Kind.BAD_SIGNATURE,
    ),
    "is cut off": (lambda decision, tree: {"receipt": _head(decision["receipt"])}, Kind.BAD_RECEIPT),
    "is nothing": (lambda decision, tree: {"receipt": ""}, Kind.BAD_RECEIPT),
    "has another number": (lambda decision, tree: {"receipt": decision["receipt"].replace("index ", "index 0")}, Kind.BAD_RECEIPT),
    "has a hash that is none": (_lines(lambda lines: [*lines[:2], lines[2][:-4], *lines[3:]]), Kind.BAD_RECEIPT),
}


@pytest.mark.parametrize(("fault", "kind"), FAULTS.values(), ids=FAULTS)
def test_a_bad_receipt_among_good_ones_is_found(fault: Fault, kind: Kind, notary: Honest, replayed: Replayed) -> None:
    """One bad receipt among good ones is found, once, and again if it is repeated."""
    heard = _heard(notary)
    heard[-3] |= fault(heard[-3], replayed.tree)
    for _ in range(2):
        found = receipts.violations([notary.key], heard, replayed.tree, notary.notes)
        assert [violation.kind for violation in found] == [kind]
        assert heard[-3]["transaction_id"] in found[0].place


def test_checkpoint_of_another_tree_is_found(notary: Honest, replayed: Replayed) -> None:
    """A receipt that verifies under a root that the decisions do not give reveals a second tree."""
    decisions = [{**decision, "log_time": 5} for decision in replayed.decisions[:2]]
    other = Tree([receipts.leaf_of(decision) for decision in decisions])
    sibling = receipts.b64encode(other.over(1, 2)).decode()
    receipt = f"{receipts.HEAD}index 0\n{sibling}\n\n{_signed(2, other.root(2))}"
    found = receipts.violations([notary.key], [{**decisions[0], "receipt": receipt}], replayed.tree)
    assert [violation.kind for violation in found] == [Kind.OTHER_TREE]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda tree: _signed(4, bytes(32)), Kind.OTHER_TREE),
        (lambda tree: _signed(0, bytes(32)), Kind.OTHER_TREE),
        (lambda tree: _signed(tree.size + 1, bytes(32)), Kind.AHEAD_OF_LOG),
        (lambda tree: _signed(tree.size, tree.root(tree.size), KEY, OTHER_KEY), Kind.OTHER_CHECKPOINT),
        (lambda tree: _signed(tree.size, tree.root(tree.size), OTHER_KEY), Kind.BAD_SIGNATURE),
        (lambda tree: "no note", Kind.BAD_RECEIPT),
        (lambda tree: _signed(4, tree.root(4)).replace("\n\n", "\nextension\n\n"), Kind.BAD_RECEIPT),
        (lambda tree: _signed(4, tree.root(4)).replace("\u2014", "-"), Kind.BAD_RECEIPT),
    ],
)
def test_bad_checkpoint_is_found(make: Callable[[Tree], str], kind: Kind, notary: Honest, replayed: Replayed) -> None:
    """A checkpoint without a receipt is compared with the tree, and with the others of its size."""
    found = receipts.violations([notary.key], _heard(notary), replayed.tree, [*notary.notes, make(replayed.tree)])
    assert [violation.kind for violation in found] == [kind]


def test_keys_may_follow_each_other(notary: Honest, replayed: Replayed) -> None:
    """Checkpoints of one size by two keys of the notary differ, and are no violation."""
    notes = [_signed(4, replayed.root(4)), _signed(4, replayed.root(4), OTHER_KEY), _signed(0, replayed.root(0))]
    assert receipts.violations([notary.key, OTHER_TRUSTED], _heard(notary), replayed.tree, notes) == []
