"""A worker's metrics for Prometheus (docs/metrics.md). Each worker has its own registry, so that two in one process do not mix."""

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from joiner import Driver, Ready, Sender
from notary.archive.schedule import ArchiveSchedule
from notary.decision import REASONS, Decision
from notary.gate import REJECTION_REASONS, Gate
from notary.index import Index
from notary.loop_watch import LoopWatch
from notary.mirror import LogMirror
from notary.receipts import Issuer
from notary.self_check import SelfCheck
from notary.snapshots.schedule import SnapshotSchedule
from notary.tls import Certificates
from notary.topic_watch import TopicWatch
from notary.version import VERSION
from ordering.log import BrokerSeen

if TYPE_CHECKING:
    from notary.tracing.spans import Tracing  # it needs OpenTelemetry, which few workers have

_LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
_STATM = Path("/proc/self/statm")  # Linux's
Metric: TypeAlias = tuple[str, str, Callable[[], float]]
"""A metric's name, help text, and value at a scrape."""
_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Metrics:
    """The metrics of one worker."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = self.registry
        self._answers = _Answers()
        of.register(_Collected(self._answers.families))
        self._batch_requests = Histogram("notary_batch_requests", "Requests in a batch as the log has it.", buckets=_SIZES, registry=of)
        decisions = Counter("notary_decisions_total", "Decisions applied to this worker's index.", ["outcome"], registry=of)
        self._outcome_counts: Callable[[], Sequence[int]] = lambda: [0] * len(REASONS)
        self._decisions = [decisions.labels(reason or "committed") for reason in REASONS]
        self._filled = Counter("notary_batches_filled_total", "Batches whose content is a fill.", registry=of)
        self._anomalies = Counter("notary_log_anomalies_total", "Records that were skipped or dropped.", ["kind"], registry=of)
        self._counted: dict[tuple[str, int], int] = {}
        """By kind of anomaly and topic-partition: the highest offset counted."""
        self._fills = Counter("notary_fills_proposed_total", "Fills that this worker proposed, repeated ones too.", registry=of)
        self._incarnation_events = Counter(
            "notary_incarnation_events_total", "Incarnations registered and fenced, of any worker.", ["event"], registry=of
        )
        Gauge("notary_build_info", "The software version.", ["version"], registry=of).labels(VERSION).set(1)
        self._gauges(("notary_memory_bytes", "Resident memory of the worker's process, 0 where it cannot be read.", resident_bytes))

    def observe(self, ready: Ready) -> None:
        """Count a step's batches, anomalies, fills, registrations and fences, and the decisions since the last step."""
        self._count_decisions(self._outcome_counts())
        for batch in ready.batches:
            self._batch_requests.observe(len(batch.requests))
            if batch.filled:
                self._filled.inc()
        counted = dict(self._counted)
        for anomaly in ready.anomalies:
            place = anomaly.kind, anomaly.partition
            # Others are read again, after an interruption. A bad content is found once, when its entry is joined.
            if anomaly.offset > counted.get(place, -1) or anomaly.kind == "bad-content":
                self._anomalies.labels(anomaly.kind).inc()
                self._counted[place] = max(anomaly.offset, self._counted.get(place, -1))
        if ready.fills:
            self._fills.inc(len(ready.fills))
        if ready.registered:
            self._incarnation_events.labels("registered").inc(len(ready.registered))
        if ready.fenced:
            self._incarnation_events.labels("fenced").inc(len(ready.fenced))

    def _count_decisions(self, by_outcome: Sequence[int]) -> None:
        """Count new decisions; `by_outcome` has one number for each outcome byte."""
        for counter, count in zip(self._decisions, by_outcome, strict=True):
            if count:
                counter.inc(count)

    def answered(self, call: str, status: int, seconds: float | None = None, *, count: int = 1) -> None:
        """Count HTTP answers with the same call and status; `seconds` is the latency of a submission."""
        answers = self._answers
        answers.counts[call, status] += count
        if seconds is not None:
            answers.by_latency[bisect_left(_LATENCY_S, seconds)] += 1
            answers.seconds += seconds

    def watch(
        self,
        driver: Driver[Decision],
        sender: Sender[Decision],
        index: Index,
        issuer: Issuer,
        self_check: SelfCheck,
        topic_watch: TopicWatch,
        *,
        is_ready: Callable[[], bool],
    ) -> None:
        """Add the gauges that read a worker's parts at each scrape, and count the decisions of its index."""
        self._outcome_counts = index.take_outcome_counts
        self._gauges(
            ("notary_positions", "Decisions in this worker's index.", lambda: index.position_next),
            ("notary_pending_requests", "Requests admitted and not answered yet.", lambda: sender.queue.pending_requests),
            ("notary_pending_parties", "Parties with submissions admitted and not answered yet.", lambda: sender.queue.parties),
            ("notary_full_parties", "Of these, those at their limit.", lambda: len(sender.queue.full_parties())),
            ("notary_pending_bytes", "Bytes of the submissions admitted and not answered yet.", lambda: sender.queue.pending_bytes),
            ("notary_capacity_requests_per_second", "The last rate of decisions under load.", lambda: sender.queue.rate.per_s),
            ("notary_incarnation", "This worker's present incarnation, 0 for none.", lambda: sender.incarnation or 0),
            ("notary_buffered_bytes", "Payloads whose entries are not applied yet.", lambda: driver.joiner.buffered_bytes),
            ("notary_buffered_records", "Payloads whose entries are not applied yet.", lambda: driver.joiner.buffered_records),
            ("notary_unregistered_bytes", "Payloads of incarnations that have not registered.", lambda: driver.joiner.unregistered[1]),
            ("notary_unregistered_records", "Payloads of incarnations that have not registered.", lambda: driver.joiner.unregistered[0]),
            ("notary_hole", "1 while the head is a hole.", lambda: int(driver.joiner.hole is not None)),
            ("notary_lag_records", "Records of the log not read yet.", lambda: driver.lag_records),
            ("notary_poll_age_seconds", "Time since the last poll of the log without an error.", lambda: driver.poll_age_s),
            ("notary_partition_stalled_seconds", "Longest stall of a partition with records to read.", lambda: driver.stalls.longest_s),
            ("notary_head_stalled_seconds", "Stall of the head while the log goes on.", lambda: driver.stalls.head_s),
            ("notary_log_clock_skew_seconds", "Append times minus this clock.", lambda: driver.log_clock.skew_ms / 1000),
            ("notary_log_time_seconds", "Log time after the last step.", lambda: index.log_time_ms / 1000),
            ("notary_tree_size", "Leaves of the tree: the decisions that receipts prove.", lambda: index.tree.size),
            ("notary_agreed_size", "The largest tree size at which another checkpoint had our root.", lambda: index.agreement.agreed_size),
            ("notary_root_disagreement", "1 while workers have different roots.", lambda: int(index.agreement.in_disagreement)),
            ("notary_index_quarantined", "1 when this index is wrong and serves no more.", lambda: int(bool(index.agreement.quarantined))),
            ("notary_index_filter_bytes", "Bytes that the bloom filters of all rows need.", lambda: index.filter_bytes),
            ("notary_index_cache_bytes", "index.cache_bytes, where they should fit.", lambda: index.cache_bytes),
            ("notary_suspicions_open", "Workers with another history during this replay.", lambda: len(driver.joiner.suspicions.open)),
            ("notary_history_records", "Records of the log that took effect.", lambda: driver.joiner.history.seen),
            ("notary_topic_problems", "Settings by which the topics may lose records.", lambda: len(topic_watch.problems)),
            ("notary_ready", "1 while this worker takes submissions.", lambda: int(is_ready())),
        )
        self._counters(
            ("notary_batches_sent_total", "Batches sent by this process.", lambda: sender.batches_sent),
            ("notary_batches_sent_again_total", "Batches that will never count, sent again.", lambda: sender.batches_sent_again),
            ("notary_reader_restarts_total", "Stalled readers that were replaced.", lambda: driver.readers_remade),
            ("notary_checkpoints_signed_total", "Checkpoints signed, one for each tree size.", lambda: issuer.signatures),
            ("notary_audited_tiles_total", "Tiles whose decisions were compared with the tree.", lambda: self_check.audited_tiles),
            ("notary_index_scrubs_total", "Readings of the complete index from the disk.", lambda: self_check.scrubs),
            ("notary_interruptions_total", "Interruptions of reading, each followed by a look at the log.", lambda: driver.interruptions),
        )

    def watch_gate(self, gate: Gate) -> None:
        """Add counters of submissions that the gate rejects for lack of capacity or quota. No label names the party: there are too many."""
        self.registry.register(_Collected(lambda: _rejected(gate)))
        self._counters(
            ("notary_tickets_used_total", "Submissions admitted with a ticket.", lambda: 0 if gate.tickets is None else gate.tickets.used)
        )

    def watch_snapshots(self, schedule: SnapshotSchedule) -> None:
        """Add the metrics of the schedule for snapshots."""
        self._gauges(
            ("notary_snapshot_interval_seconds", "snapshots.every_s, 0 for none.", lambda: schedule.every_s),
            ("notary_snapshot_age_seconds", "Age of the notary's newest snapshot, as this worker found it.", lambda: schedule.age_s),
        )
        self._counters(
            ("notary_snapshots_made_total", "Snapshots that this process made.", lambda: schedule.made),
            ("notary_snapshots_failed_total", "Attempts of this process to make a snapshot that failed.", lambda: schedule.failures),
        )

    def watch_archive(self, schedule: ArchiveSchedule) -> None:
        """Add the metrics of the continuous archive."""
        self._gauges(
            ("notary_archive_interval_seconds", "archive.every_s, 0 for none.", lambda: schedule.every_s),
            ("notary_archive_behind_seconds", "Time since all that this worker had applied was sealed.", lambda: schedule.behind_s),
        )
        self._counters(
            ("notary_archive_segments_total", "Segments that this process had sealed.", lambda: schedule.segments),
            ("notary_archive_failed_total", "Attempts of this process to seal a segment that failed.", lambda: schedule.failures),
        )

    def watch_tls(self, certificates: Certificates) -> None:
        """Add the metrics of the service's certificate."""
        self._gauges(
            ("notary_tls_certificate_expiry_seconds", "When the certificate in use expires.", lambda: certificates.not_after_s),
            ("notary_tls_problem", "1 while the certificate's files are not fit to be used.", lambda: int(bool(certificates.problem))),
        )
        self._counters(
            ("notary_tls_handshakes_failed_total", "Connections that ended before a request.", lambda: certificates.handshakes_failed)
        )

    def watch_log_certificate(self, not_after_s: float) -> None:
        """Add the gauge of the certificates for the brokers, which a worker reads only when it starts."""
        text = "When log.cert_file or log.ca_file, as they were at the start, expires first."
        self._gauges(("notary_log_certificate_expiry_seconds", text, lambda: not_after_s))

    def watch_loop(self, watch: LoopWatch) -> None:
        """Add a gauge of the longest turn of the event loop."""
        self._gauges(("notary_loop_turn_seconds", "Longest turn of the event loop in the last 30 to 60 s.", lambda: watch.longest_s))

    def watch_spans(self, tracing: "Tracing") -> None:
        """Add the counters of exported and dropped trace spans."""
        self._counters(
            ("notary_spans_exported_total", "Spans that the collector has accepted.", lambda: tracing.spans.exported),
            (
                "notary_spans_dropped_total",
                "Spans that did not fit in the queue, or that the collector did not accept.",
                lambda: tracing.spans.dropped,
            ),
        )

    def watch_brokers(self, brokers: Callable[[], Mapping[int, BrokerSeen]]) -> None:
        """Add the gauges of each broker, as this worker's Kafka client sees it at a scrape."""
        self.registry.register(_Collected(lambda: _of_brokers(brokers())))

    def _gauges(self, *metrics: Metric) -> None:
        """Add gauges whose values are read at each scrape."""
        _add_gauges(self.registry, *metrics)

    def _counters(self, *metrics: Metric) -> None:
        """Add counters whose values are read at each scrape."""
        _add_counters(self.registry, *metrics)

    def text(self) -> bytes:
        """Returns the metrics in Prometheus's text exposition format."""
        return generate_latest(self.registry)


def mirror_registry(mirror: LogMirror, topic_watch: TopicWatch, certificates_end_s: float | None) -> CollectorRegistry:
    """Returns the metrics of `notary mirror`. `certificates_end_s`: when the first of its certificates expires, None without any."""
    registry = CollectorRegistry()
    _add_counters(registry, ("notary_mirror_copied_total", "Records that this process has copied.", lambda: mirror.copied))
    _add_gauges(
        registry,
        ("notary_mirror_lag_records", "Records that the mirror lacked when both clusters last answered.", lambda: mirror.lag_records),
        ("notary_mirror_left_out", "Topic-partitions that were not copied then: they had no leader.", lambda: mirror.partitions_left_out),
        ("notary_mirror_compared_seconds", "When both clusters last answered; 0 before.", lambda: mirror.compared_ms / 1000),
        ("notary_topic_problems", "Settings by which the mirror's topics may lose records.", lambda: len(topic_watch.problems)),
    )
    if certificates_end_s is not None:
        text = "When the first certificate for the brokers, as it was at the start, expires."
        _add_gauges(registry, ("notary_mirror_certificate_expiry_seconds", text, lambda: certificates_end_s))
    return registry


class _Answers:
    """The answers to HTTP calls. A counter and a histogram of the library would take 3 us for each answer, with a lock for each number."""

    def __init__(self) -> None:
        self.counts: defaultdict[tuple[str, int], int] = defaultdict(int)
        """Answers by call and status."""
        self.by_latency = [0] * (len(_LATENCY_S) + 1)
        """Submissions by the first bound of `_LATENCY_S` that their latency does not exceed. The last number is of those above all."""
        self.seconds = 0.0
        """The sum of all latencies."""

    def families(self) -> list[_Family]:
        """Returns the counter, and the histogram of the latencies."""
        answers = CounterMetricFamily("notary_http_answers_total", "Answers to HTTP calls.", labels=["call", "status"])
        for (call, status), count in self.counts.items():
            answers.add_metric([call, str(status)], count)
        latency = HistogramMetricFamily("notary_submission_seconds", "From the head of a submission to its answer, its body included.")
        bounds = (*[str(bound) for bound in _LATENCY_S], "+Inf")
        latency.add_metric([], list(zip(bounds, accumulate(self.by_latency), strict=True)), self.seconds)
        return [answers, latency]


class _Collected(Collector):
    """Metrics that are read anew at each scrape, from parts of the worker that keep their own counts."""

    def __init__(self, read: Callable[[], Iterable[_Family]]) -> None:
        self._read = read

    def collect(self) -> Iterable[_Family]:
        """Returns the families."""
        return self._read()


def _add_gauges(registry: CollectorRegistry, *metrics: Metric) -> None:
    for name, text, read in metrics:
        Gauge(name, text, registry=registry).set_function(read)


def _add_counters(registry: CollectorRegistry, *metrics: Metric) -> None:
    registry.register(_Collected(lambda: [CounterMetricFamily(name, text, value=read()) for name, text, read in metrics]))


def _of_brokers(brokers: Mapping[int, BrokerSeen]) -> list[_Family]:
    """Returns three families: the connection of each broker, its partitions by role, the end of its certificate."""
    connected = GaugeMetricFamily("notary_broker_connected", "1 while this worker has a connection to the broker.", labels=["broker"])
    partitions = GaugeMetricFamily(
        "notary_broker_partitions", "The log's partitions, by what this broker is to them.", labels=["broker", "role"]
    )
    certificates = GaugeMetricFamily(
        "notary_broker_certificate_expiry_seconds", "When the broker's certificate expires, as last seen.", labels=["broker"]
    )
    for node, seen in brokers.items():
        connected.add_metric([str(node)], int(seen.connected))
        for role, count in (("leader", seen.leads), ("in-sync", seen.in_sync), ("replica", seen.replicas)):
            partitions.add_metric([str(node), role], count)
        if seen.certificate_ends_s is not None:
            certificates.add_metric([str(node)], seen.certificate_ends_s)
    return [connected, partitions, certificates]


def _rejected(gate: Gate) -> list[_Family]:
    """Returns the submissions that were rejected with a ticket: a series for each reason."""
    rejected = CounterMetricFamily(
        "notary_submissions_rejected_total", "Submissions rejected by load shedding, or over a quota.", labels=["reason"]
    )
    for reason in REJECTION_REASONS:
        rejected.add_metric([reason], gate.rejections[reason])
    return [rejected]


def resident_bytes() -> int:
    """Returns this process's resident memory in bytes; 0 where the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
