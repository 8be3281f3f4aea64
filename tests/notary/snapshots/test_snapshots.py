"""`notary snapshot`: copies of an index that is in use, what a damaged store does, kills at every step, and what is removed."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from joiner import JoinerState
from notary import keys
from notary.agreement import Agreement
from notary.cli.snapshot import SHOWN_MAX
from notary.config import load
from notary.index import rows, viewing
from notary.index.meta import encode
from notary.index.store import META
from notary.receipts.errors import NotVerified
from notary.snapshots.manifest import MANIFEST_BYTES_MAX, Manifest
from notary.snapshots.store import Folder
from notary.snapshots.take import damaged_files, find, restore, stage_of
from tests.notary.cli.command import Command
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank
from tests.notary.process import ROOT, NotaryDirectory, NotaryProcess
from tests.notary.rows import opened, put_row
from tests.notary.snapshots.fixture import SMALL, SnapshotFixture, spent

KILLS = 12
"""Changes of files before which a process is killed, spread over all that it makes."""


def test_index_of_a_running_worker(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """Snapshots are made while a client spends; another worker starts from the last, has all decisions, and decides on."""
    fixture = SnapshotFixture(own_directory, capsys)
    process = notary_process(own_directory.config, settings=SMALL)
    decided = spent(process, bank)
    first = fixture.snapshot("create")
    assert first["made"]
    assert first["decisions"] >= len(decided)
    files = fixture.names("files")
    client = threading.Thread(target=lambda: decided.update(spent(process, bank)))
    client.start()
    made = [fixture.snapshot("create") for _ in range(3)]
    client.join()
    made.append(fixture.snapshot("create"))
    assert [each["decisions"] for each in made] == sorted(each["decisions"] for each in made)
    assert made[-1]["decisions"] == len(decided) == 1200
    assert {file for file in fixture.index.iterdir() if file.name.startswith(".")} == {fixture.index / ".snapshot"}
    assert not list((fixture.index / ".snapshot").iterdir())
    tables = {name for name in fixture.names("files") if name in files}
    assert tables == files, "what the store has is used again"
    assert fixture.snapshot("verify", "--all")["problem"] is None
    listed = fixture.snapshot("list")["snapshots"]
    assert [each["snapshot"] for each in listed] == sorted((each["snapshot"] for each in [first, *made]), reverse=True)
    assert process.stop() == 0

    index = own_directory.path / "index" / "worker-2"
    restored = fixture.snapshot("restore", "--name", "worker-2")
    assert (restored["snapshot"], restored["index"]) == (made[-1]["snapshot"], str(index))
    with viewing(index) as view:
        assert (view.position_next, view.root.hex()) == (1200, made[-1]["root"])
        assert {decision.transaction_id.hex() for decision in view.decisions()} == set(decided)
    assert fixture.rows(index) == fixture.rows(fixture.index)
    other = notary_process(own_directory.config, "worker-2")
    with CheckedClient(other.url) as checked:
        for id_ in list(decided)[::100]:
            assert checked.get(f"/v1/transactions/{id_}").json() == decided[id_]
    assert {decision["position"] for decision in spent(other, bank, 1).values()} == set(range(1200, 1300))
    assert other.stop() == 0


def _manifest(fixture: SnapshotFixture) -> Path:
    (manifest,) = (fixture.store / "manifests").iterdir()
    return manifest


def _change_first_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(bytes((content[0] ^ 1,)) + content[1:])


def _edit(fixture: SnapshotFixture, **members: Any) -> None:
    head, body, rest = _manifest(fixture).read_text().split("\n", 2)
    _manifest(fixture).write_text("\n".join((head, json.dumps(json.loads(body) | members), rest)))


def _signed_by_another(fixture: SnapshotFixture) -> None:
    other = NotaryDirectory.create(fixture.directory.path.with_name("other"), name="O=Notary,L=London,C=GB")
    for name in ("notary-key.pem", "notary-keys.json"):
        shutil.copy(other.path / name, fixture.directory.path / name)


def _rename(fixture: SnapshotFixture) -> None:
    _manifest(fixture).rename(fixture.store / "manifests" / ("9" + _manifest(fixture).name[1:]))


DAMAGE: dict[str, tuple[Callable[[SnapshotFixture], Any], str]] = {
    "a byte": (lambda fixture: _change_first_byte(fixture.largest), "with the hash"),
    "cut": (lambda fixture: os.truncate(fixture.largest, 100), "has 100 bytes"),
    "a file": (lambda fixture: fixture.largest.unlink(), "is missing"),
    "the root": (lambda fixture: _edit(fixture, root="00" * 32), "bad-signature"),
    "the log": (lambda fixture: _edit(fixture, log="another"), "bad-signature"),
    "another name": (_rename, "it was renamed"),
    "garbage": (lambda fixture: _manifest(fixture).write_text("garbage"), "malformed-snapshot"),
    "empty": (lambda fixture: _manifest(fixture).write_bytes(b""), "malformed-snapshot"),
    "no text": (lambda fixture: _manifest(fixture).write_bytes(bytes(range(256))), "malformed-snapshot"),
    "too long": (lambda fixture: os.truncate(_manifest(fixture), MANIFEST_BYTES_MAX + 1), f"more than {MANIFEST_BYTES_MAX}"),
    "another key": (_signed_by_another, "unknown-key"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_verify_finds_a_damaged_place(fixture: SnapshotFixture, name: str) -> None:
    """A changed file, manifest or key is found by `verify`, with exit code 1, and nothing of it is restored."""
    change, named = DAMAGE[name]
    fixture.snapshot("create")
    shutil.rmtree(fixture.index)
    change(fixture)
    assert named in fixture.snapshot("verify", code=1)["problem"]
    assert named in fixture.snapshot("restore", code=1)["stderr"]
    assert not list(fixture.index.parent.iterdir())


class _Endless(Folder):
    """A store whose files go on for ever, after their own content."""

    def chunks(self, folder: str, name: str) -> Iterator[bytes]:
        """As `SnapshotStore` describes it, but a file never ends, whatever length the store reports."""
        yield from super().chunks(folder, name)
        yield bytes(1 << 20)
        raise AssertionError("read on after more than the signed length, or the longest manifest")


def test_new_folders_of_a_place_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first `put` syncs the name of each folder that it makes: a power loss after it loses no snapshot."""
    source = tmp_path / "source"
    source.write_bytes(b"content")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    Folder(tmp_path / "a" / "b").put(source, "manifests", "name")
    folders = {str(tmp_path / each) for each in ("", "a", "a/b", "a/b/manifests")}
    assert folders <= set(synced)
    *_, content, name = synced
    assert Path(content).name.startswith(".new-"), "the content is synced before its name"
    assert name == str(tmp_path / "a/b/manifests")


def test_a_restored_index_is_durable(fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss finds no index, or all of its files: their content and names are synced before the folder gets its name."""
    fixture.snapshot("create")
    (manifest,) = fixture.found()
    index = fixture.directory.path / "index" / "worker-2"
    stage, synced = stage_of(index), list[str]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    restore(Folder(fixture.store), manifest, index, lambda *_: None)
    assert {str(stage / file.name) for file in manifest.files} <= set(synced)
    assert synced[-3:] == [str(stage / "CURRENT"), str(stage), str(index.parent)]


def test_a_place_that_sends_without_end(fixture: SnapshotFixture) -> None:
    """A file is read no further than its signed length: a store that was taken over cannot fill the worker's disk."""
    fixture.snapshot("create")
    store = _Endless(fixture.store)
    config = load(fixture.config)
    trusted = keys.verifier_keys(config.key_files).last
    (manifest,) = [each.manifest for each in find(store, trusted, config.name)]
    assert manifest is not None
    (damaged, *_) = damaged_files(store, manifest, lambda *_: None)
    assert "bytes with the hash" in str(damaged)
    index = fixture.directory.path / "index" / "worker-2"
    with pytest.raises(NotVerified, match="bytes with the hash"):
        restore(store, manifest, index, lambda *_: None)
    assert not index.exists()


def test_an_older_one_is_restored(fixture: SnapshotFixture, bank: Bank, notary_process: Callable[..., NotaryProcess]) -> None:
    """If the newest snapshot is damaged, the one before it is restored, and the command says why."""
    first = fixture.snapshot("create")
    files = fixture.names("files")
    process = notary_process(fixture.config)
    spent(process, bank, 1)
    second = fixture.snapshot("create")
    assert process.stop() == 0
    for name in fixture.names("files") - files:
        (fixture.store / "files" / name).unlink()
    shutil.rmtree(fixture.index)
    restored = fixture.snapshot("restore")
    assert restored["snapshot"] == first["snapshot"]
    assert second["snapshot"] in restored["stderr"]
    assert "is missing" in restored["stderr"]


def test_nothing_is_overwritten(fixture: SnapshotFixture) -> None:
    """A folder that holds an index, or anything else, is left as it is; an empty one is used."""
    fixture.snapshot("create")
    before = {file.name for file in fixture.index.iterdir()}
    assert "is not empty: nothing is overwritten" in fixture.snapshot("restore", code=2)["stderr"]
    assert {file.name for file in fixture.index.iterdir()} == before
    other = fixture.index.with_name("worker-2")
    other.mkdir()
    (other / "note").write_text("mine")
    fixture.snapshot("restore", "--name", "worker-2", code=2)
    assert [file.name for file in other.iterdir()] == ["note"]
    (other / "note").unlink()
    fixture.snapshot("restore", "--name", "worker-2")
    assert fixture.rows(other) == fixture.rows(fixture.index)


def test_no_snapshot_of_another_log_is_restored(fixture: SnapshotFixture) -> None:
    """With `--log` only a snapshot of that log is restored."""
    made = fixture.snapshot("create")
    shutil.rmtree(fixture.index)
    assert "is of another log" in fixture.snapshot("restore", "--log", "another", code=1)["stderr"]
    fixture.snapshot("restore", "--log", made["log"])


@pytest.mark.parametrize(
    ("key", "row", "named"),
    [
        (rows.AGREEMENT_KEY, lambda _: encode(Agreement(quarantined="its root is wrong")), "its root is wrong"),
        (rows.AGREEMENT_KEY, lambda _: encode(Agreement(in_disagreement=True)), "its root differs"),
        (rows.SUSPICIONS_KEY, lambda state: encode((state.agreed, {"w9": 5})), "w9 saw another history"),
    ],
    ids=["quarantined", "disagreement", "suspected"],
)
def test_no_copy_of_a_bad_index(fixture: SnapshotFixture, key: bytes, row: Callable[[JoinerState], bytes], named: str) -> None:
    """No snapshot is made of an index that is quarantined, in a root disagreement or suspected."""
    with opened(fixture.index) as index:
        put_row(index, META, key, row(index.joiner_state()))
    decided = fixture.snapshot("create", code=2)["stderr"]
    assert "no snapshot is made" in decided
    assert named in decided
    assert not fixture.store.exists()


def test_what_a_former_key_signed(fixture: SnapshotFixture) -> None:
    """After a rotation a former key's snapshots are not restored, since its thief could make them; `prune` still knows them."""
    fixture.snapshot("create")
    files = load(fixture.config).key_files
    keys.prepare(files)
    assert fixture.snapshot("verify")["problem"] is None
    keys.put_in_place(files)
    shutil.rmtree(fixture.index)
    problem = fixture.snapshot("restore", code=1)["stderr"]
    assert "unknown-key" in problem
    assert "make a new one (`notary snapshot create`), or let the worker replay the log" in problem
    assert fixture.snapshot("prune", "--keep", "1", "--margin-s", "0") == {"snapshots": [], "files": 0, "not_ours": [], "stderr": ""}


def test_prune_keeps_the_newest_and_young_files(fixture: SnapshotFixture) -> None:
    """The newest stay. Files go one run after the last manifest that names them, and not while they are young."""
    made = [fixture.snapshot("create")["snapshot"] for _ in range(3)]
    (fixture.store / "files" / ("0" * 64)).write_bytes(b"left by a killed process")
    files = fixture.names("files")
    assert fixture.snapshot("prune", "--keep", "3") == {"snapshots": [], "files": 0, "not_ours": [], "stderr": ""}
    assert fixture.names("files") == files, "the left one is young"
    assert fixture.snapshot("prune", "--keep", "1", "--margin-s", "0")["snapshots"] == [made[1], made[0]]
    assert fixture.names("manifests") == {made[2]}
    assert files - fixture.names("files") == {"0" * 64}, "what the removed ones name stays until the next run"
    fixture.snapshot("prune", "--keep", "1", "--margin-s", "0")
    manifest = msgspec.json.decode(_manifest(fixture).read_text().split("\n")[1], type=Manifest)
    assert fixture.names("files") == {file.sha256 for file in manifest.files}
    assert fixture.snapshot("verify")["snapshot"] == made[2]
    (fixture.store / "manifests" / "of-somebody.note").write_text("not ours")
    (fixture.store / "files" / ("0" * 64)).write_bytes(b"")
    assert "of-somebody.note" in fixture.snapshot("prune", "--keep", "1", "--margin-s", "0")["stderr"]
    assert {"of-somebody.note", made[2]} == fixture.names("manifests")
    assert "0" * 64 in fixture.names("files")


def test_nothing_is_made_beside_a_young_one(fixture: SnapshotFixture) -> None:
    """With `--if-older-s` nothing is made while a young one is there; one of a clock that is far ahead does not count."""
    assert fixture.snapshot("create", "--if-older-s", "3600")["made"]
    fixture.snapshot("restore", "--name", "worker-2")
    assert not fixture.snapshot("create", "--if-older-s", "3600", "--name", "worker-2")["made"]
    assert fixture.snapshot("create", "--if-older-s", "0")["made"]
    assert fixture.snapshot("create", "--if-older-s", "0", "--keep", "1")["made"]
    assert len(fixture.names("manifests")) == 1


def test_it_prints_a_line_for_each_snapshot(
    fixture: SnapshotFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people it prints a line for each snapshot; without a store, an index or a snapshot it says what to do."""
    command = Command(capsys, "snapshot", config=fixture.config)
    assert "set `[snapshots] url` (NOTARY_SNAPSHOTS_URL), or give --url" in command.refuses("list")
    monkeypatch.setenv("NOTARY_SNAPSHOTS_URL", "snapshots")
    assert "there is no snapshot in" in command.refuses("verify", code=1)
    assert command.run("list") == ""
    assert "there is no snapshot in" in command.err
    assert "there is no index in" in command.refuses("create", "--name", "nobody")
    assert "600 decisions" in command.run("create", "--name", "worker-1")
    assert "made 20" in command.run("list")
    assert command.err == ""
    assert "there is no snapshot x.note in" in command.refuses("verify", "--snapshot", "x.note", code=1)
    assert "nothing://at/all cannot be used for snapshots" in command.refuses("verify", "--url", "nothing://at/all")


def _dying(at: int, fixture: SnapshotFixture, action: str, name: str) -> "subprocess.CompletedProcess[str]":
    notary = ["snapshot", action, "--config", str(fixture.config), "--url", str(fixture.store), "--name", name]
    command = [sys.executable, "-P", "-m", "tests.notary.snapshots.dying", str(at), str(fixture.directory.path), *notary]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)})


def _spread(changes: int) -> list[int]:
    """Returns some of the changes 1 to n, the last four among them."""
    return sorted({1 + at * (changes - 1) // (KILLS - 1) for at in range(KILLS)} | {changes - at for at in range(4)})


def _assert_killed(at: int, done: "subprocess.CompletedProcess[str]") -> None:
    """It was killed before that change, or had fewer: RocksDB keeps a file more or less from one opening to the next."""
    assert done.returncode == -9 or int(done.stderr.splitlines()[-1]) < at, done.stderr


@pytest.mark.seconds
@pytest.mark.nightly
def test_kills_while_it_is_made(fixture: SnapshotFixture) -> None:
    """After a kill before any change of a file, each manifest that is there verifies, and the next call makes a snapshot."""
    before = fixture.rows(fixture.index)
    done = _dying(0, fixture, "create", "worker-1")
    assert done.returncode == 0, done.stderr
    seen = set()
    for at in _spread(int(done.stderr.splitlines()[-1])):
        shutil.rmtree(fixture.store)
        _assert_killed(at, _dying(at, fixture, "create", "worker-1"))
        there = len(fixture.names("manifests"))
        seen.add(there)
        assert len(fixture.snapshot("list")["snapshots"]) == there
        fixture.snapshot("verify", "--all", code=0 if there else 1)
        fixture.snapshot("create")
        assert fixture.snapshot("verify")["problem"] is None
    assert seen == {0, 1}
    assert fixture.rows(fixture.index) == before


@pytest.mark.seconds
@pytest.mark.nightly
def test_kills_while_it_is_restored(fixture: SnapshotFixture) -> None:
    """After a kill before any change of a file there is no index of that name, or the complete one; the next call restores it."""
    fixture.snapshot("create")
    before = fixture.rows(fixture.index)
    index = fixture.index.with_name("worker-2")
    done = _dying(0, fixture, "restore", "worker-2")
    assert done.returncode == 0, done.stderr
    for at in _spread(int(done.stderr.splitlines()[-1])):
        shutil.rmtree(index, ignore_errors=True)
        _assert_killed(at, _dying(at, fixture, "restore", "worker-2"))
        assert {each.name for each in index.parent.iterdir()} <= {"worker-1", ".worker-2.restoring"}
        fixture.snapshot("restore", "--name", "worker-2")
        assert fixture.rows(index) == before
        assert {each.name for each in index.parent.iterdir()} == {"worker-1", "worker-2"}


def test_many_foreign_manifests_are_reported_in_short(fixture: SnapshotFixture) -> None:
    """A worker logs the output of both commands: somebody who may write to the store must not fill its memory with names."""
    fixture.snapshot("create")
    for number in range(SHOWN_MAX + 5):
        (fixture.store / "manifests" / f"9-{number:02}.note").write_text("not ours")
    complaints = fixture.snapshot("restore", "--name", "worker-2")["stderr"].splitlines()
    assert len(complaints) == SHOWN_MAX + 1
    assert complaints[-1].startswith(f"notary snapshot: {SHOWN_MAX + 5} snapshots could not be used")
    (complaint,) = fixture.snapshot("prune", "--keep", "1")["stderr"].splitlines()
    assert complaint.count("9-") == SHOWN_MAX
    assert " and 5 others, which may need the files" in complaint
