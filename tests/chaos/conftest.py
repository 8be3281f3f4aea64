"""Chaos tests on real brokers, `notary serve` processes, and networks between them, all on this machine.

A scenario has three parts: faults under a load of clients that retry with the same bytes; healing, after which every client receives every
outcome, half of them with receipts; and a check of all remaining data against the log that was read back (`tests/checkers/remains.py`). A
scenario also asserts that the fault happened: a leader that moved, a broker that left the in-sync replicas and came back.

| flag | meaning |
|---|---|
| `--chaos-seconds` | the duration of random faults |
| `--chaos-seed` | the first seed: it draws faults, victims, times and the load |
| `--chaos-rounds` | the number of seeds, one after the other |
| `--chaos-delay-ms` | the network delay between the data centres, each way |

A seed fixes the faults, their victims and their times. It does not fix how the machine reacts, so a seed that failed may have to run more
than once. Scenarios assert no times; the measurements are printed at the end of the run.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.local import Cluster
from tests.chaos.deployment import Deployment
from tests.chaos.flags import CALL_S_MAX, SEEN, SESSION_TIMEOUT_MS, ChaosFlags, Timeline
from tests.kafka.workers import Notary


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a scenario that needs a seed once for each seed."""
    if "seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--chaos-seed")
        seeds = range(first, first + metafunc.config.getoption("--chaos-rounds"))
        metafunc.parametrize("seed", seeds, ids=[f"seed{seed}" for seed in seeds])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the scenarios of this folder; their time limit grows with the duration of the faults."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.timeout(240 + 3 * config.getoption("--chaos-seconds")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the line of each scenario."""
    if seen := config.stash.get(SEEN, []):
        terminalreporter.section("chaos: what was seen")
        for line in seen:
            terminalreporter.write_line(line)


@pytest.fixture
def chaos(request: pytest.FixtureRequest, seed: int) -> ChaosFlags:
    """The flags, and the seed of this scenario."""
    options = request.config.getoption
    return ChaosFlags(options("--chaos-seconds"), seed, options("--chaos-delay-ms"))


@pytest.fixture
def timeline(request: pytest.FixtureRequest, chaos: ChaosFlags) -> Iterator[Timeline]:
    """The timeline of this scenario, printed at its end; pytest shows it if the scenario failed."""
    made = Timeline()
    yield made
    flags = f"--chaos-seed {chaos.seed} --chaos-rounds 1 --chaos-seconds {chaos.seconds:g} --chaos-delay-ms {chaos.delay_ms:g}"
    print(f"--- seed {chaos.seed}; again: python -m pytest '{request.node.nodeid}' {flags}", *made.lines, sep="\n")


@pytest.fixture(scope="module")
def quick_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers on loopback, replaced soon after they fall silent."""
    with Cluster.create(tmp_path_factory.mktemp("chaos") / "cluster", brokers=3, session_timeout_ms=SESSION_TIMEOUT_MS) as cluster:
        yield cluster


@pytest.fixture
def brokers(request: pytest.FixtureRequest) -> Cluster:
    """Three brokers that scenarios may harm. Those of `make test` harm workers only, on the brokers of the session."""
    nightly = request.node.get_closest_marker("nightly") is not None
    cluster: Cluster = request.getfixturevalue("quick_brokers" if nightly else "kafka_cluster")
    return cluster


@pytest.fixture
async def deployment(
    request: pytest.FixtureRequest, brokers: Cluster, chaos: ChaosFlags, timeline: Timeline, tmp_path: Path
) -> AsyncIterator[Deployment]:
    """A notary of its own on those brokers, which are restored at the end of the scenario."""
    prefix = f"chaos-{uuid.uuid4().hex[:12]}"
    notary = await asyncio.to_thread(Notary, tmp_path / "notary", brokers.bootstrap, prefix, call_s_max=CALL_S_MAX)
    made = Deployment(notary, brokers, timeline, chaos.seed)
    async with made:
        yield made
    request.config.stash.setdefault(SEEN, []).append(f"{request.node.name}: {made.seen()}")
