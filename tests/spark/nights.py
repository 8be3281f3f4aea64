"""Logs of signed requests that are cut at difficult places, and the offsets of the cuts."""

from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from spark_join.kept_state import write_state
from spark_join.verify import Verified
from tests.checkers.records import View
from tests.checkers.replay import ORDERING
from tests.checkers.signed_log import NOTARY
from tests.clients.party import Party, spend, state
from tests.spark.archived import Ends
from tests.spark.writing import PARTITIONS, PARTY, Append, Writer


def three_nights() -> tuple[Writer, list[Ends], list[list[tuple[str, int | None, int]]]]:
    """Returns a log with everything that a cut may separate, its cuts, and the violations of each part: (type, position, offset)."""
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
    entry_5, payload_5, _ = writer.send(5, 0, spend(state("its incarnation begins the night after")))
    payload_5()
    entry_3, payload_3, fill_3 = writer.send(3, 0, spend(state("filled")))
    log.rotate("the key directly before the hole")
    entry_3()
    entry_1, payload_1, _ = writer.send(1, 1, spend(state("on its way")))
    entry_1()
    passing = writer.batch(2, 2, spend(references=[state("x")]))  # behind a hole when the first night ends, like the records after it
    log.register("w3", "nonce 4")
    ends.append(writer.ends)

    fill_3()
    payload_3()
    payload_1()
    writer.batch(1, 0, spend(state("x"), state("y")))  # decided already
    writer.batch(1, 1, spend(state("y"), state("free")), spend(state("free")), spend(state("free"), content="too late"))
    log.register("w9", "nonce 1")  # no incarnation begins, because the nonce is known
    entry_2()  # skipped: a later sequence has counted
    writer.checkpoint(2, 2)
    log.fence(1, 2)  # not the last one
    log.fence(2, 3)
    writer.batch(2, 1, spend(state("of an incarnation that is over")))
    log.register("w5", "nonce 5")
    log.rotate("the second key")
    log.partitions(PARTITIONS + 1)
    log.by_partition[PARTITIONS] = []
    entry_5()
    log.settle()
    late, payload_late, _ = writer.send(
        1, 2, spend(state("z"), content="the night after"), spend(references=[state("free")], content="as well")
    )
    payload_late()
    ends.append(writer.ends)

    late()
    log.again(log.by_partition[ORDERING][-2])  # the settle record
    writer.batch(3, 1, spend(state("of one who has a successor")))
    log.fence(1, 6)
    writer.batch(1, 1, spend(state("fenced")))
    writer.batch(5, 2, spend(state("new")), spend(state("free"), state("new"), content="of two nights"))
    writer.batch(5, PARTITIONS, spend(state("in a new partition")))
    writer.checkpoint(4, 5)
    decided = len(writer.replayed.decisions)
    forged = writer.batch(4, 0, spend(state("forged")), party=Party(NOTARY, PARTY.name))
    wrong = writer.checkpoint(4, 3, bytes(32))
    foreign = log.checkpoint(4, 3, writer.replayed.root(3), view=View(writer.replayed.seen + 1, bytes(32)))
    ends.append(writer.ends)
    planted = [("bad-signature", decided, forged.offset), ("foreign-view", None, foreign.offset), ("root-mismatch", 3, wrong.offset)]
    return writer, ends, [[], [("sequence-gap", None, passing.offset)], planted]


Move = tuple[int, int, int]


def written(moves: list[Move]) -> tuple[Writer, list[Ends]]:
    """Returns a log, and its log end offsets before and after each move."""
    writer = Writer()
    log = writer.log
    later: list[Append] = []
    log.register("w0", "nonce 0")
    ends = [writer.ends]
    for what, one, other in moves:
        incarnations = len(writer.replayed.incarnations)
        incarnation, partition = 1 + one % incarnations, other % PARTITIONS
        # Few states and few contents, for conflicts and repeated requests.
        inputs, references = [state(f"{one % 5}"), state(f"{other % 5}", 1)], [state(f"{other % 4}")]
        entry, payload, fill = writer.send(
            incarnation, partition, spend(*inputs, content=f"{other % 2}"), spend(references=references, content=f"{one % 3}")
        )
        if what < 4:
            entry()
            payload()
        elif what == 4:
            payload()
            later.append(entry)  # out of sequence, so that the next one makes it skipped
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
            log.fence(incarnation, writer.replayed.incarnations[incarnation - 1].sequence_last + other // 2)
        elif what == 9:
            writer.checkpoint(incarnation, other % (len(writer.replayed.decisions) + 1))
        elif what == 10:
            writer.fill(incarnations + 1, 1 + one, b"", partition)  # a fill that comes before its incarnation registers
        while later and (what == 11 or len(later) > one):
            later.pop(0)()
        ends.append(writer.ends)
    for append in later:
        append()
    return writer, [*ends, writer.ends]


def keep(spark: SparkSession, out: Path, verified: Verified, earlier: Path | None = None) -> None:
    """Keep the state of a run without violations in `out`, with as much of a report as the next run reads."""
    kept = write_state(spark, out, verified.after(), earlier)
    (out / "report.json").write_bytes(msgspec.json.encode({"violations": {}, "state_sha256": kept}))
