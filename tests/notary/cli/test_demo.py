"""`notary demo`, run as a new user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from notary import cli
from notary.cli import demo
from notary.client import Answer, Contradiction

pytestmark = pytest.mark.seconds


ELSEWHERE = {
    "NOTARY_LOG__KAFKA": "broker.example:9092",
    "NOTARY_LOG_KIND": "kafka",
    "NOTARY_WORKER_NAME": "not/a/name",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
}
"""Variables that a user may have set for other notaries and networks."""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo sets `no_proxy` for all of its process, so the tests restore it."""
    monkeypatch.setenv("no_proxy", "")


def test_the_demo_passes_in_any_environment() -> None:
    """The demo passes in any environment: a double spend is rejected, a retry and a killed worker change nothing, exit code 0."""
    command = [sys.executable, "-m", "notary", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **ELSEWHERE})
    assert (done.returncode, done.stderr) == (0, "")
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    paid, refused, again, still = [line for line in printed if "position" in line]
    assert (paid["outcome"], paid["position"]) == ("committed", 0)
    assert (refused["outcome"], refused["reason"], refused["position"]) == ("rejected", "input-conflict", 1)
    assert again == paid
    assert still == refused


@pytest.mark.parametrize("command", ["init", "party", "serve"])
def test_a_demo_that_cannot_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """If one of its commands fails, the demo exits with 2, names the command, and reports nothing about the notary."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$4" in {command}) echo "no luck" >&2; exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert cli.main(["demo"]) == 2
    printed = capfd.readouterr().err
    assert f"`notary {command}" in printed
    assert "no luck" in printed
    assert "not as promised" not in printed


def test_a_demo_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a temporary folder the demo exits with 2 and the reason."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert cli.main(["demo"]) == 2
    assert "No such file" in capsys.readouterr().err


def _contradiction() -> Contradiction:
    first, second = (Answer("ab" * 32, position, "committed", None, (), 0) for position in (0, 1))
    return Contradiction("two decisions", (first, "http://a"), (second, "http://b"))


@pytest.mark.parametrize("problem", [demo._NotAsPromised("a claim"), _contradiction()], ids=["a-claim", "a-contradiction"])
def test_a_claim_that_does_not_hold(problem: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken promise ends the demo with exit 1, and is named."""

    def play(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(demo, "_play", play)
    assert cli.main(["demo"]) == 1
    assert f"not as promised: {problem}" in capsys.readouterr().err


def test_a_terminated_demo_leaves_no_worker_behind(tmp_path: Path) -> None:
    """SIGTERM, as `timeout` or a CI job sends it, leaves neither a running worker nor the folder with its keys."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen([sys.executable, "-P", "-m", "notary", "demo"], stdout=subprocess.PIPE, text=True, env=environment)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "A worker serves at" in line:
            break
    workers = [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
    assert workers
    demo.terminate()
    demo.wait(20)
    demo.stdout.close()
    try:
        give_up_s = time.monotonic() + 5
        while (left := [pid for pid in workers if Path(f"/proc/{pid}").exists()]) and time.monotonic() < give_up_s:
            time.sleep(0.1)
        assert not left
        assert not list(tmp_path.iterdir())
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
