"""OpenTelemetry traces from a client's call to its decision (docs/metrics.md, Traces). Imported only where `[tracing] endpoint` is set.

A sampled submission has a span, a child of the client's span if the call has a `traceparent` (W3C Trace Context), with five child spans:

    submission  |------------------------------------------------|  from the head of its call to its answer
      admitted  |-----|                                              read, decoded, verified, admitted
      appended           |--------|                                  both records sent, until both are acknowledged
      joined             |------------|                              ... until the joiner has the content at its place in the order
      applied                         |---------|                    decided and durable
      answered                                  |----------------|   until the answer is made

A batch with a sampled submission is a separate trace: a span `batch` with a link to each of its sampled submissions; `appended` links back
to the batch. Nothing here waits for a collector. Ended spans go into a bounded queue, which a thread of the SDK empties; spans that do not
fit are counted and dropped. Sampling does not change how a submission is handled.
"""

import logging
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags

from joiner import Batch, Ready
from joiner.driver import Applier
from notary.decision import Decision
from notary.tracing import TracingSettings
from notary.version import VERSION
from payload import Request

logger = logging.getLogger("notary.tracing")

EXPORT_S_MAX: Final = 2.0
"""The deadline of one export to the collector, and of the last export when a worker ends."""
EXPORTED_AT_ONCE: Final = 512
# Version 00 has 55 characters; only later versions may have more.
_TRACEPARENT = re.compile(r"(?!ff|00.{54})[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch


class _Traced:
    """A sampled submission until its answer. Times are nanoseconds since 1970; 0 for an event that has not happened yet."""

    __slots__ = ("applied", "context", "sent", "span")

    def __init__(self, span: Span, admitted: int) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span, Context())
        self.sent = admitted  # the earlier call of a retry may have sent it already
        self.applied = 0


class Tracing:
    """The traces of one worker, used by its event loop only. It must be closed."""

    def __init__(self, settings: TracingSettings, notary_name: str, worker_name: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `_Exporter` logs once what its loggers repeat
        resource = Resource.create(
            {"service.name": "notary", "service.version": VERSION, "service.instance.id": worker_name, "notary.name": notary_name}
        )
        self._ratio = settings.ratio
        self.spans = _Spans(settings.endpoint, settings.queue_spans_max)
        # `submission` samples before it makes a span, so an unsampled submission costs only a random number.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self.spans)
        self._tracer = self._provider.get_tracer("notary", VERSION)
        self._traced: dict[bytes, _Traced] = {}
        self._batches: dict[tuple[int, int], Batch[Decision]] = {}
        """The batches that were sent and may still count. Retries may wait for them, so untraced ones are among them."""

    @contextmanager
    def submission(self, encoded: bytes, requests: int, traceparent: str, since_s: float) -> Iterator[None]:
        """Trace a submission from its admission to the end of the block; its call began at `since_s` of `time.perf_counter`.

        A second submission of the same requests is not traced while the first one waits: both wait for the same decision.
        """
        parent = _parent_of(traceparent)
        sampled = parent.trace_flags.sampled if parent is not None else random.random() < self._ratio  # noqa: S311 - no secret
        if not sampled or encoded in self._traced:
            yield
            return
        admitted = time.time_ns()
        began = admitted - int((time.perf_counter() - since_s) * 1e9)
        span = self._tracer.start_span(
            "submission",
            Context() if parent is None else trace.set_span_in_context(NonRecordingSpan(parent), Context()),
            SpanKind.SERVER,
            {"notary.requests": requests},
            start_time=began,
        )
        traced = self._traced[encoded] = _Traced(span, admitted)
        self._part(traced, "admitted", began, admitted)
        try:
            yield
        finally:
            del self._traced[encoded]
            now = time.time_ns()
            if traced.applied:
                self._part(traced, "answered", traced.applied, now)
            # False means: decided before, or still undecided at the end of the wait.
            span.set_attribute("notary.decided_here", bool(traced.applied))
            span.end(now)

    @contextmanager
    def sending(self, name: tuple[int, int], batch: Batch[Decision]) -> Iterator[None]:
        """Trace the appends of a batch, from sending until both have returned."""
        self._forget_batches([other for other in self._batches if other[0] != name[0]])  # of incarnations that have ended
        self._batches[name] = batch
        all_traced = self._traced_in(batch)
        if not all_traced:
            yield
            return
        sent = time.time_ns()
        links = [Link(traced.span.get_span_context()) for traced in all_traced]
        attributes = {"notary.incarnation": name[0], "notary.sequence": name[1], "notary.requests": len(batch.requests)}
        span = self._tracer.start_span("batch", Context(), SpanKind.PRODUCER, attributes, links, sent)
        for traced in all_traced:
            traced.sent = sent
        try:
            yield
        finally:
            now = time.time_ns()
            span.end(now)
            for traced in all_traced:
                self._part(traced, "appended", sent, now, span)

    def applier(self, applier: Applier[Decision]) -> Applier[Decision]:
        """Returns an applier that calls this one and traces its work."""
        return _TracedApplier(self, applier)

    def joined(self, ready: Ready) -> list[_Traced]:
        """Returns the traced submissions that this step decides. A filled batch decides nothing: its submissions are sent again."""
        found: list[_Traced] = []
        for ordered in ready.batches:
            name = (ordered.incarnation, ordered.sequence)
            if (batch := self._batches.get(name)) is not None:
                found += [] if ordered.filled else self._traced_in(batch)
                self._forget_batches([other for other in self._batches if other <= name])  # earlier ones will never count
        return found

    def _traced_in(self, batch: Batch[Decision]) -> list[_Traced]:
        return [traced for pending in batch.submissions if (traced := self._traced.get(pending.encoded)) is not None]

    def _forget_batches(self, names: Sequence[tuple[int, int]]) -> None:
        for name in names:
            del self._batches[name]

    def applied(self, all_traced: Sequence[_Traced], began: int, ended: int) -> None:
        """Record that these submissions were decided and made durable between the two times."""
        for traced in all_traced:
            self._part(traced, "joined", traced.sent, began)
            self._part(traced, "applied", began, ended)
            traced.applied = ended

    def close(self) -> None:
        """Export the remaining spans, for at most `EXPORT_S_MAX`."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(EXPORT_S_MAX)

    def _part(self, traced: _Traced, name: str, began: int, ended: int, linked: Span | None = None) -> None:
        links = [] if linked is None else [Link(linked.get_span_context())]
        self._tracer.start_span(name, traced.context, links=links, start_time=began).end(ended)


class _TracedApplier:
    def __init__(self, tracing: Tracing, applier: Applier[Decision]) -> None:
        self._tracing = tracing
        self._applier = applier

    def prepare(self, requests: Sequence[Request]) -> Iterator[None]:
        """Prepare with the wrapped applier."""
        return self._applier.prepare(requests)

    def apply(self, ready: Ready) -> Sequence[Sequence[Decision]]:
        """Apply the step with the wrapped applier, and record its traced submissions."""
        began = time.time_ns()
        outcomes = self._applier.apply(ready)
        if all_traced := self._tracing.joined(ready):
            self._tracing.applied(all_traced, began, time.time_ns())
        return outcomes


class _Spans(BatchSpanProcessor):
    """The SDK's queue and thread. `on_end` checks for a full queue itself, since the SDK would drop spans without counting them."""

    def __init__(self, endpoint: str, spans_max: int) -> None:
        self._exporter = _Exporter(endpoint)
        self._spans_max = spans_max
        self._put = 0
        self._overflowed = 0
        super().__init__(self._exporter, max_queue_size=spans_max, max_export_batch_size=min(EXPORTED_AT_ONCE, spans_max))

    @property
    def exported(self) -> int:
        """The number of spans that the collector has accepted."""
        return self._exporter.exported

    @property
    def dropped(self) -> int:
        """The number of spans that did not fit into the queue, or that the collector did not accept."""
        return self._overflowed + self._exporter.failed

    def on_end(self, span: ReadableSpan) -> None:
        """Put the span into the queue; count it as dropped when the queue is full."""
        if self._put - self._exporter.taken >= self._spans_max:
            self._overflowed += 1
            return
        self._put += 1
        super().on_end(span)


class _Exporter(SpanExporter):
    """Exports spans by OTLP over HTTP in the SDK's thread, and counts exported and failed spans."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_S_MAX)
        self.taken = self.exported = self.failed = 0
        self._away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans; the OTLP exporter retries until its deadline."""
        self.taken += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
        if self._away is not (result is not SpanExportResult.SUCCESS):
            self._away = not self._away
            logger.warning("the collector %s traces: %s", "does not accept" if self._away else "accepts", self._endpoint)
        return result

    def shutdown(self) -> None:
        """Close the exporter's connections."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _parent_of(traceparent: str) -> SpanContext | None:
    """Parses the client's span; None without one. Also None for a malformed one: W3C Trace Context then demands a new trace."""
    if not traceparent or (found := _TRACEPARENT(traceparent)) is None:
        return None
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16)))
    return context if context.is_valid else None
