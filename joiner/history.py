"""The running history of a log, and the comparison of views with it (R10; docs/formats.md, Log records). Pure.

    H(1) = log id            H(n + 1) = SHA-256(H(n) || append time || SHA-256(value) || mark)

over the records that took effect, genesis first. `mark` is 1 for an entry with its payload, 2 for a sealed entry, else 0. If two readers
have the same (n, H(n)), the same n records took effect for both, with the same append times and contents (payload, fill or seal). We keep
the offset and a fingerprint of each record that took effect, so that it can be read again and compared.
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
"""The number of last effects that are kept, to compare views with.

It is the same for all readers: whether a settle record for an older history counts must not depend on the reader.
"""

NO_CONTENT: Final = -1
"""The partition of an effect without content: all records but entries."""

NONE_SKIPPED: Final = -1
"""The value of `skipped_first` if nothing was skipped."""

_LINK = Struct(">q")
_PLACE = Struct(">iqqI")


class HasTime(Protocol):
    """A record, or the kept part of one."""

    @property
    def append_time_ms(self) -> int:
        """The broker's append time, milliseconds since 1970."""
        ...


Timed = TypeVar("Timed", bound=HasTime)


class Effect(msgspec.Struct, frozen=True, gc=False):
    """One record that took effect: the `seen`-th, with the history up to it, and the offsets of the record and its content."""

    seen: int
    history: bytes
    offset: int
    append_time_ms: int
    fingerprint: bytes
    partition: int = NO_CONTENT
    content_offset: int = 0
    content_fingerprint: bytes = b""
    skipped_first: int = NONE_SKIPPED
    """The offset of the first ordering record that was skipped between the previous effect and this one. Offsets may have gaps."""
    skipped_hash: bytes = b""
    """The running hash over the fingerprints of the skipped records (`extend_skipped`). A record that replaces one may take effect."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The record that took effect with the highest offset of its topic-partition. After an interruption it is read again."""

    offset: int
    fingerprint: bytes


class Comparison(enum.Enum):
    """The result of comparing a view with our own history."""

    OWN = "own"
    FOREIGN = "foreign"
    """The view has more records than we have at that point, or another hash: records were lost, or a worker is wrong."""
    TOO_OLD = "too old"
    """The view is older than the history that we keep, and proves nothing."""


def fingerprint(record: Record, value_hash: bytes) -> bytes:
    """Returns SHA-256 over a record's partition, offset, append time, key and `value_hash`, the SHA-256 of its value.

    Comparing it shows that a log still holds the record.
    """
    key = record.key or b""
    return sha256(_PLACE.pack(record.partition, record.offset, record.append_time_ms, len(key)) + key + value_hash).digest()


def fingerprint_of(record: Record) -> bytes:
    """Returns the fingerprint of a record as it was read."""
    return fingerprint(record, sha256(record.value or b"").digest())


def extend_skipped(skipped_hash: bytes, record: Record) -> bytes:
    """Returns the running hash over fingerprints, extended by one skipped record; it begins with b""."""
    return sha256(skipped_hash + fingerprint_of(record)).digest()


def last_of_one_time(latest_first: Iterable[Timed]) -> list[Timed]:
    """Returns the last records that share an append time, and the record before them, in log order.

    While the broker's clock does not advance, a copy of the last record may hide the loss of others. So all with its time are compared.
    """
    run: list[Timed] = []
    for record in latest_first:
        run.append(record)
        if record.append_time_ms != run[0].append_time_ms:
            break
    return run[::-1]


def extended(history: bytes, append_time_ms: int, value_hash: bytes, *, mark: int) -> bytes:
    """Returns H(n + 1), from H(n) and the record that took effect."""
    return sha256(b"".join((history, _LINK.pack(append_time_ms), value_hash, bytes((mark,))))).digest()


class History:
    """The last effects of one pass over the log, at most `HISTORY_KEPT`, and their total number."""

    def __init__(self, effects: Iterable[Effect] = ()) -> None:
        """`effects`: consecutive, the last one last."""
        self.restore(effects)

    def restore(self, effects: Iterable[Effect]) -> None:
        """Replace the content by these effects."""
        self._effects: deque[Effect] = deque(effects, maxlen=HISTORY_KEPT)

    def snapshot(self) -> tuple[Effect, ...]:
        """Returns the effects that are kept."""
        return tuple(self._effects)

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
        """The last effect; None before genesis."""
        return self._effects[-1] if self._effects else None

    @property
    def last_run(self) -> list[Effect]:
        """The last effects that share an append time, and the one before (`last_of_one_time`): read again after an interruption."""
        return last_of_one_time(reversed(self._effects))

    def append(self, effect: Effect) -> None:
        """Append one record that took effect."""
        assert effect.seen == self.seen + 1
        self._effects.append(effect)

    def compare(self, view: View) -> Comparison:
        """Compare a view with our own history at the present head (docs/formats.md, Log records)."""
        seen = self.seen
        if view.seen > seen:
            return Comparison.FOREIGN
        behind = seen - view.seen
        if behind >= len(self._effects):
            return Comparison.TOO_OLD
        return Comparison.OWN if self._effects[-1 - behind].history == view.history else Comparison.FOREIGN

    def since(self, seen: int) -> list[Effect]:
        """Returns the effects kept from that ordinal on."""
        return list(islice(self._effects, max(0, seen - self.seen_first), None))
