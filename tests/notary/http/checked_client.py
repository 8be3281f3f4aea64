"""Clients for a worker: one compares each answer with the worker's OpenAPI document, one sends raw bytes that no client would send."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

from notary.verify import verify_receipt
from tests.notary.party import Bank, RequestObject
from tests.notary.process import NotaryProcess

WITH_ACCEPTORS = pytest.mark.parametrize("acceptors", [2], ids=["acceptors"], indirect=True, scope="session")
"""For malformed calls: an acceptor process has the code of a worker alone. `test_parsing_hostile.py` has random bytes with and without."""

JSON = {"content-type": "application/json"}
MARKER = "a-mark-of-these-tests"
"""A text in malformed calls, which no log line may have."""
SOCKET_S_MAX = 30.0


class CheckedClient:
    """A keep-alive client of one worker."""

    def __init__(self, url: str, health_url: str = "") -> None:
        self.http = httpx.Client(base_url=url, timeout=SOCKET_S_MAX, trust_env=False)
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()
        self._health_url = health_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.http.close()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Make one call, and compare its answer with the document."""
        answer = self.http.request(method, path, **more)
        check_answer(self.document, method, path, answer)
        return answer

    def get(self, path: str) -> httpx.Response:
        """Send a GET."""
        return self.ask("GET", path)

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Submit a body."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", "/v1/submissions", content=body, headers=JSON | given)

    def decide(self, bank: Bank, *requests: RequestObject) -> list[dict[str, Any]]:
        """Returns the decisions of these requests, after verifying each one's receipt."""
        answer = self.post(bank.body(*requests))
        assert answer.status_code == 200, answer.text
        decisions: list[dict[str, Any]] = answer.json()["decisions"]
        for decision in decisions:
            verify_receipt(decision.pop("receipt"), decision, [self.verifier_key])
        return decisions

    @cached_property
    def verifier_key(self) -> str:
        """The notary's verifier key, from `/v1/notary`."""
        key: str = self.http.get("/v1/notary").json()["verifier_key"]
        return key

    def metrics(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Returns (name, labels) -> value for every sample."""
        text = self.http.get(self._health_url + "/metrics").text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str) -> float:
        """Returns the value of a metric without labels."""
        return self.metrics()[name, ()]


@contextlib.contextmanager
def serving(config: Path, name: str = "worker-1") -> Iterator[CheckedClient]:
    """Run a worker for the length of a block. Yields its client; fails if it does not end well."""
    with NotaryProcess.start(config, name) as process, CheckedClient(process.url) as client:
        yield client
        assert process.stop() == 0


def check_answer(document: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    """Fail unless the document describes this answer to this call."""
    # Clients skip unknown members. Here an answer with a member that the document does not name fails.
    closed = {name: {"additionalProperties": False, **schema} for name, schema in document["components"]["schemas"].items()}
    schemas = {"components": document["components"] | {"schemas": closed}}
    media_type = answer.headers["content-type"].partition(";")[0]
    if answer.status_code >= 400 and media_type == "application/problem+json":
        problem = json.loads(answer.content) if method != "HEAD" else None
        if problem is not None:
            Draft202012Validator({"$ref": "#/components/schemas/Problem", **schemas}).validate(problem)
            assert problem["status"] == answer.status_code
        if answer.status_code in (429, 503):
            assert int(answer.headers["retry-after"]) >= 1
    paths: dict[str, dict[str, Any]] = document["paths"]
    operation = next((paths[known] for known in paths if _is_of(path, known)), {}).get(method.lower())
    if operation is None:
        assert method == "HEAD" or answer.status_code in (400, 404, 405), f"{method} {path} -> {answer.status_code}"
        return
    returned = operation["responses"].get(str(answer.status_code)) or operation["responses"]["default"]
    schema = returned["content"][media_type]["schema"]
    if media_type.endswith("json"):
        Draft202012Validator({**schema, **schemas}).validate(json.loads(answer.content))
    if operation["operationId"] == "submit" and answer.status_code in (200, 202):
        # One schema for both, so that one type of a generated client reads either.
        assert (None in json.loads(answer.content)["decisions"]) == (answer.status_code == 202)


def _is_of(path: str, known: str) -> bool:
    # A parameter is one segment of the path, except a tile's, which has several.
    pattern = re.sub(r"\\{(\w+)\\}", lambda name: ".+" if name[1] == "tile" else "[^/]*", re.escape(known))
    return re.fullmatch(pattern, path.partition("?")[0]) is not None


class Wire:
    """A connection that sends any bytes."""

    def __init__(self, url: str, source: str = "") -> None:
        """`source`: the address to connect from; empty for any."""
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SOCKET_S_MAX, (source, 0) if source else None)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Self:
        """Send bytes, as far as the other end accepts them."""
        # If the other end answered and closed, its answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)
        return self

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the next answer: status, headers, body."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        top, _, self._received = self._received.partition(b"\r\n\r\n")
        status_line, *lines = top.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split()[1])
        length = 0 if status < 200 else int(headers["content-length"])
        while len(self._received) < length:
            self._receive()
        body, self._received = self._received[:length], self._received[length:]
        return status, headers, body

    def problem(self) -> dict[str, Any]:
        """Returns the next answer, which must be a problem document."""
        status, headers, body = self.answer()
        assert headers["content-type"] == "application/problem+json", (status, body)
        returned: dict[str, Any] = json.loads(body)
        assert returned["status"] == status
        return returned

    def is_closed(self) -> bool:
        """Returns true if the connection ends next, false if another answer comes first."""
        assert not self._received, self._received
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the worker closed the connection without an answer")
        self._received += data


def post_head(length: int | None, *lines: str, version: str = "1.1") -> bytes:
    """Returns the head of a submission."""
    given = ["Host: notary", "Content-Type: application/json", *lines]
    if length is not None:
        given.append(f"Content-Length: {length}")
    return f"POST /v1/submissions HTTP/{version}\r\n{chr(10).join(given)}\n\n".replace("\n", "\r\n").replace("\r\r", "\r").encode()
