"""`notary serve` that kills itself (SIGKILL) at a named point: `python -m tests.kafka.crashing_worker POINT NTH serve ...`.

The worker is the real one; only its log and its index are wrapped, at their interfaces. It dies at the NTH batch that this process sends;
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
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

import notary.cli.serve as serve
from joiner import Ready, Sender
from notary import cli
from notary.config import Config
from notary.decision import Decision
from notary.index import Index
from ordering.log import ORDERING, Leader, Log, LogOffsets, Reader, Record, Writer
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


class CrashingWriter:
    """A `Writer` that sends as much of the batch as the point requires."""

    def __init__(self, inner: Writer, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append, wait for ever, or die."""
        plan = self._plan
        is_entry = partition == ORDERING and isinstance(decode(value), Entry)
        is_payload = partition != ORDERING and value is not None and len(value) != FILL_BYTES
        if (is_entry and not plan.counts_entry()) or (is_payload and not plan.counts_payload()):
            await asyncio.Event().wait()
        if not plan.armed or plan.point not in POINTS_OF_THE_LOG:
            await self._inner.append(partition, key, value)
            return
        if plan.point == "before-sends":
            die()
        if (plan.point, is_entry) in (("payload-sent", True), ("entry-sent", False)):
            await asyncio.Event().wait()
        await self._inner.append(partition, key, value)
        (plan.entry_durable if is_entry else plan.payload_durable).set()
        if plan.point == "both-sent":
            await asyncio.gather(plan.payload_durable.wait(), plan.entry_durable.wait())
        die()

    async def close(self) -> None:
        """Close the wrapped writer."""
        await self._inner.close()


class CrashingReader:
    """A `Reader` that returns nothing more once the fatal batch is in flight."""

    def __init__(self, inner: Reader, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Poll, or wait for ever."""
        records = await self._inner.poll(timeout_ms)
        if self._plan.armed and self._plan.point in POINTS_OF_THE_LOG:
            await asyncio.Event().wait()
        return records

    def offset_next(self, partition: int) -> int:
        """Returns the wrapped reader's value."""
        return self._inner.offset_next(partition)

    @property
    def interruptions(self) -> int:
        """The wrapped reader's value."""
        return self._inner.interruptions

    def pause(self, partitions: Collection[int]) -> None:
        """Pause the wrapped reader."""
        self._inner.pause(partitions)

    async def close(self) -> None:
        """Close the wrapped reader."""
        await self._inner.close()


class CrashingLog:
    """A `Log` whose writers and readers follow the plan."""

    def __init__(self, inner: Log, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self.payload_partitions = inner.payload_partitions
        self.identity = inner.identity

    async def has_partitions(self, count: int) -> None:
        """Call the wrapped log."""
        await self._inner.has_partitions(count)

    async def open_writer(self) -> Writer:
        """Open a writer that may die."""
        return CrashingWriter(await self._inner.open_writer(), self._plan)

    async def open_reader(self, offsets_next: Mapping[int, int]) -> Reader:
        """Open a reader that may stall."""
        return CrashingReader(await self._inner.open_reader(offsets_next), self._plan)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns the wrapped log's values."""
        return await self._inner.offsets()

    def leaders(self) -> Mapping[int, Leader]:
        """Returns the wrapped log's values."""
        return self._inner.leaders()

    async def close(self) -> None:
        """Close the wrapped log."""
        await self._inner.close()


def wrap(plan: Plan) -> None:
    """Wrap the log, `Index.apply` and `Sender.resolve` according to the plan."""
    open_log, apply, resolve = serve.open_log, Index.apply, Sender.resolve  # type: ignore[attr-defined]  # `serve` imports it

    async def open_crashing_log(config: Config) -> Log:
        return CrashingLog(await open_log(config), plan)

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

    serve.open_log = open_crashing_log  # type: ignore[attr-defined, assignment]
    Index.apply = crashing_apply  # type: ignore[method-assign, assignment]
    Sender.resolve = crashing_resolve  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    assert sys.argv[1] in POINTS, f"one of {POINTS}"
    wrap(Plan(sys.argv[1], int(sys.argv[2])))
    sys.exit(cli.main(sys.argv[3:]))
