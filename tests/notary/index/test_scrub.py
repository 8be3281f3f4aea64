"""The scrub finds corrupt bytes in rows that no client asks for, and the worker then quarantines the index."""

import asyncio
import signal
import subprocess
import sys
import time
from errno import EAGAIN
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from notary.index import view as index_view
from notary.index import viewing
from notary.index.rocks import open_store
from notary.index.scrub import EXIT_CORRUPT, EXIT_COULD_NOT, EXIT_SOUND, main, scrub
from notary.index.store import FAMILIES
from notary.index.view import SETTINGS
from notary.self_check import SelfCheck, SelfCheckSettings, output_of
from ordering.errors import Fatal
from ordering.ids import STATE_REF_BYTES
from tests.notary.index.test_index import _open, damage_block
from tests.notary.party import Bank, spend
from tests.notary.process import ROOT, NotaryDirectory, NotaryProcess, serve_fails

JSON = {"content-type": "application/json"}


def test_every_row_is_read(copied: Path) -> None:
    """A sound index is read to its last row, in several parts, while another process has it open."""
    index = _open(copied)
    with viewing(copied) as view:
        rows = sum(len(list(view.rows_of(family))) for family in FAMILIES)
    rests: list[float] = []
    assert scrub(copied, rests.append, lambda: 0.0) == rows
    assert rests == []
    index.close()


@pytest.mark.parametrize("family", ["states", "decisions"])
def test_scrub_finds_a_flipped_bit(copied: Path, family: str) -> None:
    """One flipped bit in a table file is found without a query for the row."""
    damage_block(copied, family)
    with pytest.raises(Fatal, match=r"cannot be read: .*checksum"):
        scrub(copied, lambda seconds: None, lambda: 0.0)


def test_the_exit_code_separates_corrupt_from_unreadable(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code distinguishes a corrupt index from one that cannot be read."""
    monkeypatch.setattr("os.nice", lambda increment: 0)
    assert main(copied) == EXIT_SOUND
    assert main(copied.parent / "none") == EXIT_COULD_NOT
    damage_block(copied, "states")
    assert main(copied) == EXIT_CORRUPT
    assert "checksum" in capsys.readouterr().out


@pytest.mark.seconds
def test_a_worker_quarantines_its_rotten_index(tmp_path: Path) -> None:
    """With 64 bytes of consumed states flipped on disk, a running worker quarantines the index, stops, and does not start with it again."""
    notary = NotaryDirectory.create(tmp_path / "notary")
    bank = Bank()
    notary.register(bank)
    index = notary.path / "index/worker-1"
    settings = {"WORKER_SCRUB_INTERVAL_MS": 1_000, "INDEX_WRITE_BUFFER_BYTES": 65_536}
    with NotaryProcess.start(notary.config, settings=settings) as worker:
        tables: list[Path] = []
        while not tables:
            body = bank.body(*[spend() for _ in range(200)])
            assert httpx.post(f"{worker.url}/v1/submissions", content=body, headers=JSON).status_code == 200
            store = open_store(index, SETTINGS, read_only=True)
            tables = [index / file["name"].strip("/") for file in store.live_files() if len(file["start_key"]) == STATE_REF_BYTES]
            store.close()
        for table in tables:
            data = bytearray(table.read_bytes())
            middle = len(data) // 3
            data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
            table.write_bytes(data)
        # The process stays to report the reason until a signal ends it.
        while "is quarantined" not in (text := httpx.get(f"{worker.url}/readyz?verbose").text):
            assert worker.process.poll() is None
            time.sleep(0.05)
        assert "checksum" in text
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 2
    assert "is quarantined" in serve_fails(notary.config)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ("v.ATTEMPTS_MAX = 0", EXIT_COULD_NOT),
        ("resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))", EXIT_COULD_NOT),
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (14, 14))", EXIT_COULD_NOT),
        ("v.viewing = None; import notary.index.scrub; notary.index.scrub.viewing = None", 1),
    ],
    ids=["the index changed each time", "no space", "no open files", "a bug"],
)
async def test_a_scrub_that_could_not_be_done_quarantines_nothing(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str, code: int
) -> None:
    """It has found no corrupt row. The worker warns, and tries again later."""
    main = f"import resource, sys; from pathlib import Path; import notary.index.view as v; from notary.index.scrub import main; {limit}"
    command = (sys.executable, "-P", "-c", f"{main}; sys.exit(main(Path({str(copied)!r})))")
    codes: list[int | None] = []
    again = asyncio.Event()

    async def limited_once(module: str, *arguments: str) -> tuple[int | None, str, str]:
        if codes:
            again.set()
            await asyncio.Event().wait()
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=ROOT, check=False)
        codes.append(done.returncode)
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("notary.self_check.output_of", limited_once)
    index = _open(copied)
    check = SelfCheck("w1", cast("Any", None), cast("Any", None), index, SelfCheckSettings(scrub_interval_ms=1), time.monotonic)
    scrubbing = asyncio.create_task(check._scrub())
    async with asyncio.timeout(60):
        await again.wait()
    scrubbing.cancel()
    await asyncio.wait([scrubbing])
    assert codes == [code]
    assert "could not be scrubbed" in caplog.text
    assert not index.agreement.quarantined
    index.close()


async def test_a_process_that_cannot_be_started_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of processes stops neither a worker nor its snapshots."""

    async def fails(*arguments: Any, **how: Any) -> Any:
        raise BlockingIOError(EAGAIN, "no more processes")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails)
    code, _, why = await output_of("any.module")
    assert (code, "no more processes" in why) == (None, True)


@pytest.mark.seconds
async def test_a_call_is_cancelled_whose_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, and a child of it keeps its pipes open. A worker that stops just then ends without an error."""
    start = asyncio.create_subprocess_exec
    processes: list[asyncio.subprocess.Process] = []

    async def ended(*arguments: Any, **how: Any) -> Any:
        process = await start("sh", "-c", "sleep 1 & exit 0", **how)
        processes.append(process)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", ended)
    call = asyncio.create_task(output_of("any.module"))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (process,) = processes
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        await pipe.read()  # it is closed when the child ends
    await asyncio.sleep(0)


def test_lost_links_are_no_lost_file(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB misses a file whose link another process has removed. The second attempt finds it in the index."""
    link = index_view.link_files
    calls: list[Path] = []

    def once_removed(directory: Path, links: Path) -> None:
        link(directory, links)
        calls.append(links)
        if len(calls) == 1:
            next(links.glob("*.sst")).unlink()

    monkeypatch.setattr("os.nice", lambda increment: 0)
    monkeypatch.setattr(index_view, "link_files", once_removed)
    assert main(copied) == EXIT_SOUND
    assert len(calls) > 1


@pytest.mark.parametrize("lost", ["MANIFEST-*", "*.sst"])
def test_a_lost_file_is_found(copied: Path, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk does not return a file that the index names."""
    monkeypatch.setattr("os.nice", lambda increment: 0)
    next(copied.glob(lost)).unlink()
    assert main(copied) == EXIT_CORRUPT
