"""`notary top` shows the load of real workers; on a terminal it redraws in place."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from deploy.local.ports import free_ports
from notary.cli import main
from notary.cli.top import ANSWERS, CREATED, SUBMISSIONS, Row, Scrape, _scrape, frame, quantile, row_of, samples_of, table
from notary.metrics import Metrics
from ordering.log import BrokerSeen
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, fresh_state, spend
from tests.notary.process import NotaryDirectory, NotaryProcess, killed_at_the_end, serve


@contextmanager
def load(url: str, bank: Bank) -> Iterator[None]:
    """Submits in a loop; each submission has one request that commits and one that conflicts with the first."""
    spent, over = fresh_state(), threading.Event()

    def work() -> None:
        with CheckedClient(url) as client:
            client.decide(bank, spend(spent))
            while not over.is_set():
                assert client.post(bank.body(spend(), spend(spent))).status_code == 200
                assert client.post(b"nonsense").status_code == 400

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def nobody() -> str:
    """Returns a URL where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def once(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["top", "--once", "--json", "--interval", "1", *arguments]) == code
    [line] = capsys.readouterr().out.splitlines()
    printed: dict[str, Any] = json.loads(line)
    return printed


def test_rates_are_those_of_the_load(worker: NotaryProcess, bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the answers are errors and half of the decisions are commits; the other numbers match."""
    with load(worker.url, bank):
        [row] = once(capsys, worker.url)["workers"]
    assert (row["worker"], row["state"], row["reasons"], row["brokers"]) == ("worker-1", "ready", [], {})
    assert row["submissions_per_s"] == pytest.approx(2 * row["errors_per_s"], abs=3)
    rates = row["decisions_per_s"]
    assert rates["committed"] > 0
    assert rates["input-conflict"] == pytest.approx(rates["committed"], abs=3)
    assert rates["committed"] == pytest.approx(row["errors_per_s"], abs=3)
    assert 0 < row["p50_s"] <= row["p99_s"]
    assert row["memory_bytes"] > 10 << 20
    with CheckedClient(worker.url) as client:
        assert 0 < row["tree_size"] <= client.metric("notary_tree_size")


def test_people_read_a_table(worker: NotaryProcess, bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a head, a row for each worker and the reasons of rejections, without control characters."""
    with load(worker.url, bank):
        assert main(["top", "--once", "--interval", "0.5", worker.url]) == 0
    _, head, row, rejected = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["WORKER", "STATE", "SUBM/S"]
    assert row.split()[:2] == ["worker-1", "ready"]
    assert len(head) == len(row)
    assert rejected.startswith("worker-1: rejected/s input-conflict ")


def test_a_worker_that_does_not_answer_is_a_row(worker: NotaryProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """A URL that is down, silent or not a worker's is a row of its own, and the worker is shown. If no URL answers the exit code is 2."""
    away = nobody()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        rows = once(capsys, away, hanging, worker.url + "/v1", worker.url)["workers"]
        assert [row["state"] for row in rows] == ["no-answer", "no-answer", "no-answer", "ready"]
        reasons = [reason for row in rows for reason in row["reasons"]]
        assert "rejected" in reasons[0] or "failed" in reasons[0]
        assert reasons[1:] == [
            "no answer within 1 s",
            "status 404: this address serves no worker's health; if `http.health_listen` is set, use that address",
        ]
        once(capsys, away, code=2)


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://localhost", "http://", "http://a/?b"])
def test_the_error_shows_a_correct_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows the bad URL, and a correct one."""
    assert main(["top", url]) == 2
    printed = capsys.readouterr().err
    assert url in printed
    assert "http://127.0.0.1:8080" in printed


@pytest.mark.seconds
def test_why_a_worker_is_not_ready(own_directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker that waits for its brokers answers, has no counters yet, and gives the reason."""
    (port,) = free_ports(1)
    settings = {"LOG_KIND": "kafka", "LOG_BOOTSTRAP": nobody().removeprefix("http://")}
    with killed_at_the_end(serve(own_directory.config, listen=f"127.0.0.1:{port}", settings=settings)):
        row: dict[str, Any] = {"state": "no-answer"}
        while row["state"] == "no-answer" or "log" not in row["reasons"][0]:
            assert main(["top", "--once", "--json", "--interval", "0.1", f"http://127.0.0.1:{port}"]) in (0, 2)
            [row] = json.loads(capsys.readouterr().out)["workers"]
    assert (row["state"], row["reasons"]) == ("not-ready", ["the log cannot be reached yet"])
    assert (row["worker"], row["tree_size"], row["submissions_per_s"]) == ("", None, None)


def scraped(at_s: float, decisions: float, worker: str = "w1") -> Scrape:
    return scrape(at_s, f'notary_decisions_total{{outcome="committed"}} {decisions}\n', "ok", f"worker: {worker}")


POSITIONS = "# TYPE notary_positions gauge\nnotary_positions 7.0\n"


def scrape(at_s: float, text: str, *health: str) -> Scrape:
    """Returns the scrape of a worker that has decisions and this text in its metrics."""
    return Scrape(at_s, True, health, samples_of(POSITIONS + text))


def test_a_counter_that_fell_began_again() -> None:
    """After a restart the rate is computed from the new process's counter alone."""
    assert row_of("u", scraped(1, 100), scraped(3, 104)).decisions_per_s == {"committed": 2.0}
    assert row_of("u", scraped(1, 100), scraped(3, 4)).decisions_per_s == {"committed": 2.0}


@pytest.mark.parametrize(("before", "now"), [((1_000, 5), (100, 100)), ((10, 5), (100, 100))], ids=["one fell", "none fell"])
def test_a_restart_resets_all_counters(before: tuple[int, int], now: tuple[int, int]) -> None:
    """After a restart all counters begin at 0, also those that are higher by now: one of them fell, or they have another beginning."""

    def text(began: int, answers: tuple[int, int]) -> str:
        series = [f'{ANSWERS}{{call="{SUBMISSIONS}",status="{at}"}} {count}\n' for at, count in zip((200, 503), answers, strict=True)]
        return f"# TYPE {CREATED} gauge\n{CREATED} {began}\n" + "".join(series)

    row = row_of("u", scrape(0, text(1, before), "worker: w"), scrape(1, text(2, now), "worker: w"))
    assert (row.submissions_per_s, row.errors_per_s) == (200, 100)


def test_a_new_incarnation_resets_no_counter() -> None:
    """A worker that registers again in the same process keeps its counters."""
    before, now = (f'notary_incarnation {number}\nnotary_decisions_total{{outcome="committed"}} {number}\n' for number in (3, 4))
    assert row_of("u", scrape(0, before, "worker: w"), scrape(1, now, "worker: w")).decisions_per_s == {"committed": 1.0}


def test_an_address_that_workers_share() -> None:
    """Counters of two workers behind one URL are not subtracted from each other."""
    row = row_of("http://all", scraped(1, 100), scraped(3, 104, "w2"))
    assert row.decisions_per_s == {}
    assert row.reasons == ("http://all leads to several workers, w1 and w2: name an address of each",)


def test_a_worker_that_opened_its_log_is_one_worker() -> None:
    """A worker has no name until its log is open; once it has one, it is still the same worker."""
    waiting = Scrape(0, False, ("not ready: the log is not open yet",), {})
    row = row_of("u", waiting, scraped(2, 8))
    assert (row.state, row.reasons, row.decisions_per_s) == ("ready", (), {"committed": 4.0})


@pytest.mark.parametrize(
    "text",
    [
        f'{ANSWERS}{{call="{SUBMISSIONS}",status="2xx"}} 5\n',
        f"{ANSWERS} 5\n",
        'notary_submission_seconds_bucket{le="x"} 1\n',
        'notary_submission_seconds_bucket{le="0.1"} 0\nnotary_submission_seconds_bucket{le="1"} -1\n',
        "notary_decisions_total 5\n",
        'notary_broker_connected{rack="a"} 1\n',
    ],
)
def test_foreign_labels_are_a_row(text: str) -> None:
    """Labels or values that no worker has give a row with the reason; the other rows of the table stay."""
    row = row_of("u", scrape(0, "", "worker: w"), scrape(2, text, "worker: w"))
    assert row.state == "no-answer"
    assert "is this a worker?" in row.reasons[0]


def test_labels_are_read_by_name() -> None:
    """A label that a later version adds changes nothing."""
    text = 'notary_broker_connected{broker="1",a="b"} 1\nnotary_decisions_total{outcome="committed",a="b"} 4\n'
    row = row_of("u", scrape(0, "", "worker: w"), scrape(2, text, "worker: w"))
    assert (list(row.brokers), row.decisions_per_s) == (["1"], {"committed": 2.0})


async def test_rates_are_of_the_time_between_metrics() -> None:
    """A slow `/readyz` does not change a rate: the time of a scrape is that at which its metrics arrived."""
    answered_s: list[float] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=POSITIONS)
        for _ in range(1_000):  # turns of the event loop: the metrics need a few
            await asyncio.sleep(0)
        answered_s.append(time.monotonic())
        return httpx.Response(200, text="ok\nworker: w\n")

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as http:
        found = await _scrape(http, "http://a:1", 60)
    assert isinstance(found, Scrape)
    assert found.at_s < answered_s[0]


@pytest.mark.parametrize("where", ["//xn--", "http:[::1", ":ftp://]"])
async def test_a_redirect_to_nowhere_is_a_row(where: str) -> None:
    """The other rows of the table stay."""
    redirect = httpx.Response(307, headers={"Location": where})
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda request: redirect)) as http:
        assert isinstance(await _scrape(http, "http://a:1", 60), str)


async def test_a_call_that_hangs_ends_after_the_other_failed() -> None:
    """Else each interval would leave a connection open."""
    ended = asyncio.Event()

    async def serve(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            raise httpx.ReadError("reset")
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        raise AssertionError

    async with httpx.AsyncClient(transport=httpx.MockTransport(serve), timeout=None) as http:  # noqa: S113 - `_scrape` has the limit
        assert await _scrape(http, "http://a:1", 0.2) == "reset"
        async with asyncio.timeout(5):
            await ended.wait()


@pytest.mark.parametrize(("share", "expected"), [(0.5, 0.1), (0.25, 0.05), (0.9, 0.9), (1.0, 1.0)])
def test_quantiles_are_interpolated_between_bounds(share: float, expected: float) -> None:
    """Quantiles are interpolated between the bounds; above the last bound that bound is shown; an empty histogram has none."""
    assert quantile({0.1: 10, 1.0: 19, float("inf"): 20}, share) == pytest.approx(expected)
    assert quantile({0.1: 0, float("inf"): 0}, share) is None


def test_the_histogram_can_show_the_objective() -> None:
    """Answers in 1.4 s are shown as less than 1.5 s, the promise at five times the capacity (docs/performance.md)."""
    metrics = Metrics()
    metrics.answered(SUBMISSIONS, 200, 1.4)
    p99_s = row_of("u", scrape(0, "", "worker: w"), scrape(1, metrics.text().decode(), "worker: w")).p99_s
    assert p99_s is not None
    assert 1 < p99_s < 1.5


def test_what_a_worker_says_moves_no_cursor() -> None:
    """Control characters in names and reasons are replaced."""
    brokers = {"1\x1b[2J": BrokerSeen(True, 1, 2, 3)}
    assert "\x1b" not in "".join(table([Row(url="u", worker="w\x1b[H", state="not-ready", reasons=("\x1b[2J",), brokers=brokers)]))


@pytest.mark.parametrize("name", ["好" * 60, "e\u0301" * 120, "w" * 120], ids=["wide", "combining", "narrow"])
def test_a_wide_name_does_not_wrap(name: str) -> None:
    """A line is cut by the cells that it takes on a terminal, not by its characters, and uses all columns but the last."""
    drawn = frame(table([row_of("u", None, scrape(0, "", f"worker: {name}"))]), 80, 24)
    cells = [
        sum(2 if unicodedata.east_asian_width(each) == "W" else 0 if unicodedata.combining(each) else 1 for each in line)
        for line in re.sub(r"\x1b\[[A-Z]", "", drawn).splitlines()
    ]
    assert max(cells) in {78, 79}


def test_brokers_of_several_workers() -> None:
    """Each broker has one line: the number of connections, and a range where workers report different numbers."""
    rows = [
        Row(url="a", state="ready", brokers={"10": BrokerSeen(True, 1, 17, 17), "9": BrokerSeen(True, 16, 17, 17)}),
        Row(url="b", state="ready", brokers={"10": BrokerSeen(False, 0, 9, 17)}),
    ]
    assert [line.split() for line in table(rows)[-2:]] == [
        ["9", "1", "of", "1", "16", "17", "17"],
        ["10", "1", "of", "2", "0-1", "9-17", "17"],
    ]


def run_top(*arguments: str, stdout: int, columns: int = 0, lines: int = 0) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    if columns:
        fcntl.ioctl(stdout, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    command: Sequence[str] = [sys.executable, "-m", "notary", "top", "--interval", "0.2", *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, env=environment)


def test_lines_where_there_is_no_terminal(worker: NotaryProcess) -> None:
    """Without a terminal, tables follow each other, without control characters; Ctrl-C ends the command."""
    ours, theirs = os.pipe()
    process = run_top(worker.url, stdout=theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as printed:
        heads = [line for line in (printed.readline() for _ in range(8)) if line.startswith(b"WORKER")]
        process.send_signal(signal.SIGINT)
        rest = printed.read()
    assert len(heads) == 2
    assert b"\x1b" not in rest
    assert process.communicate()[1] == b""
    assert process.returncode == 0


class Screen:
    """The part of a terminal that `notary top` uses: it holds what a person would see."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.shown = [""] * lines
        self.at = 0
        self.homes = 0

    def take(self, printed: str) -> None:
        """Draw the text; fails on text that would wrap or scroll."""
        for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r\n|[^\x1b\r\n]+", printed):
            if piece == "\x1b[H":
                self.at, self.homes, column = 0, self.homes + 1, 0
            elif piece == "\x1b[2J":
                self.shown = [""] * self.lines
            elif piece == "\x1b[J":
                self.shown[self.at + 1 :] = [""] * (self.lines - self.at - 1)
            elif piece == "\r\n":
                self.at, column = self.at + 1, 0
                assert self.at < self.lines, "it scrolls"
            elif piece != "\x1b[K":
                assert len(piece) < self.columns, "it wraps"
                assert column == 0
                self.shown[self.at] = piece


@pytest.mark.parametrize(("columns", "lines"), [(120, 30), (30, 4), (1, 1)], ids=["wide", "narrow", "tiny"])
def test_a_terminal_is_drawn_over(worker: NotaryProcess, bank: Bank, columns: int, lines: int) -> None:
    """Every frame begins at the top, and none wraps or scrolls on a screen of any size; Ctrl-C ends the command with 0."""
    ours, theirs = pty.openpty()
    process = run_top(worker.url, nobody(), stdout=theirs, columns=columns, lines=lines)
    os.close(theirs)
    printed = b""
    with load(worker.url, bank):
        while printed.count(b"\x1b[H") < 4:
            printed += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # Linux raises this when the other side is closed
            while piece := os.read(ours, 4096):
                printed += piece
    os.close(ours)
    assert process.communicate()[1] == b""
    assert process.returncode == 0
    screen = Screen(columns, lines)
    screen.take(printed[: printed.rindex(b"\x1b[J") + 3].decode())  # only Ctrl-C's line follows
    assert screen.homes >= 4
    if columns == 120:
        assert screen.shown[1].startswith("WORKER")
        assert screen.shown[2].startswith("worker-1")
        assert "no-answer" in screen.shown[3]
    elif columns == 30:
        assert screen.shown[1].startswith("WORKER")
        assert re.fullmatch(r"\([23] more lines\)", screen.shown[3])  # the number depends on rejections in this interval
