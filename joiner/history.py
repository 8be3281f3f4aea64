"""The running history of a log, and whether a view of it is our own (R10; docs/formats.md, Log records). Pure.

    H(1) = log id            H(n + 1) = SHA-256(H(n) || append time || SHA-256(value) || mark)

over the records that took effect, genesis first. `mark` is 1 for an entry joined with its payload, else 0. Two readers with the same
(n, H(n)) have had the same n records, at the same times, with the same contents there or filled. Of each record that took effect we keep
where it stands and a fingerprint, so that the log can be asked for it again.
"""

import enum
from collections import deque
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from struct import Struct
from typing import Final, Protocol, TypeVar

import msgspec

from ordering.log import Record
from ordering.records import View

HISTORY_KEPT: Final = 1 << 16
"""The number of records kept, of the last that took effect, to compare views with. The same for all readers: a settle record for an older
history does not count, and whether it does must not depend on the reader."""

NO_CONTENT: Final = -1
"""The partition of an effect that has no content: of every record but an entry."""

NONE_SKIPPED: Final = -1
"""The first offset of what was skipped, where nothing was."""

_LINK = Struct(">q")
_PLACE = Struct(">iqqI")


class HasTime(Protocol):
    """A record, or what is kept of one."""

    @property
    def append_time_ms(self) -> int:
        """The broker's time, milliseconds since 1970."""
        ...


Timed = TypeVar("Timed", bound=HasTime)


class Effect(msgspec.Struct, frozen=True, gc=False):
    """One record that took effect: the `seen`-th, with the history up to it, and where it and its content stand in the log."""

    seen: int
    history: bytes
    offset: int
    append_time_ms: int
    fingerprint: bytes
    partition: int = NO_CONTENT
    content_offset: int = 0
    content_fingerprint: bytes = b""
    skipped_first: int = NONE_SKIPPED
    """The offset of the first ordering record between the effect before and this one; they had none. Offsets may have gaps."""
    skipped_hash: bytes = b""
    """The running hash over their fingerprints (`passed_over`): another record in the place of one of them may have an effect."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The record with the highest offset of its topic-partition that took effect: what is read again after an interruption."""

    offset: int
    fingerprint: bytes


class Comparison(enum.Enum):
    """A view held beside our own history."""

    OWN = "own"
    FOREIGN = "foreign"
    """More records than we have here, or another hash: records were lost, or somebody is wrong."""
    TOO_OLD = "too old"
    """It is older than what we keep, and says nothing."""


def fingerprint(record: Record, value_hash: bytes) -> bytes:
    """SHA-256 of a record's place, append time, key and `value_hash`, the SHA-256 of its value: whether a log still holds it."""
    key = record.key or b""
    return sha256(_PLACE.pack(record.stream, record.offset, record.append_time_ms, len(key)) + key + value_hash).digest()


def fingerprint_of(record: Record) -> bytes:
    """The same of a record as it was read."""
    return fingerprint(record, sha256(record.value or b"").digest())


def passed_over(skipped_hash: bytes, record: Record) -> bytes:
    """The running hash over fingerprints, with one more record; it begins with b""."""
    return sha256(skipped_hash + fingerprint_of(record)).digest()


def last_of_one_time(latest_first: Iterable[Timed]) -> list[Timed]:
    """The last record, all before it that have its append time, and the one before these; the last one last.

    While a clock stands still, a copy of a record that was lost has its append time; only what is older cannot be made again.
    """
    run: list[Timed] = []
    for record in latest_first:
        run.append(record)
        if record.append_time_ms != run[0].append_time_ms:
            break
    return run[::-1]


def extended(history: bytes, append_time_ms: int, value_hash: bytes, *, mark: bool) -> bytes:
    """H(n + 1) from H(n) and the record that took effect."""
    return sha256(b"".join((history, _LINK.pack(append_time_ms), value_hash, b"\x01" if mark else b"\x00"))).digest()


class History:
    """The last effects of one reading of the log, at most `HISTORY_KEPT`, and how many there have been."""

    def __init__(self, effects: Iterable[Effect] = ()) -> None:
        """`effects`: consecutive, the last one last."""
        self._effects: deque[Effect] = deque(effects, maxlen=HISTORY_KEPT)

    @property
    def seen(self) -> int:
        """The number of records that have taken effect."""
        return self._effects[-1].seen if self._effects else 0

    @property
    def view(self) -> View:
        """Our own view of the log, for the next record that we write."""
        last = self._effects[-1]
        return View(last.seen, last.history)

    @property
    def seen_first(self) -> int:
        """The ordinal of the earliest effect kept."""
        return self._effects[0].seen if self._effects else 0

    @property
    def last(self) -> Effect | None:
        """The last effect."""
        return self._effects[-1] if self._effects else None

    @property
    def last_run(self) -> list[Effect]:
        """The last effects, as far as a copy may stand in for one (`last_of_one_time`): they are read again after an interruption."""
        return last_of_one_time(reversed(self._effects))

    def append(self, effect: Effect) -> None:
        """One more record took effect."""
        assert effect.seen == self.seen + 1
        self._effects.append(effect)

    def compare(self, view: View) -> Comparison:
        """Whether a view is our own history at the present place (the contract's words: Log records)."""
        seen = self.seen
        if view.seen > seen:
            return Comparison.FOREIGN
        behind = seen - view.seen
        if behind >= len(self._effects):
            return Comparison.TOO_OLD
        return Comparison.OWN if self._effects[-1 - behind].history == view.history else Comparison.FOREIGN

    def since(self, seen: int) -> list[Effect]:
        """The effects kept from that ordinal on."""
        return list(islice(self._effects, max(0, seen - self.seen_first), None))
