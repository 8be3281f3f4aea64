"""`notary log show`: the records of a log, their signers and effects, and the reasons of records without effect."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from notary import cli
from notary.cli import log as command
from notary.config import load
from ordering.embedded import EmbeddedLog
from ordering.log import LogOffsets
from ordering.records import Genesis, Partitions, Retire, SalvageItems, View, batch_key
from ordering.salvage import Hashed, Lost
from ordering.signatures import NO_LOG_ID, SigningKey, sign_record
from tests.kafka.reading_back import read_log_records
from tests.notary.cli.command import Command
from tests.notary.cli.written import checkpoint, entry, fill, register, signing_key, write
from tests.notary.http.checked_client import serving
from tests.notary.party import Bank, spend, transaction_id
from tests.notary.process import NotaryDirectory
from tests.spark.archived import archive

STRANGER = SigningKey(bytes(32))


@pytest.fixture
def directory(tmp_path: Path) -> NotaryDirectory:
    """A notary whose log has a genesis record only."""
    return NotaryDirectory.create(tmp_path / "notary", options=["--format-version", "1"])


@pytest.fixture
def show(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary log show` on that log."""
    return Command(capsys, "log", "show", config=directory.config)


@pytest.fixture
def show_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs it on the archive that `archived` makes."""
    return Command(capsys, "log", "show", "--archive", tmp_path / "archive")


def shown(show: Command, *flags: object) -> list[dict[str, Any]]:
    """Returns the records of `--json`."""
    return [json.loads(line) for line in show.run("--json", *flags).splitlines()]


@pytest.mark.seconds
def test_a_log_is_shown(own_directory: NotaryDirectory, bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    """Each record has kind, fields, signer and effect; an entry has its content; `seen` counts the records that took effect."""
    show = Command(capsys, "log", "show", config=own_directory.config)
    requests = [spend(), spend()]
    with serving(own_directory.config) as client:
        client.decide(bank, *requests)
    records = shown(show, "--payload")
    ordering = [record for record in records if record["topic"] == "ordering" and record["kind"] != "checkpoint"]
    assert [(each["offset"], each["kind"], each["signed_by"], each["seen"]) for each in ordering] == [
        (0, "genesis", "owner", 1),
        (1, "activate", "owner", 2),
        (2, "register", "key 1", 3),
        (3, "entry", "key 1", 4),
    ]
    genesis, activated, registered, decided = ordering
    assert genesis["fields"]["notary_name"] == "O=Notary Service,L=London,C=GB"
    assert registered["fields"]["name"] == "worker-1"
    assert registered["fields"]["view"] == {"seen": 2, "history": activated["history"]}
    ids = [transaction_id(request) for request in requests]
    assert decided["fields"]["transaction_ids"] == decided["content"]["transaction_ids"] == ids
    assert not decided["content"]["filled"]
    [payload] = [record for record in records if record["topic"] == "payload"]
    assert (payload["content_of"], payload["kind"], payload["became"]) == (3, "payload", "content of ordering record 3")
    assert (payload["partition"], payload["offset"]) == (decided["content"]["partition"], decided["content"]["offset"])
    lines = show.run("--payload").splitlines()
    assert [line.split()[0] for line in lines if "  entry " in line or "  genesis " in line or "  register " in line] == ["0", "2", "3"]
    assert any("effect 4" in line and "requests=2" in line for line in lines)
    assert any("content     payload partition" in line and "2 requests" in line for line in lines)


def test_what_took_no_effect_says_why(directory: NotaryDirectory, show: Command) -> None:
    """Garbage, forged records, copies, records by a former key and late records are each shown with reason and signer."""
    former = directory.path / "former.pem"
    shutil.copy(directory.path / "notary-key.pem", former)
    stolen = sign_record(Retire(1), bytes(32), signing_key(directory.path / "owner-key.pem"))
    write(directory.path, [register("w1", 1), register("w1", 1), b"garbage", checkpoint(1), checkpoint(7), entry(7, 1, b"x"), stolen])
    write(directory.path, [Retire(1)])  # signed by the notary's key, not the owner's
    foreign = Genesis(bytes(16), 4, STRANGER.public_key, STRANGER.public_key, "O=Thief", "thief.example/x")
    write(directory.path, [sign_record(foreign, NO_LOG_ID, STRANGER)])
    write(directory.path, [Partitions(2)], "owner-key.pem")
    assert cli.main(["key", "rotate", "--config", str(directory.config)]) == 0
    write(directory.path, [register("w2", 2)], "former.pem")
    expected = [
        ("genesis", "owner", 1, "effect 1"),
        ("register", "key 1", 2, "effect 2, worker 'w1' had another history after 1 records than this worker"),
        ("register", "key 1", None, "came twice"),
        (None, "nobody", None, "at least"),
        ("checkpoint", "key 1", None, "is not compared"),
        ("checkpoint", "key 1", None, "that incarnation is over"),
        ("entry", "key 1", None, "does not count"),
        ("retire", "nobody", None, "no signature of the key in force"),
        ("retire", "key 1", None, "no signature of the key in force"),
        ("genesis", "nobody", None, "no signature"),
        ("partitions", "owner", None, "skipped: a partitions record does not count: 2 is not more than the log has"),
        ("key", "owner", 3, "effect 3"),
        ("register", "key 1 (former)", None, "no signature of the key in force"),
    ]
    for record, (*facts, why) in zip(shown(show), expected, strict=True):
        assert [record["kind"], record["signed_by"], record["seen"]] == facts
        assert why in record["became"], record


def test_the_items_of_a_salvage_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People see the number of items, programs each item with its type, and its bytes as hex."""
    made = NotaryDirectory.create(tmp_path / "notary")
    show = Command(capsys, "log", "show", config=made.config)
    write(made.path, [SalvageItems(bytes(32), View(1, bytes(32)), 0, (Lost(), Hashed(bytes(32))))], "owner-key.pem")
    assert shown(show)[-1]["fields"]["items"] == [{"type": "lost"}, {"type": "hashed", "leaf_hash": "00" * 32}]
    assert show.run().endswith(" first=0 items=2\n")


def test_payload_records_that_are_no_content_say_why(directory: NotaryDirectory, show: Command) -> None:
    """A fill that comes first is the content; later records, a forged fill, a stray record and a record with a bad key are not."""
    payload = b"[]"
    sent = entry(1, 1, payload)
    forged = (0, batch_key(1, 1), bytes(96))
    records = [forged, fill(directory.path, sent), (0, batch_key(1, 1), payload), (0, batch_key(9, 9), b"stray"), (0, b"bad", b"x")]
    write(directory.path, [register("w1", 1), sent, *records])
    found = shown(show, "--payload")
    decided = next(each for each in found if each["kind"] == "entry")
    assert decided["content"] == {"partition": 0, "offset": 1, "filled": True, "transaction_ids": []}
    payloads = [(each["kind"], each["signed_by"], each["content_of"], each["became"]) for each in found if each["topic"] == "payload"]
    assert payloads == [
        ("fill", "nobody", None, "skipped: another record is the content of its batch"),
        ("fill", "key 1", 2, "content of ordering record 2"),
        ("payload", None, None, "skipped: another record is the content of its batch"),
        ("payload", None, None, "not used: no entry of that batch took effect in this partition"),
        ("payload", None, None, "skipped: a payload key has 16 bytes, this one has 3"),
    ]
    assert "payload partition 0 offset 1: a fill: nothing" in show.run("--payload")


def test_content_that_is_missing_is_named(directory: NotaryDirectory, show: Command) -> None:
    """Behind an entry without content no record is applied, and the output names the missing content."""
    write(directory.path, [register("w1", 1), entry(1, 1, b"lost", partition=3), register("w2", 2)])
    became = [each["became"] for each in shown(show)]
    assert became[2:] == ["not applied: the content of batch (1, 1) is not in payload partition 3"] * 2


def test_a_part_is_shown(directory: NotaryDirectory, show: Command) -> None:
    """`--from` and `--count` select ordering records, and do not change what is printed of them."""
    write(directory.path, [register(f"w{number}", number) for number in range(1, 9)])
    complete = shown(show)
    assert len(complete) == 9
    assert shown(show, "--from", 3, "--count", 2) == complete[3:5]
    assert shown(show, "--from", 7) == complete[7:]
    assert shown(show, "--count", 0) == shown(show, "--from", 9) == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--count", -5], "--count is -5: give 0 or more"),
        (["--from", -1], "--from is -1"),
        (["--from", 2], "ends at offset 1"),
        (["--from", 10**30], "ends at offset 1"),
    ],
)
def test_a_part_outside_the_log_is_an_error(directory: NotaryDirectory, show: Command, flags: list[object], named: str) -> None:
    """A part that no log can have is an error, not an empty output. The end itself is none: a script may wait for more there."""
    assert named in show.refuses(*flags)


def test_a_part_has_the_payloads_of_its_entries(directory: NotaryDirectory, show: Command) -> None:
    """With a range, only payload records of the entries in it are shown."""
    payloads = [(number % 4, batch_key(1, number), b"%d" % number) for number in range(1, 5)]
    entries = [entry(1, number, b"%d" % number, number % 4) for number in range(1, 5)]
    write(directory.path, [register("w1", 1), *payloads, *entries])
    found = shown(show, "--payload", "--from", 3, "--count", 2)
    assert [each["content_of"] for each in found if each["topic"] == "payload"] == [3, 4]


def archived(directory: NotaryDirectory, folder: Path) -> Path:
    """Makes an archive of a directory's log, in two ranges."""
    return archive(asyncio.run(read_log_records(load(directory.config))), folder)


def varied(directory: NotaryDirectory) -> None:
    """Write a log that has records of every outcome, in both topics."""
    sent = entry(1, 1, b"[]")
    payloads = [(0, batch_key(1, 1), b"[]"), fill(directory.path, sent), (0, batch_key(9, 9), b"stray"), (0, b"bad", b"x")]
    write(directory.path, [register("w1", 1), register("w1", 1), b"garbage", checkpoint(1), sent, *payloads])
    assert cli.main(["key", "rotate", "--config", str(directory.config)]) == 0
    write(directory.path, [register("w2", 2), (1, batch_key(2, 1), b"1"), entry(2, 1, b"1", 1), entry(2, 2, b"lost", 3), register("w3", 3)])


@pytest.mark.parametrize("flags", [[], ["--payload"], ["--payload", "--json"], ["--from", "4", "--count", "5", "--payload", "--json"]])
def test_an_archive_is_shown_as_its_log(
    directory: NotaryDirectory, tmp_path: Path, show: Command, show_archive: Command, flags: list[str]
) -> None:
    """Each flag prints the same lines from an archive as from its log, for any number of reads."""
    varied(directory)
    write(directory.path, [(2, batch_key(9, number), b"many") for number in range(300)])
    archived(directory, tmp_path / "archive")
    from_log = show.run(*flags)
    assert len(from_log.splitlines()) >= 5
    assert show_archive.run(*flags) == from_log
    assert show_archive.err == show.err


def edit_range(folder: Path, named: str, /, **facts: object) -> None:
    """Change facts about a file in the last range, and set the SHA-256 of the file's present bytes."""
    manifest = folder / "ranges/00000002.json"
    said = json.loads(manifest.read_bytes())
    (file,) = [each for each in said["files"] if each["path"] == named]
    file.update(sha256=sha256((folder / named).read_bytes()).hexdigest(), **facts)
    manifest.write_text(json.dumps(said))


def test_offsets_without_a_record_are_no_damage(directory: NotaryDirectory, tmp_path: Path, show_archive: Command) -> None:
    """Offsets without a record, which transactions leave within a partition and at its end, do not change the output."""
    stray = [(0, batch_key(9, number), b"stray") for number in range(4)]
    write(directory.path, [register("w1", 1), *stray])
    folder = archived(directory, tmp_path / "archive")
    path = "payload/partition=0/00000002.parquet"
    table = pq.ParquetFile(folder / path).read()
    pq.write_table(table.slice(1), folder / path)
    edit_range(folder, path, records=1, offset_end=9)
    assert [each["offset"] for each in shown(show_archive, "--payload") if each["topic"] == "payload"] == [0, 1, 3]


LAST = "ordering/partition=0/00000002.parquet"


def cut(folder: Path) -> None:
    (folder / LAST).write_bytes((folder / LAST).read_bytes()[:-1])


def swapped(folder: Path) -> None:
    table = pq.ParquetFile(folder / LAST).read()
    pq.write_table(table.take([1, 0, *range(2, table.num_rows)]), folder / LAST)
    edit_range(folder, LAST)


def too_few(folder: Path) -> None:
    table = pq.ParquetFile(folder / LAST).read()
    pq.write_table(table.slice(0, 1), folder / LAST)
    edit_range(folder, LAST)


def other_columns(folder: Path) -> None:
    pq.write_table(pa.table({"offset": [5], "value": [b"x"]}), folder / LAST)
    edit_range(folder, LAST)


def no_parquet(folder: Path) -> None:
    (folder / LAST).write_bytes(b"garbage")
    edit_range(folder, LAST)


def newer(folder: Path) -> None:
    manifest = folder / "ranges/00000002.json"
    manifest.write_text(manifest.read_text().replace('"archive_version":2', '"archive_version":3'))


PLACE = r"/00000002\.parquet \(ordering partition 0, offsets \d+ up to \d+\)"


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (cut, rf"{PLACE} is damaged: its range has SHA-256 [0-9a-f]{{64}}, and the file [0-9a-f]{{64}}\. Take the file from another copy"),
        (lambda folder: (folder / LAST).unlink(), rf"{PLACE} cannot be read: No such file or directory\. Take the file"),
        (swapped, rf"{PLACE} is damaged: offset \d+ comes after \d+"),
        (too_few, rf"{PLACE} is damaged: it has 1 records, and its range counts \d+"),
        (other_columns, rf"{PLACE} has other columns than an archive's: offset \(int64\), value \(binary\)"),
        (no_parquet, rf"{PLACE} is damaged after offset \d+: "),
        (newer, r"ranges/00000002\.json has archive version 3, and this software reads 2"),
        (
            lambda folder: (folder / "ranges/00000001.json").unlink(),
            r"range 00000001\.json is missing .*, although 00000002\.json is there",
        ),
        (lambda folder: edit_range(folder, LAST, offset_first=0), rf"{LAST} has offsets 0 up to \d+ .* end at \d+: a range is missing"),
        (lambda folder: edit_range(folder, LAST, partition=1), r"is of ordering partition 1, which the archive does not have"),
        (lambda folder: edit_range(folder, LAST, path="ordering/partition=1/x.parquet"), r"is listed as of ordering partition 0, and lies"),
        (lambda folder: edit_range(folder, LAST, path="../x.parquet"), r"ranges/00000002\.json cannot be read: Expected `str` matching"),
        (lambda folder: (folder / "ranges/00000002.json").write_bytes(b'{"x":' + b"[" * 200_000), r"00000002\.json cannot be read: "),
        (lambda folder: shutil.rmtree(folder / "ranges"), r"is no archive: there is no ranges/00000001\.json"),
    ],
)
def test_damaged_archive_is_refused(
    directory: NotaryDirectory, tmp_path: Path, show_archive: Command, harm: Callable[[Path], object], complaint: str
) -> None:
    """An archive that does not match its ranges ends the command with exit 2, and the error names the file and the place."""
    varied(directory)
    folder = archived(directory, tmp_path / "archive")
    harm(folder)
    said = show_archive.refuses().splitlines()[-1]
    assert said.startswith("notary log: ")
    assert re.search(complaint, said)


def test_files_that_no_range_lists_are_named(directory: NotaryDirectory, tmp_path: Path, show_archive: Command) -> None:
    """Unlisted files may be the end of the log, so the output has a warning."""
    folder = archived(directory, tmp_path / "archive")
    (folder / LAST).with_name("00000003.parquet").write_bytes(b"half")
    assert "genesis" in show_archive.run()
    assert f"1 files of {folder} are in no range, {folder}/ordering/partition=0/00000003.parquet first" in show_archive.err


def test_a_batch_leaves_nothing_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--payload` nothing is kept of a batch whose line is printed: a log may be larger than memory."""
    directory = NotaryDirectory.create(tmp_path / "notary")
    records: list[Any] = [register("w1", 1)]
    for sequence in range(1, 300 + 1):
        payload = sequence.to_bytes(8, "big")
        records += [(0, batch_key(1, sequence), payload), entry(1, sequence, payload)]
    write(directory.path, records)
    made: list[Any] = []
    begin = command._Shown.__init__

    def keep(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(self)

    monkeypatch.setattr(command._Shown, "__init__", keep)
    assert "effect" in Command(capsys, "log", "show", config=directory.config).run()
    kept = {name: len(value) for name, value in vars(made[0]).items() if isinstance(value, dict | set | list) and len(value) >= 300}
    assert not kept


def test_the_beginning_is_shown_without_a_leader(monkeypatch: pytest.MonkeyPatch, show: Command) -> None:
    """A payload partition has none. The command helps to find out why, and the records asked for can be read."""
    offsets = EmbeddedLog.offsets

    async def led(log: EmbeddedLog) -> Mapping[int, LogOffsets]:
        return {partition: of for partition, of in (await offsets(log)).items() if partition != 0}

    monkeypatch.setattr(EmbeddedLog, "offsets", led)
    assert "genesis" in show.run("--count", 1)
