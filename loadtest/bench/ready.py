"""Time until a worker with an empty disk is ready: by a snapshot and by a replay, on the log that a long run has just filled.

`python -P -m loadtest.bench.long --ready` measures it at the end. Two new workers start in turn beside the one that was loaded.
"""

import time
from pathlib import Path

from loadtest.bench.facts import cpu_seconds, disk_bytes
from loadtest.bench.report import Report, progress
from loadtest.rig import Place, notary, worker

READY_S_MAX = 3_600.0
LOADED = "w1"
"""The name of the worker that the rig starts first."""


def measure(report: Report, place: Place, requests: int) -> None:
    """Measure the figure `ready` on a notary that has decided so many requests."""
    config, folder = place.index.parent / "notary.toml", place.index.parent / "snapshots"
    began = time.monotonic()
    notary("snapshot", "create", "--config", str(config), "--name", LOADED, "--url", str(folder))
    took_s = time.monotonic() - began
    restored, replayed = _start(config, "restores", str(folder)), _start(config, "replays", "")
    figures = {
        "requests": requests,
        "snapshot_s": took_s,
        "snapshot_mib": disk_bytes(folder) / (1 << 20),
        "restored": restored,
        "replayed": replayed,
        "share_of_replay": restored["seconds"] / replayed["seconds"],
    }
    report.add("ready", f"ready after {requests:,} requests, {place.log_name}", figures, {"log": place.log_name})


def _start(config: Path, name: str, url: str) -> dict[str, float]:
    """Start a worker without an index, with that place for snapshots; returns the seconds until it was ready, and its CPU seconds."""
    progress(f"ready: {name}")
    began = time.monotonic()
    with worker(config, name, {"NOTARY_SNAPSHOTS_URL": url, "NOTARY_SNAPSHOTS_EVERY_S": "0"}, ready_s_max=READY_S_MAX) as service:
        return {"seconds": time.monotonic() - began, "cpu_s": cpu_seconds([service.pid])}
