"""Writes and reads a state as files, so that a later run continues from it (docs/spark.md, Nightly runs).

    <out>/report.json                                 shows no violation, and has the SHA-256 of state.json
    <out>/state/state.json                            numbers, and all other files with their SHA-256
    <out>/state/carry.msgpack                         `effects.Carry`
    <out>/state/<table>/<number of the run>/*.parquet rows

A run writes only the new rows of the tables that grow. It links the files of the runs before it into its own folder, or copies them if
links are impossible. So each state is complete, and earlier ones may be deleted. All files are synced before `state.json` is, and the
report is written last: a crash before that leaves no state.

The SHA-256 of a file proves that it is unchanged. The files of `ids` and `consumed` are most of a state. The stage that searches them reads
their bytes once, and hashes them too (`rows_among`). Row counts and the root prove that the state was complete. Rows are counted while they
are written, and in the footers of the files, after writing and again before reading.
"""

import os
import re
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.engine.files import file_hashes, read_files, refuse_other_bytes, rows_among, rows_in, sync_files, write_complete, write_last
from spark_join.engine.stages import Stages
from spark_join.errors import CouldNotVerify
from spark_join.identity import Identity
from spark_join.log import TopicPartition
from spark_join.log.archive import ArchivedRanges, first_ranges, read_ranges
from spark_join.state import GROWING, STANDING, AppliedState, Find, LastRecord
from spark_join.tree import CHUNK_BITS, root_of

STATE_VERSION: Final = 5
STATE: Final = "state"
REPORT: Final = "report.json"
_MANIFEST = "state.json"
_CARRY = "carry.msgpack"
DECISIONS_A_FILE: Final = 250_000
"""Decisions for each file of a growing table, so that its files stay few; 41 MB of `consumed`, with 4 inputs a request."""
SEARCHED: Final = frozenset({"ids", "consumed"})
"""The tables whose files are hashed by the stage that searches them."""
_IS_NIGHT: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z").fullmatch
_Of = TypeVar("_Of")
_AGAIN = "no run continues from that; verify from the log's start, or from an earlier state"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    table: str
    path: str
    """Relative to the state's folder."""
    sha256: str


class _Version(msgspec.Struct, frozen=True):
    state_version: int


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state_version: int
    run: int
    """Number of the run; 1 for a run that began at the start of the log"""
    identity: Identity
    offsets_next: dict[str, dict[int, int]]
    last_records: dict[str, dict[int, LastRecord]]
    decisions: int
    root: str
    signatures_checked: bool
    rows: dict[str, int]
    """Number of rows of each table, those of earlier runs included"""
    files: list[_File]


class _Report(msgspec.Struct, frozen=True):
    violations: dict[str, int]
    state_sha256: str | None = None
    archive: ArchivedRanges | None = None


def write_state(session: SparkSession, out: Path, added: AppliedState, earlier: Path | None) -> str:
    """Write the state that `verify.state_after` returned into `out`, with the files of the run whose folder is `earlier`.

    Returns the SHA-256 of `state.json`. Raises `CouldNotVerify`.
    """
    before = None if earlier is None else _manifest(earlier)[0]
    run = 1 if before is None else before.run + 1
    folder = out / STATE
    files = []
    rows = dict.fromkeys((*GROWING, *STANDING), 0)
    if before is not None and earlier is not None:
        files += [file for file in before.files if file.table in GROWING]
        rows |= {table: before.rows[table] for table in GROWING}
        for file in files:
            _link(earlier / STATE / file.path, folder / file.path)
    # All later runs keep these files, and one file a task would be too many for a day's rows on a cluster.
    files_max = max(1, -(-(added.decided - (before.decisions if before is not None else 0)) // DECISIONS_A_FILE))
    written: dict[str, str] = {}
    for table in rows:
        into = f"{table}/{run:08}"
        frame: DataFrame = getattr(added, table)
        rows[table] += write_complete(frame.coalesce(files_max) if table in GROWING else frame, folder / into, "zstd")
        written |= {f"{into}/{each.name}": table for each in sorted((folder / into).glob("*.parquet"))}
    for path, found, problem in file_hashes(session, folder, written.keys()):
        if found is None:
            raise CouldNotVerify(f"{folder / path} was written, and an executor finds {problem}: all executors must reach it")
        files.append(_File(written[path], path, found))
    (folder / _CARRY).write_bytes(added.carry)
    files.append(_File("carry", _CARRY, sha256(added.carry).hexdigest()))
    assert added.identity is not None
    manifest = _Manifest(
        STATE_VERSION,
        run,
        added.identity,
        _by_topic(added.offsets_next),
        _by_topic(added.last_records),
        added.decided,
        added.root.hex(),
        added.signatures_checked,
        rows,
        files,
    )
    _refuse_other_rows(folder, manifest)
    sync_files(folder)
    content = msgspec.json.encode(manifest)
    write_last(folder / _MANIFEST, content)
    return sha256(content).hexdigest()


def newest_state(folder: Path) -> Path | None:
    """Returns the last of the runs in `folder`, by name, that has kept a state; None if none has.

    A folder whose name is not the time of a run is ignored: it could sort last for ever. Raises `CouldNotVerify` for a report that
    cannot be read.
    """
    nights = [report for report in folder.glob(f"*/{REPORT}") if _IS_NIGHT(report.parent.name)]
    for report in sorted(nights, reverse=True):
        if _report(report.parent).state_sha256 is not None:
            return report.parent
    return None


def verified_ranges(archive: Path, earlier: Path | None) -> ArchivedRanges | None:
    """Returns the ranges of an archive that are verified after a run that continues `earlier`.

    None if that run, or one before it, read brokers or an archive with other ranges. Raises `CouldNotVerify`.
    """
    if earlier is not None:
        before = _report(earlier).archive
        if before is None or before.ranges > len(read_ranges(archive)) or first_ranges(archive, before.ranges) != before:
            return None
    return first_ranges(archive)


def read_state(session: SparkSession, out: Path) -> AppliedState:
    """Reads the state that a run kept in its folder `out`, after checking hashes, row counts and root. Raises `CouldNotVerify`.

    The hashes of `SEARCHED` tables are checked by `AppliedState.among`.
    """
    manifest, folder = _manifest(out)
    _refuse_other_files(folder, manifest)
    refuse_other_bytes(session, folder, {file.path: file.sha256 for file in manifest.files if file.table not in SEARCHED}, _MANIFEST)
    _refuse_other_rows(folder, manifest)
    schemas = GROWING | STANDING
    tables = {table: read_files(session, schemas[table], files) for table, files in _files(folder, manifest).items()}
    root = root_of(tables["chunks"], tables["hashes"], manifest.decisions)
    if root is None or root.hex() != manifest.root:
        found = "which do not make a tree" if root is None else f"whose root is {root.hex()}"
        raise CouldNotVerify(f"{folder} has leaves {found}, and {_MANIFEST} says root {manifest.root}: {_AGAIN}")
    return AppliedState(
        identity=manifest.identity,
        offsets_next=_by_topic_partition(manifest.offsets_next),
        last_records=_by_topic_partition(manifest.last_records),
        carry=(folder / _CARRY).read_bytes(),
        decided=manifest.decisions,
        root=bytes.fromhex(manifest.root),
        signatures_checked=manifest.signatures_checked,
        find=_find(session, folder, manifest),
        **tables,
    )


def _find(session: SparkSession, folder: Path, manifest: _Manifest) -> Find:
    """Returns a function that searches the files of a table, once it has compared all of them with their hashes."""

    def find(table: str, asked: str, stages: Stages) -> DataFrame:
        hashes = {file.path: file.sha256 for file in manifest.files if file.table == table}
        columns = [column.split()[0] for column in GROWING[table].split(", ")]
        rows = rows_among(session, folder, hashes, columns, stages.folder_of(asked))
        kept = stages.keep(f"{asked}, in {table}", rows)
        if first := kept.where(F.col("problem").isNotNull()).orderBy("problem").head():
            path, found = first.problem.split(" ", 1)
            raise CouldNotVerify(f"{folder / path}: {_MANIFEST} says SHA-256 {hashes[path]}, and there is {found}")
        return kept.drop("problem")

    return find


def _by_topic(by_topic_partition: Mapping[TopicPartition, _Of]) -> dict[str, dict[int, _Of]]:
    """Groups by topic, then by partition, as in JSON."""
    found: dict[str, dict[int, _Of]] = {}
    for (topic, partition), each in sorted(by_topic_partition.items(), key=lambda item: item[0]):
        found.setdefault(topic, {})[partition] = each
    return found


def _by_topic_partition(by_topic: Mapping[str, Mapping[int, _Of]]) -> dict[TopicPartition, _Of]:
    return {(topic, partition): each for topic, of in by_topic.items() for partition, each in of.items()}


def _refuse_other_files(folder: Path, manifest: _Manifest) -> None:
    """Raise `CouldNotVerify` for a Parquet file that the manifest does not list: the file or the manifest is of another run."""
    listed = {folder / file.path for file in manifest.files}
    for file in sorted(folder.rglob("*.parquet")):
        if file not in listed:
            raise CouldNotVerify(f"{file} is there, and {_MANIFEST} does not list it: {_AGAIN}")


def _refuse_other_rows(folder: Path, manifest: _Manifest) -> None:
    """Raise `CouldNotVerify` unless each table has as many rows as the manifest lists, and as the number of decisions requires."""
    expected = {"ids": manifest.decisions, "hashes": manifest.decisions, "chunks": manifest.decisions >> CHUNK_BITS}
    for table, files in _files(folder, manifest).items():
        if not files:
            raise CouldNotVerify(f"{folder / table} has no file, not even an empty one: all executors must reach it")
        try:
            rows = rows_in(files)
        except (OSError, pa.ArrowInvalid) as problem:
            raise CouldNotVerify(f"{folder / table} has a file that cannot be read: {problem}: {_AGAIN}") from None
        if rows != manifest.rows.get(table):
            raise CouldNotVerify(f"{folder / table} has {rows} rows, and there should be {manifest.rows.get(table)} in its files: {_AGAIN}")
        if rows != expected.get(table, rows):
            raise CouldNotVerify(f"{folder / table} has {rows} rows, and {manifest.decisions} decisions make {expected[table]}: {_AGAIN}")


def _report(out: Path) -> _Report:
    """Returns the report of a run. Raises `CouldNotVerify`."""
    try:
        return msgspec.json.decode((out / REPORT).read_bytes(), type=_Report)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CouldNotVerify(
            f"{out} has no report and state to continue from: {problem}. Take this folder away, or name another run with --checkpoint-from"
        ) from None


def _manifest(out: Path) -> tuple[_Manifest, Path]:
    """Returns the manifest whose hash the report in `out` has, and the folder of its files. Raises `CouldNotVerify`."""
    try:
        report = _report(out)
        if report.violations:
            found = ", ".join([f"{count} {type_}" for type_, count in sorted(report.violations.items())])
            raise CouldNotVerify(f"{out / REPORT} has violations ({found}): no run continues from that; verify from the log's start")
        if report.state_sha256 is None:
            raise CouldNotVerify(f"the run of {out / REPORT} kept no state: continue from one that had --keep-state")
        content = (out / STATE / _MANIFEST).read_bytes()
        version = msgspec.json.decode(content, type=_Version).state_version
        if version != STATE_VERSION:
            raise CouldNotVerify(f"{out / STATE} has state version {version}, and this software reads {STATE_VERSION}: use its version")
        if sha256(content).hexdigest() != report.state_sha256:
            raise CouldNotVerify(f"{out / STATE / _MANIFEST} is not what {out / REPORT} says: its SHA-256 is another")
        return msgspec.json.decode(content, type=_Manifest), out / STATE
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CouldNotVerify(f"{out} has no report and state to continue from: {problem}") from None


def _files(folder: Path, manifest: _Manifest) -> dict[str, list[Path]]:
    return {table: [folder / file.path for file in manifest.files if file.table == table] for table in (*GROWING, *STANDING)}


def _link(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, to)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, to)
