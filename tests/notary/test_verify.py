"""The verifier for outsiders: the receipts that prove a decision, and everything that does not."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from notary.decision import Conflict, Decision, Kind, Outcome
from notary.receipts import NotVerified, SignedCheckpoint
from notary.tree import EMPTY_ROOT, HASH_BYTES
from notary.verify import decision_and_receipt, decision_of, verify_checkpoint, verify_consistency, verify_receipt
from notary.wire import DecisionJson, decode_decision
from tests.examples import some
from tests.notary.receipts.grown import ORIGIN, Grown, as_object, base64_of, random_decisions

ROOT = Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "tests/vectors.json").read_text())
SIZES = (1, 2, 7, 255, 256, 257, 300)
NOTARY = Grown(random_decisions(300))
FORK = Grown([*NOTARY.decisions[:100], *random_decisions(300, seed=2)[100:]])
OTHER = Grown(random_decisions(300, seed=3), origin="notary.example/other", seed="other")
KEY = str(NOTARY.key)


def rejected(receipt: Any, decision: Any, keys: Any = KEY) -> str:
    with pytest.raises(NotVerified) as rejection:
        verify_receipt(receipt, decision, keys)
    assert str(rejection.value).startswith(rejection.value.reason)
    return rejection.value.reason


# Receipts that verify


def test_the_worked_examples_verify() -> None:
    """The contract's three worked examples, in its own JSON form, are proven under its root."""
    objects = [vector["decision"] for vector in VECTORS["decisions"]]
    notary = Grown([decision_of(one) for one in objects])
    for one in objects:
        checkpoint = verify_receipt(notary.receipt(one["position"]), one, [KEY])
        assert checkpoint == SignedCheckpoint(ORIGIN, 3, bytes.fromhex(VECTORS["root_of_the_three_leaves"]))


@pytest.mark.parametrize("size", SIZES)
def test_receipts_verify_at_every_size(size: int) -> None:
    """At every size of the growing tree, each receipt proves its decision."""
    for position in range(0, size, 1 + size // 20):
        assert verify_receipt(NOTARY.receipt(position, size), NOTARY.decisions[position], KEY).size == size


def test_the_forms_that_a_decision_has() -> None:
    """A decision verifies as object, text or bytes, or as a client's answer, with or without its receipt, indented or not."""
    decision = NOTARY.decisions[5]
    plain, receipt = as_object(decision), NOTARY.receipt(5)
    complete = {**plain, "receipt": receipt}
    answer = decode_decision(json.dumps(complete).encode())
    for form in (decision, answer, plain, MappingProxyType(plain), complete, {**plain, "receipt": None}):
        verify_receipt(receipt, form, KEY)
    for text in (json.dumps(plain), json.dumps(complete, indent=1), json.dumps(dict(reversed(plain.items())))):
        verify_receipt(receipt.encode(), text, KEY)
        verify_receipt(receipt, text.encode(), [KEY])
    assert decision_and_receipt(complete) == (decision, receipt)
    assert decision_and_receipt(plain) == (decision, None)


# Receipts that do not verify, each with its reason


def test_the_receipt_of_another_decision() -> None:
    """A receipt for another position is rejected; with the position changed, it does not lead to the root."""
    assert rejected(NOTARY.receipt(6), NOTARY.decisions[5]) == "wrong-position"
    assert rejected(NOTARY.receipt(6).replace("index 6", "index 5"), NOTARY.decisions[5]) == "wrong-root"
    assert rejected(FORK.receipt(5), NOTARY.decisions[6]) == "wrong-position"


def test_the_receipt_of_another_leaf_proves_nothing() -> None:
    """A decision that differs in any member is not proven by the receipt."""
    conflicted = next(one for one in NOTARY.decisions if one.outcome == Outcome.INPUT_CONFLICT and len(one.conflicts) > 1)
    receipt = NOTARY.receipt(conflicted.position)
    reverse = tuple(reversed(conflicted.conflicts))
    first = conflicted.conflicts[0]
    for changed in (
        msgspec.structs.replace(conflicted, transaction_id=bytes(32)),
        msgspec.structs.replace(conflicted, log_time_ms=conflicted.log_time_ms + 1),
        msgspec.structs.replace(conflicted, outcome=Outcome.COMMITTED),
        msgspec.structs.replace(conflicted, outcome=Outcome.REFERENCE_CONFLICT),
        msgspec.structs.replace(conflicted, conflicts=conflicted.conflicts[1:]),
        msgspec.structs.replace(conflicted, conflicts=conflicted.conflicts + reverse[:1]),
        msgspec.structs.replace(conflicted, conflicts=reverse),
        msgspec.structs.replace(conflicted, conflicts=(msgspec.structs.replace(first, kind=Kind.REFERENCE), *conflicted.conflicts[1:])),
        msgspec.structs.replace(conflicted, conflicts=(msgspec.structs.replace(first, consumed_by=bytes(32)), *conflicted.conflicts[1:])),
        msgspec.structs.replace(conflicted, conflicts=()),
        FORK.decisions[conflicted.position] if conflicted.position >= 100 else OTHER.decisions[conflicted.position],
    ):
        assert rejected(receipt, changed) == "wrong-root"


def test_another_notary_and_another_key() -> None:
    """A receipt of another notary, and one of a notary with the same name and another key, are rejected with different reasons."""
    assert rejected(OTHER.receipt(5), OTHER.decisions[5]) == "wrong-origin"
    impostor = Grown(NOTARY.decisions, seed="impostor")
    assert rejected(impostor.receipt(5), NOTARY.decisions[5]) == "unknown-key"
    assert rejected(NOTARY.receipt(5), NOTARY.decisions[5], []) == "unknown-key"
    assert verify_receipt(OTHER.receipt(5), OTHER.decisions[5], [KEY, OTHER.key]).origin == OTHER.origin


def test_an_index_beyond_the_tree() -> None:
    """A receipt for a position beyond the signed tree is rejected."""
    newer, older = NOTARY.receipt(299), NOTARY.checkpoint(256)
    spliced = newer.replace(NOTARY.checkpoint(), older)
    assert rejected(spliced, NOTARY.decisions[299]) == "index-out-of-range"
    empty = Grown([]).checkpoint()
    assert rejected(f"c2sp.org/tlog-proof@v1\nindex 0\n\n{empty}", NOTARY.decisions[0]) == "index-out-of-range"


def proof_lines(receipt: str) -> tuple[list[str], Callable[[list[str]], str]]:
    """Returns the lines of hashes, and a function that replaces them."""
    head, checkpoint = receipt.split("\n\n", 1)
    lines = head.split("\n")
    return lines[2:], lambda others: "\n".join([*lines[:2], *others]) + "\n\n" + checkpoint


def test_a_proof_cut_lengthened_or_in_another_order() -> None:
    """A proof with a missing, an extra or two swapped hashes is rejected."""
    lines, put = proof_lines(NOTARY.receipt(5))
    decision = NOTARY.decisions[5]
    assert rejected(put(lines[:-1]), decision) == "proof-too-short"
    assert rejected(put([]), decision) == "proof-too-short"
    assert rejected(put(lines[1:]), decision) == "proof-too-short"
    assert rejected(put([*lines, lines[0]]), decision) == "proof-too-long"
    assert rejected(put([lines[0], *lines]), decision) == "proof-too-long"
    for at in range(len(lines) - 1):
        swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        assert rejected(put(swapped), decision) == "wrong-root"
    assert rejected(put(lines[::-1]), decision) == "wrong-root"


@pytest.mark.parametrize("receipt", [None, 5, b"\xff", "\ud800", {}, [], bytearray(b"x"), b"", ""])
def test_what_is_no_receipt(receipt: object) -> None:
    """Anything but the text of a receipt is rejected; a decision without a receipt has None."""
    assert rejected(receipt, NOTARY.decisions[5]) == "malformed-receipt"


@pytest.mark.parametrize("keys", ["", "x", ["x"], [None], [b"\xff"], [5], ["\ud800+00000000+AAAA"], [KEY, KEY[:-1]], [KEY.encode()[:-1]]])
def test_what_is_no_key(keys: Any) -> None:
    """One bad key among good ones is reported, not skipped."""
    assert rejected(NOTARY.receipt(5), NOTARY.decisions[5], keys) == "malformed-key"


PLAIN = as_object(NOTARY.decisions[next(one.position for one in NOTARY.decisions if one.conflicts)])


def changed(**members: Any) -> dict[str, Any]:
    return {**PLAIN, **members}


def without(member: str) -> dict[str, Any]:
    return {name: value for name, value in PLAIN.items() if name != member}


NO_TEXT = [
    *("", b"", "null", "[]", b"\xff", "\ud800", "[" * 100_000, "{" * 5000),
    json.dumps(PLAIN)[:-1],
    json.dumps(PLAIN) + "x",
    "\ufeff" + json.dumps(PLAIN),
    json.dumps(PLAIN).replace('"position"', '"position":0,"position"'),
    json.dumps(PLAIN).replace('"kind"', '"kind":"reference","kind"'),
    json.dumps(PLAIN)[:-1] + ',"outcome":"committed"}',
]
NO_VALUES: dict[str, list[Any]] = {
    "position": [-1, 2**63, 1.0, True, "1", None],
    "log_time": [2**53, -(2**53), 10**400],
    "transaction_id": ["A" * 64, "a" * 63, "\ud800" * 64, bytes(32)],
    "outcome": ["Committed", "committed", 0],
    "reason": [None, "input_conflict", ""],
    "conflicts": [None, {}, [None], [{}]],
    "other": [1],
    "receipt": [5],
}
NO_CONFLICTS: dict[str, list[Any]] = {
    "state": ["x", "a" * 64 + ":01", "a" * 64 + ":4294967296"],
    "kind": ["output"],
    "consumed_by": ["A" * 64],
    "other": [1],
}
NO_DECISIONS: list[Any] = [
    Decision(-1, bytes(32), Outcome.COMMITTED, 0),
    Decision(2**64, bytes(32), Outcome.COMMITTED, 0),
    Decision(None, bytes(32), Outcome.COMMITTED, 0),  # type: ignore[arg-type]
    Decision(5, bytes(31), Outcome.COMMITTED, 0),
    Decision(5, bytes(33), Outcome.COMMITTED, 0),
    Decision(5, "x" * 32, Outcome.COMMITTED, 0),  # type: ignore[arg-type]
    Decision(5, bytes(32), 300, 0),  # type: ignore[arg-type]
    Decision(5, bytes(32), Outcome.COMMITTED, 2**70),
    Decision(5, bytes(32), Outcome.INPUT_CONFLICT, 0, (Conflict(bytes(35), Kind.INPUT, bytes(33)),)),
    Decision(5, bytes(32), Outcome.INPUT_CONFLICT, 0, (Conflict(bytes(36), 300, bytes(32)),)),  # type: ignore[arg-type]
]


def conflict(state: int, kind: Kind = Kind.INPUT) -> Conflict:
    return Conflict(bytes(35) + bytes((state,)), kind, bytes(32))


@pytest.mark.parametrize(
    ("outcome", "conflicts"),
    [
        (Outcome.COMMITTED, [conflict(1)]),
        (Outcome.OUTSIDE_TIME_WINDOW, [conflict(1)]),
        (Outcome.INPUT_CONFLICT, []),
        (Outcome.REFERENCE_CONFLICT, []),
        (Outcome.INPUT_CONFLICT, [conflict(1, Kind.REFERENCE)]),
        (Outcome.REFERENCE_CONFLICT, [conflict(1, Kind.REFERENCE), conflict(2)]),
        (Outcome.INPUT_CONFLICT, [conflict(2), conflict(1)]),
        (Outcome.INPUT_CONFLICT, [conflict(1), conflict(1)]),
    ],
)
def test_a_proven_decision_that_contradicts_itself(outcome: Outcome, conflicts: list[Conflict]) -> None:
    """A notary may sign any leaf. Only decisions in their one valid form verify, as JSON and as an object."""
    lie = Decision(0, bytes(32), outcome, 0, tuple(conflicts))
    notary = Grown([lie])
    for form in (lie, as_object(lie)):
        assert rejected(notary.receipt(0), form) == "malformed-decision"


@pytest.mark.parametrize(
    "decision",
    [
        *(None, 5, [], {}),
        *NO_TEXT,
        *[changed(**{member: value}) for member, values in NO_VALUES.items() for value in values],
        *[changed(conflicts=[PLAIN["conflicts"][0] | {each: value}]) for each, values in NO_CONFLICTS.items() for value in values],
        *[dict[Any, Any](PLAIN) | {5: 5}, PLAIN | {"\ud800": 5}, without("reason"), without("conflicts")],
        *NO_DECISIONS,
    ],
)
def test_what_is_no_decision(decision: Any) -> None:
    """Only the contract's object is a decision: no member missing, extra or duplicate, and each value in its one form."""
    assert rejected(NOTARY.receipt(5), decision) == "malformed-decision"


# Mutations


@cache
def receipts_of(position: int) -> frozenset[str]:
    """All receipts that the notary gave for a decision, also in the fork up to its split: only consistency exposes the fork."""
    whose = [NOTARY, FORK] if NOTARY.decisions[position] == FORK.decisions[position] else [NOTARY]
    return frozenset(notary.receipt(position, size) for notary in whose for size in SIZES if size > position)


def without_lines_of_others(receipt: str) -> str:
    """Returns the receipt without the signature lines of others: anyone may add such lines."""
    text, blank, signatures = receipt.rpartition("\n\n")
    own = f"— {ORIGIN} {base64_of(NOTARY.key.key_id)[:5]}"
    return text + blank + "".join(line for line in signatures.splitlines(keepends=True) if line.startswith(own))


def accepted_only_if_honest(mutated: str | bytes, position: int) -> None:
    try:
        verify_receipt(mutated, NOTARY.decisions[position], KEY)
    except NotVerified:
        return
    text = mutated if isinstance(mutated, str) else mutated.decode()
    assert without_lines_of_others(text) in receipts_of(position)


places = st.builds(lambda size, part: (size, int(part * size)), st.sampled_from(SIZES), st.floats(0, 1, exclude_max=True))


@given(places, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=some(500), deadline=None)
def test_changed_bytes_never_verify(place: tuple[int, int], changes: list[tuple[float, int]]) -> None:
    """A receipt with changed bytes never verifies, and raises only `NotVerified`."""
    size, position = place
    mutated = bytearray(NOTARY.receipt(position, size).encode())
    for at, byte in changes:
        mutated[int(at * len(mutated))] = byte
    accepted_only_if_honest(bytes(mutated), position)


@given(places, st.data())
@settings(max_examples=some(500), deadline=None)
def test_lines_cut_swapped_repeated_and_spliced(place: tuple[int, int], data: st.DataObject) -> None:
    """A receipt with lines moved, or mixed with those of other decisions, sizes, trees and notaries, never verifies."""
    size, position = place
    lines = NOTARY.receipt(position, size).splitlines(keepends=True)
    others = [
        *NOTARY.receipt(data.draw(st.integers(0, size - 1)), size).splitlines(keepends=True),
        *NOTARY.receipt(position).splitlines(keepends=True),
        *FORK.receipt(position, size).splitlines(keepends=True),
        *OTHER.receipt(position, size).splitlines(keepends=True),
    ]
    for _ in range(data.draw(st.integers(1, 3))):
        at, to = data.draw(st.tuples(*[st.integers(0, len(lines))] * 2).map(sorted))
        match data.draw(st.sampled_from(["cut", "repeat", "swap", "replace", "insert", "splice", "half"])):
            case "cut":
                del lines[at:to]
            case "repeat":
                lines[to:to] = lines[at:to]
            case "swap" if to < len(lines):
                lines[at], lines[to] = lines[to], lines[at]
            case "replace" if at < len(lines):
                lines[at] = data.draw(st.sampled_from(others))
            case "insert":
                lines.insert(at, data.draw(st.sampled_from(others)))
            case "splice":
                lines[at:] = others[data.draw(st.integers(0, len(others) - 1)) :]
            case "half" if at < len(lines):
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
    accepted_only_if_honest("".join(lines), position)


@given(st.integers(0, 299), st.data())
@settings(max_examples=some(500), deadline=None)
def test_a_changed_decision_verifies_only_with_equal_values(position: int, data: st.DataObject) -> None:
    """A decision with changed text verifies only if it still has the same values, and raises only `NotVerified`."""
    decision = NOTARY.decisions[position]
    text = json.dumps(as_object(decision))
    at, to = data.draw(st.tuples(*[st.integers(0, len(text))] * 2).map(sorted))
    kind = data.draw(st.sampled_from(["cut", "repeat", "letter", "splice"]))
    if kind == "letter":
        to = at + 1
    put = {
        "cut": "",
        "repeat": text[at:to] * 2,
        "letter": data.draw(st.sampled_from([*'0123456789abcdef-.:,"{}[] \n', "\x00", "\u0661", "null", "true", "1e3"])),
        "splice": json.dumps(as_object(NOTARY.decisions[data.draw(st.integers(0, 299))]))[at:to],
    }[kind]
    mutated = text[:at] + put + text[to:]
    try:
        verify_receipt(NOTARY.receipt(position), mutated, KEY)
    except NotVerified:
        return
    assert json.loads(mutated) == json.loads(text)


@pytest.mark.parametrize("member", DecisionJson.__struct_fields__[:-1])  # of all but its receipt, which is not looked at
def test_an_answer_that_no_decoder_made(member: str) -> None:
    """An answer with a value of another type, or with another decision's, does not verify, and raises nothing but `NotVerified`."""
    answer, receipt = decode_decision(json.dumps(as_object(NOTARY.decisions[5])).encode()), NOTARY.receipt(5)
    assert verify_receipt(receipt, answer, KEY).size == 300
    for value in (object(), b"\xff", -(2**70), "\ud800", (object(),)):
        assert rejected(receipt, msgspec.structs.replace(answer, **{member: value})) == "malformed-decision"
    assert rejected(receipt, msgspec.structs.replace(answer, log_time=answer.log_time + 1)) == "wrong-root"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.integers(0, 299), st.integers(0, 299), st.sampled_from(sorted(PLAIN)), st.booleans(), ANYTHING)
@settings(max_examples=some(300), deadline=None)
def test_no_changed_member_verifies(position: int, other: int, member: str, is_others: bool, anything: object) -> None:
    """No member of a decision verifies with any other value."""
    decision = as_object(NOTARY.decisions[position])
    mutated = decision | {member: as_object(NOTARY.decisions[other])[member] if is_others else anything}
    assume(mutated != decision)
    with pytest.raises(NotVerified):
        verify_receipt(NOTARY.receipt(position), mutated, KEY)


@given(
    st.binary(max_size=300) | st.text(st.characters(), max_size=300),
    st.binary(max_size=300) | st.text(st.characters(), max_size=300) | st.dictionaries(st.text(st.characters()), st.none() | st.integers()),
)
@settings(max_examples=some(300))
def test_any_input_raises_only_not_verified(receipt: Any, decision: Any) -> None:
    """For any receipt, checkpoint and decision, the only exception is `NotVerified`."""
    with pytest.raises(NotVerified):
        verify_receipt(receipt, NOTARY.decisions[0], KEY)
    with pytest.raises(NotVerified):
        verify_receipt(NOTARY.receipt(0), decision, KEY)
    with pytest.raises(NotVerified):
        verify_checkpoint(receipt, KEY)


# Consistency


def checkpoint_of(notary: Grown, size: int) -> SignedCheckpoint:
    return verify_checkpoint(notary.checkpoint(size), notary.key)


def reason_of(one: SignedCheckpoint, other: SignedCheckpoint, read: Any = NOTARY.read) -> str | None:
    try:
        verify_consistency(one, other, read)
    except NotVerified as rejection:
        return rejection.reason
    return None


@given(st.integers(0, 300), st.integers(0, 300))
@settings(max_examples=some(150), deadline=None)
def test_any_two_checkpoints_of_one_notary(one: int, other: int) -> None:
    """Any two checkpoints of one notary are consistent, in either order, and with the tiles of a tree that has grown since."""
    verify_consistency(checkpoint_of(NOTARY, one), checkpoint_of(NOTARY, other), NOTARY.read)
    verify_consistency(checkpoint_of(NOTARY, one), checkpoint_of(NOTARY, other), lambda level, index, _: NOTARY.tiles[level, index])


@given(st.integers(101, 300), st.integers(101, 300))
@settings(max_examples=some(100), deadline=None)
def test_a_notary_that_signed_two_trees(one: int, other: int) -> None:
    """A fork is exposed with the tiles of the larger tree, at any sizes."""
    whose = NOTARY if one > other else FORK
    assert reason_of(checkpoint_of(NOTARY, one), checkpoint_of(FORK, other), whose.read) == "inconsistent"


def test_what_the_tiles_cannot_show() -> None:
    """Tiles of another tree, or none, are no evidence against the notary; checkpoints of two notaries are not compared."""
    older, newer = checkpoint_of(NOTARY, 200), checkpoint_of(NOTARY, 300)
    assert reason_of(older, newer, FORK.read) == "wrong-tile"
    nothings: tuple[object, ...] = (b"", None, 5, "x", [], bytearray(9000), b"x" * 31)
    for nothing in nothings:
        assert reason_of(older, newer, lambda *_, nothing=nothing: nothing) == "missing-tile"
    assert reason_of(older, checkpoint_of(OTHER, 300)) == "wrong-origin"
    assert reason_of(msgspec.structs.replace(older, size=-1), newer) == "malformed-checkpoint"
    assert reason_of(older, msgspec.structs.replace(newer, size=2**63)) == "malformed-checkpoint"


def test_the_empty_tree_is_the_beginning_of_all() -> None:
    """The empty tree is consistent with every tree without tiles; so are two checkpoints of one size."""
    verify_consistency(SignedCheckpoint(ORIGIN, 0, EMPTY_ROOT), checkpoint_of(NOTARY, 300), lambda *_: b"")
    verify_consistency(checkpoint_of(NOTARY, 300), checkpoint_of(NOTARY, 300), lambda *_: b"")
    assert reason_of(SignedCheckpoint(ORIGIN, 0, bytes(32)), checkpoint_of(NOTARY, 300)) == "inconsistent"
    assert reason_of(checkpoint_of(FORK, 300), checkpoint_of(NOTARY, 300), lambda *_: b"") == "inconsistent"


@given(st.integers(1, 300), st.integers(1, 300), st.data())
@settings(max_examples=some(200), deadline=None)
def test_no_tile_blames_an_honest_notary(one: int, other: int, data: st.DataObject) -> None:
    """With any tiles, honest checkpoints are never reported as inconsistent, and forked ones never as consistent."""
    chance = random.Random(data.draw(st.integers(0, 2**32)))

    def read(level: int, index: int, width: int) -> bytes:
        tile = bytearray(chance.choice([NOTARY, FORK, OTHER]).tiles[level, index][: HASH_BYTES * width])
        if chance.random() < 0.5 and tile:
            tile[chance.randrange(len(tile))] ^= 1 << chance.randrange(8)
        return bytes(tile[: chance.choice([len(tile), len(tile), len(tile), chance.randint(0, len(tile))])])

    assert reason_of(checkpoint_of(NOTARY, one), checkpoint_of(NOTARY, other), read) in (None, "missing-tile", "wrong-tile")
    if min(one, other) > 100:
        assert reason_of(checkpoint_of(NOTARY, one), checkpoint_of(FORK, other), read) is not None


def test_enormous_trees_cost_a_few_tiles() -> None:
    """Sizes up to 2^63 - 1 are checked with a few tiles, so a large number costs no time."""
    asked: list[tuple[int, int]] = []

    def read(level: int, index: int, width: int) -> bytes:
        asked.append((level, index))
        return bytes(HASH_BYTES * width)

    for size in (1, 2**62, 2**62 + 1, 2**63 - 2, 0x1234567890ABCDEF):
        asked.clear()
        assert reason_of(SignedCheckpoint(ORIGIN, size, bytes(32)), SignedCheckpoint(ORIGIN, 2**63 - 1, bytes(32)), read) == "wrong-tile"
        assert len(asked) == len(set(asked)) <= 24


# The verifier's imports


@pytest.mark.seconds
def test_nothing_heavy_is_imported() -> None:
    """The verifier imports no Kafka, no RocksDB and no asyncio, so that any program can include it."""
    heavy = ["asyncio", "aiokafka", "rocksdict", "kafka", "pyspark", "httpx", "httptools", "prometheus_client", "logging", "threading"]
    # -S leaves out the imports of the machine's site packages, which are not the verifier's.
    code = f"import sys, notary.verify; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
