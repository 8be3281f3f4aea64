"""Offline verification of a notary: a decision is in its tree, and its trees are consistent with each other.

    verify_receipt(decision["receipt"], decision, ["notary.example/london+0a1b2c3d+AQ..."])

Every function is total: for any input it returns or raises `NotVerified`, whose `reason` is machine-readable. Importing it needs no Kafka,
RocksDB or asyncio. Formats: docs/formats.md, Receipt; C2SP tlog-proof, tlog-checkpoint, signed-note and tlog-tiles; RFC 6962.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from notary.decision import Decision, check_conflicts, leaf
from notary.receipts.checkpoint import SIZE_MAX, SignedCheckpoint, checkpoint_and_signer, checkpoint_of
from notary.receipts.errors import NotVerified, Reason
from notary.receipts.key_history import follow, history_of
from notary.receipts.note import VerifierKey, parse_verifier_key
from notary.receipts.proof import proof_of
from notary.tree import EMPTY_ROOT, HASH_BYTES, TILE_HEIGHT, TILE_WIDTH, ProofError, check_consistency, check_inclusion, leaf_hash, view_at
from notary.wire import DecisionJson, HistoricKey, decision_of_object
from ordering.errors import Malformed
from ordering.ids import STATE_REF_BYTES, TRANSACTION_ID_BYTES
from payload import TIME_MAX_MS

__all__ = [
    "Decision",
    "HistoricKey",
    "NotVerified",
    "Reason",
    "SignedCheckpoint",
    "VerifierKey",
    "decision_and_receipt",
    "decision_of",
    "trusted_keys",
    "verify_checkpoint",
    "verify_consistency",
    "verify_receipt",
]

DecisionLike: TypeAlias = Decision | DecisionJson | Mapping[str, Any] | bytes | str
"""A decision, a client's answer, the contract's JSON object, or its text."""
Keys: TypeAlias = Sequence[VerifierKey | str] | VerifierKey | str
"""Verifier keys, or one, as objects or in their text form."""
History: TypeAlias = Sequence[HistoricKey | Mapping[str, Any]] | Mapping[str, Any] | bytes | str
"""An answer of `GET /v1/notary`, or its `keys`, as JSON text or as parsed JSON."""
ReadTile: TypeAlias = Callable[[int, int, int], bytes]
"""(level, index, width) -> a tile's bytes: `width` hashes or more; fewer if it does not have them. Its exceptions go to the caller."""


class VerifiedReceipt(msgspec.Struct, frozen=True):
    """A receipt that proves a decision; `signer` is the first of the trusted keys that signed its checkpoint."""

    hashes: tuple[bytes, ...]
    checkpoint: SignedCheckpoint
    signer: VerifierKey


def verify_receipt(receipt: str | bytes, decision: DecisionLike, keys: Keys) -> SignedCheckpoint:
    """Verify that the receipt proves the decision under a checkpoint signed by one of the keys. Returns that checkpoint."""
    return verified_receipt(receipt, decision, keys).checkpoint


def verified_receipt(receipt: str | bytes, decision: DecisionLike, keys: Keys) -> VerifiedReceipt:
    """Verify a receipt as `verify_receipt` does. Returns its proof too."""
    trusted = _keys(keys)
    decided = decision_of(decision)
    proof = proof_of(_text(receipt, "malformed-receipt"))
    checkpoint, signer = _signed(proof.checkpoint, tuple(trusted))
    if proof.index != decided.position:
        raise NotVerified("wrong-position", f"the receipt is for position {proof.index}, and the decision says {decided.position}")
    try:
        check_inclusion(proof.index, checkpoint.size, leaf_hash(leaf(decided)), proof.hashes, checkpoint.root)
    except ProofError as problem:
        raise NotVerified(problem.reason, str(problem)) from None
    try:
        check_conflicts(decided)  # the notary may have signed any leaf
    except (Malformed, IndexError) as problem:
        raise NotVerified("malformed-decision", f"the notary signed what is no decision: {problem}") from None
    return VerifiedReceipt(proof.hashes, checkpoint, signer)


def verify_checkpoint(note: str | bytes, keys: Keys) -> SignedCheckpoint:
    """Verify the signature of a checkpoint. Returns the checkpoint."""
    return checkpoint_of(_text(note, "malformed-checkpoint"), _keys(keys))


def verify_consistency(one: SignedCheckpoint, other: SignedCheckpoint, read: ReadTile) -> None:
    """Verify, with the tiles of the larger tree, that the smaller tree is a prefix of the larger. The tiles need not be trusted.

    The reason "inconsistent" means that the notary signed two different trees. "missing-tile" and "wrong-tile" mean only that these tiles
    do not prove consistency.
    """
    older, newer = sorted((one, other), key=lambda checkpoint: checkpoint.size)
    if not 0 <= older.size <= newer.size <= SIZE_MAX:
        raise NotVerified("malformed-checkpoint", f"trees have 0 to 2^63 - 1 leaves, these have {older.size} and {newer.size}")
    if older.origin != newer.origin:
        raise NotVerified("wrong-origin", f"one checkpoint is of {older.origin!r}, the other of {newer.origin!r}")
    root = newer.root if older.size == newer.size else _root_within(older.size, newer, read)
    if older.root != root:
        raise NotVerified(
            "inconsistent",
            f"the notary signed two trees: at size {older.size} the root of the one is {older.root.hex()}, and of the other {root.hex()}",
        )


def trusted_keys(keys: Keys, history: History) -> list[VerifierKey]:
    """Returns the keys, and those that follow from them by the notary's key history."""
    found: Any = history
    if isinstance(history, bytes | str):
        found = _json(history, "malformed-key")
    return follow(_keys(keys), history_of(found))


def decision_of(decision: DecisionLike) -> Decision:
    """Decodes a decision. A member `receipt` is ignored; any other extra member raises `NotVerified`, since no receipt would prove it."""
    if not isinstance(decision, Decision):
        return decision_and_receipt(decision)[0]
    # Check types, lengths and ranges: the caller made this object, and fields of other lengths could give another decision's leaf.
    try:
        fits = (
            0 <= decision.position < 2**63
            and len(decision.transaction_id) == TRANSACTION_ID_BYTES
            and -TIME_MAX_MS <= decision.log_time_ms <= TIME_MAX_MS
            and all(len(one.state) == STATE_REF_BYTES and len(one.consumed_by) == HASH_BYTES for one in decision.conflicts)
            and bool(leaf(decision))
        )
    except (struct.error, TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise NotVerified(
            "malformed-decision",
            f"no decision has these values: position {decision.position}, log time {decision.log_time_ms}, or ids and states of other"
            " lengths: pass the decision as the notary returned it",
        )
    return decision


def decision_and_receipt(decision: DecisionJson | Mapping[str, Any] | bytes | str) -> tuple[Decision, str | None]:
    """Decodes a decision. Returns it, and its member `receipt` (None without one)."""
    found: Any = decision
    if isinstance(decision, bytes | str):
        found = _json(decision, "malformed-decision")
    try:
        return decision_of_object(msgspec.to_builtins(found) if isinstance(found, DecisionJson) else found)
    except (msgspec.MsgspecError, Malformed, TypeError, ValueError, RecursionError) as problem:
        raise NotVerified("malformed-decision", str(problem)) from None


def _root_within(size: int, newer: SignedCheckpoint, read: ReadTile) -> bytes:
    """Returns the root of the first `size` leaves of the newer tree."""
    if not size:
        return EMPTY_ROOT
    tiles: dict[tuple[int, int], bytes] = {}

    def read_tile(level: int, index: int) -> bytes:
        # Ask for the tile's full width at the newer size: the narrower versions may be deleted by now.
        needed = HASH_BYTES * min(TILE_WIDTH, (newer.size >> (TILE_HEIGHT * level)) - TILE_WIDTH * index)
        if (level, index) not in tiles:
            tile: object = read(level, index, needed // HASH_BYTES)
            if not isinstance(tile, bytes) or len(tile) < needed:
                raise NotVerified("missing-tile", f"{needed} bytes of tile {level}/{index} are needed, and were not given")
            tiles[level, index] = tile[:needed]
        return tiles[level, index]

    root = view_at(size, read_tile).root
    try:
        check_consistency(size, newer.size, root, newer.root, view_at(newer.size, read_tile).consistency(size))
    except ProofError as problem:
        raise NotVerified("wrong-tile", f"the tiles are not those of the tree of {newer.size} leaves: {problem}") from None
    return root


@lru_cache(maxsize=4)
def _signed(note: str, keys: tuple[VerifierKey, ...]) -> tuple[SignedCheckpoint, VerifierKey]:
    """Caches the checkpoint: the receipts of one answer share it, and its signature is most of the cost of verifying them."""
    return checkpoint_and_signer(note, keys)


def _json(text: bytes | str, malformed: Reason) -> Any:
    """Parses JSON, and rejects duplicate members: parsers differ on these, so another parser could show a value that was not verified."""
    try:
        return json.loads(_text(text, malformed), object_pairs_hook=_members)
    except (ValueError, RecursionError) as problem:
        raise NotVerified(malformed, f"it is no JSON: {problem}") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is given twice")
    return members


def _keys(keys: Keys) -> list[VerifierKey]:
    if isinstance(keys, str | VerifierKey):
        keys = [keys]
    return [key if isinstance(key, VerifierKey) else parse_verifier_key(_text(key, "malformed-key")) for key in keys]


def _text(given: object, malformed: Reason) -> str:
    try:
        if isinstance(given, str):
            given.encode()
            return given
        if isinstance(given, bytes):
            return given.decode()
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise NotVerified(malformed, "it is not UTF-8") from None
    raise NotVerified(malformed, f"text is needed, and this is {type(given).__name__}")
