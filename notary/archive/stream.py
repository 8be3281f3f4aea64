"""`SegmentStream`: seals segments of a log, in a process of its own beside a worker (`notary archive stream`).

The worker writes commands (`SealCommand`) to the standard input of this process, and reads the answers (`Sealed`), one a line. It names
only ordering records that it has applied.

| step of a command | a crash after it leaves |
|---|---|
| payloads up to their ends at the command, then ordering records up to the command's head | nothing |
| the file of a segment | a file that no manifest names |
| its manifest | the segment; the next process goes on after it |
"""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Final

import msgspec

from joiner.history import fingerprint_of
from joiner.recheck import RUNBOOK, Sought, find_again
from notary.archive.compared import overlapped
from notary.archive.segment import SealedPart, Segment, check_is_of, find, sign, write
from notary.archive.settings import ANSWER_CHARS_MAX, SealCommand, Sealed
from notary.keyring import Keyring
from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey
from notary.snapshots.store import FILES, MANIFESTS, SnapshotStore
from ordering.durable import naming, temporary_folder
from ordering.errors import ConfigurationError, NotReady
from ordering.local_reader import size
from ordering.log import ORDERING, Log, Reader, Record, describe

SEGMENT_BYTES: Final = 32 << 20
"""The bytes of records at which a segment is sealed before a command is complete."""
RECORD_BYTES: Final = 28
"""The bytes that a record adds to a segment besides its key and value. So empty records end a segment too."""
POLL_MS: Final = 200
STALL_S_MAX: Final = 30.0
COMMANDS_PER_CHECK: Final = 12
"""The active writer checks the store at its first command and every 12th, each minute by default. A listing grows with the store, and only
a worker that was paused past its turn may have sealed since."""
LOOK_S_MAX: Final = 60.0
"""The time for which one command reads manifests. A bucket may have more than can be read before a command's deadline, after which the
worker ends this process, and the next one would begin anew."""
OVERLAPS_MAX: Final = 8
"""The places of each topic-partition that a new process compares where segments overlap, the last ones first. A log loses its end, so two
histories differ there; each takeover may leave one such place, and the log is read again for each."""
FOLDER: Final = "notary-segment-"
"""The prefix of the folder in which a segment is made."""


class SegmentStream:
    """The segments of one log in one store. After a failed command, the next one begins where the segments end."""

    def __init__(
        self,
        log: Log,
        identity: str,
        notary: str,
        origin: str,
        worker: str,
        keyring: Keyring,
        trusted: Callable[[], list[VerifierKey]],
        store: SnapshotStore,
        clock_ms: Callable[[], int],
    ) -> None:
        """`identity` ends with the log id. `trusted` returns all keys of the key history."""
        self._log, self._identity, self._notary, self._origin, self._worker = log, identity, notary, origin, worker
        self._keyring, self._trusted, self._store, self._clock_ms = keyring, trusted, store, clock_ms
        self._known: set[str] = set()
        self._skipped: set[str] = set()
        self._found: dict[str, Segment] = {}  # read in the present check, which may take several commands
        self._not_opened: dict[str, NotVerified] = {}
        self._commands_until_check = 0
        self._ends: dict[int, int] = {}
        self._lasts: dict[int, tuple[int, str]] = {}
        self._reader: Reader | None = None
        self._interruptions = 0
        self._gap = ""
        self._read: dict[int, list[Record]] = {}
        self._read_bytes = 0

    async def seal(self, command: SealCommand) -> Sealed:
        """Seal. Raises `NotReady`, and `ConfigurationError` for segments of another log or a log that lost sealed records."""
        newest_ms, skipped = 0, ""
        if command.leave_ms or self._commands_until_check <= 0:
            newest_ms, skipped = await self._check()
            self._commands_until_check = COMMANDS_PER_CHECK
        self._commands_until_check -= 1
        if command.leave_ms and newest_ms + command.leave_ms > self._clock_ms():
            return Sealed(skipped_turn=True, skipped=skipped)
        segments = records = 0
        try:
            known = self._log.payload_partitions
            await self._log.has_partitions(command.payload_partitions)
            if self._log.payload_partitions > known:
                await self.close()  # the open reader does not read the new ones
            ends = {partition: offsets.log_end for partition, offsets in (await self._log.offsets()).items() if partition != ORDERING}
            if missing := set(range(self._log.payload_partitions)) - ends.keys():
                raise NotReady(f"{describe(min(missing))} has no leader: entries are sealed only with their content")
            reader = await self._open()  # once: after an interruption in between, a new reader would return entries without their contents
            for targets in (ends, {ORDERING: command.head}):  # contents first: no segment has an entry without its content
                async for sealed in self._read_up_to(reader, targets, command.key):
                    segments, records = segments + bool(sealed), records + sealed
            sealed = await self._write(command.key, command.head)
        except BaseException:
            await self.close()
            raise
        gap, self._gap = self._gap, ""
        return Sealed(segments + bool(sealed), records + sealed, skipped=skipped, gap=gap)

    async def close(self) -> None:
        """Stop reading, and forget what was read and not sealed."""
        self._read, self._read_bytes = {}, 0
        if self._reader is not None:
            reader, self._reader = self._reader, None
            await reader.close()

    def _look(self) -> None:
        """Read the new manifests of the store. Raises `NotReady` if `LOOK_S_MAX` ended before all were read: the next call reads on."""
        until_ms = self._clock_ms() + 1000 * LOOK_S_MAX
        known = frozenset({*self._known, *self._found, *self._not_opened})
        for segment in find(self._store, self._trusted(), self._notary, known, self._not_opened.__setitem__):
            self._found[segment.name] = segment
            if self._clock_ms() >= until_ms:
                raise NotReady(f"{len(self._found)} manifests of the store were read, and it may have more: the next command reads on")

    async def _check(self) -> tuple[int, str]:
        """Read the new manifests of the store. Returns the time of the latest by another worker, ms, 0 without one; and the skipped ones.

        Raises `ConfigurationError` if segments have other records than the log, or than each other, at offsets that this process has
        passed. After an error the same segments are compared again.
        """
        await asyncio.to_thread(self._look)
        found = [self._found[name] for name in sorted(self._found)]
        for segment in found:
            check_is_of(segment, self._identity)
        if self._known:
            await self._compare(
                {partition: deque([Sought(*each) for each in sorted(lasts)]) for partition, lasts in self._passed(found).items()}
            )
        else:
            overlaps = {partition: lasts[-OVERLAPS_MAX:] for partition, lasts in overlapped(found).items()}
            while overlaps:  # one at a time: the records between two of them are not read
                await self._compare({partition: deque([Sought(*lasts.pop())]) for partition, lasts in overlaps.items()})
                overlaps = {partition: lasts for partition, lasts in overlaps.items() if lasts}
        before = dict(self._ends)
        for segment in found:
            self._known.add(segment.name)
            self._add(segment.parts)
        if self._ends != before:
            await self.close()  # the next reader begins where the other workers' segments end
        newest_ms = max([segment.sealed_at_ms for segment in found if segment.worker != self._worker], default=0)
        skipped, self._found, self._not_opened = self._not_opened, {}, {}
        return newest_ms, self._first_skipped(skipped)

    def _passed(self, found: Sequence[Segment]) -> dict[int, set[tuple[int, bytes]]]:
        """Returns the last records of parts that end at or before an offset that this process, or one of the others, has reached."""
        ends = dict(self._ends)
        passed: dict[int, set[tuple[int, bytes]]] = {}
        for part in [part for segment in found for part in segment.parts]:
            if part.offset_end <= ends.get(part.partition, 0):
                passed.setdefault(part.partition, set()).add((part.offset_last, bytes.fromhex(part.fingerprint)))
            ends[part.partition] = max(part.offset_end, ends.get(part.partition, 0))
        return passed

    def _first_skipped(self, skipped: Mapping[str, NotVerified]) -> str:
        """Returns a sentence about those skipped for the first time; empty without one.

        Each check reads them again, since their key may be added later.
        """
        new = [problem.what for name, problem in skipped.items() if name not in self._skipped]
        self._skipped = {*skipped}
        return f"{len(new)} files among the segments' manifests were skipped; the first: {new[0]}"[:ANSWER_CHARS_MAX] if new else ""

    def _add(self, parts: tuple[SealedPart, ...]) -> None:
        for part in parts:
            if part.offset_end > self._ends.get(part.partition, 0):
                self._ends[part.partition] = part.offset_end
                self._lasts[part.partition] = (part.offset_last, part.fingerprint)

    async def _open(self) -> Reader:
        """Returns the reader; after an interruption a new one, after a check that the log still has the last sealed records."""
        if self._reader is not None and self._reader.interruptions == self._interruptions:
            return self._reader
        await self.close()
        await self._compare({partition: deque([Sought(at, bytes.fromhex(known))]) for partition, (at, known) in self._lasts.items()})
        firsts = {partition: offsets.log_start for partition, offsets in (await self._log.offsets()).items()}
        if gaps := [(partition, first) for partition, first in sorted(firsts.items()) if first > self._ends.get(partition, 0)]:
            partition, first = gaps[0]
            self._gap = (
                f"{describe(partition)} is sealed up to offset {self._ends.get(partition, 0)}, and the log begins at {first}: the records"
                f" between were deleted, in {len(gaps)} topic-partitions. Keep an archive that has them, for `fetch`"
            )
        self._ends = {partition: max(self._ends.get(partition, 0), first) for partition, first in firsts.items()} | {
            partition: end for partition, end in self._ends.items() if partition not in firsts
        }
        self._reader = await self._log.open_reader(self._ends)
        self._interruptions = self._reader.interruptions
        return self._reader

    async def _compare(self, wanted: dict[int, deque[Sought]]) -> None:
        """Raise `ConfigurationError` unless the log has these records of segments."""
        if lost := await find_again(self._log, wanted, without_freed=True):
            raise ConfigurationError(
                f"the log does not hold a record that a segment has: {lost}. Restore the log from the segments. Only if it was salvaged"
                f" instead, move the segments with that record to another place ({RUNBOOK}, 'The archive does not go on')"
            )

    async def _read_up_to(self, reader: Reader, targets: Mapping[int, int], key: str) -> AsyncIterator[int]:
        """Read these topic-partitions up to their targets. Yields the number of records of each segment that became full on the way."""
        reader.pause({partition for partition in range(ORDERING, self._log.payload_partitions) if partition not in targets})
        loop = asyncio.get_running_loop()
        moved_s = loop.time()
        while any(reader.offset_next(partition) < target for partition, target in targets.items()):
            records = await reader.poll(POLL_MS)
            if reader.interruptions != self._interruptions:
                raise NotReady("reading was interrupted: the log is compared with the last segments, and read again from there")
            for record in records:
                self._read.setdefault(record.partition, []).append(record)
                self._read_bytes += size(record) + RECORD_BYTES
                if self._read_bytes >= SEGMENT_BYTES:
                    yield await self._write(key, targets.get(ORDERING, 0))
            if records:
                moved_s = loop.time()
            elif loop.time() - moved_s > STALL_S_MAX:
                raise NotReady(f"the log returned no record for {STALL_S_MAX:g} s, before its end")

    async def _write(self, key: str, head: int) -> int:
        """Seal what was read: contents, and ordering records below `head`. Returns the number of records."""
        later = [record for record in self._read.get(ORDERING, []) if record.offset >= head]
        taken = {partition: [r for r in some if partition != ORDERING or r.offset < head] for partition, some in sorted(self._read.items())}
        taken = {partition: some for partition, some in taken.items() if some}
        self._read, self._read_bytes = {ORDERING: later} if later else {}, sum([size(record) + RECORD_BYTES for record in later])
        if not taken:
            return 0
        private_key = self._keyring.private_key(bytes.fromhex(key))
        if private_key is None:
            raise ConfigurationError(f"the key in force, {key}, is not on this machine: no segment can be signed")
        records = [record for some in taken.values() for record in some]
        parts = tuple(
            [
                SealedPart(partition, self._ends.get(partition, 0), some[-1].offset + 1, some[-1].offset, fingerprint_of(some[-1]).hex())
                for partition, some in taken.items()
            ]
        )

        def put() -> Segment:
            made = temporary_folder(Path(tempfile.gettempdir()), FOLDER)  # a worker may kill this process
            with naming(Path(tempfile.gettempdir())), made as folder:
                file, note = folder / "records", folder / "note"
                write(records, file)
                with file.open("rb") as opened:
                    digest = file_digest(opened, "sha256").hexdigest()
                segment = Segment(
                    notary=self._notary,
                    log=self._identity,
                    worker=self._worker,
                    sealed_at_ms=self._clock_ms(),
                    payload_partitions=self._log.payload_partitions,
                    parts=parts,
                    records=len(records),
                    file_bytes=file.stat().st_size,
                    sha256=digest,
                )
                while segment.name in self._known:  # the clock was set back: a manifest is never replaced
                    segment = msgspec.structs.replace(segment, sealed_at_ms=segment.sealed_at_ms + 1)
                self._store.put(file, FILES, digest)
                note.write_text(sign(segment, self._origin, private_key), encoding="utf-8")
                # A crash before this line leaves a file that no manifest names; after it the segment.
                self._store.put(note, MANIFESTS, segment.name)
                return segment

        segment = await asyncio.to_thread(put)
        self._known.add(segment.name)
        self._add(parts)
        return len(records)
