"""The log's description of itself (R10): its owner, the key in force, its payload partitions and format versions. Pure.

Genesis gives the first values; control records, which the owner signs, change them. `LogState` is immutable: a record that takes effect
gives the next one. The ordering topic alone determines whether one takes effect; the payload topic has no influence.
"""

import msgspec

from ordering.records import ACTIVE_AT_START, Genesis, Key
from ordering.signatures import key_is_endorsed


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

    @classmethod
    def begin(cls, genesis: Genesis, log_id: bytes) -> "LogState":
        """Returns the state after the genesis record."""
        key = genesis.notary_key
        return cls(log_id, genesis.notary_name, genesis.origin, genesis.owner_key, key, (key,), genesis.payload_partitions)

    def with_key(self, record: Key) -> "LogState | None":
        """Returns the state after a key record, or None if it does not take effect: a former key never returns."""
        if record.public_key in self.keys or not key_is_endorsed(record, self.log_id, self.key):
            return None
        return msgspec.structs.replace(self, key=record.public_key, keys=(*self.keys, record.public_key))

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

    def with_settled(self, seen: int) -> "LogState | None":
        """Returns the state after a settle record for the reader's own history; None for a copy of one that took effect, or an older one.

        The rule as first written accepted any settle record of the reader's own history. Anybody could then have appended a copy of an old
        one, without any key, and ended suspicions raised since.
        """
        return None if seen <= self.settled else msgspec.structs.replace(self, settled=seen)
