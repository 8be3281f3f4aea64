"""`notary log show`: prints a log's records: their signers, their effects, and the reasons why records took no effect.

The source is the log on the brokers, the embedded log, or an archive of both topics. It is replayed from its first record with the joiner
that workers use, so the output shows the log as a worker sees it. Only the check of views is left out, since it needs a worker's index. A
view that differs from the replay's own history is shown as an anomaly (`joiner.ready.Anomaly`).
"""

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from joiner import Effect, Joiner, OrderedBatch, Ready
from joiner.history import NO_CONTENT
from notary.cli import check_pyarrow, json_line, owner, print_result
from notary.cli.replay import Replay
from notary.config import load
from notary.exit_codes import EXIT_DONE
from ordering.errors import ConfigurationError, CorruptRecord
from ordering.genesis import read_genesis
from ordering.log import ORDERING, Log, Record
from ordering.records import HASH_BYTES, Genesis, Key, OrderingRecord, SalvageItems, View, WorkerRecord, batch_key, decode, decode_batch_key
from ordering.signatures import FILL_BYTES, is_fill, log_id_of, record_is_signed

NOBODY = "nobody"
OWNER = "owner"
IDS_SHOWN = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary log`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "print the ordering records, one a line, and with --payload the payload records"
    show = actions.add_parser("show", help=summary, description=summary)
    source = show.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="F", help="notary.toml")
    source.add_argument("--archive", type=Path, metavar="DIR", help="an archive of both topics, in place of the log")
    show.add_argument("--from", dest="first", type=int, default=0, metavar="OFFSET", help="the ordering record to begin with (default: 0)")
    show.add_argument("--count", type=int, metavar="N", help="how many ordering records; left out: all up to the end")
    show.add_argument("--payload", action="store_true", help="show the payload records too: those of the entries shown, or all")
    show.add_argument("--json", action="store_true", help="one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Show the records. Returns 0, also for a log with records that took no effect."""
    asyncio.run(_show(arguments))
    return EXIT_DONE


@asynccontextmanager
async def _opened(arguments: argparse.Namespace) -> AsyncIterator[Log]:
    """Open the log or the archive for the length of a block. Raises `NotReady`, and `ConfigurationError`, also without a genesis record."""
    if arguments.archive is None:
        async with owner.opened(load(arguments.config), "log") as owned:
            yield owned.log
        return
    check_pyarrow("reads an archive's Parquet files")
    from notary.archive.archived import ArchivedLog  # imported late: this function first checks that pyarrow is installed

    archived = ArchivedLog(arguments.archive)
    if unlisted := archived.unlisted():
        print(
            f"notary log: {len(unlisted)} files of {arguments.archive} are in no range, {unlisted[0]} first: an interrupted run left them"
            " there, or the last ranges are missing",
            file=sys.stderr,
        )
    await read_genesis(archived)
    yield archived


async def _show(arguments: argparse.Namespace) -> None:
    first, count = arguments.first, arguments.count
    if first < 0:
        raise ConfigurationError(f"--from is {first}: give an offset of the ordering topic, 0 or more")
    if count is not None and count < 0:
        raise ConfigurationError(f"--count is {count}: give 0 or more")
    async with _opened(arguments) as log:
        end = (await log.offsets())[ORDERING].log_end
        if first > end:
            raise ConfigurationError(f"--from is {first}, and the ordering topic ends at offset {end}: give a smaller one")
        joiner = Joiner()
        shown = _Shown(joiner, arguments)
        replay = Replay(log, joiner, shown.observe, "notary log")
        replay.enough = shown.is_complete
        try:
            await replay.read_to_end()
        finally:
            await replay.close()
        shown.finish(replay.stop)


class _Payload(msgspec.Struct, frozen=True, gc=False):
    """A payload record without its value, kept until the end of the replay: some 150 bytes.

    `fill` is the value if it has the length of a fill, else empty.
    """

    partition: int
    offset: int
    append_time_ms: int
    key: bytes | None
    size: int
    fill: bytes


class _Shown:
    """Prints records as they are applied. It follows `key` records, since the key in force depends on the place in the log."""

    def __init__(self, joiner: Joiner, arguments: argparse.Namespace) -> None:
        self._joiner = joiner
        self._first: int = arguments.first
        self._end: int | None = None if arguments.count is None else arguments.first + arguments.count
        self._payload: bool = arguments.payload
        self._as_json: bool = arguments.json
        self._log_id = b""
        self._owner_key = b""
        self._keys: list[bytes] = []
        self._waiting: deque[Record] = deque()
        self._effects: dict[int, Effect] = {}
        self._batches: dict[int, OrderedBatch] = {}
        self._anomalies: dict[tuple[int, int], str] = {}
        self._payloads: list[_Payload] = []
        self._contents: dict[tuple[int, int], int] = {}  # (partition, offset) of a content -> its ordering record
        self._entries: set[tuple[int, bytes]] = set()  # (partition, key) of the entries shown
        self._joined: set[tuple[int, bytes]] = set()

    def is_complete(self) -> bool:
        """Returns true if all requested ordering records are printed."""
        return self._end is not None and self._joiner.offset_head >= self._end

    def observe(self, records: Sequence[Record], ready: Ready) -> None:
        """Add the records of a step and their results; print the ordering records that are applied now."""
        for record in records:
            if record.partition == ORDERING:
                self._waiting.append(record)
            elif self._payload:
                value = record.value or b""
                fill = value if len(value) == FILL_BYTES else b""
                kept = _Payload(record.partition, record.offset, record.append_time_ms, record.key, len(value), fill)
                self._payloads.append(kept)
        self._effects |= {effect.offset: effect for effect in ready.effects}
        self._batches |= {batch.offset: batch for batch in ready.batches}
        for anomaly in ready.anomalies:
            if anomaly.kind != "orphan-dropped" and (self._payload or anomaly.partition == ORDERING):
                self._anomalies[anomaly.partition, anomaly.offset] = anomaly.text
        while self._waiting and self._waiting[0].offset < self._joiner.offset_head:
            self._print_applied(self._waiting.popleft())

    def finish(self, stop: str) -> None:
        """Print the ordering records that were read and not applied, and the payload records."""
        hole = self._joiner.hole
        why = stop
        if hole is not None:
            why = f"the content of batch ({hole.incarnation}, {hole.sequence}) is not in payload partition {hole.partition}"
        for record in self._waiting:
            if self._is_asked_for(record.offset):
                self._print(record, f"not applied: {why}" if why else "not applied", None)
        if self._payload:
            for payload in sorted(self._payloads, key=lambda payload: (payload.partition, payload.offset)):
                self._print_payload(payload)
        if stop:
            print(f"notary log: a worker stops here: {stop}", file=sys.stderr)

    def _is_asked_for(self, offset: int) -> bool:
        return offset >= self._first and (self._end is None or offset < self._end)

    def _print_applied(self, record: Record) -> None:
        effect = self._effects.pop(record.offset, None)
        batch = self._batches.pop(record.offset, None)
        anomaly = self._anomalies.pop((ORDERING, record.offset), "")
        value = record.value or b""
        if not self._keys and effect is not None:
            genesis = decode(value)
            assert isinstance(genesis, Genesis)
            self._log_id, self._owner_key, self._keys = effect.history, genesis.owner_key, [genesis.notary_key]
        if self._payload and effect is not None and effect.partition != NO_CONTENT and batch is not None:
            self._contents[effect.partition, effect.content_offset] = record.offset
            key = batch_key(batch.incarnation, batch.sequence)
            self._joined.add((effect.partition, key))
            if self._is_asked_for(record.offset):
                self._entries.add((effect.partition, key))
        if self._is_asked_for(record.offset):
            if effect is not None:
                became = f"effect {effect.seen}" + (f", {anomaly}" if anomaly else "")
            else:
                became = f"skipped: {anomaly}" if anomaly else "compared"
            self._print(record, became, effect, batch)
        if effect is not None and value[1:2] == b"\x07":
            following = decode(value, self._formats())
            assert isinstance(following, Key)
            self._keys.append(following.public_key)

    def _formats(self) -> Sequence[int]:
        log_state = self._joiner.log_state
        return () if log_state is None else log_state.formats

    def _signer(self, value: bytes) -> str:
        """Returns the name of the key that signed an ordering record, as of this place in the log."""
        # The signature of genesis, over another log id, was checked when the log was opened.
        if log_id_of(value) == self._log_id or record_is_signed(value, self._log_id, self._owner_key):
            return OWNER
        return self._key_name(lambda key: record_is_signed(value, self._log_id, key))

    def _key_name(self, is_signed_by: Callable[[bytes], bool]) -> str:
        for number in range(len(self._keys), 0, -1):
            if is_signed_by(self._keys[number - 1]):
                return f"key {number}" + ("" if number == len(self._keys) else " (former)")
        return NOBODY

    def _print(self, record: Record, became: str, effect: Effect | None, batch: OrderedBatch | None = None) -> None:
        value = record.value or b""
        try:
            decoded: OrderingRecord | None = decode(value, self._formats())
        except CorruptRecord:
            decoded = None
        kind = "?" if decoded is None else type(decoded).__name__.lower()
        signer = self._signer(value)
        if self._as_json:
            facts: dict[str, Any] = {
                "topic": "ordering",
                "offset": record.offset,
                "append_time_ms": record.append_time_ms,
                "kind": None if decoded is None else kind,
                "fields": {"bytes": value.hex()} if decoded is None else _json_of(decoded),
                "signed_by": signer,
                "seen": None if effect is None else effect.seen,
                "history": None if effect is None else effect.history.hex(),
                "became": became,
            }
            if effect is not None and batch is not None:
                facts["content"] = {
                    "partition": effect.partition,
                    "offset": effect.content_offset,
                    "filled": batch.filled,
                    "transaction_ids": [request.transaction_id.hex() for request in batch.requests],
                }
            print(json_line(facts))
            return
        time = _time(record.append_time_ms)
        text = f"{len(value)} bytes" if decoded is None else " ".join(_fields(decoded))
        print(f"{record.offset:>8}  {time}  {kind:<10}  {signer:<14}  {became}; {text}")
        if self._payload and effect is not None and batch is not None:
            what = "a fill: nothing" if batch.filled else f"{len(batch.requests)} requests"
            print(f"{'':>8}  {'':<24}  content     payload partition {effect.partition} offset {effect.content_offset}: {what}")

    def _print_payload(self, payload: _Payload) -> None:
        key = (payload.partition, payload.key or b"")
        everything = self._end is None and self._first == 0
        if not everything and key not in self._entries:
            return
        kind = "fill" if payload.fill else "payload"
        named = payload.fill[:HASH_BYTES]
        is_signed_by = partial(is_fill, payload.fill, self._log_id, *key, named)
        signer = self._key_name(is_signed_by) if payload.fill else ""
        if signer == NOBODY and (payload.partition, payload.offset) in self._contents:
            kind, signer = "payload", ""  # a payload as long as a fill: its entry has its hash
        content_of = self._contents.get((payload.partition, payload.offset))
        if content_of is not None:
            became = f"content of ordering record {content_of}"
        elif (anomaly := self._anomalies.get((payload.partition, payload.offset))) is not None:
            became = f"skipped: {anomaly}"
        elif key in self._joined:
            became = "skipped: another record is the content of its batch"
        else:
            became = "not used: no entry of that batch took effect in this partition"
        try:
            incarnation, sequence = decode_batch_key(payload.key)
            batch = f"({incarnation}, {sequence})"
        except CorruptRecord:
            batch = f"key {(payload.key or b'').hex()}"
        facts = {
            "topic": "payload",
            "partition": payload.partition,
            "offset": payload.offset,
            "append_time_ms": payload.append_time_ms,
            "kind": kind,
            "key": (payload.key or b"").hex(),
            "bytes": payload.size,
            "signed_by": signer or None,
            "content_of": content_of,
            "became": became,
        }
        where, time = f"{payload.partition}/{payload.offset}", _time(payload.append_time_ms)
        line = f"{where:>8}  {time}  {kind:<10}  {signer:<14}  {became}; batch {batch}, {payload.size} bytes"
        print_result(facts, [line], as_json=self._as_json)


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def _json_of(value: Any) -> Any:
    """Returns a value for programs: bytes as hex, a record or an item by its fields, and an item also with its type."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = {name: _json_of(each) for name, each in msgspec.structs.asdict(value).items()}
        return fields if tag is None else {"type": tag, **fields}
    return [_json_of(each) for each in value] if isinstance(value, tuple) else value


def _fields(record: OrderingRecord) -> Iterator[str]:
    """Yields the fields of a record for people: hashes are shortened, only the first ids are shown, and no empty bytes."""
    if isinstance(record, WorkerRecord):
        yield f"seen={record.view.seen}"
    for name, value in msgspec.structs.asdict(record).items():
        if isinstance(value, View):
            if not isinstance(record, WorkerRecord):
                yield f"seen={value.seen} history={value.history.hex()}"
        elif isinstance(record, SalvageItems) and isinstance(value, tuple):
            yield f"items={len(value)}"
        elif isinstance(value, tuple):
            ids = " ".join(each.hex()[:16] for each in value[:IDS_SHOWN])
            yield f"requests={len(value)} {ids}{' ...' if len(value) > IDS_SHOWN else ''}"
        elif isinstance(value, bytes):
            if value:
                yield f"{name}={value.hex()[:16]}"
        elif name.endswith("_ms"):
            yield f"{name.removesuffix('_ms')}={_time(value)}"
        else:
            yield f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}"
