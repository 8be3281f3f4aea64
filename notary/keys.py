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


def present_history(key_file: Path, history_file: Path, origin: str) -> tuple[HistoricKey, ...]:
    """Reads the history that ends with the key in the key file, also between the two steps of `put_in_place`.

    Raises `ConfigurationError`.
    """
    key = load(key_file).public_key()
    if _is_half_placed(key, history_file, origin):
        history_file = next_of(history_file)
    return load_history(history_file, origin, key)


def verifier_keys(history_file: Path, origin: str) -> tuple[list[VerifierKey], list[VerifierKey]]:
    """Returns (the last key of the history, and the prepared one if there is one; all keys). It needs no private key.

    Raises `ConfigurationError`.
    """
    histories = [_read_history(file, origin) for file in (history_file, next_of(history_file)) if file == history_file or file.exists()]
    known = [[parse_verifier_key(each.verifier_key) for each in history] for history in histories]
    return [history[-1] for history in known], list(dict.fromkeys([key for history in known for key in history]))


def prepare(key_file: Path, history_file: Path, origin: str) -> PreparedKey:
    """Make the key that will follow the present one, and the history that ends with it; or return those of an earlier call.

    Raises `ConfigurationError`. After an error or a kill the present files are unchanged, and the same call can be repeated.
    """
    # If a name is a symbolic link, the `.next` file is beside the link's target, not beside the link.
    key_next, history_next = next_of(key_file), next_of(history_file)
    with _repeatable(f"cannot prepare a rotation of the notary's key {key_file}"):
        finish(key_file, history_file, origin)
        if (waiting := prepared(key_file, history_file, origin)) is not None:
            return waiting
        key = load(key_file)
        present = VerifierKey(origin, key.public_key().public_bytes_raw())
        history = load_history(history_file, origin, key.public_key())
        if len(history) == KEYS_MAX:
            raise ConfigurationError(f"the key history {history_file} has {KEYS_MAX} keys: no verifier reads a longer one")
        key_next.unlink(missing_ok=True)  # no history names it
        following = create(key_next)
        history = (*history, endorse(present, key, VerifierKey(origin, following.public_key().public_bytes_raw())))
        replace_file(history_next, _encode(history))
    return PreparedKey(str(present), following, history, found=False)


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


def begin_anew(key_file: Path, history_file: Path, origin: str, known: Sequence[bytes]) -> Ed25519PrivateKey:
    """Make the key that replaces a lost one, as `<key file>.next`; or return that of an earlier call, or of a prepared rotation.

    `known`: the public keys that have been in force in the log, in order. The last one is in force. A prepared history is kept only if
    it leads from that key to the new one. A former key never comes into force again, so it is replaced.

    Raises `ConfigurationError`, also if this machine has the key: `prepare` endorses the next one by it.
    """
    key_next = next_of(key_file)
    if not is_missing(key_file):
        raise ConfigurationError(f"{key_file} is there: a key that is not lost is rotated without --lost")
    with _repeatable(f"cannot make a key beside {key_file}"):
        if key_next.exists() and load(key_next).public_key().public_bytes_raw() in known[:-1]:
            key_next.unlink()
        key = load(key_next) if key_next.exists() else create(key_next)
        if not _continues(next_of(history_file), key.public_key(), origin, known[-1]):
            next_of(history_file).unlink(missing_ok=True)
        sync_directory(key_next.parent)
    return key


def end_anew(key_file: Path, history_file: Path, origin: str) -> None:
    """Put the key of `begin_anew` in place. If the lost key has not endorsed it, it begins a new history.

    Raises `ConfigurationError`. After an error or a kill the same call completes it.
    """
    key, history = load(next_of(key_file)).public_key(), Path(os.path.realpath(history_file))
    with _repeatable(f"cannot put the new key in place of {key_file}"):
        if next_of(history_file).exists():
            move_into_place(next_of(history_file), history)
        elif not _ends_with(history, key, origin):
            replace_file(history, _first(origin, key))
        # A crash here leaves a history without its key: no worker starts, and the same command continues.
        move_into_place(next_of(key_file), Path(os.path.realpath(key_file)))


def adopt(made: Path, key_file: Path, history_file: Path, origin: str, *, lost: bool = False) -> tuple[HistoricKey, ...]:
    """Put the key of the file `made`, which is in force in the log, in place of the present one. Returns the history that ends with it.

    With `lost`, the present key may be missing: then that key begins a new history. This drops any other rotation that was prepared here:
    its key follows a key that is no longer in force. Raises `ConfigurationError`. After an error or a kill the same call completes it.
    """
    with _repeatable(f"cannot put the key {made} in place of {key_file}"):
        if lost and is_missing(key_file):
            _put_next(made, key_file, history_file)
            end_anew(key_file, history_file, origin)
            return present_history(key_file, history_file, origin)
        finish(key_file, history_file, origin)
        present, new = load(key_file), load(made)
        wanted = VerifierKey(origin, new.public_key().public_bytes_raw())
        history = load_history(history_file, origin, present.public_key())
        if history[-1].verifier_key != str(wanted):
            endorsed = endorse(VerifierKey(origin, present.public_key().public_bytes_raw()), present, wanted)
            _put_next(made, key_file, history_file)
            replace_file(next_of(history_file), _encode((*history, endorsed)))
            put_in_place(key_file, history_file, origin)
    return present_history(key_file, history_file, origin)


def _put_next(made: Path, key_file: Path, history_file: Path) -> None:
    """Make the key of the file `made` the next one, in place of any that was prepared. Raises `OSError`."""
    next_of(history_file).unlink(missing_ok=True)
    next_of(key_file).unlink(missing_ok=True)
    create_file(next_of(key_file), made.read_bytes(), 0o600)


def endorsed_next(key_file: Path, history_file: Path, origin: str, in_force: bytes) -> Path | None:
    """Returns the history that leads from the key in force to the prepared key; None without such a history. Raises `ConfigurationError`.

    The history is in place already if `end_anew` was killed.
    """
    if not next_of(key_file).exists():
        return None
    key = load(next_of(key_file)).public_key()
    return next((file for file in (next_of(history_file), history_file) if _continues(file, key, origin, in_force)), None)


def prepared(key_file: Path, history_file: Path, origin: str) -> PreparedKey | None:
    """Returns the prepared rotation that is not in place yet; None for none. Raises `ConfigurationError` for files that do not match."""
    key_next, history_next = next_of(key_file), next_of(history_file)
    present_key = load(key_file).public_key()
    if not history_next.exists() or _is_half_placed(present_key, history_file, origin):
        return None
    present = verifier_key(origin, present_key)
    if not key_next.exists():
        raise ConfigurationError(f"there is {history_next}, and no {key_next}: copy both files from where the rotation was prepared")
    key = load(key_next)
    history = load_history(history_next, origin, key.public_key())
    if present not in [each.verifier_key for each in history[:-1]]:
        raise ConfigurationError(
            f"the key history {history_next} does not know {present}, which {key_file} holds: they are of different notaries, or this"
            f" machine missed a rotation. Copy key and history from where `notary key rotate` ran: see {_RUNBOOK}"
        )
    return PreparedKey(present, key, history, found=True)


def put_in_place(key_file: Path, history_file: Path, origin: str) -> None:
    """Move the prepared files over the present ones. This destroys the present private key.

    Raises `ConfigurationError`. After an error or a kill the same call completes the move.
    """
    real_key = Path(os.path.realpath(key_file))
    with _repeatable(f"cannot put the new key in place of {key_file}"):
        if prepared(key_file, history_file, origin) is not None:
            # This destroys the present key, which alone could endorse the new one. The endorsement is on the disk, in the prepared history.
            next_of(key_file).replace(real_key)
        finish(key_file, history_file, origin)


def finish(key_file: Path, history_file: Path, origin: str) -> bool:
    """Complete a `put_in_place` that was killed between its two steps. Returns true if there was one.

    Raises `ConfigurationError`, `OSError`.
    """
    # Sync the folders first: a killed call may not have done so, and the next step relies on the files being on the disk.
    real_key, real_history = Path(os.path.realpath(key_file)), Path(os.path.realpath(history_file))
    for directory in {real_key.parent, real_history.parent}:
        sync_directory(directory)
    if not _is_half_placed(load(key_file).public_key(), history_file, origin):
        return False
    move_into_place(next_of(history_file), real_history)
    return True


def _continues(history_file: Path, key: Ed25519PublicKey, origin: str, in_force: bytes) -> bool:
    """Returns true if a sound history ends with this key, and has the key in force. The log may have lost rotations between the two."""
    if not _ends_with(history_file, key, origin):
        return False
    return in_force in [parse_verifier_key(each.verifier_key).public_key for each in _read_history(history_file, origin)]


def _ends_with(history_file: Path, key: Ed25519PublicKey, origin: str) -> bool:
    """Returns true if the file is a sound key history that ends with this key."""
    try:
        return _read_history(history_file, origin, key)[-1].verifier_key == verifier_key(origin, key)
    except ConfigurationError:
        return False


def _is_half_placed(key: Ed25519PublicKey, history_file: Path, origin: str) -> bool:
    """Returns true if the key file holds the last key of the prepared history."""
    following = next_of(history_file)
    return following.exists() and _read_history(following, origin, key)[-1].verifier_key == verifier_key(origin, key)


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
