"""What all simulations of a process share, made once: the notary's key, its parties, its configuration.

Nothing in it depends on a seed, and nothing is random: a run is the same to the byte of each signature.
"""

import contextlib
import functools
import io
import tempfile
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary import cli, keys, parties
from notary.config import load
from tests.asking.party import Party
from tests.simulation.process import SimulatedConfig

NOTARY = "O=Notary Service,L=London,C=GB"
ORIGIN = "notary.example/simulated"


def key_of(whose: str) -> Ed25519PrivateKey:
    """Always the same key."""
    return Ed25519PrivateKey.from_private_bytes(sha256(f"{whose}'s key".encode()).digest())


class Premises:
    """A notary's folder, and two who may ask it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="simulation-")
        directory = Path(self._folder.name) / "notary"
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(["init", str(directory), "--name", NOTARY, "--origin", ORIGIN]) == 0
        self.party = Party(NOTARY, key=key_of("the party"))
        self.rival = Party(NOTARY, "O=Bank B,L=Paris,C=FR", key_of("the rival"))
        for party in (self.party, self.rival):
            assert parties.add(directory / "parties.json", party.name, party.public_pem, "the simulation's party")
        self.file = directory / "notary.toml"
        config = load(self.file, {}, {})
        _replace_key(config.path(config.key_file), config.path(config.key_history_file))
        self.verifier_keys = [keys.verifier_key(ORIGIN, keys.load(config.path(config.key_file)).public_key())]

    def config(self, name: str, settings: dict[str, object]) -> SimulatedConfig:
        """The configuration of one worker."""
        loaded = load(self.file, {"worker.name": name, **settings}, {})
        return SimulatedConfig(**{field: getattr(loaded, field) for field in loaded.__struct_fields__})


def _replace_key(key_file: Path, history_file: Path) -> None:
    """A key that is the same in every process takes the place of the one that `notary init` drew."""
    key = key_of("the notary")
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    history_file.unlink()
    keys.create_history(history_file, ORIGIN, key.public_key())


@functools.cache
def premises() -> Premises:
    """This process's."""
    return Premises()
