"""A state in files, so that a later run goes on from there (docs/spark.md, Nightly runs).

    <out>/report.json                                 says that nothing was wrong, and the SHA-256 of the next one
    <out>/state/state.json                            numbers, and all files with theirs
    <out>/state/<table>/<number of the run>/*.parquet rows

Of the tables that grow, a run writes the rows that it adds. The files of the runs before it are linked into its own folder (copied where
links cannot be made), so each state is whole, and earlier ones may be deleted. The report is written last: a crash before leaves no state.
"""

import os
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from spark_join.errors import CouldNotVerify
from spark_join.log.digests import digests, refuse_other_bytes
from spark_join.state.state import GROWING, STANDING, LastRecord, State

STATE_VERSION: Final = 1
STATE: Final = "state"
REPORT: Final = "report.json"
_MANIFEST = "state.json"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    table: str
    path: str
    """From the state's folder on."""
    sha256: str


class _Version(msgspec.Struct, frozen=True):
    state_version: int


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    state_version: int
    run: int
    """1 for one that began at the start of the log"""
    notary: str
    payload_partitions: int
    offsets_next: dict[str, dict[int, int]]
    last_record: LastRecord | None
    log_time_ms: int
    decisions: int
    root: str
    signatures_checked: bool
    files: list[_File]


class _Report(msgspec.Struct, frozen=True):
    violations: dict[str, int]
    state_sha256: str | None = None


def write_state(session: SparkSession, out: Path, added: State, earlier: Path | None) -> str:
    """Write into `out` what `carry.state_after` gives, with the files of the run whose folder is `earlier`; the SHA-256 of `state.json`."""
    before = None if earlier is None else _manifest(earlier)[0]
    run = 1 if before is None else before.run + 1
    folder = out / STATE
    files = []
    for file in before.files if before else ():
        if file.table in GROWING:
            assert earlier is not None
            _link(earlier / STATE / file.path, folder / file.path)
            files.append(file)
    written: dict[str, str] = {}
    for table in (*GROWING, *STANDING):
        into = f"{table}/{run:08}"
        rows: DataFrame = getattr(added, table)
        rows.write.option("compression", "zstd").parquet(str(folder / into))
        written |= {f"{into}/{each.name}": table for each in sorted((folder / into).glob("*.parquet"))}
    found = digests(session, folder, written.keys()).orderBy("path").collect()
    for row in found:
        if row.problem is not None:
            raise CouldNotVerify(f"{folder / row.path} was written, and there is {row.problem}: all executors must reach it")
    files += [_File(written[row.path], row.path, row.found) for row in found]
    offsets_next: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(added.offsets_next.items()):
        offsets_next.setdefault(topic, {})[partition] = offset
    manifest = msgspec.json.encode(
        _Manifest(
            STATE_VERSION,
            run,
            added.notary_name,
            added.payload_partitions,
            offsets_next,
            added.last_record,
            added.log_time_ms,
            added.decided,
            added.root.hex(),
            added.signatures_checked,
            files,
        )
    )
    (folder / _MANIFEST).write_bytes(manifest)
    return sha256(manifest).hexdigest()


def read_state(session: SparkSession, out: Path) -> State:
    """The state that a run kept in its folder `out`, after all its files have been held against it. Raises `CouldNotVerify`."""
    manifest, folder = _manifest(out)
    refuse_other_bytes(session, folder, {file.path: file.sha256 for file in manifest.files}, _MANIFEST)
    tables = {
        table: _read(session, schema, [folder / file.path for file in manifest.files if file.table == table])
        for table, schema in (GROWING | STANDING).items()
    }
    return State(
        notary_name=manifest.notary,
        payload_partitions=manifest.payload_partitions,
        offsets_next={(topic, partition): offset for topic, of in manifest.offsets_next.items() for partition, offset in of.items()},
        last_record=manifest.last_record,
        log_time_ms=manifest.log_time_ms,
        decided=manifest.decisions,
        root=bytes.fromhex(manifest.root),
        signatures_checked=manifest.signatures_checked,
        **tables,
    )


def _manifest(out: Path) -> tuple[_Manifest, Path]:
    """What the report in `out` vouches for, and the folder of its files."""
    try:
        report = msgspec.json.decode((out / REPORT).read_bytes(), type=_Report)
        if report.violations:
            told = ", ".join([f"{count} {type_}" for type_, count in sorted(report.violations.items())])
            raise CouldNotVerify(f"{out / REPORT} tells of violations ({told}): nothing is built on that; verify from the log's start")
        if report.state_sha256 is None:
            raise CouldNotVerify(f"the run of {out / REPORT} kept no state: go on from one that was told --keep-state")
        content = (out / STATE / _MANIFEST).read_bytes()
        version = msgspec.json.decode(content, type=_Version).state_version
        if version != STATE_VERSION:
            raise CouldNotVerify(f"{out / STATE} has state version {version}, and this software reads {STATE_VERSION}: use its version")
        if sha256(content).hexdigest() != report.state_sha256:
            raise CouldNotVerify(f"{out / STATE / _MANIFEST} is not what {out / REPORT} says: its SHA-256 is another")
        return msgspec.json.decode(content, type=_Manifest), out / STATE
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise CouldNotVerify(f"{out} has no report and state to go on from: {problem}") from None


def _read(session: SparkSession, schema: str, files: Sequence[Path]) -> DataFrame:
    return session.read.schema(schema).parquet(*map(str, files))


def _link(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, to)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, to)
