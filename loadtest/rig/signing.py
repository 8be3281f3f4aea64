"""Requests and submissions to the byte, built from the contract alone (docs/formats.md) and not with the encoders of `payload`. Pure.

If the notary decodes and verifies a submission that is built here, that tests both.
"""

import base64
from collections.abc import Callable, Sequence
from hashlib import sha256
from struct import pack
from typing import Final, TypeAlias

import msgspec

Window: TypeAlias = tuple[int | None, int | None]
"""The two ends of a time window, in milliseconds since 1970-01-01 UTC; None for an open end."""

NOTARY: Final = "O=Bench Notary,L=London,C=GB"
PARTY: Final = "O=Bench Party,L=Paris,C=FR"
"""The names in every load, unless options say otherwise."""

OPEN_FROM_MS: Final = -(2**63)
OPEN_UNTIL_MS: Final = 2**63 - 1


class Made(msgspec.Struct, frozen=True, gc=False):
    """A submission: its JSON, and the concatenated transaction ids of its requests, in order (32 bytes each)."""

    body: bytes
    ids: bytes


class SubmissionSigner:
    """Encodes the requests and submissions of one party at one notary. A state is given as its 36 bytes."""

    def __init__(self, notary: str, party: str, sign: Callable[[bytes], bytes]) -> None:
        self._sign = sign
        self._transaction_head = b"notary/transaction/v1\n" + _text(notary)
        self._message_head = b"notary/submission/v1\n" + _text(notary) + _text(party)
        self._party = msgspec.json.encode(party).decode()

    def request(
        self, inputs: Sequence[bytes], content_hash: bytes, references: Sequence[bytes] = (), window: Window | None = None
    ) -> tuple[str, bytes]:
        """Returns (JSON, transaction id). `inputs` and `references` are in ascending order, without repetition."""
        start, end = (None, None) if window is None else window
        bounds = pack(">qq", OPEN_FROM_MS if start is None else start, OPEN_UNTIL_MS if end is None else end)
        hashed = b"".join([self._transaction_head, _states(inputs), _states(references), bounds, content_hash])
        members = [f'"{name}":["{_references(states)}"]' for name, states in (("inputs", inputs), ("references", references)) if states]
        if window is not None:
            members.append(f'"time_window":{{"from":{_end(start)},"until":{_end(end)}}}')
        members.append(f'"content_hash":"{content_hash.hex()}"')
        return "{" + ",".join(members) + "}", sha256(hashed).digest()

    def submission(self, texts: Sequence[str], ids: Sequence[bytes]) -> Made:
        """Sign requests and join them; returns the bytes to send, which may be sent repeatedly."""
        joined = b"".join(ids)
        signature = base64.b64encode(self._sign(self._message_head + pack(">I", len(ids)) + joined)).decode()
        body = f'{{"party":{self._party},"signature":"{signature}","requests":[{",".join(texts)}]}}'
        return Made(body.encode(), joined)


def reference(state: bytes) -> str:
    """Returns a state in its text form."""
    return f"{state[:32].hex()}:{int.from_bytes(state[32:], 'big')}"


def _references(states: Sequence[bytes]) -> str:
    return '","'.join([reference(state) for state in states])


def _states(states: Sequence[bytes]) -> bytes:
    return len(states).to_bytes(4, "big") + b"".join(states)


def _text(text: str) -> bytes:
    octets = text.encode()
    return pack(">H", len(octets)) + octets


def _end(at_ms: int | None) -> str:
    return "null" if at_ms is None else str(at_ms)
