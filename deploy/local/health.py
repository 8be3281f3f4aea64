"""The health of a cluster, from the metadata of each running broker. One broker's metadata would not show that another
broker has not caught up."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from deploy.local.state import Broker, ClusterState
from deploy.namespace import inside

ANSWER_TIMEOUT_MS = 2_000


@dataclass(frozen=True)
class BrokerStatus:
    """One broker: the condition of its process (`state.Broker.condition`). `registered` is true if all running brokers
    list it."""

    id: int
    port: int
    pid: int | None
    condition: str
    registered: bool


@dataclass(frozen=True)
class ClusterStatus:
    """The cluster as its running brokers see it.

    `serving` is true if at least one broker runs and these conditions hold. Each running broker lists exactly the running
    brokers (one that died is listed until its session ends). Every partition has a running leader, and enough in-sync
    replicas for an acknowledged write. Otherwise `reason` names the first condition that fails.
    """

    serving: bool
    reason: str
    cluster_id: str
    bootstrap: str
    brokers: tuple[BrokerStatus, ...]
    topics: int
    partitions: int
    offline_partitions: int
    unwritable_partitions: int


@dataclass(frozen=True)
class _View:
    """The metadata of one broker: the brokers that it lists, and (leader, in-sync replicas, replicas) of every partition."""

    registered: frozenset[int]
    topics: int
    partitions: tuple[tuple[int, frozenset[int], int], ...]


def status_of(state: ClusterState) -> ClusterStatus:
    """Return the state of the cluster, from every running broker. Takes milliseconds, or the timeout of 2 s if one hangs."""
    conditions = {broker.id: broker.condition for broker in state.brokers}
    running = {broker_id for broker_id, condition in conditions.items() if condition == "running"}
    views = _ask_all([broker for broker in state.brokers if broker.id in running])
    registered = frozenset.intersection(*(view.registered for view in views.values())) if views else frozenset()
    partitions = [partition for view in views.values() for partition in view.partitions]
    offline = sum(leader not in running for leader, _, _ in partitions)
    needed = state.settings.in_sync_min
    unwritable = sum(len(in_sync & running) < min(needed, replicas) for _, in_sync, replicas in partitions)
    reason = ""
    if not running:
        reason = "no broker runs"
    elif silent := running - views.keys():
        reason = f"no answer yet from broker {_list(silent)}"
    elif strangers := {other for view in views.values() for other in view.registered ^ running}:
        reason = f"not all brokers agree on broker {_list(strangers)}"
    elif offline:
        reason = "partitions without a running leader"
    elif unwritable:
        reason = f"partitions with fewer than {needed} in-sync replicas"
    # Each running broker has counted every partition once.
    share = max(1, len(views))
    return ClusterStatus(
        serving=not reason,
        reason=reason,
        cluster_id=state.cluster_id,
        bootstrap=state.bootstrap,
        brokers=tuple(
            BrokerStatus(
                broker.id,
                broker.port,
                broker.process.pid if broker.process and conditions[broker.id] in ("running", "paused") else None,
                conditions[broker.id],
                broker.id in registered,
            )
            for broker in state.brokers
        ),
        topics=max((view.topics for view in views.values()), default=0),
        partitions=len(partitions) // share,
        offline_partitions=-(-offline // share),
        unwritable_partitions=-(-unwritable // share),
    )


def _ask_all(brokers: Iterable[Broker]) -> dict[int, _View]:
    """Get the metadata of each broker inside its own network, which also works while the networks are cut apart.

    Each network gets a thread: only a thread can enter another network, and asyncio.run fails in a caller's event loop.
    """
    by_network: dict[str, list[Broker]] = {}
    for broker in brokers:
        by_network.setdefault(broker.network, []).append(broker)
    views: dict[int, _View] = {}

    def ask(network: str, there: list[Broker]) -> None:
        # In a network that has ended no broker replies.
        with contextlib.suppress(OSError), inside(network):
            views.update(asyncio.run(_ask_some(there)))

    threads = [threading.Thread(target=ask, args=group) for group in by_network.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return views


async def _ask_some(brokers: list[Broker]) -> dict[int, _View]:
    answers = await asyncio.gather(*map(_ask, brokers))
    return {broker.id: view for broker, view in zip(brokers, answers, strict=True) if view is not None}


async def _ask(broker: Broker) -> _View | None:
    """Return the metadata of this broker; None if it does not reply."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
            connection = await create_conn(broker.host, broker.port, request_timeout_ms=ANSWER_TIMEOUT_MS)
            try:
                answer = (await connection.send(MetadataRequest(None))).to_object()
            finally:
                connection.close()
    except (OSError, KafkaError, TimeoutError):
        return None
    return _View(
        frozenset(broker["node_id"] for broker in answer["brokers"]),
        len(answer["topics"]),
        tuple(
            (partition["leader"], frozenset(partition["isr"]), len(partition["replicas"]))
            for topic in answer["topics"]
            for partition in topic["partitions"]
        ),
    )


def _list(ids: set[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
