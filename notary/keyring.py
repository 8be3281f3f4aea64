"""`Keyring`: the notary's private keys and key history on this machine: those in use, and those prepared for a rotation.

A rotation takes effect by a `key` record in the log (R10), at the same place for every worker. Before that, the operator copies the new
key, and the history that ends with it, to each machine as `<key file>.next` and `<history file>.next`. A worker that reads the record loads
these files, without a restart.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary import keys
from notary.wire import HistoricKey
from ordering.errors import ConfigurationError
from ordering.signatures import SigningKey

logger = logging.getLogger("notary.keyring")

FORMER: Final = ".former"
"""The suffix of a key file for a key that was rotated out. The operator puts it there, to sign fills of holes before the rotation."""
LOOK_AGAIN_S: Final = 1.0


class Keyring:
    """The keys of one key file and its `.next`. A missing key is looked for again, at most once a second for each key."""

    def __init__(self, key_file: Path, history_file: Path, origin: str, now_s: Callable[[], float]) -> None:
        """Raises `ConfigurationError` when the key file is missing or unfit."""
        self._key_file, self._history_file, self._origin, self._now_s = key_file, history_file, origin, now_s
        self._keys: dict[bytes, tuple[Ed25519PrivateKey, SigningKey]] = {}
        self._looked_at_s: dict[bytes, float] = {}
        self.first = self._add(keys.load(key_file))
        """The public key of the key file, as it was at the start."""
        self._look_for_next()

    def key_for(self, public_key: bytes) -> SigningKey | None:
        """Returns the private key of a public key, for signing log records; None when it is not on this machine."""
        found = self._find(public_key)
        return None if found is None else found[1]

    def fill_key_for(self, public_key: bytes) -> SigningKey | None:
        """Returns the private key of a public key, for signing a fill; it also looks in `<key file>.former`."""
        if (key := self.key_for(public_key)) is not None:
            return key
        former = Path(f"{self._key_file}{FORMER}")
        if not former.exists():
            return None
        try:
            key = SigningKey(keys.load(former).private_bytes_raw())
        except ConfigurationError as problem:
            logger.warning("cannot use the former key: %s", problem)
            return None
        return key if key.public_key == public_key else None

    def private_key(self, public_key: bytes) -> Ed25519PrivateKey | None:
        """Returns the private key of a public key, for signing receipts; None when it is not on this machine."""
        found = self._find(public_key)
        return None if found is None else found[0]

    def public_keys(self) -> list[bytes]:
        """Returns the public keys of the private keys on this machine."""
        return list(self._keys)

    def history(self, public_key: bytes) -> tuple[HistoricKey, ...]:
        """Returns the key history that ends with this key. Raises `ConfigurationError` when neither file has it."""
        private_key = self.private_key(public_key)
        if private_key is None:
            raise ConfigurationError(f"no key file here holds the key {public_key.hex()}")
        try:
            return keys.load_history(self._history_file, self._origin, private_key.public_key())
        except ConfigurationError:
            following = keys.next_of(self._history_file)
            if not following.exists():
                raise
            return keys.load_history(following, self._origin, private_key.public_key())

    def _find(self, public_key: bytes) -> tuple[Ed25519PrivateKey, SigningKey] | None:
        # The first lookup of a key reads the files at once: they may have been copied here since the start.
        if public_key not in self._keys and self._now_s() - self._looked_at_s.get(public_key, -LOOK_AGAIN_S) >= LOOK_AGAIN_S:
            self._looked_at_s[public_key] = self._now_s()
            try:
                self._add(keys.load(self._key_file))
                self._look_for_next()
            except ConfigurationError:
                return None  # the file may be in the middle of a replacement; the caller reports a missing key
        return self._keys.get(public_key)

    def _look_for_next(self) -> None:
        following = keys.next_of(self._key_file)
        if following.exists():
            self._add(keys.load(following))

    def _add(self, key: Ed25519PrivateKey) -> bytes:
        public_key = key.public_key().public_bytes_raw()
        if public_key not in self._keys:
            self._keys[public_key] = (key, SigningKey(key.private_bytes_raw()))
        return public_key
