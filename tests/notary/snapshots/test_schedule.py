"""Workers make snapshots by a schedule, one of them at a time, and a worker on an empty disk restores the newest by itself."""

import asyncio
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import msgspec
import pytest

from notary.config import load
from notary.snapshots.make import STAGE
from notary.snapshots.manifest import SnapshotFile
from notary.snapshots.schedule import SPREAD_SHARE, SnapshotSchedule, restore_at_start
from notary.snapshots.take import stage_of
from ordering.durable import locked_directory
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank
from tests.notary.process import NotaryProcess, is_running, killed_at_the_end, serve
from tests.notary.snapshots.fixture import SnapshotFixture, spent

pytestmark = pytest.mark.seconds


def _metrics(process: NotaryProcess) -> dict[str, float]:
    lines = httpx.get(f"{process.url}/metrics", trust_env=False, timeout=60).text.splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("notary_snapshot")}


def test_worker_makes_and_restores(fixture: SnapshotFixture, bank: Bank, notary_process: Callable[..., NotaryProcess]) -> None:
    """A worker makes snapshots while it serves, and keeps so many; another without an index starts from the newest, and decides on."""
    settings = {"SNAPSHOTS_URL": "snapshots", "SNAPSHOTS_EVERY_S": 1, "SNAPSHOTS_KEEP": 2}
    process = notary_process(fixture.config, settings=settings)
    decided = spent(process, bank)
    while _metrics(process)["notary_snapshots_made_total"] < 4 or not any(
        name.startswith(f"{1200:016d}") for name in fixture.names("manifests")
    ):
        time.sleep(0.05)
    found = _metrics(process)
    assert (found["notary_snapshots_failed_total"], found["notary_snapshot_interval_seconds"]) == (0, 1)
    assert process.stop() == 0
    assert 2 <= len(fixture.names("manifests")) <= 3, "one may have been made, and the worker ended before it pruned"
    shutil.rmtree(fixture.index)
    other = notary_process(fixture.config, "worker-2", settings={"SNAPSHOTS_URL": "snapshots"})
    assert "restored from a snapshot" in other.stderr()
    assert '"decisions":1200' in other.stderr()
    with CheckedClient(other.url) as client:
        for id_ in list(decided)[::100]:
            assert client.get(f"/v1/transactions/{id_}").json() == decided[id_]
    assert min(decision["position"] for decision in spent(other, bank, 1).values()) == 1200
    assert other.stop() == 0


@pytest.mark.parametrize("url", ["", "snapshots"], ids=["no store", "an empty store"])
def test_without_a_snapshot_the_log_is_replayed(fixture: SnapshotFixture, notary_process: Callable[..., NotaryProcess], url: str) -> None:
    """A worker without an index, and without a snapshot, replays the log."""
    shutil.rmtree(fixture.index)
    process = notary_process(fixture.config, settings={"SNAPSHOTS_URL": url})
    assert ("replaying the log" in process.stderr()) is bool(url)
    assert httpx.get(f"{process.url}/v1/checkpoint", trust_env=False, timeout=60).text.split("\n")[1] == "600"
    assert process.stop() == 0


def test_index_is_left_alone(fixture: SnapshotFixture, notary_process: Callable[..., NotaryProcess]) -> None:
    """A worker that has an index does not look for a snapshot."""
    process = notary_process(fixture.config, settings={"SNAPSHOTS_URL": "nothing://at/all"})
    assert "snapshot" not in process.stderr()
    assert process.stop() == 0


def test_stopped_while_it_restores(fixture: SnapshotFixture) -> None:
    """A worker that is stopped while it restores ends with 0, with its child, and leaves no index: the next start restores."""
    fixture.snapshot("create")
    shutil.rmtree(fixture.index)
    (manifest,) = fixture.found()
    large = SnapshotFile("999999.sst", 4 << 30, "0" * 64)
    newer = msgspec.structs.replace(manifest, made_at_ms=manifest.made_at_ms + 1, files=(*manifest.files, large))
    fixture.signed(newer)
    with (fixture.store / "files" / large.sha256).open("wb") as file:
        file.truncate(large.bytes)  # it takes no space, and much longer to read than this test waits
    with killed_at_the_end(serve(fixture.config, settings={"SNAPSHOTS_URL": "snapshots"})) as process:
        stage = fixture.index.with_name(".worker-1.restoring")
        while not stage.exists() or not list(stage.iterdir()):
            assert process.poll() is None
            time.sleep(0.02)
        (child,) = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        process.send_signal(signal.SIGTERM)
        _, decided = process.communicate(timeout=60)
    assert process.returncode == 0, decided
    assert "cannot be reached" not in decided
    assert not is_running(child)
    assert not fixture.index.exists()


@pytest.mark.parametrize(("every_s", "periods"), [(3600, 1), (1, 2)], ids=["an hour", "a second"])
async def test_workers_take_turns(fixture: SnapshotFixture, every_s: int, periods: int) -> None:
    """Two workers share a store: one makes the snapshot of a period, and the other finds it, however long a snapshot takes."""
    shutil.copytree(fixture.index, fixture.index.with_name("worker-2"))
    flags = {"snapshots.url": str(fixture.store), "snapshots.every_s": every_s}
    # The processes read the file, so it says the same.
    fixture.config.write_text(fixture.config.read_text() + f'\n[snapshots]\nurl = "{fixture.store}"\n')
    both = [SnapshotSchedule(load(fixture.config, {"worker.name": name, **flags}), "", lambda: True) for name in ("worker-1", "worker-2")]
    waits = [await schedule.check() for schedule in both]
    while sum(schedule.made for schedule in both) < periods:
        waits += [await schedule.check() for schedule in both]
    assert all(wait <= every_s * (1 + SPREAD_SHARE) for wait in waits)
    assert [schedule.failures for schedule in both] == [0, 0]
    made = sorted(int(name.split("-")[1]) for name in fixture.names("manifests"))
    assert len(made) == sum(schedule.made for schedule in both)
    assert all(later - earlier > every_s * 1000 for earlier, later in pairwise(made))
    if periods == 1:
        assert [schedule.made for schedule in both] == [1, 0]


async def test_not_ready_and_failures(fixture: SnapshotFixture, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that is not ready makes none. One that fails counts it, says why, and tries again sooner."""
    flags = {"worker.name": "worker-1", "snapshots.url": "nothing://at/all", "snapshots.every_s": 3600}
    fixture.config.write_text(fixture.config.read_text() + '\n[snapshots]\nurl = "nothing://at/all"\n')
    config = load(fixture.config, flags)
    assert await SnapshotSchedule(config, "", lambda: False).check() < 3600 / 4
    schedule = SnapshotSchedule(config, "", lambda: True)
    with caplog.at_level(logging.WARNING):
        assert await schedule.check() < 3600 / 4
    assert (schedule.made, schedule.failures) == (0, 1)
    assert "cannot be used for snapshots" in caplog.text


async def test_complaints_of_a_success_are_logged(
    fixture: SnapshotFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stray file among the manifests keeps all files from being removed; the worker logs that, though a snapshot was made."""
    for name, value in {"URL": str(fixture.store), "EVERY_S": "1", "KEEP": "1"}.items():
        monkeypatch.setenv(f"NOTARY_SNAPSHOTS_{name}", value)
    (fixture.store / "manifests").mkdir(parents=True)
    (fixture.store / "manifests" / ".DS_Store").write_text("x")
    schedule = SnapshotSchedule(load(fixture.config, {"worker.name": "worker-1"}), "", lambda: True)
    with caplog.at_level(logging.WARNING):
        await schedule.check()
    assert schedule.made == 1
    assert "no key of this notary has signed .DS_Store" in caplog.text


async def test_it_ends_its_process(fixture: SnapshotFixture) -> None:
    """A schedule that is cancelled ends the process that makes the snapshot."""
    fixture.store.mkdir()
    os.mkfifo(fixture.store / "manifests")  # not a folder: the command fails, or is ended before that
    fixture.config.write_text(fixture.config.read_text() + f'\n[snapshots]\nurl = "{fixture.store}"\n')
    schedule = SnapshotSchedule(load(fixture.config, {"worker.name": "worker-1", "snapshots.every_s": 1}), "", lambda: True)
    running = asyncio.create_task(schedule.run())
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    while not (mine := set(children.read_text().split()) - before):  # noqa: ASYNC110 - processes send no events
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(is_running(int(pid)) for pid in mine)


async def test_a_start_removes_what_killed_processes_left(fixture: SnapshotFixture) -> None:
    """A snapshot and a restore were killed, and no other of either follows. A process that still runs keeps its files."""
    left = [fixture.index / STAGE / "000009.sst", stage_of(fixture.index) / "000009.sst"]
    for file in left:
        file.parent.mkdir()
        file.write_bytes(b"x")
    config = load(fixture.config, {"worker.name": "worker-1"})
    with locked_directory(left[0].parent), locked_directory(left[1].parent):
        await restore_at_start(config, "", lambda: None)
    assert [file.exists() for file in left] == [True, True]
    await restore_at_start(config, "", lambda: None)
    assert [file.exists() for file in left] == [False, False]
    assert not stage_of(fixture.index).exists()
