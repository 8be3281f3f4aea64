"""The notary itself, as one of the systems compared: a worker as its users start it, on three brokers."""

import contextlib
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.local import Cluster
from deploy.local.ports import free_ports
from loadtest.peers.front import is_ready
from loadtest.peers.servers import Servers
from loadtest.rig import make


class OurWorker:
    """One worker, started by a module that takes the flags of `notary serve`."""

    def __init__(self, servers: Servers, config: Path, module: Sequence[str], cluster: Cluster, *, intake: int = 0) -> None:
        """Called by `started` only."""
        self._servers = servers
        self._config = config
        self._command = ["env", f"NOTARY_HTTP_INTAKE_PROCESSES={intake}", sys.executable, "-P", "-m", *module]
        self._cluster = cluster
        self.url = ""

    def start(self) -> None:
        """Start the worker on its existing index."""
        (port,) = free_ports(1)
        self.url = url = f"http://127.0.0.1:{port}"
        flags = ["--config", str(self._config), "--name", "peer", "--listen", f"127.0.0.1:{port}"]
        self._servers.start("worker", [*self._command, *flags], lambda: is_ready(url))

    def crash(self) -> None:
        """Kill the worker; the brokers continue."""
        self._servers.kill("worker")

    def pids(self) -> dict[str, list[int]]:
        """Returns the processes that run now."""
        brokers = [broker.process.pid for broker in self._cluster.state.brokers if broker.process]
        return {"server": brokers, "worker": self._servers.pids("worker")}


@contextlib.contextmanager
def started(cluster: Cluster, *, intake: int = 0) -> Iterator[OurWorker]:
    """Yields a worker with `intake` acceptor processes, on a log of its own in these brokers, for the length of a block."""
    with Servers.opened("notary") as servers:
        config = make(servers.folder / "notary", cluster.bootstrap, f"peer-{uuid.uuid4().hex[:8]}")
        worker = OurWorker(servers, config, ["notary", "serve"], cluster, intake=intake)
        worker.start()
        yield worker
