"""The cost of receipts, stage by stage: hashing leaves, the tree, its tiles in the index, signing, and encoding the text."""

import tempfile
import time
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loadtest.bench.generate import NOTARY, steps
from loadtest.bench.report import Report
from notary.decision import Decision, Outcome, leaf
from notary.index import Index
from notary.index.tiles import INSIDES_KEPT
from notary.receipts import Issuer
from notary.tree import Tree, TreeView, inside_of, leaf_hash
from notary.verify import VerifierKey, verify_receipt

STEPS = (1, 100, 1_000)
"""Decisions of a step."""
ORIGIN = "notary.example/bench"


def measure(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `receipts`."""
    for decisions in STEPS:
        figures = _stages(seconds / 2, seed, decisions)
        figures["tree_share_of_apply"] = _share_of_apply(seconds / 2, seed, decisions)
        report.add("receipts", f"{decisions} decisions a step", figures, {"step_requests": decisions, "seed": seed})


def _stages(seconds: float, seed: int, decisions: int) -> dict[str, float]:
    """Returns the microseconds a decision of each stage; signing is done once a step."""
    tree, tiles = Tree(), dict[tuple[int, int], bytes]()
    key = Ed25519PrivateKey.from_private_bytes(sha256(b"%d" % seed).digest())
    view = TreeView(0, [], _never)
    issuer = Issuer(ORIGIN, key, lambda: view)
    spent = dict.fromkeys(("hash_us", "tree_us", "sign_us", "text_us"), 0.0)
    read_full = lru_cache(maxsize=INSIDES_KEPT)(lambda level, index: inside_of(tiles[level, index]))  # as the index does
    made, octets, ends_at = 0, 0, time.perf_counter() + seconds
    receipt, last = b"", Decision(0, bytes(32), Outcome.COMMITTED, 0)
    while time.perf_counter() < ends_at:
        step = [Decision(made + at, sha256(b"%d" % (made + at)).digest(), Outcome.COMMITTED, made) for at in range(decisions)]
        began = time.perf_counter()
        hashes = [leaf_hash(leaf(decision)) for decision in step]
        hashed = time.perf_counter()
        changed = tree.append(hashes)
        view = TreeView(tree.size, tree.edge, read_full)
        grown = time.perf_counter()
        tiles.update(changed)
        issuer.checkpoint()
        signed = time.perf_counter()
        receipts = [issuer.receipt_json(decision.position) for decision in step]
        written = time.perf_counter()
        for stage, took in zip(spent, (hashed - began, grown - hashed, signed - grown, written - signed), strict=True):
            spent[stage] += took
        made += decisions
        octets += sum([len(tile) for tile in changed.values()])
        receipt, last = receipts[-1], step[-1]
    verify_receipt(msgspec.json.decode(receipt), last, [VerifierKey(ORIGIN, key.public_key().public_bytes_raw())])
    figures = {f"{stage}_per_decision": seconds_spent / made * 1e6 for stage, seconds_spent in spent.items()}
    return figures | {"tile_bytes_per_decision": octets / made, "receipt_bytes": len(receipt)}


def _share_of_apply(seconds: float, seed: int, decisions: int) -> float:
    """Returns the tree's share of the time to apply a step of 1-input requests, including its tiles in the write batch."""
    with tempfile.TemporaryDirectory(prefix="bench-receipts-") as directory:
        index = Index.open(Path(directory) / "index", notary_name=NOTARY, log_identity="bench")
        try:
            append, tree_s, took_s = index.tree.append, 0.0, 0.0
            ends_at = time.perf_counter() + seconds * 4

            def timed(*given: object) -> None:
                nonlocal tree_s
                began = time.perf_counter()
                append(*given)  # type: ignore[arg-type]
                tree_s += time.perf_counter() - began

            index.tree.append = timed  # type: ignore[assignment, method-assign]
            for ready in steps(seed, decisions, 1):
                began = time.perf_counter()
                index.apply(ready)
                took_s += time.perf_counter() - began
                if took_s >= seconds or time.perf_counter() > ends_at:
                    break
            return tree_s / took_s
        finally:
            index.close()


def _never(level: int, index: int) -> list[list[bytes]]:
    raise AssertionError("an empty tree has no tiles")
