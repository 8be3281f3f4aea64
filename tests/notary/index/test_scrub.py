"""The scrub finds corrupt bytes in rows that no client asks for, and the worker then quarantines the index."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from notary.index import viewing
from notary.index.rocks import open_store
from notary.index.scrub import EXIT_COULD_NOT, EXIT_ROTTEN, EXIT_SOUND, main, scrub
from notary.index.store import FAMILIES
from notary.index.view import SETTINGS
from ordering.errors import Fatal
from ordering.ids import STATE_REF_BYTES
from tests.notary.index.test_index import _open, _step, damage_block, into_tables
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory, NotaryProcess, serve_fails

JSON = {"content-type": "application/json"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An index with its rows in table files."""
    index = _open(tmp_path / "index")
    for step in range(40):
        index.apply(_step(step))
    into_tables(index, FAMILIES)
    index.close()
    return tmp_path / "index"


def test_every_row_is_read(directory: Path) -> None:
    """A sound index is read to its last row, in several parts, while another process has it open."""
    index = _open(directory)
    with viewing(directory) as view:
        rows = sum(len(list(view.rows_of(family))) for family in FAMILIES)
    rests: list[float] = []
    assert scrub(directory, rests.append, lambda: 0.0) == rows
    assert rests == []
    index.close()


@pytest.mark.parametrize("family", ["states", "decisions"])
def test_scrub_finds_a_flipped_bit(directory: Path, family: str) -> None:
    """One flipped bit in a table file is found without a query for the row."""
    damage_block(directory, family)
    with pytest.raises(Fatal, match=r"cannot be read: .*checksum"):
        scrub(directory, lambda seconds: None, lambda: 0.0)


def test_the_exit_code_separates_corrupt_from_unreadable(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code distinguishes a corrupt index from one that cannot be read."""
    monkeypatch.setattr("os.nice", lambda increment: 0)
    assert main(directory) == EXIT_SOUND
    assert main(directory.parent / "none") == EXIT_COULD_NOT
    damage_block(directory, "states")
    assert main(directory) == EXIT_ROTTEN
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
    code, messages = serve_fails(notary.config)
    assert code == 2
    assert "is quarantined" in messages
