"""Logs of signed requests that are cut where it hurts, and where each of them ended when."""

from collections.abc import Callable
from typing import Any

from ordering.log import ORDERING, Record
from ordering.records import Checkpoint, Entry, batch_key
from payload import decode_submission, encode_batch
from tests.asking.party import Party, spend, state
from tests.checkers.honest import PARTITIONS
from tests.checkers.replay import Replayed, replay
from tests.joiner.history import NOTARY, History
from tests.spark.archived import Ends, ends_of

PARTY = Party(NOTARY)
Append = Callable[[], Record]


class Writer:
    """Writes a log of signed requests."""

    def __init__(self) -> None:
        self.log = History(PARTITIONS)
        self.sequences: dict[int, int] = {}

    @property
    def replayed(self) -> Replayed:
        return replay(self.log.streams, NOTARY, PARTITIONS)

    @property
    def ends(self) -> Ends:
        return ends_of(self.log.streams)

    def send(self, incarnation: int, partition: int, *requests: dict[str, Any], party: Party = PARTY) -> tuple[Append, Append, Append]:
        """What appends the entry, the payload and a fill of the life's next batch."""
        sent = decode_submission(party.submission(*requests).body, NOTARY)
        sequence = self.sequences[incarnation] = self.sequences.get(incarnation, 0) + 1
        ids = tuple([each.transaction_id for each in sent.requests])
        key, value = batch_key(incarnation, sequence), encode_batch([sent.encoded])
        at = self.log.streams[ORDERING][-1].append_time_ms
        return (
            lambda: self.log.ordering(Entry(incarnation, sequence, at, partition, ids)),
            lambda: self.log.put(partition, key, value),
            lambda: self.log.put(partition, key, None),
        )

    def batch(self, incarnation: int, partition: int, *requests: dict[str, Any], party: Party = PARTY) -> Record:
        """Append both; the entry."""
        entry, payload, _ = self.send(incarnation, partition, *requests, party=party)
        payload()
        return entry()

    def checkpoint(self, incarnation: int, size: int) -> Record:
        return self.log.ordering(Checkpoint(incarnation, size, self.replayed.root(size)))


def three_nights() -> tuple[Writer, list[Ends], list[list[tuple[str, int | None, int]]]]:
    """Whatever a cut may part, and what is wrong with each part: (type, position, offset)."""
    writer = Writer()
    log, ends = writer.log, []
    for number in (1, 2, 3):
        log.register(f"w{number}", f"nonce {number}")
    writer.batch(1, 0, spend(state("x"), state("y")))
    writer.batch(2, 1, spend(state("z")), spend(state("z"), content="too late"))
    writer.checkpoint(1, 3)
    writer.batch(1, 2, spend(state("v"), time_window={"from": None, "until": 5}))
    entry_2, payload_2, _ = writer.send(2, 1, spend(state("its payload came the night before")))
    payload_2()
    payload_2()
    entry_5, payload_5, _ = writer.send(5, 0, spend(state("its life begins the night after")))
    payload_5()
    entry_3, payload_3, fill_3 = writer.send(3, 0, spend(state("filled")))
    entry_3()
    entry_1, payload_1, _ = writer.send(1, 1, spend(state("on its way")))
    entry_1()
    passing = writer.batch(2, 2, spend(references=[state("x")]))  # behind a hole when the first night ends, and so is what follows
    log.register("w3", "nonce 4")
    ends.append(writer.ends)

    fill_3()
    payload_3()
    payload_1()
    writer.batch(1, 0, spend(state("x"), state("y")))  # decided already
    writer.batch(1, 1, spend(state("y"), state("free")), spend(state("free")), spend(state("free"), content="too late"))
    log.register("w9", "nonce 1")  # no life begins, as that nonce is known
    entry_2()  # passed: the next one has counted
    writer.checkpoint(2, 2)
    log.fence(1, 2)  # not the last one
    log.fence(2, 3)
    writer.batch(2, 1, spend(state("of a life that has ended")))
    log.register("w5", "nonce 5")
    entry_5()
    late, payload_late, _ = writer.send(
        1, 2, spend(state("z"), content="the night after"), spend(references=[state("free")], content="as well")
    )
    payload_late()
    ends.append(writer.ends)

    late()
    writer.batch(3, 1, spend(state("of one who has a successor")))
    log.fence(1, 6)
    writer.batch(1, 1, spend(state("fenced")))
    writer.batch(5, 2, spend(state("new")), spend(state("free"), state("new"), content="of two nights"))
    writer.checkpoint(4, 5)
    decided = len(writer.replayed.decisions)
    forged = writer.batch(4, 0, spend(state("forged")), party=Party(NOTARY, PARTY.name))
    wrong = log.ordering(Checkpoint(4, 3, bytes(32)))
    ends.append(writer.ends)
    passed = [("sequence-gap", None, passing.offset)]
    return writer, ends, [[], passed, [("bad-signature", decided, forged.offset), ("root-mismatch", 3, wrong.offset)]]


Move = tuple[int, int, int]


def written(moves: list[Move]) -> tuple[Writer, list[Ends]]:
    """A log, and where it ended before and after each move."""
    writer = Writer()
    log = writer.log
    later: list[Append] = []
    log.register("w0", "nonce 0")
    ends = [writer.ends]
    for what, one, other in moves:
        lives = len(writer.replayed.lives)
        incarnation, partition = 1 + one % lives, other % PARTITIONS
        # Few states, and few contents: conflicts, and the same request again.
        inputs, references = [state(f"{one % 5}"), state(f"{other % 5}", 1)], [state(f"{other % 4}")]
        entry, payload, fill = writer.send(
            incarnation, partition, spend(*inputs, content=f"{other % 2}"), spend(references=references, content=f"{one % 3}")
        )
        if what < 4:
            entry()
            payload()
        elif what == 4:
            payload()
            later.append(entry)  # out of its sequence, it will be passed by the next one
        elif what == 5:
            entry()
            later.append(payload)
        elif what == 6:
            fill()
            entry()
            payload()
        elif what == 7:
            log.register(f"w{one}", f"nonce {other}")
        elif what == 8:
            log.fence(incarnation, writer.replayed.lives[incarnation - 1].sequence_last + other // 2)
        elif what == 9:
            writer.checkpoint(incarnation, other % (len(writer.replayed.decisions) + 1))
        elif what == 10:
            log.put(partition, batch_key(lives + 1, 1 + one), None)  # a fill that comes before its life
        while later and (what == 11 or len(later) > one):
            later.pop(0)()
        ends.append(writer.ends)
    for append in later:
        append()
    return writer, [*ends, writer.ends]
