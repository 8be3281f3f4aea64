"""`notary export`: the decisions of a running worker as Parquet, and the errors."""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from notary.cli import parquet
from notary.cli.export import _folder
from notary.index import rows
from notary.index.rocks import open_store
from notary.index.store import DECISIONS, INDEX_FORMAT_VERSION, META, STATES
from ordering.errors import ConfigurationError
from tests.checkers.honest import busy
from tests.checkers.records import OUTCOMES
from tests.checkers.tree import Tree, leaf_of
from tests.notary.cli.command import Command
from tests.notary.http.checked_client import JSON, CheckedClient
from tests.notary.index.test_index import SMALL
from tests.notary.party import Bank, RequestObject, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess
from tests.notary.rows import put_closed_row

KINDS = ("input", "reference")
REASONS = tuple(OUTCOMES)


@pytest.fixture
def export(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary export`."""
    return Command(capsys, "export", "--index")


def read(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns manifest, decisions by position, and states, after checking that the files match the manifest."""
    manifest = json.loads((out / "manifest.json").read_text())
    found: dict[str, list[dict[str, Any]]] = {"decisions": [], "states": []}
    for file in manifest["files"]:
        content = (out / file["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        table = pq.read_table(out / file["path"])
        assert table.num_rows == file["rows"]
        found[file["path"].partition("/")[0]] += table.to_pylist()
    assert sorted(str(file.relative_to(out)) for file in out.rglob("*.*")) == sorted(
        ["manifest.json", *(file["path"] for file in manifest["files"])]
    )
    return manifest, sorted(found["decisions"], key=lambda row: row["position"]), found["states"]


def as_returned(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of `decisions/` as the contract's JSON object."""
    return {
        "transaction_id": row["id"].hex(),
        "position": row["position"],
        "outcome": "rejected" if row["outcome"] else "committed",
        "reason": REASONS[row["outcome"]],
        "conflicts": [
            {
                "state": f"{each['state'][:32].hex()}:{int.from_bytes(each['state'][32:], 'big')}",
                "kind": KINDS[each["kind"]],
                "consumed_by": each["consumed_by"].hex(),
            }
            for each in row["conflicts"]
        ],
        "log_time": row["log_time_ms"],
    }


def _decided(checked: CheckedClient, bank: Bank, requests: list[RequestObject]) -> list[dict[str, Any]]:
    answer = checked.http.post("/v1/submissions?receipts=false", content=bank.body(*requests), headers=JSON)
    assert answer.status_code == 200, answer.text
    decisions: list[dict[str, Any]] = answer.json()["decisions"]
    return decisions


def test_index_of_a_running_worker(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess], tmp_path: Path, export: Command
) -> None:
    """While a client spends, each export is a snapshot with all decisions as the client received them, and with their tree."""
    reported: dict[str, dict[str, Any]] = {}
    consumed: dict[str, str] = {}
    stop = threading.Event()
    # Write buffers that are flushed within a few hundred decisions.
    process = notary_process(own_directory.config, settings={"INDEX_WRITE_BUFFER_BYTES": 64 << 10, "INDEX_CACHE_BYTES": 1 << 20})

    def ask() -> None:
        last = fresh_state()
        with CheckedClient(process.url) as checked:
            while not stop.is_set():
                requests = [spend(last, fresh_state()), spend(last), *(spend() for _ in range(100))]
                for request, decision in zip(requests, _decided(checked, bank, requests), strict=True):
                    reported[decision["transaction_id"]] = decision
                    if decision["outcome"] == "committed":
                        consumed.update({state: transaction_id(request) for state in request["inputs"]})
                last = requests[0]["inputs"][1]

    client = threading.Thread(target=ask)
    client.start()
    try:
        for number in range(4):
            before = len(reported)
            while len(reported) < before + 300 and client.is_alive():
                stop.wait(0.01)
            export.run(own_directory.path / "index" / process.name, "--out", tmp_path / f"export {number}", "--json")
    finally:
        stop.set()
        client.join()
    assert process.stop() == 0
    sizes = []
    for number in range(4):
        manifest, decisions, states = read(tmp_path / f"export {number}")
        size = manifest["decisions"]
        found = [as_returned(row) for row in decisions]
        assert [each["position"] for each in found] == list(range(size))
        assert all(reported[each["transaction_id"]] == each for each in found)
        kept = {f"{row['state'][:32].hex()}:{int.from_bytes(row['state'][32:], 'big')}": row["id"].hex() for row in states}
        assert kept == {state: by for state, by in consumed.items() if reported[by]["position"] < size}
        assert all(reported[row["id"].hex()]["position"] == row["position"] for row in states)
        assert manifest["tree"] == {"size": size, "root": Tree([leaf_of(each) for each in found]).root(size).hex()}
        sizes.append(size)
    assert sizes == sorted(set(sizes))


def test_it_prints_one_line_or_one_object(tmp_path: Path, export: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have bounded size and row groups; the command prints one line on stdout, or one JSON object."""
    notary = busy(tmp_path / "index", spends=60)
    notary.index.close()
    printed = export.run(tmp_path / "index", "--out", tmp_path / "complete")
    assert printed == f"69 decisions and 246 consumed states of O=Notary,L=London,C=GB are in {tmp_path / 'complete'}\n"
    assert export.err == ""
    monkeypatch.setattr(parquet, "GROUP_ROWS_MAX", 7)
    monkeypatch.setattr(parquet, "GROUP_CONFLICTS_MAX", 2)
    monkeypatch.setattr(parquet, "FILE_BYTES_MAX", 4096)
    (line,) = export.run(tmp_path / "index", "--out", tmp_path / "cut", "--json").splitlines()
    manifest, decisions, states = read(tmp_path / "cut")
    assert json.loads(line) == {
        "out": str(tmp_path / "cut"),
        "notary": "O=Notary,L=London,C=GB",
        "decisions": 69,
        "root": manifest["tree"]["root"],
        "decisions_rows": 69,
        "states_rows": 246,
        "ordering_offset_next": manifest["offsets_next"]["ordering"],
        "files": len(manifest["files"]),
    }
    assert len(manifest["files"]) > 4
    assert read(tmp_path / "complete")[1:] == (decisions, states)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A small closed index."""
    busy(tmp_path / "index").index.close()
    return tmp_path / "index"


def test_without_an_index_nothing_is_created(tmp_path: Path, export: Command) -> None:
    """Without an index the command reports that, and creates neither an index nor a folder of files."""
    assert f"there is no index in {tmp_path / 'nothing'}" in export.refuses(tmp_path / "nothing", "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(index: Path, tmp_path: Path, export: Command) -> None:
    """A folder that is not empty, and a path that is no folder, are rejected and stay unchanged."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert f"{out} is not empty" in export.refuses(index, "--out", out)
    assert "is not a folder" in export.refuses(index, "--out", out / "notes.txt")
    assert [file.name for file in out.iterdir()] == ["notes.txt"]


def test_an_index_of_a_newer_format_is_not_exported(index: Path, tmp_path: Path, export: Command) -> None:
    """An index of a newer format is not exported, since its rows may mean something else."""
    put_closed_row(index, META, rows.FORMAT_KEY, rows.U32.pack(9))
    assert f"has format version 9 and this software reads {INDEX_FORMAT_VERSION}" in export.refuses(index, "--out", tmp_path / "out")


def test_a_cut_file_leaves_no_export(index: Path, tmp_path: Path, export: Command) -> None:
    """A cut file is reported, and nothing is left that looks like an export."""
    (log,) = index.glob("*.log")
    complete = tmp_path / "complete"
    shutil.copytree(index, complete)
    store = open_store(complete, SMALL)
    for name in (DECISIONS, STATES):
        store.get_column_family(name).flush()
    store.close()
    for table in complete.glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[200] ^= 1
        table.write_bytes(data)
    said = export.refuses(complete, "--out", tmp_path / "out")
    assert f"notary export: the index {complete} cannot be read" in said
    assert "checksum" in said
    assert not any((tmp_path / "out").rglob("*"))
    assert log.exists()


def test_a_full_disk_is_named(index: Path, tmp_path: Path, export: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index and the export may be on different disks: the message names the folder, and nothing of it is left."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "new" / "out"
    monkeypatch.setattr("notary.cli.export.replace_file", full)
    refused = export.refuses(index, "--out", out)
    assert refused == f"notary export: {out} cannot be written: No space left on device. Name another folder with --out\n"
    assert not out.parent.exists()


def test_two_exports_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second export that also found the folder empty reports it, and removes nothing."""
    with _folder(tmp_path / "out"):
        written = tmp_path / "out/decisions/00000001.parquet"
        written.touch()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "iterdir", lambda _: iter(()))  # the folder as the second export saw it
            with pytest.raises(ConfigurationError, match="being filled by another export"), _folder(tmp_path / "out"):
                pass
        assert written.exists()
