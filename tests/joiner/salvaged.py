"""A reader with its index, and the owner's steps of a salvage, for tests of R11 on an in-memory log."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from joiner import Joiner, JoinerLimits
from notary.decision import ROW_HEAD_BYTES, Decision, leaf, to_row
from notary.index import Index
from ordering.ids import StateRef
from ordering.log import Record
from ordering.records import OrderingRecord, SalvageBegin, SalvageDone, SalvageItems
from ordering.salvage import Decided, Item
from tests.joiner.history import NOTARY, History, signing_key
from tests.simulation.disk import SimulatedDisk, SimulatedStore


class Log(Protocol):
    """The records of a log, by topic-partition."""

    @property
    def by_partition(self) -> dict[int, list[Record]]:
        """Returns the records of each topic-partition."""
        ...


class SalvageReader:
    """A joiner and its index, on a disk that outlives them."""

    def __init__(self, history: Log, disk: SimulatedDisk | None = None) -> None:
        self.history, self.disk = history, disk or SimulatedDisk("salvage")
        store = SimulatedStore(self.disk, lambda step: None)
        self.index = Index.over(store, Path("index"), notary_name=NOTARY, log_identity="L", worker_name="reader")
        state = self.index.joiner_state()
        self.joiner = Joiner(state, JoinerLimits(step_requests_max=3), "reader", tree=self.index.tree)
        self.anomalies: list[str] = []
        self.batches: list[tuple[int, int]] = []

    def read(self, at_once: int = 7) -> "SalvageReader":
        """Read the log to its end, `at_once` records of each topic-partition a step; returns itself."""
        while self.step(at_once):
            pass
        return self

    def step(self, at_once: int) -> bool:
        """Do one step. Returns False when there is nothing left to do."""
        at = self.joiner.read_next()
        records = [
            record
            for partition, of_partition in self.history.by_partition.items()
            for record in of_partition[at.get(partition, 0) :][:at_once]
        ]
        ready = self.joiner.step(records, 0)
        assert ready.stop is None, ready.stop
        self.anomalies += [anomaly.kind for anomaly in ready.anomalies]
        self.batches += [(batch.incarnation, batch.sequence) for batch in ready.batches]
        if ready.advanced:
            self.index.apply(ready)
        if ready.evidence is not None:
            self.joiner.examined(ready.evidence)
        return bool(records) or ready.more or ready.evidence is not None

    def restarted(self) -> "SalvageReader":
        """Returns the reader after a restart."""
        return SalvageReader(self.history, self.disk)

    def all(self) -> tuple[object, ...]:
        """Returns all that readers of one log have in common."""
        joiner = self.joiner
        return self.index.contents(), joiner.history.view, joiner.log_state, joiner.log_time_ms, joiner.suspicions.open

    def item(self, position: int) -> Decided:
        """Returns the item of a decided position, as a survivor states it."""
        id_ = self.index.transaction_at(position)
        assert id_ is not None
        decision = self.index.decision(id_)
        assert decision is not None
        states: Sequence[StateRef] = [state for state, row in self.index.contents()["states"] if row[:32] == id_]
        return item_of(decision, states)


def item_of(decision: Decision, inputs: Sequence[StateRef] = ()) -> Decided:
    """Returns the item of a decision."""
    return Decided(leaf(decision), to_row(decision)[ROW_HEAD_BYTES:], tuple(sorted(inputs)))


class Owner:
    """The owner's side of a salvage. Its records have the view of a reader that has read the complete log."""

    def __init__(self, history: History, name: str = "salvage") -> None:
        self.history, self.name = history, name

    def append(self, record: OrderingRecord) -> Record:
        """Append a record that the owner signed."""
        return self.history.owner(record)

    def reader(self) -> SalvageReader:
        """Returns a reader at the log's end."""
        return SalvageReader(self.history).read()

    def key(self, name: str = "") -> Record:
        """Append a new key, which nobody has."""
        return self.history.rotate(signing_key(name or self.name))

    def begin(self, **changed: object) -> Record:
        """Append the begin of a salvage, with other members than the right ones if wanted."""
        reader = self.reader()
        record = SalvageBegin(self.history.key.public_key, reader.joiner.history.view, reader.index.position_next)
        return self.append(msgspec.structs.replace(record, **changed))

    def items(self, *items: Item, **changed: object) -> Record:
        """Append items behind those that are kept already."""
        reader = self.reader()
        first = reader.index.position_next + len(reader.joiner.snapshot().items)
        record = SalvageItems(self.history.key.public_key, reader.joiner.history.view, first, items)
        return self.append(msgspec.structs.replace(record, **changed))

    def done(self, *items: Item, **changed: object) -> Record:
        """Append the end of a salvage of these items."""
        reader = self.reader()
        tree = reader.index.tree
        size = tree.size + len(items)
        record = SalvageDone(self.history.key.public_key, reader.joiner.history.view, size, tree.root_with(items))
        return self.append(msgspec.structs.replace(record, **changed))

    def salvage(self, *items: Item) -> None:
        """Append all records of a salvage of these items."""
        self.key()
        self.begin()
        if items:
            self.items(*items)
        self.done(*items)


def named_again() -> History:
    """Returns a log with a sealed entry, a salvage, and a later entry with the same name whose payload is before the seal."""
    history = History(partitions=1)
    history.activate(2)
    history.register(version=2)
    history.payload(1, 1, "second")
    history.entry(1, 1, "first")
    history.seal(1, 1)
    Owner(history).salvage()
    history.entry(1, 1, "second")
    return history
