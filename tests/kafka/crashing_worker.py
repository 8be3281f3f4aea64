"""`notary serve` that kills itself (SIGKILL) at a named point: `python -m tests.kafka.crashing_worker POINT NTH serve ...`.

The worker is the real one; only its log and its index are wrapped, from outside, at the interfaces that they have. The point is met at
the NTH batch that this process sends; batches after it stay in the process. From then on nothing more is read, but at the points behind
the log, so that nobody is answered.

| point | what is in the log, what is in the index |
|---|---|
| `before-sends` | nothing |
| `payload-sent` | the payload: an orphan |
| `entry-sent` | the entry: a hole |
| `both-sent` | both, and nobody here has read them |
| `before-apply` | both; the step was decided and is not in the index |
| `after-apply` | both; the step is in the index, nobody was told |
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
from ordering.log import ORDERING, Bounds, Log, Reader, Record, Writer
from ordering.records import Entry, decode
from ordering.signatures import FILL_BYTES

POINTS_OF_THE_LOG = ("before-sends", "payload-sent", "entry-sent", "both-sent")
POINTS = (*POINTS_OF_THE_LOG, "before-apply", "after-apply", "before-answer")


def die() -> NoReturn:
    """At once: no handler, no flush, no goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Plan:
    """When to die."""

    def __init__(self, point: str, nth: int) -> None:
        self.point = point
        self._nth = nth
        self._payloads = 0
        self._entries = 0
        self.armed = False
        """The batch has come: the point is the next one of its kind."""
        self.payload_durable = asyncio.Event()
        self.entry_durable = asyncio.Event()

    def counts_payload(self) -> bool:
        """Count a payload that is about to be sent; whether its batch is one that this process may send."""
        self._payloads += 1
        self.armed = self.armed or self._payloads == self._nth
        return self._payloads <= self._nth

    def counts_entry(self) -> bool:
        """Count an entry that is about to be sent; whether its batch is one that this process may send."""
        self._entries += 1
        return self._entries <= self._nth


class CrashingWriter:
    """A `Writer` that sends as much of the batch as the point wants."""

    def __init__(self, inner: Writer, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    async def append(self, stream: int, key: bytes | None, value: bytes | None) -> None:
        """Append, wait for ever, or die."""
        plan = self._plan
        is_entry = stream == ORDERING and isinstance(decode(value), Entry)
        is_payload = stream != ORDERING and value is not None and len(value) != FILL_BYTES
        if (is_entry and not plan.counts_entry()) or (is_payload and not plan.counts_payload()):
            await asyncio.Event().wait()
        if not plan.armed or plan.point not in POINTS_OF_THE_LOG:
            await self._inner.append(stream, key, value)
            return
        if plan.point == "before-sends":
            die()
        if (plan.point, is_entry) in (("payload-sent", True), ("entry-sent", False)):
            await asyncio.Event().wait()
        await self._inner.append(stream, key, value)
        (plan.entry_durable if is_entry else plan.payload_durable).set()
        if plan.point == "both-sent":
            await asyncio.gather(plan.payload_durable.wait(), plan.entry_durable.wait())
        die()

    async def close(self) -> None:
        """As it is."""
        await self._inner.close()


class CrashingReader:
    """A `Reader` that reads nothing more once the batch is on its way."""

    def __init__(self, inner: Reader, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Poll, or wait for the end."""
        records = await self._inner.poll(timeout_ms)
        if self._plan.armed and self._plan.point in POINTS_OF_THE_LOG:
            await asyncio.Event().wait()
        return records

    def offset_next(self, stream: int) -> int:
        """As it is."""
        return self._inner.offset_next(stream)

    @property
    def interruptions(self) -> int:
        """As it is."""
        return self._inner.interruptions

    def pause(self, streams: Collection[int]) -> None:
        """As it is."""
        self._inner.pause(streams)

    async def close(self) -> None:
        """As it is."""
        await self._inner.close()


class CrashingLog:
    """A `Log` whose writers and readers follow the plan."""

    def __init__(self, inner: Log, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self.payload_partitions = inner.payload_partitions
        self.identity = inner.identity

    async def has_partitions(self, count: int) -> None:
        """As it is."""
        await self._inner.has_partitions(count)

    async def open_writer(self) -> Writer:
        """One that may die."""
        return CrashingWriter(await self._inner.open_writer(), self._plan)

    async def open_reader(self, offsets_next: Mapping[int, int]) -> Reader:
        """One that may fall silent."""
        return CrashingReader(await self._inner.open_reader(offsets_next), self._plan)

    async def bounds(self) -> Mapping[int, Bounds]:
        """As they are."""
        return await self._inner.bounds()

    def leaders(self) -> Mapping[int, str | None]:
        """As they are."""
        return self._inner.leaders()

    async def close(self) -> None:
        """As it is."""
        await self._inner.close()


def wrap(plan: Plan) -> None:
    """Put the wrappers around the real parts."""
    open_log, apply, resolve = serve.open_log, Index.apply, Sender.resolve

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

    serve.open_log = open_crashing_log
    Index.apply = crashing_apply  # type: ignore[method-assign]
    Sender.resolve = crashing_resolve  # type: ignore[method-assign]


if __name__ == "__main__":
    assert sys.argv[1] in POINTS, f"one of {POINTS}"
    wrap(Plan(sys.argv[1], int(sys.argv[2])))
    sys.exit(cli.main(sys.argv[3:]))
