"""A broken worker: it has the notary's key, registers, and orders batches whose contents differ from their entries (R3).

Its entries count and decide nothing, unless a forger copies a content into the partition that its entry names. Their contents are requests
that nobody else asks for, so a worker that decides them decides otherwise.
"""

import random
from hashlib import sha256
from typing import TYPE_CHECKING

from ordering.log import ORDERING
from ordering.records import FORMAT_VERSION, Entry, Fence, OrderingRecord, Register, View, batch_key
from ordering.signatures import sign_record
from payload import decode_submission, encode_batch
from tests.checkers.replay import replay
from tests.clients.party import spend, state
from tests.simulation.deployment import NOTARY, deployment

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

KINDS = ("other ids", "more ids", "no submissions", "another partition")
BATCHES = 3


class Broken:
    """The broken worker of one simulation."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._draw = random.Random(f"broken {simulation.plan.seed}")
        self._made = 0

    async def strike(self) -> None:
        """Register, order some batches, and fence the incarnation, all at once. Nothing where the log has no place for it now."""
        simulation = self._simulation
        replayed = replay(simulation.cluster.by_partition)
        if replayed.ended_by != "end" or not all(simulation.cluster.takes(partition) for partition in simulation.cluster.by_partition):
            return
        view, incarnation = View(replayed.seen, replayed.history), len(replayed.incarnations) + 1
        self._order(Register(self._draw.randbytes(16), view, FORMAT_VERSION, "broken", "0"))
        for sequence in range(1, BATCHES + 1):
            kind = self._draw.choice(KINDS)
            self._batch(incarnation, sequence, view, kind, replayed.partitions)
            simulation.trace("broken", f"orders a batch: {kind}")
            simulation.count(f"contents of a broken worker: {kind}")
        self._order(Fence(incarnation, view, incarnation, BATCHES))

    def _batch(self, incarnation: int, sequence: int, view: View, kind: str, partitions: int) -> None:
        self._made += 1
        wanted = state(f"{self._draw.randrange(self._simulation.plan.states)}", 0)
        asked = deployment().party.submission(spend(wanted, content=f"broken {self._simulation.plan.seed} {self._made}"))
        submission = decode_submission(asked.body, NOTARY)
        value, ids = encode_batch([submission.encoded]), tuple([request.transaction_id for request in submission.requests])
        ordered = partition = self._draw.randrange(partitions)
        if kind == "another partition" and partitions > 1:
            partition = self._draw.choice([each for each in range(partitions) if each != ordered])
            self._simulation.history.submissions.append(asked)  # a copy in the right partition has it decided
        elif kind == "more ids":
            ids = (*ids, self._draw.randbytes(32))
        elif kind == "no submissions":
            value = b"[]"
        else:
            ids = (self._draw.randbytes(32),)
        self._simulation.cluster.land(partition, batch_key(incarnation, sequence), value)
        self._order(Entry(incarnation, sequence, view, self._simulation.wall_ms(), ordered, sha256(value).digest(), ids))

    def _order(self, record: OrderingRecord) -> None:
        owner = self._simulation.owner
        self._simulation.cluster.land(ORDERING, None, sign_record(record, owner.log_id, owner.in_force()))
