"""The configuration of a broker: the safety settings of production, the thread and memory settings of a small machine.

Measured with three brokers on two shared cores, 64 KiB batches, acks=all, over the first 35 seconds of load: with only the C1
compiler, the brokers took 34 CPU seconds, against 57 with both compilers, at lower latency and a higher peak. They started in
a fifth less time. The serial collector took as much CPU as G1, and 75 MB less memory for each broker.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from deploy.local.errors import CannotRun

BROKERS_MAX = 9
SESSION_TIMEOUT_MS_MIN = 1_000
MESSAGE_BYTES_MAX = 8 * 1024 * 1024


class Addresses(NamedTuple):
    """The address and the two ports on which one broker listens."""

    host: str
    port: int
    controller_port: int


@dataclass(frozen=True)
class ClusterSettings:
    """The settings that a cluster is created with; they never change (cluster.json keeps them).

    `overrides` are server properties that replace ours, for experiments.
    """

    brokers: int = 3
    session_timeout_ms: int = 6_000
    heap_mib: int = 400
    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.brokers <= BROKERS_MAX:
            raise CannotRun(f"a cluster of {self.brokers} brokers cannot be made: choose 1 to {BROKERS_MAX}")
        if self.session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
            raise CannotRun(
                f"a session timeout of {self.session_timeout_ms} ms would fence brokers that are merely busy: "
                f"choose {SESSION_TIMEOUT_MS_MIN} ms or more"
            )

    @property
    def replicas(self) -> int:
        """The default replication factor of topics."""
        return min(3, self.brokers)

    @property
    def in_sync_min(self) -> int:
        """The number of replicas that must have a record before it is acknowledged (acks=all)."""
        return 2 if self.brokers >= 3 else 1

    @property
    def controllers(self) -> int:
        """The number of brokers, from 1 on, that are controllers too: three, so that one may fail. With fewer brokers it is
        one: two controllers would both be needed for a majority."""
        return 3 if self.brokers >= 3 else 1


def jvm_flags(heap_mib: int) -> list[str]:
    """Return the flags of every JVM that we start; the same for all, since a class archive fits only a JVM with the same
    collector."""
    return [
        f"-Xms{min(256, heap_mib)}m",
        f"-Xmx{heap_mib}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",  # a broker that works partly would be a fault that no test has injected
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
    ]


def server_properties(settings: ClusterSettings, broker_id: int, addresses: Mapping[int, Addresses], data: Path) -> str:
    """Return the server.properties of one broker. `addresses` has those of every broker by its id."""
    replicas, in_sync_min = settings.replicas, settings.in_sync_min
    is_controller = broker_id <= settings.controllers
    host, broker_port, controller_port = addresses[broker_id]
    voters = [(i, addresses[i]) for i in range(1, settings.controllers + 1)]
    broker_listener = f"BROKER://{host}:{broker_port}"
    properties: dict[str, object] = {
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": broker_id,
        "controller.quorum.voters": ",".join(f"{i}@{at.host}:{at.controller_port}" for i, at in voters),
        "listeners": f"{broker_listener},CONTROLLER://{host}:{controller_port}" if is_controller else broker_listener,
        "advertised.listeners": broker_listener,
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "broker.rack": f"dc{broker_id}",
        "log.dirs": data,
        # Safety, as in production.
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync_min,
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,
        "log.retention.bytes": -1,
        "controlled.shutdown.enable": "true",
        "broker.session.timeout.ms": settings.session_timeout_ms,
        "broker.heartbeat.interval.ms": settings.session_timeout_ms // 6,
        # A broker whose controller is frozen or cut off tries the next one only after its request has timed out: 30 s by
        # default. In that time no broker that was lost with that controller is replaced.
        "controller.socket.timeout.ms": settings.session_timeout_ms // 2,
        # Sizes: one batch of the notary with Kafka's framing. socket.request.max.bytes is 100 MiB by default.
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "replica.fetch.max.bytes": MESSAGE_BYTES_MAX,
        # Kafka's internal topics, which are created on first use.
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync_min,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        "group.initial.rebalance.delay.ms": 0,
        # For a small machine. The log cleaner would keep 128 MiB of each heap for compacted topics, which the notary does
        # not have.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
        "log.cleaner.enable": "false",
        # In a new cluster the first election begins after one to two times this time. With the default, 1 s, that is half of its start.
        "controller.quorum.election.timeout.ms": 300,
    }
    return "".join(f"{name}={value}\n" for name, value in (properties | dict(settings.overrides)).items())
