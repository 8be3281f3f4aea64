"""Fixtures for all tests: one small Kafka cluster, started when the first test needs it, and a fresh topic prefix per test."""

import gc
import os
import re
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from deploy.local import Cluster
from tests.examples import some
from tests.pauses import Repeating

# No deadline: machines here are shared, so the duration of an example means nothing.
settings.register_profile("shared", deadline=None, max_examples=some(100))
settings.load_profile("shared")

# A shell makes its background processes ignore Ctrl-C, and their children inherit that. Some tests interrupt their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


STARTED = {"notary_process", "template", "worker"}
"""The fixtures whose tests have processes of their own: workers, and what starts them."""


def _refuse_processes(event: str, _: object) -> None:
    if event in {"subprocess.Popen", "os.posix_spawn", "os.fork"} and "PYTEST_CURRENT_TEST" in os.environ:
        raise AssertionError("this test starts a process, and `make check` runs only tests that start none: mark it with `seconds`")


if os.environ.get("NO_PROCESSES"):
    sys.addaudithook(_refuse_processes)


_LEFT_OUT = re.compile(r"^pytestmark = .*\bmark\.(?:kafka|chaos|spark|exhaustive|peers|image|rehearsal|nightly|go|seconds)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files of which `make check` runs no test: their imports take seconds in each of its processes."""
    left_out = "NO_PROCESSES" in os.environ and collection_path.suffix == ".py" and _LEFT_OUT.search(collection_path.read_text())
    return True if left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests from the garbage collector: each of its rounds would visit 300,000 objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Repeat a test that failed while the machine paused."""
    config.pluginmanager.register(Repeating())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags of `tests/chaos` and of the sites tests; their modules explain them."""
    chaos = parser.getgroup("chaos", "faults on real brokers, processes and networks")
    chaos.addoption(
        "--chaos-seconds", type=float, default=8.0, help="how long random faults go on; from 60 on the rest is longer too (default: 8)"
    )
    chaos.addoption("--chaos-seed", type=int, default=1, help="what draws the faults (default: 1)")
    chaos.addoption("--chaos-rounds", type=int, default=1, help="how many seeds, from that one on (default: 1)")
    chaos.addoption("--chaos-delay-ms", type=float, default=20.0, help="between data centres, each way (default: 20)")
    rehearsals = parser.getgroup("rehearsals", "the disasters of docs/runbook.md (tests/rehearsals)")
    rehearsals.addoption("--rehearsals-out", metavar="FILE", help="a JSON line for each rehearsal is appended here")
    rehearsals.addoption("--rehearse", action="append", metavar="NAME", help="only the rehearsal of this name; may be repeated")
    sites = parser.getgroup("sites", "three sites under a steady load (tests/deploy/test_sites_under_load.py)")
    sites.addoption("--sites-rate", type=float, default=0.0, help="requests a second; 0: a short run with one fault")
    sites.addoption("--sites-faults", default="dies,is cut off,sends nothing,hears nothing", help="which of these; none: -")
    sites.addoption("--sites-plain", action="store_true", help="brokers without TLS, for its price")
    sites.addoption("--sites-out", default="sites.jsonl", help="a JSON line for each measured run is appended here")


@pytest.fixture(scope="session", autouse=True)
def known_notaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file in which the tests' clients, and those that they start, keep keys trusted on first use, instead of the user's own file."""
    with pytest.MonkeyPatch.context() as patch:
        file = tmp_path_factory.mktemp("known") / "known-notaries"
        patch.setenv("NOTARY_KNOWN_NOTARIES", str(file))
        yield file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with a fixture that starts processes: `make check` leaves them out. Refuse missing fixtures, by day those of the night."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if missing := set(item.fixturenames) - item._fixtureinfo.name2fixturedefs.keys() - {"request"}:
            raise pytest.UsageError(f"{item.nodeid} has no fixture {', '.join(sorted(missing))}")
        if not STARTED.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.seconds)


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three real brokers for all of the session. One that is silent for five seconds counts as dead. A test that harms one restores it."""
    with Cluster.create(tmp_path_factory.mktemp("kafka") / "cluster", brokers=3, session_timeout_ms=5_000) as cluster:
        yield cluster


@pytest.fixture
def kafka_prefix() -> str:
    """A new topic prefix."""
    return f"test-{uuid.uuid4().hex[:12]}"
