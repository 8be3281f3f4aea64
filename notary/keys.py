"""The notary's own key: an Ed25519 key in a PEM file that only its owner may read; and the history of its keys, for everybody to read.

A key is known to outsiders by its verifier key. The history (docs/formats.md, Key history) lists these from the first to the present one,
each endorsed by the one before it. The two files belong together: the last key of the history is the one in the key file. `rotate` is the
only one who changes them, and a worker does not start on two that do not fit.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from notary.receipts.key_history import KEYS_MAX, HistoricKey, decode_history, endorse, follow
from notary.receipts.note import VerifierKey, parse_verifier_key
from notary.receipts.refusal import NotVerified
from ordering.errors import ConfigurationError
from ordering.store import sync_directory

NEXT: Final = ".next"
"""Ends the names of the files in which a rotation prepares what will take the place of the key and of the history."""
_RUNBOOK: Final = "docs/runbook.md, Rotating the notary's key"


class Rotation(msgspec.Struct, frozen=True):
    """A key has taken the place of another one. `resumed`: by completing a rotation that had been interrupted."""

    previous: str
    verifier_key: str
    history: tuple[HistoricKey, ...]
    resumed: bool


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
    try:
        with os.fdopen(descriptor, "wb") as out:
            _write(out, pem)
    except OSError as problem:
        # It is this call's file, and no key: it must not be in the way of the next try.
        file.unlink(missing_ok=True)
        raise ConfigurationError(f"cannot write the notary's key {file}: {problem.strerror}") from None
    return key


def load(file: Path) -> Ed25519PrivateKey:
    """The key of a file; `ConfigurationError` when it is missing, no Ed25519 key, or somebody else may read it."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            pem = opened.read()
    except OSError as problem:
        raise ConfigurationError(f"cannot read the notary's key {file}: {problem.strerror}. Make one with `notary init`") from None
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"the notary's key {file} is open to others (mode {status.st_mode & 0o777:o}): chmod 600 it")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigurationError(
            f"the notary's key {file} belongs to user {status.st_uid}, who can read it, and this is user {os.geteuid()}: run as its owner,"
            " or chown it"
        )
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise ConfigurationError(f"the notary's key {file} is no unencrypted PEM private key: {problem}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"the notary's key {file} is not an Ed25519 key")
    return key


def verifier_key(origin: str, key: Ed25519PublicKey) -> str:
    """`<name>+<hash>+<base64>`: what a verifier of signed notes is given (C2SP signed-note, Ed25519)."""
    return str(VerifierKey(origin, key.public_bytes_raw()))


def create_history(file: Path, origin: str, key: Ed25519PublicKey) -> None:
    """The history of a first key, in a new file that is durable but for its name. Raises `OSError`."""
    with file.open("xb") as out:
        _write(out, _first(origin, key))


def load_history(file: Path, origin: str, key: Ed25519PublicKey) -> tuple[HistoricKey, ...]:
    """The history of a file, every endorsement in it checked; `ConfigurationError` unless it leads from its first key to this one."""
    history = _read_history(file, origin, key)
    _check_present(history, file, verifier_key(origin, key))
    return history


def rotate(key_file: Path, history_file: Path, origin: str) -> Rotation:
    """Put a new key, endorsed by the present one, in its place; or complete that where an earlier call was killed.

    The present private key is gone afterwards. Raises `ConfigurationError`; then, as after a kill, both files hold what they held, or the
    same call again completes it. These are the durable steps, in this order; one begins when the one before is on the disk:

    | step | a crash after it leaves |
    |---|---|
    | the new key, as `<key file>.next` | a key that nobody knows: the next call throws it away |
    | the new history, in place of the old one | a history that names the key in `.next`: the next call completes, workers do not start |
    | the new key, in place of the present one | nothing to do |
    """
    # Where a name is a link, the file that it leads to is replaced, and not the link.
    key_file, history_file = Path(os.path.realpath(key_file)), Path(os.path.realpath(history_file))
    following_file = _next(key_file)
    try:
        with _alone_in(key_file.parent):
            # First, what is found must be on the disk. An earlier call may have been killed before it saw to that: without this, its new
            # key could lose its place in a crash after this call has used `.next` for another one.
            for directory in {key_file.parent, history_file.parent}:
                sync_directory(directory)
            key = load(key_file)
            present = VerifierKey(origin, key.public_key().public_bytes_raw())
            history = _read_history(history_file, origin, key.public_key())
            resumed = _is_interrupted(history, present, following_file)
            if not resumed:
                _check_present(history, history_file, str(present))
                if len(history) == KEYS_MAX:
                    raise ConfigurationError(f"the key history {history_file} has {KEYS_MAX} keys: no verifier reads a longer one")
                following_file.unlink(missing_ok=True)  # no history names it
                following = VerifierKey(origin, create(following_file).public_key().public_bytes_raw())
                sync_directory(following_file.parent)
                history = (*history, endorse(present, key, following))
                _replace_history(history_file, history)
            # From here on the endorsement must not be lost any more: the present key goes, and nobody else can make it again.
            following_file.replace(key_file)
            sync_directory(key_file.parent)
    except OSError as problem:
        raise ConfigurationError(
            f"cannot rotate the notary's key {key_file}: {problem.strerror or problem}. Correct that, and run it again"
        ) from None
    return Rotation(str(present), history[-1].verifier_key, history, resumed)


def _is_interrupted(history: tuple[HistoricKey, ...], present: VerifierKey, following_file: Path) -> bool:
    """Whether the history is one key ahead of the present one, and that key is waiting."""
    keys = [each.verifier_key for each in history]
    if keys[-2:-1] != [str(present)] or not following_file.exists():
        return False
    return verifier_key(present.name, load(following_file).public_key()) == keys[-1]


def _check_present(history: tuple[HistoricKey, ...], file: Path, present: str) -> None:
    keys = [each.verifier_key for each in history]
    if present == keys[-1]:
        return
    if present in keys:
        raise ConfigurationError(
            f"the key history {file} goes on to {keys[-1]}, and the key file still holds {present}. If `notary key rotate` was interrupted"
            f" here (the new key then waits in a file whose name ends in {NEXT}), run it again; else copy both files, key and history, from"
            f" where it ran: see {_RUNBOOK}"
        )
    raise ConfigurationError(
        f"the key history {file} ends with {keys[-1]} and does not know {present}, which the key file holds: they are of different"
        f" rotations, or notaries. Copy both files, key and history, from where `notary key rotate` ran: see {_RUNBOOK}"
    )


def _replace_history(file: Path, history: tuple[HistoricKey, ...]) -> None:
    """The whole history at once, durable. A crash on the way leaves the old one or the new one."""
    temporary = _next(file)
    with temporary.open("wb") as out:
        _write(out, _encode(history))
    temporary.replace(file)
    sync_directory(file.parent)


def _next(file: Path) -> Path:
    return file.with_name(file.name + NEXT)


def _first(origin: str, key: Ed25519PublicKey) -> bytes:
    return _encode((HistoricKey(verifier_key(origin, key)),))


def _encode(history: tuple[HistoricKey, ...]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(history), indent=1) + b"\n"


def _read_history(file: Path, origin: str, key: Ed25519PublicKey) -> tuple[HistoricKey, ...]:
    """The history of a file, whether it ends with this key or not."""
    try:
        encoded = file.read_bytes()
    except FileNotFoundError:
        first = msgspec.json.format(_first(origin, key), indent=-1).decode()
        raise ConfigurationError(
            f"there is no key history {file}. Copy it from another worker's machine, together with the key, or save there what"
            f" `GET /v1/notary` of a worker that serves answers; if the key is the notary's first, the history is this one line: {first}"
        ) from None
    except OSError as problem:
        raise ConfigurationError(f"cannot read the key history {file}: {problem.strerror}") from None
    return _decode(encoded, file, origin)


def _decode(encoded: bytes, file: Path, origin: str) -> tuple[HistoricKey, ...]:
    """A history that is sound from its first key to its last. `ConfigurationError` names the file."""
    try:
        history = decode_history(encoded)
        keys = [parse_verifier_key(each.verifier_key) for each in history]
        if others := [key.name for key in keys if key.name != origin]:
            raise ConfigurationError(
                f"the key history {file} is of the origin {others[0]!r}, and the configuration says {origin!r}: an origin never changes."
                " Correct the one that is wrong"
            )
        if history[0].endorsement is not None:
            raise NotVerified("bad-endorsement", "its first key is endorsed, so what came before is missing")
        if len(set(keys)) != len(keys) or [str(key) for key in keys] != [each.verifier_key for each in history]:
            raise NotVerified("malformed-key", "a key is in it twice, or stands there in another form than its own")
        follow(keys[:1], history)
    except NotVerified as problem:
        raise ConfigurationError(
            f"the key history {file} is not sound: {problem}. Copy it from another worker's machine or a backup, together with the key"
        ) from None
    return history


def _write(out: IO[bytes], content: bytes) -> None:
    """A whole file's content, durable but for the file's name."""
    out.write(content)
    out.flush()
    os.fsync(out.fileno())


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Of two rotations at once the second one is refused, for it was not meant to replace the key of the first."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another process is changing files in {directory}: wait for it, then look at `notary key show` before you try again"
            ) from None
        yield
    finally:
        os.close(descriptor)
