"""The logs of the model's histories as real records, read by the real joiner and index (R11).

`check_real` translates the log of a finished history record by record. After each one the real reader must have as many records in effect
as the model's reader, and at the end the same decisions, consumed and reserved states. The independent replay of the complete log
(`tests.checkers`) must have them too.
"""

import json
import random
from functools import cache
from hashlib import sha256

from notary.decision import Conflict, Decision, Kind, Outcome
from ordering.log import ORDERING
from ordering.pieces import completed
from ordering.records import (
    Entry,
    Fence,
    OrderingRecord,
    Register,
    SalvageBegin,
    SalvageDone,
    SalvageItems,
    Settle,
    Trim,
    View,
    batch_key,
)
from ordering.salvage import Decided, Hashed, Item, Lost
from ordering.signatures import SigningKey, endorse_key, sign_fill, sign_record, sign_seal
from payload import decode_submission, encode_batch
from tests.checkers.indexes import violations
from tests.checkers.replay import RecordsByPartition, replay
from tests.joiner.history import KEY, NOTARY, OWNER, PARTY, T0, History, nonce, signing_key
from tests.joiner.salvaged import SalvageReader, item_of
from tests.model import log as model
from tests.model.random_history import RandomHistory
from tests.model.reader import NAME_THE_KEY, Reader, tag
from tests.model.traffic import Broken
from tests.model.tree import root

OUTCOMES = {
    model.COMMITTED: Outcome.COMMITTED,
    model.INPUT_CONFLICT: Outcome.INPUT_CONFLICT,
    model.REFERENCE_CONFLICT: Outcome.REFERENCE_CONFLICT,
    model.LATE: Outcome.OUTSIDE_TIME_WINDOW,
}
KINDS = {"input": Kind.INPUT, "reference": Kind.REFERENCE}


def key_of(name: str) -> SigningKey:
    """Returns the key that the model calls by that name."""
    return KEY if name == "k0" else OWNER if name == model.OWNER else signing_key(name)


def state_of(number: int) -> bytes:
    return number.to_bytes(32, "big") + bytes(4)


@cache
def submission(request: model.Request) -> tuple[bytes, bytes]:
    """Returns (transaction id, encoded submission) of a request."""
    asked = {
        "inputs": [f"{state_of(n)[:32].hex()}:0" for n in request.inputs],
        "references": [f"{state_of(n)[:32].hex()}:0" for n in request.references],
        "time_window": {"from": None, "until": T0 + request.until},
        "content_hash": sha256(b"%d" % request.salt).hexdigest(),
    }
    if not request.references:
        del asked["references"]
    decoded = decode_submission(json.dumps({"party": PARTY, "signature": "", "requests": [asked]}).encode(), NOTARY)
    return decoded.requests[0].transaction_id, decoded.encoded


class Real:
    """One history's log in real records, with a real reader and the model's beside it."""

    def __init__(self, random_history: RandomHistory, seed: int) -> None:
        self.random_history, self.draw = random_history, random.Random(seed)
        self.false_roots = True
        self.history = History(model.PARTITIONS)
        self.history.activate(2)
        self.ids = {id_: submission(request)[0] for id_, request in random_history.requests.items()}
        self.tags = {tag(id_): sha256(real).digest() for id_, real in self.ids.items()}
        contents = [content for pay in random_history.log.pay for content in pay if content.kind == "data"]
        self.values = {content.hash: encode_batch([submission(request)[1] for request in content.requests]) for content in contents}
        self.views: dict[bytes, bytes] = {}
        self.made: dict[model.Record, bytes] = {}
        self.reader = SalvageReader(self.history)
        self.model = Reader()

    def hash_of(self, hash_: bytes) -> bytes:
        return sha256(self.values.get(hash_, hash_)).digest()

    def put_contents(self) -> None:
        """Append all payload records."""
        log_id = self.history.log_id
        for partition, pay in enumerate(self.random_history.log.pay):
            for content in pay:
                key, named = batch_key(*content.batch), self.hash_of(content.hash)
                if content.kind == "data":
                    value = self.values[content.hash]
                elif content.kind == "fill":
                    value = sign_fill(log_id, partition, key, named, key_of(content.signer))
                else:
                    in_force = key_of(content.signer.removeprefix("owner for ")).public_key
                    value = sign_seal(log_id, partition, key, named, in_force, OWNER)
                self.history.put(partition, key, value)

    def view(self, view: model.View | None) -> View:
        assert view is not None
        return View(view.seen + 1, self.views.get(view.history) or sha256(view.history).digest())

    def item(self, item: model.Item) -> Item:
        one = item.decision
        if one is None:
            return Hashed(sha256(item.hash).digest()) if item.hash else Lost()
        conflicts = tuple([Conflict(state_of(state), KINDS[kind], self.tags[by]) for state, kind, by in one.conflicts])
        decision = Decision(one.position, self.ids[one.id], OUTCOMES[one.outcome], T0 + one.time, conflicts)
        return item_of(decision, [state_of(state) for state in item.inputs or ()])

    def record(self, time: int, record: model.Record) -> bytes:
        """Returns the value of a record at its place in the log."""
        body, signer = record.body, record.signer
        made: OrderingRecord
        if record.kind == "genesis":
            return self.history.genesis.value or b""  # a copy
        match record.kind:
            case "register":
                made = Register(nonce(str(body[0])), self.view(record.view), 2, body[1], "0")
            case "entry":
                incarnation, sequence, partition, hash_, ids = body
                named = tuple([self.ids[id_] for id_ in ids])
                made = Entry(incarnation, sequence, self.view(record.view), T0 + time, partition, self.hash_of(hash_), named)
            case "fence":
                made = Fence(0, self.view(record.view), *body)
            case "key":
                made = endorse_key(key_of(body[0]), self.history.log_id, key_of(body[1]).public_key)
            case _:
                public_key = key_of(signer.removeprefix("owner for ")).public_key
                signer = model.OWNER
                made = self.salvage(record, public_key)
        return sign_record(made, self.history.log_id, key_of(signer))

    def salvage(self, record: model.Record, public_key: bytes) -> OrderingRecord:
        view, body = self.view(record.view), record.body
        if record.kind == "settle":
            return Settle(view, public_key)
        if record.kind == "trim":
            is_ours = body[0] <= self.model.size and root(self.model.hashes[: body[0]]) == body[1]
            return Trim(public_key, view, body[0], self.reader.index.tree.root_at(body[0]) if is_ours else bytes(32))
        if record.kind == "begin":
            return SalvageBegin(public_key, view, body[0])
        if record.kind == "items":
            return SalvageItems(public_key, view, body[0], tuple([self.item(item) for item in body[1]]))
        hashes = self.model.hashes + [item.leaf(self.model.size + n) for n, item in enumerate(self.model.pending)]
        right = root(hashes) == body[1] and len(hashes) == body[0]
        return SalvageDone(
            public_key, view, body[0], self.reader.index.tree.root_with(self.reader.joiner.snapshot().items) if right else bytes(32)
        )

    def run(self) -> None:
        """Read the complete log, record by record, with a restart now and then. Raises `Broken`."""
        order = self.random_history.log.order
        contents = self.random_history.log.copy([1, *map(len, self.random_history.log.pay)])
        self.put_contents()
        self.model.read(contents)
        self.reader.read()
        self.note(0)
        for offset, (time, record) in enumerate(order[1:], 1):
            self.probe(time, record)
            dynamic = record.kind in ("trim", "done")
            value = self.record(time, record) if dynamic else self.made.setdefault(record, self.record(time, record))
            self.history.put(ORDERING, None, value, at=T0 + time)
            waits = self.model.hole is not None or not self.model.apply(time, record)
            if self.draw.random() < 0.2:
                self.reader = self.reader.restarted()
            self.reader.read(self.draw.choice([1, 3, 1000]))
            if waits != (self.reader.joiner.hole is not None):
                raise Broken(f"R a hole at record {offset}: {waits} in the model")
            self.note(offset)
        self.compare(self.reader)
        again = SalvageReader(self.history).read(1000)
        if again.all()[0:1] + again.all()[1:4] != self.reader.all()[0:1] + self.reader.all()[1:4]:
            raise Broken("R a reader that did not restart differs")

    def probe(self, time: int, record: model.Record) -> None:
        """Append records of the owner before the true one, each with one thing wrong: they must have no effect."""
        if record.kind not in NAME_THE_KEY or record.view is None or self.model.hole is not None or self.draw.random() < 0.5:
            return
        older = max(0, self.model.seen - 1)
        probes = [record._replace(signer=f"{model.OWNER} for {key}") for key in self.model.keys[-2:-1]]
        if record.kind == "trim":
            probes.append(record._replace(view=model.View(1, b"foreign")))
        elif record.kind != "settle":
            probes.append(record._replace(view=model.View(older, self.model.hist[older])))
        if record.kind == "items" and self.model.last_kind != "key":  # a begin without a new key
            probes.append(model.Record("begin", (self.model.size,), f"{model.OWNER} for {self.model.key}", self.model.view))
        elif record.kind == "done" and self.false_roots:
            probes.append(record._replace(body=(record.body[0], b"another root"), view=self.model.view))
        for one in probes:
            before = self.model.view
            self.history.put(ORDERING, None, self.record(time, one), at=T0 + time)
            assert self.model.apply(time, one)
            assert self.model.view == before
            self.reader.read()
            self.note(self.model.offset)

    def note(self, offset: int) -> None:
        view = self.reader.joiner.history.view
        if view.seen != self.model.seen + 1:
            raise Broken(f"R record {offset} takes effect in one of the two: {view.seen - 1} and {self.model.seen} in the model")
        self.views[self.model.hist[-1]] = view.history
        if self.reader.joiner.suspicions.open and not self.model.suspected:
            raise Broken(f"R after record {offset} the real reader alone is suspected")

    def compare(self, reader: SalvageReader) -> None:
        """Raises `Broken` unless both readers decided alike."""
        index, state = reader.index, reader.joiner.log_state
        assert state is not None
        if (state.sealed, state.key) != (bool(self.model.sealed), key_of(self.model.key).public_key):
            raise Broken("R the readers' log states differ")
        if index.position_next != self.model.size:
            raise Broken(f"R {index.position_next} positions, {self.model.size} in the model")
        for position, item in enumerate(self.model.leaves):
            expected, id_ = self.item(item), index.transaction_at(position)
            found = None if id_ is None else index.decision(id_)
            if (None if found is None else item_of(found).leaf) != (expected.leaf if isinstance(expected, Decided) else None):
                raise Broken(f"R position {position} is another")
        for number in range(24):
            consumed = index.consumed(state_of(number))
            by = self.model.spent.get(number)
            if (None if consumed is None else consumed.by_hash) != (None if by is None else self.tags[by]):
                raise Broken(f"R state {number} has another consumer")
        completed(index.leaves_in_pieces(0, index.position_next))
        self.replay(reader)

    def replay(self, reader: SalvageReader) -> None:
        """Raises `Broken` unless the independent replay of the log has the reader's history, log state and rows."""
        replayed, joiner = replay(self.history.by_partition), reader.joiner
        state = joiner.log_state
        assert state is not None
        items = 0 if replayed.salvage is None else len(replayed.salvage[1])
        mine = replayed.seen, replayed.history, replayed.log_time, replayed.keys[-1], replayed.sealed, replayed.trimmed, replayed.settled
        view = joiner.history.view
        theirs = view.seen, view.history, joiner.log_time_ms, state.key, state.sealed, state.trimmed, state.settled
        if mine != theirs or items != len(joiner.snapshot().items):
            raise Broken(f"R the independent replay differs: {mine} with {items} items, not {theirs}")
        if (replayed.ended_by == "hole") != (joiner.hole is not None):
            raise Broken(f"R the independent replay ended by {replayed.ended_by}")
        if wrong := violations(reader.index.contents(), replayed):
            raise Broken(f"R the index is not that of the independent replay: {wrong[0]}")


def salvaged_log(seed: int, *, false_roots: bool = True) -> RecordsByPartition:
    """Returns the log of the model's history of that seed, in real records.

    Readers without a tree believe the owner's roots: `false_roots` says whether it has records that they alone apply.
    """
    random_history = RandomHistory(seed)
    random_history.run_all()
    real = Real(random_history, seed)
    real.false_roots = false_roots
    real.run()
    return real.history.by_partition


def check_real(seed: int) -> RandomHistory:
    """Run the model's history of that seed, then its log in real records. Raises `Broken`."""
    random_history = RandomHistory(seed)
    random_history.run_all()
    Real(random_history, seed).run()
    return random_history
