"""C2SP signed notes: a text, a blank line, signature lines; and the Ed25519 keys that verify them (C2SP signed-note).

    <text, ending in a newline>
    <blank line>
    — <key name> base64(4-byte key id, 64-byte signature)

Signature lines of unknown keys are skipped. One signature of a known key that does not verify makes the complete note invalid.
"""

import binascii
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.receipts.errors import NotVerified, Reason
from ordering.ids import excerpt
from ordering.signatures import is_signed

ED25519: Final = b"\x01"
"""The signature type of an Ed25519 key that signs notes."""
KEY_ID_BYTES: Final = 4
PUBLIC_KEY_BYTES: Final = 32
NOTE_BYTES_MAX: Final = 1 << 20
SIGNATURES_MAX: Final = 100
_DASH: Final = "\u2014 "
_control_character = re.compile(r"[\x00-\x09\x0b-\x1f]").search
_no_name = re.compile(r"[\s+\x00-\x1f\ud800-\udfff]").search


class VerifierKey(msgspec.Struct, frozen=True):
    """A public key that verifies notes. Its text form is `<name>+<key id, 8 hex digits>+<base64 of 0x01 and the public key>`."""

    name: str
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """The 4 bytes by which a signature line names its key; a hash of the key's name, type and bytes."""
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public_key).digest()[:KEY_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{to_base64(ED25519 + self.public_key)}"


def parse_verifier_key(text: str) -> VerifierKey:
    """Parses the text form of a key. Raises `NotVerified` ("malformed-key")."""
    name, first, rest = text.strip().partition("+")
    key_id, second, encoded = rest.partition("+")
    if not first or not second or not is_key_name(name):
        raise NotVerified("malformed-key", f"a verifier key is <name>+<8 hex digits>+<base64>, this is {excerpt(text, 120)}")
    key = from_base64(encoded, "malformed-key", "the key after the second +")
    if key[:1] != ED25519 or len(key) != 1 + PUBLIC_KEY_BYTES:
        raise NotVerified("malformed-key", f"{excerpt(text, 120)} is no Ed25519 key: its {len(key)} bytes should be 0x01 and 32 more")
    found = VerifierKey(name, key[1:])
    if found.key_id.hex() != key_id:
        raise NotVerified("malformed-key", f"its key id should be {found.key_id.hex()}, and is {excerpt(key_id)}: a character is wrong")
    return found


def is_key_name(name: str) -> bool:
    """Returns true if a note's key may have that name: not empty, no white space, no control characters, no `+`, UTF-8."""
    return bool(name) and _no_name(name) is None


def sign_note(text: str, signers: Sequence[tuple[str, Ed25519PrivateKey]]) -> str:
    """Returns the note of a text that ends in a newline, signed by each (name, key) in that order. Ed25519 makes it deterministic."""
    assert text.endswith("\n"), "the text of a note ends in a newline"
    lines = [text, "\n"]
    for name, key in signers:
        key_id = VerifierKey(name, key.public_key().public_bytes_raw()).key_id
        lines.append(f"{_DASH}{name} {to_base64(key_id + key.sign(text.encode()))}\n")
    return "".join(lines)


def open_note(note: str, keys: Sequence[VerifierKey], malformed: Reason, length_max: int = NOTE_BYTES_MAX) -> tuple[str, list[VerifierKey]]:
    """Verifies a note. Returns (its text, the known keys that signed it).

    Raises `NotVerified` with one of these reasons:

    - `malformed`: the note does not parse, or a known key signed it twice;
    - "bad-signature": the signature of a known key does not verify;
    - "unknown-key": no known key signed it; "wrong-origin": no signature even has the name of a known key.
    """
    if len(note) > length_max:
        raise NotVerified(malformed, f"a note of {len(note)} characters is too long: at most {length_max}")
    if (control := _control_character(note)) is not None:
        raise NotVerified(malformed, f"the note holds the control character {control[0]!r}")
    text, blank, signatures = note.rpartition("\n\n")
    if not blank or not signatures.endswith("\n"):
        raise NotVerified(malformed, "a note is a text, a blank line and signature lines, each with a newline at its end")
    lines = signatures[:-1].split("\n")
    if len(lines) > SIGNATURES_MAX:
        raise NotVerified(malformed, f"the note has {len(lines)} signatures, at most {SIGNATURES_MAX} are looked at")
    text += "\n"
    try:
        signed = text.encode()
    except UnicodeEncodeError:
        raise NotVerified(malformed, "the note is not UTF-8") from None
    known: dict[tuple[str, bytes], list[VerifierKey]] = {}  # an id is short: keys of one name may share it
    for key in keys:
        known.setdefault((key.name, key.key_id), []).append(key)
    signed_by: list[VerifierKey] = []
    others: list[tuple[str, bytes]] = []
    for line in lines:
        name, key_id, signature = _signature_line(line, malformed)
        candidates = known.get((name, key_id))
        if candidates is None:
            others.append((name, key_id))
            continue
        signer = next((key for key in candidates if is_signed(key.public_key, signature, signed)), None)
        if signer is None:
            raise NotVerified("bad-signature", f"the signature of {_shown(name, key_id)} is not of this text")
        if signer in signed_by:
            raise NotVerified(malformed, f"two signatures by the key {_shown(name, key_id)}")
        signed_by.append(signer)
    if not signed_by:
        there = ", ".join([_shown(*other) for other in others[:3]])
        trusted = ", ".join([_shown(key.name, key.key_id) for key in keys[:3]]) or "none"
        # Two different mistakes: the note is from another notary, or the right notary has a new key.
        elsewhere = bool(keys) and not {name for name, _ in others} & {key.name for key in keys}
        raise NotVerified(
            "wrong-origin" if elsewhere else "unknown-key", f"signed by {there}, and the keys that are trusted here are: {trusted}"
        )
    return text, signed_by


def to_base64(data: bytes) -> str:
    """Returns RFC 4648 base64 (section 4), with padding."""
    return binascii.b2a_base64(data, newline=False).decode()


def from_base64(text: str, malformed: Reason, what: str) -> bytes:
    """Decodes canonical base64, in which each byte string has exactly one text. Raises `NotVerified` (`malformed`)."""
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, ValueError):
        raise NotVerified(malformed, f"{what} is not base64: {excerpt(text)}") from None
    if to_base64(data) != text:
        raise NotVerified(malformed, f"{what} is not canonical base64: {excerpt(text)}")
    return data


def _signature_line(line: str, malformed: Reason) -> tuple[str, bytes, bytes]:
    """Returns (key name, key id, signature) of a signature line. Raises `NotVerified` (`malformed`)."""
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not is_key_name(name):
        raise NotVerified(malformed, f"a signature line is `\u2014 <key name> <base64>`, this is {excerpt(line, 120)}")
    data = from_base64(encoded, malformed, f"the signature of {excerpt(name)}")
    if len(data) <= KEY_ID_BYTES:
        raise NotVerified(malformed, f"the signature of {excerpt(name)} has {len(data)} bytes")
    return name, data[:KEY_ID_BYTES], data[KEY_ID_BYTES:]


def _shown(name: str, key_id: bytes) -> str:
    """Returns a key's name and id for a message. The name is escaped: it may come from outside and go to a terminal."""
    return f"{excerpt(name)} ({key_id.hex()})"
