"""A notary's answers, decoded from the contract alone (docs/formats.md, Decision), and compared with the ids requested. Pure."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec

Reason: TypeAlias = Literal["input-conflict", "reference-conflict", "outside-time-window"]


class WrongAnswer(Exception):
    """An answer that breaks the contract; the message says where."""


class Conflict(msgspec.Struct, frozen=True):
    """A state that was consumed before."""

    state: str
    kind: Literal["input", "reference"]
    consumed_by: str


class Told(msgspec.Struct):
    """A decision as returned by a notary. Its receipt is dropped after verification, since later comparisons concern only the decision."""

    transaction_id: str
    position: int
    outcome: Literal["committed", "rejected"]
    reason: Reason | None
    conflicts: tuple[Conflict, ...]
    log_time: int
    receipt: str | None = None


class _Decisions(msgspec.Struct):
    decisions: list[Told | None]


_decode = msgspec.json.Decoder(_Decisions).decode


def read(body: bytes, ids: bytes, *, complete: bool) -> Sequence[Told | None]:
    """Returns the decisions of a 200 (`complete`: none is null) or a 202, for these ids, in order. Raises `WrongAnswer`."""
    try:
        decisions = _decode(body).decisions
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise WrongAnswer(f"not an answer as the contract has it: {problem}") from None
    if len(decisions) * 32 != len(ids):
        raise WrongAnswer(f"{len(decisions)} decisions for {len(ids) // 32} requests")
    asked = ids.hex()
    for at, told in enumerate(decisions):
        if told is None:
            if complete:
                raise WrongAnswer(f"decisions[{at}]: null in an answer that says all is decided")
            continue
        if told.transaction_id != asked[64 * at : 64 * at + 64]:
            raise WrongAnswer(f"decisions[{at}]: about {told.transaction_id}, but {asked[64 * at : 64 * at + 64]} was asked")
        if (told.outcome == "committed") != (told.reason is None) or told.position < 0:
            raise WrongAnswer(f"decisions[{at}]: {told.outcome}, with the reason {told.reason}, at position {told.position}")
        if bool(told.conflicts) != (told.reason in ("input-conflict", "reference-conflict")):
            raise WrongAnswer(f"decisions[{at}]: {len(told.conflicts)} conflicts with the reason {told.reason}")
    return decisions


def hashed(transaction_id: str) -> str:
    """Returns the SHA-256 of a transaction id, by which a decision names the transaction that consumed a state."""
    return sha256(bytes.fromhex(transaction_id)).hexdigest()


def in_window(log_time: int, window: tuple[int | None, int | None]) -> bool:
    """Returns True if `from <= log_time < until`."""
    start, end = window
    return (start is None or start <= log_time) and (end is None or log_time < end)


def order(state: str) -> tuple[str, int]:
    """Returns a sort key: states sorted by it are in ascending byte order."""
    return state[:64], int(state[65:])
