"""The parties whose submissions this notary admits: a JSON file of name -> PEM public key, or name -> {"public_key": PEM, "weight": 2,
"requests_per_s": 500}, read again when it changes.

The file controls what a worker admits into the log. It never influences a decision (R6).
"""

import asyncio
import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from notary.access import alone_in, why_unreadable
from notary.party_keys import ED25519_LIBRARY, PartyKey, Verify, load_public_key, verifier
from ordering.durable import LOCK_S, replace_file
from ordering.errors import ConfigurationError
from payload import PARTY_BYTES_MAX

logger = logging.getLogger("notary.parties")

CHECK_S = 2.0
"""The time between two checks whether the file has changed."""
LOADED_AT_ONCE = 25
"""The number of parties that are loaded in one turn of the event loop: 3 to 4 ms of work."""
WEIGHT_MAX: Final = 100
REQUESTS_PER_S_MAX: Final = 1_000_000
_RANGES: Final = {"weight": (1, WEIGHT_MAX), "requests_per_s": (0, REQUESTS_PER_S_MAX)}


class RegisteredParty(msgspec.Struct, frozen=True, omit_defaults=True):
    """A party as the file has it."""

    public_key: str
    weight: int = 1
    """Its share of this worker's capacity, relative to the weights of other parties."""
    requests_per_s: int | None = None
    """Its quota, 0 for none; None: the configuration's."""


class Party(msgspec.Struct, frozen=True):
    """A registered party."""

    verify: Verify
    """The check of its signatures."""
    is_ed25519: bool
    weight: int
    requests_per_s: int | None


class Parties:
    """The registered parties, as of the file's last change."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._parties: Mapping[str, Party] = {}
        self._keys: frozenset[bytes] = frozenset()
        self._file_state: tuple[int, ...] | None = None
        """The times, size and inode of the file as it was last read; None before that."""
        self._reported = ""
        self._check_requested = asyncio.Event()
        self.reload()

    def get(self, party: str) -> Party | None:
        """Returns the party; None if it is not registered."""
        return self._parties.get(party)

    def weight_of(self, party: str) -> int:
        """Returns a party's weight; 1 if it is not registered any more."""
        known = self._parties.get(party)
        return 1 if known is None else known.weight

    def requests_per_s_of(self, party: str) -> int | None:
        """Returns a party's own quota; None if it has none."""
        known = self._parties.get(party)
        return None if known is None else known.requests_per_s

    def has_key(self, public_key: bytes) -> bool:
        """Returns True if it is the key of a registered party (DER, SubjectPublicKeyInfo)."""
        return public_key in self._keys

    def __len__(self) -> int:
        return len(self._parties)

    async def follow(self) -> None:
        """Read the file again whenever it has changed, for ever. While it cannot be read, the present parties stay in use."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._check_requested.wait(), CHECK_S)
            self._check_requested.clear()
            try:
                for _ in self._reload():
                    await asyncio.sleep(0)
                self._reported = ""
            except ConfigurationError as problem:
                if str(problem) != self._reported:
                    self._reported = str(problem)
                    logger.warning("the parties file is rejected, the present parties stay in use: %s", problem)
            except Exception as problem:  # a bug, or a key that a library cannot handle, must not end the worker
                if repr(problem) != self._reported:
                    self._reported = repr(problem)
                    logger.exception("the parties file cannot be read, the present parties stay in use")

    def check_now(self) -> None:
        """Have `follow` read the file now if it has changed. It logs an error even if it has logged the same one before."""
        self._reported = ""
        self._check_requested.set()

    def reload(self) -> None:
        """Read the file if it changed. Raises `ConfigurationError`; then the present parties stay in use."""
        for _ in self._reload():
            pass

    def _reload(self) -> Iterator[None]:
        try:
            found = self._file.stat()
        except OSError as problem:
            raise ConfigurationError(f"cannot read the parties {self._file}: {why_unreadable(self._file, problem)}") from None
        file_state = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)  # a copy may have any st_mtime
        if file_state == self._file_state:
            return
        loaded: dict[str, Party] = {}
        keys: set[bytes] = set()
        for name, entry in _entries(self._file):
            key = load_public_key(entry.public_key.encode(), f"{self._file}, party {name!r}")
            keys.add(_der(key))
            loaded[name] = Party(verifier(key), isinstance(key, Ed25519PublicKey), entry.weight, entry.requests_per_s)
            if len(loaded) % LOADED_AT_ONCE == 0:
                yield  # loading thousands of keys at once would block the event loop
        self._parties, self._keys = loaded, frozenset(keys)
        self._file_state = file_state
        logger.info("parties read file=%s parties=%d ed25519=%s", self._file, len(self._parties), ED25519_LIBRARY)


def read(file: Path) -> dict[str, RegisteredParty]:
    """Returns the file's parties by name. Raises `ConfigurationError`."""
    return dict(_entries(file))


def _entries(file: Path) -> Iterator[tuple[str, RegisteredParty]]:
    """Yields the file's parties. Raises `ConfigurationError`, also for a party that is there twice: one of its keys may be out of date.

    The first step parses the file: about 3 ms for 5,000 parties.
    """
    try:
        parsed = json.loads(file.read_bytes(), object_pairs_hook=_members)
    except OSError as problem:
        raise ConfigurationError(f"cannot read the parties {file}: {why_unreadable(file, problem)}") from None
    except (ValueError, RecursionError) as problem:  # errors of JSON and of UTF-8 are ValueErrors
        raise ConfigurationError(f"{file} should be a JSON object of party name -> PEM public key: {problem}") from None
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{file} should be a JSON object of party name -> PEM public key, and is another value")
    for name, value in parsed.items():
        if not is_utf8(name):
            raise ConfigurationError(f"{file}: the name {name!r:.300} is not UTF-8")
        yield name, _entry(value, f"{file}, party {name!r}")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter([name for name, _ in pairs]).items() if count > 1)
        raise ValueError(f"{twice!r:.300} is there twice: remove one")
    return members


def _entry(value: object, where: str) -> RegisteredParty:
    """Returns an entry in its short or its long form. Raises `ConfigurationError`."""
    if isinstance(value, str):
        return RegisteredParty(value)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where}: it is {value!r:.80}; it is to be a PEM public key, or an object with `public_key`")
    if not isinstance(value.get("public_key"), str):
        raise ConfigurationError(f"{where}: `public_key` is {value.get('public_key')!r:.80}; it is to be a PEM public key")
    for member in value.keys() - {"public_key"}:
        if (allowed := _RANGES.get(member)) is None:
            raise ConfigurationError(f"{where}: there is no member {member!r:.80}; a party has `public_key`, `weight`, `requests_per_s`")
        check_number(value[member], member, allowed, where)
    return RegisteredParty(**value)


def check_number(value: object, member: str, allowed: tuple[int, int], where: str) -> None:
    """Raise `ConfigurationError` unless it is an integer in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not allowed[0] <= value <= allowed[1]:
        raise ConfigurationError(f"{where}: `{member}` is {value!r:.80}; it is to be an integer from {allowed[0]} to {allowed[1]}")


Added: TypeAlias = Literal["added", "changed", "unchanged"]


def add(file: Path, name: str, pem: bytes, source: str, weight: int | None = None, requests_per_s: int | None = None) -> Added:
    """Register a party, or change its weight and quota; None leaves a value unchanged. A symbolic link is followed.

    Raises `ConfigurationError` if the party has another key, or for an invalid key or number.
    """
    file = Path(os.path.realpath(file))
    numbers = {"weight": weight, "requests_per_s": requests_per_s}
    given = {member: number for member, number in numbers.items() if number is not None}
    for member, number in given.items():
        check_number(number, member, _RANGES[member], f"party {name!r}")
    if not is_utf8(name):
        raise ConfigurationError(f"a party's name is UTF-8, and {name!r} is not: give it as the party signs it")
    name_bytes = len(name.encode())
    if not 0 < name_bytes <= PARTY_BYTES_MAX:
        raise ConfigurationError(f"a party's name has 1 to {PARTY_BYTES_MAX} bytes of UTF-8, {name!r} has {name_bytes}")
    key = load_public_key(pem, source)
    public = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    with _locked(file):
        parties = read(file)
        before = parties.get(name)
        if before is not None and _der(load_public_key(before.public_key.encode(), f"{file}, party {name!r}")) != _der(key):
            raise ConfigurationError(f"party {name!r} is registered with another key: remove it from {file} first if that is meant")
        parties[name] = after = msgspec.structs.replace(before or RegisteredParty(public), **given)
        if after == before:
            return "unchanged"
        write(file, parties)
    return "added" if before is None else "changed"


def _der(key: PartyKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def is_utf8(text: str) -> bool:
    """Returns False for an argument of the command line whose bytes were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write(file: Path, parties: Mapping[str, str | RegisteredParty]) -> None:
    """Replace the file atomically and durably: a worker that reads it meanwhile gets either all old or all new parties.

    Its mode stays as it was.
    """
    short = {
        name: entry.public_key if isinstance(entry, RegisteredParty) and entry == RegisteredParty(entry.public_key) else entry
        for name, entry in parties.items()
    }
    text = msgspec.json.format(msgspec.json.encode(short), indent=1) + b"\n"
    try:
        replace_file(file, text, like=file.stat() if file.exists() else None)
    except OSError as problem:
        raise ConfigurationError(f"cannot write the parties {file}: {problem.strerror}") from None


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the file's directory. If two commands register parties at once, the second reads the file that the first one wrote."""
    busy = f"another process, such as `notary key rotate`, is changing files in {file.parent}: wait for it, then try again"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(alone_in(file.parent, busy, LOCK_S))
        except OSError as problem:
            raise ConfigurationError(f"cannot read the parties {file}: {why_unreadable(file, problem)}") from None
        yield
