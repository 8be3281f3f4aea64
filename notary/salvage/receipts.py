"""Reads the receipts that parties kept, with their requests if they have these too.

Every file of a folder is read, also in its subfolders and in folders that it links to, and hidden ones. It contains JSON values, one after
the other or in arrays: decisions with receipts, as `notary submit` and `POST /v1/submissions` return them, and requests, as `notary submit`
reads them. A request belongs to the decision of its transaction id. No file is skipped: a decision that is not put back is lost for good.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from notary.decision import ROW_HEAD_BYTES, Outcome, leaf, to_row
from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey
from notary.salvage.statements import Receipt, SourceRefused
from notary.verify import decision_and_receipt, verified_receipt
from ordering.errors import Malformed
from ordering.ids import StateRef, TransactionId
from ordering.salvage import Decided
from payload import decode_request

VALUE_CHARS_MAX: Final = 1 << 24
"""The limit for one JSON value: an answer to the largest submission takes about half of it."""
_CHUNK_CHARS: Final = 1 << 22
_STEPS: Final = {("outside", "["): "opened", ("opened", "]"): "outside", ("comma", ","): "value", ("comma", "]"): "outside"}
"""The state after a character, by the state before it: what an array expects next, or that the text is outside of an array."""


class ReadReceipts(msgspec.Struct, frozen=True):
    """The receipts of all sources, and the number of receipts and requests of each source, by its name."""

    receipts: list[Receipt]
    counts: dict[str, tuple[int, int]]


def read_receipts(sources: Sequence[Path], notary_name: str, trusted: Sequence[VerifierKey]) -> ReadReceipts:
    """Returns the receipts in these folders, or files. Raises `SourceRefused` for the first that does not verify, with its place.

    Raises it also for a source that has neither a receipt nor a request.
    """
    requests: dict[TransactionId, tuple[StateRef, ...]] = {}
    found: list[Receipt] = []
    counts: dict[str, tuple[int, int]] = {}
    for source in sources:
        of_receipts = of_requests = 0
        for name, value in _values(source):
            if "content_hash" in value:
                try:
                    # `json` again, which read the value: orjson writes NaN as null, and raises for integers above 64 bits.
                    request = decode_request(json.dumps(value).encode(), notary_name)
                except Malformed as problem:
                    raise SourceRefused(f"{name} is no request: {problem}. Leave it out") from None
                requests[request.transaction_id] = request.inputs
                of_requests += 1
            else:
                # Now, not at the end: the first bad one ends the command, before a file of millions of them fills the memory.
                found.append(_verified(name, value, trusted))
                of_receipts += 1
        if not of_receipts + of_requests:
            raise SourceRefused(f"{source} has neither a receipt nor a request: name another folder or file, or leave it out")
        counts[str(source)] = of_receipts, of_requests
    return ReadReceipts([_with_request(receipt, requests) for receipt in found], counts)


def _verified(name: str, value: dict[str, Any], trusted: Sequence[VerifierKey]) -> Receipt:
    """Returns the receipt in a JSON object, without the states that a committed transaction consumed. Raises `SourceRefused`."""
    try:
        decision, receipt = decision_and_receipt(value)
        if receipt is None:
            raise NotVerified("malformed-receipt", "the decision has no member `receipt`")
        verified = verified_receipt(receipt, decision, trusted)
    except NotVerified as problem:
        missed = "If the log lost a rotation, copy key and key history from a machine that has that key; else leave it out"
        remedy = missed if problem.reason == "unknown-key" else "Leave it out"
        raise SourceRefused(f"the receipt {name} does not verify: {problem}. {remedy}") from None
    item = Decided(leaf(decision), to_row(decision)[ROW_HEAD_BYTES:])
    size, root, key = verified.checkpoint.size, verified.checkpoint.root, verified.signer.public_key
    is_complete = decision.outcome is not Outcome.COMMITTED
    return Receipt(name, decision.position, item, size, root, verified.hashes, key, with_inputs=is_complete)


def _with_request(receipt: Receipt, requests: Mapping[TransactionId, tuple[StateRef, ...]]) -> Receipt:
    """Returns a receipt with the states that its transaction consumed, if its request is known."""
    inputs = None if receipt.with_inputs else requests.get(receipt.item.transaction_id)
    if inputs is None:
        return receipt
    return msgspec.structs.replace(receipt, item=Decided(receipt.item.leaf, receipt.item.conflicts, inputs), with_inputs=True)


def _values(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the JSON objects of all files, each with its place."""
    if not source.exists():
        raise SourceRefused(f"there is no {source}")
    for file in _files(source):
        yield from _values_of(file)


def _files(source: Path) -> Iterator[Path]:
    """Yields each file once. Raises `SourceRefused` for a folder that cannot be listed, and for all else in a folder that is no file."""

    def unreadable(problem: OSError) -> None:
        raise SourceRefused(f"{problem.filename} cannot be read: {problem.strerror}. Leave it out") from None

    if not source.is_dir():
        yield source  # it may be a pipe too
        return
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(source, onerror=unreadable, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            subfolders.clear()  # a link leads here again, perhaps for ever
            continue
        seen.add(real)
        subfolders.sort()
        for file in sorted([Path(folder) / name for name in names]):
            if not file.is_file():
                raise SourceRefused(f"{file} is neither a file nor a folder: leave it out, or name it alone")
            if (real := os.path.realpath(file)) not in seen:
                seen.add(real)
                yield file


def _values_of(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            yield from _values_in(file, opened)
    except (UnicodeDecodeError, OSError) as problem:
        raise SourceRefused(f"{file} cannot be read: {problem}. Leave it out") from None


def _values_in(file: Path, opened: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each JSON object of a text, also of an array, before it reads on: an array takes 25 times its length when it is decoded."""
    decoder, text, at, is_end = json.JSONDecoder(), "", 0, False
    line, array, number, state = 1, "", 0, "outside"
    while True:
        while at < len(text) and text[at].isspace():
            line, at = line + (text[at] == "\n"), at + 1
        if not is_end and len(text) - at < VALUE_CHARS_MAX:
            more = opened.read(_CHUNK_CHARS)
            text, at, is_end = text[at:] + more, 0, not more
            continue
        if is_end and at == len(text) and state == "outside":
            return
        name, char = f"{file}:{line}", text[at : at + 1]
        if (state, char) in _STEPS:
            if char == "[":
                array, number = name, 0
            state, at = _STEPS[state, char], at + 1
            continue
        try:
            if state == "comma":
                raise ValueError(f"an array continues with {char!r}" if char else "an array does not end")
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as problem:
            long = "" if is_end else f" (or a value of more than {VALUE_CHARS_MAX} characters: divide it)"
            raise SourceRefused(f"{name} is no JSON: {problem}{long}. Leave the file out") from None
        line, at = line + text.count("\n", at, end), end
        if state != "outside":
            name, number, state = f"{array}[{number}]", number + 1, "comma"
        elif isinstance(value, dict) and isinstance(value.get("decisions"), list):
            value = [each for each in value["decisions"] if each is not None]  # an answer to a submission
        elif isinstance(value, dict) and isinstance(value.get("requests"), list):
            value = value["requests"]  # a submission
        is_list = state == "outside" and isinstance(value, list)
        for index, each in enumerate(value if is_list else [value]):
            if not isinstance(each, dict):
                raise SourceRefused(f"{name} holds {json.dumps(each)[:40]}: neither a decision nor a request")
            yield f"{name}[{index}]" if is_list else name, each
