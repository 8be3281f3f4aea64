"""`notary serve` processes of one notary, started and ended by a test, and their indexes when they are stopped."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from deploy.local import Place
from deploy.local.ports import free_ports
from deploy.namespace import inside, run_inside
from notary import cli, parties
from notary.config import load
from notary.index import Index
from notary.worker import open_log
from tests.asking.http import Http
from tests.asking.load import Client, until
from tests.asking.party import Party
from tests.checkers import indexes
from tests.checkers.history import Decided, History
from tests.checkers.violation import describe

ROOT = Path(__file__).parents[2]
NAME = "O=Notary Service,L=London,C=GB"


class Worker:
    """One process; a process that takes its place has the same `url`."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, url: str, index: str, out: Path, errors: Path) -> None:
        self.process = process
        self.name = name
        self.url = url
        self.index = index
        self._out = out
        self._errors = errors

    @property
    def messages(self) -> str:
        """What it wrote to stderr."""
        return self._errors.read_text()

    async def ready(self) -> "Worker":
        """Wait until it says that it is ready; fails when it ends instead."""
        while "ready at" not in self._out.read_text():
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.messages}"
            await asyncio.sleep(0.02)
        return self

    async def ended(self) -> int:
        """Wait until it ends; its exit code, minus the signal's number for one that was killed."""
        await until(lambda: self.process.poll() is not None)
        return self.process.wait()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert await self.ended() == 0, self.messages


class Notary:
    """A notary's configuration, with one party registered, and the processes that run on it."""

    def __init__(
        self, directory: Path, bootstrap: str = "", prefix: str = "", partitions: int = 4, places: Mapping[str, Place] | None = None
    ) -> None:
        """`places` are those of processes that live in a network of their own; `init` runs in that of the first."""
        self.directory = directory
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.party = Party(NAME)
        self.history = History()
        self._places = dict(places or {})
        self.http = Http(self._connect)
        self.client = Client(self.http, self.history)
        self.workers: list[Worker] = []
        self._ports: dict[str, int] = {}
        flags = ["--name", NAME, "--origin", "notary.example/tests", "--partitions", str(partitions)]
        if bootstrap:
            flags += ["--kafka", bootstrap, "--topic-prefix", prefix]
        home = next(iter(self._places.values()), Place())
        assert run_inside(home.network, lambda: cli.main(["init", str(directory), *flags])) == 0
        assert parties.add(directory / "parties.json", self.party.name, self.party.public_pem, "the test's party")

    def start(
        self, name: str, *, entry: Sequence[str] = ("-m", "notary"), process: str = "", index: str = "index", **settings: int | str
    ) -> Worker:
        """Start a worker, or another `process` of the same name; `ready` waits for it."""
        process = process or name
        if process not in self._ports:
            (self._ports[process],) = free_ports(1)
        place = self._places.get(process, Place())
        listen = f"{place.host}:{self._ports[process]}"
        out, errors = (self.directory / f"{process}-{len(self.workers)}.{what}" for what in ("out", "err"))
        flags = ["serve", "--config", str(self.directory / "notary.toml"), "--name", name, "--listen", listen]
        own = {key: value for key, value in os.environ.items() if not key.startswith("NOTARY_")}
        with out.open("wb") as stdout, errors.open("wb") as stderr, inside(place.network):
            started = subprocess.Popen(
                [sys.executable, *entry, *flags],
                cwd=ROOT,
                env=own | {"NOTARY_INDEX_DIRECTORY": index} | {f"NOTARY_{key.upper()}": str(value) for key, value in settings.items()},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self.http.forget(f"http://{listen}")
        self.workers.append(Worker(started, name, f"http://{listen}", index, out, errors))
        return self.workers[-1]

    async def start_all(self, *names: str) -> list[Worker]:
        """Start workers together, and wait until they are ready."""
        started = [self.start(name) for name in names]
        return [await worker.ready() for worker in started]

    async def end(self) -> None:
        """Kill what still runs, close every connection; pytest shows what the workers said if the test failed."""
        for worker in self.workers:
            code = worker.process.poll()
            worker.kill()
            print(f"--- {worker.name}, {'killed at the end' if code is None else f'ended with {code}'}:", worker.messages[-4000:], sep="\n")
        await self.http.__aexit__(None, None, None)

    async def until_ready(self, *workers: Worker) -> None:
        """Wait until /readyz of all says so."""
        for worker in workers:
            await until(partial(self.says, worker, 200))

    async def says(self, worker: Worker, status: int, text: str = "") -> bool:
        """Whether /readyz says this now; not, while it does not listen yet."""
        assert worker.process.poll() is None, worker.messages
        try:
            answer = await self.http.get(worker.url, "/readyz?verbose")
        except ConnectionError:
            return False
        return answer.status == status and text in answer.body.decode()

    async def metric(self, worker: Worker, name: str) -> float:
        """A metric's value, summed over its labels that `name` does not give."""
        answer = await self.http.get(worker.url, "/metrics")
        lines = [line for line in answer.body.decode().splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def until_metric(self, worker: Worker, name: str, least: float = 1) -> None:
        """Wait until a metric is at least so much."""

        async def reached() -> bool:
            return await self.metric(worker, name) >= least

        await until(reached, 0.01)

    async def same_height(self, *workers: Worker) -> int:
        """Wait until all have applied as many positions; how many that is. Nothing must be in flight."""
        while True:
            heights = {await self.metric(worker, "notary_positions ") for worker in workers}
            lags = {await self.metric(worker, "notary_lag_records ") for worker in workers}
            if len(heights) == 1 and lags == {0}:
                return int(heights.pop())
            await asyncio.sleep(0.1)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask a worker from where it is itself."""
        networks = {place.host: place.network for place in self._places.values()}
        return await connect_from(networks.get(host, ""), host, port)

    async def rows(self, worker: Worker) -> Mapping[str, list[tuple[bytes, bytes]]]:
        """Every row of a stopped worker's index."""
        network = self._places.get(worker.name, Place()).network
        return await asyncio.to_thread(run_inside, network, lambda: asyncio.run(self._rows(worker)))

    async def _rows(self, worker: Worker) -> Mapping[str, list[tuple[bytes, bytes]]]:
        config = load(self.directory / "notary.toml", {"worker.name": worker.name, "index.directory": worker.index}, {})
        log = await open_log(config)
        try:
            index = Index.open(
                config.index_directory, notary_name=config.name, log_identity=log.identity, payload_partitions=log.payload_partitions
            )
            try:
                return index.contents()
            finally:
                index.close()
        finally:
            await log.close()

    async def check(self, *workers: Worker) -> list[Decided]:
        """Stop the workers when they have read everything; their indexes are equal, row by row, and explain every answer."""
        height = await self.same_height(*workers)
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            assert await worker.ended() == 0, worker.messages
        # By number: a worker that was started again may stand here under one name with another.
        rows = {f"{number} ({worker.name})": await self.rows(worker) for number, worker in enumerate(workers)}
        found = indexes.differences(rows)
        assert not found, describe(found)
        first = next(iter(rows.values()))
        decisions: list[Decided] = [*indexes.decisions_of(first)]
        assert len(decisions) == height
        assert [id_.hex() for _, id_ in sorted(first["positions"])] == [decision["transaction_id"] for decision in decisions]
        self.history.check(decisions, indexes.consumed_of(first))
        return decisions


async def connect_from(network: str, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that begins in this network namespace."""
    with inside(network):
        connection = socket.socket()
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
        return await asyncio.open_connection(sock=connection)
    except BaseException:
        connection.close()
        raise
