"""`Trust`: the verifier keys that prove an answer: the caller's, or the key that the notary showed on first use of its URLs.

Keys of the first use are kept in a file, a line for each URL: the URL, the verifier key, the notary's name as a JSON string. A later line
for the same URL replaces an earlier one. Lines are only appended, under a lock, so that two programs trust the same key.

Trust goes forward: a key that the trusted key endorsed (docs/formats.md, Key history) is trusted too, and gets a new line.
"""

import os
import stat
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from notary.client.answers import Answer, NotaryDescription
from notary.receipts import VerifierKey, parse_verifier_key
from notary.receipts.errors import NotVerified, printable
from notary.receipts.key_history import follow
from notary.verify import verify_receipt
from ordering.durable import LOCK_S, locked_file, make_directory, sync, sync_directory
from ordering.errors import ConfigurationError

FILE_VARIABLE: Final = "NOTARY_KNOWN_NOTARIES"
_HEAD: Final = "# Notaries whose verifier keys were trusted on first use: URL, verifier key, name. Remove a line to meet its notary anew.\n"


class Known(msgspec.Struct, frozen=True):
    """A line of the known notaries' file; `line` is its number, from 1."""

    url: str
    key: VerifierKey
    name: str
    line: int


class KnownNotaries:
    """The file of keys that were trusted on first use. `say` gets messages for a person; by default it writes them to stderr."""

    def __init__(self, file: str | Path | None = None, say: Callable[[str], None] | None = None) -> None:
        """Without `file`: the file named by `NOTARY_KNOWN_NOTARIES`, else `notary/known-notaries` in `$XDG_CONFIG_HOME` or `~/.config`."""
        self._given = file
        self.say = say or (lambda text: print(f"notary.client: {text}", file=sys.stderr))

    @property
    def file(self) -> Path:
        """The path of the file. Raises `ConfigurationError` when there is no home directory."""
        if given := self._given or os.environ.get(FILE_VARIABLE):
            return Path(given)
        try:
            return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "notary" / "known-notaries"
        except RuntimeError as problem:
            raise ConfigurationError(f"there is no place to keep the notary's verifier key: {problem}. {_INSTEAD}") from None

    def find(self, urls: Sequence[str]) -> list[Known]:
        """Returns the lines of these URLs, the first one for each key. After a rotation they may have several keys of one notary.

        Raises `ConfigurationError` for a file that cannot be used, and for URLs with lines of different notaries.
        """
        try:
            with self.file.open(encoding="utf-8") as opened:
                if os.fstat(opened.fileno()).st_mode & stat.S_IWOTH:
                    raise ConfigurationError(
                        f"every user can write {self.file}, the file of known notaries: check its keys, then chmod 600 {self.file}"
                    )
                return self._find(opened.read(), urls)
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as problem:
            raise self._unusable(problem) from None

    def keep(self, urls: Sequence[str], key: VerifierKey, name: str, instead_of: Collection[VerifierKey] = ()) -> Known:
        """Append a key for these URLs, and for the others that have one of `instead_of`, durably. Returns the line now in force.

        A key that another program has appended for them meanwhile stays in force, unless it is in `instead_of`. Raises
        `ConfigurationError`.
        """
        file = self.file
        try:
            make_directory(file.parent, 0o700)
            with locked_file(file, 0o600, LOCK_S) as descriptor, open(descriptor, "r+b", buffering=0, closefd=False) as opened:
                text = opened.read().decode()
                others = [known for known in self._find(text, urls) if known.key != key and known.key not in instead_of]
                if others:
                    return others[0]
                lines = self._lines(text)
                rotated = [known.url for known in lines.values() if known.key in instead_of and known.name == name]
                new = [url for url in dict.fromkeys([*urls, *rotated]) if url not in lines or lines[url].key != key]
                if not new:
                    return lines[urls[0]]
                # A crash during this write may leave a cut-off line, which later reads report with its number.
                head = _HEAD if not text else "" if text.endswith("\n") else "\n"
                added = "".join([f"{url} {key} {msgspec.json.encode(name).decode()}\n" for url in new])
                end = os.fstat(descriptor).st_size
                try:
                    left = memoryview((head + added).encode())
                    while left:
                        left = left[opened.write(left) :]
                    sync(opened)
                except OSError:
                    # A full disk may have taken a part of a line, with which no later read could use the file.
                    with suppress(OSError):
                        opened.truncate(end)
                    raise
                sync_directory(file.parent)  # the file may be new
        except BlockingIOError:
            raise ConfigurationError(
                f"another program has locked the known notaries {file} for {LOCK_S:g} s: end it, or wait for it. {_INSTEAD}"
            ) from None
        except (OSError, UnicodeDecodeError) as problem:
            raise self._unusable(problem) from None
        return Known(new[0], key, name, (text + head).count("\n") + 1)

    def _find(self, text: str, urls: Sequence[str]) -> list[Known]:
        lines = self._lines(text)
        found = [lines[url] for url in urls if url in lines]
        for other in found[1:]:
            if (other.key.name, other.name) != (found[0].key.name, found[0].name):
                raise ConfigurationError(f"{self.file} has different notaries for {_places(found[0], other)}: {_OF_ONE}")
        return list({known.key: known for known in reversed(found)}.values())[::-1]

    def _lines(self, text: str) -> dict[str, Known]:
        """Returns the last line of each URL."""
        lines: dict[str, Known] = {}
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                url, key, name = line.split(" ", 2)
                lines[url] = Known(url, parse_verifier_key(key), msgspec.json.decode(name, type=str), number)
            except (ValueError, NotVerified, msgspec.DecodeError, RecursionError) as problem:
                raise ConfigurationError(
                    f"{self.file}, line {number}, is not a URL, a verifier key and a name: {problem}. Correct it, or remove it"
                ) from None
        return lines

    def _unusable(self, problem: Exception) -> ConfigurationError:
        why = problem.strerror if isinstance(problem, OSError) else problem
        return ConfigurationError(f"the known notaries {self.file} cannot be used: {why}. {_INSTEAD}")


def _places(first: Known, other: Known) -> str:
    return f"{first.url} (line {first.line}) and {other.url} (line {other.line})"


_OF_ONE: Final = "give URLs of one notary, or remove the line that is out of date"
_INSTEAD: Final = "Give the notary's verifier key (--verifier-key), or another file (--known-notaries)"


class Trust:
    """The verifier keys with which one client verifies receipts. Without given keys it is empty until `meet`."""

    def __init__(self, urls: Sequence[str], given: Sequence[str] | str, known: KnownNotaries | None) -> None:
        """Raises `ConfigurationError` for a malformed verifier key."""
        try:
            self.keys = [parse_verifier_key(key) for key in ([given] if isinstance(given, str) else given)]
        except NotVerified as problem:
            raise ConfigurationError(f"the verifier key: {problem.what}. Copy it completely, as the operator gives it") from None
        self.is_given = bool(self.keys)
        self._urls = urls
        self._known = known or KnownNotaries()
        self._line: Known | None = None

    def meet(self, notary: NotaryDescription) -> bool:
        """Take the notary's keys from a worker's description. Returns True if there is a new key.

        Raises `NotVerified` unless the notary's key follows from a trusted one, and `ConfigurationError` when a first use cannot be stored.
        """
        shown = parse_verifier_key(notary.verifier_key)
        if not self.keys:
            follow([shown], notary.keys)
            self._first_use(notary, shown)
        if self._line is not None and notary.name != self._line.name:
            names = f"it calls itself {notary.name!r}, and {self._line.name!r} was met here before"
            raise NotVerified("wrong-origin", f"{names}; {self.source}")
        newest = self.keys if self._line is None else self.keys[-1:]
        keys = list(dict.fromkeys([*self.keys, *follow(newest, notary.keys)]))
        if shown not in keys:
            raise NotVerified("unknown-key", f"it shows the key {shown}, which does not follow from {self.keys[-1]}; {self.source}")
        if self._line is not None and self._line.key in keys and keys.index(shown) > keys.index(self._line.key):
            self._line = self._known.keep(self._urls, shown, notary.name, instead_of=keys[: keys.index(shown)])
            if self._line.key == shown:
                text = f"the notary {notary.name!r} has a new verifier key, endorsed by the one before"
                self._known.say(printable(f"{text}: {shown}, kept in {self._known.file}"))
        met, self.keys = keys != self.keys, keys
        return met

    def check(self, answer: Answer) -> None:
        """Raise `NotVerified` unless the answer has a receipt that proves it under one of the keys."""
        if answer.receipt is None:
            raise NotVerified("malformed-receipt", "the decision came without a receipt")
        try:
            verify_receipt(answer.receipt, answer, self.keys)
        except NotVerified as problem:
            if problem.reason not in ("unknown-key", "wrong-origin"):
                raise
            raise NotVerified(problem.reason, f"{problem.what}; {self.source}") from None

    @property
    def source(self) -> str:
        """The origin of the keys, for messages."""
        if self._line is None:
            return "those are the keys that were given"
        return (
            f"the key of the first use is trusted, by {self._known.file}, line {self._line.line}. If the notary was made anew, and its"
            " operator says so, remove its lines"
        )

    def _first_use(self, notary: NotaryDescription, shown: VerifierKey) -> None:
        if lines := self._known.find(self._urls):
            line, keys = lines[0], [lines[0].key]
            if len(lines) > 1:
                *former, _ = keys = self._in_order(lines, notary)
                line = self._known.keep(self._urls, keys[-1], line.name, instead_of=former)
            self._line, self.keys = line, keys
        else:
            # The warning comes first: if it cannot be shown, the key must not be trusted.
            self._known.say(
                printable(
                    f"WARNING: first use of {', '.join(self._urls)}. Nobody has checked that this is the notary {notary.name!r}. Its"
                    f" verifier key {shown} is trusted from now on, and kept in {self._known.file}. Compare it with the operator's, or give"
                    " --verifier-key"
                )
            )
            self._line = self._known.keep(self._urls, shown, notary.name)
            self.keys = [self._line.key]

    def _in_order(self, lines: Sequence[Known], notary: NotaryDescription) -> list[VerifierKey]:
        """Returns the keys of the lines in the order of the key history. They differ if programs with other URLs have followed a rotation.

        Only the last key is trusted to endorse others: a former key may have been replaced because it was stolen.
        """
        keys = {line.key for line in lines}
        for line in lines:
            following = [key for key in follow([line.key], notary.keys) if key in keys]
            if len(following) == len(keys):
                return following
        why = f"{self._known.file} has different keys for {_places(*lines[:2])}, and it shows no endorsement of one by the other: {_OF_ONE}"
        raise NotVerified("unknown-key", why)
