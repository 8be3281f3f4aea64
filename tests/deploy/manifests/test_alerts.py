"""Tests the alerts: promtool evaluates each on series that fire it and on others; the sections and metrics that they name exist."""

import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.local import Cluster
from deploy.local.ports import free_ports
from deploy.manifests import KUBERNETES, MIRROR, Manifest, Tools, render, rules_of
from joiner import QueueLimits
from tests.deploy.scraped import Scraped, names_in
from tests.docs.test_docs import ROOT, headings, text

pytestmark = [pytest.mark.go, pytest.mark.timeout(600)]

OTHERS = {
    "up", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes", "kube_job_failed", "kube_pod_status_phase",
    "kube_cronjob_status_last_successful_time", "kube_deployment_status_replicas_unavailable", "kube_statefulset_replicas",
    "kube_statefulset_status_replicas_ready", "kube_job_created",
}  # fmt: skip
"""Metrics of Prometheus, the kubelet and kube-state-metrics."""
OF_KAFKA = {
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
}
"""Metrics of brokers and controllers; the last test here asks a real one for them."""
WITH_TLS = {
    "notary_tls_problem", "notary_tls_certificate_expiry_seconds", "notary_broker_certificate_expiry_seconds",
    "notary_log_certificate_expiry_seconds",
}  # fmt: skip
"""Metrics of a worker with TLS (`tests/notary/http/test_server_tls.py`), to its brokers too (`test_users.py`); the one here has none."""

OF_MIRROR = {
    "notary_mirror_compared_seconds", "notary_mirror_lag_records", "notary_mirror_left_out", "notary_mirror_certificate_expiry_seconds",
}  # fmt: skip
"""Metrics of `notary mirror`, which `test_users.py` asks a real one for."""


@dataclass(frozen=True)
class Case:
    """Series, with a value every 5 s in promtool's notation, and whether the alert fires at a given time."""

    alert: str
    fires: bool
    at: str
    series: tuple[tuple[str, str], ...]


def _case(alert: str, *, fires: bool, at: str, **series: str | tuple[str, ...]) -> Case:
    """Returns a case with the series of one worker, or of several, by metric."""
    rows = [
        (f'{metric}{{namespace="notary",pod="worker-{number}"}}', each)
        for metric, values in series.items()
        for number, each in enumerate([values] if isinstance(values, str) else values)
    ]
    return Case(alert, fires, at, tuple(rows))


def _anomalies(kind: str, values: str) -> tuple[tuple[str, str], ...]:
    return ((f'notary_log_anomalies_total{{namespace="notary",pod="worker-0",kind="{kind}"}}', values),)


def _incarnation_events(event: str, values: str) -> tuple[tuple[str, str], ...]:
    return ((f'notary_incarnation_events_total{{namespace="notary",pod="worker-0",event="{event}"}}', values),)


def _answers(slow_per_step: int) -> tuple[tuple[str, str], ...]:
    """Returns the series of a hundred answers every 5 s, this many of them slower than 2.5 s."""
    buckets = {"1": 100 - slow_per_step, "2.5": 100 - slow_per_step, "5": 100, "+Inf": 100}
    return tuple(
        (f'notary_submission_seconds_bucket{{namespace="notary",pod="worker-0",le="{le}"}}', f"0+{count}x240")
        for le, count in buckets.items()
    )


def _kafka(metric: str, *values: str) -> tuple[tuple[str, str], ...]:
    """Returns a series for each node of Kafka, every 5 s."""
    return tuple((f'{metric}{{job="notary/kafka",namespace="notary",pod="log-{at}"}}', each) for at, each in enumerate(values))


def _disk(free: int, of: str = "index-worker-0", namespace: str = "notary") -> tuple[tuple[str, str], ...]:
    claim = f'namespace="{namespace}",persistentvolumeclaim="{of}"'
    return (
        (f"kubelet_volume_stats_available_bytes{{{claim}}}", f"{free}x240"),
        (f"kubelet_volume_stats_capacity_bytes{{{claim}}}", "100x240"),
    )


def _failed(job: str, values: str = "1x240", namespace: str = "notary") -> tuple[tuple[str, str], ...]:
    """Returns the series of a failed job, which was created after 100 s."""
    of = f'namespace="{namespace}",job_name="{job}-29"'
    return ((f'kube_job_failed{{{of},condition="true"}}', values), (f"kube_job_created{{{of}}}", "100x600"))


def _succeeded(job: str, at_s: int) -> tuple[tuple[str, str], ...]:
    return ((f'kube_cronjob_status_last_successful_time{{namespace="notary",cronjob="{job}"}}', f"{at_s}x600"),)


def _ready(pods: str) -> tuple[tuple[str, str], ...]:
    """Returns the series of three workers, of which so many are ready."""
    of = '{namespace="notary",statefulset="worker"}'
    return ((f"kube_statefulset_replicas{of}", "3x600"), (f"kube_statefulset_status_replicas_ready{of}", pods))


def _pending(pod: str, values: str) -> tuple[tuple[str, str], ...]:
    return ((f'kube_pod_status_phase{{namespace="notary",phase="Pending",pod="{pod}"}}', values),)


CASES = (
    Case("NotaryWorkerDown", True, "2m", (('up{job="notary/workers",pod="worker-0"}', "1x3 0x240"),)),
    Case("NotaryWorkerDown", False, "2m", (('up{job="notary/workers",pod="worker-0"}', "0x10 1x240"),)),
    *(
        _case(alert, fires=fires, at=at, **{metric: values})
        for alert, at, metric, *both in (
            ("NotaryNotReady", "2m", "notary_ready", "1x6 0x240", "1x6 0x6 1x240"),
            ("NotaryIndexQuarantined", "1m", "notary_index_quarantined", "0x6 1x240", "0x240"),
            ("NotaryRootsDisagree", "1m", "notary_root_disagreement", "0x3 1x240", "0x3 1x3 0x240"),
            ("NotarySnapshotsFail", "15m", "notary_snapshots_failed_total", "0x3 1x240", "7x240"),
            ("NotaryArchiveFails", "15m", "notary_archive_failed_total", "0x3 1x240", "7x240"),
            ("NotaryHoleStays", "1m", "notary_hole", "0x3 1x240", "0x11 1 0x240"),
            ("NotaryLoopIsHeld", "15m", "notary_loop_turn_seconds", "0.6x240", "0.6x24 0.01x240"),
            ("NotaryLagRises", "5m", "notary_lag_records", "0+100x240", "90000-100x240"),
            ("NotaryClockSkewed", "6m", "notary_log_clock_skew_seconds", "-11x240", "9x240"),
            ("NotaryTopicProblems", "1m", "notary_topic_problems", "2x240", "0x240"),
            ("NotaryBrokerCertificateNotRenewed", "2m", "notary_broker_certificate_expiry_seconds", "604000x240", "9000000x240"),
            ("NotaryLogCertificateNotRenewed", "2m", "notary_log_certificate_expiry_seconds", "604000x240", "9000000x240"),
            ("NotaryUnregisteredPayloads", "11m", "notary_unregistered_bytes", "1x240", "1x60 0 1x240"),
        )
        for fires, values in zip((True, False), both, strict=True)
    ),
    # No root is compared. One of the two still compares its roots. No worker decides anything. A quiet log has no checkpoint yet.
    # A single worker has no other to compare with.
    *(
        _case("NotaryRootsNotCompared", fires=fires, at="15m", notary_agreed_size=sizes, notary_positions=positions)
        for fires, sizes, positions in (
            (True, ("5x240", "5x240"), ("5+1x240", "5+1x240")),
            (False, ("5x240", "5+1x240"), ("5+1x240", "5+1x240")),
            (False, ("5x240", "5x240"), ("5x240", "5x240")),
            (False, ("5x240", "5x240"), ("5x176 6x60", "5x240")),
            (False, "0x240", "5+1x240"),
        )
    ),
    *(
        _case(alert, fires=fires, at="15m", notary_audited_tiles_total=tiles, notary_positions=positions, notary_index_quarantined="0x240")
        for alert, fires, tiles, positions in (
            ("NotaryRowsNotAudited", True, "9x240", "5x240"),
            ("NotaryRowsNotAudited", False, "9+1x240", "5x240"),
            ("NotaryRowsNotAudited", False, "0x240", "0x240"),
        )
    ),
    # No worker makes them. Another one does. One is to make none, as the runbook starts one after a quarantine: its age is 0. None is.
    *(
        _case("NotarySnapshotOverdue", fires=fires, at="15m", notary_snapshot_age_seconds=ages, notary_snapshot_interval_seconds=intervals)
        for fires, ages, intervals in (
            (True, "100+5x240", "60x240"),
            (False, ("100+5x240", "70x240"), ("60x240", "60x240")),
            (True, ("100+5x240", "0x240"), ("60x240", "0x240")),
            (False, "0x240", "0x240"),
        )
    ),
    # Behind. Not behind. Behind, and one worker has no segments. No worker is to stream any.
    *(
        _case("NotaryArchiveBehind", fires=fires, at="25m", notary_archive_behind_seconds=behind, notary_archive_interval_seconds=intervals)
        for fires, behind, intervals in (
            (True, "0+15x240", "5x240"),
            (False, "4x240", "5x240"),
            (True, ("0+15x240", "0x240"), ("5x240", "0x240")),
            (False, "0+15x240", "0x240"),
        )
    ),
    _case("NotaryIndexOutgrowsItsCache", fires=True, at="90m", notary_index_filter_bytes="80x1200", notary_index_cache_bytes="100x1200"),
    _case("NotaryIndexOutgrowsItsCache", fires=False, at="90m", notary_index_filter_bytes="70x1200", notary_index_cache_bytes="100x1200"),
    _case("NotaryLagRises", fires=False, at="5m", notary_lag_records="0+1x240"),
    _case("NotaryWorkersDriftApart", fires=True, at="15m", notary_positions=("0+500x240", "0+100x240")),
    # One worker replays, and catches up.
    _case("NotaryWorkersDriftApart", fires=False, at="15m", notary_positions=("900000+100x240", "0+500x240")),
    *(Case("NotaryForeignRecords", True, "6m", _anomalies(kind, "0x60 0+1x240")) for kind in ("malformed", "unsigned", "bad-content")),
    # The very first one: the series begins at 1.
    Case("NotaryForeignRecords", True, "2m", _anomalies("unsigned", "_x20 1x240")),
    Case("NotaryForeignRecords", False, "20m", _anomalies("unsigned", "_x20 1x240")),
    Case("NotaryForeignRecords", False, "6m", _anomalies("skipped", "0+1x240")),
    Case("NotaryForeignHistory", True, "6m", _anomalies("foreign-view", "0x60 0+1x240")),
    Case("NotaryForeignHistory", True, "2m", _anomalies("foreign-view", "_x20 1x240")),
    _case("NotaryForeignHistory", fires=True, at="1m", notary_suspicions_open="1x240"),
    Case("NotaryForeignHistory", False, "6m", _anomalies("unsigned", "0+1x240")),
    _case("NotaryForeignHistory", fires=False, at="1m", notary_suspicions_open="0x240"),
    *(
        _case("NotaryCertificateNotRenewed", fires=fires, at="2m", notary_tls_problem=problem, notary_tls_certificate_expiry_seconds=expiry)
        for fires, problem, expiry in ((True, "1x240", "9000000x240"), (True, "0x240", "604000x240"), (False, "0x240", "9000000x240"))
    ),
    Case("NotaryWorkersFenced", True, "10m", _incarnation_events("fenced", "0x60 1 2 3 4 5x240")),
    Case("NotaryWorkersFenced", False, "10m", _incarnation_events("fenced", "0x60 1x240")),
    Case("NotaryWorkersFenced", False, "10m", _incarnation_events("registered", "0+1x240")),
    *(
        _case("NotaryNearlyOverloaded", fires=fires, at="2m", notary_pending_requests=pending, notary_capacity_requests_per_second=capacity)
        for fires, pending, capacity in (
            (True, "33000x240", "0x240"),
            (True, "13000x240", "5000x240"),
            (False, "11000x240", "5000x240"),
            (False, "1900x240", "1x240"),
        )
    ),
    *(
        _case("NotaryPartiesAtLimit", fires=full == "1x240", at="11m", notary_full_parties=full, notary_pending_parties="2x240")
        for full in ("1x240", "2x240", "1x60 0 1x240", "0x240")
    ),
    Case("NotarySlowAnswers", True, "15m", _answers(2)),
    Case("NotarySlowAnswers", False, "15m", _answers(0)),
    Case("NotaryIndexDiskFills", True, "6m", _disk(14)),
    Case("NotaryIndexDiskFills", False, "6m", _disk(16)),
    Case("KafkaNodeDown", True, "7m", _kafka("up", "1x240", "1x6 0x240")),
    Case("KafkaNodeDown", False, "7m", _kafka("up", "1x240", "0x50 1x240")),
    Case("KafkaPartitionsUnderReplicated", True, "7m", _kafka("kafka_server_replicamanager_underreplicatedpartitions", "0x240", "3x240")),
    # A restart of a broker.
    Case(
        "KafkaPartitionsUnderReplicated",
        False,
        "7m",
        _kafka("kafka_server_replicamanager_underreplicatedpartitions", "0x240", "3x40 0x240"),
    ),
    Case("KafkaPartitionsUnderMinIsr", True, "2m", _kafka("kafka_server_replicamanager_underminisrpartitioncount", "0x240", "1x240")),
    Case("KafkaPartitionsUnderMinIsr", False, "2m", _kafka("kafka_server_replicamanager_underminisrpartitioncount", "1x3 0x240", "0x240")),
    # One controller of three reports it, the others are down.
    Case("KafkaPartitionsOffline", True, "2m", _kafka("kafka_controller_kafkacontroller_offlinepartitionscount", "0x240", "1x240")),
    Case("KafkaPartitionsOffline", False, "2m", _kafka("kafka_controller_kafkacontroller_offlinepartitionscount", "1x3 0x240", "0x240")),
    *(
        Case("KafkaNoActiveController", fires, "3m", _kafka("kafka_controller_kafkacontroller_activecontrollercount", *values))
        for fires, values in ((True, ("0x240", "0x240")), (True, ("1x240", "1x240")), (True, ("1x6 stale",)), (False, ("0x240", "1x240")))
    ),
    # Another Kafka cluster in the same Prometheus.
    Case(
        "KafkaPartitionsUnderMinIsr",
        False,
        "2m",
        (('kafka_server_replicamanager_underminisrpartitioncount{job="other/kafka",namespace="other",pod="k-0"}', "1x240"),),
    ),
    Case("KafkaDiskFills", True, "6m", _disk(14, "data-0-log-broker-a-3")),
    Case("KafkaDiskFills", False, "6m", _disk(16, "data-0-log-broker-a-3")),
    Case("KafkaDiskFills", False, "6m", _disk(14, "data-0-other-broker-3")),
    Case("KafkaDiskFills", False, "6m", _disk(14, "data-0-log-broker-a-3", "billing")),
    *(Case("NotaryVerificationFailed", True, "1m", _failed(job)) for job in ("verify", "archive")),
    Case("NotaryVerificationFailed", False, "1m", _failed("verify", "0x240")),
    Case("NotaryVerificationFailed", False, "1m", _failed("backup")),
    Case("NotaryVerificationFailed", False, "1m", _failed("verify", namespace="billing")),
    # A success before the failure, and one after it. A later success of `verify` does not undo what an earlier one found.
    *(
        Case(alert, fires, "10m", _failed(job) + _succeeded(job, at_s))
        for alert, job in (
            ("NotaryVerificationFailed", "archive"),
            ("NotarySegmentsNotRemoved", "segments"),
            ("NotarySnapshotNotVerified", "snapshots"),
        )
        for fires, at_s in ((True, 50), (False, 300))
    ),
    Case("NotaryVerificationFailed", True, "10m", _failed("verify") + _succeeded("verify", 300)),
    # The success of another job.
    Case("NotaryVerificationFailed", True, "10m", _failed("archive") + _succeeded("verify", 300)),
    Case("NotaryVerificationFailed", True, "10m", _failed("verify") + _succeeded("archive", 300)),
    # One of its pods failed, and the second try succeeded.
    Case(
        "NotaryVerificationFailed",
        False,
        "1m",
        (
            ('kube_job_status_failed{namespace="notary",job_name="archive-29"}', "1x240"),
            ('kube_job_complete{namespace="notary",job_name="archive-29",condition="true"}', "1x240"),
        ),
    ),
    Case("NotarySnapshotNotVerified", True, "1m", _failed("snapshots")),
    Case("NotarySnapshotNotVerified", False, "1m", _failed("snapshots", "0x240")),
    Case("NotarySnapshotNotVerified", False, "1m", _failed("verify")),
    Case("NotarySegmentsNotRemoved", True, "1m", _failed("segments")),
    Case("NotarySegmentsNotRemoved", False, "1m", _failed("snapshots")),
    # The time is 0 when a case begins.
    Case("NotaryJobOverdue", True, "20m", _succeeded("archive", -7200)),
    Case("NotaryJobOverdue", True, "20m", _succeeded("verify", -172800)),
    Case("NotaryJobOverdue", False, "20m", _succeeded("archive", -3600)),
    Case("NotaryJobOverdue", False, "20m", _succeeded("verify", -90000)),
    Case("NotaryWorkerMissing", True, "20m", _ready("2x600")),
    # A rolling update.
    Case("NotaryWorkerMissing", False, "20m", _ready("2x60 3x600")),
    Case("KafkaPodPending", True, "20m", _pending("log-controller-b-2", "1x600")),
    Case("KafkaPodPending", False, "20m", _pending("log-controller-b-2", "1x60 0x600")),
    Case("KafkaPodPending", False, "20m", _pending("worker-2", "1x600")),
    # Compared at each scrape; no more after a minute; a process that is started again and again; none.
    *(
        Case("NotaryMirrorDown", fires, "15m", tuple((f'notary_mirror_compared_seconds{{pod="{number}"}}', at) for number, at in pods))
        for fires, pods in (
            (False, [(1, "0+5x180")]),
            (False, [(1, "0+5x60 _x120"), (2, "_x60 0x6 330+5x120")]),
            (True, [(1, "0+5x12 60x170")]),
            (True, [(1, "0x10 _x20 0x10 _x20 0x10 _x20 0x10 _x20 0x10 _x60")]),
            (True, []),
        )
    ),
    *(
        Case("NotaryMirrorBehind", fires, "15m", ((f'notary_mirror_{metric}{{pod="mirror-1"}}', at),))
        for fires, metric, at in (
            (True, "lag_records", "20000x180"),
            (False, "lag_records", "20000x60 5x120"),
            (True, "left_out", "1x180"),
            (False, "left_out", "1x60 0x120"),
        )
    ),
    *(
        Case("NotaryMirrorCertificateExpires", fires, "5m", (('notary_mirror_certificate_expiry_seconds{pod="mirror-1"}', at),))
        for fires, at in ((True, "604000x60"), (False, "700000x60"))
    ),
)


@pytest.fixture(scope="session")
def rules(tools: Tools) -> str:
    """The rules file of a mirror, which has those of the three zones too."""
    return rules_of(render(tools, KUBERNETES / MIRROR))


def alerts(rules: str) -> dict[str, dict[str, Any]]:
    """The rules by the name of the alert."""
    return {rule["alert"]: rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]}


def evaluated(tools: Tools, rules: str, cases: tuple[Case, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Evaluate the cases with promtool: a file for each alert, because promtool evaluates all rules of a file at each step of each case."""
    files = []
    for alert, rule in alerts(rules).items():
        tests = [
            {
                "name": f"{alert} {'fires' if case.fires else 'does not fire'}",
                "interval": "5s",
                "input_series": [{"series": series, "values": values} for series, values in case.series],
                "promql_expr_test": [
                    {
                        "expr": f'(count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)) > bool 0',
                        "eval_time": case.at,
                        "exp_samples": [{"labels": "{}", "value": int(case.fires)}],
                    }
                ],
            }
            for case in cases
            if case.alert == alert
        ]
        (folder / f"{alert}.rules.yml").write_text(yaml.safe_dump({"groups": [{"name": alert, "interval": "5s", "rules": [rule]}]}))
        files.append(folder / f"{alert}.yml")
        files[-1].write_text(yaml.safe_dump({"rule_files": [f"{alert}.rules.yml"], "evaluation_interval": "5s", "tests": tests}))
    return subprocess.run([tools.promtool, "test", "rules", *files], capture_output=True, text=True)


def test_alerts_fire_and_do_not_fire(tools: Tools, rules: str, tmp_path: Path) -> None:
    """Each alert fires in its own case, and not in similar ones."""
    done = evaluated(tools, rules, CASES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_cases(rules: str) -> None:
    """Each alert has a case in which it fires and one in which it does not."""
    for fires in (True, False):
        assert {case.alert for case in CASES if case.fires is fires} == set(alerts(rules))


@pytest.mark.parametrize("case", [next(case for case in CASES if case.fires), next(case for case in CASES if not case.fires)])
def test_a_wrong_expectation_is_noticed(tools: Tools, rules: str, tmp_path: Path, case: Case) -> None:
    """Promtool fails when an alert does not do what a case expects."""
    wrong = Case(case.alert, not case.fires, case.at, case.series)
    assert evaluated(tools, rules, (wrong,), tmp_path).returncode != 0


def test_every_alert_names_a_section(rules: str) -> None:
    """Each alert has a summary, a severity, and a section that exists."""
    for name, rule in alerts(rules).items():
        page, _, section = rule["annotations"]["runbook"].partition("#")
        assert section in headings(ROOT / page), name
        assert page == "docs/runbook.md" or name == "NotaryVerificationFailed"
        assert rule["annotations"]["summary"], name
        assert rule["labels"]["severity"] in ("page", "warning"), name


def test_metrics_of_the_cluster_are_of_this_namespace(rules: str) -> None:
    """Every metric of kube-state-metrics and the kubelet is selected by the namespace: other namespaces may have the same names."""
    found = [
        (name, metric, labels)
        for name, rule in alerts(rules).items()
        for metric, labels in re.findall(r"\b((?:kube|kubelet)_\w+)(\{[^}]*\})?", rule["expr"])
    ]
    assert len(found) > 10
    assert [each for each in found if 'namespace="notary"' not in each[2]] == []


def test_every_metric_exists(rules: str, worker: Scraped) -> None:
    """Each metric of an expression is in a worker's output, or is another program's and listed here."""
    known = worker.names()
    for name, rule in alerts(rules).items():
        named = names_in(rule["expr"])
        assert named, name
        assert named <= known | OTHERS | WITH_TLS | OF_KAFKA | OF_MIRROR, name


def test_all_that_is_to_be_watched_is(rules: str) -> None:
    """Each metric that docs/metrics.md lists for alerts has an alert."""
    table = text("docs/metrics.md").split("## Alerts")[1]
    watched = {name for row in table.splitlines() if row.startswith("| ") for name in re.findall(r"`(notary_[a-z_]+)", row.split(" | ")[0])}
    assert len(watched) > 10
    alerted = {re.sub(r"_(bucket|count|sum)$", "", name) for rule in alerts(rules).values() for name in names_in(rule["expr"])}
    # An expression has the name of a series, which for a counter ends in `_total`, like the table.
    assert watched <= alerted


def test_thresholds_follow_the_limits(rules: str) -> None:
    """The alert for overload has a threshold of four fifths of the limits' defaults."""
    limits = QueueLimits()
    expression = str(alerts(rules)["NotaryNearlyOverloaded"]["expr"])
    assert f"> {limits.pending_requests_max * 4 // 5}\n" in expression
    assert f"> {limits.pending_ms_max / 1000 * 0.8:g} *" in expression


@pytest.mark.kafka
def test_a_broker_has_the_metrics(
    tools: Tools, rendered: dict[str, list[Manifest]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real broker and controller under the JMX exporter, with the manifests' rules, have the alerts' metrics, with healthy values."""
    (config,) = (each for each in rendered["three-zones"] if each["metadata"]["name"] == "kafka-metrics")
    (tmp_path / "rules.yaml").write_text(config["data"]["rules.yaml"])
    (port,) = free_ports(1)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-javaagent:{tools.jmx_exporter}=127.0.0.1:{port}:{tmp_path / 'rules.yaml'}")
    with Cluster.create(tmp_path / "cluster", brokers=1), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
    found = {name: [sample.value for sample in families[name].samples] for name in OF_KAFKA if name in families}
    assert found == {name: [float(name.endswith("activecontrollercount"))] for name in OF_KAFKA}
