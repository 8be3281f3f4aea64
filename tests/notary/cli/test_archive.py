"""`notary archive` in a terminal: mistyped stores, and two commands on one archive."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from notary import cli
from notary.access import alone_in
from notary.archive.settings import ANSWER_CHARS_MAX, Sealed
from ordering.genesis import read_genesis
from tests.notary.archive.test_stream_writers import ArchiveFixture
from tests.notary.cli.written import embedded_log
from tests.notary.process import NotaryDirectory


def run(directory: NotaryDirectory, action: str, store: Path, archive: Path, *flags: str) -> int:
    """Run the command. Returns its exit code."""
    return cli.main(["archive", action, "--config", str(directory.config), "--url", str(store), "--archive", str(archive), *flags])


async def sealed(directory: NotaryDirectory) -> None:
    """Seal the records of a new log in a segment."""
    async with embedded_log(directory.path) as log:
        genesis, log_id = await read_genesis(log)
        fixture = ArchiveFixture(directory, log, genesis.notary_name, log_id)
        stream = fixture.process("w1")
        assert (await fixture.command(stream)).segments == 1
        await stream.close()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotaryDirectory:
    """A notary whose configuration names brokers, as segments require; the tests connect to none."""
    directory = NotaryDirectory.create(tmp_path / "notary")
    monkeypatch.setenv("NOTARY_LOG_KIND", "kafka")
    monkeypatch.setenv("NOTARY_LOG_BOOTSTRAP", "127.0.0.1:1")
    return directory


def test_a_store_without_segments_is_an_error(directory: NotaryDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped --url has no segment: the command says so and exits with 2, and makes no archive."""
    assert run(directory, "fetch", tmp_path / "typo", tmp_path / "archive") == 2
    assert f"there is no segment in {tmp_path / 'typo'}" in capsys.readouterr().err
    assert not (tmp_path / "archive").exists()


def test_a_quiet_notary_is_no_error(directory: NotaryDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`fetch`, `prune`, and `fetch` again: the store has the last segment only, and the archive has all of it."""
    asyncio.run(sealed(directory))
    store, archive = directory.path / "segments", tmp_path / "archive"
    for action, flags in (("fetch", ()), ("prune", ("--margin-s", "0")), ("fetch", ())):
        assert run(directory, action, store, archive, *flags) == 0
    assert len([*(store / "manifests").iterdir()]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the archive has all of them"


def test_fetch_removes_files_of_a_killed_run(directory: NotaryDirectory, tmp_path: Path) -> None:
    """Files that a killed run left of an earlier range are removed, also if there is nothing to add."""
    asyncio.run(sealed(directory))
    store, archive = directory.path / "segments", tmp_path / "archive"
    assert run(directory, "fetch", store, archive) == 0
    left = archive / "ordering" / "partition=0" / "00000001-segments-left.parquet"
    left.write_bytes(b"PAR1")
    assert run(directory, "fetch", store, archive) == 0
    assert not left.exists()


def test_a_folder_that_is_no_archive_is_an_error(directory: NotaryDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`prune` of a mistyped --archive removes nothing and exits with 2."""
    (tmp_path / "empty").mkdir()
    for name in ("typo", "empty"):
        assert run(directory, "prune", tmp_path / "segments", tmp_path / name) == 2
        assert f"{tmp_path / name} is no archive" in capsys.readouterr().err


def test_one_command_at_a_time_changes_an_archive(directory: NotaryDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While another process has the archive's lock the command is refused."""
    (tmp_path / "archive" / "ranges").mkdir(parents=True)
    with alone_in(tmp_path / "archive", "busy"):
        assert run(directory, "prune", tmp_path / "segments", tmp_path / "archive") == 2
    assert "another process changes the archive" in capsys.readouterr().err


@pytest.mark.seconds
def test_a_long_problem_fits_into_an_answer(directory: NotaryDirectory) -> None:
    """A store's error may be as long as the store likes: the worker reads a line of at most 64 KiB, and would log another error."""
    flags = ["--config", str(directory.config), "--url", f"{'x' * 100_000}:y"]
    ended = subprocess.run([sys.executable, "-P", "-m", "notary", "archive", "stream", *flags], capture_output=True, timeout=60)
    answer = msgspec.json.decode(ended.stdout, type=Sealed)
    assert answer == Sealed(problem="x" * ANSWER_CHARS_MAX)
    assert ended.returncode == 2
