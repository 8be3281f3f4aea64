"""The read-only calls: transactions, states, the notary, its document, health and metrics."""

import json
from collections.abc import Callable

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from deploy.local.ports import free_ports
from notary.http.settings import HttpSettings
from payload import INPUTS_AND_REFERENCES_MAX, REQUESTS_MAX, SUBMISSION_BYTES_MAX
from tests.notary.http.checked_client import JSON, WITH_ACCEPTORS, CheckedClient, Wire
from tests.notary.party import NOTARY, Bank, fresh_hash, fresh_state, spend, transaction_id
from tests.notary.process import NotaryDirectory, NotaryProcess, serve

HASH = "ab" * 32


def test_a_transaction_is_returned_as_it_was_decided(client: CheckedClient, bank: Bank) -> None:
    """GET returns the decision of the submission's answer, without a receipt."""
    state = fresh_state()
    for decision in client.decide(bank, spend(state), spend(state)):
        found = client.get(f"/v1/transactions/{decision['transaction_id']}")
        assert found.json() == {member: value for member, value in decision.items() if member != "receipt"}


def test_a_state_names_its_consumer_by_hash_only(client: CheckedClient, bank: Bank) -> None:
    """A state's consumer is named by the hash of its id, never by the id; a state that is not consumed has none."""
    request = spend(state := fresh_state())
    assert client.get(f"/v1/states/{state}").json() == {"state": state, "consumed_by": None, "position": None}
    (decision,) = client.decide(bank, request)
    (loser,) = client.decide(bank, spend(state))
    answer = client.get(f"/v1/states/{state}")
    assert answer.json() == {
        "state": state,
        "consumed_by": loser["conflicts"][0]["consumed_by"],
        "position": decision["position"],
    }
    assert transaction_id(request) not in answer.text


def test_an_address_may_be_percent_encoded(client: CheckedClient) -> None:
    """`%3A` in a URL is a colon."""
    assert client.get(f"/v1/states/{HASH}%3A0").json()["state"] == f"{HASH}:0"


MALFORMED = [
    *("/v1/transactions/" + id_ for id_ in ("", "ab", HASH.upper(), HASH + "/", HASH + "00", HASH + "%0A", HASH + "%00")),
    *("/v1/transactions/" + id_ for id_ in ("%FF%FE", "%C3%A9", "%zz")),
    *("/v1/states/" + state for state in ("", HASH)),
    *(f"/v1/states/{HASH}:{index}" for index in ("", "00", "-1", "4294967296", "9" * 5000, "%D9%A1")),
]


@WITH_ACCEPTORS
@pytest.mark.parametrize("path", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_id_in_an_address_is_malformed(client: CheckedClient, path: str) -> None:
    """A malformed id or reference is a 400 that shows the expected form, in ASCII."""
    answer = client.get(path)
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/malformed"), answer.text
    assert "expected" in answer.json()["detail"]
    assert answer.content.isascii()


@WITH_ACCEPTORS
@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/v1", "/v1/", "/v2/notary", "/v1/notary/", "/v1/Notary", "/v1/submissions/", "/metrics/", "/readyz/x"),
        *("/%2e%2e/etc/passwd", "/../../etc/passwd", "/%C3%A9", "/%FF"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_address_that_is_none_is_not_found(client: CheckedClient, method: str, path: str) -> None:
    """Any method on an unknown path is a 404 problem."""
    answer = client.ask(method, path)
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


ALLOWED = {"/v1/submissions": "POST"} | dict.fromkeys(
    (f"/v1/transactions/{HASH}", f"/v1/states/{HASH}:0", "/v1/notary", "/openapi.json", "/livez", "/readyz", "/metrics"), "GET, HEAD"
)


@pytest.mark.parametrize("path", ALLOWED)
def test_another_method_gets_the_allowed_ones(client: CheckedClient, path: str) -> None:
    """A known path answers another method with 405 and `Allow`."""
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        if method not in ALLOWED[path]:
            answer = client.ask(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, ALLOWED[path]), method


@pytest.mark.parametrize("path", [f"/v1/states/{HASH}:0", f"/v1/transactions/{HASH}", "/v1/notary", "/livez", "/nothing"])
def test_head_is_get_without_the_body(client: CheckedClient, path: str) -> None:
    """HEAD returns status, type and length of the GET."""
    head, get = client.ask("HEAD", path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert [head.headers[name] for name in ("content-type", "content-length")] == [
        get.headers[name] for name in ("content-type", "content-length")
    ]


def test_the_notary_says_who_it_is(client: CheckedClient) -> None:
    """`/v1/notary` returns name, origin, verifier key and limits, as clients need them."""
    returned = client.get("/v1/notary").json()
    assert (returned["name"], returned["origin"]) == (NOTARY, "notary.example/test")
    assert returned["verifier_key"].startswith("notary.example/test+")
    assert returned["keys"] == [{"verifier_key": returned["verifier_key"], "endorsement": None}]
    assert returned["limits"] == {
        "requests": REQUESTS_MAX,
        "submission_bytes": SUBMISSION_BYTES_MAX,
        "inputs_and_references": INPUTS_AND_REFERENCES_MAX,
        "wait_seconds": HttpSettings().wait_s_max,
    }


def test_the_document_is_openapi_3_1(client: CheckedClient) -> None:
    """The document is valid OpenAPI 3.1, by the reference validator."""
    OpenAPIV31SpecValidator(json.loads(client.get("/openapi.json").content)).validate()


def test_the_document_names_every_type(client: CheckedClient) -> None:
    """Clients' generators need a type for each enumeration, a 64-bit format for large integers, and no default for an optional member."""

    def check(schema: object) -> None:
        if isinstance(schema, list):
            for each in schema:
                check(each)
        elif isinstance(schema, dict):
            assert "enum" not in schema or "type" in schema, schema
            if schema.get("type") in ("integer", ["integer", "null"]) and schema.get("maximum", 0) > 2**31:
                assert schema["format"] == "int64", schema
            for each in schema.values():
                check(each)

    schemas = client.document["components"]["schemas"]
    check(client.document)
    assert schemas["Decision"]["properties"]["log_time"]["format"] == "int64"
    assert schemas["Request"]["required"] == ["content_hash"]
    assert "default" not in json.dumps(schemas)
    assert set(schemas["Decision"]["required"]) == set(schemas["Decision"]["properties"]) - {"receipt"}
    assert schemas["Reason"]["enum"] == ["input-conflict", "outside-time-window", "reference-conflict"]
    assert schemas["Decision"]["properties"]["reason"] == {"anyOf": [{"$ref": "#/components/schemas/Reason"}, {"type": "null"}]}
    assert schemas["Notary"]["required"] == list(schemas["Notary"]["properties"])


def test_a_wait_has_a_limit(client: CheckedClient) -> None:
    """`?wait=` beyond the document's limit is malformed."""
    [wait] = [each for each in client.document["paths"]["/v1/transactions/{id}"]["get"]["parameters"] if each["name"] == "wait"]
    answer = client.get(f"/v1/transactions/{HASH}?wait={wait['schema']['maximum'] + 1}")
    assert (answer.status_code, answer.json()["where"]) == (400, "?wait")


def test_the_schema_of_a_submission_takes_a_submission(client: CheckedClient, bank: Bank) -> None:
    """An admitted submission fits the schema from which clients generate code."""
    schema = {"$ref": "#/components/schemas/Submission", "components": client.document["components"]}
    window = {"from": None, "until": 5}
    Draft202012Validator(schema).validate(bank.submission(spend(), spend(references=[fresh_state()]), spend(time_window=window)))


def test_a_ready_worker_says_so(client: CheckedClient) -> None:
    """`/livez` and `/readyz` answer with one word; `verbose` adds details, a line each."""
    assert (client.get("/livez").text, client.get("/readyz").text) == ("ok\n", "ok\n")
    lines = client.get("/readyz?verbose").text.splitlines()
    assert lines[0] == "ok"
    assert "worker: worker-1" in lines


def test_random_addresses_make_no_new_series(client: CheckedClient, bank: Bank) -> None:
    """Else anybody could fill the memory of the worker, and that of Prometheus."""

    def ask_around() -> None:
        for path in (f"/{fresh_hash()}", f"/v1/transactions/{fresh_hash()}", f"/v1/states/{fresh_state()}", f"/v1/{fresh_hash()}"):
            client.get(path)
        client.ask("POST", f"/{fresh_hash()}", headers={"user-agent": fresh_hash()})
        client.post(Bank(f"O={fresh_hash()}").body(spend()))
        client.post(f'{{"{fresh_hash()}": 1}}'.encode())

    ask_around()
    client.metrics()
    before = set(client.metrics())
    for _ in range(20):
        ask_around()
    assert set(client.metrics()) == before


def test_the_metrics_count_decisions_by_outcome(client: CheckedClient, bank: Bank) -> None:
    """Commits and rejections are counted separately, each decision once, a retry not at all."""

    def counted() -> list[float]:
        metrics = client.metrics()
        return [metrics["notary_decisions_total", (("outcome", outcome),)] for outcome in ("committed", "input-conflict")]

    before = counted()
    state = fresh_state()
    request = spend(state)
    client.decide(bank, request, spend(state))
    client.decide(bank, request)
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1]


def test_health_may_be_on_another_port(own_directory: NotaryDirectory, bank: Bank, notary_process: Callable[..., NotaryProcess]) -> None:
    """With a health port, health is there and nothing else, and not on the service's port.

    Each port has its own connection limit: clients that use up theirs do not make the worker look dead.
    """
    health = f"127.0.0.1:{free_ports(1)[0]}"
    process = notary_process(own_directory.config, settings={"HTTP_HEALTH_LISTEN": health, "HTTP_CONNECTIONS_MAX": 2})
    with httpx.Client(base_url=f"http://{health}", trust_env=False, timeout=60) as probes:
        with CheckedClient(process.url, health_url=f"http://{health}") as client:
            client.decide(bank, spend())
            assert client.metric("notary_positions") == 1
            for path in ("/livez", "/readyz", "/metrics"):
                assert (probes.get(path).status_code, client.http.get(path).status_code) == (200, 404)
        for path in ("/v1/submissions", "/v1/notary", "/openapi.json"):
            assert probes.post(path, content=bank.body(spend())).status_code == 404
        with Wire(process.url) as first, Wire(process.url) as second, Wire(process.url) as third:
            for wire in (first, second):
                assert wire.send(b"GET /v1/notary HTTP/1.1\r\nHost: notary\r\n\r\n").answer()[0] == 200
            assert third.problem()["type"] == "/problems/overloaded"
            assert probes.get("/readyz").status_code == 200
    assert process.stop() == 0


@pytest.mark.seconds
def test_a_worker_without_a_log_is_alive_and_not_ready(own_directory: NotaryDirectory) -> None:
    """Without Kafka the process lives, reports why it is not ready, and ends at once on a signal."""
    port, nobody = free_ports(2)
    settings = {"LOG_KIND": "kafka", "LOG_BOOTSTRAP": f"127.0.0.1:{nobody}"}
    process = serve(own_directory.config, listen=f"127.0.0.1:{port}", settings=settings)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
            while True:
                try:
                    ready = http.get("/readyz")
                    if "cannot be reached" in ready.text:
                        break
                except httpx.ConnectError:
                    assert process.poll() is None, process.communicate()
            assert ready.status_code == 503
            assert [http.get(path).status_code for path in ("/livez", "/metrics", "/openapi.json")] == [200] * 3
            for answer in (http.post("/v1/submissions", content=b"{}", headers=JSON), http.get("/v1/notary")):
                assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
                assert int(answer.headers["retry-after"]) >= 1
        process.terminate()
        ready_line, returned = process.communicate(timeout=30)
        assert (process.returncode, ready_line) == (0, "")
        assert "Traceback" not in returned
    finally:
        process.kill()
        process.communicate()
