"""Decisions: their leaf, row and JSON match the contract's worked examples."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from notary import decision as decision_module
from notary import wire
from notary.decision import (
    KINDS,
    REASONS,
    ROW_HEAD_BYTES,
    Conflict,
    Decision,
    Kind,
    Outcome,
    from_row,
    leaf,
    row_of_item,
    to_row,
)
from notary.wire import decode_decision, encode_decision, encode_in_pieces, to_decision, to_json
from ordering.errors import CorruptRecord
from ordering.ids import parse_state
from ordering.pieces import completed
from ordering.salvage import Decided, decode_items, encode_items

VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())["decisions"]
ID = bytes(range(32))
MANY = tuple([Conflict(bytes([n]) * 36, Kind(n % 2), bytes([255 - n]) * 32) for n in range(5)])


def _read(wire: dict[str, Any]) -> Decision:
    """Decodes the contract's JSON by a second, independent decoder."""
    conflicts = tuple(
        [Conflict(parse_state(c["state"]), Kind(KINDS.index(c["kind"])), bytes.fromhex(c["consumed_by"])) for c in wire["conflicts"]]
    )
    outcome = Outcome(REASONS.index(wire["reason"]))
    return Decision(wire["position"], bytes.fromhex(wire["transaction_id"]), outcome, wire["log_time"], conflicts)


@pytest.mark.parametrize("vector", VECTORS)
def test_leaf_of_the_examples(vector: dict[str, Any]) -> None:
    """The leaf of each worked example, and its hash in the tree, match the contract to the byte."""
    bytes_ = leaf(_read(vector["decision"]))
    assert bytes_.hex() == vector["leaf_hex"]
    assert len(bytes_) == 104
    assert sha256(b"\0" + bytes_).hexdigest() == vector["leaf_hash"]


@pytest.mark.parametrize("vector", VECTORS)
def test_json_of_the_examples(vector: dict[str, Any]) -> None:
    """The JSON of each worked example has the contract's members in order, and decodes to the same object."""
    encoded = encode_decision(_read(vector["decision"]))
    assert json.loads(encoded) == vector["decision"]
    assert list(json.loads(encoded)) == ["transaction_id", "position", "outcome", "reason", "conflicts", "log_time"]
    assert decode_decision(encoded) == to_json(_read(vector["decision"]))
    assert to_decision(decode_decision(encoded)) == _read(vector["decision"])


@pytest.mark.parametrize("conflicts", [(), MANY])
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("number", [0, 2**63 - 1])
def test_a_receipt_is_the_last_member(number: int, outcome: Outcome, conflicts: tuple[Conflict, ...]) -> None:
    """The receipt follows the members that the decision has without it, which stay the same to the byte."""
    decision, receipt = Decision(number, ID, outcome, -number, conflicts), b'"a\\nreceipt"'
    assert encode_decision(decision, receipt) == encode_decision(decision)[:-1] + b',"receipt":' + receipt + b"}"


@pytest.mark.parametrize("conflicts", [(), MANY])
@pytest.mark.parametrize("outcome", Outcome)
def test_a_row_is_decoded_as_encoded(outcome: Outcome, conflicts: tuple[Conflict, ...]) -> None:
    """Also at the last position and the first log time."""
    decision = Decision(2**64 - 1, ID, outcome, -(2**63), conflicts)
    assert from_row(ID, to_row(decision)) == decision
    assert len(to_row(decision)) == 17 + 69 * len(conflicts)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_rejection_has_a_reason(outcome: Outcome) -> None:
    """Committed has no reason; every other outcome is a rejection with one."""
    written = to_json(Decision(0, ID, outcome, 0))
    assert (written.outcome, written.reason is None) == (("committed", True) if outcome is Outcome.COMMITTED else ("rejected", False))


@pytest.mark.parametrize("outcome", Outcome)
def test_a_salvage_restores_every_outcome(outcome: Outcome) -> None:
    """A salvage record decodes with a decision of each outcome; readers would skip it otherwise, and the decision would be lost."""
    kind = {Outcome.INPUT_CONFLICT: Kind.INPUT, Outcome.REFERENCE_CONFLICT: Kind.REFERENCE}.get(outcome)
    decision = Decision(7, ID, outcome, 5, () if kind is None else (Conflict(bytes(36), kind, bytes(32)),))
    row = to_row(decision)
    item = Decided(leaf(decision), row[ROW_HEAD_BYTES:])
    assert decode_items(encode_items(7, [item])) == (7, (item,))
    assert row_of_item(item) == row


def test_leaf_of_many_conflicts() -> None:
    """A leaf has 104 bytes for any number of conflicts, and each conflict changes it."""
    leaves = {leaf(Decision(1, ID, Outcome.INPUT_CONFLICT, 5, MANY[:count])) for count in range(len(MANY) + 1)}
    assert len(leaves) == len(MANY) + 1
    assert {len(each) for each in leaves} == {104}


_ROW = to_row(Decision(1, ID, Outcome.INPUT_CONFLICT, 5, MANY[:1]))


@pytest.mark.parametrize(
    "row",
    [b"", _ROW[:16], _ROW[:-1], _ROW + b"\0", _ROW[:16] + b"\xff" + _ROW[17:], _ROW[:53] + b"\x02" + _ROW[54:]],
    ids=["empty", "short", "torn", "long", "outcome-255", "kind-2"],
)
def test_a_corrupt_row_raises_one_error(row: bytes) -> None:
    """A malformed row raises `CorruptRecord`, and no other exception."""
    with pytest.raises(CorruptRecord):
        from_row(ID, row)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_pieces_together_are_the_same(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is read, and JSON written, piece by piece as at once, with and without a receipt."""
    for module in (decision_module, wire):
        monkeypatch.setattr(module, "CONFLICTS_A_PIECE", 2)
    conflicts = tuple([Conflict(bytes([at]) * 36, Kind(at % 2), bytes([at + 1]) * 32) for at in range(count)])
    decision = Decision(7, ID, Outcome.INPUT_CONFLICT, -5, conflicts)
    assert completed(decision_module.from_row_in_pieces(ID, to_row(decision))) == decision
    for receipt in (b"", b'"\\"conflicts\\":[] a receipt"'):
        assert completed(encode_in_pieces(decision, receipt)) == encode_decision(decision, receipt)
        assert decode_decision(encode_decision(decision, receipt)).receipt == (json.loads(receipt) if receipt else None)
