"""The contract's precedence of reasons, on plain dictionaries: the outcome of a transaction that has no decision yet."""

import hashlib
from collections.abc import Mapping
from typing import Any

Decided = Mapping[str, Any]
"""A decision as the contract's JSON object."""
Asked = Mapping[str, Any]
"""A request as the contract's JSON object."""
OPEN_FROM, OPEN_UNTIL = -(2**63), 2**63 - 1
"""The ends of an open time window."""


def expected_reason(request: Asked, consumer: Mapping[str, str], log_time: int) -> tuple[str | None, list[dict[str, str]]]:
    """Returns (reason or None, conflicts). `consumer`: the hash of the consuming transaction's id, by the text of a consumed state."""
    for kind, states in (("input", request.get("inputs", ())), ("reference", request.get("references", ()))):
        taken = [state for state in states if state in consumer]
        if taken:
            return f"{kind}-conflict", [
                {"state": state, "kind": kind, "consumed_by": consumer[state]} for state in sorted(taken, key=order)
            ]
    window = request.get("time_window") or {}
    start, end = window.get("from"), window.get("until")
    if not (OPEN_FROM if start is None else start) <= log_time < (OPEN_UNTIL if end is None else end):
        return "outside-time-window", []
    return None, []


def order(state: str) -> tuple[str, int]:
    """Returns a sort key that puts states in ascending byte order; lower-case hex sorts like its bytes."""
    return state[:64], int(state[65:])


def hashed(transaction_id: str) -> str:
    """Returns the hash by which a decision names the transaction that consumed a state."""
    return hashlib.sha256(bytes.fromhex(transaction_id)).hexdigest()
