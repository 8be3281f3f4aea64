"""`notary serve`: the end of a worker, its behaviour under too much load, and the errors at its start."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.ports import free_ports
from loadtest.rig.machine import family
from notary.cli import serve as serve_command
from notary.index.store import META, STATES
from ordering.embedded import EmbeddedLog
from ordering.errors import NotReady
from ordering.ids import format_state
from ordering.records import View
from tests.notary.cli.written import log_id, register, signing_key, write
from tests.notary.http.checked_client import CheckedClient, Wire, post_head, serving
from tests.notary.party import Bank, spend, transaction_id
from tests.notary.process import EXIT_S_MAX, NotaryDirectory, NotaryProcess, is_running, killed_at_the_end, serve, serve_fails
from tests.notary.rows import opened, put_row

Start = Callable[..., NotaryProcess]


# ---- the end ----


@pytest.mark.parametrize(("number", "acceptors"), [(signal.SIGTERM, 0), (signal.SIGINT, 2)], ids=["SIGTERM-alone", "SIGINT-acceptors"])
def test_admitted_submissions_are_answered_before_the_end(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Start, number: signal.Signals, acceptors: int
) -> None:
    """On a signal each submission is decided and answered, or rejected as surely not applied; the next worker agrees. Exit 0.

    A terminal or a supervisor sends the signal to all processes of a service. Acceptor processes ignore either signal.
    """
    submissions = [[spend() for _ in range(500)] for _ in range(8)]
    bodies = [bank.body(*requests) for requests in submissions]
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    processes = family([process.process.pid])
    assert len(processes) == 1 + acceptors
    with contextlib.ExitStack() as open_ones:
        wires = [open_ones.enter_context(Wire(process.url)) for _ in bodies]
        for wire, body in zip(wires, bodies, strict=True):
            wire.send(post_head(len(body), "Prefer: wait=60") + body)
        # At the first answer, the other submissions are anywhere between the socket and their answers.
        answers = [_answer_of(wires[0])]
        for pid in processes[1:]:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        os.kill(process.process.pid, number)
        answers += [_answer_of(wire) for wire in wires[1:]]
    exit_code = process.process.wait(EXIT_S_MAX)
    process.check_quiet()
    assert exit_code == 0
    assert not [pid for pid in processes if is_running(pid)]
    assert {status for status, _ in answers} <= {200, 503}
    process = notary_process(own_directory.config)
    with CheckedClient(process.url) as client:
        for requests, (status, decisions) in zip(submissions, answers, strict=True):
            for at in (0, len(requests) - 1):
                found = client.get(f"/v1/transactions/{transaction_id(requests[at])}")
                assert found.status_code == (200 if status == 200 else 404)
                if status == 200:
                    assert found.json() | {"receipt": decisions[at]["receipt"]} == decisions[at]
    assert process.stop() == 0


@pytest.mark.parametrize("acceptors", [0, 1], ids=["alone", "acceptors"])
def test_half_a_submission_is_rejected_at_the_end_and_not_waited_for(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Start, acceptors: int
) -> None:
    """A body that is half received when the signal arrives gets 503 not-ready with Retry-After, and does not delay the exit."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    body = bank.body(spend())
    with Wire(process.url) as half, Wire(process.url) as idle, Wire(process.url) as half_a_head:
        half.send(post_head(len(body), "Expect: 100-continue"))
        assert half.answer()[0] == 100  # so the worker waits for the body
        half.send(body[:50])
        half_a_head.send(b"GET /v1/no")
        process.signal(signal.SIGTERM)
        status, headers, answer = half.answer()
        assert (status, json.loads(answer)["type"]) == (503, "/problems/not-ready")
        assert int(headers["retry-after"]) >= 1
        assert idle.is_closed()
        assert half_a_head.is_closed()
    assert process.stop() == 0


# ---- too much ----


def test_an_overloaded_worker_says_so_and_decides_the_others(own_directory: NotaryDirectory, bank: Bank, notary_process: Start) -> None:
    """Over its limit a worker sheds load with 503 overloaded and Retry-After; admitted submissions are decided, the others not logged."""
    process = notary_process(own_directory.config, settings={"LIMITS_PENDING_REQUESTS_MAX": 100})
    submissions = [[spend() for _ in range(100)] for _ in range(20)]
    wires = [Wire(process.url) for _ in submissions]
    os.kill(process.process.pid, signal.SIGSTOP)
    for wire, requests in zip(wires, submissions, strict=True):
        body = bank.body(*requests)
        wire.send(post_head(len(body)) + body)
    os.kill(process.process.pid, signal.SIGCONT)
    rejected = 0
    with CheckedClient(process.url) as client:
        for wire, requests in zip(wires, submissions, strict=True):
            with wire:
                status, headers, body = wire.answer()
            if status == 503:
                assert json.loads(body)["type"] == "/problems/overloaded"
                assert int(headers["retry-after"]) >= 1
                rejected += 1
            found = client.get(f"/v1/transactions/{transaction_id(requests[0])}").status_code
            assert (status, found) in {(200, 200), (503, 404)}
        assert 0 < rejected < len(submissions)
        assert client.metric("notary_positions") == 100 * (len(submissions) - rejected)
    assert process.stop() == 0


# ---- the start ----


def test_the_ready_line_has_the_url(own_directory: NotaryDirectory, notary_process: Start) -> None:
    """One ready line is on stdout once submissions are admitted, for people or as JSON; all other output is on stderr."""
    process = notary_process(own_directory.config, "london-1")
    assert process.ready_line == f"notary worker london-1 ready at {process.url}\n"
    assert process.stop() == 0
    with killed_at_the_end(serve(own_directory.config, "london-2", flags=["--json"])) as listening:
        assert listening.stdout is not None
        printed = json.loads(listening.stdout.readline())
        assert printed["worker"] == "london-2"
        with CheckedClient(printed["url"]) as client:
            assert client.get("/readyz").text == "ok\n"
        listening.terminate()
        rest, messages = listening.communicate(timeout=EXIT_S_MAX)
    assert (listening.returncode, rest) == (0, "")
    assert all(json.loads(line)["level"] for line in messages.splitlines())


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> Path:
    """A folder with a notary with decisions, `notary`, and a copy of its log before them, `early-log`."""
    folder = tmp_path_factory.mktemp("decided")
    directory = NotaryDirectory.create(folder / "notary")
    directory.register(bank)
    shutil.copytree(directory.path / "log", folder / "early-log")
    with serving(directory.config) as client:
        client.decide(bank, spend(), spend())
    return folder


@pytest.fixture
def own_decided(decided: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(decided, tmp_path / "decided"))


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("right", "wrong", "keep_index"),
    [
        ("O=Notary Service,L=London,C=GB", "O=Notary Service,L=London,C=GB ", True),
        ("notary.example/test", "notary.example/tset", False),
    ],
    ids=["one-blank-more-index", "origin-no-index"],
)
def test_a_misnamed_configuration_is_rejected(own_decided: Path, right: str, wrong: str, keep_index: bool) -> None:
    """With another name or origin than the genesis record the worker exits with 2 and shows both, also without its index."""
    config = own_decided / "notary" / "notary.toml"
    config.write_text(config.read_text().replace(right, wrong))
    if not keep_index:
        shutil.rmtree(own_decided / "notary" / "index")
    # A key history of the wrong origin would be rejected later: this comes first, and names the log.
    assert f" = {wrong!r}, and this log's is {right!r}: it belongs to notary 'O=Notary Service,L=London,C=GB'" in serve_fails(config)


@pytest.mark.seconds
def test_a_worker_without_a_key_of_the_log_is_rejected(own_decided: Path, tmp_path: Path) -> None:
    """A worker with a key that was never in force in the log exits with 2, shows both keys, and appends nothing."""
    folder = own_decided / "notary"
    other = NotaryDirectory.create(tmp_path / "other")
    right = signing_key(folder / "notary-key.pem").public_key.hex()
    for name in ("notary-key.pem", "notary-keys.json"):
        (folder / name).write_bytes((other.path / name).read_bytes())
    printed = serve_fails(folder / "notary.toml")
    assert right in printed
    assert signing_key(folder / "notary-key.pem").public_key.hex() in printed


# ---- the clock ----


def _ready_line_of(config: Path, wanted: str, **settings: object) -> str:
    """Returns the first line of `/readyz` with this text, of a worker that does not become ready."""
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    with killed_at_the_end(serve(config, listen=listen, settings=settings)) as process:
        line = ""
        while wanted not in line:
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                line = httpx.get(f"http://{listen}/readyz", trust_env=False, timeout=60).text
            time.sleep(0.05)
        process.terminate()
        ready, _ = process.communicate(timeout=EXIT_S_MAX)
    assert ready == "", "it became ready"
    return line


@pytest.mark.parametrize(("ahead_ms", "word"), [(3_600_000, "behind"), (-40 * 86_400_000, "ahead of")])
def test_a_clock_far_from_the_log_is_not_trusted(
    own_directory: NotaryDirectory, bank: Bank, notary_process: Start, ahead_ms: int, word: str
) -> None:
    """A worker whose clock is far from the log's last time admits nothing, and reports it; `--accept-clock` overrides the check."""
    write(own_directory.path, [register("worker-0", 1, view=View(1, log_id(own_directory.path)))], ahead_ms=ahead_ms)
    line = _ready_line_of(own_directory.config, "this worker's clock is")
    assert f"s {word} the last time in the log" in line
    assert "--accept-clock" in line
    process = notary_process(own_directory.config, flags=["--accept-clock"])
    with CheckedClient(process.url) as client:
        assert client.decide(bank, spend())[0]["outcome"] == "committed"
    assert process.stop() == 0


def test_how_far_a_clock_may_be_is_a_setting(own_directory: NotaryDirectory, notary_process: Start) -> None:
    """`worker.clock_behind_ms_max` of more than an hour allows a clock that is an hour behind."""
    write(own_directory.path, [register("worker-0", 1, view=View(1, log_id(own_directory.path)))], ahead_ms=3_600_000)
    process = notary_process(own_directory.config, settings={"WORKER_CLOCK_BEHIND_MS_MAX": 4_000_000})
    assert process.stop() == 0


def _newer_index(folder: Path) -> None:
    with opened(folder / "notary" / "index" / "worker-1") as index:
        put_row(index, META, b"format", (99).to_bytes(4, "big"))


def _another_log(folder: Path) -> None:
    """Delete the log, and let the same notary make another one."""
    other = NotaryDirectory.create(folder / "other").path
    shutil.rmtree(folder / "notary" / "log")
    for name in ("log", "notary-key.pem", "notary-keys.json"):
        (other / name).rename(folder / "notary" / name)


def _empty_log(folder: Path) -> None:
    shutil.rmtree(folder / "notary" / "log")
    EmbeddedLog.create(folder / "notary" / "log", 4)


def _restored_log(folder: Path) -> None:
    shutil.rmtree(folder / "notary" / "log")
    shutil.copytree(folder / "early-log", folder / "notary" / "log")


def _corrupt_index(folder: Path) -> None:
    (folder / "notary" / "index" / "worker-1" / "CURRENT").write_bytes(b"garbage")


UNFIT: dict[Callable[[Path], None], tuple[str, ...]] = {
    _newer_index: ("format version 99",),
    _another_log: ("belongs to another log or worker: its log",),
    _empty_log: ("the log is empty", "notary init"),
    _restored_log: ("ahead of its log", "runbook"),
    _corrupt_index: ("replay the log",),
}


@pytest.mark.seconds
@pytest.mark.parametrize("damage", UNFIT)
def test_an_index_and_a_log_that_do_not_fit_are_rejected(own_decided: Path, damage: Callable[[Path], None]) -> None:
    """A worker exits with 2 and the reason or remedy if its log is not the one of its index, or one of the two cannot be used."""
    damage(own_decided)
    printed = serve_fails(own_decided / "notary" / "notary.toml")
    assert [words for words in UNFIT[damage] if words not in printed] == [], printed


def test_a_second_worker_on_an_embedded_log_is_rejected(worker: NotaryProcess, notary_directory: NotaryDirectory) -> None:
    """A second process on an embedded log exits with 2 and the reason."""
    assert "one process only" in serve_fails(notary_directory.config, "worker-2")


@pytest.mark.parametrize(("ours", "theirs"), [(2, 0), (2, 2)])
def test_a_second_notary_on_the_same_port_is_rejected(
    own_directory: NotaryDirectory, tmp_path: Path, notary_process: Start, ours: int, theirs: int
) -> None:
    """Acceptor processes share their port with each other only; a second worker cannot listen on it."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": ours})
    other = NotaryDirectory.create(tmp_path / "other")
    listen = process.url.removeprefix("http://")
    printed = serve_fails(other.config, listen=listen, HTTP_ACCEPTOR_PROCESSES=theirs)
    assert f"cannot listen on {listen}: Address already in use" in printed
    assert process.stop() == 0


@pytest.mark.seconds
@pytest.mark.parametrize("setting", ["HTTP_LISTEN", "HTTP_HEALTH_LISTEN"])
def test_a_port_in_use_is_a_clear_error(own_directory: NotaryDirectory, setting: str) -> None:
    """A port in use gives exit 2 and the port, before any log is touched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listen = address if setting == "HTTP_LISTEN" else "127.0.0.1:0"
        printed = serve_fails(own_directory.config, listen=listen, **{setting: address})
        assert f"cannot listen on {address}: Address already in use. Stop the process that listens there" in printed


@pytest.mark.seconds
def test_an_address_that_is_none_is_a_clear_error(own_directory: NotaryDirectory) -> None:
    """An address that cannot be listened on is named in the error: exit 2."""
    listen = "a" * 300 + ":80"
    assert listen in serve_fails(own_directory.config, listen=listen)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("setting", "address"),
    [("HTTP_LISTEN", "nowhere.invalid:8080"), ("HTTP_LISTEN", "192.0.2.1:8080"), ("HTTP_HEALTH_LISTEN", "256.256.256.256:8080")],
)
def test_a_worker_waits_for_its_address(own_directory: NotaryDirectory, setting: str, address: str) -> None:
    """A name without an address, or an address that this machine does not have, is logged once; SIGTERM ends the wait with exit 0."""
    listen = address if setting == "HTTP_LISTEN" else "127.0.0.1:0"
    with killed_at_the_end(serve(own_directory.config, "worker-1", listen, settings={setting: address})) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        time.sleep(1.5)  # another try
        process.terminate()
        ready, rest = process.communicate(timeout=EXIT_S_MAX)
    assert f"cannot listen on {address}: " in first
    assert (process.returncode, ready, rest) == (0, "", "")


async def test_servers_are_made_when_their_addresses_are_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A maker without its address is called again, the others once; each new reason is logged."""
    monkeypatch.setattr(serve_command, "BIND_RETRY_S", 0.001)
    answers: list[str | NotReady] = ["service", NotReady("no name"), NotReady("no name"), NotReady("no address"), "health"]

    def make() -> str:
        answer = answers.pop(0)
        if isinstance(answer, NotReady):
            raise answer
        return answer

    assert await serve_command.bound([make, make], asyncio.Event()) == ["service", "health"]
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["no name", "no address"]


BROKEN: dict[str, tuple[str, str, str]] = {
    "open-key": ("notary-key.pem", "open", "open to others"),
    "bad-parties": ("parties.json", "garbage", "should be a JSON object"),
    "no-log": ("log", "", "there is no log"),
    "bad-config": ("notary.toml", "name = ", "is not TOML"),
}


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "content", "why"), BROKEN.values(), ids=BROKEN)
def test_a_missing_or_broken_file_is_a_clear_error(own_directory: NotaryDirectory, name: str, content: str, why: str) -> None:
    """A missing or malformed file gives exit 2, the file's name and the remedy."""
    file = own_directory.path / name
    if not content:
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    elif content == "open":
        file.chmod(0o644)
    else:
        file.write_text(content)
    printed = serve_fails(own_directory.config)
    assert why in printed
    assert str(file) in printed


def test_a_row_that_turns_out_corrupt_quarantines_the_index(own_decided: Path, notary_process: Start) -> None:
    """Damage found by a query gives 503; the worker stays to report the reason until a signal ends it, and never starts again."""
    folder = own_decided / "notary"
    with opened(folder / "index" / "worker-1") as index:
        # A state, not a decision: the worker audits decisions by itself.
        state, _ = index.contents()["states"][0]
        put_row(index, STATES, state, b"garbage")
    process = notary_process(folder / "notary.toml", flags=["--log-format", "json"])
    answer = httpx.get(f"{process.url}/v1/states/{format_state(state)}", trust_env=False, timeout=60)
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
    while "quarantined" not in (printed := httpx.get(f"{process.url}/readyz", trust_env=False, timeout=60)).text:
        assert printed.status_code == 503
        time.sleep(0.02)
    assert "notary_index_quarantined 1.0" in httpx.get(f"{process.url}/metrics", trust_env=False, timeout=60).text
    assert httpx.get(f"{process.url}/livez", trust_env=False, timeout=60).status_code == 200
    process.signal(signal.SIGTERM)
    assert process.process.wait(EXIT_S_MAX) == 2
    process.check_quiet()
    [fatal] = [json.loads(line) for line in process.stderr().splitlines() if "is quarantined: " in line]
    assert fatal["level"] == "error"
    assert "never answers again" in serve_fails(folder / "notary.toml")


FAILING = """
import sys
import time
from notary.cli import main
from notary.parties import Parties
from ordering.errors import ConfigurationError, Fatal, FatalCode, NotReady
async def fail(self): raise {problem}
Parties.follow = fail
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("problem", "line", "code", "is_bug"),
    [
        ("ConfigurationError('the topic is not fit')", "stopped: the topic is not fit", None, False),
        ("Fatal(FatalCode.CONTENT_LOST, 'it was there')", "stopped: it was there", "content-lost", False),
        ("KeyError('pos')", "stopped by an unexpected error: KeyError('pos')", None, True),
        ("ExceptionGroup('two', [NotReady('the one'), OSError(5, 'the other')])", "stopped: the one", None, True),
    ],
    ids=["known", "fatal", "bug", "both"],
)
def test_every_end_of_a_worker_is_logged_in_a_line(
    own_directory: NotaryDirectory, problem: str, line: str, code: str | None, is_bug: bool
) -> None:
    """A failed part ends the worker with exit 2 and a log line with the reason, a fatal error with its code; only a bug has a traceback."""
    command = [sys.executable, "-c", FAILING.format(problem=problem), "serve", "--config", str(own_directory.config)]
    done = subprocess.run([*command, "--listen", "127.0.0.1:0", "--json"], capture_output=True, text=True, check=False, timeout=EXIT_S_MAX)
    assert done.returncode == 2, done.stderr
    printed = [json.loads(each) for each in done.stderr.splitlines()]  # all of stderr is log lines
    assert [(each["level"], each.get("code")) for each in printed if each["message"] == line] == [("error", code)], printed
    assert any("exception" in each for each in printed) == is_bug


@pytest.mark.seconds
def test_a_reader_of_the_ready_line_that_left_does_no_harm(own_directory: NotaryDirectory) -> None:
    """A worker whose ready line cannot be written serves normally, and exits with 0."""
    process = serve(own_directory.config, flags=["--json"])
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdout.close()
        printed = ""
        while "ready line" not in printed:
            printed = process.stderr.readline()
            assert printed, "it ended"
        process.terminate()
        rest = process.stderr.read()
        assert process.wait(EXIT_S_MAX) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert "Traceback" not in printed + rest
    assert "never retrieved" not in printed + rest


def _answer_of(wire: Wire) -> tuple[int, list[Any]]:
    with wire:
        status, _, body = wire.answer()
        return status, json.loads(body).get("decisions", [])
