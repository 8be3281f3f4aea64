"""Reads the receipts that parties kept, with their requests if they have these too.

Every file of a folder is read. It contains JSON values, one after the other or in arrays: decisions with receipts, as `notary submit` and
`POST /v1/submissions` return them, and requests, as `notary submit` reads them. A request belongs to the decision of its transaction id.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from notary.decision import ROW_HEAD_BYTES, leaf, to_row
from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey, open_note
from notary.receipts.proof import proof_of
from notary.salvage.statements import COMMITTED, Receipt, SourceRefused
from notary.verify import decision_and_receipt, verify_receipt
from ordering.errors import Malformed
from ordering.ids import StateRef, TransactionId
from ordering.salvage import Decided
from payload import decode_request

FILE_BYTES_MAX: Final = 1 << 30


def read_receipts(folders: Sequence[Path], notary_name: str, trusted: Sequence[VerifierKey]) -> list[Receipt]:
    """Returns the receipts in these folders, or files. Raises `SourceRefused` for the first that does not verify, with its place."""
    requests: dict[TransactionId, tuple[StateRef, ...]] = {}
    found: list[tuple[str, dict[str, Any]]] = []
    for folder in folders:
        for name, value in _values(folder):
            if "content_hash" in value:
                try:
                    request = decode_request(json.dumps(value).encode(), notary_name)
                except Malformed as problem:
                    raise SourceRefused(f"{name} is no request: {problem}. Leave it out") from None
                requests[request.transaction_id] = request.inputs
            else:
                found.append((name, value))
    return list(_verified(found, requests, trusted))


def _verified(
    found: Sequence[tuple[str, dict[str, Any]]], requests: dict[TransactionId, tuple[StateRef, ...]], trusted: Sequence[VerifierKey]
) -> Iterator[Receipt]:
    for name, value in found:
        try:
            decision, receipt = decision_and_receipt(value)
            if receipt is None:
                raise NotVerified("malformed-receipt", "the decision has no member `receipt`")
            checkpoint = verify_receipt(receipt, decision, trusted)
        except NotVerified as problem:
            raise SourceRefused(f"the receipt {name} does not verify: {problem}. Leave it out") from None
        inputs = requests.get(decision.transaction_id) if decision.outcome == COMMITTED else ()
        item = Decided(leaf(decision), to_row(decision)[ROW_HEAD_BYTES:], inputs or ())
        proof = proof_of(receipt)
        key = _signer(proof.checkpoint, tuple(trusted))
        yield Receipt(name, decision.position, item, checkpoint.size, checkpoint.root, proof.hashes, key, with_inputs=inputs is not None)


@lru_cache(1024)
def _signer(note: str, trusted: tuple[VerifierKey, ...]) -> bytes:
    """Returns the public key that signed a checkpoint, which was verified; the receipts of one answer share it."""
    return open_note(note, trusted, "malformed-checkpoint")[1][0].public_key


def _values(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the JSON objects of all files, each with its place."""
    if not folder.exists():
        raise SourceRefused(f"there is no {folder}")
    for file in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if file.is_file() and not file.name.startswith("."):
            if file.stat().st_size > FILE_BYTES_MAX:
                raise SourceRefused(f"{file} has {file.stat().st_size} bytes, at most {FILE_BYTES_MAX} are read: divide it")
            yield from _values_of(file)


def _values_of(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = file.read_bytes().decode()
    except (UnicodeDecodeError, OSError) as problem:
        raise SourceRefused(f"{file} cannot be read: {problem}. Leave it out") from None
    decoder, at, line, counted = json.JSONDecoder(), 0, 1, 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        line, counted = line + text.count("\n", counted, at), at
        name = f"{file}:{line}"
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as problem:
            raise SourceRefused(f"{name} is no JSON: {problem}. Leave the file out") from None
        if isinstance(value, dict) and isinstance(value.get("decisions"), list):
            value = [each for each in value["decisions"] if each is not None]  # an answer to a submission
        elif isinstance(value, dict) and isinstance(value.get("requests"), list):
            value = value["requests"]  # a submission
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(each, dict):
                raise SourceRefused(f"{name} holds {msgspec.json.encode(each)[:40].decode()}: neither a decision nor a request")
            yield f"{name}[{number}]" if isinstance(value, list) else name, each
