"""An honest notary for the tests of the checkers: an in-memory signed log, a real joiner and index, clients that record their answers."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from joiner import Joiner, JoinerLimits
from notary.index import Index, IndexSettings
from notary.receipts import Issuer
from notary.receipts.note import VerifierKey
from notary.wire import encode_decision, encode_decisions
from ordering.log import ORDERING, Record
from ordering.records import Entry, OrderingRecord, View, batch_key, encode
from payload import decode_submission, encode_batch
from tests.checkers.history import Call, History, Submission
from tests.checkers.indexes import Rows
from tests.checkers.signed_log import NOTARY, ORIGIN, SignedLog, private_key
from tests.clients.party import Party, spend, state

PARTITIONS = 3
SMALL = IndexSettings(cache_bytes=1 << 20, write_buffer_bytes=64 << 10)


class Log(SignedLog):
    """A signed log that also accepts records of the notary's own types."""

    def ordering(self, record: OrderingRecord, at: int | None = None) -> Record:
        """Append that record, with its own view and the signature that its kind needs."""
        value = encode(record)
        return self.put(ORDERING, None, self.signed(value[1], value[2:]), at)

    def own_view(self) -> View:
        """Returns the view of the complete log, for a new record."""
        return View(*self.view())


class Honest:
    """One worker that reads the log, and the calls of its clients."""

    def __init__(self, directory: Path, log: Log | None = None) -> None:
        self.log = log or Log(PARTITIONS)
        self.index = Index.open(directory, notary_name=NOTARY, log_identity="L", settings=SMALL)
        self.joiner = Joiner(self.index.joiner_state(), JoinerLimits(step_requests_max=3))
        self.issuer = Issuer(ORIGIN, self.log.key, self.index.tree.view)
        self.key = str(VerifierKey(ORIGIN, self.log.key.public_key().public_bytes_raw()))
        self.history = History()
        self.notes: list[str] = []
        self.party = Party(NOTARY)
        self._sequences: dict[int, int] = {}
        self._now_s = 0.0

    def read(self, until: int | None = None) -> None:
        """Read all records, or the ordering records before the offset `until`, in small steps."""
        while True:
            records = []
            read_next = self.joiner.read_next()
            for partition in self.log.by_partition:
                offset = read_next.get(partition, 0)
                end = len(self.log.by_partition[partition]) if partition != ORDERING or until is None else until
                records += self.log.by_partition[partition][offset:end][:7]
            ready = self.joiner.step(records, 0)
            if ready.advanced:
                self.index.apply(ready)
            elif not records:
                return

    def append(self, incarnation: int, submissions: list[Submission], partition: int = 0, *values: bytes | None) -> None:
        """Append a batch, its payload first.

        `values` replace its content; None means a fill. The entry names the first value that is not None, otherwise the real content.
        """
        decoded = [decode_submission(submission.body, NOTARY) for submission in submissions]
        ids = tuple([request.transaction_id for each in decoded for request in each.requests])
        sequence = self._sequences[incarnation] = self._sequences.get(incarnation, 0) + 1
        contents = values or (encode_batch([each.encoded for each in decoded]),)
        named = next((value for value in contents if value is not None), encode_batch([each.encoded for each in decoded]))
        for value in contents:
            content = self.log.fill_value(incarnation, sequence, named, partition) if value is None else value
            self.log.put(partition, batch_key(incarnation, sequence), content)
        last = self.log.by_partition[ORDERING][-1].append_time_ms
        self.log.ordering(Entry(incarnation, sequence, self.log.own_view(), last, partition, sha256(named).digest(), ids))

    def send(self, *requests: Mapping[str, Any], incarnation: int = 1, partition: int = 0) -> Submission:
        """Sign and send a submission whose connection breaks before an answer."""
        submission = self.party.submission(*requests)
        self.history.submissions.append(submission)
        self._now_s += 1
        self.history.calls.append(Call(submission, "url", self._now_s, self._now_s + 0.5, 0, ()))
        self.append(incarnation, [submission], partition)
        return submission

    def answer(self, submission: Submission) -> None:
        """Read the complete log, and answer a call with receipts, with the same bytes as a worker."""
        self.read()
        decided = [self.index.decision(bytes.fromhex(id_)) for id_ in submission.ids]
        returned: list[bytes | None] = []
        for decision in decided:
            assert decision is not None
            returned.append(encode_decision(decision, self.issuer.receipt_json(decision.position)))
        body = encode_decisions(returned)
        self._now_s += 1
        decisions = msgspec.json.decode(body)["decisions"]
        self.history.calls.append(Call(submission, "url", self._now_s, self._now_s + 0.5, 200, decisions, body))
        self.notes.append(self.issuer.checkpoint())

    def ask(self, *requests: Mapping[str, Any], **where: int) -> Submission:
        """Send a submission, then retry it and record the answer."""
        submission = self.send(*requests, **where)
        self.answer(submission)
        return submission

    def rows(self) -> Rows:
        """Returns the rows of the index as new lists."""
        return {family: list(rows) for family, rows in self.index.contents().items()}


def busy(directory: Path, spends: int = 0) -> Honest:
    """Returns a notary whose log has conflicts, windows, fills, garbage, fences, retries, and `spends` more committed transactions."""
    notary = Honest(directory)
    log = notary.log
    log.register("w1")
    log.register("w2")
    first = notary.ask(spend(state("x"), state("y")))
    notary.ask(
        spend(state("x"), state("fresh"), state("y"), content="double"), spend(state("z"), state("x", 1)), incarnation=2, partition=1
    )
    notary.ask(spend(state("u"), references=[state("x"), state("z")]), spend(references=[state("nobody's")]), partition=2)
    notary.ask(spend(state("v"), time_window={"from": None, "until": 5}), spend(state("v"), time_window={"from": 5, "until": None}))
    notary.answer(first)  # a retry, whose receipt has a later checkpoint
    log.put(ORDERING, None, b"\x01\x63 garbage")
    log.entry(1, 99, "forged", by=private_key("thief"))
    log.put(1, b"garbage", b"garbage")
    undecided = [notary.party.submission(spend(state(f"undecided {n}"))) for n in range(5)]
    for submission, value in zip(undecided, (None, b"", b"[", b"{}", b"null"), strict=True):
        notary.append(2, [submission], 2, value)
    log.register("w2", "second session")
    log.fence(1, 99)
    notary.ask(spend(state("u")), spend(state("u"), content="double"), incarnation=3, partition=1)
    log.checkpoint(3, 2)
    log.payload(4, 1, "orphan", partition=2)
    for n in range(0, spends, 6):
        requests = [spend(state(f"{m}", 0), state(f"{m}", 1), state(f"{m}", 2), state(f"{m}", 3)) for m in range(n, n + 6)]
        notary.ask(*requests, partition=n % PARTITIONS)
    notary.read()
    return notary
