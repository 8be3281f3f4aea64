"""Makes the Grafana dashboard from a table of its panels. `python -P -m deploy.manifests dashboard` writes the file again."""

import json
from dataclasses import dataclass
from typing import Any, Final

from deploy.manifests.render import KUBERNETES

DASHBOARD: Final = KUBERNETES / "base" / "dashboard.json"
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8  # Grafana's grid is 24 wide


@dataclass(frozen=True)
class Panel:
    """A panel: its row, title and unit (by Grafana's names), and its queries as (expression, legend)."""

    row: str
    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    rare: bool = False
    """True if its queries return nothing in normal operation."""


def _each(metric: str) -> tuple[tuple[str, str], ...]:
    return ((metric, "{{pod}}"),)


def _rate(metric: str) -> tuple[tuple[str, str], ...]:
    return ((f"rate({metric}[1m])", "{{pod}}"),)


def _quantiles(metric: str, *quantiles: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({quantile}, sum by (le) (rate({metric}_bucket[1m])))", f"quantile {quantile}") for quantile in quantiles
    )


PANELS: Final = (
    Panel("Health", "Workers", "none", (("sum(notary_ready)", "ready"), ("count(notary_build_info)", "scraped")), "stat"),
    Panel(
        "Health",
        "Wrong index, roots differ, suspicions (0 is well)",
        "none",
        (
            ("max(notary_index_quarantined)", "quarantined"),
            ("max(notary_root_disagreement)", "roots differ"),
            ("max(notary_suspicions_open)", "suspicions"),
            ("max(notary_topic_problems)", "settings of the topics"),
        ),
        "stat",
    ),
    Panel("Health", "Ready", "bool", _each("notary_ready")),
    # Every worker decides every request, so the notary's rate is that of the fastest worker, not the sum.
    Panel("Traffic", "Decisions by outcome", "reqps", (("max by (outcome) (rate(notary_decisions_total[1m]))", "{{outcome}}"),)),
    Panel(
        "Traffic",
        "Answers by call and status",
        "reqps",
        (("sum by (call, status) (rate(notary_http_answers_total[1m]))", "{{call}} {{status}}"),),
    ),
    Panel("Traffic", "Time to answer a submission", "s", _quantiles("notary_submission_seconds", "0.5", "0.99")),
    Panel("Load", "Requests that wait", "none", _each("notary_pending_requests")),
    Panel("Load", "Bytes that wait", "bytes", _each("notary_pending_bytes")),
    Panel("Load", "Parties that wait", "none", _each("notary_pending_parties")),
    Panel("Load", "Parties at their limit", "none", _each("notary_full_parties")),
    Panel(
        "Load",
        "Submissions rejected",
        "ops",
        (("sum by (reason) (rate(notary_submissions_rejected_total[1m]))", "{{reason}}"),),
    ),
    Panel("Load", "Tickets used", "ops", _rate("notary_tickets_used_total")),
    Panel("Load", "Capacity as last seen", "reqps", _each("notary_capacity_requests_per_second")),
    Panel("Load", "Requests in a batch", "none", _quantiles("notary_batch_requests", "0.5", "0.99")),
    Panel("Load", "Batches sent", "ops", _rate("notary_batches_sent_total")),
    Panel("Load", "Batches sent again", "ops", _rate("notary_batches_sent_again_total")),
    Panel("Order", "Decisions in the index", "none", _each("notary_positions")),
    Panel("Order", "Records not read yet", "none", _each("notary_lag_records")),
    Panel("Order", "Hole at the head", "bool", _each("notary_hole")),
    Panel(
        "Order",
        "Fills",
        "ops",
        (
            ("rate(notary_fills_proposed_total[1m])", "proposed by {{pod}}"),
            ("max(rate(notary_batches_filled_total[1m]))", "batches filled"),
        ),
    ),
    Panel("Order", "No progress of a partition", "s", _each("notary_partition_stalled_seconds")),
    Panel("Order", "No progress of the head", "s", _each("notary_head_stalled_seconds")),
    Panel("Log", "Last poll without an error", "s", _each("notary_poll_age_seconds")),
    Panel("Log", "Clock skew", "s", _each("notary_log_clock_skew_seconds")),
    Panel("Log", "Age of the last record", "s", (("time() - notary_log_time_seconds", "{{pod}}"),)),
    Panel("Log", "Records in effect", "none", _each("notary_history_records")),
    Panel("Log", "Records skipped or dropped", "ops", (("max by (kind) (rate(notary_log_anomalies_total[1m]))", "{{kind}}"),), rare=True),
    Panel(
        "Log",
        "Incarnations",
        "none",
        (("max by (event) (notary_incarnation_events_total)", "{{event}}"), ("notary_incarnation", "now of {{pod}}")),
    ),
    Panel(
        "Log",
        "Interruptions and replaced readers",
        "none",
        (("notary_interruptions_total", "interruptions of {{pod}}"), ("notary_reader_restarts_total", "readers of {{pod}}")),
    ),
    Panel("Log", "Longest turn of the event loop", "s", _each("notary_loop_turn_seconds")),
    Panel("Memory", "Resident memory", "bytes", _each("notary_memory_bytes")),
    Panel("Memory", "Bloom filters of all rows", "bytes", _each("notary_index_filter_bytes")),
    Panel("Memory", "The cache where they should fit", "bytes", _each("notary_index_cache_bytes")),
    Panel("Memory", "Payloads without an entry yet", "bytes", _each("notary_buffered_bytes")),
    Panel("Memory", "The same, in records", "none", _each("notary_buffered_records")),
    Panel("Memory", "Payloads of nobody registered", "bytes", _each("notary_unregistered_bytes")),
    Panel("Memory", "The same, in records", "none", _each("notary_unregistered_records")),
    Panel("Checks", "Decisions that no other worker agreed with yet", "none", (("notary_tree_size - notary_agreed_size", "{{pod}}"),)),
    Panel("Checks", "Tiles audited", "ops", _rate("notary_audited_tiles_total")),
    Panel("Checks", "Readings of the complete index", "none", _each("notary_index_scrubs_total")),
    Panel("Checks", "Checkpoints signed", "ops", _rate("notary_checkpoints_signed_total")),
    Panel(
        "Checks",
        "Age of the newest snapshot",
        "s",
        (
            ("min(notary_snapshot_age_seconds and notary_snapshot_interval_seconds > 0) or vector(0)", "age"),
            ("max(notary_snapshot_interval_seconds)", "interval; 0: none are made"),
        ),
    ),
    Panel(
        "Checks",
        "Snapshots of this process",
        "none",
        (("notary_snapshots_made_total", "made by {{pod}}"), ("notary_snapshots_failed_total", "failed at {{pod}}")),
    ),
    Panel(
        "Checks",
        "Log that no segment has yet",
        "s",
        (
            ("min(notary_archive_behind_seconds and notary_archive_interval_seconds > 0) or vector(0)", "behind"),
            ("max(notary_archive_interval_seconds)", "interval; 0: none are streamed"),
        ),
    ),
    Panel(
        "Checks",
        "Segments of this process",
        "none",
        (("notary_archive_segments_total", "sealed by {{pod}}"), ("notary_archive_failed_total", "failed at {{pod}}")),
    ),
)


def dashboard() -> str:
    """Return the dashboard's JSON."""
    panels: list[dict[str, Any]] = []
    top, column = 0, 0
    for number, panel in enumerate(PANELS):
        if number == 0 or panel.row != PANELS[number - 1].row:
            top += _HEIGHT if column else 0
            panels.append({"type": "row", "title": panel.row, "collapsed": False, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
            top, column = top + 1, 0
        elif column == _COLUMNS:
            top, column = top + _HEIGHT, 0
        panels.append(_panel(panel, {"x": column * _WIDTH, "y": top, "w": _WIDTH, "h": _HEIGHT}))
        column += 1
    for number, made in enumerate(panels):
        made["id"] = number + 1
    return (
        json.dumps(
            {
                "title": "Notary",
                "uid": "notary",
                "tags": ["notary"],
                "schemaVersion": 39,
                "timezone": "utc",
                "refresh": "10s",
                "time": {"from": "now-1h", "to": "now"},
                "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
                "panels": panels,
            },
            indent=1,
        )
        + "\n"
    )


def _panel(panel: Panel, grid: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "gridPos": grid,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": source}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
