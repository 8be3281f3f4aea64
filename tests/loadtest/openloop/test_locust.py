"""Tests Locust itself, in a process of its own: it checks no times, only whether a run has a result. This process is not patched."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import cycle
from pathlib import Path

import msgspec
import psutil
import pytest

from deploy.local.ports import free_ports
from loadtest.openloop.generate import PlannedSubmission
from loadtest.rig.notaries import Service, make, worker
from loadtest.rig.signing import NOTARY
from payload import decode_submission
from tests.loadtest.openloop.honest import Honest
from tests.loadtest.service import answer_of, serving

pytestmark = pytest.mark.seconds


ROOT = Path(__file__).parents[3]
BUSY = ["--double-spends", "0.2", "--references", "0.2", "--windows", "0.2", "--retries", "0.2", "--users", "20"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A worker on the embedded log."""
    with worker(make(tmp_path / "notary", None, ""), "locust") as running:
        yield running


def _locust(tmp_path: Path, url: str, *options: str, headless: bool = True) -> "subprocess.Popen[str]":
    ours = ["--host", url, "--figure", str(tmp_path / "figure.json"), *BUSY, *(["--headless"] if headless else [])]
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", *ours, *options]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _free_port() -> str:
    return str(free_ports(1)[0])


def _decisions(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v1/checkpoint") as reply:  # noqa: S310 - a worker of this test
        return int(reply.read().split(b"\n")[1])


def _wait_for_decisions(locust: "subprocess.Popen[str]", service: Service) -> None:
    while _decisions(service.url) < 20:
        assert locust.poll() is None
        time.sleep(0.05)


def _page(locust: "subprocess.Popen[str]", url: str, form: bytes | None = None) -> bytes:
    """Returns the page of Locust's web server, an empty text while it does not answer yet."""
    assert locust.poll() is None
    try:
        with urllib.request.urlopen(url, form) as reply:  # noqa: S310 - the Locust of this test
            content: bytes = reply.read()
            return content
    except urllib.error.URLError:
        time.sleep(0.05)
        return b""


def test_a_short_run_has_a_figure(tmp_path: Path, service: Service) -> None:
    """Two processes, two steps, every event in the mix and every receipt verified give a result, Locust's own reports, and exit code 0."""
    port = _free_port()
    options = ["--processes", "2", "--master-port", port, "--master-bind-port", port, "--shape", "steps", "--steps", "20,60"]
    options += ["--run-time", "6", "--warm-up", "2", "--deadline", "60"]
    options += ["--requests-per-submission", "2", "--inputs-distribution", "poisson"]
    reports = ["--html", str(tmp_path / "report.html"), "--csv", str(tmp_path / "run")]
    locust = _locust(tmp_path, service.url, "--receipt-sample", "1", *options, *reports)
    output, errors = locust.communicate()
    assert locust.returncode == 0, output + errors
    figure = json.loads((tmp_path / "figure.json").read_text())["figure"]
    assert (figure["submissions"], figure["requests"]) == (120, 240)
    assert [stage["intended_requests_per_s"] for stage in figure["stages"]] == [20, 60]
    missing = [outcome for outcome, count in figure["outcomes"].items() if not count]
    assert not missing, "no request of this mix has such an outcome: add one that has, or leave the outcome out here"
    assert figure["transactions_decided"] == sum(figure["outcomes"].values()) == _decisions(service.url)
    assert figure["receipts_verified"] == figure["transactions_decided"] + figure["repeated_with_the_same_answer"] == 280
    assert "submissions, 60/s" in (tmp_path / "report.html").read_text()
    assert "transactions, 60/s" in (tmp_path / "run_stats.csv").read_text()
    assert "60/s" in output


@pytest.mark.nightly
def test_a_server_that_dies_leaves_no_figure(tmp_path: Path, service: Service) -> None:
    """After the server is killed midway its missing answers are failures, the exit code is 1, and an earlier run's result is removed."""
    (tmp_path / "figure.json").write_text('{"figure": {}}')
    locust = _locust(tmp_path, service.url, "--rate", "20", "--run-time", "6", "--deadline", "2")
    _wait_for_decisions(locust, service)
    os.kill(service.pid, signal.SIGKILL)
    output, errors = locust.communicate()
    assert locust.returncode == 1, output + errors
    assert "NO FIGURE" in errors
    assert "submissions failed" in errors
    assert not (tmp_path / "figure.json").exists()


@pytest.mark.parametrize("ends", ["a process that sends ended with -9", pytest.param("interrupted", marks=pytest.mark.nightly)])
def test_a_run_that_ends_early_has_no_figure(tmp_path: Path, service: Service, ends: str) -> None:
    """If the process that sends is killed, or after Ctrl-C, the run ends at once without a figure, and names the reason."""
    locust = _locust(tmp_path, service.url, "--rate", "20", "--run-time", "600")
    _wait_for_decisions(locust, service)
    if ends == "interrupted":
        locust.send_signal(signal.SIGINT)
    else:
        (sender,) = psutil.Process(locust.pid).children()
        sender.kill()
    output, errors = locust.communicate()
    assert locust.returncode == 1, output + errors
    assert f"NO FIGURE: {ends}" in errors
    assert not (tmp_path / "figure.json").exists()


@pytest.mark.nightly
def test_a_run_from_the_web_form(tmp_path: Path, service: Service) -> None:
    """The web form has the load's options; a run from it ends by itself and has a result; the next one too, with other requests."""
    port = _free_port()
    locust = _locust(tmp_path, service.url, "--seed", "form", "--web-host", "127.0.0.1", "--web-port", port, headless=False)
    web = f"http://127.0.0.1:{port}"
    try:
        while b"requests_per_submission" not in _page(locust, web):
            pass
        for decided in (60, 120):
            assert b"Swarming started" in _page(locust, f"{web}/swarm", b"user_count=5&spawn_rate=5&run_time=2s&rate=30&retries=0")
            while not (tmp_path / "figure.json").exists():
                assert locust.poll() is None
                time.sleep(0.05)
            assert _decisions(service.url) == decided
            (tmp_path / "figure.json").unlink()
        assert b"submissions, 30/s" in _page(locust, f"{web}/stats/report")
    finally:
        locust.terminate()
        output, errors = locust.communicate()
    assert locust.returncode == 0, output + errors


async def test_a_notary_that_commits_everything_has_no_figure(tmp_path: Path) -> None:
    """If every submission is answered but two transactions with a common input were committed, there is no result, and both are named."""
    positions: dict[bytes, int] = {}

    def decide(id_: bytes) -> dict[str, object]:
        decided = {"transaction_id": id_.hex(), "position": positions.setdefault(id_, len(positions))}
        return decided | {"outcome": "committed", "reason": None, "conflicts": [], "log_time": 1_760_000_000_000}

    def reply(body: bytes, ids: list[bytes]) -> Reply:
        return 200, json.dumps({"decisions": [decide(id_) for id_ in ids]}).encode()

    async with _notary(reply) as url:
        locust = _locust(tmp_path, url, "--rate", "50", "--run-time", "3", "--no-receipts", "--deadline", "60")
        output, errors = await asyncio.to_thread(locust.communicate)
    assert locust.returncode == 1, output + errors
    assert "NO FIGURE: the notary broke its promises" in errors
    assert "DOUBLE SPEND" in errors
    assert not (tmp_path / "figure.json").exists()


async def test_what_is_no_answer_is_asked_again(tmp_path: Path) -> None:
    """After a 503, a partial 202, or a broken connection the same bytes are sent to the other URL, and this is counted."""
    honest, turns, bodies = Honest(), cycle((503, 202, 0)), dict[bytes, bytes]()

    def reply(body: bytes, ids: list[bytes]) -> Reply:
        if bodies.setdefault(b"".join(ids), body) is body:
            status = next(turns)
            known = msgspec.to_builtins(honest.answer(PlannedSubmission(body, b"".join(ids), {})))[:1] if status == 202 else []
            return status, json.dumps({"decisions": [*known, *[None] * (len(ids) - len(known))]}).encode()
        assert bodies[b"".join(ids)] == body
        decisions = msgspec.to_builtins(honest.answer(PlannedSubmission(body, b"".join(ids), {})))
        return 200, json.dumps({"decisions": decisions}).encode()

    async with _notary(reply) as url, _notary(reply) as other:
        options = ["--rate", "20", "--run-time", "3", "--requests-per-submission", "2", "--no-receipts", "--deadline", "60"]
        locust = _locust(tmp_path, f"{url},{other}", *options)
        output, errors = await asyncio.to_thread(locust.communicate)
    assert locust.returncode == 0, output + errors
    figure = json.loads((tmp_path / "figure.json").read_text())["figure"]
    assert figure["attempts_retried"].keys() == {
        "status 202",
        "status 503",
        "broken: connection lost with a submission unanswered: closed by the service",
    }
    assert sum(figure["attempts_retried"].values()) == len(bodies)


def test_what_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    """An unreachable notary, and an invalid schedule, give exit code 1 and the reason."""
    for options, why in ((["--rate", "1"], "refused"), (["--rate", "0"], "")):
        locust = _locust(tmp_path, f"http://127.0.0.1:{_free_port()}", *options)
        _, errors = locust.communicate()
        assert locust.returncode == 1
        assert "NO FIGURE" in errors
        assert why in errors


def test_a_file_that_is_no_figure_stays(tmp_path: Path) -> None:
    """A `--figure` that names a file of somebody else ends the run before it begins, and the file is as it was."""
    (tmp_path / "figure.json").write_text("a private key")
    locust = _locust(tmp_path, f"http://127.0.0.1:{_free_port()}", "--rate", "1")
    _, errors = locust.communicate()
    assert locust.returncode == 1
    assert "is not the figure of a load" in errors
    assert (tmp_path / "figure.json").read_text() == "a private key"


async def test_a_host_that_is_not_http_ends_the_run(tmp_path: Path) -> None:
    """A host that answers something else than HTTP is a reason, with its URL, and the run ends."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9\r\n")
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        locust = _locust(tmp_path, url, "--rate", "1")
        _, errors = await asyncio.to_thread(locust.communicate)
    assert locust.returncode == 1
    assert f"NO FIGURE: {url}/v1/checkpoint: BadStatusLine" in errors


def test_the_form_names_no_file_and_no_other_host(tmp_path: Path) -> None:
    """Without `--headless` the form is on loopback. A host or a file from it, shown or not, is refused or ignored."""
    port = _free_port()
    (tmp_path / "other.json").write_text('{"figure": {}}')
    locust = _locust(tmp_path, f"http://127.0.0.1:{_free_port()}", "--web-port", port, headless=False)
    web = f"http://127.0.0.1:{port}"
    try:
        while b"requests_per_submission" not in (page := _page(locust, web)):
            pass
        assert b'"figure"' not in page
        [listening] = [each for each in psutil.Process(locust.pid).net_connections() if each.status == psutil.CONN_LISTEN]
        assert (listening.laddr.ip, listening.laddr.port) == ("127.0.0.1", int(port))
        form = f"user_count=1&spawn_rate=1&host=http://127.0.0.1:1&figure={tmp_path / 'other.json'}&html_file={tmp_path / 'report.html'}"
        assert b"Swarming started" in _page(locust, f"{web}/swarm", form.encode())
        while not (page := _page(locust, f"{web}/stats/requests")) or b"no figure" not in page:
            assert locust.poll() is None
            time.sleep(0.05)
    finally:
        locust.terminate()
        _, errors = locust.communicate()
    assert "NO FIGURE: the form may not load http://127.0.0.1:1" in errors
    assert (tmp_path / "other.json").exists()
    assert not (tmp_path / "report.html").exists()


def test_this_process_is_not_patched() -> None:
    """The parts of the load that the tests import do not patch sockets, threads or clocks."""
    assert "locust" not in sys.modules  # it patches when it is imported
    monkey = sys.modules.get("gevent.monkey")
    assert monkey is None or not monkey.saved


Reply = tuple[int, bytes]
"""(status, body); the status 0 breaks the connection."""


def _notary(reply: Callable[[bytes, list[bytes]], Reply]) -> AbstractAsyncContextManager[str]:
    """A server that starts without decisions; `reply` gets a submission and its ids."""

    def answer(head: bytes, body: bytes) -> bytes | None:
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            about = json.dumps({"name": NOTARY, "verifier_key": ""}).encode()
            return answer_of(200, b"origin\n0\nroot\n" if path == b"/v1/checkpoint" else about)
        status, decisions = reply(body, [request.transaction_id for request in decode_submission(body, NOTARY).requests])
        return answer_of(status, decisions, retry_after_s=1) if status else None

    return serving(answer)
