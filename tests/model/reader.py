"""A reader of the log: R2, R3, R5, R7, R10 in small, and R11 as docs/salvage.md proposes it. A function of the log, at any speed.

A reader without a tree, as some commands are, believes the owner's positions and roots.

R11 in one paragraph. `begin` opens a salvage; from there on workers' records count nowhere. `items` give decisions by position. `done`
gives size and root, and all items take effect there at once, or not at all. Each takes effect only if its view is exactly the reader's
history at its place. So copies and rivals fail, and a plan for one history never lands in another. `begin` must follow a `key` record. Its
position decides nothing before `done`: a reader that skipped it would go on with a history of its own. A `seal`, signed by the owner for
the key in force, is the content of an entry whose content is lost: from that entry on workers' records count nowhere either.
"""

import copy
from collections import defaultdict

from tests.model.log import (
    COMMITTED,
    INPUT_CONFLICT,
    LATE,
    OWNER,
    PARTITIONS,
    REFERENCE_CONFLICT,
    Content,
    Decision,
    Item,
    Log,
    Missing,
    Record,
    Request,
    View,
)
from tests.model.tree import digest, root

WORKERS = ("register", "entry", "fence")
SALVAGE = ("begin", "items", "done")
NAME_THE_KEY = (*SALVAGE, "trim", "settle")


def tag(id_: str) -> str:
    """Returns the hash of a transaction's id, as conflicts show it."""
    return digest("tag", id_).hex()[:12]


class Reader:
    """One index."""

    def __init__(self, broken: frozenset[str] = frozenset(), *, has_tree: bool = True) -> None:
        self.broken, self.has_tree = broken, has_tree
        self.hist = [b""]  # by the number of records in effect
        self.offset = 0
        self.read_to = [0] * PARTITIONS
        self.joined_to = [0] * PARTITIONS
        self.buffer: dict[tuple[int, tuple[int, int]], list[tuple[int, Content]]] = defaultdict(list)
        self.incarnations: dict[int, tuple[str, int, bool]] = {}
        self.nonces: dict[int, int] = {}  # of registrations -> incarnation
        self.key, self.keys = "k0", ["k0"]
        self.lost_under: dict[int, int] = {}  # position -> the number, among `keys`, of the key under which a salvage declared it lost
        self.time = 0
        self.decided: dict[str, Decision] = {}
        self.spent: dict[int, str] = {}  # state -> tag of the transaction that consumed it, or that alone may consume it
        self.leaves: list[Item] = []
        self.hashes: list[bytes] = []
        self.sealed = ""  # "void": by the seal of an entry; "open": by `begin`
        self.first, self.pending = 0, list[Item]()  # of an open salvage: the position of its first item, and the items so far
        self.last_kind = ""
        self.suspected = False
        self.salvages: tuple[str, ...] = ()  # the key of each `done` in effect
        self.settled = 0  # `seen` of the last settle record, or `done`, in effect
        self.stopped = False  # the owner has settled another history
        self.hole: tuple[int, tuple[int, int], bytes] | None = None
        self.low_water = 0
        self.counted: list[int] = []  # the offsets of workers' records in effect, for the checks

    def persisted(self) -> "Reader":
        """Returns what a restart finds (R8): what was read and not applied is gone, and is read again."""
        other = copy.copy(self)
        for name in (
            "hist",
            "lost_under",
            "joined_to",
            "incarnations",
            "nonces",
            "keys",
            "decided",
            "spent",
            "leaves",
            "hashes",
            "pending",
            "counted",
        ):
            setattr(other, name, copy.copy(getattr(self, name)))
        # Behind the last content that took effect, not where reading stood: what lies between may be another after a cut.
        other.read_to = [min(pair) for pair in zip(self.read_to, self.joined_to, strict=True)]
        for (partition, batch), kept in self.buffer.items():
            if not self.is_past(*batch):
                other.read_to[partition] = min(other.read_to[partition], kept[0][0])
        other.buffer = defaultdict(list)
        other.hole, other.stopped = None, False
        return other

    @property
    def seen(self) -> int:
        return len(self.hist) - 1

    @property
    def view(self) -> View:
        return View(self.seen, self.hist[-1])

    @property
    def size(self) -> int:
        return len(self.leaves)

    def is_past(self, incarnation: int, sequence: int) -> bool:
        return incarnation in self.incarnations and (self.incarnations[incarnation][2] or sequence <= self.incarnations[incarnation][1])

    def read(self, log: Log, records: int = 1 << 30) -> None:
        """Read that many records of each topic-partition. Raises `Missing`."""
        for partition in range(PARTITIONS):
            for _ in range(min(records, len(log.pay[partition]) - self.read_to[partition])):
                offset = self.read_to[partition]
                self.read_to[partition] += 1
                if offset < log.start[partition]:
                    if "trimmed is filled" in self.broken:
                        continue
                    raise Missing(f"payload partition {partition} begins at {log.start[partition]}, needed from {offset}")
                content = log.pay[partition][offset]
                if not self.is_past(*content.batch):
                    self.buffer[partition, content.batch].append((offset, content))
        for _ in range(min(records, len(log.order) - self.offset)):
            if not self.apply(*log.order[self.offset]):
                break

    def at_end(self, log: Log) -> bool:
        return self.offset == len(log.order) and all(end == len(pay) for end, pay in zip(self.read_to, log.pay, strict=True))

    # ---- applying

    def apply(self, time: int, record: Record) -> bool:
        """Apply the record at the head; False leaves it there: a hole."""
        self.hole = None
        if self.seen == 0:
            self.take_effect(time, record)
        elif record.signer == self.signer_of(record):
            if record.kind in WORKERS:
                if not self.sealed and not self.apply_worker(time, record):
                    return False
            else:
                self.apply_owner(time, record)
                if self.stopped:
                    return False
        self.offset += 1
        return True

    def signer_of(self, record: Record) -> str:
        """Returns the signer that counts. Kinds that name the key in force never count if they are of a lost history."""
        if record.kind in WORKERS:
            return self.key
        if record.kind not in NAME_THE_KEY:
            return OWNER
        any_key = "a settle names no key" if record.kind == "settle" else "any key"
        return record.signer if any_key in self.broken and record.signer.startswith(OWNER) else f"{OWNER} for {self.key}"

    def take_effect(self, time: int, record: Record, mark: int = 0, content: Content | None = None) -> None:
        self.hist.append(digest(self.hist[-1], time, record, mark, content if mark == 2 else None))
        self.last_kind = record.kind

    def compare(self, view: View) -> bool | None:
        """Returns True if the view is exactly our history here, None if it was once, False if it never was."""
        if view == self.view:
            return True
        return None if view.seen < self.seen and self.hist[view.seen] == view.history else False

    def apply_worker(self, time: int, record: Record) -> bool:
        body = record.body
        if record.view is not None and self.compare(record.view) is False:
            self.suspected = True  # also by a record that does not count: its writer saw another history
        if record.kind == "entry":
            incarnation, sequence, partition, hash_, _ids = body
            if incarnation not in self.incarnations or self.is_past(incarnation, sequence):
                return True
            found = self.content(partition, (incarnation, sequence), hash_)
            if found is None:
                self.hole = partition, (incarnation, sequence), hash_
                return False
            self.apply_entry(time, record, *found)
        elif record.kind == "register" and body[0] not in self.nonces:
            for incarnation, (name, last, over) in list(self.incarnations.items()):
                if name == body[1] and not over:
                    self.incarnations[incarnation] = name, last, True
            self.nonces[body[0]] = len(self.incarnations) + 1
            self.incarnations[len(self.incarnations) + 1] = body[1], 0, False
            self.count(time, record)
        elif record.kind == "fence" and body[0] in self.incarnations and self.incarnations[body[0]][1:] == (body[1], False):
            self.incarnations[body[0]] = self.incarnations[body[0]][0], body[1], True
            self.count(time, record)
        return True

    def count(self, time: int, record: Record, mark: int = 0, content: Content | None = None) -> None:
        self.counted.append(self.offset)
        self.take_effect(time, record, mark, content)

    def content(self, partition: int, batch: tuple[int, int], hash_: bytes) -> tuple[int, Content] | None:
        """Returns the first good content with its offset (R3): the data, a fill by the key in force, a seal that names this key."""
        signers = {"fill": self.key, "seal": f"{OWNER} for {self.key}"}
        for offset, content in self.buffer.get((partition, batch), ()):
            is_old_seal = content.kind == "seal" and "a seal names no key" in self.broken
            if content.hash == hash_ and (content.kind == "data" or is_old_seal or content.signer == signers[content.kind]):
                return offset, content
        return None

    def apply_entry(self, time: int, record: Record, offset: int, content: Content) -> None:
        incarnation, sequence, partition, *_ = record.body
        name, _, _ = self.incarnations[incarnation]
        self.joined_to[partition] = max(self.joined_to[partition], offset + 1)
        self.incarnations[incarnation] = name, sequence, False
        if content.kind == "seal":
            self.sealed, self.pending = "void", []
            self.take_effect(time, record, 2, content)
            return
        self.time = max(self.time, time)
        if content.kind == "data":
            for request in content.requests:
                self.decide(request)
        for key in [key for key in self.buffer if self.is_past(*key[1])]:
            del self.buffer[key]
        self.count(time, record, int(content.kind == "data"), content)

    def decide(self, request: Request) -> None:
        id_ = request.id
        if id_ in self.decided:
            return
        me = tag(id_)
        inputs = tuple((state, "input", self.spent[state]) for state in sorted(request.inputs) if self.spent.get(state, me) != me)
        references = tuple(
            (state, "reference", self.spent[state]) for state in sorted(request.references) if self.spent.get(state, me) != me
        )
        outcome = INPUT_CONFLICT if inputs else REFERENCE_CONFLICT if references else LATE if self.time >= request.until else COMMITTED
        decision = Decision(self.size, id_, self.time, outcome, inputs or references)
        self.put(Item(decision, request.inputs if outcome == COMMITTED else ()))

    def put(self, item: Item) -> None:
        """Append one leaf, with what follows from it."""
        decision = item.decision
        if decision is not None:
            self.decided[decision.id] = decision
            for state in item.inputs or ():
                self.spent[state] = tag(decision.id)
            if "conflicts reserve nothing" not in self.broken:
                for state, _, consumer in decision.conflicts:
                    self.spent.setdefault(state, consumer)
            if "log time goes back" not in self.broken:
                self.time = max(self.time, decision.time)
        self.hashes.append(item.leaf(self.size))
        self.leaves.append(item)

    def apply_owner(self, time: int, record: Record) -> None:
        kind, body = record.kind, record.body
        if kind == "key" and body[0] not in self.keys and body[1] == self.key:
            self.key = body[0]
            self.keys.append(body[0])
            if self.sealed == "open" and "a key closes nothing" not in self.broken:
                self.sealed, self.pending = "void", []
            self.take_effect(time, record)
        elif kind == "settle":
            self.apply_settle(time, record)
        elif kind in NAME_THE_KEY:
            exact = record.view is not None and self.compare(record.view)
            if exact is False:
                self.suspected = True
            if kind == "trim":
                self.apply_trim(time, record, is_own=exact is not False)
            elif exact or (exact is None and "any view" in self.broken):
                self.apply_salvage(time, record)

    def apply_settle(self, time: int, record: Record) -> None:
        assert record.view is not None
        if (self.sealed and "settles count in a salvage" not in self.broken) or record.view.seen <= self.settled:
            return
        if self.compare(record.view) is False:
            self.stopped = True
            return
        self.settled = record.view.seen
        self.suspected = self.suspected and record.view != self.view
        self.take_effect(time, record)

    def apply_trim(self, time: int, record: Record, *, is_own: bool) -> None:
        position, _ = record.body
        if is_own and position > self.low_water:
            self.low_water = position
            self.take_effect(time, record)

    def follows_key(self) -> bool:
        again = "a key for all attempts" in self.broken and self.sealed == "open"
        return self.last_kind == "key" or again or "no key" in self.broken

    def apply_salvage(self, time: int, record: Record) -> None:
        kind, body = record.kind, record.body
        if kind == "begin" and self.follows_key():
            self.sealed, self.first, self.pending = "open", body[0], []
            self.take_effect(time, record)
        elif kind == "items" and self.sealed == "open" and body[0] == self.first + len(self.pending):
            if "items count at once" in self.broken:
                for item in body[1]:
                    self.put(item)
                self.first = self.size
            else:
                self.pending.extend(body[1])
            self.take_effect(time, record)
        elif kind == "done" and self.sealed == "open" and body[0] == self.first + len(self.pending):
            hashes = self.hashes + [item.leaf(self.size + n) for n, item in enumerate(self.pending)]
            if self.has_tree and (self.size != self.first or root(hashes) != body[1]):
                return
            for item in self.pending:
                if item.is_lost:
                    self.lost_under[self.size] = len(self.keys) - 1
                self.put(item)
            self.sealed, self.pending = "", []
            self.salvages = (*self.salvages, self.key)
            if "done leaves suspicions" not in self.broken:
                self.suspected, self.settled = False, self.seen
            self.take_effect(time, record)
