"""Exports of open indexes, and changed exports: their rows and manifests, with matching hashes."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from notary import cli
from tests.checkers.records import OUTCOMES
from tests.checkers.replay import Replayed

Rows = list[dict[str, Any]]
_CONFLICT = pa.struct([("state", pa.binary()), ("kind", pa.int32()), ("consumed_by", pa.binary())])
_SCHEMAS = {
    "decisions": pa.schema(
        [
            ("position", pa.int64()),
            ("id", pa.binary()),
            ("log_time_ms", pa.int64()),
            ("outcome", pa.int32()),
            ("conflicts", pa.list_(_CONFLICT)),
        ]
    ),
    "states": pa.schema([("state", pa.binary()), ("id", pa.binary()), ("position", pa.int64())]),
}


def exported(index: Path, to: Path) -> Path:
    """Export that index; returns the export."""
    assert cli.main(["export", "--index", str(index), "--out", str(to)]) == 0
    return to


def octets(state: str) -> bytes:
    """Returns a state reference as an index has it."""
    return bytes.fromhex(state[:64]) + int(state[65:]).to_bytes(4, "big")


def export_of(replayed: Replayed, to: Path, ordering_next: int) -> Path:
    """Write the export of an index with the replay's decisions that has read the ordering topic up to `ordering_next`; returns it."""

    def conflict(met: dict[str, str]) -> dict[str, Any]:
        kind = ("input", "reference").index(met["kind"])
        return {"state": octets(met["state"]), "kind": kind, "consumed_by": bytes.fromhex(met["consumed_by"])}

    rows: dict[str, Rows] = {"decisions": [], "states": []}
    for each in replayed.decisions:
        id_, conflicts = bytes.fromhex(each["transaction_id"]), [conflict(met) for met in each["conflicts"]]
        outcome = OUTCOMES[each["reason"]]
        head = {"position": each["position"], "id": id_, "log_time_ms": each["log_time"]}
        rows["decisions"].append({**head, "outcome": outcome, "conflicts": conflicts})
    for state, (text, position) in replayed.consumed.items():
        rows["states"].append({"state": octets(state), "id": bytes.fromhex(text), "position": position})
    files = []
    for what, of in rows.items():
        file = to / what / "00000001.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(of, _SCHEMAS[what]), file, compression="zstd")
        files.append({"path": f"{what}/00000001.parquet", "rows": len(of), "sha256": sha256(file.read_bytes()).hexdigest()})
    count = len(replayed.decisions)
    manifest = {
        "export_version": 1,
        "notary": replayed.name,
        "log": f"a cluster's topics {replayed.log_id.hex()}",
        "log_time_ms": replayed.log_time,
        "decisions": count,
        "tree": {"size": count, "root": replayed.root(count).hex()},
        "offsets_next": {"ordering": ordering_next, "payload": [0] * replayed.partitions},
        "files": files,
    }
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to


def edited(
    export: Path,
    to: Path,
    decisions: Callable[[Rows], object] | None = None,
    states: Callable[[Rows], object] | None = None,
    manifest: Callable[[dict[str, Any]], object] | None = None,
) -> Path:
    """Returns a copy of an export; the functions change its rows (decisions by position, states in order) and its manifest in place."""
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
