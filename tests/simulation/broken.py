"""A broken worker: it has the notary's key, registers, and orders batches whose contents differ from their entries (R3).

Its entries count and decide nothing, unless a forger copies a content into the partition that its entry names. Their contents are requests
that nobody else asks for, so a worker that decides them decides otherwise.

It may also order a good batch under the incarnation of another worker (`steal`), or write a wrong root (`vote`).
"""

import asyncio
import random
from hashlib import sha256
from typing import TYPE_CHECKING

from ordering.log import ORDERING
from ordering.records import FORMAT_VERSION, Checkpoint, Entry, Fence, OrderingRecord, Register, Retire, View, batch_key
from ordering.signatures import sign_record
from payload import decode_submission, encode_batch
from tests.checkers.history import Submission
from tests.checkers.replay import replay
from tests.clients.party import spend, state
from tests.simulation.deployment import NOTARY, deployment

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

KINDS = ("other ids", "more ids", "no submissions", "another partition")
STOLEN = ("at once", "late content", "no content", "no such partition")
"""The kinds of batches under another worker's incarnation."""
BATCHES = 3
WRONG = "wrong"
"""The name of the worker that writes wrong roots."""
OLD = "old"
"""The name of a worker with older software."""
LATE_S = (0.1, 1.0, 6.0)


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

    async def steal(self) -> None:
        """Order a batch under the incarnation of another worker, which may use the same name for a batch of its own.

        The first entry of that name counts, with the content that it names; the other worker sends its batch again.
        """
        simulation, cluster, draw = self._simulation, self._simulation.cluster, self._draw
        replayed = replay(cluster.by_partition)
        live = [state for state in replayed.incarnations if not state.fenced]
        if not live or not cluster.takes(ORDERING):
            return
        victim, kind = draw.choice(live), draw.choice(STOLEN)
        sequence = victim.sequence_last + draw.randint(1, 3)
        asked = self._submission()
        simulation.history.submissions.append(asked)
        submission = decode_submission(asked.body, NOTARY)
        value, ids = encode_batch([submission.encoded]), tuple([request.transaction_id for request in submission.requests])
        partition = draw.randrange(replayed.partitions)
        ordered = replayed.partitions + draw.randint(0, 2) if kind == "no such partition" else partition
        key, view = batch_key(victim.incarnation, sequence), View(replayed.seen, replayed.history)
        if kind == "late content":
            cluster.later(draw.choice(LATE_S), lambda: cluster.land(partition, key, value))
        elif kind != "no content":
            cluster.land(partition, key, value)
        entry = self._order(Entry(victim.incarnation, sequence, view, simulation.wall_ms(), ordered, sha256(value).digest(), ids))
        simulation.stolen.add(entry)
        simulation.trace("broken", f"orders batch ({victim.incarnation}, {sequence}) of {victim.name}: {kind}")
        simulation.count(f"stolen names: {kind}")

    async def vote(self) -> None:
        """Register and write a wrong root, of a size that the log has or will have. The owner retires that worker a while later."""
        simulation, cluster, draw = self._simulation, self._simulation.cluster, self._draw
        replayed = replay(cluster.by_partition)
        if replayed.ended_by != "end" or not cluster.takes(ORDERING):
            return
        view, incarnation = View(replayed.seen, replayed.history), len(replayed.incarnations) + 1
        self._order(Register(draw.randbytes(16), view, FORMAT_VERSION, WRONG, "0"))
        size = max(1, replayed.size + draw.randint(-3, 5))
        self._order(Checkpoint(incarnation, view, size, draw.randbytes(32)))
        ahead = size > replayed.size
        simulation.trace("broken", f"writes a wrong root of {size} decisions, of {replayed.size}")
        simulation.count("wrong roots ahead" if ahead else "wrong roots behind")
        await asyncio.sleep(draw.choice(LATE_S))
        retire_strangers(simulation)

    def _submission(self) -> Submission:
        self._made += 1
        wanted = state(f"{self._draw.randrange(self._simulation.plan.states)}", 0)
        return deployment().party.submission(spend(wanted, content=f"broken {self._simulation.plan.seed} {self._made}"))

    def _batch(self, incarnation: int, sequence: int, view: View, kind: str, partitions: int) -> None:
        asked = self._submission()
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

    def _order(self, record: OrderingRecord) -> bytes:
        owner = self._simulation.owner
        value = sign_record(record, owner.log_id, owner.in_force())
        self._simulation.cluster.land(ORDERING, None, value)
        return value


def retire_strangers(simulation: "Simulation") -> None:
    """Have the owner retire the worker that writes wrong roots and the one with older software, as far as the log can be applied now."""
    replayed, owner = replay(simulation.cluster.by_partition), simulation.owner
    there = [state for state in replayed.incarnations if state.name in (WRONG, OLD) and not state.fenced]
    for stranger in there:
        owner.write(Retire(stranger.incarnation))
    agreements = [process.worker.index.agreement for process in simulation.processes() if process.worker is not None]
    if not there and replayed.ended_by == "end" and any(each.in_disagreement and WRONG in each.votes.roots for each in agreements):
        # A peer has fenced it. Only the retirement of an incarnation makes the votes of its name void, so it registers again first.
        nonce = random.Random(f"wrong again {simulation.plan.seed} {replayed.seen}").randbytes(16)
        record = Register(nonce, View(replayed.seen, replayed.history), FORMAT_VERSION, WRONG, "0")
        simulation.cluster.land(ORDERING, None, sign_record(record, owner.log_id, owner.in_force()))
