"""`Grown`: a notary of decisions, a tree and a key only, for tests of the outsiders' verification."""

import base64
import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.decision import Conflict, Decision, Kind, Outcome, leaf
from notary.receipts import Issuer, VerifierKey
from notary.tree import HASH_BYTES, TILE_WIDTH, Tree, TreeView, format_tile_path, leaf_hash, view_at
from notary.wire import encode_decision

ORIGIN = "notary.example/test"


def private_key(seed: str) -> Ed25519PrivateKey:
    """Returns the same key for the same seed."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(seed.encode()).digest())


def verifier_key(seed: str, name: str = ORIGIN) -> VerifierKey:
    """Returns the verifier key of the seed's private key."""
    return VerifierKey(name, private_key(seed).public_key().public_bytes_raw())


def base64_of(data: bytes) -> str:
    """Returns canonical base64."""
    return base64.b64encode(data).decode()


def random_decision(position: int, chance: random.Random) -> Decision:
    """Returns a decision of any outcome, with conflicts where the outcome has some."""
    outcome = chance.choice(list(Outcome))
    conflicts: tuple[Conflict, ...] = ()
    if outcome in (Outcome.INPUT_CONFLICT, Outcome.REFERENCE_CONFLICT):
        kind = Kind.INPUT if outcome == Outcome.INPUT_CONFLICT else Kind.REFERENCE
        conflicts = tuple(
            sorted((Conflict(chance.randbytes(36), kind, chance.randbytes(32)) for _ in range(chance.randint(1, 4))), key=_state)
        )
    return Decision(position, chance.randbytes(32), outcome, 1_760_000_000_000 + position, conflicts)


def random_decisions(count: int, seed: int = 1) -> list[Decision]:
    """Returns the first `count` decisions of a notary."""
    chance = random.Random(seed)
    return [random_decision(position, chance) for position in range(count)]


def as_object(decision: Decision) -> dict[str, Any]:
    """Returns the contract's JSON object."""
    found: dict[str, Any] = json.loads(encode_decision(decision))
    return found


class Grown:
    """A notary that has made these decisions; its past states, at any size, can be queried."""

    def __init__(self, decisions: Sequence[Decision], origin: str = ORIGIN, seed: str = "notary") -> None:
        self.decisions = list(decisions)
        self.origin = origin
        self.private_key = private_key(seed)
        self.key = verifier_key(seed, origin)
        self.tiles = Tree().append([leaf_hash(leaf(decision)) for decision in decisions])
        self._issuers: dict[int, Issuer] = {}

    def view(self, size: int | None = None) -> TreeView:
        """Returns the tree at that size; by default the present one."""
        return view_at(len(self.decisions) if size is None else size, lambda level, index: self.tiles[level, index])

    def issuer(self, size: int | None = None) -> Issuer:
        """Returns the issuer at that size."""
        size = len(self.decisions) if size is None else size
        if size not in self._issuers:
            view = self.view(size)
            self._issuers[size] = Issuer(self.origin, self.private_key, lambda: view)
        return self._issuers[size]

    def receipt(self, position: int, size: int | None = None) -> str:
        """Returns the receipt made at that size."""
        return self.issuer(size).receipt(position).decode()

    def checkpoint(self, size: int | None = None) -> str:
        """Returns the checkpoint of that size."""
        return self.issuer(size).checkpoint()

    def read(self, level: int, index: int, width: int) -> bytes:
        """Returns a tile, for `verify_consistency`."""
        return self.tiles[level, index][: HASH_BYTES * width]

    def files(self) -> dict[str, bytes]:
        """Returns the files by their tlog-tiles path, with the leaves."""
        files = {}
        for (level, index), tile in self.tiles.items():
            width = len(tile) // HASH_BYTES
            files[format_tile_path(level, index, width)] = tile
            if level == 0:
                bundle = [leaf(decision) for decision in self.decisions[TILE_WIDTH * index :][:width]]
                files[format_tile_path(None, index, width)] = b"".join([len(entry).to_bytes(2, "big") + entry for entry in bundle])
        return files


def _state(conflict: Conflict) -> bytes:
    return conflict.state
