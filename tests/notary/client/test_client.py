"""The asyncio client against workers on loopback that misbehave by script."""

import asyncio
import contextlib
import gc
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any

import httpx
import msgspec
import pytest

from notary.client import (
    Answer,
    AsyncClient,
    Contradiction,
    NotaryDescription,
    Rejected,
    RetryPolicy,
    Signer,
    TransactionRequest,
    Unanswered,
    Unreachable,
)
from notary.verify import verify_receipt
from ordering.errors import ConfigurationError, Malformed, NotReady, OutcomeUnknown
from tests.notary.client.scripted import NAME, PARTY, PEM, VERIFIER_KEY, Notary, Worker, nobody, request, staged

QUICK = RetryPolicy(attempt_s_max=30, connect_s_max=30, backoff_s_first=0.01, backoff_s_max=0.05)
IMPATIENT = msgspec.structs.replace(QUICK, attempt_s_max=1.5)
"""For workers that do not answer."""
SILENT = ("hang", "drip")
LONG_S = 60.0


def client_of(urls: Sequence[str], **more: Any) -> AsyncClient:
    return AsyncClient(urls, PARTY, Signer.from_pem(PEM), **{"retry_policy": QUICK, "verifier_keys": VERIFIER_KEY, **more})


# The name is given, so the first connection to each worker has the submission as its first call.
async def submit(urls: Sequence[str], count: int = 3, deadline_s: float = LONG_S, **more: Any) -> list[Answer]:
    async with client_of(urls, **{"notary_name": NAME, **more}) as client:
        return await client.submit([request(number) for number in range(count)], deadline_s=deadline_s)


async def test_answers_stand_in_order_with_receipts() -> None:
    """A good worker's decisions are returned in the order of the requests, each with its receipt."""
    with staged(Worker(Notary(), [])) as urls:
        answers = await submit(urls)
    assert [answer.position for answer in answers] == [0, 1, 2]
    assert all(answer.committed and answer.reason is None and answer.conflicts == () for answer in answers)
    assert all(verify_receipt(answer.receipt or "", msgspec.to_builtins(answer), VERIFIER_KEY) for answer in answers)


async def test_a_double_spend_is_an_answer_not_an_error() -> None:
    """A rejection is a value, and names the state and the hash of its consumer."""
    with staged(Worker(Notary(), [])) as urls:
        async with client_of(urls) as client:
            [first] = await client.submit([TransactionRequest(**request(1))])
            [second] = await client.submit([request(2, state=1)])
    assert first.committed
    assert not second.committed
    assert second.reason == "input-conflict"
    assert second.conflicts[0].state == request(1)["inputs"][0]
    assert second.conflicts[0].consumed_by == sha256(bytes.fromhex(first.transaction_id)).hexdigest()


FAILURES = [
    "reset",
    "lost reset",
    "hang",
    "drip",
    "half",
    "noise",
    "no json",
    "too few",
    "other ids",
    "position text",
    "unknown reason",
    "committed with reason",
    "200 with null",
    "202 none",
    "202 some",
    "redirect",
    "408 timeout",
    "425 early",
    "429 quota-exceeded 0",
    "500 broken",
    "502 proxy",
    "503 overloaded",
    "503 not-ready 0",
    "503 not-ready tomorrow",
    "503 not-ready Wed, 21 Oct 2015 07:28:00 GMT",
]


@pytest.mark.parametrize("failure", [*FAILURES, "foreign conflict", "unproven"])
async def test_a_failing_worker_costs_an_attempt_and_no_answer(failure: str) -> None:
    """After any failure of one worker, the client sends the same bytes to the next URL and returns its answer."""
    notary = Notary()
    bad, good = Worker(notary, [], then=failure), Worker(notary, [])
    with staged(bad, good) as urls:
        answers = await submit(urls, retry_policy=IMPATIENT if failure in SILENT else QUICK)
    assert [answer.transaction_id for answer in answers] == list(notary.decisions)
    assert len(bad.bodies) == 1
    assert good.bodies == bad.bodies


@pytest.mark.parametrize("failure", ["reset", "503 overloaded", "202 none", "no json", "noise"])
async def test_a_lone_worker_is_asked_again(failure: str) -> None:
    """With one URL only, the client retries there with the same bytes until it answers."""
    worker = Worker(Notary(), [failure] * 3)
    with staged(worker) as urls:
        await submit(urls)
    assert len(worker.bodies) == 4
    assert len(set(worker.bodies)) == 1


async def test_a_connection_that_was_closed_while_idle_is_opened_again() -> None:
    """If a worker closes a connection as the next call arrives on it, the call goes to the same worker, and no other is tried."""
    notary = Notary()
    restarted, other = Worker(notary, ["answer", "reset"]), Worker(notary, [])
    with staged(restarted, other) as urls:
        async with client_of(urls, notary_name=NAME) as client:
            for number in range(2):
                await client.submit([request(number)])
    assert (len(restarted.bodies), len(other.bodies)) == (3, 0)
    assert restarted.bodies[1] == restarted.bodies[2]


async def test_the_url_that_answered_is_asked_first_the_next_time() -> None:
    """After a failure the client stays with the worker that answered, and does not try the dead one first."""
    notary = Notary()
    first, second = Worker(notary, ["503 not-ready"]), Worker(notary, [])
    with staged(first, second) as urls:
        async with client_of(urls, notary_name=NAME) as client:
            for number in range(5):
                await client.submit([request(number)])
    assert (len(first.bodies), len(second.bodies)) == (1, 5)


async def test_a_client_does_not_retry_before_retry_after() -> None:
    """With a Retry-After beyond the deadline the client tries the worker once, and the call ends at once."""
    worker = Worker(Notary(), ["429 quota-exceeded 86400"])
    with staged(worker) as urls, pytest.raises(Unanswered, match="because of quota-exceeded"):
        await submit(urls)
    assert len(worker.bodies) == 1


async def test_a_partial_answer_is_kept_when_the_rest_stays_unknown() -> None:
    """If the rest stays undecided until the deadline, the error holds the decisions of the 202, beside the ids of all requests."""
    worker = Worker(Notary(), ["202 some"], then="503 not-ready 86400")
    with staged(worker) as urls, pytest.raises(OutcomeUnknown) as caught:
        await submit(urls)
    assert isinstance(caught.value, Unanswered)
    assert [answer and answer.position for answer in caught.value.answers] == [0, None, 2]
    assert list(caught.value.transaction_ids) == list(worker.notary.decisions)
    assert "1 of 3 requests have no answer" in str(caught.value)
    assert "because of not-ready" in str(caught.value)


@pytest.mark.seconds
async def test_the_deadline_ends_a_call_that_nobody_answers() -> None:
    """Hanging, dripping and dead workers do not delay the call beyond the deadline, and each one's failure is reported."""
    hanging, dripping = Worker(Notary(), [], then="hang"), Worker(Notary(), [], then="drip")
    with nobody() as url, staged(hanging, dripping) as urls, pytest.raises(Unanswered) as caught:
        await submit([url, *urls], deadline_s=10.0, notary_name=NAME, retry_policy=IMPATIENT)
    assert set(caught.value.reasons) == {url, *urls}
    assert caught.value.answers == (None, None, None)


async def test_a_retry_after_an_unknown_outcome_gets_the_one_decision() -> None:
    """Submitting the same requests again after OutcomeUnknown returns the first decision."""
    worker = Worker(Notary(), ["lost reset"], then="503 not-ready 86400")
    with staged(worker) as urls:
        with pytest.raises(Unanswered) as caught:
            await submit(urls)
        worker.then = "answer"
        answers = await submit(urls)
    assert tuple(answer.transaction_id for answer in answers) == caught.value.transaction_ids
    assert [answer.position for answer in answers] == [0, 1, 2]


@pytest.mark.parametrize(("status", "name"), [(400, "malformed"), (413, "too-large"), (404, "not-found")])
async def test_a_rejection_is_final(status: int, name: str) -> None:
    """A 4xx raises `Rejected` with the problem document's fields, and the client tries no other worker."""
    rejecting, other = Worker(Notary(), [f"{status} {name}"]), Worker(Notary(), [])
    with staged(rejecting, other) as urls, pytest.raises(Rejected, match=f"{status} {name}: because of {name}") as caught:
        await submit(urls)
    problem = caught.value
    assert (problem.status, problem.type, problem.title, problem.url) == (status, f"/problems/{name}", "A title", urls[0])
    assert problem.answers == (None, None, None)
    assert other.bodies == []


DOUBTED = pytest.mark.parametrize("rejection", ["401 unknown-party", "403 bad-signature"])


@DOUBTED
async def test_one_worker_that_does_not_know_the_party_is_not_the_last_word(rejection: str) -> None:
    """If one worker does not know the party yet, the client tries the others, and later starts with the one that answered."""
    notary = Notary()
    behind, also_behind, knowing = Worker(notary, [], then=rejection), Worker(notary, [], then=rejection), Worker(notary, [])
    with staged(behind, also_behind, knowing) as urls:
        async with client_of(urls, notary_name=NAME) as client:
            for number in range(3):
                [answer] = await client.submit([request(number)])
                assert answer.position == number
    assert (len(behind.bodies), len(also_behind.bodies), len(knowing.bodies)) == (1, 1, 3)
    assert behind.bodies == also_behind.bodies == knowing.bodies[:1]


@DOUBTED
async def test_a_party_that_no_worker_knows_is_rejected_after_one_attempt_each(rejection: str) -> None:
    """If all workers reject the party, each was tried once, and the first error is raised."""
    workers = [Worker(Notary(), [], then=rejection) for _ in range(3)]
    with staged(*workers) as urls, pytest.raises(Rejected, match=rejection) as caught:
        await submit(urls)
    assert caught.value.url == urls[0]
    assert [len(worker.bodies) for worker in workers] == [1, 1, 1]


@pytest.mark.parametrize(
    "failure", ["reset", "503 not-ready", "503 not-ready 86400", "no json", pytest.param("hang", marks=pytest.mark.seconds)]
)
async def test_who_cannot_say_otherwise_does_not_delay_a_rejection_for_long(failure: str) -> None:
    """Another worker without an answer is tried at most once more before the rejection is raised."""
    failing, rejecting = Worker(Notary(), [], then=failure), Worker(Notary(), [], then="401 unknown-party")
    for workers in ([failing, rejecting], [rejecting, failing]):
        tried = len(failing.bodies)
        with staged(*workers) as urls, pytest.raises(Rejected, match="401") as caught:
            await submit(urls, retry_policy=IMPATIENT if failure in SILENT else QUICK)
        assert caught.value.url == rejecting.url
        assert 1 <= len(failing.bodies) - tried <= 2


async def test_a_rejection_is_raised_though_nobody_is_at_the_other_url() -> None:
    """A dead URL does not keep the rejection from being raised."""
    rejecting = Worker(Notary(), [], then="403 bad-signature")
    with nobody() as url, staged(rejecting) as urls:
        for order in ([url, *urls], [*urls, url]):
            with pytest.raises(Rejected, match="403"):
                await submit(order, notary_name=NAME)
    assert len(rejecting.bodies) == 2


async def test_a_rejection_does_not_end_what_another_worker_admitted() -> None:
    """After one worker admitted the submission (202), a rejection by another worker does not end the call."""
    notary = Notary()
    taking, behind = Worker(notary, ["202 none", "reset", "202 some", "503 overloaded"]), Worker(notary, [], then="401 unknown-party")
    with staged(taking, behind) as urls:
        answers = await submit(urls)
    assert [answer.position for answer in answers] == [0, 1, 2]
    assert (len(taking.bodies), len(behind.bodies)) == (5, 1)


async def test_without_another_answer_an_admitted_submission_stays_unknown() -> None:
    """If the worker that admitted the submission dies, the outcome stays unknown, though another worker rejects the party."""
    notary = Notary()
    taking, behind = Worker(notary, ["202 none", "reset"], then="503 not-ready 86400"), Worker(notary, [], then="401 unknown-party")
    with staged(taking, behind) as urls, pytest.raises(Unanswered):
        await submit(urls)
    assert len(behind.bodies) == 1


async def test_a_rejection_after_a_partial_answer_keeps_it() -> None:
    """A rejection after a 202 carries the decisions received before."""
    with staged(Worker(Notary(), ["202 some", "403 bad-signature"])) as urls, pytest.raises(Rejected) as caught:
        await submit(urls)
    assert [answer and answer.position for answer in caught.value.answers] == [0, None, 2]


async def test_contradicting_answers_are_evidence() -> None:
    """A decision that differs from an earlier one for the same id raises an error with both answers and their URLs."""
    notary = Notary()
    first, second = Worker(notary, ["202 some"]), Worker(notary, ["contradict"])
    with staged(first, second) as urls, pytest.raises(Contradiction) as caught:
        await submit(urls)
    contradiction = caught.value
    first_id = contradiction.transaction_ids[0]
    evidence = [(answer.transaction_id, answer.position, url) for answer, url in contradiction.evidence]
    assert evidence == [(first_id, 0, urls[0]), (first_id, 1000, urls[1])]
    assert '"position":0' in str(contradiction)
    assert '"position":1000' in str(contradiction)


async def test_a_later_receipt_is_no_contradiction() -> None:
    """The same decision without and later with a receipt is one decision, and the receipt is kept."""
    with staged(Worker(Notary(), ["202 some"])) as urls:
        answers = await submit(urls)
    assert all(verify_receipt(answer.receipt or "", msgspec.to_builtins(answer), VERIFIER_KEY) for answer in answers)


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ({"inputs": ["x:0"], "content_hash": "00" * 32}, r"requests\[1\]\.inputs\[0\]"),
        ({"inputs": ["x:0"], "content_hash": object()}, r"requests\[1\]: cannot be written"),
        ({"content_hash": "00" * 32}, r"requests\[1\]: has no inputs"),
        ({**request(5), "colour": "red"}, r"requests\[1\]: unknown member 'colour'"),
        (request(0), r"requests\[1\]: the same transaction as requests\[0\]"),
        (TransactionRequest(inputs=[7], content_hash="00" * 32), r"requests\[1\]\.inputs\[0\]: expected a string"),  # type: ignore[list-item]
        ({**request(5), "content_hash": "\ud800"}, r"requests\[1\]: cannot be written"),
        ("text", r"requests\[1\]: expected an object"),
    ],
)
async def test_bad_input_is_rejected_before_anything_is_sent(bad: Any, where: str) -> None:
    """A request that breaks the contract raises `Malformed` with its place, and nothing is sent."""
    worker = Worker(Notary(), [])
    with staged(worker) as urls:
        async with client_of(urls) as client:
            with pytest.raises(Malformed, match=where):
                await client.submit([request(0), bad])
            with pytest.raises(Malformed, match="0 requests"):
                await client.submit([])
            large = [f"{'ab' * 32}:{number}" for number in range(10_000)]
            too_many = [TransactionRequest(inputs=large, content_hash=f"{number:064x}") for number in range(3)]
            with pytest.raises(Malformed, match="cut the requests with `submissions`"):
                await client.submit(too_many)
    assert worker.bodies == []


async def test_what_is_sent_is_what_the_contract_says() -> None:
    """The client sends a JSON POST with a bounded wait (`Prefer`), and can leave receipts out."""
    worker = Worker(Notary(), [])
    with staged(worker) as urls:
        async with client_of(urls, retry_policy=RetryPolicy(wait_s_max=4)) as client:
            await client.submit([request(1)], deadline_s=3600)
            await client.submit([request(1)], deadline_s=4, receipts=False)
    first, second = [int(headers["prefer"].removeprefix("wait=")) for headers in worker.headers]
    assert first == 4
    assert 0 < second < 4
    assert worker.headers[0]["content-type"] == "application/json"
    assert worker.paths == ["/v1/submissions", "/v1/submissions?receipts=false"]


async def test_lookups_return_transactions_states_and_the_notary() -> None:
    """Lookups return transactions, states and the notary; an undecided transaction is None."""
    with nobody() as url, staged(Worker(Notary(), [])) as urls:
        async with client_of([url, *urls]) as client:
            [answer] = await client.submit([request(1)])
            spent, free = request(1)["inputs"][0], request(2)["inputs"][0]
            found = await client.transaction(answer.transaction_id)
            assert found == answer
            returned = await client.transaction(answer.transaction_id, receipts=False)
            assert returned == msgspec.structs.replace(answer, receipt=None)
            assert await client.transaction(bytes.fromhex(answer.transaction_id)) == found
            assert await client.transaction("ab" * 32) is None
            assert (await client.state(spent)).position == 0
            assert (await client.state(free)).consumed_by is None
            assert await client.notary() == NotaryDescription(
                name=NAME,
                origin="notary.example/london",
                verifier_key=VERIFIER_KEY,
                software_version="1",
                worker="w",
                limits={"requests": 1000},
            )
            assert (await client.state(bytes.fromhex(spent[:64]) + bytes(4))).position == 0
            with pytest.raises(Malformed, match="state: expected"):
                await client.state("nonsense")
            for wrong in (bytes.fromhex(spent[:64]), bytes(35), bytes(37)):
                with pytest.raises(Malformed, match="state: expected 36 bytes"):
                    await client.state(wrong)
            with pytest.raises(Malformed, match="transaction id: expected"):
                await client.transaction("nonsense")


async def test_each_attempt_of_a_lookup_is_signed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker accepts a signature for 300 s only, and a deadline may be longer."""
    seconds, signed = itertools.count(0, 200), []
    monkeypatch.setattr("notary.client.client.wall_clock_s", lambda: next(seconds))

    async def unspent() -> AsyncIterator[bytes]:
        yield b'{"state": "%b:0", "consumed_by": null, "position": null}' % (b"ab" * 32)

    def serve(asked: httpx.Request) -> httpx.Response:
        signed.append(asked.headers["signature-input"].partition("created=")[2].partition(";")[0])
        return httpx.Response(503 if len(signed) < 3 else 200, content=unspent())

    async with client_of(["http://a"], notary_name=NAME) as client:
        await client._transport.close()
        client._transport._http = httpx.AsyncClient(transport=httpx.MockTransport(serve))
        await client.state(f"{'ab' * 32}:0")
    assert signed == ["0", "200", "400"]


@pytest.mark.parametrize("proxy", ["connection", "socks"])
async def test_a_new_connection_that_fails_is_a_failed_attempt(proxy: str) -> None:
    """httpcore names the events of a SOCKS proxy differently. Without a pause the same bytes would be sent until the deadline."""
    sent = 0

    async def serve(asked: httpx.Request) -> httpx.Response:
        nonlocal sent
        sent += 1
        await asked.extensions["trace"](f"{proxy}.connect_tcp.started", {})
        await asyncio.sleep(0)
        raise httpx.ReadError("reset")

    policy = msgspec.structs.replace(QUICK, backoff_s_first=3600, backoff_s_max=3600)
    async with client_of(["http://a"], notary_name=NAME, retry_policy=policy) as client:
        await client._transport.close()
        client._transport._http = httpx.AsyncClient(transport=httpx.MockTransport(serve))
        with pytest.raises(Unanswered):
            await client.submit([request(1)], deadline_s=1)
    assert sent == 1


async def test_lookups_without_an_answer_are_unreachable() -> None:
    """A lookup without an answer raises an error that means: surely nothing was applied."""
    with nobody() as url:
        async with AsyncClient([url], retry_policy=RetryPolicy(backoff_s_first=3600, backoff_s_max=3600)) as client:
            with pytest.raises(Unreachable, match="ConnectError"):
                await client.notary(deadline_s=LONG_S)
            with pytest.raises(NotReady):
                await client.state(f"{'ab' * 32}:0", deadline_s=LONG_S)


async def test_what_cannot_work_is_said_when_it_is_given() -> None:
    """Bad URLs and names, and submitting without a signer, are configuration errors."""
    for urls in ([], ["ftp://a"], ["nonsense"], ["http://a/?x=1"], ["http://[::"]):
        with pytest.raises(ConfigurationError):
            AsyncClient(urls)
    for name in ("", "x" * 256, "\ud800"):
        with pytest.raises(ConfigurationError, match="name"):
            AsyncClient(["http://a"], notary_name=name)
    async with AsyncClient(["http://127.0.0.1:9"]) as client:
        with pytest.raises(ConfigurationError, match="signer"):
            await client.submit([request(1)])


@pytest.mark.parametrize(
    ("variable", "value"),
    [("HTTPS_PROXY", "nonsense://a"), ("ALL_PROXY", "http://[::"), ("SSL_CERT_FILE", "missing.pem"), ("SSL_CERT_FILE", "pyproject.toml")],
)
def test_an_environment_that_cannot_work_is_said(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """A proxy or certificates from the environment that cannot be used are a configuration error."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match="environment"):
        AsyncClient(["https://notary.example"])


@pytest.mark.seconds
def test_the_client_needs_neither_kafka_nor_rocksdb() -> None:
    """Importing the client and the submit command loads no Kafka client and no RocksDB."""
    code = (
        "import sys, notary.client, notary.cli.submit; "
        "print(sorted({'aiokafka', 'rocksdict', 'httptools', 'joiner'} & {name.partition('.')[0] for name in sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


async def test_a_ticket_is_brought_back_to_who_gave_it() -> None:
    """Once, by the attempt that follows its rejection there; another URL gets none, and what is no ticket is not sent."""
    notary = Notary()
    first = Worker(notary, ["503 overloaded 0; ticket first-1_A", "429 quota-exceeded 0; ticket no ticket", "503 overloaded 0"])
    second = Worker(notary, ["503 overloaded 0; ticket second", "503 overloaded 0", "503 overloaded 0"])
    with staged(first, second) as urls:
        await submit(urls)
    returned = {worker: [headers.get("ticket") for headers in worker.headers] for worker in (first, second)}
    assert returned[first][:3] == [None, "first-1_A", None]
    assert returned[second][:2] == [None, "second"][: len(returned[second])]
    assert set(returned[first][3:] + returned[second][2:]) <= {None}


async def test_an_attempt_that_ends_in_a_handshake_closes_its_connection() -> None:
    """If a TLS handshake takes longer than the attempt, the attempt's connection is closed at once, not by the garbage collector."""
    handlers: list[asyncio.Task[None]] = []

    async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
            writer.close()
            await writer.wait_closed()

    def never_greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.create_task(until_closed(reader, writer)))

    gc.disable()
    try:
        async with await asyncio.start_server(never_greets, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            policy = RetryPolicy(attempt_s_max=0.2, connect_s_max=60.0)
            async with client_of([f"https://127.0.0.1:{port}"], retry_policy=policy) as client:
                with pytest.raises(Unreachable):
                    await client.notary(deadline_s=0.3)
                assert handlers
                async with asyncio.timeout(30.0):
                    await asyncio.gather(*handlers)
    finally:
        gc.enable()
