"""`notary top`: shows workers and brokers in the terminal (docs/command-line.md).

It scrapes `/metrics` and `/readyz?verbose` of each worker at every interval, and shows rates as Prometheus computes them: a counter that
fell was reset to 0. A worker that restarted has reset all of its counters. Workers are scraped concurrently, each with a deadline. So a
worker that does not answer gets a row that says so, and delays the others by one interval at most.
"""

import argparse
import asyncio
import math
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final, TypeAlias

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from notary.cli.submit import add_tls_arguments, seconds, tls_of
from notary.client.transport import UNREADABLE, checked_url, explained, http_client
from notary.exit_codes import EXIT_COULD_NOT, EXIT_DONE
from notary.receipts.errors import printable
from ordering.log import BrokerSeen

ANSWER_S_MIN: Final = 1.0
"""The shortest deadline of a scrape; a longer interval is the deadline itself."""
ANSWER_BYTES_MAX: Final = 4 << 20
SUBMISSIONS: Final = "/v1/submissions"
NOTHING: Final = "-"
NOT_READY, WORKER = "not ready: ", "worker: "  # lines of /readyz?verbose

ANSWERS: Final = "notary_http_answers_total"
BUCKETS: Final = "notary_submission_seconds_bucket"
CREATED: Final = "notary_batch_requests_created"
DECISIONS: Final = "notary_decisions_total"

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""The names and values of a series' labels, sorted."""
Samples: TypeAlias = Mapping[str, Mapping[Labels, float]]
"""Series name -> labels -> value."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in one interval. None marks a value that the worker did not report, or that cannot be computed yet."""

    url: str
    worker: str = ""
    state: str
    """`ready`, `not-ready` or `no-answer`."""
    reasons: tuple[str, ...] = ()
    submissions_per_s: float | None = None
    errors_per_s: float | None = None
    """The part of the submissions that was answered with a status of 400 or more."""
    decisions_per_s: dict[str, float] = {}
    """Decisions a second by outcome: `committed`, or the reason of a rejection."""
    p50_s: float | None = None
    p99_s: float | None = None
    pending_requests: int | None = None
    lag_records: int | None = None
    behind_s: float | None = None
    """The log time of the most advanced worker in this table minus that of this worker, at their last steps."""
    tree_size: int | None = None
    agreed_size: int | None = None
    memory_bytes: int | None = None
    log_time_s: float | None = None
    brokers: dict[str, BrokerSeen] = {}


class Scrape(msgspec.Struct, frozen=True):
    """One scrape of a worker: its time, the worker's readiness with the lines of `/readyz?verbose`, and its samples."""

    at_s: float
    """The time at which the samples arrived."""
    ready: bool
    health: tuple[str, ...]
    samples: Samples

    @property
    def worker(self) -> str:
        """The worker's name; empty while it has no log."""
        return next((line.removeprefix(WORKER) for line in self.health if line.startswith(WORKER)), "")


# ---- scraping ----


async def _scrape(http: httpx.AsyncClient, url: str, limit_s: float) -> Scrape | str:
    """Scrape a worker. Returns its metrics and health, or the reason why there are none."""
    try:
        metrics, health = await asyncio.gather(*[_get(http, url + path, limit_s) for path in ("/metrics", "/readyz?verbose")])
    except TimeoutError:
        return f"no answer within {limit_s:g} s"
    except (httpx.HTTPError, *UNREADABLE) as problem:
        return explained(url, problem) or type(problem).__name__
    if health[0] not in (200, 503) or metrics[0] != 200:
        status = metrics[0] if metrics[0] != 200 else health[0]
        return f"status {status}: this address serves no worker's health; if `http.health_listen` is set, use that address"
    try:
        return Scrape(metrics[2], health[0] == 200, tuple(health[1].splitlines()), samples_of(metrics[1]))
    except (ValueError, LookupError) as problem:
        return f"its /metrics are not Prometheus text ({problem}): is this a worker?"


async def _get(http: httpx.AsyncClient, url: str, limit_s: float) -> tuple[int, str, float]:
    """Returns the status, the text, and the time at which it arrived."""
    # Each call has its limit: the failure of one ends the scrape, but not the other call.
    async with asyncio.timeout(limit_s), http.stream("GET", url) as answer:
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes: is this a worker?")
    return answer.status_code, body.decode(errors="replace"), time.monotonic()


def samples_of(text: str) -> Samples:
    """Parses the finite samples of `/metrics`. Raises `ValueError` for other text."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in filter(lambda sample: math.isfinite(sample.value), family.samples):
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


# ---- computing ----


def row_of(url: str, before: Scrape | str | None, now: Scrape | str) -> Row:
    """Returns the worker's row, from two scrapes; it has rates only if both succeeded."""
    if isinstance(now, str):
        return Row(url=url, state="no-answer", reasons=(now,))
    try:
        return _row_of(url, before, now)
    except (ValueError, LookupError, ArithmeticError) as problem:
        return Row(url=url, state="no-answer", reasons=(f"its /metrics are not those of a worker ({problem!r}): is this a worker?",))


def _row_of(url: str, before: Scrape | str | None, now: Scrape) -> Row:
    reasons = tuple(line.removeprefix(NOT_READY) for line in now.health if line.startswith(NOT_READY))
    row = Row(url=url, worker=now.worker, state="ready" if now.ready else "not-ready", reasons=reasons)
    if "notary_positions" not in now.samples:
        return row  # the worker waits for its log, and has no counters yet

    def gauge(name: str) -> float:
        return now.samples.get(name, {}).get((), 0.0)

    row = msgspec.structs.replace(
        row,
        pending_requests=int(gauge("notary_pending_requests")),
        lag_records=int(gauge("notary_lag_records")),
        tree_size=int(gauge("notary_tree_size")),
        agreed_size=int(gauge("notary_agreed_size")),
        memory_bytes=int(gauge("notary_memory_bytes")),
        log_time_s=gauge("notary_log_time_seconds") or None,
        brokers=brokers_of(now.samples),
    )
    if not isinstance(before, Scrape):
        return row
    if before.worker and now.worker and before.worker != now.worker:
        shared = f"{url} leads to several workers, {before.worker} and {now.worker}: name an address of each"
        return msgspec.structs.replace(row, reasons=(*reasons, shared))
    passed_s = now.at_s - before.at_s
    old: Samples = {} if _restarted(before.samples, now.samples) else before.samples
    answers = [(labels, count) for labels, count in _grown(ANSWERS, old, now.samples) if labels["call"] == SUBMISSIONS]
    buckets = {float(labels["le"]): count for labels, count in _grown(BUCKETS, old, now.samples)}
    return msgspec.structs.replace(
        row,
        submissions_per_s=sum(count for _, count in answers) / passed_s,
        errors_per_s=sum(count for labels, count in answers if int(labels["status"]) >= 400) / passed_s,
        decisions_per_s={labels["outcome"]: count / passed_s for labels, count in _grown(DECISIONS, old, now.samples)},
        p50_s=quantile(buckets, 0.5),
        p99_s=quantile(buckets, 0.99),
    )


def _restarted(old: Samples, new: Samples) -> bool:
    """Returns True if the counters are those of a new process: they began at another time, or one of them fell."""
    # An incarnation does not show it: a process may have several.
    created = [samples.get(CREATED, {}).get(()) for samples in (old, new)]
    if None not in created and created[0] != created[1]:
        return True
    return any(
        value < old.get(name, {}).get(labels, 0.0) for name in (ANSWERS, BUCKETS, DECISIONS) for labels, value in new.get(name, {}).items()
    )


def _grown(name: str, old: Samples, new: Samples) -> list[tuple[dict[str, str], float]]:
    """Returns the labels and the growth of each series of a counter."""
    before = old.get(name, {})
    return [(dict(labels), value - before.get(labels, 0.0)) for labels, value in new.get(name, {}).items()]


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Returns a quantile of a histogram from cumulative counts by upper bound, as Prometheus computes it; None for an empty one."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank, low, below = share * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            # Values above the last finite bound are unknown, so that bound is the best estimate.
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return None


def brokers_of(samples: Samples) -> dict[str, BrokerSeen]:
    """Returns the brokers that a worker knows, by node id; none with an embedded log."""
    partitions = samples.get("notary_broker_partitions", {})

    def count(broker: str, role: str) -> int:
        return int(partitions.get((("broker", broker), ("role", role)), 0))

    brokers = {dict(labels)["broker"]: bool(connected) for labels, connected in samples.get("notary_broker_connected", {}).items()}
    return {
        broker: BrokerSeen(connected, count(broker, "leader"), count(broker, "in-sync"), count(broker, "replica"))
        for broker, connected in brokers.items()
    }


def _compared(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with `behind_s` filled in; a single worker has none."""
    times = [row.log_time_s for row in rows if row.log_time_s is not None]
    if len(times) < 2:
        return list(rows)
    return [msgspec.structs.replace(row, behind_s=max(times) - row.log_time_s) if row.log_time_s is not None else row for row in rows]


# ---- showing ----

_COLUMNS: Final[tuple[tuple[str, Callable[[Row], str]], ...]] = (
    ("WORKER", lambda row: row.worker or row.url),
    ("STATE", lambda row: row.state),
    ("SUBM/S", lambda row: _number(row.submissions_per_s)),
    ("ERRORS/S", lambda row: _number(row.errors_per_s)),
    ("COMMIT/S", lambda row: _number(row.decisions_per_s.get("committed"))),
    ("REJECT/S", lambda row: _number(sum(_rejected(row).values()) if row.decisions_per_s else None)),
    ("P50 MS", lambda row: _number(row.p50_s, 1000)),
    ("P99 MS", lambda row: _number(row.p99_s, 1000)),
    ("LAG REC", lambda row: _number(row.lag_records)),
    ("LAG S", lambda row: _number(row.behind_s)),
    ("PENDING", lambda row: _number(row.pending_requests)),
    ("TREE", lambda row: _number(row.tree_size)),
    ("AGREED", lambda row: _number(row.agreed_size)),
    ("MIB", lambda row: _number(row.memory_bytes, 1 / (1 << 20))),
)


def table(rows: Sequence[Row]) -> list[str]:
    """Returns the lines for people: workers, the reasons of workers that are not ready, rejections by reason, brokers."""
    lines = _aligned([[title for title, _ in _COLUMNS], *([printable(cell(row)) for _, cell in _COLUMNS] for row in rows)])
    for row in rows:
        name = row.worker or row.url
        lines += [printable(f"{name}: {reason}") for reason in row.reasons]
        if rejected := ", ".join(f"{why} {_number(rate)}" for why, rate in _rejected(row).items() if rate):
            lines.append(printable(f"{name}: rejected/s {rejected}"))
    seen: dict[str, list[BrokerSeen]] = {}
    for row in rows:
        for broker, one in row.brokers.items():
            seen.setdefault(broker, []).append(one)
    if seen:
        cells = [
            [
                printable(broker),
                f"{sum(one.connected for one in views)} of {len(views)}",
                *(_span(getattr(one, what) for one in views) for what in ("leads", "in_sync", "replicas")),
            ]
            for broker, views in sorted(seen.items(), key=lambda item: (len(item[0]), item[0]))
        ]
        lines += ["", *_aligned([["BROKER", "CONNECTED", "LEADS", "IN SYNC", "REPLICAS"], *cells])]
    return lines


def _rejected(row: Row) -> dict[str, float]:
    return {outcome: rate for outcome, rate in row.decisions_per_s.items() if outcome != "committed"}


def _number(value: float | None, scale: float = 1) -> str:
    if value is None:
        return NOTHING
    value *= scale
    return f"{value:,.1f}" if 0 < abs(value) < 100 and not isinstance(value, int) else f"{value:,.0f}"


def _span(values: Iterable[int]) -> str:
    """Renders one number if all workers report the same, else the smallest and the largest."""
    least, *others = sorted(values)
    return f"{least}-{others[-1]}" if others and others[-1] != least else f"{least}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(_cells(row[at]) for row in cells) for at in range(len(cells[0]))]
    names = 2 if cells[0][0] == "WORKER" else 1  # names are aligned left, numbers right
    lines = []
    for row in cells:
        spaces = [" " * (width - _cells(cell)) for cell, width in zip(row, widths, strict=True)]
        lines.append(
            "  ".join(cell + space if at < names else space + cell for at, (cell, space) in enumerate(zip(row, spaces, strict=True)))
        )
    return lines


def _cells(text: str) -> int:
    """Returns the cells of a terminal that a text takes: two for a wide character, none for one that joins the character before it."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1 for each in text)


def _cut(line: str, cells: int) -> str:
    """Returns the longest beginning of a line that takes at most `cells` cells."""
    return line[: sum(1 for end in accumulate(map(_cells, line)) if end <= cells)]


def frame(lines: Sequence[str], columns: int, rows: int) -> str:
    """Returns the text that draws these lines over the previous ones. It is cut to the terminal's size, so nothing wraps or scrolls."""
    if len(lines) > rows:
        lines = [*lines[: rows - 1], f"({len(lines) - rows + 1} more lines)"]
    return "\x1b[H" + "\n".join(f"{_cut(line, columns - 1)}\x1b[K" for line in lines) + "\x1b[J"


# ---- the command ----


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `notary top`."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="workers; with `http.health_listen` set, the URL of that address")
    parser.add_argument("--interval", metavar="SECONDS", type=seconds, default=2.0, help="the time between two scrapes (default 2)")
    parser.add_argument("--once", action="store_true", help="show one interval and end; 2 if no worker answered")
    add_tls_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object an interval, for programs")


def run(arguments: argparse.Namespace) -> int:
    """Show the table until Ctrl-C, or once. Returns 0; 2 when with `--once` no worker answered."""
    try:
        return asyncio.run(_watch(arguments))
    except KeyboardInterrupt:
        if _is_terminal():
            print()  # the shell's prompt begins below the table
        return EXIT_DONE  # Ctrl-C is the normal way to end it


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: the parent process closed it


async def _watch(arguments: argparse.Namespace) -> int:
    urls = [checked_url(url.rstrip("/")) for url in dict.fromkeys(arguments.urls)]
    draws = _is_terminal() and os.environ.get("TERM") != "dumb" and not arguments.json and not arguments.once
    tls = tls_of(arguments)
    limit_s = max(arguments.interval, ANSWER_S_MIN)
    async with http_client(tls, limit_s) as http:
        before: list[Scrape | str | None] = [None] * len(urls)
        first = True
        while True:
            asked_s = time.monotonic()
            now = await asyncio.gather(*[_scrape(http, url, limit_s) for url in urls])
            rows = _compared([row_of(url, old, new) for url, old, new in zip(urls, before, now, strict=True)])
            # On a terminal the first scrape already shows the workers that answer.
            if draws or not first:
                _show(arguments, rows, draws=draws, first=first)
            if arguments.once and not first:
                return EXIT_COULD_NOT if all(row.state == "no-answer" for row in rows) else EXIT_DONE
            before, first = list(now), False
            await asyncio.sleep(max(0.0, asked_s + arguments.interval - time.monotonic()))


def _show(arguments: argparse.Namespace, rows: Sequence[Row], *, draws: bool, first: bool) -> None:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    if arguments.json:
        print(msgspec.json.encode({"time": at, "interval_s": arguments.interval, "workers": rows}).decode(), flush=True)
        return
    lines = [f"{at}  every {arguments.interval:g} s", *table(rows)]
    if draws:
        size = shutil.get_terminal_size()
        sys.stdout.write(("\x1b[2J" if first else "") + frame(lines, size.columns, size.lines))
        sys.stdout.flush()
        return
    print("\n".join(lines), end="\n" if arguments.once else "\n\n", flush=True)
