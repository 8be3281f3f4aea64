"""The notary's keys in order: each new key is endorsed by the key before it.

An endorsement is a note of four lines, signed by the old key: `notary/key/v1`, the origin, the old verifier key, the new verifier key. A
client that knows the first key can verify the last one with only the list of `GET /v1/notary`. Trust goes forward only: the newest key does
not vouch for older keys, since one of them may have been replaced because it was stolen.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey, open_note, parse_verifier_key, sign_note
from notary.wire import HistoricKey
from ordering.ids import excerpt

ENDORSEMENT_HEAD: Final = "notary/key/v1"
"""The first line of an endorsement. No notary may have it as its origin, so an endorsement is never mistaken for a checkpoint."""
KEYS_MAX: Final = 10_000


def endorse(previous: VerifierKey, private_key: Ed25519PrivateKey, following: VerifierKey) -> HistoricKey:
    """Returns the following key, endorsed by the previous one."""
    note = sign_note(_text(previous, following), [(previous.name, private_key)])
    return HistoricKey(str(following), note)


def decode_history(encoded: bytes) -> tuple[HistoricKey, ...]:
    """Decodes a history: a JSON array of keys, or an answer of `GET /v1/notary`. Raises `NotVerified` ("malformed-key")."""
    try:
        found = msgspec.json.decode(encoded)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise NotVerified("malformed-key", f"this is no key history, a JSON array of keys: {problem}") from None
    return history_of(found)


def history_of(found: object) -> tuple[HistoricKey, ...]:
    """Converts parsed JSON, a list of keys or a mapping with the member `keys`. Raises `NotVerified` ("malformed-key")."""
    if isinstance(found, Mapping):
        found = found.get("keys")
    try:
        history = msgspec.convert(found, tuple[HistoricKey, ...])
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise NotVerified("malformed-key", f"this is no key history, an array of keys: {problem}") from None
    if not 0 < len(history) <= KEYS_MAX:
        raise NotVerified("malformed-key", f"a key history has 1 to {KEYS_MAX} keys, this one has {len(history)}")
    return history


def follow(trusted: Sequence[VerifierKey], history: Sequence[HistoricKey]) -> list[VerifierKey]:
    """Returns the trusted keys and the history's keys that follow from one of them. Raises `NotVerified` for a bad endorsement."""
    if len(history) > KEYS_MAX:
        raise NotVerified("malformed-key", f"a key history has at most {KEYS_MAX} keys, this one has {len(history)}")
    found = dict.fromkeys(trusted)
    previous: VerifierKey | None = None
    for historic in history:
        key = parse_verifier_key(historic.verifier_key)
        if previous in found and key not in found:
            _check(previous, key, historic.endorsement)
            found[key] = None
        previous = key
    return list(found)


def _check(previous: VerifierKey, key: VerifierKey, endorsement: str | None) -> None:
    if key.name != previous.name:
        # Without this check, one trusted notary could introduce keys for another notary.
        raise NotVerified("bad-endorsement", f"{previous} can only be followed by a key of the same name, not by {key}")
    if endorsement is None:
        raise NotVerified("bad-endorsement", f"{key} follows {previous} without an endorsement")
    try:
        text, _ = open_note(endorsement, [previous], "bad-endorsement")
    except NotVerified as problem:
        raise NotVerified("bad-endorsement", f"{key} is not endorsed by {previous}: {problem}") from None
    if text != _text(previous, key):
        raise NotVerified("bad-endorsement", f"the endorsement of {key} is of something else: {excerpt(text, 200)}")


def _text(previous: VerifierKey, following: VerifierKey) -> str:
    return f"{ENDORSEMENT_HEAD}\n{previous.name}\n{previous}\n{following}\n"
