"""The metrics of a worker's steps."""

from joiner.ready import Anomaly, Ready
from notary.metrics import Metrics
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
