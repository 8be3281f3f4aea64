"""Fixtures for the tests of snapshots."""

from pathlib import Path

import pytest

from tests.notary.party import Bank
from tests.notary.process import NotaryDirectory, NotaryProcess
from tests.notary.snapshots.fixture import SMALL, SnapshotFixture, spent


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> NotaryDirectory:
    """A notary with 600 decisions, in table files and a write-ahead log; its worker was killed."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("template") / "notary")
    directory.register(bank)
    with NotaryProcess.start(directory.config, settings=SMALL) as process:
        spent(process, bank)
    return directory


@pytest.fixture(autouse=True)
def _nice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps commands that run in this process from lowering its priority for ever."""
    monkeypatch.setattr("os.nice", lambda increment: 0)


@pytest.fixture
def fixture(template: NotaryDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> SnapshotFixture:
    """A copy of the template for one test."""
    return SnapshotFixture.copy(template, tmp_path / "notary", capsys)
