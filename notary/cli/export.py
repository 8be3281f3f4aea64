"""`notary export`: writes the decisions and consumed states of an index as Parquet, for a comparison with the log (docs/spark.md)."""

import argparse
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from notary.cli import ProgressLine, check_pyarrow, json_line
from notary.exit_codes import EXIT_DONE
from notary.index import IndexView, viewing
from ordering.durable import make_directory, remove_empty, replace_file
from ordering.errors import ConfigurationError
from ordering.log import ORDERING

if TYPE_CHECKING:
    from notary.cli.parquet import ExportedFile

EXPORT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary export`."""
    parser.add_argument("--index", required=True, type=Path, metavar="DIR", help="a worker's index; the worker may be running")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder for the files: empty, or created")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Export the index. Returns 0 when the export is complete; every failure raises."""
    check_pyarrow("writes Parquet")
    out: Path = arguments.out
    with viewing(arguments.index) as view, _folder(out):
        manifest = _export(view, out)
    report = {"out": str(out), "notary": manifest["notary"], "decisions": manifest["decisions"], "root": manifest["tree"]["root"]}
    for what in ("decisions", "states"):
        report[f"{what}_rows"] = sum(file["rows"] for file in manifest["files"] if file["path"].startswith(what))
    report |= {"ordering_offset_next": manifest["offsets_next"]["ordering"], "files": len(manifest["files"])}
    text = f"{report['decisions_rows']} decisions and {report['states_rows']} consumed states of {manifest['notary']} are in {out}"
    print(json_line(report) if arguments.json else text)
    return EXIT_DONE


def _export(view: IndexView, out: Path) -> dict[str, Any]:
    """Write all files, and then the manifest, which completes the export. Returns the manifest's content."""
    from notary.cli.parquet import write_decisions, write_states  # imported late: `run` first checks that pyarrow is installed

    progress = ProgressLine()
    files: list[ExportedFile] = []
    for what, written, all_rows in (
        ("decisions", write_decisions(view.decisions(), out), view.position_next),
        ("consumed states", write_states(view.states(), out), None),
    ):
        for each in written:
            if isinstance(each, int):
                progress(what, each, all_rows)
            else:
                files.append(each)
    progress.end()
    payload = [view.offsets_next.get(partition, 0) for partition in range(view.payload_partitions)]
    manifest = {
        "export_version": EXPORT_VERSION,
        "notary": view.notary_name,
        "log": view.log_identity,
        "index_format_version": view.format_version,
        "payload_partitions": view.payload_partitions,
        "decisions": view.position_next,
        "tree": {"size": view.position_next, "root": view.root.hex()},
        "log_time_ms": view.log_time_ms,
        "offsets_next": {"ordering": view.offsets_next.get(ORDERING, 0), "payload": payload},
        "files": msgspec.to_builtins(files),
    }
    # A crash before this leaves files without a manifest: not an export, and not an empty folder that another run would fill.
    replace_file(out / MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return manifest


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make an empty folder for the block to fill; remove the block's files when it fails. Raises `ConfigurationError`."""
    new: list[Path] = []
    try:
        try:
            new = make_directory(out)
            if any(out.iterdir()):
                raise ConfigurationError(f"{out} is not empty: nothing is overwritten; name another folder with --out")
        except (FileExistsError, NotADirectoryError):
            raise ConfigurationError(f"{out} is not a folder: name another one with --out") from None
        try:
            for name in ("decisions", "states"):
                (out / name).mkdir()
        except FileExistsError:  # another run made it, so this one must not remove it
            raise ConfigurationError(f"{out} is being filled by another export: name another folder with --out") from None
        try:
            yield
        except BaseException:
            for file in out.iterdir():
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            remove_empty(new)
            raise
    except OSError as problem:  # errors of RocksDB are none
        raise ConfigurationError(f"{out} cannot be written: {problem.strerror or problem}. Name another folder with --out") from None
