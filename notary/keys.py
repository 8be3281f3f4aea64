"""The notary's own key: an Ed25519 key in a PEM file that only its owner may read, and the verifier key that outsiders get."""

import base64
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ordering.errors import ConfigurationError

NOTE_ED25519: Final = b"\x01"
"""The signature type of a C2SP signed note made with Ed25519."""


def create(file: Path) -> Ed25519PrivateKey:
    """Make a key and its file, readable by its owner only; a file that is there already is never overwritten."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists already: a notary's key is never overwritten") from None
    except OSError as problem:
        raise ConfigurationError(f"cannot make the notary's key {file}: {problem.strerror}") from None
    with os.fdopen(descriptor, "wb") as out:
        out.write(pem)
        out.flush()
        os.fsync(out.fileno())
    return key


def load(file: Path) -> Ed25519PrivateKey:
    """The key of a file; `ConfigurationError` when it is missing, no Ed25519 key, or readable by others."""
    try:
        mode = file.stat().st_mode
        pem = file.read_bytes()
    except OSError as problem:
        raise ConfigurationError(f"cannot read the notary's key {file}: {problem.strerror}. Make one with `notary init`") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"the notary's key {file} is open to others (mode {mode & 0o777:o}): chmod 600 it")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise ConfigurationError(f"the notary's key {file} is no unencrypted PEM private key: {problem}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"the notary's key {file} is not an Ed25519 key")
    return key


def verifier_key(origin: str, key: Ed25519PublicKey) -> str:
    """`<name>+<hash>+<base64>`: what a verifier of signed notes is given (C2SP signed-note, Ed25519)."""
    encoded = NOTE_ED25519 + key.public_bytes_raw()
    key_id = sha256(origin.encode() + b"\n" + encoded).digest()[:4]
    return f"{origin}+{key_id.hex()}+{base64.b64encode(encoded).decode()}"
