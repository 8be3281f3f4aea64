"""Traffic, snapshots, archive, mirror, rotations and trims, one random step after the other."""

import random
from collections import Counter, deque
from typing import Any

from tests.model.log import OWNER, Content, Log, Missing, Record, Request
from tests.model.owner import base_of, trim
from tests.model.plan import Index, Receipt
from tests.model.reader import Reader
from tests.model.worker import Worker

STATES = 24


class Broken(AssertionError):
    """A property does not hold."""


class Traffic:
    """One history between disasters: the log, the workers of the new side, and what the operator keeps."""

    def __init__(self, seed: int, broken: frozenset[str] = frozenset()) -> None:
        self.draw = random.Random(seed)
        self.settles = seed % 3 == 2
        """True if the owner settles histories now and then."""
        self.broken = broken
        self.clock = [1]
        self.numbers = 0
        self.tally: Counter[str] = Counter()
        self.requests: dict[str, Request] = {}
        self.log = Log()
        self.wires: dict[tuple[int, int], deque[Any]] = {}
        self.made: dict[Record, int] = {}
        self.generation = 0
        self.key = "k0"
        self.keys_made = 0
        self.workers = [self._worker(name, Reader(broken)) for name in self.draw.choice([("a", "b"), ("a", "b", "c")])]
        self.stale_workers: list[Worker] = []  # of the old side
        self.receipts: list[Receipt] = []  # of this generation
        self.late: list[Index | Receipt] = []  # of generations before, not handed in yet
        self.held: list[Index | Receipt] = []
        self.lost_records: list[tuple[int, Record | Content]] = []
        self.snapshots: list[Reader] = []
        self.archived: list[int] | None = None
        self.mirrored = list(self.log.ends)
        self.mirror_pace = self.draw.choice([0.14, 0.14, 0.01])  # a slow mirror lacks much
        self.forked = False
        self.attempts: set[str] = set()  # keys of the last salvage, a prime for each further attempt
        self.lost_in: dict[int, int] = {}  # position -> the salvage that declared it lost
        self.given_up: set[str] = set()  # keys of salvages that an operator has cut off the log
        self.since = 0

    def _worker(self, name: str, disk: Reader) -> Worker:
        return Worker(self, name, self.log, disk, {self.key}, self.generation)

    def count(self, kind: str) -> None:
        self.tally[kind] += 1

    def request(self) -> Request:
        """Returns a new request, or one that was made before."""
        draw = self.draw
        if self.requests and draw.random() < 0.25:
            self.count("retries")
            return draw.choice(list(self.requests.values()))
        inputs = tuple(sorted(draw.sample(range(STATES), draw.choice([1, 1, 2]))))
        references = () if draw.random() < 0.7 else (draw.randrange(STATES),)
        self.numbers += 1
        request = Request(inputs, references, self.clock[0] + draw.choice([3, 30, 10**9, 10**9]), self.numbers)
        return self.requests.setdefault(request.id, request)

    def new_key(self) -> str:
        self.keys_made += 1
        return f"k{self.keys_made}"

    # ---- a step of everything

    def put(self, log: Log, partition: int, record: Record | Content) -> None:
        if isinstance(record, Record):
            log.order.append((self.clock[0], record))
        else:
            log.pay[partition].append(record)

    def deliver(self) -> None:
        place = self.draw.choice(list(self.wires))
        log, record = self.wires[place].popleft()
        if not self.wires[place]:
            del self.wires[place]
        self.put(log, place[1], record)
        if self.draw.random() < 0.05:
            self.put(log, place[1], record)

    def step(self) -> None:
        self.clock[0] += 1
        if self.wires and self.draw.random() < 0.7:
            self.deliver()
        worker = self.draw.choice(self.workers)
        worker.step()
        self.look_after()
        dice = self.draw.random()
        if dice < 0.02 and not worker.stopped:
            self.count("crashes")
            worker.crash()
        elif dice < 0.05 and worker.reader.size and not worker.stopped and self.reads_from(worker.reader.persisted()):
            self.count("snapshots")
            self.snapshots.append(worker.reader.persisted())
        elif dice < 0.08 and base_of(self.log, self.snapshots, self.broken).hole is None:
            self.count("archives")
            self.archived = list(self.log.ends)
        elif dice < 0.11:
            if trim(self.log, self.snapshots, self.archived, self.clock[0], self.broken):
                self.count("trims")
                kept = self.snapshots[-2:]
                self.snapshots = [one for one in self.snapshots if one in kept or self.reads_from(one)]
                self.check_trim()
        elif dice < 0.11 + self.mirror_pace:
            self.mirrored = [self.draw.randint(old, new) for old, new in zip(self.mirrored, self.log.ends, strict=True)]
        elif dice > 0.99:
            self.rotate()
        elif dice > 0.97 and self.settles:
            self.settle()

    def look_after(self) -> None:
        """A worker that needs a snapshot gets one; the operator hands out a key of the last salvage that came back and is in force.

        Records of that lost attempt may come back behind its key. Then workers suspect another history, and the owner settles.
        """
        if any(worker.reader.suspected and worker.reader.key != self.key for worker in self.workers):
            base = base_of(self.log, self.snapshots, self.broken)
            if base.suspected and base.key != self.key and base.key.rstrip("'") in self.attempts:
                self.settle()
        for worker in self.workers:
            if worker.reader.key.rstrip("'") in self.attempts:
                worker.keys.add(worker.reader.key)
            if worker.stopped == "a snapshot is needed" and self.snapshots:
                worker.disk, worker.stopped = self.snapshots[-1], ""
                worker.crash()

    def rotate(self) -> None:
        """An ordinary rotation: workers have the new key before it is in force."""
        reader = base_of(self.log, self.snapshots, self.broken)
        if reader.hole is None and not reader.sealed:
            self.count("rotations")
            key = self.new_key()
            for worker in self.workers:
                worker.keys.add(key)
            self.log.order.append((self.clock[0], Record("key", (key, reader.key), OWNER)))

    def settle(self) -> None:
        """The owner settles the present history."""
        reader = base_of(self.log, self.snapshots, self.broken)
        if reader.hole is None and not reader.sealed:
            self.count("settled")
            self.log.order.append((self.clock[0], Record("settle", (), f"{OWNER} for {reader.key}", reader.view)))

    def reads_from(self, snapshot: Reader) -> bool:
        return all(to >= start for to, start in zip(snapshot.read_to, self.log.start, strict=True))

    def check_trim(self) -> None:
        """P6: every snapshot that the operator keeps still gets to the end, to the same leaves."""
        complete = self.log.copy(self.log.ends)
        true = Reader(self.broken)
        true.read(complete)
        for snapshot in self.snapshots[-2:]:
            reader = snapshot.persisted()
            try:
                reader.read(self.log)
            except Missing as problem:
                raise Broken(f"P6 a snapshot cannot go on: {problem}") from problem
            if (reader.hashes, reader.view, reader.hole) != (true.hashes, true.view, true.hole):
                raise Broken("P6 a trimmed log is decided otherwise")
