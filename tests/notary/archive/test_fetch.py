"""Segments of a log in memory become the ranges of an archive; those that do not fit are refused."""

import contextlib
import os
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from notary.archive.archived import ArchivedLog
from notary.archive.fetch import LEFT_S, UNFINISHED, _Added, fetch, in_order
from notary.archive.segment import UNLISTED, find, write
from notary.archive.stream import COMMANDS_PER_CHECK, RECORD_BYTES, SegmentStream
from notary.receipts.errors import NotVerified
from notary.receipts.note import VerifierKey
from notary.snapshots.store import FILES, MANIFESTS
from ordering.durable import create_file
from ordering.errors import ConfigurationError, NotReady
from ordering.log import ORDERING, Record
from ordering.records import Genesis
from ordering.signatures import NO_LOG_ID, SigningKey, endorse_key, log_id_of, sign_record
from tests.notary.archive.streamed import FIRST, NAME, ORIGIN, Streamed
from tests.notary.disk import Killed


@pytest.fixture
async def made(tmp_path: Path) -> Streamed:
    """A log with two ordering records and two contents, none of them sealed yet."""
    made = Streamed(tmp_path)
    await made.append(*FIRST)
    return made


def killed(*_: object) -> None:
    """Takes the place of a step before which a run is killed."""
    raise Killed


async def test_two_ranges_hold_each_record_once(made: Streamed) -> None:
    """Records behind the command's head come with a later segment; a process that starts again continues where the segments end."""
    sealing = made.process()
    assert (await sealing.seal(made.command(1))).records == 3
    assert (await sealing.seal(made.command(1))).segments == 0
    assert made.fetch().records == 3
    assert await made.archived() == {ORDERING: [b"o0"], 0: [b"p0"], 1: [b"q0"]}
    await sealing.close()
    await made.append((0, b"p1"), (ORDERING, b"o2"))
    assert (await made.process().seal(made.command(3))).records == 3
    again = made.fetch()
    assert (again.range, again.segments, again.records) == (2, 1, 3)
    assert await made.archived() == {ORDERING: [b"o0", b"o1", b"o2"], 0: [b"p0", b"p1"], 1: [b"q0"]}
    assert made.fetch().range == 0
    assert made.prune(9_999) == [], "each is the last one of a topic-partition"


@pytest.mark.parametrize("fails", [False, True])
async def test_contents_of_a_new_partition_are_sealed(made: Streamed, fails: bool) -> None:
    """The owner adds a partition while the process runs: a log on Kafka has it once it was counted, also if brokers fail then."""
    process = made.process()
    await process.seal(made.command(1))

    async def has_partitions(count: int) -> None:
        if count > made.log.payload_partitions:
            made.log._records[2] = [Record(2, 0, 7, b"key", b"r0")]
            made.log._payload_partitions = count
            if fails:
                raise NotReady("the brokers are away")

    made.log.has_partitions = has_partitions  # type: ignore[method-assign]
    if fails:
        with pytest.raises(NotReady):
            await process.seal(msgspec.structs.replace(made.command(2), payload_partitions=3))
    assert (await process.seal(msgspec.structs.replace(made.command(2), payload_partitions=3))).records == 2
    assert made.fetch().records == 5
    assert await made.archived() == {ORDERING: [b"o0", b"o1"], 0: [b"p0"], 1: [b"q0"], 2: [b"r0"]}


async def test_segments_of_two_workers_may_overlap(made: Streamed) -> None:
    """Two workers that seal the same records cost disk space; the archive has each record once."""
    first, second = made.process("w1"), made.process("w2")
    assert (await first.seal(made.command(1))).records == 3
    await made.append((0, b"p1"))
    with made.hidden():
        assert (await second.seal(made.command(2))).records == 5
    assert (await first.seal(made.command(2, look=True))).segments == 0
    assert (made.fetch().records, len(made.found())) == (5, 2)
    assert await made.archived() == {ORDERING: [b"o0", b"o1"], 0: [b"p0", b"p1"], 1: [b"q0"]}


async def test_segments_that_do_not_fit_are_refused(made: Streamed, tmp_path: Path) -> None:
    """A gap, a changed file, a changed or foreign manifest add nothing to the archive."""
    sealing = made.process()
    await sealing.seal(made.command(1))
    await made.append((0, b"p1"))
    await sealing.seal(made.command(2))
    with pytest.raises(ConfigurationError, match=r"archived up to offset 0, and the next segment, .* begins at 1"):
        made.fetch(made.found()[1:])
    assert not [*(tmp_path / "archive").rglob("*.parquet")]
    (file,) = [path for path in (tmp_path / "segments" / "files").iterdir() if path.name == made.found()[0].sha256]
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    with pytest.raises(NotVerified, match="with the hash"):
        made.fetch()
    file.unlink()
    with pytest.raises(NotVerified, match="is missing"):
        made.fetch()
    file.write_bytes(content)
    note = sorted((tmp_path / "segments" / MANIFESTS).iterdir())[0]
    text = note.read_text()
    note.write_text(text.replace('"records":3', '"records":2'))
    with pytest.raises(NotVerified, match=f"the manifest {note.name}: "):
        made.found()
    note.write_text(text)
    with pytest.raises(NotVerified):
        list(find(made.store, [VerifierKey(ORIGIN, Ed25519PrivateKey.generate().public_key().public_bytes_raw())], NAME))
    with pytest.raises(NotVerified):
        list(find(made.store, made.trusted, "another notary"))
    assert made.fetch().records == 5


async def test_a_log_that_lost_sealed_records_is_not_sealed(made: Streamed) -> None:
    """A log that was cut and has grown again is not mixed with the segments of the one before; nor is another log."""
    await made.process().seal(made.command(2))
    made.replace(0, 0, b"another")
    await made.append((ORDERING, b"o2"))
    with pytest.raises(ConfigurationError, match="does not hold a record that a segment has: record 0 of payload partition 0"):
        await made.process().seal(made.command(3))
    other = made.process()
    other._identity = f"other {bytes(32).hex()}"
    with pytest.raises(ConfigurationError, match="name another store"):
        await other.seal(made.command(3))
    assert len(made.found()) == 1


async def test_a_salvaged_log_is_sealed_without_the_segments_of_what_it_lost(made: Streamed, tmp_path: Path) -> None:
    """After a salvage a restore would undo it. So the error names the other remedy too: sealing continues once these segments are away."""
    sealing = made.process()
    await sealing.seal(made.command(1))
    await made.append((0, b"p1 lost"))
    await sealing.seal(made.command(2))
    made.replace(0, 1, b"p1 new")
    made.replace(ORDERING, 1, b"the owner's key record")
    with pytest.raises(ConfigurationError, match="if it was salvaged instead, move the segments with that record to another place"):
        await made.process().seal(made.command(2))
    (tmp_path / "segments" / MANIFESTS / made.found()[-1].name).rename(tmp_path / "moved")
    assert (await made.process().seal(made.command(2))).records == 2
    made.fetch()
    assert await made.archived() == {ORDERING: [b"o0", b"the owner's key record"], 0: [b"p0", b"p1 new"], 1: [b"q0"]}


async def test_another_history_stops_its_worker(made: Streamed) -> None:
    """A worker that looks at the store seals nothing after another worker sealed records that the log has lost."""
    behind = made.process("w3")
    await behind.seal(made.command(1))
    await made.append((0, b"p1 lost"))
    await made.process("w1").seal(made.command(1))
    made.replace(0, 1, b"p1 new", b"p2 new")
    with pytest.raises(ConfigurationError, match="does not hold a record that a segment has: record 1 of payload partition 0"):
        await behind.seal(made.command(2, look=True))


async def test_a_backlog_is_sealed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log takes several segments, contents before entries, so that an interrupted one is still a log as it once was."""
    monkeypatch.setattr("notary.archive.stream.SEGMENT_BYTES", 1)
    monkeypatch.setattr("ordering.local_reader.POLL_RECORDS_MAX", 2)
    made = Streamed(tmp_path)
    await made.append(*[(partition, b"%d" % number) for number in range(20) for partition in (ORDERING, 0, 1)])
    sealed = await made.process().seal(made.command(19))
    assert sealed.records == 59
    assert sealed.segments > 2
    reached = dict.fromkeys((ORDERING, 0, 1), 0)
    for segment in sorted(made.found(), key=lambda each: each.sealed_at_ms):
        for part in segment.parts:
            assert part.partition != ORDERING or reached[0] == reached[1] == 20
            reached[part.partition] = part.offset_end
    assert made.fetch().records == 59


async def test_empty_records_fill_a_segment_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may write to the payload topic can append millions of empty records: each counts, also within one poll."""
    monkeypatch.setattr("notary.archive.stream.SEGMENT_BYTES", 10 * RECORD_BYTES)
    made = Streamed(tmp_path)
    for _ in range(95):
        made.log.put(0, None, None)
    assert (await made.process().seal(made.command(0))).segments == 10
    assert [segment.records for segment in made.found()].count(10) == 9


async def test_a_clock_that_was_set_back_replaces_no_segment(made: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of segments with contents alone differ only by their times: two of one millisecond, also of two processes, both stay."""
    monkeypatch.setattr(made, "now_ms", lambda: 1_000)
    for value in (b"p1", b"p2"):
        sealing = made.process()
        for more in (b"", b" again"):
            await made.append((0, value + more))
            assert (await sealing.seal(made.command(0))).segments == 1
    assert (await sealing.seal(made.command(2))).records == 2
    assert len(made.found()) == 5
    assert made.fetch().records == 8


def test_a_segment_comes_behind_those_that_it_goes_on_from() -> None:
    """Its parts are those of the topic-partitions with new records: the sums of their offsets say nothing about the order."""

    def segment(name: str, **parts: tuple[int, int]) -> Any:
        partitions = {"order": ORDERING, "first": 0, "second": 1}
        found = [SimpleNamespace(partition=partitions[of], offset_first=first, offset_end=end) for of, (first, end) in parts.items()]
        return SimpleNamespace(name=name, sealed_at_ms=0, parts=found)

    large = segment("b", order=(0, 5), first=(0, 40))
    behind = segment("a", order=(5, 6))
    again = segment("c", order=(2, 5))
    torn = segment("d", second=(7, 9))
    assert in_order([behind, again, large], {}) == [large, behind, again], "its records are compared"
    assert in_order([torn, behind, large], {}) == [large, behind, torn], "the gap is reported behind all that fits"
    assert in_order([behind, large], {ORDERING: 6, 0: 40}) == []


def test_an_order_of_many_segments_is_found_at_once() -> None:
    """Segments with contents alone have names before all others, and fit in between: none is examined again for each of the others."""
    looks = 0

    class Parts(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    def segment(number: int) -> Any:
        first, parts = number if number % 3 else 0, Parts([SimpleNamespace(partition=0, offset_first=number, offset_end=number + 1)])
        if first:
            parts.append(SimpleNamespace(partition=ORDERING, offset_first=number, offset_end=number + 1))
        return SimpleNamespace(name=f"{first:016d}-{number:014d}-w1.note", sealed_at_ms=number, parts=parts)

    def counted(count: int) -> int:
        nonlocal looks
        looks = 0
        segments = [segment(number) for number in range(count)]
        assert in_order(segments, {ORDERING: count}) == segments
        return looks

    assert counted(400) < 5 * counted(100)


async def test_two_runs_that_overlap_add_one_range(made: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at once, on machines whose locks do not reach each other: the later one gives up, and the files of the range stay."""
    await made.process().seal(made.command(2))

    def late(*given: Any) -> None:
        monkeypatch.setattr("notary.archive.fetch.create_file", create_file)
        assert made.fetch().range == 1
        create_file(*given)

    monkeypatch.setattr("notary.archive.fetch.create_file", late)
    with pytest.raises(ConfigurationError, match=r"has added .*00000001\.json meanwhile"):
        made.fetch()
    assert await made.archived() == {ORDERING: [b"o0", b"o1"], 0: [b"p0"], 1: [b"q0"]}


@pytest.mark.parametrize("problem", [OSError, KeyboardInterrupt])
async def test_an_error_after_the_range_file_keeps_its_files(
    made: Streamed, problem: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error or Ctrl-C after the range file was written removes none of the files that it lists."""
    await made.process().seal(made.command(2))

    def failing(*given: Any) -> None:
        create_file(*given)
        raise problem(5, "Input/output error")

    monkeypatch.setattr("notary.archive.fetch.create_file", failing)
    with pytest.raises(problem):
        made.fetch()
    assert await made.archived() == {ORDERING: [b"o0", b"o1"], 0: [b"p0"], 1: [b"q0"]}


async def test_a_full_disk_gets_its_space_back(made: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a file writes what is left of it, which fails on a full disk too: the files are removed all the same."""
    await made.process().seal(made.command(1))
    limits, write = resource.getrlimit(resource.RLIMIT_FSIZE), _Added._write

    def on_a_full_disk(*given: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
        write(*given)

    with monkeypatch.context() as patch:
        patch.setattr(_Added, "_write", on_a_full_disk)
        try:
            with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'archive'}'"):
                made.fetch()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [file for file in (tmp_path / "archive").rglob("*") if file.is_file()]
    assert made.fetch().records == 3


@pytest.mark.parametrize("is_store", [False, True])
async def test_a_full_disk_is_named(made: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_store: bool) -> None:
    """A segment is made in a temporary folder, and copied to its store: the error names the one whose disk is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_a_full_disk(records: Sequence[Record], file: Path) -> None:
        if is_store:
            write(records, file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
        if not is_store:
            write(records, file)

    monkeypatch.setattr(f"{SegmentStream.__module__}.write", on_a_full_disk)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path / 'segments' / 'files' if is_store else tmp_path}'"):
            await made.process().seal(made.command(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_killed_run_leaves_nothing_after_the_next(made: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is killed before its range file is in place: the archive can be read, and the next run removes the files that it left."""
    await made.process().seal(made.command(1))
    made.fetch()
    await made.process().seal(made.command(2))

    with monkeypatch.context() as patch:
        patch.setattr("os.link", killed)
        patch.setattr("notary.archive.fetch._Added.drop", lambda added: None)
        with pytest.raises(Killed):
            made.fetch()
    assert len(ArchivedLog(tmp_path / "archive").unlisted()) == 1
    assert made.fetch().range == 2
    assert (await made.archived())[ORDERING] == [b"o0", b"o1"]
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == ["ordering", "payload", "ranges"]
    assert sorted(path.name for path in (tmp_path / "archive" / "ranges").iterdir()) == ["00000001.json", "00000002.json"]


async def test_the_files_of_a_range_are_durable_before_it(made: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments may be removed once a range lists their records: after a power loss, its files must have them."""
    synced = list[str]()
    await made.process().seal(made.command(2))
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    made.fetch()
    files = [f"{path}{UNFINISHED}" for path in (tmp_path / "archive").rglob("*.parquet")]
    (range_file,) = [name for name in synced if ".00000001.json." in name]
    assert len(files) == 3
    assert set(files) <= set(synced[: synced.index(range_file)])


async def test_the_tail_of_another_history_is_refused(made: Streamed) -> None:
    """The archive has records that the log then lost: a segment that covers their offsets with other records is not added."""
    second = made.process("w2")
    await second.seal(made.command(1))
    await made.append((0, b"p1 lost"))
    await made.process("w1").seal(made.command(2))
    made.fetch()
    made.replace(0, 1, b"p1 new", b"p2 new")
    with made.hidden():
        await second.seal(made.command(2))
    with pytest.raises(ConfigurationError, match=r"the archive and the segment .*-w2\.note differ at offset 1 of payload partition 0"):
        made.fetch()
    assert (await made.archived())[0] == [b"p0", b"p1 lost"]


async def test_an_archived_part_of_another_history_is_refused(made: Streamed) -> None:
    """A segment with archived offsets only, with another last record, is found by its manifest: neither `fetch` nor `prune` continues."""
    await made.process("w1").seal(made.command(2))
    made.fetch()
    made.replace(0, 0, b"another")
    with made.hidden():
        await made.process("w2").seal(made.command(1))
    for action in (made.fetch, made.prune):
        with pytest.raises(ConfigurationError, match=r"the archive and the segment .*-w2\.note differ at offset 0 of payload partition 0"):
            action()
    assert len(made.found()) == 2


async def test_a_contained_segment_of_another_history_is_refused(made: Streamed, tmp_path: Path) -> None:
    """A segment of other records that lies inside one of the same run is compared with it, though it has nothing new."""
    await made.append((0, b"p1"))
    await made.process("w2").seal(made.command(2))
    made.replace(0, 0, b"another")
    with made.hidden():
        await made.process("w1").seal(made.command(1))
    with pytest.raises(ConfigurationError, match=r"-w2\.note and the segment .*-w1\.note differ at offset 0 of payload partition 0"):
        made.fetch()
    assert not [*(tmp_path / "archive").rglob("*.parquet")]


async def test_an_overlap_behind_another_segment_is_compared(made: Streamed) -> None:
    """A segment is compared with all that it overlaps, not only with the one added last before it."""
    sealing = made.process("w1")
    await sealing.seal(made.command(1))
    for value in (b"p1", b"p2"):
        await made.append((0, value))
        await sealing.seal(made.command(1))
    made.replace(0, 0, b"another", b"p1", b"p2", b"p3")
    with made.hidden():
        await made.process("w2").seal(made.command(1))
    with pytest.raises(ConfigurationError, match="differ at offset 0 of payload partition 0"):
        made.fetch()


async def test_a_missing_record_is_a_difference(made: Streamed) -> None:
    """A segment without the record of an offset that another segment has is refused."""
    await made.append((0, b"p1"), (0, b"p2"))
    await made.process("w1").seal(made.command(2))
    original = SegmentStream._write

    async def without_one(stream: SegmentStream, key: str, head: int) -> int:
        stream._read[0] = [record for record in stream._read[0] if record.offset != 1]
        return await original(stream, key, head)

    with made.hidden(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentStream, "_write", without_one)
        await made.process("w2").seal(made.command(2))
    with pytest.raises(ConfigurationError, match="differ at offset 1 of payload partition 0"):
        made.fetch()


async def test_a_former_key_replaces_no_records(made: Streamed, tmp_path: Path) -> None:
    """A thief of a former key adds a segment of other records at the same offsets: it is refused, and nothing is archived."""
    former = Ed25519PrivateKey.generate()
    keys = [VerifierKey(ORIGIN, former.public_key().public_bytes_raw()), *made.trusted]
    sealing = made.process()
    made.clock_ms = 5_000
    await sealing.seal(made.command(1))
    await made.append((0, b"p1"))
    await sealing.seal(made.command(2))
    thief = Streamed(tmp_path, key=former)
    await thief.append(*[(partition, b"junk") for partition in (ORDERING, ORDERING, 0, 0, 1)])
    with made.hidden():
        await thief.process("a").seal(thief.command(2))
    segments = list(find(made.store, keys, NAME))
    assert len(segments) == 3
    with pytest.raises(ConfigurationError, match=r"-a\.note.* differ at offset 0 of the ordering topic"):
        made.fetch(segments)
    assert not [*(tmp_path / "archive").rglob("*.parquet")]


@pytest.mark.parametrize("archived", [False, True])
async def test_a_former_key_adds_no_partitions(made: Streamed, archived: bool) -> None:
    """A thief of a former key signs a segment of a log with 100,000 partitions. `spark_join archive` would refuse a range of so many."""
    await made.process().seal(made.command(1))
    if archived:
        made.fetch()
    await made.append((0, b"p1"))
    await made.process().seal(made.command(2))
    true = made.found()
    forged = msgspec.structs.replace(true[0], payload_partitions=100_000, sealed_at_ms=0, signer=b"former")
    (part, *_) = [part for part in true[0].parts if part.partition == 1]
    beyond = msgspec.structs.replace(forged, parts=(msgspec.structs.replace(part, partition=99_999),))
    with pytest.raises(ConfigurationError, match=r"has records of payload partition 99999, and the segments .* of 2 payload partitions"):
        made.fetch([beyond, *true])
    assert made.fetch([forged, *true]).records == (2 if archived else 5)
    assert made.archive is not None
    assert made.archive.payload_partitions == 2


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("covers_it", [False, True])
async def test_a_former_key_signs_nothing_after_its_end(tmp_path: Path, archived: bool, covers_it: bool) -> None:
    """A segment that a former key signed is refused if its ordering records go beyond the `key` record that replaced this key.

    It may have that record too, and an early time, so that it comes before the true segments.
    """
    former, owner = Ed25519PrivateKey.generate(), SigningKey(bytes(32))
    made = Streamed(tmp_path, key=former)
    genesis = sign_record(Genesis(b"salt" * 4, 2, made.public_key, owner.public_key, NAME, ORIGIN), NO_LOG_ID, owner)
    present = Ed25519PrivateKey.generate()
    rotation = endorse_key(SigningKey(present.private_bytes_raw()), log_id_of(genesis), made.public_key)
    await made.append((ORDERING, genesis), (ORDERING, b"o1"), (ORDERING, sign_record(rotation, log_id_of(genesis), owner)))
    keys = [*made.trusted, VerifierKey(ORIGIN, present.public_key().public_bytes_raw())]
    await made.process().seal(made.command(2))
    made.use(present)
    await made.process("w2", keys).seal(made.command(3))
    assert len(list(find(made.store, keys, NAME))) == 2
    if archived:
        assert made.fetch(list(find(made.store, keys, NAME))).records == 3
    await made.append((ORDERING, b"forged"))
    made.use(former)
    made.clock_ms = 0
    with made.hidden() if covers_it else contextlib.nullcontext():
        await made.process("thief", keys).seal(made.command(4))
    made.use(present)
    with pytest.raises(ConfigurationError, match=r"-thief\.note has ordering records up to offset 4, and ordering record 2 replaced"):
        made.fetch(list(find(made.store, keys, NAME)))


@pytest.mark.parametrize("damage", ["missing", "changed"])
async def test_a_damaged_archive_keeps_the_segments(made: Streamed, tmp_path: Path, damage: str) -> None:
    """`prune` removes no segment while a file of the archive that has their records is missing or changed; it names the file."""
    await made.process().seal(made.command(2))
    made.fetch()
    file = next((tmp_path / "archive" / "payload" / "partition=1").iterdir())
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content[:-1] + b"x")
    with pytest.raises(ConfigurationError, match=rf"{file.name} is damaged.*No segment was removed"):
        made.prune()
    assert len(made.found()) == 1
    file.write_bytes(content)
    assert made.prune() == [], "the last segment stays"


async def mixed(made: Streamed) -> SegmentStream:
    """Have two workers seal different records of one offset. Returns the stream of the one that has not seen the other's segment."""
    ahead = made.process("w2")
    await ahead.seal(made.command(1))
    await made.append((0, b"p1 lost"))
    await made.process("w1").seal(made.command(1))
    made.replace(0, 1, b"p1 new", b"p2 new")
    with made.hidden():
        await ahead.seal(made.command(2))
    return ahead


async def test_another_history_stops_the_next_process(made: Streamed) -> None:
    """A process that starts again after the error does not seal on over two histories either."""
    ahead = await mixed(made)
    await made.append((0, b"p3"), (ORDERING, b"o2"))
    for sealing in (ahead, made.process("w2"), made.process("w3")):
        with pytest.raises(ConfigurationError, match="does not hold a record that a segment has: record 1 of payload partition 0"):
            await sealing.seal(made.command(3, look=True))


async def test_segments_that_end_differently_stop_a_new_process(made: Streamed) -> None:
    """Two segments whose manifests have different last records of one offset are named, whichever of them the log has."""
    await made.process("w1").seal(made.command(1))
    made.replace(0, 0, b"another")
    with made.hidden():
        await made.process("w2").seal(made.command(1))
    with pytest.raises(ConfigurationError, match=r"segment .*-w1\.note and the segment .*-w2\.note differ at offset 0 of payload part"):
        await made.process("w3").seal(made.command(2))


async def test_overlaps_of_one_history_stop_nobody(made: Streamed) -> None:
    """A new process continues after segments that overlap and have the same records."""
    first, second = made.process("w1"), made.process("w2")
    await first.seal(made.command(1))
    for number in range(12):
        await made.append((0, b"p%d" % number))
        await first.seal(made.command(1))
    with made.hidden():
        await second.seal(made.command(2))
    assert (await made.process("w1").seal(made.command(2))).records == 0
    await made.append((0, b"the next"))
    assert (await made.process("w1").seal(made.command(2))).records == 1


async def test_a_failed_comparison_is_repeated(made: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic-partition without a leader ends a comparison: the next command compares the same segments, and finds the other history."""
    ahead = await mixed(made)

    async def away(*given: Any, **named: Any) -> str:
        raise NotReady("no leader now")

    with monkeypatch.context() as patch:
        patch.setattr("notary.archive.stream.find_again", away)
        with pytest.raises(NotReady):
            await ahead.seal(made.command(2, look=True))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="does not hold a record that a segment has: record 1 of payload partition 0"):
            await ahead.seal(made.command(2, look=True))


async def test_no_entry_is_sealed_without_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a payload partition has no leader, nothing is sealed: an entry that was applied before may name content in that partition."""
    made = Streamed(tmp_path)
    process = made.process()
    await made.append((1, b"q0"), (ORDERING, b"o0"))
    offsets = made.log.offsets

    async def without_a_leader() -> dict[int, Any]:
        return {partition: each for partition, each in (await offsets()).items() if partition != 1}

    with monkeypatch.context() as patch:
        patch.setattr(made.log, "offsets", without_a_leader)
        with pytest.raises(NotReady, match="payload partition 1 has no leader"):
            await process.seal(made.command(1))
    assert (await process.seal(made.command(1))).records == 2


async def test_the_writer_rarely_lists_the_store(made: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The active writer lists the store at its first command and then at few of them; a worker whose turn is later does at each."""
    listed: list[str] = []
    sizes = made.store.sizes
    monkeypatch.setattr(made.store, "sizes", lambda folder: listed.append(folder) or sizes(folder))
    sealing = made.process()
    counts = []
    for _ in range(COMMANDS_PER_CHECK + 1):
        await sealing.seal(made.command(1))
        counts.append(len(listed))
    assert counts == [1] * COMMANDS_PER_CHECK + [2]
    for _ in range(3):
        await sealing.seal(made.command(1, look=True))
    assert len(listed) == 5


async def test_no_command_reads_manifests_for_ever(made: Streamed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket may have more manifests than a process can read before its worker ends it: each command reads on behind the last one.

    Those that do not open are read once too, and reported when all are read.
    """
    await made.append((0, b"p1"), (1, b"q1"), (ORDERING, b"o2"))
    sealing = made.process("w1")
    for head in (0, 1, 2):
        assert (await sealing.seal(made.command(head))).segments == 1
    for name in ("a", "z"):
        (made.folder / "segments" / MANIFESTS / f"{name}.note").write_bytes(b"")
    read: list[str] = []
    chunks = made.store.chunks
    monkeypatch.setattr(made.store, "chunks", lambda folder, name: read.append(name) or chunks(folder, name))
    monkeypatch.setattr("notary.archive.stream.LOOK_S_MAX", 0.0)
    monkeypatch.setattr("notary.archive.segment.PIECE", 1)
    process = made.process("w2")
    for count in (1, 2, 3):
        with pytest.raises(NotReady, match=f"{count} manifests of the store were read"):
            await process.seal(made.command(3))
    sealed = await process.seal(made.command(3))
    assert (sealed.segments, sealed.records) == (1, 1)
    assert sealed.skipped.startswith("2 files among")
    assert len(read) == len(set(read)) == 5


async def test_foreign_files_do_not_stop_the_writer(made: Streamed, tmp_path: Path) -> None:
    """Files among the manifests that no trusted key signed are skipped and reported once; a segment beside them still counts."""
    await made.process("w1").seal(made.command(1))
    manifests = tmp_path / "segments" / MANIFESTS
    (manifests / ".DS_Store").write_bytes(b"")
    note = next(each for each in manifests.iterdir() if each.suffix == ".note")
    (manifests / "a copy.note").write_text(note.read_text())
    sealing = made.process("w2")
    sealed = await sealing.seal(made.command(2))
    assert (sealed.segments, sealed.records) == (1, 1)
    assert sealed.skipped.startswith("2 files among the segments' manifests were skipped; the first: the manifest .DS_Store: ")
    assert (await sealing.seal(made.command(2, look=True))).skipped == ""
    (manifests / ("x" * 255)).write_bytes(b"y" * 1000)
    assert (await sealing.seal(made.command(2, look=True))).skipped.startswith("1 files")
    with pytest.raises(NotVerified, match=r"the manifest \.DS_Store: "):
        made.fetch()


async def test_killed_runs_do_not_pile_up(made: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run removes unfinished files that are more than an hour old, and nothing younger."""
    await made.process().seal(made.command(2))

    def close(added: _Added) -> None:
        for _, out, writer in added._writers.values():
            writer.close()
            out.close()

    def left() -> list[Path]:
        return [*(tmp_path / "archive").rglob(f"*{UNFINISHED}")]

    counts = []
    with monkeypatch.context() as patch:
        patch.setattr("notary.archive.fetch.move_into_place", killed)
        patch.setattr("notary.archive.fetch._Added.drop", close)
        for age_s in (LEFT_S + 60, LEFT_S + 60, LEFT_S - 60, 0):
            with pytest.raises(Killed):
                made.fetch()
            counts.append(len(left()))
            for path in left():
                at_s = path.stat().st_mtime - age_s
                os.utime(path, (at_s, at_s))
    assert counts == [3, 3, 3, 6]
    assert made.fetch().range == 1
    assert len([*(tmp_path / "archive").rglob("*.parquet")]) == 3
    assert ArchivedLog(tmp_path / "archive").unlisted() == []


async def test_files_of_a_lost_range_stay(tmp_path: Path) -> None:
    """The last range is lost, and so are its segments: its files are the only copy, and `fetch` removes none of them."""
    made = Streamed(tmp_path)
    process = made.process()
    for number in range(4):
        await made.append((0, b"p"), (1, b"q"), (ORDERING, b"o%d" % number))
        await process.seal(made.command(number + 1))
        if number % 2 == 0:
            made.fetch()
    assert len(made.prune()) == 3
    (tmp_path / "archive" / "ranges" / "00000002.json").unlink()
    lost = [*(tmp_path / "archive").rglob("00000002-*.parquet")]
    for path in lost:
        os.utime(path, (1, 1))
    with pytest.raises(ConfigurationError, match="are missing"):
        made.fetch()
    assert len(lost) == 3
    assert all(path.exists() for path in lost)


async def test_files_of_former_runs_go_only_with_their_copies(tmp_path: Path) -> None:
    """Later runs remove left files of every range whose records the archive has; files with other records are moved."""
    archives = []
    for name, value in (("one", b"p0"), ("another", b"else")):
        made = Streamed(tmp_path / name)
        await made.append((0, value), (ORDERING, b"o0"))
        process = made.process()
        await process.seal(made.command(1))
        made.fetch()
        archives.append(tmp_path / name / "archive")
    await made.append((0, b"p1"), (ORDERING, b"o1"))
    await process.seal(made.command(2))
    one, archive = archives
    ours, theirs = [next(each.glob("payload/partition=0/*.parquet")) for each in (archive, one)]
    left = {name: ours.with_name(f"{name}-segments-left.parquet") for name in ("00000001", "00000002", "00000003")}
    for path in left.values():
        shutil.copy(ours, path)
    damaged = ours.with_name("00000001-segments-damaged.parquet")
    damaged.write_bytes(ours.read_bytes()[:-1])
    (archive / "ranges" / ".00000001.json.0.new").write_bytes(b"")
    unknown = archive / "payload" / "partition=7"
    unknown.mkdir()
    others = [folder / "00000002-segments-other.parquet" for folder in (ours.parent, unknown)]
    for path in others:
        shutil.copy(theirs, path)
    assert made.fetch().range == 2
    moved = [archive / UNLISTED / other.relative_to(archive) for other in (*others, damaged)]
    assert {*ArchivedLog(archive).unlisted()} == {*moved, left["00000003"]}, "another run may be writing a later range"
    assert [path.read_bytes() for path in moved] == [theirs.read_bytes()] * 2 + [ours.read_bytes()[:-1]]
    assert len([*(archive / "ranges").iterdir()]) == 2


async def test_the_later_of_two_fetches_reports_the_earlier(made: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines fetch at once. The range of the first is there when the second ends its files, and `tidy` may have removed some."""
    await made.process().seal(made.command(1))
    end = _Added.end

    def slowly(added: _Added) -> list[dict[str, Any]]:
        monkeypatch.setattr(_Added, "end", end)
        made.fetch()
        lines = end(added)
        for path in added.files:
            path.unlink()
        return lines

    monkeypatch.setattr(_Added, "end", slowly)
    with pytest.raises(ConfigurationError, match="another process has added"):
        fetch(made.store, made.found(), tmp_path / "archive", None, made.public_key)


async def test_comparing_does_not_grow_with_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fetch` reads no more of an archive with many ranges than of one with two, if it has nothing to add."""
    made = Streamed(tmp_path)
    sealing = made.process()
    read: list[str] = []
    original: Any = ArchivedLog._read

    def counted(log: ArchivedLog, file: Any) -> Iterator[list[Record]]:
        read.append(file.path)
        yield from original(log, file)

    monkeypatch.setattr(ArchivedLog, "_read", counted)
    counts = []
    for number in range(12):
        await made.append((0, b"p"), (ORDERING, b"o%d" % number), *[(1, b"q")] * (number < 2))
        await sealing.seal(made.command(number + 1))
        if number % 2:
            assert made.fetch().range == number // 2 + 1
            read.clear()
            assert made.fetch().range == 0
            counts.append(len(read))
    assert counts == [3] * 6, "the last file of each topic-partition"


async def test_an_old_part_of_another_history_is_found_by_prune(made: Streamed) -> None:
    """A segment of another history inside an earlier range adds nothing; `prune` compares it, and removes nothing."""
    sealing = made.process("w1")
    await sealing.seal(made.command(1))
    made.fetch()
    await made.append((0, b"p1"), (1, b"q1"))
    await sealing.seal(made.command(2))
    made.fetch()
    first = made.log._records[0][0]
    made.replace(0, 0, b"another")
    with made.hidden():
        await made.process("w2").seal(made.command(1))
    made.log._records[0][0] = first
    assert made.fetch().range == 0
    with pytest.raises(ConfigurationError, match="differ at offset 0 of payload partition 0"):
        made.prune()


async def test_after_a_prune_the_next_process_seals_only_what_is_new(made: Streamed) -> None:
    """`prune` after a quiet day leaves the segments that end last, so a new process neither seals the log again nor misses a lost end."""
    sealing = made.process()
    assert (await sealing.seal(made.command(1))).records == 3
    assert (await sealing.seal(made.command(2))).records == 1
    await sealing.close()
    made.fetch()
    made.prune()
    assert (await made.process().seal(made.command(2))).records == 0
    await made.append((0, b"p1"), (ORDERING, b"o2"))
    assert (await made.process().seal(made.command(3))).records == 2
    assert made.fetch().records == 2
    assert len(made.prune()) == 1, "the one before it had the last content of partition 1 and stays, the one between them goes"
    made.replace(1, 0, b"another")
    with pytest.raises(ConfigurationError, match="does not hold a record that a segment has: record 0 of payload partition 1"):
        await made.process().seal(made.command(3))


async def test_a_file_that_another_segment_names_stays(made: Streamed, tmp_path: Path) -> None:
    """Two workers that seal the same records name one file. It stays with the younger segment: an older copy of the archive needs it."""
    await made.process("w1").seal(made.command(2))
    with made.hidden():
        made.clock_ms = 5_000
        await made.process("w2").seal(made.command(2))
    assert len({segment.sha256 for segment in made.found()}) == 1
    made.fetch()
    (removed,) = made.prune(4_000)
    assert removed.endswith("-w1.note")
    (tmp_path / "archive").rename(tmp_path / "another copy")
    assert made.fetch().records == 4


async def test_files_that_no_segment_names_are_removed_when_they_are_old(made: Streamed, tmp_path: Path) -> None:
    """A `prune` that is killed after the manifests leaves such files, and so does a worker that is killed before its manifest."""
    process = made.process()
    await process.seal(made.command(1))
    await made.append((0, b"p1"), (1, b"q1"), (ORDERING, b"o2"))
    await process.seal(made.command(3))
    first, second = made.found()
    made.fetch()
    made.store.remove(MANIFESTS, first.name)  # and the process was killed
    assert made.prune() == []
    assert made.store.sizes(FILES).keys() == {first.sha256, second.sha256}, "the manifest may still come"
    old_s = time.time() - LEFT_S - 1
    os.utime(tmp_path / "segments" / FILES / first.sha256, (old_s, old_s))
    assert made.prune() == []
    assert made.store.sizes(FILES).keys() == {second.sha256}


async def test_a_segment_that_is_sealed_during_a_prune_keeps_its_file(made: Streamed, tmp_path: Path) -> None:
    """Two workers that seal the same records name one file. The first worker's segment is removed while the second one's appears."""
    await made.process("w1").seal(made.command(1))
    with made.hidden():
        await made.process("w2").seal(made.command(1))
    first, second = made.found()
    assert first.sha256 == second.sha256
    await made.append((0, b"p1"), (1, b"q1"), (ORDERING, b"o2"))
    await made.process("w1").seal(made.command(3))
    made.fetch()
    note = tmp_path / "segments" / MANIFESTS / second.name
    content = note.read_bytes()
    note.unlink()
    assert made.prune(meanwhile=lambda: note.write_bytes(content)) == [first.name]
    assert second.sha256 in made.store.sizes(FILES)
