"""`notary serve` that kills itself (SIGKILL) at a named point: `python -m tests.kafka.crashing_worker POINT NTH serve ...`.

The worker is the real one; only methods of its log, its index and its sender are wrapped. It dies at the NTH batch that this process sends;
later batches stay in the process. At the points of the log it reads nothing more from then on, so that no client gets an answer.

| point | in the log, in the index |
|---|---|
| `before-sends` | nothing |
| `payload-sent` | the payload: an orphan |
| `entry-sent` | the entry: a hole |
| `both-sent` | both, and this worker has not read them |
| `before-apply` | both; the step was decided and is not in the index |
| `after-apply` | both; the step is in the index, no client has an answer |
| `before-answer` | the same, and the answer was about to leave |
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from joiner import Ready, Sender
from notary import cli
from notary.decision import Decision
from notary.index import Index
from ordering.kafka import KafkaReader, KafkaWriter
from ordering.log import ORDERING, Record
from ordering.records import Entry, decode
from ordering.signatures import FILL_BYTES

POINTS_OF_THE_LOG = ("before-sends", "payload-sent", "entry-sent", "both-sent")
POINTS = (*POINTS_OF_THE_LOG, "before-apply", "after-apply", "before-answer")


def die() -> NoReturn:
    """Kill this process at once: no handler, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Plan:
    """The point at which the process dies."""

    def __init__(self, point: str, nth: int) -> None:
        self.point = point
        self._nth = nth
        self._payloads = 0
        self._entries = 0
        self.armed = False
        """True once the fatal batch is reached: the process dies at the next point of the given kind."""
        self.payload_durable = asyncio.Event()
        self.entry_durable = asyncio.Event()

    def counts_payload(self) -> bool:
        """Count a payload that is about to be sent; returns whether this process may send its batch."""
        self._payloads += 1
        self.armed = self.armed or self._payloads == self._nth
        return self._payloads <= self._nth

    def counts_entry(self) -> bool:
        """Count an entry that is about to be sent; returns whether this process may send its batch."""
        self._entries += 1
        return self._entries <= self._nth


def wrap(plan: Plan) -> None:
    """Wrap methods of Kafka's log, of the index and of the sender according to the plan."""
    append, poll, apply, resolve = KafkaWriter.append, KafkaReader.poll, Index.apply, Sender.resolve

    async def crashing_append(writer: KafkaWriter, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append, wait for ever, or die: send as much of the batch as the point requires."""
        is_entry = partition == ORDERING and isinstance(decode(value), Entry)
        is_payload = partition != ORDERING and value is not None and len(value) != FILL_BYTES
        if (is_entry and not plan.counts_entry()) or (is_payload and not plan.counts_payload()):
            await asyncio.Event().wait()
        if not plan.armed or plan.point not in POINTS_OF_THE_LOG:
            await append(writer, partition, key, value)
            return
        if plan.point == "before-sends":
            die()
        if (plan.point, is_entry) in (("payload-sent", True), ("entry-sent", False)):
            await asyncio.Event().wait()
        await append(writer, partition, key, value)
        (plan.entry_durable if is_entry else plan.payload_durable).set()
        if plan.point == "both-sent":
            await asyncio.gather(plan.payload_durable.wait(), plan.entry_durable.wait())
        die()

    async def crashing_poll(reader: KafkaReader, timeout_ms: int) -> list[Record]:
        """Poll, or wait for ever once the fatal batch is in flight."""
        records = await poll(reader, timeout_ms)
        if plan.armed and plan.point in POINTS_OF_THE_LOG:
            await asyncio.Event().wait()
        return records

    def crashing_apply(index: Index, ready: Ready) -> Sequence[Sequence[Decision]]:
        dying = plan.armed and bool(ready.batches)
        if dying and plan.point == "before-apply":
            die()
        outcomes = apply(index, ready)
        if dying and plan.point == "after-apply":
            die()
        return outcomes

    def crashing_resolve(sender: Sender[Any], ready: Ready, outcomes: Sequence[Sequence[Any]]) -> None:
        resolve(sender, ready, outcomes)
        if plan.armed and ready.batches and plan.point == "before-answer":
            die()

    KafkaWriter.append = crashing_append  # type: ignore[method-assign, assignment]
    KafkaReader.poll = crashing_poll  # type: ignore[method-assign, assignment]
    Index.apply = crashing_apply  # type: ignore[method-assign, assignment]
    Sender.resolve = crashing_resolve  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    assert sys.argv[1] in POINTS, f"one of {POINTS}"
    wrap(Plan(sys.argv[1], int(sys.argv[2])))
    sys.exit(cli.main(sys.argv[3:]))
