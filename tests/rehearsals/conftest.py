"""Fixtures: brokers that rehearsals may harm, a Spark session for all of them, and the drill of one rehearsal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from deploy.local import Cluster
from spark_join.engine.session import open_session
from tests.chaos.flags import Timeline
from tests.kafka.workers import Notary
from tests.rehearsals.drill import Drill, Measured, Verifier
from tests.rehearsals.registry import REHEARSALS, Rehearsal
from tests.rehearsals.runbook import RUNBOOK, pages
from tests.spark.conftest import SMALL, run_in


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give rehearsals a time limit, and deselect those that `--rehearse` does not name."""
    here, only = Path(__file__).parent, config.getoption("--rehearse")
    chosen = [item for item in items if not item.path.is_relative_to(here) or not only or _name_of(item) in only]
    for item in chosen:
        if _name_of(item):
            item.add_marker(pytest.mark.kafka)
            if config.getoption("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _name_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("rehearsal")
    return str(mark.args[0]) if mark else ""


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, with the session timeout that they have by default."""
    with Cluster.create(tmp_path_factory.mktemp("rehearsals") / "cluster", brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    """The independent verifier, in one Spark session: its start takes half a minute."""
    session = open_session(tmp_path_factory.mktemp("spark"), master="local[2]", memory="1g", settings=SMALL)
    yield lambda words: run_in(session, *words)
    session.stop()


@pytest.fixture
def cluster(brokers: Cluster) -> Cluster:
    """The brokers of a rehearsal; a module may have its own."""
    return brokers


@pytest.fixture
def log_of_its_own() -> bool:
    """True for a notary with an embedded log; a module may set it."""
    return False


@pytest.fixture
def rehearsal(request: pytest.FixtureRequest) -> Rehearsal:
    """The rehearsal that this test's mark names."""
    return REHEARSALS[_name_of(request.node)]


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Measured], None]:
    """Writes a rehearsal's figures into the file for the table, if there is one."""

    def write(measured: Measured) -> None:
        if out := request.config.getoption("--rehearsals-out"):
            with Path(out).open("ab") as lines:
                lines.write(msgspec.json.encode(measured) + b"\n")

    return write


@pytest.fixture
async def drill(
    rehearsal: Rehearsal,
    keep: Callable[[Measured], None],
    cluster: Cluster,
    verifier: Verifier,
    kafka_prefix: str,
    tmp_path: Path,
    log_of_its_own: bool,
) -> AsyncIterator[Drill]:
    """The drill of this rehearsal; its brokers are healed at the end."""
    timeline = Timeline()
    bootstrap = "" if log_of_its_own else cluster.bootstrap
    notary = await asyncio.to_thread(Notary, tmp_path / "notary", bootstrap, kafka_prefix, call_s_max=4.0)
    made = Drill(rehearsal, pages(RUNBOOK.read_text())[rehearsal.page], notary, cluster, timeline, verifier)
    try:
        async with made:
            yield made
    finally:
        print(*timeline.lines, sep="\n")
    assert made.measured is not None, "a rehearsal ends with `verify`"
    keep(made.measured)
