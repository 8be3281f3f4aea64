"""The forger: a writer with access to the topics who can append anything except a valid signature. None of it may change a decision (R10).

It has keys of its own, the notary's former keys once they are out of force, and copies of true records: of other logs, of this one, and of
lost ones. The checkers decide the log again without the forged records, and the result must be the same.
"""

import random
from hashlib import sha256
from typing import TYPE_CHECKING

from ordering.errors import CorruptRecord
from ordering.log import ORDERING, Record
from ordering.records import (
    SIGNATURE_BYTES,
    Activate,
    Checkpoint,
    Entry,
    Fence,
    Key,
    OrderingRecord,
    Partitions,
    Register,
    Retire,
    Settle,
    View,
    batch_key,
    decode,
    encode,
)
from ordering.signatures import SigningKey, endorse_key, sign_fill, sign_record
from payload import decode_submission, encode_batch
from tests.simulation.deployment import NOTARY, key_of, signing_key

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

GARBAGE = (b"", b"[", b"{}", b"null", b"[]", b'[{"party":""}]', None)
NONSENSE = (b"", b"\x01", b"\x01\x01short", b"\x02\x01", b"\x01\x63", encode(Activate(65535)), b"\x01\x05\xff\xff")
ANOTHER_LOG = sha256(b"another log").digest()


class Forger:
    """The forger of one simulation."""

    def __init__(self, simulation: "Simulation", draw: random.Random) -> None:
        self._simulation = simulation
        self._draw = draw
        self._thief = signing_key(key_of("the thief"))

    async def write(self) -> None:
        """Append one record of a random kind."""
        draw = self._draw
        kinds = ["nonsense", "record", "record", "record", "junk", "fill", "fill", "copy", "copy", "copied vote", "copied control record"]
        # Before a salvage begins, a copy of what was lost would begin another history, which contradicts the salvage's sources.
        lost = bool(self._simulation.cluster.damages) and not self._simulation.plan.salvages
        kind = draw.choice([*kinds, *["copy of what was lost"] * 3 * lost])
        written = getattr(self, f"_{kind.replace(' ', '_')}")()
        if written:
            self._simulation.trace("forger", f"writes to the log: {kind} {written}")
            self._simulation.count("forged records")
            self._simulation.count(f"forged: {kind}")

    async def flood(self) -> None:
        """Append hundreds of records at once: payloads under names that nobody registered, or records that a stranger signed."""
        draw = self._draw
        partition = draw.choice([ORDERING, self._partition(), self._partition()])
        count = draw.randint(300, 600) if partition == ORDERING else draw.randint(300, 1_500)
        value = b"[]" if partition != ORDERING else sign_record(Retire(1), self._simulation.owner.log_id, self._thief)
        first = draw.randint(50, 1_000)
        for number in range(first, first + count):
            self._land(partition, None if partition == ORDERING else batch_key(number, 1), value)
        self._simulation.trace("forger", f"floods partition {partition} with {count} records")
        self._simulation.count("floods")

    def _land(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        self._simulation.cluster.land(partition, key, value, forged=True)

    # ---- ordering records ----

    def _nonsense(self) -> str:
        self._land(ORDERING, None, self._draw.choice(NONSENSE))
        return "of no kind"

    def _record(self) -> str:
        record = self._any_record()
        signer, log_id, how = self._signature()
        if signer is None:
            value = encode(record) + self._draw.choice([bytes(SIGNATURE_BYTES), self._draw.randbytes(SIGNATURE_BYTES)])
        else:
            value = sign_record(record, log_id, signer)
        self._land(ORDERING, None, value)
        return f"{type(record).__name__} {how}"

    def _any_record(self) -> OrderingRecord:
        draw = self._draw
        incarnation, sequence = self._name_to_come()
        view = View(draw.randint(1, 60), draw.randbytes(32))
        ids = tuple([draw.randbytes(32) for _ in range(draw.randint(0, 2))])
        name = draw.choice(self._simulation.machines).name
        records: list[OrderingRecord] = [
            Entry(incarnation, sequence, view, self._simulation.wall_ms(), 0, draw.randbytes(32), ids),
            Entry(incarnation, sequence, view, self._simulation.wall_ms(), 0, self._hash_of_a_payload(), ids),
            Register(draw.randbytes(16), view, 1, name, "forged"),
            Fence(incarnation, view, incarnation, max(0, sequence - 1)),
            Checkpoint(incarnation, view, draw.randint(0, 9), bytes(32)),
            Activate(draw.choice([2, 65535])),
            endorse_key(self._thief, self._simulation.owner.log_id, self._simulation.owner.in_force().public_key),
            Key(self._thief.public_key, bytes(SIGNATURE_BYTES)),
            Partitions(draw.randint(1, 1_000_000)),
            Retire(incarnation),
            Settle(view),
        ]
        return draw.choice(records)

    def _signature(self) -> tuple[SigningKey | None, bytes, str]:
        """Returns a key (None for an unsigned record), the id of the log to sign for, and a description."""
        owner = self._simulation.owner
        how = self._draw.choice(["unsigned", "signed by a stranger", "signed with a former key", "signed for another log"])
        in_force = owner.in_force()
        keys = owner.signing_keys()
        public_keys = [key.public_key for key in keys]
        former = keys[: public_keys.index(in_force.public_key) if in_force.public_key in public_keys else None]
        if how == "signed by a stranger":
            return self._thief, owner.log_id, how
        if how == "signed with a former key" and former:
            self._simulation.count("forged with a former key")
            return self._draw.choice(former), owner.log_id, how
        if how == "signed for another log":
            return in_force, ANOTHER_LOG, how
        return None, b"", "unsigned"

    # ---- payload records ----

    def _junk(self) -> str:
        """Append a content under the name of another batch."""
        draw = self._draw
        asked = decode_submission(draw.choice(self._simulation.clients.submissions).body, NOTARY)
        value = draw.choice([draw.choice(GARBAGE), encode_batch([asked.encoded])])
        self._land(self._partition(), draw.choice([batch_key(*self._name_to_come())] * 5 + [None, b"short"]), value or b"[]")
        return "in a payload partition"

    def _fill(self) -> str:
        incarnation, sequence = self._name_to_come()
        partition, payload_hash = self._partition(), self._hash_of_a_payload()
        named = [entry for entry in self._entries() if entry.partition in self._simulation.cluster.by_partition]
        if entries := [entry for entry in named if (entry.incarnation, entry.sequence) == (incarnation, sequence)]:
            partition, payload_hash = entries[-1].partition, entries[-1].payload_hash
        signer, log_id, how = self._signature()
        key = batch_key(incarnation, sequence)
        value = payload_hash + bytes(SIGNATURE_BYTES) if signer is None else sign_fill(log_id, partition, key, payload_hash, signer)
        self._land(partition, key, value)
        return how

    # ---- late copies of true records ----

    def _copy(self) -> str:
        partition = self._draw.choice(list(self._simulation.cluster.by_partition))
        return self._again(self._simulation.cluster.by_partition[partition])

    def _copied_vote(self) -> str:
        return self._again([record for record in self._simulation.cluster.by_partition[ORDERING] if (record.value or b"")[1:2] == b"\x04"])

    def _copied_control_record(self) -> str:
        return self._again(
            [record for record in self._simulation.cluster.by_partition[ORDERING] if (record.value or b"\0\0")[1:2] > b"\x04"]
        )

    def _copy_of_what_was_lost(self) -> str:
        return self._again([record for damage in self._simulation.cluster.damages for record in damage.lost])

    def _again(self, records: list[Record]) -> str:
        if not records:
            return ""
        record = self._draw.choice(records)
        partition = record.partition
        if partition != ORDERING and self._draw.random() < 0.1:
            partition = self._partition()
        self._land(partition, record.key, record.value)
        return f"of record {record.offset} of partition {record.partition}"

    # ---- the present log ----

    def _partition(self) -> int:
        return self._draw.randrange(len(self._simulation.cluster.by_partition) - 1)

    def _entries(self) -> list[Entry]:
        found: list[Entry] = []
        for record in self._simulation.cluster.by_partition[ORDERING][-10:]:
            try:
                decoded = decode(record.value)
            except CorruptRecord:
                continue
            if isinstance(decoded, Entry):
                found.append(decoded)
        return found

    def _hash_of_a_payload(self) -> bytes:
        payloads = self._simulation.cluster.by_partition[self._partition()][-5:]
        return sha256(self._draw.choice(payloads).value or b"" if payloads else b"").digest()

    def _name_to_come(self) -> tuple[int, int]:
        """Returns a batch name that a worker is about to use, or has just used, approximately."""
        names = [(entry.incarnation, entry.sequence) for entry in self._entries()]
        incarnation, sequence = self._draw.choice(names) if names else (1, 0)
        return incarnation + (self._draw.random() < 0.2), sequence + self._draw.randint(0, 2)
