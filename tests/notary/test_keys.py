"""The notary's own key: made once, read by its owner only, told to others as a verifier key."""

import base64
import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from notary import keys
from ordering.errors import ConfigurationError


def test_a_key_comes_back_from_its_file(tmp_path: Path) -> None:
    """What was made is what is loaded, and the file is its owner's alone."""
    key = keys.create(tmp_path / "k.pem")
    assert keys.load(tmp_path / "k.pem").private_bytes_raw() == key.private_bytes_raw()
    assert (tmp_path / "k.pem").stat().st_mode & 0o777 == 0o600


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """A file of that name stays, even an empty one or a link to nowhere."""
    (tmp_path / "k.pem").write_text("")
    (tmp_path / "link.pem").symlink_to(tmp_path / "nowhere")
    for name in ("k.pem", "link.pem"):
        with pytest.raises(ConfigurationError, match="never overwritten"):
            keys.create(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The file is named."""
    with pytest.raises(ConfigurationError, match=r"no/k\.pem"):
        keys.create(tmp_path / "no" / "k.pem")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o777])
def test_a_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """Who could read it could have copied it: say so, and how to close it."""
    keys.create(tmp_path / "k.pem")
    (tmp_path / "k.pem").chmod(mode)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        keys.load(tmp_path / "k.pem")


PKCS8 = (Encoding.PEM, PrivateFormat.PKCS8)
NOT_KEYS: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"\xff\x00garbage",
    "encrypted": Ed25519PrivateKey.generate().private_bytes(*PKCS8, BestAvailableEncryption(b"x")),
    "p256": ec.generate_private_key(ec.SECP256R1()).private_bytes(*PKCS8, NoEncryption()),
    "cut": Ed25519PrivateKey.generate().private_bytes(*PKCS8, NoEncryption())[:50],
}


@pytest.mark.parametrize("pem", NOT_KEYS.values(), ids=NOT_KEYS)
def test_what_is_no_ed25519_key_is_refused(tmp_path: Path, pem: bytes) -> None:
    """Any other content is an error that names the file, and never shows what is in it."""
    (tmp_path / "k.pem").write_bytes(pem)
    (tmp_path / "k.pem").chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"k\.pem") as wrong:
        keys.load(tmp_path / "k.pem")
    assert "BEGIN" not in str(wrong.value)


def test_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    """The file is named, and `notary init`."""
    with pytest.raises(ConfigurationError, match=r"k\.pem.*notary init"):
        keys.load(tmp_path / "k.pem")


def test_the_verifier_key_is_c2sps() -> None:
    """The example of Go's `sumdb/note`, whose key everybody has: name, hash and encoding are as signed notes define them."""
    known = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    encoded = base64.b64decode(known.split("+", 2)[2])
    assert keys.verifier_key("PeterNeumann", Ed25519PublicKey.from_public_bytes(encoded[1:])) == known
    assert hashlib.sha256(b"PeterNeumann\n" + encoded).hexdigest()[:8] == "c74f20a3"
