"""The fixture that all simulations of a process share, made once: the notary's keys, its owner's, its parties, its configuration.

Nothing in it depends on a seed, and nothing is random: a run is the same to the byte of each signature.
"""

import functools
import tempfile
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary import keys, parties
from notary.config import Config, load
from notary.receipts.key_history import endorse
from notary.receipts.note import VerifierKey
from ordering.records import Genesis
from ordering.signatures import NO_LOG_ID, SigningKey, log_id_of, sign_record
from tests.clients.party import Party

NOTARY = "O=Notary Service,L=London,C=GB"
ORIGIN = "notary.example/simulated"
OTHER_NOTARY = "another.notary.example"
"""The name or origin in a wrong configuration."""
KEY, HISTORY = "notary-key.pem", "notary-keys.json"
_TOML = f"""name = "{NOTARY}"
origin = "{ORIGIN}"
key_file = "{KEY}"
key_history_file = "{HISTORY}"
parties_file = "parties.json"
"""


def key_of(whose: str) -> Ed25519PrivateKey:
    """Returns the private key that is derived from this name: the same in every run."""
    return Ed25519PrivateKey.from_private_bytes(sha256(f"{whose}'s key".encode()).digest())


def signing_key(key: Ed25519PrivateKey) -> SigningKey:
    """Returns the same key in the form that signs records of the log."""
    return SigningKey(key.private_bytes_raw())


OWNER = signing_key(key_of("the owner"))


def genesis(partitions: int) -> bytes:
    """Returns the encoded genesis record, the first of a log with this many payload partitions."""
    notary = signing_key(key_of("the notary")).public_key
    record = Genesis(bytes(16), partitions, notary, OWNER.public_key, NOTARY, ORIGIN)
    return sign_record(record, NO_LOG_ID, OWNER)


class Deployment:
    """The configuration directory of one notary, and the two parties that its parties file lists."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="simulation-")
        self.directory = Path(self._folder.name)
        write_keys(self.directory, [key_of("the notary")])
        self.party = Party(NOTARY, key=key_of("the party"))
        self.rival = Party(NOTARY, "O=Bank B,L=Paris,C=FR", key_of("the rival"))
        parties.write(self.directory / "parties.json", {})
        for party in (self.party, self.rival):
            assert parties.add(self.directory / "parties.json", party.name, party.public_pem, "the simulation's party") == "added"
        self.file = self.directory / "notary.toml"
        self.file.write_text(_TOML)
        self.verifier_keys = [verifier_key(key_of("the notary"))]

    def config(self, name: str, settings: dict[str, object]) -> Config:
        """Returns the configuration of one worker, with these settings applied over the file's."""
        return load(self.file, {"worker.name": name, **settings}, {})


def verifier_key(key: Ed25519PrivateKey) -> str:
    """Returns the verifier key (C2SP signed-note) by which clients know this key."""
    return keys.verifier_key(ORIGIN, key.public_key())


def write_key(file: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key's file, with the mode that a worker demands."""
    file.unlink(missing_ok=True)
    file.touch(0o600)
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def write_keys(directory: Path, following: list[Ed25519PrivateKey], suffix: str = "") -> None:
    """Write the last of these keys, and the key history that leads from the first to it.

    `suffix` is appended to both file names; it marks files that wait for a rotation.
    """
    key_file, history_file = directory / (KEY + suffix), directory / (HISTORY + suffix)
    first = following[0]
    write_key(key_file, following[-1])
    history_file.unlink(missing_ok=True)
    keys.create_history(history_file, ORIGIN, first.public_key())
    if len(following) > 1:
        history = list(keys.load_history(history_file, ORIGIN, first.public_key()))
        for before, after in pairwise(following):
            history.append(endorse(_verifier(before), before, _verifier(after)))
        history_file.write_bytes(msgspec.json.encode(history))


def _verifier(key: Ed25519PrivateKey) -> VerifierKey:
    return VerifierKey(ORIGIN, key.public_key().public_bytes_raw())


@functools.cache
def deployment() -> Deployment:
    """Returns the fixture of this process, made at the first call."""
    return Deployment()


@functools.cache
def log_id(partitions: int) -> bytes:
    """Returns the id of the log whose genesis record declares this many payload partitions."""
    return log_id_of(genesis(partitions))
