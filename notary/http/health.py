"""The calls of probes and of Prometheus: `/livez`, `/readyz` and `/metrics`. They are answered in every state of the worker."""

from typing import Final

from notary.gate import SHUTTING_DOWN
from notary.http.call import TEXT, Answer, Headers
from notary.http.lifecycle import Lifecycle
from notary.worker import Worker
from ordering.log import describe

HEALTH: Final = ("/livez", "/readyz", "/metrics")
_STATE: Final[Headers] = [*TEXT, (b"cache-control", b"no-store")]
_METRICS: Final[Headers] = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), (b"cache-control", b"no-store")]


def health(app: Lifecycle, route: str, query: bytes) -> Answer:
    """Returns the answer to one of `HEALTH`."""
    if route == "/metrics":
        return 200, _METRICS, app.metrics.text() if app.metrics is not None else b""
    if route == "/livez":
        return 200, _STATE, b"ok\n"
    worker = app.worker
    if worker is None:
        reasons = [app.no_worker]
    else:
        reasons = [*([SHUTTING_DOWN] if app.ends else []), *worker.readiness.reasons()]
    lines = [f"not ready: {why}" for why in reasons] or ["ok"]
    if worker is not None and b"verbose" in query:
        lines += _details(worker)
    return (503 if reasons else 200), _STATE, ("\n".join(lines) + "\n").encode()


def _details(worker: Worker) -> list[str]:
    hole = worker.driver.joiner.hole
    return [
        f"worker: {worker.config.worker.name}",
        f"incarnation: {worker.sender.incarnation or 'none'}",
        f"positions: {worker.index.position_next}",
        f"log records not read yet: {worker.driver.lag_records}",
        f"not compared with the index yet: {', '.join(map(describe, sorted(worker.driver.uncompared))) or 'nothing'}",
        f"pending requests: {worker.sender.queue.pending_requests}",
        f"hole at the head: {'none' if hole is None else f'({hole.incarnation}, {hole.sequence})'}",
        f"log clock skew ms: {worker.driver.log_clock.skew_ms}",
        f"settings by which records may be lost: {' '.join(worker.topic_watch.problems) or 'none'}",
        f"asking the log failed with: {worker.driver.unreachable or 'nothing'}",
        f"seconds since the last poll: {worker.driver.poll_age_s:.1f}",
        f"seconds that a partition is stalled: {worker.driver.stalls.longest_s:.1f}",
        f"seconds that the head is stalled: {worker.driver.stalls.head_s:.1f}",
    ]
