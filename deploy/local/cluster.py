"""`Cluster`: a folder of brokers, with methods to create, start, stop, kill, pause and watch them."""

import base64
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local import tether
from deploy.local.errors import CannotRun
from deploy.local.health import ClusterStatus, status_of
from deploy.local.ports import free_ports
from deploy.local.process import BrokerProcess, spawn
from deploy.local.runtime import Runtime, prepare
from deploy.local.settings import ClusterSettings, server_properties
from deploy.local.state import Broker, BrokerNetwork, ClusterState, read_state, state_file, write_state
from deploy.namespace import inside
from ordering.durable import locked_file, replace_file

LOG_TAIL_LINES = 15
TAKE_DOWN = """
from deploy.local import Cluster
if Cluster.exists(sys.argv[1]):
    Cluster.open(sys.argv[1]).down()
"""
"""The watcher of a `with` block runs these statements (`tether`)."""


class Cluster:
    """The brokers of one folder. Made by `create` or `open`; all methods are synchronous and may be called from several
    processes.

    As a context manager, the cluster is up inside the block. After the block it is removed with its data, even if this
    process is killed. On failure every method raises CannotRun with a remedy.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tether: subprocess.Popen[bytes] | None = None

    @staticmethod
    def exists(directory: Path | str) -> bool:
        """Returns True if there is a cluster in this folder, running or not."""
        return state_file(Path(directory)).is_file()

    @classmethod
    def create(
        cls,
        directory: Path | str,
        brokers: int = ClusterSettings.brokers,
        *,
        session_timeout_ms: int = ClusterSettings.session_timeout_ms,
        overrides: Mapping[str, str] | None = None,
        networks: Sequence[BrokerNetwork] = (),
    ) -> Self:
        """Make a new cluster in a folder that is empty or missing; choose its ports. `up` starts it.

        `networks` has an address and a network namespace for each broker; by default all are on this machine's loopback. The
        namespaces must exist whenever a broker is started.
        """
        networks = networks or [BrokerNetwork()] * brokers
        if len(networks) != brokers:
            raise CannotRun(f"{brokers} brokers need {brokers} networks, and {len(networks)} are given: name one for each")
        settings = ClusterSettings(brokers, session_timeout_ms, overrides=dict(overrides or {}))
        folder = Path(directory).absolute()
        # `down` removes the folder, so it must never be one with something else in it.
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            found = "has a cluster already: open it, or take it `down` first" if cls.exists(folder) else "is not empty: name another folder"
            raise CannotRun(f"a new cluster cannot be made in {folder}: it {found}")
        folder.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * brokers)
        rows = tuple(
            Broker(i, ports[2 * i - 2], ports[2 * i - 1], host=network.host, network=network.network)
            for i, network in enumerate(networks, 1)
        )
        # Kafka's own form of a cluster id: a UUID in 22 characters. The storage tool rejects an id that starts
        # with a dash.
        cluster_id = "N" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        write_state(folder, ClusterState(cluster_id, settings, rows))
        return cls(folder)

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """Return the cluster that is in this folder."""
        folder = Path(directory).absolute()
        read_state(folder)
        return cls(folder)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, `host:port,host:port`, for a client's bootstrap_servers."""
        return self.state.bootstrap

    @property
    def state(self) -> ClusterState:
        """The current content of cluster.json."""
        return read_state(self.directory)

    def up(self) -> None:
        """Start every broker that is not running, and wait until the cluster serves. Does nothing if it is up."""
        runtime = prepare()
        with self._locked():
            state = self.state
            self._format_new(runtime, state)
            for broker in state.brokers:
                self._spawn(runtime, broker.id)
        self.wait_until_serving(90.0)

    def down(self, *, keep_data: bool = False) -> None:
        """End all brokers, and remove the folder.

        With `keep_data` the brokers get SIGTERM, and SIGKILL after 15 s; the folder stays, and `up` starts them
        again with their data. Without it they are killed at once: the data that an orderly shutdown would save is removed
        anyway.
        """
        if not self.exists(self.directory):
            return
        with self._locked():
            state = self.state
            processes = [broker.process for broker in state.brokers if broker.process]
            if keep_data:
                for process in processes:
                    process.send(signal.SIGCONT)  # a paused process does not handle SIGTERM
                    process.send(signal.SIGTERM)
                deadline = time.monotonic() + 15.0
                for process in processes:
                    process.wait(max(0.0, deadline - time.monotonic()))
            for process in processes:
                _kill(process)
            if keep_data:
                for broker in state.brokers:
                    state = state.with_process(broker.id, None)
                write_state(self.directory, state)
            else:
                # The state is removed first: a crash from here on leaves a folder without a cluster, and no running broker.
                state_file(self.directory).unlink()
                shutil.rmtree(self.directory)

    def start(self, broker_id: int) -> None:
        """Start a broker again, on the ports and data that it had. Returns at once: call `wait_until_serving` to wait."""
        runtime = prepare()
        with self._locked():
            self._format_new(runtime, self.state)
            self._spawn(runtime, broker_id)

    def kill(self, broker_id: int) -> None:
        """End a broker as a crash would (SIGKILL). Returns when its process has ended."""
        self._end(broker_id, _kill)

    def stop(self, broker_id: int, grace_seconds: float = 30.0) -> None:
        """Shut a broker down in order (SIGTERM): it first hands over the leadership of its partitions. It is killed after
        the grace period."""

        def ask(process: BrokerProcess) -> None:
            process.send(signal.SIGCONT)
            process.send(signal.SIGTERM)
            if not process.wait(grace_seconds):
                _kill(process)

        self._end(broker_id, ask)

    def pause(self, broker_id: int) -> None:
        """Freeze a broker (SIGSTOP): it keeps its connections and replies to nothing, as behind a network that drops
        packets."""
        with self._locked():
            if not self._running(broker_id).freeze():
                raise CannotRun(f"broker {broker_id} was not frozen by SIGSTOP within ten seconds, or has ended")

    def resume(self, broker_id: int) -> None:
        """Resume a frozen broker (SIGCONT)."""
        with self._locked():
            self._running(broker_id).send(signal.SIGCONT)

    def status(self) -> ClusterStatus:
        """Return the state of all broker processes, and of the cluster as the running brokers report it."""
        return status_of(self.state)

    def wait_until_serving(self, timeout_seconds: float = 60.0) -> ClusterStatus:
        """Wait until the cluster serves with the brokers that run now (`ClusterStatus.serving`); returns the status that shows it.

        After a crash this is the case once the session of the dead broker has ended and others lead its partitions. Raises
        CannotRun if a broker dies meanwhile, with the end of its log, and at the deadline, with the reason.
        """
        running = {broker.id for broker in self.state.brokers if broker.condition == "running"}
        deadline = time.monotonic() + timeout_seconds
        while not (status := self.status()).serving:
            for broker in status.brokers:
                if broker.id in running and broker.condition == "died":
                    raise CannotRun(f"broker {broker.id} of {self.directory} died while it started:\n{self._log_tail(broker.id)}")
            if time.monotonic() > deadline:
                logs = self.directory / "broker-*" / "server.log"
                raise CannotRun(f"the cluster in {self.directory} does not serve after {timeout_seconds:g} s: {status.reason}. See {logs}")
            time.sleep(0.05)
        return status

    def __enter__(self) -> Self:
        self._tether = tether.tie(self.directory, TAKE_DOWN)
        try:
            self.up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()
        if self._tether is not None:
            tether.release(self._tether)
            self._tether = None

    def _locked(self) -> AbstractContextManager[int]:
        return locked_file(self.directory / "lock")

    def _folder(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"

    def _format_new(self, runtime: Runtime, state: ClusterState) -> None:
        """Write the properties of all brokers, and make the data folders of those that have none. The next run repairs
        what a crash here leaves."""
        new: dict[int, Path] = {}
        for broker in state.brokers:
            folder = self._folder(broker.id)
            folder.mkdir(exist_ok=True)
            properties = server_properties(state.settings, broker.id, state.addresses, folder / "data")
            # Atomically: a broker that starts may read the file while another one is started.
            replace_file(folder / "server.properties", properties.encode())
            if not _is_formatted(folder / "data", broker.id):
                shutil.rmtree(folder / "data", ignore_errors=True)
                new[broker.id] = folder / "data"
        if new:
            runtime.format(new, server_properties(state.settings, 1, state.addresses, self.directory), state.cluster_id)

    def _spawn(self, runtime: Runtime, broker_id: int) -> None:
        state = self.state
        broker = state.broker(broker_id)
        if broker.process is not None and broker.process.alive:
            return
        folder = self._folder(broker_id)
        try:
            with inside(broker.network):
                process = spawn(runtime.broker(folder / "server.properties", state.settings.heap_mib), folder / "server.log")
        except OSError as error:
            raise CannotRun(f"broker {broker_id} cannot be started in {broker.network or 'this network'}: {error}") from error
        # A crash before this line leaves a running broker that cluster.json does not list. That process keeps the ports, so the
        # next start fails and logs that. Only the user can find the process and end it.
        write_state(self.directory, state.with_process(broker_id, process))

    def _end(self, broker_id: int, how: Callable[[BrokerProcess], None]) -> None:
        with self._locked():
            state = self.state
            process = state.broker(broker_id).process
            if process is not None:
                how(process)
            write_state(self.directory, state.with_process(broker_id, None))

    def _running(self, broker_id: int) -> BrokerProcess:
        """Return the broker's process. Raises CannotRun if it does not run."""
        process = self.state.broker(broker_id).process
        if process is None or not process.alive:
            raise CannotRun(f"broker {broker_id} does not run, so no signal can reach it: `start` it first")
        return process

    def _log_tail(self, broker_id: int) -> str:
        log = self._folder(broker_id) / "server.log"
        lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
        return "\n".join(f"  {line}" for line in lines) + f"\n(all of it: {log})"


def _kill(process: BrokerProcess) -> None:
    process.send(signal.SIGKILL)
    process.wait(10.0)


def _is_formatted(data: Path, broker_id: int) -> bool:
    """Returns True if the data folder is complete. The storage tool writes node id 1 into all folders, and the last step
    of `Runtime.format` corrects it."""
    meta = data / "meta.properties"
    return meta.is_file() and f"node.id={broker_id}" in meta.read_text().splitlines()
