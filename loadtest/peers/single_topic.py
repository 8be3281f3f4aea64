"""The single-topic design: complete requests through one partition, with the same worker.

This is exactly the notary's own worker (HTTP, admission, batches, joiner, decisions, index, tree), on a log of another shape. Where the
notary appends a batch's ids to the ordering topic and its requests to a payload partition, `SingleTopicLog` joins both into one record of
one partition, and splits that record again for its readers. So a batch is one append instead of two at once, there are no holes and no
orphans, and one broker leads every byte. The difference of the two figures is the saving of this design, minus its cost.

Its guarantees are the notary's: the same brokers, replicas and acknowledgements.

On one machine all leaders share the same cores and the same disk. There, the advantage of the split does not show: that no single leader
carries all bytes. Only its price shows: two appends for one.

The genesis record, which `notary init` writes, is stored unchanged: its first byte is 1, that of a length is 0.

| a record's value | |
|---|---|
| u32 length, ordering record | both empty for a fill |
| u8 | 1: a payload or a fill follows |
| 16-byte batch key, payload | only if so |
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from struct import Struct
from typing import Final

import uvloop

from notary.config import Config, load
from notary.http.app import App
from notary.http.listener import bind
from notary.http.server import Server
from notary.http.settings import HttpSettings, parse_listen
from notary.logs import set_up_logging
from notary.memory import bound_memory, collect_garbage_rarely
from notary.open_log import open_log
from notary.service import serve_until
from notary.worker import Worker
from ordering.errors import NotaryError, OutcomeUnknown
from ordering.log import ORDERING, Leader, Log, LogOffsets, Reader, Record, Writer
from ordering.records import Entry, batch_key, decode
from ordering.signatures import FILL_BYTES

PAYLOAD: Final = 0
"""The only payload partition, as workers see it."""

_LENGTH = Struct(">I")
_KEY_BYTES: Final = 16
_NOTHING, _PAYLOAD, _FILL = 0, 1, 2


class SingleTopicLog:
    """A `Log` with one payload partition, stored completely in the ordering topic of another log."""

    def __init__(self, inner: Log) -> None:
        self._inner = inner

    @property
    def payload_partitions(self) -> int:
        """Always 1."""
        return 1

    async def has_partitions(self, count: int) -> None:
        """Does nothing: there is one partition, as genesis declares."""
        assert count <= 1

    @property
    def identity(self) -> str:
        """A name that differs from the inner log's: an index of one must not be used with the other."""
        return f"single-topic:{self._inner.identity}"

    async def open_writer(self) -> "SingleTopicWriter":
        """Returns a new writer. Raises `NotReady`."""
        return SingleTopicWriter(await self._inner.open_writer())

    async def open_reader(self, offsets_next: Mapping[int, int]) -> "SingleTopicReader":
        """Returns a new reader. Raises `NotReady`."""
        first = {partition: offsets_next.get(partition, 0) for partition in (ORDERING, PAYLOAD)}
        return SingleTopicReader(await self._inner.open_reader({ORDERING: min(first.values())}), first)

    async def offsets(self) -> Mapping[int, LogOffsets]:
        """Returns the same offsets for both topics. Raises `NotReady`."""
        log_offsets = (await self._inner.offsets())[ORDERING]
        return {ORDERING: log_offsets, PAYLOAD: log_offsets}

    def leaders(self) -> Mapping[int, Leader]:
        """Returns the one partition: an append waits for a new leader."""
        return {PAYLOAD: Leader()}

    async def close(self) -> None:
        """Close the inner log."""
        await self._inner.close()


class SingleTopicWriter:
    """A `Writer` that holds a payload back until its entry comes, or the reverse, and appends both as one record."""

    def __init__(self, inner: Writer) -> None:
        self._inner = inner
        self._halves: dict[bytes, tuple[int, bytes, asyncio.Future[None]]] = {}  # by batch key: the half that came first

    async def append(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Returns when the record is durable. Raises `OutcomeUnknown`, for both halves of a batch alike."""
        if partition == PAYLOAD:
            assert key is not None, "a payload has its batch's key"
            assert value is not None, "a payload record has a value"
            if len(value) == FILL_BYTES:
                await self._inner.append(ORDERING, None, join(b"", key, value))
            else:
                await self._half(PAYLOAD, key, value)
            return
        assert value is not None, "an ordering record has a value"
        record = decode(value)
        if isinstance(record, Entry):
            await self._half(ORDERING, batch_key(record.incarnation, record.sequence), value)
        else:
            await self._inner.append(ORDERING, None, join(value, None, None))

    async def close(self) -> None:
        """Close the writer; a half without its counterpart fails with `OutcomeUnknown`."""
        for _, _, appended in self._halves.values():
            if not appended.done():
                appended.set_exception(OutcomeUnknown("this writer is closed: open another"))
        await self._inner.close()

    async def _half(self, partition: int, key: bytes, value: bytes) -> None:
        first = self._halves.pop(key, None)
        if first is None:
            appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._halves[key] = (partition, value, appended)
            await appended
            return
        _, other, appended = first
        ordering, payload = (value, other) if partition == ORDERING else (other, value)
        try:
            await self._inner.append(ORDERING, None, join(ordering, key, payload))
        except NotaryError as problem:
            if not appended.done():
                appended.set_exception(problem)
            raise
        if not appended.done():
            appended.set_result(None)


class SingleTopicReader:
    """A `Reader` that splits each record in two; both halves have its offset."""

    def __init__(self, inner: Reader, offsets_first: Mapping[int, int]) -> None:
        self._inner = inner
        self._offsets_first = offsets_first
        self._paused: frozenset[int] = frozenset()
        self._held: list[Record] = []

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Returns the records of both halves; raises what the inner reader raises."""
        if self._held and not self._paused:
            held, self._held = self._held, []
            return held
        records: list[Record] = []
        for record in await self._inner.poll(timeout_ms):
            if record.partition != ORDERING or record.value is None:
                continue
            ordering, key, payload = cut(record.value)
            halves = []
            if key is not None:
                # Before its entry, so that the head never waits.
                halves.append(Record(PAYLOAD, record.offset, record.append_time_ms, key, payload))
            if ordering:
                halves.append(Record(ORDERING, record.offset, record.append_time_ms, None, ordering))
            for half in halves:
                if half.offset >= self._offsets_first[half.partition]:
                    (self._held if half.partition in self._paused else records).append(half)
        return records

    @property
    def interruptions(self) -> int:
        """The count of the inner reader."""
        return self._inner.interruptions

    def offset_next(self, partition: int) -> int:
        """Returns the next offset of the one partition, or for a paused topic that of the first record held back."""
        held = [record.offset for record in self._held if record.partition == partition]
        return min(held, default=max(self._inner.offset_next(ORDERING), self._offsets_first[partition]))

    def pause(self, partitions: Collection[int]) -> None:
        """Pause these topics: payloads are held back here; with the ordering topic everything pauses."""
        self._paused = frozenset(partitions)
        self._inner.pause([ORDERING] if ORDERING in self._paused else [])

    async def close(self) -> None:
        """Close the inner reader."""
        await self._inner.close()


def join(ordering: bytes, key: bytes | None, payload: bytes | None) -> bytes:
    """Returns one record of both; without a key there is no payload half, and with a key and no payload it is a fill."""
    kind = _NOTHING if key is None else _FILL if payload is None else _PAYLOAD
    return b"".join([_LENGTH.pack(len(ordering)), ordering, bytes((kind,)), key or b"", payload or b""])


def cut(value: bytes) -> tuple[bytes, bytes | None, bytes | None]:
    """Returns the arguments of `join`; an ordering record that was not joined comes back unchanged."""
    if value[:1] == b"\x01":
        return value, None, None
    (length,) = _LENGTH.unpack_from(value)
    at = _LENGTH.size + length
    ordering, kind = value[_LENGTH.size : at], value[at]
    if kind == _NOTHING:
        return ordering, None, None
    key_end = at + 1 + _KEY_BYTES
    return ordering, value[at + 1 : key_end], value[key_end:] if kind == _PAYLOAD else None


# ---- the worker's process ----


async def _serve(config: Config, listen: str) -> int:
    """Run a short version of `notary serve`, on a log of another shape."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app = App()
    host, port = parse_listen(listen)
    server = Server(app, bind(host, port), settings=HttpSettings(connections_per_address_max=0))
    await server.start()

    async def start() -> Worker:
        return await Worker.start(config, SingleTopicLog(await open_log(config)))

    async def when_started(worker: Worker) -> None:
        pass

    try:
        ending = await serve_until([app], start, stop, when_started)
    finally:
        await server.stop(5.0)
    for problem in ending.problems:
        print(problem, file=sys.stderr)
    return 2 if ending.failed else 0


def main() -> int:
    """Run the worker that the command line starts."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.peers.single_topic")
    for flag in ("--config", "--name", "--listen"):
        parser.add_argument(flag, required=True)
    chosen = parser.parse_args()
    set_up_logging("info", as_json=False)
    collect_garbage_rarely()
    bound_memory()
    return uvloop.run(_serve(load(Path(chosen.config), {"worker.name": chosen.name}), chosen.listen))


if __name__ == "__main__":
    sys.exit(main())
