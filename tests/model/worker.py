"""One worker process: it reads, registers, sends batches and fills, and answers what it has persisted."""

from collections import deque
from typing import TYPE_CHECKING

from tests.model.log import OWNER, PARTITIONS, Content, Log, Missing, Record
from tests.model.plan import Receipt
from tests.model.reader import Reader
from tests.model.tree import digest, path, root

if TYPE_CHECKING:
    from tests.model.traffic import Traffic


class Worker:
    """One worker process with its index: `reader` in memory, `disk` as it was persisted last."""

    def __init__(self, model: "Traffic", name: str, log: Log, disk: Reader, keys: set[str], generation: int) -> None:
        self.model, self.name, self.log, self.disk, self.keys, self.generation = model, name, log, disk, keys, generation
        self.reader = disk.persisted()
        self.nonce = 0
        self.sequence = 0
        self.stopped = ""
        self.waited = 0

    @property
    def incarnation(self) -> int:
        number = self.reader.nonces.get(self.nonce, 0)
        return number if number and not self.reader.incarnations[number][2] else 0

    @property
    def ready(self) -> bool:
        return not (self.stopped or self.reader.suspected or self.reader.sealed) and self.incarnation > 0

    def crash(self) -> None:
        self.reader, self.nonce = self.disk.persisted(), 0

    def step(self) -> None:
        draw, model = self.model.draw, self.model
        if self.stopped:
            return
        try:
            self.reader.read(self.log, draw.choice([1, 2, 5]))
        except Missing:
            self.stopped = "a snapshot is needed"
            return
        if self.reader.stopped:
            self.stopped = "the owner has settled another history"
            return
        if draw.random() < 0.5:
            self.disk = self.reader.persisted()
        self.waited = self.waited + 1 if self.reader.hole else 0
        key, view = self.reader.key, self.reader.view
        if key not in self.keys:
            return
        if self.reader.hole is not None:
            partition, batch, hash_ = self.reader.hole
            if self.waited > 6 and not self._passed():
                self.waited = 0
                self._send(partition, Content(batch, "fill", hash_, (), key))
        elif self.reader.suspected or self.reader.sealed:
            return
        elif not self.incarnation:
            if self.reader.at_end(self.log) and draw.random() < 0.5:
                model.numbers += 1
                self.nonce, self.sequence = model.numbers, 0
                self._send(-1, Record("register", (self.nonce, self.name), key, view))
        elif draw.random() < 0.5 and len(model.wires.get((id(self), -1), ())) < 4:
            requests = tuple(model.request() for _ in range(draw.choice([1, 1, 2])))
            self.sequence += 1
            partition, hash_ = draw.randrange(PARTITIONS), digest(requests, self.incarnation, self.sequence)
            body = self.incarnation, self.sequence, partition, hash_, tuple(request.id for request in requests)
            if draw.random() < 0.95:
                self._send(partition, Content((self.incarnation, self.sequence), "data", hash_, requests))
            if draw.random() < 0.95:
                self._send(-1, Record("entry", body, key, view))
        elif draw.random() < 0.1:
            number = draw.choice(list(self.reader.incarnations))
            self._send(-1, Record("fence", (number, self.reader.incarnations[number][1]), key, view))
        if self.ready and self.disk.decided and draw.random() < 0.3:
            self.answer()

    def _passed(self) -> bool:
        """Returns True if a well-signed record shows that its writer had passed the hole at the head (R10)."""
        key, keys = self.reader.key, set(self.reader.keys)
        for _, record in self.log.order[self.reader.offset :]:
            if record.kind == "key" and record.signer == OWNER and record.body[0] not in keys and record.body[1] == key:
                key = record.body[0]
                keys.add(key)
            elif record.signer == key and record.view is not None and record.view.seen > self.reader.seen:
                return True
        return False

    def _send(self, partition: int, record: Record | Content) -> None:
        self.model.wires.setdefault((id(self), partition), deque()).append((self.log, record))
        if isinstance(record, Record):
            self.model.made[record] = self.generation

    def answer(self) -> None:
        """Answer one decision that was persisted, with a receipt (R8)."""
        disk, model = self.disk, self.model
        model.tally["answers"] += 1
        id_ = model.draw.choice(list(disk.decided))
        decision = disk.decided[id_]
        proof = tuple(path(decision.position, disk.hashes))
        whose = model.receipts if self.generation == model.generation else model.late
        name = f"receipt {model.tally['answers']} of {self.name}"
        whose.append(Receipt(name, decision, model.requests[id_], disk.size, root(disk.hashes), proof, self.reader.key, self.generation))
