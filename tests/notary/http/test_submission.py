"""Submissions that follow the contract: their decisions, and the form of the answers."""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.notary.http.checked_client import JSON, WITH_ACCEPTORS, CheckedClient, Wire, post_head
from tests.notary.party import Bank, fresh_hash, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess

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


def sha256_of_id(id_: str) -> str:
    """Returns the hash by which an answer names a consuming transaction."""
    return hashlib.sha256(bytes.fromhex(id_)).hexdigest()


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


def test_a_first_spend_is_committed(client: CheckedClient, bank: Bank) -> None:
    """Free states are consumed; the decision has the contract's members in their order."""
    request = spend(fresh_state(), fresh_state())
    (decision,) = client.decide(bank, request)
    assert list(decision)[:6] == ["transaction_id", "position", "outcome", "reason", "conflicts", "log_time"]
    assert decision["transaction_id"] == transaction_id(request)
    assert (decision["outcome"], decision["reason"], decision["conflicts"]) == ("committed", None, [])


def test_a_double_spend_is_rejected_with_all_its_conflicts(client: CheckedClient, bank: Bank) -> None:
    """Every consumed input is listed, in byte order, with the hash of its consumer's id."""
    states = sorted((fresh_state(), fresh_state(), fresh_state()))
    first, second = spend(states[1]), spend(states[0])
    client.decide(bank, first, second)
    (decision,) = client.decide(bank, spend(*reversed(states)))
    assert (decision["outcome"], decision["reason"]) == ("rejected", "input-conflict")
    assert decision["conflicts"] == [
        {"state": states[0], "kind": "input", "consumed_by": sha256_of_id(transaction_id(second))},
        {"state": states[1], "kind": "input", "consumed_by": sha256_of_id(transaction_id(first))},
    ]


def test_requests_of_one_submission_are_decided_in_their_order(client: CheckedClient, bank: Bank) -> None:
    """The first of two spends in one submission wins, and positions rise without a gap."""
    state = fresh_state()
    decisions = client.decide(bank, spend(state), spend(state), spend())
    assert [decision["outcome"] for decision in decisions] == ["committed", "rejected", "committed"]
    first = decisions[0]["position"]
    assert [decision["position"] for decision in decisions] == [first, first + 1, first + 2]


def test_a_retry_gets_the_same_bytes(client: CheckedClient, bank: Bank) -> None:
    """A retry gets the same decisions, byte for byte, also rejections, and adds no decision."""
    state = fresh_state()
    body = bank.body(spend(state), spend(state), spend())
    first = client.post(body)
    positions = client.metric("notary_positions")
    assert client.post(body).content == first.content
    assert client.metric("notary_positions") == positions


def test_a_decided_transaction_keeps_its_decision_in_another_submission(client: CheckedClient, bank: Bank) -> None:
    """A decided id keeps its decision in another submission, with other requests and in another party's name."""
    request = spend()
    (first,) = client.decide(bank, request)
    assert client.decide(bank, spend(), request)[1] == first


def test_a_reference_to_a_consumed_state_is_a_conflict_of_its_kind(client: CheckedClient, bank: Bank) -> None:
    """Consumed references are listed as references, and a rejected transaction consumes nothing."""
    consumed, wanted = fresh_state(), fresh_state()
    client.decide(bank, spend(consumed))
    (decision,) = client.decide(bank, spend(wanted, references=[consumed]))
    assert decision["reason"] == "reference-conflict"
    assert [(conflict["state"], conflict["kind"]) for conflict in decision["conflicts"]] == [(consumed, "reference")]
    assert client.get(f"/v1/states/{wanted}").json()["consumed_by"] is None


def test_a_reference_consumes_nothing(client: CheckedClient, bank: Bank) -> None:
    """A state that was referred to, even twice, can be spent."""
    state = fresh_state()
    outcomes = [client.decide(bank, spend(references=[state]))[0]["outcome"] for _ in range(2)]
    assert [*outcomes, client.decide(bank, spend(state))[0]["outcome"]] == ["committed"] * 3


def test_a_state_may_be_input_and_reference_of_one_transaction(client: CheckedClient, bank: Bank) -> None:
    """A transaction does not conflict with itself."""
    state = fresh_state()
    assert client.decide(bank, spend(state, references=[state]))[0]["outcome"] == "committed"


WINDOWS: dict[str, tuple[int | None, int | None, str]] = {
    "open-start": (None, 2**53 - 1, "committed"),
    "open-end": (-(2**53) + 1, None, "committed"),
    "over": (None, 1_000, "rejected"),
    "not-yet": (2**53 - 2, None, "rejected"),
    "before-1970": (-(2**53) + 1, -1, "rejected"),
}


@pytest.mark.parametrize(("start", "until", "outcome"), WINDOWS.values(), ids=WINDOWS)
def test_a_window_is_compared_with_log_time(client: CheckedClient, bank: Bank, start: int | None, until: int | None, outcome: str) -> None:
    """Outside its window a transaction is rejected, and consumes nothing."""
    state = fresh_state()
    (decision,) = client.decide(bank, spend(state, time_window={"from": start, "until": until}))
    assert (decision["outcome"], decision["reason"]) == (outcome, "outside-time-window" if outcome == "rejected" else None)
    assert (client.get(f"/v1/states/{state}").json()["consumed_by"] is None) == (outcome == "rejected")


def test_a_window_around_log_time_holds_it(client: CheckedClient, bank: Bank) -> None:
    """The start of a window is inside it, its end is not: compared with log times of earlier answers."""
    (decision,) = client.decide(bank, spend())
    past, state = decision["log_time"], fresh_state()
    late, early = client.decide(
        bank, spend(state, time_window={"from": None, "until": past}), spend(state, time_window={"from": past, "until": None})
    )
    assert (late["reason"], early["outcome"]) == ("outside-time-window", "committed")
    assert early["log_time"] >= past


def test_the_last_of_two_members_counts(client: CheckedClient, bank: Bank) -> None:
    """The last of two equal members counts, as the signature shows."""
    request = spend()
    text = bank.body(request).decode().replace('"content_hash"', f'"content_hash": "{fresh_hash()}", "content_hash"')
    answer = client.post(text.encode())
    assert answer.json()["decisions"][0]["transaction_id"] == transaction_id(request)


def test_a_party_with_a_p256_certificate_is_admitted(client: CheckedClient, notary_directory: NotaryDirectory) -> None:
    """A party that is registered by its certificate while the worker runs signs with ECDSA P-256; a wrong signature is still rejected."""
    newcomer = Bank(f"O=Newcomer,OU={fresh_hash()}", p256=True)
    twin = Bank(newcomer.name, p256=True)
    body = newcomer.body(spend())
    assert client.post(body).status_code == 401
    notary_directory.register_pem(newcomer.name, newcomer.certificate_pem())
    answer = client.post(body)
    while answer.status_code == 401:
        answer = client.post(body)
    assert answer.json()["decisions"][0]["outcome"] == "committed"
    assert client.post(twin.body(spend())).status_code == 403
    for signature in ("", "AAAA", "MAYCAQECAQE=", "MAYCAQACAQA="):
        assert client.post(newcomer.body(spend(), signature=signature)).status_code == 403


@pytest.mark.parametrize("media_type", ["application/json;charset=utf-8", 'Application/JSON; Charset="UTF-8"', "application/json ;"])
def test_the_media_type_is_read_as_http_has_it(client: CheckedClient, bank: Bank, media_type: str) -> None:
    """Case, spaces, quotes and the one charset are accepted."""
    assert client.post(bank.body(spend()), content_type=media_type).status_code == 200


def test_a_wait_of_0_seconds_is_answered_202_and_then_200(client: CheckedClient, bank: Bank) -> None:
    """A call that does not wait gets the decisions so far and a Retry-After; the same submission later gets the decision."""
    body = bank.body(spend(), spend())
    early = client.post(body, prefer="wait=0")
    assert early.status_code == 202
    assert int(early.headers["retry-after"]) >= 1
    late = client.post(body)
    assert late.status_code == 200
    for known, final in zip(early.json()["decisions"], late.json()["decisions"], strict=True):
        assert known in (None, final)


@WITH_ACCEPTORS
@pytest.mark.parametrize(
    "prefer", ["", "wait", "wait=", "wait=soon", "wait=-1", "wait=1.5", "respond-async", "wait=" + "9" * 5000, ";;=,", "é"]
)
def test_a_preference_that_makes_no_sense_is_passed_over(client: CheckedClient, bank: Bank, prefer: str) -> None:
    """A `Prefer` header that cannot be parsed changes nothing."""
    answer = client.ask("POST", "/v1/submissions", content=bank.body(spend()), headers={**JSON, "prefer": prefer.encode()})
    assert answer.status_code == 200


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


def test_a_submission_offered_over_another_protocol_is_decided(worker: NotaryProcess, bank: Bank) -> None:
    """A Java client's first call, which offers HTTP/2, is accepted."""
    body = bank.body(spend())
    with Wire(worker.url) as wire:
        wire.send(post_head(len(body), "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA") + body)
        assert wire.answer()[0] == 200


def test_a_client_that_leaves_does_not_undo_its_submission(worker: NotaryProcess, client: CheckedClient, bank: Bank) -> None:
    """A complete submission counts, even if its client closes before the answer."""
    request = spend()
    body = bank.body(request)
    with Wire(worker.url) as wire:
        wire.send(post_head(len(body)) + body)
    while client.get(f"/v1/transactions/{transaction_id(request)}").status_code == 404:
        pass
    worker.check_quiet()


def test_submissions_of_many_connections_are_all_decided(worker: NotaryProcess, bank: Bank) -> None:
    """Many clients spend one state at once: exactly one is committed, and the others get the consumer's hash."""
    state = fresh_state()
    bodies = [bank.body(spend(state)) for _ in range(30)]
    wires = [Wire(worker.url) for _ in bodies]
    answers = []
    for wire, body in zip(wires, bodies, strict=True):
        wire.send(post_head(len(body)) + body)
    for wire in wires:
        with wire:
            answers.append(json.loads(wire.answer()[2])["decisions"][0])
    (committed,) = [answer for answer in answers if answer["outcome"] == "committed"]
    returned = {conflict["consumed_by"] for answer in answers for conflict in answer["conflicts"]}
    assert returned == {sha256_of_id(committed["transaction_id"])}


def test_a_quota_is_answered_with_when_to_come_again(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess]
) -> None:
    """Over its quota a party gets 429 with Retry-After, another party does not, and the rejected submissions are not logged."""
    other = Bank("O=Bank B")
    own_directory.register(other)
    process = notary_process(own_directory.config, settings={"LIMITS_PARTY_REQUESTS_PER_S": 5})
    with CheckedClient(process.url) as client:
        client.decide(bank, *(spend() for _ in range(50)))
        rejected = [spend() for _ in range(5)]
        answer = client.post(bank.body(*rejected))
        assert (answer.status_code, answer.json()["type"]) == (429, "/problems/quota-exceeded")
        client.decide(other, spend())
        assert client.metric("notary_positions") == 51
        while (answer := client.post(bank.body(*rejected))).status_code == 429:
            time.sleep(0.2)
        assert answer.status_code == 200
    assert process.stop() == 0


def test_a_copy_of_a_decided_submission_uses_no_quota(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess]
) -> None:
    """Anyone who has seen a submission may send it again, so only its first sending counts: then a new one is still admitted."""
    process = notary_process(own_directory.config, settings={"LIMITS_PARTY_REQUESTS_PER_S": 1_000})
    with CheckedClient(process.url) as client:
        body = bank.body(*[spend() for _ in range(400)])
        statuses = [client.post(body).status_code for _ in range(6)]  # 400 a second would come back, were each charged
        assert statuses == [200] * 6
        client.decide(bank, *[spend() for _ in range(400)])
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
