"""Tests every kind of process, started where `uvloop.py`, `json.py` and all other modules are planted: none is imported."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from deploy.local import CannotRun
from deploy.local.cluster import TAKE_DOWN
from deploy.local.tether import release, tie
from loadtest.openloop.__main__ import main as openloop
from loadtest.peers import http_adapter
from loadtest.peers.servers import Servers
from loadtest.rig.closed_loop import ClosedLoad, LoadResult
from loadtest.rig.generate import Ahead
from loadtest.rig.notaries import make, run_module, worker
from tests.planted import Planted

SCRIPT = [str(Path(sys.executable).with_name("notary"))]
PLAIN = [sys.executable, "-m", "notary"]
OURS = (
    "argparse",
    "asyncio",
    "cryptography",
    "httptools",
    "httpx",
    "json",
    "msgspec",
    "nacl",
    "orjson",
    "rocksdict",
    "ssl",
    "uvloop",
)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """A folder of planted modules that is the working directory of this process, and of every process that it starts."""
    made = Planted(tmp_path / "planted")
    made.stand_here(monkeypatch)
    return made


def ran(*command: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.seconds
def test_what_is_planted_would_be_imported(planted: Planted) -> None:
    """Without -P Python imports the planted modules of the same folder, and that is recorded: the tests below can fail."""
    done = ran(sys.executable, "-c", "import uvloop")
    assert done.returncode == 1
    assert "uvloop" in planted.imported


@pytest.mark.seconds
def test_the_command_line_and_the_demos_own_processes(planted: Planted) -> None:
    """The script's `notary demo` imports none, nor does `python -P -m notary`, with which it runs `init`, `party add` and a worker."""
    done = ran(*SCRIPT, "demo")
    assert (done.returncode, planted.imported) == (0, []), done.stderr


@pytest.mark.seconds
def test_without_p_the_working_directory_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m notary` drops the working directory before it imports anything. The earlier imports of Python itself are not covered."""
    planted = Planted(tmp_path / "planted", OURS)
    planted.stand_here(monkeypatch)
    done = ran(*PLAIN, "demo")
    assert (done.returncode, planted.imported) == (0, []), done.stderr


@pytest.mark.seconds
def test_a_worker_and_its_children(planted: Planted, tmp_path: Path) -> None:
    """The worker, its acceptor process, and the process that scrubs its index import none."""
    config = make(tmp_path / "notary", None, "")
    settings = {"NOTARY_HTTP_ACCEPTOR_PROCESSES": "1", "NOTARY_WORKER_SCRUB_INTERVAL_MS": "100"}
    with worker(config, "w", settings) as service:
        load = ClosedLoad(urls=[service.url], seed=1, requests=1, inputs=1, connections=1, seconds=0.5, submissions_max=2_000, pids={})
        (result,) = run_module("loadtest.rig.closed_loop", [load], list[LoadResult], 60)
        assert result.submissions  # an acceptor process has read them
        while "\nnotary_index_scrubs_total 0.0" in (metrics := httpx.get(f"{service.url}/metrics", trust_env=False, timeout=60).text):
            time.sleep(0.05)
        assert "\nnotary_index_scrubs_total " in metrics
    assert planted.imported == []


@pytest.mark.seconds
def test_verify_log_imports_no_planted_module(planted: Planted, tmp_path: Path) -> None:
    """`notary verify-log` calls `spark_join` and imports none. With Spark's own processes: `tests/spark/test_commands.py`."""
    done = ran(*SCRIPT, "verify-log", "--archive", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert (done.returncode, planted.imported) == (2, []), done.stderr
    assert "spark_join verify" in done.stderr


@pytest.mark.seconds
def test_loads_import_no_planted_module(planted: Planted, tmp_path: Path) -> None:
    """`make load` with Locust, which by itself would import from the working directory, and the benchmark's processes import none."""
    figure = tmp_path / "figure.json"
    flags = ["--rate", "20", "--run-time", "2", "--users", "2", "--figure", str(figure)]
    assert openloop(["--brokers", "0", "--workers", "1", *flags]) == 0
    assert msgspec.json.decode(figure.read_bytes())["figure"]["receipts_verified"]

    async def made_ahead() -> int:
        async with Ahead.of(1, 1, 1, 2) as ahead:
            await ahead.filled()
            return ahead.left

    assert asyncio.run(made_ahead()) == 2
    assert planted.imported == []


@pytest.mark.seconds
def test_watchers_and_adapters_import_no_planted_module(planted: Planted, tmp_path: Path) -> None:
    """The processes that end brokers and peers import none, nor does a peer's HTTP adapter, which ends after its imports without a peer."""
    release(tie(tmp_path / "no-cluster", TAKE_DOWN))
    with Servers.opened("none") as servers, pytest.raises(CannotRun, match="No module named"):
        http_adapter.start(servers, "loadtest.peers.none", "nowhere")
    assert planted.imported == []
