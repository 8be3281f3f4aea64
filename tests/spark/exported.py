"""Exports of indexes that are open, and exports that were changed: their rows and manifests, with hashes that fit."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from notary import cli

Rows = list[dict[str, Any]]


def exported(index: Path, to: Path, before: Callable[[], object] = lambda: None) -> Path:
    """An export of that index, after it has read what there is."""
    before()
    assert cli.main(["export", "--index", str(index), "--out", str(to)]) == 0
    return to


def edited(
    export: Path,
    to: Path,
    decisions: Callable[[Rows], object] | None = None,
    states: Callable[[Rows], object] | None = None,
    manifest: Callable[[dict[str, Any]], object] | None = None,
) -> Path:
    """A copy of an export; the functions change its rows (decisions by position, states in order) and its manifest where they are."""
    shutil.copytree(export, to)
    said = json.loads((to / "manifest.json").read_text())
    for what, edit, key in (("decisions", decisions, "position"), ("states", states, "state")):
        if edit is None:
            continue
        files = [file for file in said["files"] if file["path"].startswith(what)]
        table = pa.concat_tables([pq.read_table(to / file["path"]) for file in files])
        rows = sorted(table.to_pylist(), key=lambda row: row[key])
        edit(rows)
        for file in files:
            (to / file["path"]).unlink()
            said["files"].remove(file)
        path = files[0]["path"]
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), to / path, compression="zstd")
        said["files"].append({"path": path, "rows": len(rows), "sha256": sha256((to / path).read_bytes()).hexdigest()})
    if manifest is not None:
        manifest(said)
    (to / "manifest.json").write_text(json.dumps(said))
    return to
