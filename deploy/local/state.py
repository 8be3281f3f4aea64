"""cluster.json: the record of the brokers of a folder, with their ports and processes."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from deploy.local.errors import CannotRun
from deploy.local.process import BrokerProcess
from deploy.local.settings import Addresses, ClusterSettings
from ordering.durable import replace_file

FORMAT = 1


@dataclass(frozen=True)
class BrokerNetwork:
    """The network of a broker: the address on which it listens, and the path of the namespace with that address, for
    `deploy.namespace.inside` (empty: this process's own)."""

    host: str = "127.0.0.1"
    network: str = ""


@dataclass(frozen=True)
class Broker:
    """One broker: its id from 1 on, its ports, the process that runs it or ran it last (None: stopped on purpose), and
    its network (see `BrokerNetwork`)."""

    id: int
    port: int
    controller_port: int
    process: BrokerProcess | None = None
    host: str = BrokerNetwork.host
    network: str = BrokerNetwork.network

    @property
    def condition(self) -> str:
        """One of `running`, `paused` (SIGSTOP), `stopped` (on purpose), `died` (by a crash, or with the machine)."""
        if self.process is None:
            return "stopped"
        if not self.process.alive:
            return "died"
        return "paused" if self.process.frozen else "running"


@dataclass(frozen=True)
class ClusterState:
    """The content of cluster.json."""

    cluster_id: str
    settings: ClusterSettings
    brokers: tuple[Broker, ...]

    @property
    def addresses(self) -> dict[int, Addresses]:
        """The addresses on which each broker listens, by its id."""
        return {broker.id: Addresses(broker.host, broker.port, broker.controller_port) for broker in self.brokers}

    @property
    def bootstrap(self) -> str:
        """`host:port,host:port` of all brokers."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers)

    def broker(self, broker_id: int) -> Broker:
        """Return one broker; raises CannotRun when there is none of that id."""
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        raise CannotRun(f"this cluster has no broker {broker_id}: its brokers are 1 to {len(self.brokers)}")

    def with_process(self, broker_id: int, process: BrokerProcess | None) -> "ClusterState":
        """Return the state in which `process` runs this broker."""
        return replace(self, brokers=tuple(replace(b, process=process) if b.id == broker_id else b for b in self.brokers))


def state_file(directory: Path) -> Path:
    """Return the path of cluster.json in `directory`."""
    return directory / "cluster.json"


def write_state(directory: Path, state: ClusterState) -> None:
    """Replace the state atomically."""
    content = {"format": FORMAT, **asdict(state)}
    replace_file(state_file(directory), orjson.dumps(content, default=dict, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_state(directory: Path) -> ClusterState:
    """Return the state. Raises CannotRun if there is none, or one that this program did not write."""
    path = state_file(directory)
    try:
        content = orjson.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise CannotRun(
                f"{path} has format {content['format']}, this program knows {FORMAT}: end that cluster with the program that made it"
            )
        return ClusterState(content["cluster_id"], ClusterSettings(**content["settings"]), tuple(map(_broker, content["brokers"])))
    except FileNotFoundError:
        raise CannotRun(f"there is no cluster in {directory} (no cluster.json): start one with `up`, or name another folder") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CannotRun(f"{path} cannot be read ({error}): end its brokers by hand and remove the folder") from error


def _broker(row: dict[str, object]) -> Broker:
    make: Callable[..., Broker] = Broker  # the values come from JSON; a wrong one is a TypeError or KeyError, which read_state reports
    process = row.pop("process")
    return make(**row, process=BrokerProcess(**process) if isinstance(process, dict) else None)
