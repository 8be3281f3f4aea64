"""Traces as a collector receives them, from the client to the decision; and a worker without tracing or without a collector."""

import asyncio
import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider

from deploy.local import golang
from deploy.local.jars import cache_folder
from deploy.local.ports import free_ports
from notary.client import AsyncClient, Signer, TransactionRequest
from notary.config import load
from notary.tracing import TracingSettings, tracing_of
from notary.tracing.spans import Tracing, _parent_of
from ordering.errors import ConfigurationError
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, fresh_hash, fresh_state, spend
from tests.notary.process import ROOT, NotaryDirectory, NotaryProcess

Start = Callable[..., NotaryProcess]
PARTS = ("admitted", "appended", "joined", "applied", "answered")
SAMPLED, NOT_SAMPLED = f"00-{7:032x}-{8:016x}-01", f"00-{9:032x}-{8:016x}-00"


class Collector:
    """An OTLP receiver over HTTP: it decodes and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                collector.take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.services |= {each.value.string_value for each in resource.resource.attributes if each.key == "service.name"}
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Any]:
        return [span for span in list(self.spans) if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


async def submit_in_spans(url: str, bank: Bank, clients: int) -> dict[bytes, bytes]:
    """Submit concurrently, each submission in a span of its caller. Returns trace id -> span id."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("caller")
    callers: dict[bytes, bytes] = {}

    async def one(client: AsyncClient) -> None:
        with tracer.start_as_current_span("caller") as span:
            context = span.get_span_context()
            callers[context.trace_id.to_bytes(16, "big")] = context.span_id.to_bytes(8, "big")
            [answer] = await client.submit([TransactionRequest(inputs=[fresh_state()], content_hash=fresh_hash())])
            assert answer.committed

    async with AsyncClient([url], bank.name, Signer.from_pem(bank.private_pem)) as client:
        await asyncio.gather(*[one(client) for _ in range(clients)])
    return callers


@contextmanager
def otelcol(collector: Collector, folder: Path) -> Iterator[str]:
    """The address of an OpenTelemetry Collector that forwards everything to `collector`, the last spans when it ends."""
    program = golang.build(Path(__file__).with_name("otelcol"), ["."], cache_folder() / "otelcol") / "otelcol"
    [port] = free_ports(1)
    pipeline = {"receivers": ["otlp"], "exporters": ["otlp_http"]}
    settings = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlp_http": {"traces_endpoint": collector.url}},
        "service": {"pipelines": {"traces": pipeline}, "telemetry": {"metrics": {"level": "none"}}},
    }
    (folder / "otelcol.yaml").write_bytes(msgspec.json.encode(settings))
    with (folder / "otelcol.txt").open("wb") as said:
        running = subprocess.Popen([program, "--config", folder / "otelcol.yaml"], stdout=said, stderr=said)
    try:
        while True:
            assert running.poll() is None, (folder / "otelcol.txt").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        running.terminate()
        assert running.wait() == 0, (folder / "otelcol.txt").read_text()


@pytest.mark.parametrize(
    ("acceptors", "through"),
    [
        pytest.param(0, False, id="alone"),
        pytest.param(1, False, id="acceptors"),
        pytest.param(0, True, id="through-otelcol", marks=[pytest.mark.nightly, pytest.mark.timeout(900)]),
    ],
)
async def test_from_client_to_decision(
    own_directory: NotaryDirectory,
    bank: Bank,
    notary_process: Start,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    acceptors: int,
    through: bool,
) -> None:
    """Each caller's trace has the submission below the caller's span with its five parts in order; a batch links to its submissions."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with otelcol(collector, tmp_path) if through else nullcontext(collector.url) as endpoint:
        settings = {"TRACING_ENDPOINT": endpoint, "TRACING_RATIO": 0, "HTTP_ACCEPTOR_PROCESSES": acceptors}
        process = notary_process(own_directory.config, settings=settings)
        callers: dict[bytes, bytes] = {}
        while not any(len(batch.links) > 1 for batch in collector.named("batch")):
            callers |= await submit_in_spans(process.url, bank, 12)
            await asyncio.sleep(0.1)
        with CheckedClient(process.url) as checked:
            for more in ({}, {"traceparent": NOT_SAMPLED}, {"traceparent": "00-nonsense-01"}):
                assert checked.post(bank.body(spend()), **more).status_code == 200
            assert checked.metric("notary_spans_dropped_total") == 0
        assert process.stop() == 0
    assert collector.services == {"notary"}
    submissions = {span.trace_id: span for span in collector.named("submission")}
    assert {trace_id: span.parent_span_id for trace_id, span in submissions.items()} == callers
    batches = {span.span_id: span for span in collector.named("batch")}
    for trace_id, submission in submissions.items():
        parts = [next(span for span in collector.named(name) if span.trace_id == trace_id) for name in PARTS]
        assert {part.parent_span_id for part in parts} == {submission.span_id}
        admitted, appended, joined, applied, answered = parts
        starts = [part.start_time_unix_nano for part in parts]
        assert starts == sorted(starts)
        assert submission.start_time_unix_nano == admitted.start_time_unix_nano < admitted.end_time_unix_nano <= joined.start_time_unix_nano
        assert joined.end_time_unix_nano == applied.start_time_unix_nano < applied.end_time_unix_nano == answered.start_time_unix_nano
        assert answered.end_time_unix_nano == submission.end_time_unix_nano
        [link] = appended.links
        batch = batches[link.span_id]
        assert (batch.trace_id, batch.start_time_unix_nano) == (link.trace_id, appended.start_time_unix_nano)
        assert (trace_id, submission.span_id) in {(link.trace_id, link.span_id) for link in batch.links}
    assert len(collector.spans) == len(batches) + len(submissions) * (1 + len(PARTS))


def test_two_requests_of_a_submission(own_directory: NotaryDirectory, bank: Bank, notary_process: Start, collector: Collector) -> None:
    """Two requests of one submission have one batch and one trace. An earlier decision is answered without the missing parts."""
    process = notary_process(own_directory.config, settings={"TRACING_ENDPOINT": collector.url, "TRACING_RATIO": 0})
    body = bank.body(spend(), spend())
    with CheckedClient(process.url) as checked:
        for _ in range(2):
            assert checked.post(body, traceparent=SAMPLED).status_code == 200
    assert process.stop() == 0
    assert [span.name for span in sorted(collector.spans, key=lambda span: span.name)] == sorted(
        [*PARTS, "admitted", "batch", *["submission"] * 2]
    )
    [batch] = collector.named("batch")
    assert {each.key: each.value.int_value for each in batch.attributes}["notary.requests"] == 2


def test_a_collector_that_is_away(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a collector every submission is decided and proven, lost spans are counted, and the worker ends normally."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    settings = {"TRACING_ENDPOINT": "http://127.0.0.1:1/v1/traces", "TRACING_RATIO": 1, "TRACING_QUEUE_SPANS_MAX": 8}
    process = notary_process(own_directory.config, settings=settings)
    with CheckedClient(process.url) as checked:
        for _ in range(10):
            checked.decide(bank, spend())
        while checked.metric("notary_spans_dropped_total") < 10 * (2 + len(PARTS)) - 8:
            pass
        assert checked.metric("notary_spans_exported_total") == 0
        assert checked.http.get("/readyz").status_code == 200
    assert process.stop() == 0


@pytest.mark.seconds
def test_off_it_is_not_even_imported(own_directory: NotaryDirectory) -> None:
    """Neither a worker nor a client imports OpenTelemetry, unless the worker is configured to trace."""
    program = (
        "import sys, pathlib, notary.cli.serve, notary.client, notary.config, notary.acceptor.app, notary.tracing\n"
        "config = notary.config.load(pathlib.Path(sys.argv[1]))\n"
        "assert notary.tracing.tracing_of(config.tracing, config.name, 'w1') is None\n"
        "assert notary.client.transport.current_traceparent() == ''\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or 'protobuf' in name])"
    )
    returned = subprocess.run(
        [sys.executable, "-c", program, str(own_directory.config)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert returned.stdout == "[]\n"


def test_the_missing_extra_is_named(own_directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with tracing configured, but without the packages, names the extra to install."""
    monkeypatch.delitem(sys.modules, "notary.tracing.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    config = msgspec.structs.replace(load(own_directory.config), tracing=TracingSettings("http://127.0.0.1:1/v1/traces"))
    with pytest.raises(ConfigurationError, match=r"pip install 'kafka-notary\[traces\]'"):
        tracing_of(config.tracing, config.name, "w1")


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        (SAMPLED, (7, 8, True)),
        (NOT_SAMPLED, (9, 8, False)),
        (SAMPLED.replace("00-", "cc-", 1) + "-what-later-versions-add", (7, 8, True)),
        (SAMPLED.replace("00-", "cc-", 1), (7, 8, True)),
        (SAMPLED + "-what-only-later-versions-add", None),
        (SAMPLED + "-", None),
        ("", None),
        (SAMPLED.replace("00-", "ff-", 1), None),
        (SAMPLED.upper().replace("7-", "A-"), None),
        (f"00-{0:032x}-{8:016x}-01", None),
        (SAMPLED[:-1], None),
    ],
)
def test_a_malformed_traceparent_counts_as_none(traceparent: str, expected: tuple[int, int, bool] | None) -> None:
    """A malformed traceparent (W3C Trace Context) counts as no parent."""
    parent = _parent_of(traceparent)
    assert (None if parent is None else (parent.trace_id, parent.span_id, parent.trace_flags.sampled)) == expected
    assert trace.get_current_span().get_span_context().is_valid is False


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    """Traces for a collector that is away."""
    made = Tracing(TracingSettings("http://127.0.0.1:1/v1/traces"), "O=Notary", "w1")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("ratio", "traceparent", "is_traced"), [(1.0, "", True), (1.0, NOT_SAMPLED, False), (0.0, "", False), (0.0, SAMPLED, True)]
)
def test_the_ratio_counts_without_a_callers_span(tracing: Tracing, ratio: float, traceparent: str, is_traced: bool) -> None:
    """Then the submission begins a trace. A caller decides for its own trace whether it is sampled."""
    tracing._ratio = ratio
    with tracing.submission(b"one", 1, traceparent, time.perf_counter()):
        assert [bool(traced.span.parent) for traced in tracing._traced.values()] == [bool(traceparent)] * is_traced  # type: ignore[attr-defined]


def batch_of(*encoded: bytes) -> Any:
    """Returns a batch of submissions with one request each."""
    return SimpleNamespace(submissions=[SimpleNamespace(encoded=each) for each in encoded], requests=[1] * len(encoded))


def ready_with(sequence: int, *, filled: bool = False) -> Any:
    """Returns a step with one batch of incarnation 1."""
    return SimpleNamespace(batches=[SimpleNamespace(incarnation=1, sequence=sequence, filled=filled)])


def test_the_end_of_one_wait_leaves_the_traces_of_the_rest_of_its_batch(tracing: Tracing) -> None:
    """`notary.decided_here` of the other submission is true, and it has its `joined`, `applied` and `answered` (docs/metrics.md)."""
    with tracing.submission(b"second", 1, f"00-{9:032x}-{8:016x}-01", time.perf_counter()):
        second = tracing._traced[b"second"]
        with tracing.submission(b"first", 1, SAMPLED, time.perf_counter()), tracing.sending((1, 1), batch_of(b"first", b"second")):
            pass  # Prefer: wait=1 ends here, with a 202
        assert tracing.joined(ready_with(1)) == [second]


@pytest.mark.parametrize("first", [SAMPLED, NOT_SAMPLED])
def test_a_retry_of_what_is_in_flight_is_decided_here(tracing: Tracing, first: str) -> None:
    """The first wait ends after the batch was sent. The client sends the same bytes again, and the step decides them."""
    with tracing.submission(b"one", 1, first, time.perf_counter()), tracing.sending((1, 1), batch_of(b"one")):
        pass
    with tracing.submission(b"one", 1, SAMPLED, time.perf_counter()):
        traced = tracing._traced[b"one"]
        assert tracing.joined(ready_with(1)) == [traced]
        assert traced.sent, "`joined` begins after its admission, not in 1970"
    assert not tracing._batches


def test_batches_that_cannot_count_any_more_are_forgotten(tracing: Tracing) -> None:
    """A batch was passed by a later one of its incarnation, or its incarnation has ended."""

    def send(*names: tuple[int, int]) -> None:
        for name in names:
            with tracing.sending(name, batch_of(b"one")):
                pass

    send((1, 1), (1, 2), (1, 3))
    assert tracing.joined(ready_with(2, filled=True)) == []
    assert list(tracing._batches) == [(1, 3)]
    send((7, 1))
    assert list(tracing._batches) == [(7, 1)]
