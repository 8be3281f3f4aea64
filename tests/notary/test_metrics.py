"""The metrics of a worker's steps."""

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from joiner.ready import Anomaly, Ready
from notary.metrics import _LATENCY_S, Metrics
from tests.joiner.history import registered


def test_a_skipped_record_is_counted_once() -> None:
    """A forged record at the end of the log is read again after each interruption, and its alert must not rise then."""
    history, reading = registered()
    metrics = Metrics()
    forged = [history.put(-1, None, b"\x01\x04" + bytes(150)) for _ in range(2)]
    for _ in range(3):
        metrics.observe(reading.step(*forged))
        reading.joiner.forget_unapplied()
    assert metrics.registry.get_sample_value("notary_log_anomalies_total", {"kind": "malformed"}) == 2


def test_bad_contents_count_in_the_order_of_their_entries() -> None:
    """The content of a later entry may lie before that of an earlier one."""
    metrics = Metrics()
    for offset in (9, 3):
        metrics.observe(Ready({}, 0, anomalies=[Anomaly("bad-content", 0, offset, "")]))
    assert metrics.registry.get_sample_value("notary_log_anomalies_total", {"kind": "bad-content"}) == 2


def test_latencies_are_counted_as_the_library_counts_them() -> None:
    """The buckets, their labels, the sum and the count are those of a histogram of the library, and its parser reads them."""
    metrics, registry = Metrics(), CollectorRegistry()
    histogram = Histogram("notary_submission_seconds", "", buckets=_LATENCY_S, registry=registry)
    for bound in (0.0, *_LATENCY_S):
        for seconds in (bound, bound + 0.001):
            metrics.answered("/v1/submissions", 200, seconds)
            histogram.observe(seconds)
    metrics.answered("/v1/submissions", 503, count=3)
    families = {each.name: each.samples for each in text_string_to_metric_families(metrics.text().decode())}
    (expected,) = registry.collect()
    assert {(name, *labels.items(), value) for name, labels, value, *_ in families["notary_submission_seconds"]} == {
        (name, *labels.items(), value) for name, labels, value, *_ in expected.samples if not name.endswith("_created")
    }
    assert [(each.labels, each.value) for each in families["notary_http_answers"]] == [
        ({"call": "/v1/submissions", "status": "200"}, 2 * (len(_LATENCY_S) + 1)),
        ({"call": "/v1/submissions", "status": "503"}, 3),
    ]
