"""Submissions that follow the contract: their decisions, and the form of the answers."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from notary import parties
from notary.gate import CONNECTION_WAIT_S_MAX, UnsupportedMediaType
from notary.http.call import Call
from notary.http.submission import TICKET_BYTES_MAX, TRACEPARENT_BYTES_MAX, SubmissionCall, _form_of, ticket_of
from ordering.errors import Overloaded
from tests.notary.http.checked_client import CheckedClient, Wire, post_head
from tests.notary.party import Bank, fresh_hash, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess
from tests.notary.test_gate import Clock, gate_of

VECTORS = json.loads((Path(__file__).resolve().parents[2] / "vectors.json").read_text())


class VectorBank(Bank):
    """The party of the vectors: its signatures are known, its private key is not."""

    def __init__(self) -> None:
        super().__init__(VECTORS["party"], notary=VECTORS["notary"])
        self.public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(VECTORS["party_public_key_hex"]))

    @property
    def public_pem(self) -> bytes:
        """The public key of the vectors."""
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def without_receipts(answer: httpx.Response) -> list[dict[str, Any]]:
    """Returns the decisions of an answer without receipts, since the same decision may be proved under another checkpoint."""
    return [{name: value for name, value in decision.items() if name != "receipt"} for decision in answer.json()["decisions"]]


@pytest.fixture(scope="module")
def vectors_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedClient]:
    """A worker of the notary of the vectors, with their party registered."""
    directory = NotaryDirectory.create(tmp_path_factory.mktemp("vectors") / "notary", name=VECTORS["notary"])
    directory.register(VectorBank())
    with NotaryProcess.start(directory.config) as process, CheckedClient(process.url) as client:
        yield client
        process.check_quiet()


@pytest.mark.seconds
def test_the_submissions_of_the_vectors_are_admitted(vectors_worker: CheckedClient) -> None:
    """Submissions signed by the independent program are admitted, and decided under the ids that it computed."""
    for vector in VECTORS["submissions"]:
        vectors = [VECTORS["requests"][at] for at in vector["requests"]]
        requests = [each["request"] for each in vectors]
        body = {"party": VECTORS["party"], "signature": vector["signature"], "requests": requests}
        answer = vectors_worker.post(json.dumps(body).encode())
        assert answer.status_code == 200, answer.text
        returned = [decision["transaction_id"] for decision in answer.json()["decisions"]]
        assert returned == [each["transaction_id"] for each in vectors]
        assert returned == [transaction_id(request, VECTORS["notary"]) for request in requests]


def test_requests_of_one_submission_are_decided_in_their_order(client: CheckedClient, bank: Bank) -> None:
    """The first of two spends in one submission wins, and positions rise without a gap."""
    state = fresh_state()
    decisions = client.decide(bank, spend(state), spend(state), spend())
    assert [decision["outcome"] for decision in decisions] == ["committed", "rejected", "committed"]
    first = decisions[0]["position"]
    assert [decision["position"] for decision in decisions] == [first, first + 1, first + 2]


def test_a_party_with_a_p256_certificate_is_admitted(client: CheckedClient, notary_directory: NotaryDirectory) -> None:
    """A party that is registered by its certificate while the worker runs signs with ECDSA P-256; a wrong signature is still rejected."""
    newcomer = Bank(f"O=Newcomer,OU={fresh_hash()}", p256=True)
    twin = Bank(newcomer.name, p256=True)
    body = newcomer.body(spend())
    assert client.post(body).status_code == 401
    notary_directory.register_pem(newcomer.name, newcomer.certificate_pem())
    answer = client.post(body)
    while answer.status_code == 401:
        time.sleep(0.05)
        answer = client.post(body)
    assert answer.json()["decisions"][0]["outcome"] == "committed"
    assert client.post(twin.body(spend())).status_code == 403
    for signature in ("", "AAAA", "MAYCAQECAQE=", "MAYCAQACAQA="):
        assert client.post(newcomer.body(spend(), signature=signature)).status_code == 403


@pytest.mark.parametrize("media_type", ["application/json;charset=utf-8", 'Application/JSON; Charset="UTF-8"', "application/json ;"])
def test_the_media_type_is_read_as_http_has_it(client: CheckedClient, bank: Bank, media_type: str) -> None:
    """Case, spaces, quotes and the one charset are accepted."""
    assert client.post(bank.body(spend()), content_type=media_type).status_code == 200


def test_garbage_behind_a_submission_does_not_take_its_answer(worker: NotaryProcess, bank: Bank) -> None:
    """Bytes behind a complete submission never replace its answer: the decision is sent first."""
    body = bank.body(spend())
    for behind in (
        b"\x00garbage\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 400_000,
        post_head(None, "Transfer-Encoding: chunked") + b"zz\r\n",
    ):
        with Wire(worker.url) as wire:
            status, _, answer = wire.send(post_head(len(body)) + body + behind).answer()
            assert (status, json.loads(answer)["decisions"][0]["outcome"]) == (200, "committed")
            # Bytes after the decision get an error; bytes before it get no further answer.
            with contextlib.suppress(ConnectionResetError):
                assert wire.problem()["status"] == 400


def test_a_client_that_leaves_does_not_undo_its_submission(worker: NotaryProcess, client: CheckedClient, bank: Bank) -> None:
    """A complete submission counts, even if its client closes before the answer."""
    request = spend()
    body = bank.body(request)
    with Wire(worker.url) as wire:
        wire.send(post_head(len(body)) + body)
    while client.get(f"/v1/transactions/{transaction_id(request)}").status_code == 404:
        pass
    worker.check_quiet()


def test_a_quota_is_answered_with_when_to_come_again(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess]
) -> None:
    """Over its quota a party gets 429 with Retry-After, another party does not, and the rejected submissions are not logged."""
    other = Bank("O=Bank B")
    own_directory.register(other)
    process = notary_process(own_directory.config, settings={"LIMITS_PARTY_REQUESTS_PER_S": 5})
    with CheckedClient(process.url) as client:
        client.decide(bank, *(spend() for _ in range(15)))
        rejected = [spend() for _ in range(5)]
        answer = client.post(bank.body(*rejected))
        assert (answer.status_code, answer.json()["type"]) == (429, "/problems/quota-exceeded")
        client.decide(other, spend())
        assert client.metric("notary_positions") == 16
        while (answer := client.post(bank.body(*rejected))).status_code == 429:
            time.sleep(0.2)
        assert answer.status_code == 200
    assert process.stop() == 0


def test_decisions_survive_the_index(own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess]) -> None:
    """A worker that is killed and started without its index returns the same decisions, since the log is the truth."""
    state = fresh_state()
    bodies = [bank.body(spend(state)), bank.body(spend(state)), bank.body(spend(), spend())]
    process = notary_process(own_directory.config)
    with CheckedClient(process.url) as client:
        first = [without_receipts(client.post(body)) for body in bodies]
    process.kill()
    shutil.rmtree(own_directory.path / "index")
    process = notary_process(own_directory.config)
    with CheckedClient(process.url) as client:
        assert [without_receipts(client.post(body)) for body in bodies] == first
    assert process.stop() == 0


async def test_a_body_that_waited_in_its_connection_is_late_at_the_gate(tmp_path: Path) -> None:
    """The gate learns for how long: it rejects the body, since newer ones were read first."""
    rejected: list[Exception] = []
    taker: Any = SimpleNamespace(rejected=lambda call, problem, since_s: rejected.append(problem))
    parties.write(tmp_path / "parties.json", {})
    for waited_s in (0.0, 1.01 * CONNECTION_WAIT_S_MAX):
        call = Call("POST", "/v1/submissions", b"", [(b"content-type", b"application/json")], lambda call, answer, after_body: None)
        call.waited_s = waited_s
        SubmissionCall(call, gate_of(tmp_path / "parties.json", Clock()), taker).piece(b"{")
        assert len(rejected) == (waited_s > CONNECTION_WAIT_S_MAX)
    assert isinstance(rejected[0], Overloaded)


def test_the_first_of_two_tickets_counts() -> None:
    """At the head, where a submission may be rejected unread, and when it is admitted, which uses the ticket."""
    headers = [(b"content-type", b"application/json"), (b"ticket", b"first"), (b"ticket", b"second")]
    assert _form_of(headers, b"")[0].ticket == ticket_of(headers) == b"first"


def test_long_values_in_a_head_are_cut() -> None:
    """A ticket or a span that is longer than any is not valid. An acceptor process does not pass all of it on."""
    headers = [(b"content-type", b"application/json"), (b"ticket", b"x" * 1000), (b"traceparent", b"0" * 1000)]
    form, _ = _form_of(headers, b"")
    assert (len(form.ticket), len(form.traceparent)) == (TICKET_BYTES_MAX, TRACEPARENT_BYTES_MAX)


def test_the_first_of_two_media_types_counts() -> None:
    """A later one, as a proxy may add it, changes nothing."""
    text, json_body = (b"content-type", b"text/plain"), (b"content-type", b"application/json")
    _form_of([json_body, text], b"")
    with pytest.raises(UnsupportedMediaType):
        _form_of([text, json_body], b"")


PREFERENCES: dict[int | None, list[list[bytes]]] = {
    # Quotes, case, spaces and other preferences around `wait` are accepted (RFC 7240).
    0: [[b"wait=0"], [b"WAIT = 0"], [b'wait="0"'], [b"respond-async, wait=0"], [b"wait=0;x=y"], [b"x=y;wait=0"]],
    # They may come in any number of headers, and of two waits the first counts (RFC 7240, 2).
    7: [[b"wait=7", b"respond-async"], [b"respond-async", b"wait=7"], [b"wait=7", b"wait=3"]],
    # A header that cannot be parsed changes nothing.
    None: [
        [b""],
        [b"wait"],
        [b"wait="],
        [b"wait=soon"],
        [b"wait=-1"],
        [b"wait=1.5"],
        [b"respond-async"],
        [b"wait=" + b"9" * 5000],
        [b";;=,"],
        [b"\xc3\xa9"],
    ],
}


@pytest.mark.parametrize(("wait_s", "headers"), [(wait_s, each) for wait_s, headers in PREFERENCES.items() for each in headers])
def test_the_wait_is_read_as_rfc_7240_has_it(wait_s: int | None, headers: list[bytes]) -> None:
    """`Prefer` headers are one list, and a malformed one is ignored."""
    assert _form_of([(b"content-type", b"application/json"), *[(b"prefer", each) for each in headers]], b"")[0].wait_s == wait_s


def test_two_parents_count_as_none() -> None:
    """W3C Trace Context: a second `traceparent` may come from a proxy. So neither of them is surely the client's."""
    one, two = (b"traceparent", b"00-%032x-%016x-01" % (7, 8)), (b"traceparent", b"00-%032x-%016x-01" % (9, 8))
    json_body = (b"content-type", b"application/json")
    assert [_form_of([json_body, *parents], b"")[0].traceparent for parents in ([one], [one, two], [one, two, one])] == [
        one[1].decode(),
        "",
        "",
    ]
