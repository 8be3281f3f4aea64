"""The key files of a salvage: this machine's key and key history, and the keys that attempts made in the command's folder.

The salvage's key continues the history of the key in force, so that clients follow. These files show which key that is, and which keys no
worker has.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from joiner import LogState
from notary import keys
from notary.config import Config
from notary.receipts.note import VerifierKey
from notary.wire import HistoricKey
from ordering.errors import ConfigurationError
from ordering.signatures import SigningKey

_NAMES: Final = "key-{}.pem"


class KeyFiles:
    """The key files of one run. `lost`: no machine and no backup has the notary's present key (`--lost`)."""

    def __init__(self, config: Config, work: Path, *, lost: bool) -> None:
        """`work`: the command's folder."""
        self._work = work
        self._lost = lost
        self.present = config.key_files

    @property
    def without_key(self) -> bool:
        """True if the notary's present key is lost, and its file is missing."""
        return self._lost and keys.is_missing(self.present.key)

    def check(self, log: LogState, name: str, if_lost: str) -> None:
        """Raise `ConfigurationError` unless this machine's key history has the key in force, apart from keys that this command made.

        The present key endorses the salvage's. If it were a former one, no client could follow from the key in force to the new key. A
        history that goes on after the key in force is right: the log has lost the record of that rotation.

        With `--lost` the present key may be missing. Or it may be one that the log does not know yet: `notary key rotate --lost` may have
        put it in force behind an entry without content.

        `name` is the command's; `if_lost` the remedy if no machine has the key in force.
        """
        own = self.own()
        in_force = next((key for key in reversed(log.keys) if key not in own), log.keys[0])
        if self.without_key:
            if (history := keys.endorsed_next(self.present, in_force)) is not None:
                also = "" if history == self.present.history else f", and {history} to {self.present.history}"
                raise ConfigurationError(
                    f"the key history {history} leads from the key in force to that in {self.present.next.key}, which is not lost: move it"
                    f" to {self.present.key}{also}, and run the same command without --lost"
                )
            return
        known = keys.verifier_keys(self.present)
        public_keys = [key.public_key for key in known.every]
        if in_force in public_keys or log.key in public_keys:
            return
        if self._lost and known.last[0].public_key not in log.keys:
            return
        raise keys.missed_rotation(
            self.present.origin,
            in_force,
            [str(key) for key in known.last],
            f". If an interrupted {name} made that key, name the folder that has it with --work. If no machine and no backup has it,"
            f" {if_lost}",
        )

    def require(self) -> None:
        """Raise `ConfigurationError` if the present key is missing, unless it is lost."""
        if not self.without_key and keys.is_missing(self.present.key):
            raise ConfigurationError(
                f"there is no {self.present.key}, the notary's present key, which endorses the new one: copy it from another worker's"
                " machine or a backup. If it is lost everywhere, give --lost"
            )

    def complete_rotation(self, used: Collection[bytes]) -> None:
        """Put a prepared key in place that is among `used`: the public keys that were in force, by the log or by a source.

        The log may have lost that rotation. The history that the salvage's key continues must have each key that signed answers. Raises
        `ConfigurationError`, also without the present key, which endorses the salvage's, unless it is lost.
        """
        if self.without_key:
            with keys.alone_with(self.present.key):  # raises for a folder that is not mounted
                return
        self.require()
        keys.present_history(self.present)
        _, *prepared = keys.verifier_keys(self.present).last
        if any(key.public_key in used for key in prepared):
            with keys.alone_with(self.present.key):
                keys.put_in_place(self.present)

    def known(self) -> list[VerifierKey]:
        """Returns the keys of this machine's key history; none if it is missing and the present key is lost."""
        if self.without_key and keys.is_missing(self.present.history):
            return []
        return keys.verifier_keys(self.present).every

    def own(self) -> dict[bytes, Path]:
        """Returns the files of the keys that attempts of this command made, in order, by their public keys."""
        return {keys.load(file).public_key().public_bytes_raw(): file for file in self._own_files()}

    def make(self) -> SigningKey:
        """Makes the key of an attempt.

        Keys of earlier attempts are never used again. Their files stay until the end: a file with the key in force shows that no worker has
        it.
        """
        number = max([_number(file) for file in self._own_files()], default=-1) + 1
        return SigningKey(keys.create(self._work / _NAMES.format(number)).private_bytes_raw())

    def adopt(self, made: Path) -> tuple[HistoricKey, ...]:
        """Put the key of an attempt in place of the present one, and remove the files of all attempts. Returns the key history.

        A crash in between leaves files of attempts: the next run finds the key in place.
        """
        with keys.alone_with(self.present.key):
            history = keys.adopt(made, self.present, lost=self._lost)
        for file in self._own_files():
            file.unlink()
        return history

    def _own_files(self) -> list[Path]:
        """Returns the key files of attempts, in order. The folder may have others: `--work` names any folder."""
        return sorted([file for file in self._work.glob(_NAMES.format("*")) if _digits(file).isdecimal()], key=_number)


def _digits(key_file: Path) -> str:
    return key_file.stem.removeprefix("key-")


def _number(key_file: Path) -> int:
    return int(_digits(key_file))
