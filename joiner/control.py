"""The log's description of itself (R10): whose it is, which key signs, which partitions and formats there are. Pure.

Genesis gives the first values; control records, which the owner signs, change them. `LogState` is immutable: a record that takes effect
gives the next one. Whether one takes effect follows from the ordering topic alone, the payload topic has no say in it.
"""

import msgspec

from ordering.records import ACTIVE_AT_START, Genesis, Key
from ordering.signatures import key_is_endorsed


class LogState(msgspec.Struct, frozen=True):
    """The log as its control records describe it, up to some place in the ordering topic."""

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

    @classmethod
    def begin(cls, genesis: Genesis, log_id: bytes) -> "LogState":
        """The state after the genesis record."""
        key = genesis.notary_key
        return cls(log_id, genesis.notary_name, genesis.origin, genesis.owner_key, key, (key,), genesis.payload_partitions)

    def with_key(self, record: Key) -> "LogState | None":
        """The state after a key record; None if it does not take effect: a former key never comes back."""
        if record.public_key in self.keys or not key_is_endorsed(record, self.log_id, self.key):
            return None
        return msgspec.structs.replace(self, key=record.public_key, keys=(*self.keys, record.public_key))

    def with_partitions(self, payload_partitions: int) -> "LogState | None":
        """The state with more payload partitions; None if they are not more."""
        if payload_partitions <= self.payload_partitions:
            return None
        return msgspec.structs.replace(self, payload_partitions=payload_partitions)

    def with_format(self, format_version: int) -> "LogState | None":
        """The state with one more active format version; None if it is active already."""
        if format_version in self.formats:
            return None
        return msgspec.structs.replace(self, formats=(*self.formats, format_version))

    def with_settled(self, seen: int) -> "LogState | None":
        """The state after a settle record for the reader's own history; None for a copy of one that took effect, or an older one.

        The rule as first written took any settle record of the reader's own history. A copy of an old one, appended by somebody without
        any key, would then have ended doubts that were raised since.
        """
        return None if seen <= self.settled else msgspec.structs.replace(self, settled=seen)
