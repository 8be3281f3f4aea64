"""The parts of a worker, each alone in this process: decoding, deciding and persisting, and the cost of receipts stage by stage."""

import tempfile
import time
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loadtest.bench.figure import Figure, part_alone, rate_rows
from loadtest.bench.report import Report
from loadtest.rig.generate import payload_values, steps
from loadtest.rig.signing import NOTARY
from notary.decision import Decision, Outcome, leaf
from notary.index import Index
from notary.index.tiles import INSIDES_KEPT
from notary.receipts import Issuer
from notary.tree import Tree, TreeView, inside_of, leaf_hash
from notary.verify import VerifierKey, verify_receipt
from payload import decode_requests

DECODE_CASES = ((1, 1), (1, 100), (4, 1), (4, 100), (1_000, 1))
"""(inputs, requests of a submission)."""
BATCH_BYTES_MAX = 512 << 10

APPLY_CASES = ((1, 1_000), (4, 1_000), (1_000, 10))
"""(inputs, requests of a step)."""
SECONDS_SHARE_MAX = 4
"""The limit on a case's total time, as a multiple of its seconds: generating the steps takes longer than applying them."""

RECEIPTS_STEPS = (1, 100, 1_000)
"""Decisions of a step."""
ORIGIN = "notary.example/bench"


def measure_decode(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `decode`."""
    for inputs, submission_requests in DECODE_CASES:
        made = payload_values(seed, submission_requests, inputs, BATCH_BYTES_MAX)
        values = list(islice(made, 8))
        requests = octets = at = 0
        started, cpu = time.perf_counter(), time.process_time()
        while (took_s := time.perf_counter() - started) < seconds:
            value = values[at % len(values)]
            requests += len(decode_requests(value.value, NOTARY))
            octets += len(value.value)
            at += 1
        figures = {
            "requests_per_s": requests / took_s,
            "inputs_per_s": requests * inputs / took_s,
            "mb_per_s": octets / took_s / 1e6,
            "cpu_us_per_request": (time.process_time() - cpu) / requests * 1e6,
        }
        case = f"{inputs} inputs, {submission_requests} requests a submission"
        report.add("decode", case, figures, {"inputs": inputs, "submission_requests": submission_requests, "seed": seed})


def measure_apply(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `apply`."""
    for inputs, step_requests in APPLY_CASES:
        with tempfile.TemporaryDirectory(prefix="bench-apply-") as directory:
            index = Index.open(Path(directory) / "index", notary_name=NOTARY, log_identity="bench")
            try:
                requests, took_s, cpu_s = _apply(index, seconds, seed, inputs, step_requests)
            finally:
                index.close()
        figures = {
            "requests_per_s": requests / took_s,
            "inputs_per_s": requests * inputs / took_s,
            "cpu_us_per_request": cpu_s / requests * 1e6,
            "requests": requests,
        }
        case = f"{inputs} inputs, {step_requests} requests a step"
        report.add("apply", case, figures, {"inputs": inputs, "step_requests": step_requests, "seed": seed})


def _apply(index: Index, seconds: float, seed: int, inputs: int, step_requests: int) -> tuple[int, float, float]:
    """Returns (requests applied, seconds for that, CPU seconds of this process for that)."""
    requests, took_s, cpu_s = 0, 0.0, 0.0
    gives_up_at = time.perf_counter() + seconds * SECONDS_SHARE_MAX
    for ready in steps(seed, step_requests, inputs):
        started, cpu = time.perf_counter(), time.process_time()
        index.apply(ready)
        took_s += time.perf_counter() - started
        cpu_s += time.process_time() - cpu
        requests += step_requests
        if took_s >= seconds or time.perf_counter() > gives_up_at:
            break
    assert index.position_next == requests, f"{index.position_next} decisions of {requests} requests"
    return requests, took_s, cpu_s


def measure_receipts(report: Report, seconds: float, seed: int) -> None:
    """Measure the figure `receipts`."""
    for decisions in RECEIPTS_STEPS:
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
        for stage, seconds in zip(spent, (hashed - began, grown - hashed, signed - grown, written - signed), strict=True):
            spent[stage] += seconds
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


FIGURES = (
    Figure("decode", "how fast is a payload record decoded?", part_alone("decode", measure_decode, 5.0), {"decode": rate_rows}),
    Figure("apply", "how fast are ordered batches decided and persisted?", part_alone("apply", measure_apply, 8.0), {"apply": rate_rows}),
    Figure("receipts", "how much do receipts cost?", part_alone("receipts", measure_receipts, 8.0)),
)
