"""Reads the files that `notary export` writes from a worker's index (docs/spark.md, Exported indexes).

<export>/manifest.json                     how far the index has read, and the list of files
<export>/decisions/00000001.parquet, …     its decisions, in any order
<export>/states/00000001.parquet, …        the states that these decisions consumed
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_join.engine.columns import frame_of
from spark_join.engine.files import read_files, refuse_other_bytes
from spark_join.errors import CouldNotVerify
from spark_join.order.join import Joined

EXPORT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"

_COLUMNS: Final = {
    "decisions": "position bigint, id binary, log_time_ms bigint, outcome int,"
    " conflicts array<struct<state: binary, kind: int, consumed_by: binary>>",
    "states": "state binary, id binary, position bigint",
}
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ManifestEntry(msgspec.Struct, frozen=True):
    """One Parquet file of an export; `path` is relative to the export's folder."""

    path: Annotated[str, msgspec.Meta(pattern=r"^(decisions|states)/[0-9]+\.parquet$")]
    rows: _Count
    sha256: str


class ExportedTree(msgspec.Struct, frozen=True):
    """Size and root of the index's tree of decisions; `root` in hex."""

    size: _Count
    root: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class OffsetsNext(msgspec.Struct, frozen=True):
    """The offsets at which the index reads on; it has applied all ordering records before `ordering`."""

    ordering: _Count


class ExportManifest(msgspec.Struct, frozen=True):
    """The members of `manifest.json` that are compared; it has others."""

    notary: str
    log: str
    """The log's identity, which ends with the log id in hex."""
    log_time_ms: int
    decisions: _Count
    tree: ExportedTree
    offsets_next: OffsetsNext
    files: list[ManifestEntry]


class _Version(msgspec.Struct, frozen=True):
    export_version: int


class Exports(msgspec.Struct, frozen=True):
    """Any number of exports, with all their rows in one frame; `source` is the absolute path of the export's folder."""

    manifests: dict[str, ExportManifest]  # by source
    decisions: DataFrame
    """Columns: source, position, id, log_time_ms, outcome, conflicts"""
    states: DataFrame
    """Columns: source, state, id, position"""


def read_exports(session: SparkSession, folders: Sequence[Path]) -> Exports:
    """Returns the exports in these folders, after their files were compared with their manifests. Raises `CouldNotVerify`."""
    sources: dict[Path, Path] = {}
    for folder in folders:
        if (there := sources.get(folder.resolve())) is not None:
            raise CouldNotVerify(f"the export {there} is named twice, also as {folder}: name it once")
        sources[folder.resolve()] = folder
    manifests = {str(folder.absolute()): _manifest(folder / MANIFEST) for folder in folders}
    files = {str(Path(source).resolve() / file.path): file.sha256 for source, manifest in manifests.items() for file in manifest.files}
    refuse_other_bytes(session, Path(), files, "its manifest")
    return Exports(manifests, _read(session, manifests, "decisions"), _read(session, manifests, "states"))


def refuse_others(exports: Exports, joined: Joined) -> None:
    """Raise `CouldNotVerify` for an export of another notary or log."""
    for source, manifest in exports.manifests.items():
        if manifest.notary != joined.identity.notary_name:
            raise CouldNotVerify(f"{source} is of {manifest.notary}, and the log of {joined.identity.notary_name}: export this log's index")
        log_id = joined.identity.log_id.hex()
        if manifest.log.rpartition(" ")[2] != log_id:
            raise CouldNotVerify(f"{source} is of the log {manifest.log}, and this log has the id {log_id}: export an index of this log")


def refuse_ahead(exports: Exports, joined: Joined) -> None:
    """Raise `CouldNotVerify` for an index that has read the ordering topic further than this run.

    This is no violation: the log may have been read before the index was exported. If an index has read no further but decided more, it is
    ahead of its *log*; that is a violation (`exports.compare`).
    """
    (last,) = joined.records.agg(F.max("offset").alias("offset")).collect()
    end = 0 if last.offset is None else last.offset + 1
    for source, manifest in exports.manifests.items():
        if (read := manifest.offsets_next.ordering) > end:
            raise CouldNotVerify(
                f"the index of {source} has read the ordering topic up to offset {read}, and this run read up to {end}: read the log"
                " after the export was made. If it has no more then, it has lost records (docs/runbook.md, 'The index is ahead of its log')"
            )


def refuse_behind_hole(exports: Exports, offset_hole: int) -> None:
    """Raise `CouldNotVerify` for an index that has read past the hole: this run may have read before the payload arrived.

    Do not call this if the payload is known to be lost.
    """
    for source, manifest in exports.manifests.items():
        if (read := manifest.offsets_next.ordering) > offset_hole:
            raise CouldNotVerify(
                f"the index of {source} has read the ordering topic up to offset {read}, and the payload of offset {offset_hole} is not in"
                " what was read here: read the log after the export was made. If it is not there then, it is lost"
            )


def _manifest(file: Path) -> ExportManifest:
    try:
        content = file.read_bytes()
        version = msgspec.json.decode(content, type=_Version).export_version
        if version != EXPORT_VERSION:
            raise CouldNotVerify(f"{file} has export version {version}, and this software reads {EXPORT_VERSION}: use a newer one")
        return msgspec.json.decode(content, type=ExportManifest)
    except FileNotFoundError:
        raise CouldNotVerify(f"{file.parent} is no export: there is no {MANIFEST}, which notary export writes last") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CouldNotVerify(f"{file} cannot be read: {problem}") from None


def _read(session: SparkSession, manifests: dict[str, ExportManifest], what: Literal["decisions", "states"]) -> DataFrame:
    """Returns all rows of one kind, with `source`. Raises `CouldNotVerify` if their number is not the manifest's."""
    listed = {str(Path(source).resolve() / file.path): source for source, manifest in manifests.items() for file in _files(manifest, what)}
    if not listed:
        return frame_of(session, [], f"source string, {_COLUMNS[what]}")
    # One read for all exports: Spark puts small files into one task, however many exports there are.
    read = read_files(session, _COLUMNS[what], map(Path, listed))
    sources = [(uri, listed[unquote(urlsplit(uri).path)]) for uri in read.inputFiles()]
    named = frame_of(session, sources, "file string, source string")
    together = read.withColumn("file", F.input_file_name()).join(F.broadcast(named), "file").drop("file")
    counted = {row.source: row["count"] for row in together.groupBy("source").count().collect()}
    for source, manifest in manifests.items():
        rows = sum(file.rows for file in _files(manifest, what))
        if (there := counted.get(source, 0)) != rows:
            raise CouldNotVerify(f"{source}: its files of {what} have {there} rows, and its manifest says {rows}: export the index again")
    return together


def _files(manifest: ExportManifest, what: str) -> list[ManifestEntry]:
    return [file for file in manifest.files if file.path.startswith(what)]
