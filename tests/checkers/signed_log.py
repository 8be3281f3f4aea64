"""A signed log in memory for the tests of the checkers: every method appends one record, with the view of an honest writer.

The records are encoded here by the contract's tables, and signed by OpenSSL: no codec of the notary is used.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from struct import pack

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ordering.log import ORDERING, Record
from tests.checkers.records import NO_LOG_ID, SALVAGE_FORMAT, View, key_of
from tests.checkers.replay import Replayed, replay
from tests.checkers.requests import requests_of
from tests.clients.party import spend, state

NOTARY = "O=Notary,L=London,C=GB"
ORIGIN = "notary.example/checked"
T0 = 1_000_000
"""The append time of the first record, in milliseconds; each later one is a millisecond later."""


def private_key(name: str) -> Ed25519PrivateKey:
    """Returns the key that is derived from this name: the same in every run."""
    return Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest())


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def payload_of(*labels: str) -> bytes:
    """Returns the payload of a batch with one request per label, each of which consumes a state of its own."""
    requests = [spend(state(label), content=label) for label in labels]
    submissions = [{"party": "O=A", "signature": "", "requests": requests}] if labels else []
    return json.dumps(submissions, separators=(",", ":")).encode()


class SignedLog:
    """A log that starts with its genesis record. `name` makes the keys and the ids of several logs different."""

    def __init__(self, partitions: int = 2, name: str = "") -> None:
        self.by_partition: dict[int, list[Record]] = {partition: [] for partition in range(ORDERING, partitions)}
        self.owner, self.key = private_key(name + "owner"), private_key(name + "notary")
        self.log_id = NO_LOG_ID
        salt = sha256(name.encode()).digest()[:16]
        body = salt + pack(">I", partitions) + public(self.key) + public(self.owner) + _text(NOTARY) + _text(ORIGIN)
        genesis = self.write(6, body, by=self.owner)
        assert genesis.value is not None
        self.log_id = sha256(genesis.value).digest()

    # ---- any record ----

    def put(self, partition: int, key: bytes | None, value: bytes | None, at: int | None = None) -> Record:
        """Append a record without changes."""
        taken = sum(map(len, self.by_partition.values()))
        records = self.by_partition.setdefault(partition, [])
        record = Record(partition, len(records), T0 + taken if at is None else at, key, value)
        records.append(record)
        return record

    def signed(self, kind: int, body: bytes, by: Ed25519PrivateKey | None = None, version: int = 1) -> bytes:
        """Returns the value of an ordering record, signed by `by`, otherwise by the key that such a record needs."""
        unsigned = bytes([version, kind]) + body
        signer = by or (self.owner if kind >= 5 else self.key)
        return unsigned + signer.sign(b"notary/log/v1\n" + self.log_id + unsigned)

    def write(self, kind: int, body: bytes, at: int | None = None, by: Ed25519PrivateKey | None = None) -> Record:
        """Append an ordering record."""
        return self.put(ORDERING, None, self.signed(kind, body, by), at)

    def again(self, record: Record) -> Record:
        """Append a copy of a record."""
        return self.put(record.partition, record.key, record.value)

    def replayed(self) -> Replayed:
        """Returns the replay of this log."""
        return replay(self.by_partition)

    def view(self, seen: int | None = None) -> View:
        """Returns the view of the complete log, or of its first `seen` records that take effect."""
        replayed = self.replayed()
        seen = replayed.seen if seen is None else seen
        return View(seen, replayed.histories[seen])

    # ---- workers' records ----

    def register(
        self, name: str = "w1", nonce: str | None = None, *, reads: int = 1, view: View | None = None, at: int | None = None
    ) -> Record:
        nonce_bytes = sha256((nonce or f"{name} {len(self.by_partition[ORDERING])}").encode()).digest()[:16]
        return self.write(2, nonce_bytes + self._view(view) + pack(">H", reads) + _text(name) + _text("0.2"), at)

    def entry(
        self,
        incarnation: int,
        sequence: int,
        *labels: str,
        partition: int = 0,
        at: int | None = None,
        sent_at: int | None = None,
        view: View | None = None,
        value: bytes | None = None,
        ids: Sequence[str] | None = None,
        by: Ed25519PrivateKey | None = None,
    ) -> Record:
        """Append an entry for the payload of these labels, or for `value`."""
        value = payload_of(*labels) if value is None else value
        if ids is None:
            ids = [id_ for id_, _ in requests_of(value, NOTARY) or ()]
        if sent_at is None:
            sent_at = T0 + sum(map(len, self.by_partition.values())) if at is None else at
        body = pack(">QQ", incarnation, sequence) + self._view(view) + pack(">qI", sent_at, partition) + sha256(value).digest()
        return self.write(1, body + pack(">I", len(ids)) + bytes.fromhex("".join(ids)), at, by)

    def payload(self, incarnation: int, sequence: int, *labels: str, partition: int = 0, value: bytes | None = None) -> Record:
        return self.put(partition, key_of(incarnation, sequence), payload_of(*labels) if value is None else value)

    def batch(self, incarnation: int, sequence: int, *labels: str, partition: int = 0, at: int | None = None) -> Record:
        """Append a payload, and its entry."""
        self.payload(incarnation, sequence, *labels, partition=partition)
        return self.entry(incarnation, sequence, *labels, partition=partition, at=at)

    def fill_value(
        self,
        incarnation: int,
        sequence: int,
        value: bytes,
        partition: int = 0,
        *,
        log_id: bytes | None = None,
        by: Ed25519PrivateKey | None = None,
    ) -> bytes:
        """Returns a fill for the batch whose entry names this payload."""
        named = sha256(value).digest()
        message = b"notary/fill/v1\n" + (log_id or self.log_id) + pack(">I", partition) + key_of(incarnation, sequence) + named
        return named + (by or self.key).sign(message)

    def fill(self, incarnation: int, sequence: int, *labels: str, partition: int = 0, by: Ed25519PrivateKey | None = None) -> Record:
        """Append a fill for the batch with the payload of these labels."""
        value = self.fill_value(incarnation, sequence, payload_of(*labels), partition, by=by)
        return self.put(partition, key_of(incarnation, sequence), value)

    def fence(self, incarnation: int, sequence_last: int, *, writer: int = 1, view: View | None = None) -> Record:
        return self.write(3, pack(">Q", writer) + self._view(view) + pack(">QQ", incarnation, sequence_last))

    def checkpoint(self, incarnation: int, size: int, root: bytes = bytes(32), *, view: View | None = None) -> Record:
        return self.write(4, pack(">Q", incarnation) + self._view(view) + pack(">Q", size) + root)

    # ---- the owner's records ----

    def activate(self, version: int) -> Record:
        return self.write(5, pack(">H", version))

    def rotate(self, name: str) -> Record:
        """Append a key record: the key of that name replaces the key in force, and signs the later records."""
        return self.change_key(private_key(name))

    def change_key(self, new: Ed25519PrivateKey) -> Record:
        """Append a key record: this key replaces the key in force, and signs the later records."""
        record = self.write(7, self.key_body(new))
        self.key = new
        return record

    def key_body(self, new: Ed25519PrivateKey) -> bytes:
        """Returns the body of a key record."""
        return public(new) + new.sign(b"notary/log-key/v1\n" + self.log_id + public(self.key))

    def partitions(self, count: int) -> Record:
        return self.write(8, pack(">I", count))

    def retire(self, incarnation: int) -> Record:
        return self.write(9, pack(">Q", incarnation))

    def settle(self, view: View | None = None) -> Record:
        """Append a settle record, in the highest format version that is active."""
        if SALVAGE_FORMAT not in self.replayed().versions:
            return self.write(10, self._view(view))
        return self.put(ORDERING, None, self.signed(10, public(self.key) + self._view(view), version=SALVAGE_FORMAT))

    def _view(self, view: View | None) -> bytes:
        seen, history = self.view() if view is None else view
        return pack(">Q", seen) + history


def _text(text: str) -> bytes:
    return pack(">H", len(text.encode())) + text.encode()
