"""`Keyring`: the notary's private keys and key histories on this machine, in use or prepared for a rotation.

A rotation takes effect by a `key` record in the log (R10), at the same place for every worker. Before that, the operator copies the new
key, and the history that ends with it, to each machine as `<key file>.next` and `<history file>.next`. A worker that reads the record loads
these files, without a restart.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from joiner import Ready
from notary import keys
from notary.wire import HistoricKey
from ordering.errors import ConfigurationError
from ordering.signatures import SigningKey

logger = logging.getLogger("notary.keyring")

FORMER: Final = ".former"
"""The suffix of the file of a former key. The operator puts it there so that this worker can fill holes from before the rotation."""
CHECK_AGAIN_S: Final = 1.0


class ReceiptKey:
    """The key that signs a worker's receipts: the key in force in the log, once its files are on this machine."""

    def __init__(self, keyring: "Keyring", in_force: bytes | None) -> None:
        """`in_force`: the public key in force in the log as far as it was applied. Raises `ConfigurationError` without a key history."""
        self._keyring = keyring
        self.changed: Callable[[Ed25519PrivateKey], None] = lambda private_key: None
        """Called with the private key after a rotation."""
        found = None if in_force is None else keyring.private_key(in_force)
        self._public_key = keyring.first if found is None or in_force is None else in_force
        self._in_force = self._public_key if in_force is None else in_force
        self._tried = b"", 0.0  # the key that was looked for last, and when
        private_key = keyring.private_key(self._public_key)
        assert private_key is not None
        self.private_key = private_key
        self.history = keyring.history(self._public_key)
        """The key history that ends with it."""

    @property
    def verifier_key(self) -> str:
        """Its verifier key (C2SP signed note)."""
        return self._keyring.verifier_key(self.private_key)

    def applied(self, ready: Ready) -> None:
        """Use the key that is in force after this step, once its files are here."""
        if ready.log_state is not None:
            self._in_force = ready.log_state.key
        if self._in_force != self._public_key:
            self._rotate(self._in_force)

    def _rotate(self, in_force: bytes) -> None:
        (tried, tried_at_s), now_s = self._tried, self._keyring.now_s()
        if tried == in_force and now_s - tried_at_s < CHECK_AGAIN_S:
            return  # reading the files in each step would delay the decisions
        self._tried = in_force, now_s
        private_key = self._keyring.private_key(in_force)
        if private_key is None:
            return  # tried again in a later step; the sender's `not_ready` says which key is missing
        try:
            self.history = self._keyring.history(in_force)
        except ConfigurationError as problem:
            logger.warning("the key history does not end with the key in force yet: %s", problem)
            return
        self._public_key, self.private_key = in_force, private_key
        self.changed(private_key)
        logger.info("another key of the notary is in force verifier_key=%s", self.verifier_key)


class Keyring:
    """The keys of one key file and its `.next`. A missing key is looked for again, at most once a second for each key."""

    def __init__(self, files: keys.KeyAndHistory, now_s: Callable[[], float]) -> None:
        """Raises `ConfigurationError` when the key file is missing or unfit."""
        self._files, self.now_s = files, now_s
        self._keys: dict[bytes, tuple[Ed25519PrivateKey, SigningKey]] = {}
        self._checked_at_s: dict[bytes, float] = {}
        self.first = self._add(keys.load(files.key))
        """The public key of the key file, as it was at the start."""
        try:
            self._read_next_key()
        except ConfigurationError as problem:  # it is not in force yet, and an operator may be copying it here
            logger.warning("the prepared key cannot be used: %s", problem)

    def key_for(self, public_key: bytes) -> SigningKey | None:
        """Returns the private key of a public key, for signing log records; None when it is not on this machine."""
        found = self._find(public_key)
        return None if found is None else found[1]

    def fill_key_for(self, public_key: bytes) -> SigningKey | None:
        """Returns the private key of a public key, for signing a fill; it also looks in `<key file>.former`."""
        if (key := self.key_for(public_key)) is not None:
            return key
        former = Path(f"{self._files.key}{FORMER}")
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

    def verifier_key(self, private_key: Ed25519PrivateKey) -> str:
        """Returns the verifier key (C2SP signed note) of a private key."""
        return keys.verifier_key(self._files.origin, private_key.public_key())

    def public_keys(self) -> list[bytes]:
        """Returns the public keys of the private keys on this machine."""
        return list(self._keys)

    def history(self, public_key: bytes) -> tuple[HistoricKey, ...]:
        """Returns the key history that ends with this key. Raises `ConfigurationError` when neither file has it."""
        private_key = self.private_key(public_key)
        if private_key is None:
            raise ConfigurationError(f"no key file here holds the key {public_key.hex()}")
        try:
            return keys.load_history(self._files.history, self._files.origin, private_key.public_key())
        except ConfigurationError:
            following = self._files.next.history
            if not following.exists():
                raise
            return keys.load_history(following, self._files.origin, private_key.public_key())

    def _find(self, public_key: bytes) -> tuple[Ed25519PrivateKey, SigningKey] | None:
        # The first lookup of a key reads the files at once: they may have been copied here since the start.
        if public_key not in self._keys and self.now_s() - self._checked_at_s.get(public_key, -CHECK_AGAIN_S) >= CHECK_AGAIN_S:
            self._checked_at_s[public_key] = self.now_s()
            for read in (lambda: self._add(keys.load(self._files.key)), self._read_next_key):
                with contextlib.suppress(ConfigurationError):  # it may be in the middle of a replacement; the caller reports a missing key
                    read()
        return self._keys.get(public_key)

    def _read_next_key(self) -> None:
        following = self._files.next.key
        if following.exists():
            self._add(keys.load(following))

    def _add(self, key: Ed25519PrivateKey) -> bytes:
        public_key = key.public_key().public_bytes_raw()
        if public_key not in self._keys:
            self._keys[public_key] = (key, SigningKey(key.private_bytes_raw()))
        return public_key
