"""Fixtures that the notary's tests share: a party, and one worker on an embedded log that most tests use."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.notary.party import Bank
from tests.notary.process import NotaryDirectory, NotaryProcess


@pytest.fixture(scope="session")
def bank() -> Bank:
    """A party with an Ed25519 key, registered with the shared worker."""
    return Bank()


@pytest.fixture(scope="session")
def notary_directory(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> NotaryDirectory:
    """The shared worker's directory."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("shared") / "notary")
    directory.register(bank)
    return directory


@pytest.fixture(scope="session")
def worker(notary_directory: NotaryDirectory) -> Iterator[NotaryProcess]:
    """The shared worker, with default settings; tests leave it unchanged."""
    with NotaryProcess.start(notary_directory.config) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture
def notary_process() -> Iterator[Callable[..., NotaryProcess]]:
    """Starts workers as `NotaryProcess.start` does; those still running when the test ends are killed."""
    started: list[NotaryProcess] = []

    def start(config: Path, *arguments: object, **options: object) -> NotaryProcess:
        started.append(NotaryProcess.start(config, *arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def directory(tmp_path: Path) -> NotaryDirectory:
    """A separate notary for one test, without parties."""
    return NotaryDirectory.create(tmp_path / "notary")


@pytest.fixture
def own_directory(tmp_path: Path, bank: Bank) -> NotaryDirectory:
    """A separate notary for one test, with the bank registered."""
    directory = NotaryDirectory.create(tmp_path / "notary")
    directory.register(bank)
    return directory
