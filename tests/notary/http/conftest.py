"""A client of the shared worker; most tests here run twice: with and without acceptor processes."""

from collections.abc import Iterator

import pytest

from notary.http import lanes, listener
from notary.quota import Quota
from tests.notary.http.checked_client import MARKER, CheckedClient, Wire
from tests.notary.party import Bank
from tests.notary.process import NotaryDirectory, NotaryProcess


@pytest.fixture(scope="session")
def notary_directory(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> NotaryDirectory:
    """The directory of this package's shared workers, which run one after the other, since an embedded log allows one process."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("shared-http") / "notary")
    directory.register(bank)
    return directory


@pytest.fixture(scope="session", params=[0, 2], ids=["alone", "acceptors"])
def acceptors(request: pytest.FixtureRequest) -> int:
    """The worker's number of acceptor processes."""
    processes: int = request.param
    return processes


@pytest.fixture(scope="session")
def worker(acceptors: int, notary_directory: NotaryDirectory) -> Iterator[NotaryProcess]:
    """The shared worker, otherwise with default settings; tests leave it unchanged."""
    with NotaryProcess.start(notary_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors}) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="session")
def client(worker: NotaryProcess) -> Iterator[CheckedClient]:
    """A client of the shared worker that checks each answer against the OpenAPI document."""
    with CheckedClient(worker.url) as client:
        yield client


@pytest.fixture
def wire(worker: NotaryProcess) -> Iterator[Wire]:
    """A connection to the shared worker."""
    with Wire(worker.url) as connection:
        yield connection


@pytest.fixture
def nothing_logged(worker: NotaryProcess, client: CheckedClient) -> Iterator[None]:
    """After the test: no batch was sent, no decision was made, and stderr shows neither a traceback nor a malformed call."""
    counts = ("notary_batches_sent_total", "notary_positions", "notary_pending_requests")
    before = [client.metric(name) for name in counts]
    yield
    assert [client.metric(name) for name in counts] == before
    worker.check_quiet(MARKER)


@pytest.fixture
def charged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of requests for which quotas are charged in this process."""
    found, charge = list[int](), Quota.charge

    def noted(quota: Quota, party: str, requests: int) -> None:
        found.append(requests)
        charge(quota, party, requests)

    monkeypatch.setattr(Quota, "charge", noted)
    return found


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop has time for one thing that a client without an admitted submission asks for, and one call is a slice of it."""
    for name in ("UNAUTHENTICATED_TURN_S", "AUTHENTICATED_TURN_S", "SLICE_S"):
        monkeypatch.setattr(lanes, name, 0.0)
    monkeypatch.setattr(listener, "ACCEPT_TURN_S", 1.0)
