"""Hooks for schemathesis: they add to its calls the facts that no schema can express, so that the service accepts some of them.

A submission that keeps to the document gets the signature of a registered party; every second look-up asks for something that exists.
"""

import os
from typing import Any

import msgspec
import schemathesis
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.notary.party import Bank, RequestObject, transaction_id


class Known(msgspec.Struct, frozen=True):
    """The party, a transaction and a state that the notary knows."""

    party: str
    key_pem: str
    notary: str
    id: str
    ref: str


known = msgspec.json.decode(os.environ["GENERATED_KNOWN"], type=Known)
bank = Bank(known.party, notary=known.notary)
bank.key = load_pem_private_key(known.key_pem.encode(), None)  # type: ignore[assignment]
THERE = {"id": known.id, "ref": known.ref, "level": "0", "tile": "000.p/1"}
_turn = [0]


@schemathesis.hook
def before_call(context: object, case: Any, kwargs: dict[str, Any]) -> None:
    """Sign a submission; let every second look-up ask for something that exists."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.operation.path == "/v1/submissions" and isinstance(case.body, dict):
        requests: dict[str, RequestObject] = {}  # by id: a list of states in another order is the same
        for request in case.body["requests"]:
            # No schema compares two numbers, and to a schema 1.0 is an integer.
            window = {end: None if at is None else int(at) for end, at in (request.get("time_window") or {}).items()}
            if None not in (ends := list(window.values())) and ends:
                window = {"from": min(ends), "until": max(max(ends), min(ends) + 1)}
            if list(window.values()) == [None, None]:
                window["until"] = 1 << 50  # a window has an end
            if not (window or request.get("inputs") or request.get("references")):
                request["inputs"] = [known.ref]  # a request asks something
            if window:
                request["time_window"] = window
            requests[transaction_id(request, known.notary)] = request
        case.body = bank.submission(*requests.values())
    elif case.path_parameters:
        _turn[0] += 1
        if _turn[0] % 2:
            case.path_parameters = {name: THERE[name] for name in case.path_parameters}
