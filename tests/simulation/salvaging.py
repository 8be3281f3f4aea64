"""A salvage (R11): all workers stop, the log loses its end, and the owner puts back what survivors and receipts hold.

It demands beside all other promises:

- A decision that a survivor or a receipt handed in holds is the log's until its next loss, and no position of theirs has another.
- A choice of sources of one history is never refused.

A log may be salvaged several times. The owner's command may end between two of its records; the next one continues with its key or another.

Records of the old side that are under way land between the steps of the salvage, and after it. So do forged records, and the owner's own
late ones.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.index import rows
from notary.index.store import POSITIONS, STATES
from notary.receipts.note import VerifierKey
from notary.salvage.choice import Choice, choose
from notary.salvage.kept import KeptIndex
from notary.salvage.receipts import read_receipts
from notary.salvage.statements import ChoiceRefused, Receipt
from notary.wire import to_json
from ordering.ids import StateRef
from ordering.log import ORDERING
from ordering.records import OwnerRecord, SalvageBegin, SalvageDone, SalvageItems, batch_key
from ordering.salvage import Item
from ordering.signatures import SigningKey, endorse_key, sign_record, sign_seal
from tests.checkers.replay import Replayed, replay
from tests.joiner.salvaged import SalvageReader, item_of
from tests.notary.salvage.witnesses import MemoryIndex
from tests.simulation.damage import RECORDS, contradicts
from tests.simulation.deployment import NOTARY, ORIGIN, OWNER, key_of, signing_key
from tests.simulation.freeing import copied
from tests.simulation.machine import Machine
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

WRITES = (0, 1, 2, 3, 5, *[1_000] * 5)
"""The number of records after which the owner's command may end."""
ITEMS = 3
"""The number of items in a record: so that a salvage has several."""
BETWEEN_S = (0.0, 0.0, 0.05, 1.0)
DRAINED_S = 30.0
"""The time for calls that were answered before the loss to reach their clients, and for most delayed records to land."""

Decided = Mapping[str, Any]


def salvage_plan(drawn: Plan) -> Plan:
    """Returns a plan in which the log is salvaged, without other faults of the log itself and of indexes."""
    draw = random.Random(f"salvages {drawn.seed}")
    return msgspec.structs.replace(
        drawn,
        salvages=draw.choice([1, 1, 2, 3]),
        rotations=draw.choice([0, 0, 1, 2]),
        cuts=0,
        leaderless=0,
        diverged=0,
        altered_rows=0,
        damages=0,
        aimed="",
        aimed_losses=0,
        votes_repeated=False,
        duplicate_name=False,
        late_registers=0,
        wrong_clocks=0,
        jump_of_years=False,
        misnamed=0,
        broken=0,
        stolen_names=0,
        wrong_votes=0,
        floods=0,
        activations=0,
        trims=draw.choice([0, 0, 2]),
        frees=0,
        forgers=draw.choice([0, 0, 12]),
        late_keys=False,
        readings=0,
    )


class Salvaging:
    """The salvage of one simulation."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._draw = random.Random(f"salvage {simulation.plan.seed}")
        self._held: dict[str, Decided] = {}
        """The decisions that the sources of the latest salvage hold, by transaction id."""
        self._salvaged: list[tuple[int, int]] = []
        """For each salvage so far, the number of keys before it, and the end of its positions."""
        self._key: Ed25519PrivateKey | None = None
        """The key of a salvage that has not ended."""
        self.keys: list[SigningKey] = []
        """The keys of all salvages, also those of commands that ended before the salvage did."""
        self._writes_left = 0
        self.one_at_a_time: Final = asyncio.Lock()

    async def strike(self) -> None:
        """Stop all workers, lose the end of the log, salvage, and start the workers again."""
        async with self.one_at_a_time:
            await self._strike()

    async def _strike(self) -> None:
        simulation, draw, cluster = self._simulation, self._draw, self._simulation.cluster
        for machine in simulation.machines:
            machine.down = True
            machine.kill()
        await asyncio.sleep(draw.choice([0.0, DRAINED_S]))
        what = draw.choice(["the order", "payloads", "both"])
        simulation.count(f"salvages: {what} lost")
        self._held = {}
        before = replay(cluster.by_partition)
        payloads = [partition for partition in cluster.by_partition if partition != ORDERING]
        for partition in [ORDERING] * (what != "payloads") + payloads * (what != "the order"):
            length = len(cluster.by_partition[partition])
            simulation.losses.cut(partition, max(2 * (partition == ORDERING), length - draw.choice(RECORDS)))
        share = draw.choice([0.0, 0.0, 0.3, 1.0])
        indexes = [self._index(machine) for machine in simulation.machines if draw.random() < share]
        receipts = self._receipts(draw.choice([0.0, 0.1, 0.3, 1.0]), before, [key for index in indexes for key in index.keys])
        for attempt in range(50):
            try:
                choice = await self._attempt(f"salvage {len(self._salvaged)}.{attempt} of {simulation.plan.seed}", indexes, receipts)
            except ChoiceRefused as refusal:
                simulation.problem("owner", f"the sources are of one history, and refused: {refusal}")
                return
            if choice is not None:
                break
        else:
            simulation.problem("owner", "the salvage does not end")
            return
        simulation.count("salvages" if not self._salvaged else "salvages of a salvaged log")
        self._salvaged.append((len(simulation.owner.verifier_keys) - 1, choice.end))
        for problem in self.violations(replay(cluster.by_partition)):
            simulation.problem("owner", problem)
        for form in sorted({type(item).__name__ for item in choice.items}):
            simulation.count(f"salvages with items: {form.lower()}")
        for machine in simulation.machines:
            if draw.random() < 0.5 or contradicts(machine.disk, cluster):
                machine.disk.wipe()
            machine.down = False

    def violations(self, replayed: Replayed) -> list[str]:
        """Returns the decisions that a source held and that the log decides otherwise."""
        decided = {decision["transaction_id"]: decision for decision in replayed.decisions}
        return [
            f"a source of the salvage holds {held}, and the log has {decided.get(id_)}"
            for id_, held in self._held.items()
            if decided.get(id_) != held
        ]

    # ---- sources ----

    def _index(self, machine: Machine) -> MemoryIndex:
        """Returns what is on a worker's disk, as a source."""
        disk, index = copied(machine.disk)
        consumed: dict[StateRef, bytes] = {}
        inputs: dict[bytes, list[StateRef]] = {}
        for state, row in disk.contents()[STATES]:
            id_, position = rows.state_of(row)
            if position == rows.RESERVED:
                consumed[state] = id_
            else:
                consumed[state] = sha256(id_).digest()
                inputs.setdefault(id_, []).append(state)
        items: list[Item] = []
        for _, id_there in disk.contents()[POSITIONS]:
            if (undecided := rows.undecided_of(id_there)) is not None:
                items.append(undecided)
                continue
            decision = index.decision(id_there)
            assert decision is not None
            items.append(item_of(decision, inputs.get(id_there, ())))
            self._hold(json.loads(msgspec.json.encode(to_json(decision))))
        log_state = index.joiner_state().log_state
        return MemoryIndex(f"index of {machine.label}", items, consumed=consumed, keys=() if log_state is None else log_state.keys)

    def _receipts(self, share: float, log: Replayed, known: Sequence[bytes]) -> list[Receipt]:
        """Returns a share of the receipts that clients have of this log, with their requests.

        If the loss took a salvage, and no index has read its key, `known`, nothing shows which positions it declared lost. Then the
        receipts are those of one side of it.
        """
        found: list[Decided] = []
        decided = {decision["position"]: decision for decision in log.decisions}
        for call in self._simulation.history.calls:
            for decision, request in zip(call.decisions, call.submission.requests, strict=False):
                if decision is not None and "receipt" in decision and self._draw.random() < share:
                    plain = {member: value for member, value in decision.items() if member != "receipt"}
                    if decided.get(decision["position"]) == plain:
                        found += [decision, request]
        public_keys = [key.public_key for key in self._simulation.owner.signing_keys()]
        if not found:
            return []  # a folder without receipts is refused as a source
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "receipts.json").write_text("\n".join(map(json.dumps, found)))
            read = read_receipts([Path(folder)], NOTARY, [VerifierKey(ORIGIN, key) for key in public_keys]).receipts
        # A later salvage than the receipt's key may not have known all positions of its tree: then they were decided anew.
        of_log = [
            receipt
            for receipt in read
            if all(receipt.size <= end for keys_before, end in self._salvaged if public_keys.index(receipt.key) < keys_before)
        ]
        kept = KeptIndex(SalvageReader(self._simulation.cluster).read(1_000).index).salvages
        for keys_before, _ in self._salvaged[len(kept) :]:
            if public_keys[keys_before] not in known:
                later = [receipt for receipt in of_log if public_keys.index(receipt.key) >= keys_before]
                of_log = later or of_log
        for receipt in of_log:
            self._hold(decided[receipt.position])
        return of_log

    def _hold(self, decision: Decided) -> None:
        self._held[decision["transaction_id"]] = decision

    # ---- the owner's steps ----

    async def _attempt(self, name: str, indexes: list[MemoryIndex], receipts: list[Receipt]) -> Choice | None:
        """Append all steps. Returns None if another record came between; raises `ChoiceRefused`."""
        simulation, cluster = self._simulation, self._simulation.cluster
        reader = SalvageReader(cluster).read(1_000)
        while (hole := reader.joiner.hole) is not None:
            batch = batch_key(hole.incarnation, hole.sequence)
            in_force = reader.joiner.log_state
            assert in_force is not None
            named = simulation.owner.log_id, hole.partition, batch, hole.payload_hash, in_force.key
            cluster.land(hole.partition, batch, sign_seal(*named, OWNER))
            simulation.count("salvages: sealed entries")
            reader.read(1_000)
        state = reader.joiner.log_state
        assert state is not None
        if self._key is None or self._draw.random() < 0.5:
            self._key = key_of(name)
            self.keys.append(signing_key(self._key))
        key = self._key
        public_key = signing_key(key).public_key
        self._writes_left = self._draw.choice(WRITES)
        if state.key != public_key:
            self._write(reader, endorse_key(signing_key(key), simulation.owner.log_id, state.key))
        position, begins = reader.index.position_next, random.Random(f"begin {name}")
        if begins.random() < 0.15:
            position += begins.choice([-1, 1])  # the owner's own index is wrong
            simulation.count("salvages: begins at another position")
        if not self._write(reader, SalvageBegin(public_key, reader.joiner.history.view, max(0, position))):
            return None
        await asyncio.sleep(self._draw.choice(BETWEEN_S))
        choice = choose(KeptIndex(reader.index), indexes, receipts)
        for at in range(0, len(choice.items), ITEMS):
            reader.read(1_000)
            some = choice.items[at : at + ITEMS]
            if not self._write(reader, SalvageItems(public_key, reader.joiner.history.view, choice.first + at, some)):
                return None
            await asyncio.sleep(self._draw.choice(BETWEEN_S))
        reader.read(1_000)
        if not self._write(reader, SalvageDone(public_key, reader.joiner.history.view, choice.end, choice.root)):
            return None
        simulation.owner.adopt(key)
        self._key = None
        return choice

    def _write(self, reader: SalvageReader, record: OwnerRecord) -> bool:
        """Append a record and read it back. Returns True if it took effect, False also if the command ended before."""
        if not self._writes_left:
            self._simulation.count("salvages interrupted")
            return False
        self._writes_left -= 1
        self._simulation.cluster.land(ORDERING, None, sign_record(record, self._simulation.owner.log_id, OWNER))
        reader.read(1_000)
        last = reader.joiner.history.last
        return last is not None and last.offset == len(self._simulation.cluster.by_partition[ORDERING]) - 1


def has_gaps(replayed: Replayed) -> bool:
    """Returns True if a salvage left positions without a decision: consumers of states are unknown then."""
    return replayed.size != len(replayed.decisions)
