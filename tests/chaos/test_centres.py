"""Tests three data centres with a broker, a worker and clients each, a wide-area network between them, and its failures."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from deploy.centres import Centres
from deploy.local import BrokerNetwork, Cluster
from tests.chaos import faults, raw_requests
from tests.chaos.deployment import Deployment
from tests.chaos.flags import SEEN, SESSION_TIMEOUT_MS, ChaosFlags, Timeline
from tests.chaos.injection import inject
from tests.clients.http import Http
from tests.clients.load import Client, Load, until
from tests.clients.party import spend, state
from tests.kafka.workers import Notary, connect_from
from tests.rights import needs_root

pytestmark = needs_root

ANSWER_S, CALL_S_MAX = 1, 2.0
"""The wait that a client requests of a worker, and the time after which it cancels a call: a cut line never reports an error."""
SUSPECTED_S = 11.0
"""Longer than a worker suspects its log before it stops (`DriverSettings.contradiction_ms`)."""

Line = tuple[int, int]
Counts = Mapping[Line, Mapping[str, int]]


@pytest.fixture(scope="module")
def centres(request: pytest.FixtureRequest) -> Iterator[Centres]:
    with Centres(3, delay_ms=request.config.getoption("--chaos-delay-ms")) as made:
        yield made


@pytest.fixture(scope="module")
def places(centres: Centres) -> dict[int, BrokerNetwork]:
    return {number: BrokerNetwork(centres.host(number), centres.network(number)) for number in centres.numbers}


@pytest.fixture(scope="module")
def far_brokers(places: dict[int, BrokerNetwork], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker in each centre."""
    folder = tmp_path_factory.mktemp("centres") / "cluster"
    with Cluster.create(folder, brokers=3, session_timeout_ms=SESSION_TIMEOUT_MS, networks=list(places.values())) as cluster:
        yield cluster


@pytest.fixture
async def far(
    request: pytest.FixtureRequest,
    centres: Centres,
    places: dict[int, BrokerNetwork],
    far_brokers: Cluster,
    chaos: ChaosFlags,
    timeline: Timeline,
    tmp_path: Path,
) -> AsyncIterator[Deployment]:
    """A notary with a worker in each centre, named after it; all lines are restored at the end of the scenario."""
    by_name = {f"w{number}": place for number, place in places.items()}
    prefix = f"chaos-{uuid.uuid4().hex[:12]}"
    notary = await asyncio.to_thread(Notary, tmp_path / "notary", far_brokers.bootstrap, prefix, places=by_name, call_s_max=CALL_S_MAX)
    made = Deployment(notary, far_brokers, timeline, chaos.seed, centres, chaos.delay_ms)
    async with made:
        for number in centres.numbers:
            made.begin(f"w{number}", worker_data_centre=f"dc{number}")
        for worker in made.workers.values():
            await worker.ready()
        yield made
    request.config.stash.setdefault(SEEN, []).append(f"{request.node.name}: {made.seen()}")


def client_in(deployment: Deployment, place: BrokerNetwork) -> Client:
    """Returns a client in a centre."""
    return Client(Http(partial(connect_from, place.network), CALL_S_MAX), deployment.notary.history, ANSWER_S)


@asynccontextmanager
async def load_everywhere(deployment: Deployment, places: dict[int, BrokerNetwork]) -> AsyncIterator[dict[int, Load]]:
    """Clients in each centre that submit to all workers."""
    async with AsyncExitStack() as stack:
        loads: dict[int, Load] = {}
        for number, place in places.items():
            client = client_in(deployment, place)
            await stack.enter_async_context(client.http)
            load = Load(client, deployment.notary.party, deployment.urls, seed=100 * deployment.seed + number, clients=5)
            loads[number] = await stack.enter_async_context(load)
        yield loads


@pytest.mark.nightly
async def test_a_centre_is_cut_off(far: Deployment, places: dict[int, BrokerNetwork], chaos: ChaosFlags) -> None:
    """The leader's centre is cut off, and the others go on. In a long run also outgoing, and the active controller's, incoming."""
    async with load_everywhere(far, places) as loads:
        await cut_off(far, places, loads, await far.ordering_leader())
        if chaos.long:
            await cut_off(far, places, loads, await far.ordering_leader(), incoming=False)
            await cut_off(far, places, loads, await far.active_controller(), outgoing=False)
    await far.check()


async def cut_off(
    far: Deployment, places: dict[int, BrokerNetwork], loads: dict[int, Load], away: int, outgoing: bool = True, incoming: bool = True
) -> None:
    """Cut a centre off: its worker answers 202 without decisions, or 503, the others go on; after the healing all agree."""
    centres = far.centres
    assert centres is not None
    for load in loads.values():
        await load.until(10)
    far.note(f"ordering leader {await far.ordering_leader()}, active controller {await far.active_controller()}")
    far.note(f"cut off: {away}, {outgoing=}, {incoming=}")
    cut = centres.cut_off(away, outgoing=outgoing, incoming=incoming)
    await asyncio.sleep(2 * far.delay_ms / 1000)  # packets in flight arrive
    before = centres.counts()
    worker = far.workers[f"w{away}"]
    asked = asyncio.create_task(ask_the_lonely(far, places[away], worker.url))
    for number, load in loads.items():
        if number != away:
            await load.until(10)
    far.note("the others go on")
    await far.missed(away)
    assert away not in (await far.ordering_leader(away), await far.active_controller(away))
    await until(partial(far.notary.says, worker, 503, "not ready: "))
    far.note(f"w{away} is not ready")
    assert await asked <= {0, 202, 503}
    only_these_lost(cut, before, centres.counts())
    centres.heal()
    far.note("healed")
    await far.well(list(loads.values()))
    await far.in_sync()


def only_these_lost(cut: Sequence[Line], before: Counts, after: Counts) -> None:
    """Check that packets were lost on every line that was cut and on no other, and that each other line delivered some."""
    for line in before:
        lost, delivered = (after[line][what] - before[line][what] for what in ("lost", "packets"))
        assert (lost > 0, delivered > 0) == ((True, False) if line in cut else (False, True)), (line, lost, delivered)


async def ask_the_lonely(deployment: Deployment, place: BrokerNetwork, url: str) -> set[int]:
    """Submit from a client in the isolated centre to its worker; returns the statuses of the answers."""
    client = client_in(deployment, place)
    statuses: set[int] = set()
    async with client.http:
        for number in range(5):
            try:
                answer = await client.ask(
                    url, deployment.notary.party.submission(spend(state(f"lonely/{len(deployment.notary.history.calls)}/{number}")))
                )
            except ConnectionError:
                statuses.add(0)
            else:
                statuses.add(answer.status)
            await asyncio.sleep(0.1)
    return statuses


@pytest.mark.nightly
async def test_two_centres_do_not_hear_each_other(
    far: Deployment, places: dict[int, BrokerNetwork], centres: Centres, chaos: ChaosFlags
) -> None:
    """The centres of ordering leader and active controller are cut off from each other, a third reaches both: no worker stops."""
    controller = await far.active_controller()
    if await far.ordering_leader() == controller:
        await far.move_leader(controller % len(places) + 1)
    leader = await far.ordering_leader()
    assert leader != controller
    async with load_everywhere(far, places) as loads:
        for load in loads.values():
            await load.until(10)
        far.note(f"ordering leader {leader} and active controller {controller} do not hear each other")
        for line in ((leader, controller), (controller, leader)):
            centres.cut(*line)
        # The brokers now name different leaders.
        await until(partial(disagree, far, leader))
        far.note("they disagree who leads")
        enough_s = time.monotonic() + max(chaos.seconds, SUSPECTED_S)
        while time.monotonic() < enough_s:
            for load in loads.values():
                await load.until(10)
        assert await disagree(far, leader)
        centres.heal()
        far.note("healed")
        await far.well(list(loads.values()))
        await far.in_sync()
    await far.check()


async def disagree(deployment: Deployment, former: int) -> bool:
    """Returns whether one broker reports itself as the ordering leader, and all others report another one."""
    try:
        reported = {
            broker.id: await raw_requests.ordering_leader(broker, deployment.notary.prefix) for broker in deployment.brokers.state.brokers
        }
    except (OSError, KafkaError, TimeoutError):
        return False
    others = {leader for broker, leader in reported.items() if broker != former}
    return reported[former] == former and len(others) == 1 and not others & {former, -1}


@pytest.mark.nightly
async def test_lines_fail_at_random(far: Deployment, places: dict[int, BrokerNetwork], chaos: ChaosFlags) -> None:
    """Centres and single lines are cut (one or both ways), slow or lossy while workers and brokers die: the notary continues each time."""
    workers, brokers = tuple(far.workers), tuple(str(number) for number in places)
    victims = (
        dict.fromkeys(faults.ON_CENTRES, brokers)
        | {faults.CUT_LINE: faults.LINES, faults.FAR_AWAY: ("everywhere",), faults.LOSSY: ("everywhere",)}
        | {faults.KILL_WORKER: workers, faults.FREEZE_WORKER: workers, faults.KILL_BROKER: brokers, faults.MOVE_LEADER: brokers}
    )
    async with load_everywhere(far, places) as loads:
        for load in loads.values():
            await load.until(10)
        await inject(far, list(loads.values()), chaos.seconds, victims)
    await far.check()
