"""The blocking client gives the guarantees of the asyncio client to programs without an event loop."""

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from notary.client import Client, RetryPolicy, Signer, Unanswered
from ordering.errors import ConfigurationError
from tests.notary.client.scripted import NAME, PARTY, PEM, VERIFIER_KEY, Notary, Worker, nobody, request, staged

SIGNER = Signer.from_pem(PEM)


def test_it_submits_and_looks_up() -> None:
    """Submitting and looking up work as in the asyncio client, with a dead URL in the list."""
    with nobody() as url, staged(Worker(Notary(), ["503 not-ready"])) as urls, Client([url, *urls], PARTY, SIGNER) as client:
        answers = client.submit([request(1), request(2, state=1)])
        assert [answer.outcome for answer in answers] == ["committed", "rejected"]
        found = client.transaction(answers[1].transaction_id)
        assert found is not None
        assert found.same_decision(answers[1])
        assert client.state(request(1)["inputs"][0]).position == 0
        assert client.notary().origin == "notary.example/london"


def test_a_worker_that_drips_does_not_outlast_the_deadline() -> None:
    """A reply that arrives byte by byte is cancelled at the deadline."""
    dripping = Worker(Notary(), [], then="drip")
    with (
        staged(dripping) as urls,
        Client(urls, PARTY, SIGNER, notary_name=NAME, verifier_keys=VERIFIER_KEY) as client,
        pytest.raises(Unanswered, match="no complete answer"),
    ):
        client.submit([request(1)], deadline_s=2.0)


async def test_it_works_where_a_loop_is_running() -> None:
    """The client blocks and answers inside a running event loop too, such as a notebook's."""
    with staged(Worker(Notary(), [])) as urls, Client(urls, PARTY, SIGNER) as client:
        assert client.submit([request(1)])[0].committed


def test_threads_may_share_it() -> None:
    """Many threads submit at once through one client, and each gets its own answers."""
    worker = Worker(Notary(), ["reset", "503 overloaded", "lost reset"])
    with staged(worker) as urls, Client(urls, PARTY, SIGNER) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.submit([request(number)])[0], range(40)))
    assert len({answer.transaction_id for answer in answers}) == 40
    assert sorted(answer.position for answer in answers) == list(range(40))


def test_closing_ends_what_is_still_asked() -> None:
    """Closing the client cancels a pending call in another thread with CancelledError; later calls raise an error."""
    worker = Worker(Notary(), [], then="hang")
    with staged(worker) as urls, ThreadPoolExecutor(1) as pool:
        client = Client(urls, PARTY, SIGNER, retry_policy=RetryPolicy(attempt_s_max=3600))
        waiting = pool.submit(lambda: client.submit([request(1)], deadline_s=3600))
        while not worker.bodies:
            time.sleep(0.01)
        client.close()
        client.close()
        with pytest.raises(CancelledError):
            waiting.result()
        with pytest.raises(RuntimeError, match="closed"):
            client.notary()


def test_a_client_that_cannot_be_leaves_no_thread() -> None:
    """Bad arguments raise an error before the thread is started."""
    before = threading.active_count()
    with pytest.raises(ConfigurationError):
        Client([])
    assert threading.active_count() == before
