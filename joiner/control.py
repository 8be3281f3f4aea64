"""The log's description of itself (R10): its owner, the key in force, its payload partitions and format versions. Pure.

The genesis record gives the first values; control records, which the owner signs, change them. `LogState` is immutable: a record that takes
effect gives the next state. Whether a control record takes effect depends on the ordering topic alone. Settle, salvage and trim records are
the exception: their views cover both topics. `done` of a salvage depends on the reader's tree too.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ordering.records import (
    ACTIVE_AT_START,
    SALVAGE_FORMAT,
    Genesis,
    Key,
    SalvageBegin,
    SalvageDone,
    SalvageItems,
    SalvageRecord,
    Settle,
    Trim,
)
from ordering.salvage import Item
from ordering.signatures import key_is_endorsed


class SalvageTree(Protocol):
    """The reader's tree of all decisions before the record at the head."""

    @property
    def size(self) -> int:
        """The number of leaves."""
        ...

    def root_at(self, size: int) -> bytes:
        """Returns the root of the first `size` leaves."""
        ...

    def root_with(self, items: Sequence[Item]) -> bytes:
        """Returns the root of the tree with these items appended to its leaves."""
        ...


class LogState(msgspec.Struct, frozen=True):
    """The log as its control records describe it, up to some record of the ordering topic."""

    log_id: bytes
    notary_name: str
    origin: str
    owner_key: bytes
    key: bytes
    """The notary's public key in force: workers sign with it."""
    keys: tuple[bytes, ...]
    """Every key that has ever been in force, in order; the last is `key`."""
    payload_partitions: int
    formats: tuple[int, ...] = tuple(ACTIVE_AT_START)
    """The format versions that are active."""
    settled: int = 0
    """`seen` of the last settle record that took effect."""
    key_seen: int = 0
    """The ordinal of the last key record among the records that took effect; 0 without one."""
    sealed: bool = False
    """True from a sealed entry or a `begin` of a salvage until its `done`: no record of a worker counts meanwhile (R11)."""
    salvage: tuple[int, int] | None = None
    """In an open salvage: the position of its first item, and the position after the last one."""
    salvages: tuple[tuple[int, int, int], ...] = ()
    """Per salvage that took effect: its first position, the position after its last one, and the index of its key in `keys`."""
    trimmed: int = 0
    """The position in the last trim record that took effect."""

    @classmethod
    def begin(cls, genesis: Genesis, log_id: bytes) -> "LogState":
        """Returns the state after the genesis record."""
        key = genesis.notary_key
        return cls(log_id, genesis.notary_name, genesis.origin, genesis.owner_key, key, (key,), genesis.payload_partitions)

    def with_key(self, record: Key, seen: int) -> "LogState | None":
        """Returns the state after a key record, the `seen`-th effect; None for a former key, or one without a good endorsement.

        The record ends an open salvage, whose items are dropped; another salvage may begin.
        """
        if record.public_key in self.keys or not key_is_endorsed(record, self.log_id, self.key):
            return None
        return msgspec.structs.replace(self, key=record.public_key, keys=(*self.keys, record.public_key), key_seen=seen, salvage=None)

    def with_partitions(self, payload_partitions: int) -> "LogState | None":
        """Returns the state with more payload partitions, or None if the number is not higher."""
        if payload_partitions <= self.payload_partitions:
            return None
        return msgspec.structs.replace(self, payload_partitions=payload_partitions)

    def with_format(self, format_version: int) -> "LogState | None":
        """Returns the state with one more active format version, or None if it is active already."""
        if format_version in self.formats:
            return None
        return msgspec.structs.replace(self, formats=(*self.formats, format_version))

    @property
    def key_to_settle(self) -> bytes:
        """The key that a settle record must name to count: the key in force; empty until format version 2 is active."""
        return self.key if SALVAGE_FORMAT in self.formats else b""

    def with_settled(self, record: Settle) -> "LogState | None":
        """Returns the state after a settle record whose view is the reader's own history; None if the record does not count.

        It must settle more records than the last one that counted. Otherwise anybody, without any key, could append a copy of an old settle
        record, and end later suspicions. A record under another key, or during a salvage, may settle a history that the log has lost.
        """
        if self.sealed or record.key != self.key_to_settle or record.view.seen <= self.settled:
            return None
        return msgspec.structs.replace(self, settled=record.view.seen)

    def with_salvage(self, record: SalvageRecord, seen: int, tree: SalvageTree | None, items: Sequence[Item]) -> "LogState | None":
        """Returns the state after a record of a salvage, or None if it does not take effect (R11). The caller has compared its view.

        `seen`: the number of records that took effect before it. `items`: the items so far. A reader without a `tree` trusts the positions
        and roots in the record: the record's view is the reader's own, so the owner had read the same records. Only `done` depends on the
        tree, and a reader that skips it stays sealed. A wrong index that skipped `begin` would go on with a history of its own.
        """
        match record:
            case SalvageBegin():
                if self.key_seen != seen:
                    return None
                return msgspec.structs.replace(self, sealed=True, salvage=(record.position, record.position))
            case SalvageItems():
                if self.salvage is None or self.salvage[1] != record.first:
                    return None
                return msgspec.structs.replace(self, salvage=(self.salvage[0], record.first + len(record.items)))
            case SalvageDone():
                if self.salvage is None or self.salvage[1] != record.tree_size:
                    return None
                if tree is not None and (tree.size != self.salvage[0] or tree.root_with(items) != record.root):
                    return None
                salvages = (*self.salvages, (*self.salvage, len(self.keys) - 1))
                return msgspec.structs.replace(self, sealed=False, salvage=None, settled=seen, salvages=salvages)

    def with_trim(self, record: Trim) -> "LogState | None":
        """Returns the state after a trim record, or None if it does not take effect. The caller has compared its view, which may be older.

        Its root decides nothing here. Otherwise a reader with a wrong index would skip it, and from then on have a history of its own, in
        which nobody compares its root with the others' (R9).
        """
        return None if record.position <= self.trimmed else msgspec.structs.replace(self, trimmed=record.position)
