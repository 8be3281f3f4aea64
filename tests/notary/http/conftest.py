"""A client of the shared worker, which most tests here ask twice: once it reads calls itself, once its intake processes do."""

from collections.abc import Iterator

import pytest

from tests.notary.http.asking import Asking, Wire
from tests.notary.party import Bank
from tests.notary.process import NotaryDirectory, NotaryProcess


@pytest.fixture(scope="session")
def notary_directory(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> NotaryDirectory:
    """The directory of the shared workers of this room: one after the other, for an embedded log is for one process."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("shared-http") / "notary")
    directory.register(bank)
    return directory


@pytest.fixture(scope="session", params=[0, 2], ids=["alone", "intake"])
def intake(request: pytest.FixtureRequest) -> int:
    """How many intake processes the worker has."""
    processes: int = request.param
    return processes


@pytest.fixture(scope="session")
def worker(intake: int, notary_directory: NotaryDirectory) -> Iterator[NotaryProcess]:
    """A worker with the settings that it has by itself otherwise; tests leave it as they found it."""
    with NotaryProcess.start(notary_directory.config, settings={"HTTP_INTAKE_PROCESSES": intake}) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="session")
def asking(worker: NotaryProcess) -> Iterator[Asking]:
    """A client of the shared worker that checks each answer against the OpenAPI document."""
    with Asking(worker.url) as client:
        yield client


@pytest.fixture
def wire(worker: NotaryProcess) -> Iterator[Wire]:
    """A connection to the shared worker."""
    with Wire(worker.url) as connection:
        yield connection
