"""Three data centres with a broker, a worker and clients in each, a wide-area network between them, and its failures."""

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
from deploy.local import Cluster, Place
from tests.asking.http import Http
from tests.asking.load import Client, Load, until
from tests.asking.party import spend, state
from tests.chaos import brokers_say, faults
from tests.chaos.flags import SEEN, SESSION_TIMEOUT_MS, Timeline, Violence
from tests.chaos.scene import Scene
from tests.chaos.torment import torment
from tests.kafka.workers import Notary, connect_from
from tests.rights import needs_root

pytestmark = needs_root

ANSWER_S, CALL_S_MAX = 1, 2.0
"""A client lets a worker wait so long, and gives a call up after the second: a line that is cut says nothing."""
DOUBT_S = 11.0
"""Longer than a worker doubts its log before it stops (`DriverSettings.contradiction_s`)."""

Line = tuple[int, int]
Counts = Mapping[Line, Mapping[str, int]]


@pytest.fixture(scope="module")
def centres(request: pytest.FixtureRequest) -> Iterator[Centres]:
    with Centres(3, delay_ms=request.config.getoption("--chaos-delay-ms")) as made:
        yield made


@pytest.fixture(scope="module")
def places(centres: Centres) -> dict[int, Place]:
    return {number: Place(centres.host(number), centres.network(number)) for number in centres.numbers}


@pytest.fixture(scope="module")
def far_brokers(places: dict[int, Place], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker in each centre."""
    folder = tmp_path_factory.mktemp("centres") / "cluster"
    with Cluster.create(folder, brokers=3, session_timeout_ms=SESSION_TIMEOUT_MS, places=list(places.values())) as cluster:
        yield cluster


@pytest.fixture
async def far(
    request: pytest.FixtureRequest,
    centres: Centres,
    places: dict[int, Place],
    far_brokers: Cluster,
    violence: Violence,
    timeline: Timeline,
    tmp_path: Path,
) -> AsyncIterator[Scene]:
    """A notary with a worker in each centre, named by it; all lines are whole again when the scenario is over."""
    by_name = {f"w{number}": place for number, place in places.items()}
    prefix = f"chaos-{uuid.uuid4().hex[:12]}"
    notary = await asyncio.to_thread(Notary, tmp_path / "notary", far_brokers.bootstrap, prefix, places=by_name, call_s_max=CALL_S_MAX)
    made = Scene(notary, far_brokers, timeline, violence.seed, centres, violence.delay_ms)
    async with made:
        for number in centres.numbers:
            made.begin(f"w{number}", worker_data_centre=f"dc{number}")
        for worker in made.workers.values():
            await worker.ready()
        yield made
    request.config.stash.setdefault(SEEN, []).append(f"{request.node.name}: {made.seen()}")


def client_in(scene: Scene, place: Place) -> Client:
    """A client in a centre."""
    return Client(Http(partial(connect_from, place.network), CALL_S_MAX), scene.notary.history, ANSWER_S)


@asynccontextmanager
async def load_everywhere(scene: Scene, places: dict[int, Place]) -> AsyncIterator[dict[int, Load]]:
    """Clients in each centre, who ask at all workers."""
    async with AsyncExitStack() as stack:
        loads: dict[int, Load] = {}
        for number, place in places.items():
            client = client_in(scene, place)
            await stack.enter_async_context(client.http)
            load = Load(client, scene.notary.party, scene.urls, seed=100 * scene.seed + number, clients=5)
            loads[number] = await stack.enter_async_context(load)
        yield loads


async def test_a_centre_is_cut_off(far: Scene, places: dict[int, Place]) -> None:
    """The ordering leader's, both ways and then what it sends; the active controller's, what it is sent: the others go on each time."""
    async with load_everywhere(far, places) as loads:
        await cut_off(far, places, loads, await far.ordering_leader())
        await cut_off(far, places, loads, await far.ordering_leader(), incoming=False)
        await cut_off(far, places, loads, await far.active_controller(), outgoing=False)
    await far.check()


async def cut_off(
    far: Scene, places: dict[int, Place], loads: dict[int, Load], away: int, outgoing: bool = True, incoming: bool = True
) -> None:
    """The worker there says that it does not know or is not ready, the others go on; healed, all are as one."""
    centres = far.centres
    assert centres is not None
    for load in loads.values():
        await load.until(10)
    far.note(f"ordering leader {await far.ordering_leader()}, active controller {await far.active_controller()}")
    far.note(f"cut off: {away}, {outgoing=}, {incoming=}")
    cut = centres.cut_off(away, outgoing=outgoing, incoming=incoming)
    await asyncio.sleep(2 * far.delay_ms / 1000)  # what was on its way arrives
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
    """Packets were lost on every line that was cut and on no other; and of those others each delivered some."""
    for line in before:
        lost, delivered = (after[line][what] - before[line][what] for what in ("lost", "packets"))
        assert (lost > 0, delivered > 0) == ((True, False) if line in cut else (False, True)), (line, lost, delivered)


async def ask_the_lonely(scene: Scene, place: Place, url: str) -> set[int]:
    """What a client in the centre that is cut off is told there of something new."""
    client = client_in(scene, place)
    told: set[int] = set()
    async with client.http:
        for number in range(5):
            try:
                answer = await client.ask(
                    url, scene.notary.party.submission(spend(state(f"lonely/{len(scene.notary.history.calls)}/{number}")))
                )
            except ConnectionError:
                told.add(0)
            else:
                told.add(answer.status)
            await asyncio.sleep(0.1)
    return told


async def test_two_centres_do_not_hear_each_other(far: Scene, places: dict[int, Place], centres: Centres, violence: Violence) -> None:
    """The ordering leader's centre and the active controller's are cut off from each other, and a third hears both: no worker stops."""
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
        # Who leads is now a matter of whom one asks.
        await until(partial(disagree, far, leader))
        far.note("they disagree who leads")
        enough_s = time.monotonic() + max(violence.seconds, DOUBT_S)
        while time.monotonic() < enough_s:
            for load in loads.values():
                await load.until(10)
        assert await disagree(far, leader)
        centres.heal()
        far.note("healed")
        await far.well(list(loads.values()))
        await far.in_sync()
    await far.check()


async def disagree(scene: Scene, former: int) -> bool:
    """Whether a broker says that it leads the ordering topic, and all others say that another one does."""
    try:
        told = {broker.id: await brokers_say.ordering_leader(broker, scene.notary.prefix) for broker in scene.brokers.state.brokers}
    except (OSError, KafkaError, TimeoutError):
        return False
    others = {leader for broker, leader in told.items() if broker != former}
    return told[former] == former and len(others) == 1 and not others & {former, -1}


async def test_lines_fail_at_random(far: Scene, places: dict[int, Place], violence: Violence) -> None:
    """Centres and single lines are cut, one way or both, slowed down or lossy, while workers and brokers die: it goes on each time."""
    workers, brokers = tuple(far.workers), tuple(str(number) for number in places)
    victims = (
        dict.fromkeys(faults.ON_CENTRES, brokers)
        | {faults.CUT_LINE: faults.LINES, faults.FAR_AWAY: ("everywhere",), faults.LOSSY: ("everywhere",)}
        | {faults.KILL_WORKER: workers, faults.FREEZE_WORKER: workers, faults.KILL_BROKER: brokers, faults.MOVE_LEADER: brokers}
    )
    async with load_everywhere(far, places) as loads:
        for load in loads.values():
            await load.until(10)
        await torment(far, list(loads.values()), violence.seconds, victims)
    await far.check()
