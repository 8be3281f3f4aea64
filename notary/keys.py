"""The notary's own key, an Ed25519 key in a PEM file that only its owner may read; and its key history, a public file.

Outsiders know a key by its verifier key. The history (docs/formats.md, Key history) lists the verifier keys from the first to the present
one, each endorsed by the key before it. Its last key is the key in the key file. A worker does not start with two files that do not match.

A rotation has two halves here, with a `key` record in the log between them (`notary.cli.key`). `prepare` makes the new key and the history
that ends with it, as `.next` files beside the present ones. `put_in_place` moves both over the present files. Each durable step begins when
the one before it is on the disk:

| step | a crash after it leaves |
|---|---|
| `prepare`: the new key, as `<key file>.next` | a key that is not used anywhere: the next `prepare` makes another one |
| `prepare`: the new history, as `<history>.next` | a prepared rotation: workers find both files when the key comes into force |
| the `key` record in the log | the same; `notary key rotate` finds the record and continues with the next step |
| `put_in_place`: the new key, in place of the present one | workers start with it and `<history>.next`; `rotate` continues |
| `put_in_place`: the new history, in place of the present one | a complete rotation |

`begin_anew` and `end_anew` are the two halves for a key that no machine has any more: the new history begins with the new key.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from notary.access import alone_in, read_secret, why_unreadable
from notary.receipts.errors import NotVerified
from notary.receipts.key_history import KEYS_MAX, decode_history, endorse, follow
from notary.receipts.note import VerifierKey, parse_verifier_key
from notary.wire import HistoricKey
from ordering.durable import create_file, move_into_place, replace_file, sync_directory
from ordering.errors import ConfigurationError

NEXT: Final = ".next"
"""The suffix of the files that a rotation prepares: the next key and the next history."""
NOTARYS: Final = "the notary's key"
OWNERS: Final = "the owner's key"
_RUNBOOK: Final = "docs/runbook.md, Rotating the notary's key"


class KeyAndHistory(msgspec.Struct, frozen=True):
    """The key file of a notary with that origin, and its history."""

    key: Path
    history: Path
    origin: str

    @property
    def real(self) -> "KeyAndHistory":
        """The same files, where symbolic links lead."""
        return KeyAndHistory(Path(os.path.realpath(self.key)), Path(os.path.realpath(self.history)), self.origin)

    @property
    def next(self) -> "KeyAndHistory":
        """The files that a rotation prepares. If a name is a symbolic link, its `.next` file is beside the link's target."""
        return KeyAndHistory(next_of(self.key), next_of(self.history), self.origin)

    def shown(self) -> dict[str, str]:
        """Returns the files as members of a command's output."""
        return {"key_file": str(self.key), "key_history_file": str(self.history)}


class KnownKeys(msgspec.Struct, frozen=True):
    """The public keys of a history, also of a prepared one."""

    last: list[VerifierKey]
    """The last key of the history, and of the prepared one if there is one."""
    every: list[VerifierKey]
    """All keys, in order."""


class PreparedKey(msgspec.Struct, frozen=True):
    """A prepared rotation: `key` will replace the present key, and `history` ends with it. `found`: an earlier call prepared it."""

    present: str
    key: Ed25519PrivateKey
    history: tuple[HistoricKey, ...]
    found: bool

    @property
    def verifier_key(self) -> str:
        """The verifier key of the prepared key."""
        return self.history[-1].verifier_key


def create(file: Path, whose: str = NOTARYS) -> Ed25519PrivateKey:
    """Make a key and its file, readable by its owner only. Raises `ConfigurationError`, also when the file exists already."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        create_file(file, pem, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists already: a key is never overwritten") from None
    except OSError as problem:
        raise ConfigurationError(f"cannot write {whose} {file}: {problem.strerror}") from None
    return key


def load(file: Path, whose: str = NOTARYS) -> Ed25519PrivateKey:
    """Reads the key of a file. Raises `ConfigurationError` when it is missing, no Ed25519 key, or open to other users."""
    pem = read_secret(file, whose)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise ConfigurationError(f"{whose} {file} is no unencrypted PEM private key: {problem}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{whose} {file} is not an Ed25519 key")
    return key


def verifier_key(origin: str, key: Ed25519PublicKey) -> str:
    """Returns the verifier key `<name>+<hash>+<base64>`, which a verifier of signed notes needs (C2SP signed-note, Ed25519)."""
    return str(VerifierKey(origin, key.public_bytes_raw()))


def create_history(file: Path, origin: str, key: Ed25519PublicKey) -> None:
    """Write the history of a first key to a new file, durably. Raises `OSError`."""
    create_file(file, _first(origin, key))


def load_history(file: Path, origin: str, key: Ed25519PublicKey) -> tuple[HistoricKey, ...]:
    """Reads a history and verifies every endorsement. Raises `ConfigurationError` unless it leads from its first key to this one."""
    history = _read_history(file, origin, key)
    _check_present(history, file, verifier_key(origin, key))
    return history


def present_history(files: KeyAndHistory) -> tuple[HistoricKey, ...]:
    """Reads the history that ends with the key in the key file, also between the two steps of `put_in_place`.

    Raises `ConfigurationError`.
    """
    key = load(files.key).public_key()
    return load_history(files.next.history if _is_half_placed(files, key) else files.history, files.origin, key)


def verifier_keys(files: KeyAndHistory) -> KnownKeys:
    """Returns the public keys of the histories. It needs no private key. Raises `ConfigurationError`."""
    paths = [files.history, *([files.next.history] if files.next.history.exists() else [])]
    known = [[parse_verifier_key(each.verifier_key) for each in _read_history(path, files.origin)] for path in paths]
    return KnownKeys([history[-1] for history in known], list(dict.fromkeys([key for history in known for key in history])))


def prepare(files: KeyAndHistory) -> PreparedKey:
    """Make the key that will follow the present one, and the history that ends with it; or return those of an earlier call.

    Raises `ConfigurationError`. After an error or a kill the present files are unchanged, and the same call can be repeated.
    """
    with _repeatable(f"cannot prepare a rotation of the notary's key {files.key}"):
        finish(files)
        if (waiting := prepared(files)) is not None:
            return waiting
        key = load(files.key)
        history = load_history(files.history, files.origin, key.public_key())
        if len(history) == KEYS_MAX:
            raise ConfigurationError(f"the key history {files.history} has {KEYS_MAX} keys: no verifier reads a longer one")
        files.next.key.unlink(missing_ok=True)  # no history names it
        following = create(files.next.key)
        history = (*history, _endorsed(files.origin, key, following))
        replace_file(files.next.history, _encode(history))
    return PreparedKey(history[-2].verifier_key, following, history, found=False)


def is_missing(file: Path) -> bool:
    """Returns true if there is no such file. Raises `ConfigurationError` if that is unknown, as in a folder that cannot be read.

    It is also unknown for a link to nothing: the volume with the key may not be mounted.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        if file.is_symlink():
            raise ConfigurationError(f"{file} is a link to nothing: mount what it names; if that is lost, remove the link") from None
        return True
    except OSError as problem:
        raise ConfigurationError(f"whether {file} is there cannot be seen: {why_unreadable(file, problem)}") from None
    return False


def begin_anew(files: KeyAndHistory, known: Sequence[bytes]) -> Ed25519PrivateKey:
    """Make the key that replaces a lost one, as `<key file>.next`; or return that of an earlier call, or of a prepared rotation.

    `known`: the public keys that have been in force in the log, in order. The last one is in force. A prepared history is kept only if
    it leads from that key to the new one. A former key never comes into force again, so it is replaced.

    Raises `ConfigurationError`, also if this machine has the key: `prepare` endorses the next one by it.
    """
    if not is_missing(files.key):
        raise ConfigurationError(f"{files.key} is there: a key that is not lost is rotated without --lost")
    following = files.next
    with _repeatable(f"cannot make a key beside {files.key}"):
        if following.key.exists() and load(following.key).public_key().public_bytes_raw() in known[:-1]:
            following.key.unlink()
        key = load(following.key) if following.key.exists() else create(following.key)
        if not _continues(following.history, files.origin, key.public_key(), known[-1]):
            following.history.unlink(missing_ok=True)
        sync_directory(following.key.parent)
    return key


def end_anew(files: KeyAndHistory) -> None:
    """Put the key of `begin_anew` in place. If the lost key has not endorsed it, it begins a new history.

    Raises `ConfigurationError`. After an error or a kill the same call completes it.
    """
    key, real, following = load(files.next.key).public_key(), files.real, files.next
    with _repeatable(f"cannot put the new key in place of {files.key}"):
        if following.history.exists():
            move_into_place(following.history, real.history)
        elif not _ends_with(real.history, files.origin, key):
            replace_file(real.history, _first(files.origin, key))
        # A crash here leaves a history without its key: no worker starts, and the same command continues.
        move_into_place(following.key, real.key)


def adopt(made: Path, files: KeyAndHistory, *, lost: bool = False) -> tuple[HistoricKey, ...]:
    """Put the key of the file `made`, which is in force in the log, in place of the present one. Returns the history that ends with it.

    With `lost`, the present key may be missing: then that key begins a new history. This drops any other rotation that was prepared here:
    its key follows a key that is no longer in force. Raises `ConfigurationError`. After an error or a kill the same call completes it.
    """
    with _repeatable(f"cannot put the key {made} in place of {files.key}"):
        if lost and is_missing(files.key):
            _put_next(made, files)
            end_anew(files)
            return present_history(files)
        finish(files)
        present, new = load(files.key), load(made)
        history = load_history(files.history, files.origin, present.public_key())
        if history[-1].verifier_key != verifier_key(files.origin, new.public_key()):
            endorsed = _endorsed(files.origin, present, new)
            _put_next(made, files)
            replace_file(files.next.history, _encode((*history, endorsed)))
            put_in_place(files)
    return present_history(files)


def _put_next(made: Path, files: KeyAndHistory) -> None:
    """Make the key of the file `made` the next one, in place of any that was prepared. Raises `OSError`."""
    files.next.history.unlink(missing_ok=True)
    files.next.key.unlink(missing_ok=True)
    create_file(files.next.key, made.read_bytes(), 0o600)


def endorsed_next(files: KeyAndHistory, in_force: bytes) -> Path | None:
    """Returns the history that leads from the key in force to the prepared key; None without such a history. Raises `ConfigurationError`.

    The history is in place already if `end_anew` was killed.
    """
    if not files.next.key.exists():
        return None
    key = load(files.next.key).public_key()
    return next((file for file in (files.next.history, files.history) if _continues(file, files.origin, key, in_force)), None)


def prepared(files: KeyAndHistory) -> PreparedKey | None:
    """Returns the prepared rotation that is not in place yet; None for none. Raises `ConfigurationError` for files that do not match."""
    following, present_key = files.next, load(files.key).public_key()
    if not following.history.exists() or _is_half_placed(files, present_key):
        return None
    if not following.key.exists():
        raise ConfigurationError(
            f"there is {following.history}, and no {following.key}: copy both files from where the rotation was prepared"
        )
    present, key = verifier_key(files.origin, present_key), load(following.key)
    history = load_history(following.history, files.origin, key.public_key())
    if present not in [each.verifier_key for each in history[:-1]]:
        raise ConfigurationError(
            f"the key history {following.history} does not know {present}, which {files.key} holds: they are of different notaries, or this"
            f" machine missed a rotation. Copy key and history from where `notary key rotate` ran: see {_RUNBOOK}"
        )
    return PreparedKey(present, key, history, found=True)


def put_in_place(files: KeyAndHistory) -> None:
    """Move the prepared files over the present ones. This destroys the present private key.

    Raises `ConfigurationError`. After an error or a kill the same call completes the move.
    """
    with _repeatable(f"cannot put the new key in place of {files.key}"):
        if prepared(files) is not None:
            # This destroys the present key, which alone could endorse the new one. The endorsement is on the disk, in the prepared history.
            files.next.key.replace(files.real.key)
        finish(files)


def finish(files: KeyAndHistory) -> bool:
    """Complete a `put_in_place` that was killed between its two steps. Returns true if there was one.

    Raises `ConfigurationError`, `OSError`.
    """
    # Sync the folders first: a killed call may not have done so, and the next step relies on the files being on the disk.
    real = files.real
    for directory in {real.key.parent, real.history.parent}:
        sync_directory(directory)
    if not _is_half_placed(files, load(files.key).public_key()):
        return False
    move_into_place(files.next.history, real.history)
    return True


def _endorsed(origin: str, key: Ed25519PrivateKey, following: Ed25519PrivateKey) -> HistoricKey:
    previous, new = (VerifierKey(origin, each.public_key().public_bytes_raw()) for each in (key, following))
    return endorse(previous, key, new)


def _continues(history_file: Path, origin: str, key: Ed25519PublicKey, in_force: bytes) -> bool:
    """Returns true if a sound history ends with this key, and has the key in force. The log may have lost rotations between the two."""
    if not _ends_with(history_file, origin, key):
        return False
    return in_force in [parse_verifier_key(each.verifier_key).public_key for each in _read_history(history_file, origin)]


def _ends_with(history_file: Path, origin: str, key: Ed25519PublicKey) -> bool:
    """Returns true if the file is a sound key history that ends with this key."""
    try:
        return _read_history(history_file, origin, key)[-1].verifier_key == verifier_key(origin, key)
    except ConfigurationError:
        return False


def _is_half_placed(files: KeyAndHistory, key: Ed25519PublicKey) -> bool:
    """Returns true if the key file, which holds this key, holds the last key of the prepared history."""
    following = files.next.history
    return following.exists() and _read_history(following, files.origin, key)[-1].verifier_key == verifier_key(files.origin, key)


def _check_present(history: tuple[HistoricKey, ...], file: Path, present: str) -> None:
    keys = [each.verifier_key for each in history]
    if present == keys[-1]:
        return
    if present in keys:
        raise ConfigurationError(
            f"the key history {file} goes on to {keys[-1]}, and the key file holds {present}, which came before. Copy both files, key and"
            f" history, from where `notary key rotate` ran: see {_RUNBOOK}"
        )
    raise ConfigurationError(
        f"the key history {file} ends with {keys[-1]} and does not know {present}, which the key file holds: they are of different"
        f" rotations, or notaries. Copy both files, key and history, from where `notary key rotate` ran: see {_RUNBOOK}"
    )


def missed_rotation(origin: str, in_force: bytes, here: Sequence[str], otherwise: str = "") -> ConfigurationError:
    """Returns the error for a machine without the key in force of the log. `here`: the verifier keys that it has; `otherwise`: a remedy."""
    return ConfigurationError(
        f"the key in force in this log is {VerifierKey(origin, in_force)}, and this machine has {' and '.join(here)}: this machine missed a"
        f" rotation. Copy key and key history from the machine where it took place ({_RUNBOOK}){otherwise}"
    )


def next_of(file: Path) -> Path:
    """Returns the `.next` file of a key file or history, in which a rotation prepares its replacement. Symbolic links are followed."""
    real = Path(os.path.realpath(file))
    return real.with_name(real.name + NEXT)


def _first(origin: str, key: Ed25519PublicKey) -> bytes:
    return _encode((HistoricKey(verifier_key(origin, key)),))


def _encode(history: tuple[HistoricKey, ...]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(history), indent=1) + b"\n"


def _read_history(file: Path, origin: str, key: Ed25519PublicKey | None = None) -> tuple[HistoricKey, ...]:
    """Reads the history of a file, which need not end with this key; `key` only completes an error message. Raises `ConfigurationError`."""
    try:
        encoded = file.read_bytes()
    except FileNotFoundError:
        first = "" if key is None else msgspec.json.format(_first(origin, key), indent=-1).decode()
        raise ConfigurationError(
            f"there is no key history {file}. Copy it from another worker's machine, together with the key, or save there what"
            " `GET /v1/notary` of a worker that serves answers"
            + (f"; if the key is the notary's first, the history is this one line: {first}" if first else "")
        ) from None
    except OSError as problem:
        raise ConfigurationError(f"cannot read the key history {file}: {why_unreadable(file, problem)}") from None
    return _decode(encoded, file, origin)


def _decode(encoded: bytes, file: Path, origin: str) -> tuple[HistoricKey, ...]:
    """Decodes a history and verifies it from its first key to its last. Raises `ConfigurationError`, which names the file."""
    try:
        history = decode_history(encoded)
        keys = [parse_verifier_key(each.verifier_key) for each in history]
        if others := [key.name for key in keys if key.name != origin]:
            raise ConfigurationError(
                f"the key history {file} is of the origin {others[0]!r}, and the configuration says {origin!r}: an origin never changes."
                " Correct the one that is wrong"
            )
        if history[0].endorsement is not None:
            raise NotVerified("bad-endorsement", f"its first key {keys[0]} is endorsed, so the key before it is missing")
        if twice := [key for key, count in Counter(keys).items() if count > 1]:
            raise NotVerified("malformed-key", f"the key {twice[0]} is in it twice")
        if wrong := [each.verifier_key for key, each in zip(keys, history, strict=True) if str(key) != each.verifier_key]:
            raise NotVerified("malformed-key", f"the key {wrong[0]} is not in its canonical form")
        follow(keys[:1], history)
    except NotVerified as problem:
        raise ConfigurationError(
            f"the key history {file} is not sound: {problem}. Copy it from another worker's machine or a backup, together with the key"
        ) from None
    return history


@contextlib.contextmanager
def _repeatable(what: str) -> Iterator[None]:
    """Raise `ConfigurationError` for an `OSError` in the block, whose steps continue when the same command runs again."""
    try:
        yield
    except OSError as problem:
        raise ConfigurationError(f"{what}: {problem.strerror or problem}. Correct that, and run it again") from None


@contextlib.contextmanager
def alone_with(key_file: Path) -> Iterator[None]:
    """Lock the key's folder for the length of a block; raises `ConfigurationError` while another process holds the lock.

    Without the lock, a second rotation at the same time would replace the new key of the first.
    """
    directory = Path(os.path.realpath(key_file)).parent
    busy = f"another process is changing files in {directory}: wait for it, then look at `notary key show` before you try again"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(alone_in(directory, busy))
        except OSError as problem:
            raise ConfigurationError(f"cannot read the folder {directory} of the notary's key: {problem.strerror}") from None
        yield
