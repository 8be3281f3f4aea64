"""The `notary serve` processes of one notary, started and ended by a test, and their indexes after they stopped."""

import asyncio
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from deploy.local import BrokerNetwork
from deploy.local.ports import free_ports
from deploy.namespace import inside, run_inside
from notary import cli, keys, parties
from notary.config import load
from tests.checkers import indexes
from tests.checkers.history import Decided, History
from tests.checkers.indexes import Rows
from tests.checkers.remains import Remains
from tests.checkers.violation import describe
from tests.clients.http import CALL_S_MAX, Http
from tests.clients.load import Client, until
from tests.clients.party import Party
from tests.kafka.reading_back import read_log_records, read_rows
from tests.notary.process import LONG_DEADLINES, serve

NAME = "O=Notary Service,L=London,C=GB"


class Worker:
    """One process; its replacement has the same `url`."""

    def __init__(self, process: "subprocess.Popen[str]", name: str, url: str, index: str, out: Path, errors: Path) -> None:
        self.process = process
        self.name = name
        self.url = url
        self.index = index
        self._out = out
        self._errors = errors

    @property
    def messages(self) -> str:
        """The text that it wrote to stderr."""
        return self._errors.read_text()

    async def ready(self) -> "Worker":
        """Wait until it reports that it is ready; fails if it ends before."""
        while "ready at" not in self._out.read_text():
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.messages}"
            await asyncio.sleep(0.02)
        return self

    async def ended(self) -> int:
        """Wait until it ends; returns its exit code, the negative signal number if it was killed."""
        await until(lambda: self.process.poll() is not None)
        return self.process.wait()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        """Shut it down in order (SIGTERM)."""
        self.process.send_signal(signal.SIGTERM)
        assert await self.ended() == 0, self.messages


class Notary:
    """A notary's configuration, with one registered party, and its processes."""

    def __init__(
        self,
        directory: Path,
        bootstrap: str = "",
        prefix: str = "",
        partitions: int = 4,
        places: Mapping[str, BrokerNetwork] | None = None,
        call_s_max: float = CALL_S_MAX,
    ) -> None:
        """`places` are those of processes in networks of their own; `init` runs in the first one's network."""
        self.directory = directory
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.party = Party(NAME)
        self.history = History()
        self.lost_keys: list[str] = []
        """Verifier keys that no key history has any more: receipts by them stay good."""
        self._places = dict(places or {})
        self.http = Http(self._connect, call_s_max)
        self.client = Client(self.http, self.history)
        self.workers: list[Worker] = []
        self._ports: dict[str, int] = {}
        flags = ["--name", NAME, "--origin", "notary.example/tests", "--partitions", str(partitions)]
        if bootstrap:
            flags += ["--kafka", bootstrap, "--topic-prefix", prefix]
        home = next(iter(self._places.values()), BrokerNetwork())
        assert run_inside(home.network, lambda: cli.main(["init", str(directory), *flags])) == 0
        assert parties.add(directory / "parties.json", self.party.name, self.party.public_pem, "the test's party") == "added"

    def start(
        self, name: str, *, entry: Sequence[str] = LONG_DEADLINES, process: str = "", index: str = "index", **settings: int | str
    ) -> Worker:
        """Start a worker, or another `process` with the same name, and do not wait until it is ready."""
        process = process or name
        if process not in self._ports:
            (self._ports[process],) = free_ports(1)
        place = self._places.get(process, BrokerNetwork())
        listen = f"{place.host}:{self._ports[process]}"
        out, errors = (self.directory / f"{process}-{len(self.workers)}.{what}" for what in ("out", "err"))
        config, own = self.directory / "notary.toml", {"index_directory": index, **settings}
        with out.open("wb") as stdout, errors.open("wb") as stderr, inside(place.network):
            started = serve(config, name, listen, settings=own, entry=entry, stdout=stdout, stderr=stderr)
        self.http.forget(f"http://{listen}")
        self.workers.append(Worker(started, name, f"http://{listen}", index, out, errors))
        return self.workers[-1]

    async def start_all(self, *names: str) -> list[Worker]:
        """Start workers together, and wait until they are ready."""
        started = [self.start(name) for name in names]
        return [await worker.ready() for worker in started]

    async def end(self) -> None:
        """Kill all running processes and close every connection; pytest shows the workers' messages if the test failed."""
        for worker in self.workers:
            code = worker.process.poll()
            worker.kill()
            print(f"--- {worker.name}, {'killed at the end' if code is None else f'ended with {code}'}:", worker.messages[-4000:], sep="\n")
        await self.http.__aexit__(None, None, None)

    async def until_ready(self, *workers: Worker) -> None:
        """Wait until /readyz of all workers returns 200."""
        for worker in workers:
            await until(partial(self.says, worker, 200))

    async def says(self, worker: Worker, status: int, text: str = "") -> bool:
        """Returns whether /readyz has this status and text now; False while it does not listen yet."""
        assert worker.process.poll() is None, worker.messages
        try:
            answer = await self.http.get(worker.url, "/readyz?verbose")
        except ConnectionError:
            return False
        return answer.status == status and text in answer.body.decode()

    async def metric(self, worker: Worker, name: str) -> float:
        """Returns a metric's value, summed over the labels that `name` leaves out."""
        answer = await self.http.get(worker.url, "/metrics")
        lines = [line for line in answer.body.decode().splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def until_metric(self, worker: Worker, name: str, least: float = 1) -> None:
        """Wait until a metric is at least this large."""

        async def reached() -> bool:
            return await self.metric(worker, name) >= least

        await until(reached, 0.01)

    async def verifier_key(self, worker: Worker) -> str:
        """Returns the verifier key that a worker shows."""
        key: str = (await self.http.get(worker.url, "/v1/notary")).json()["verifier_key"]
        return key

    async def same_height(self, *workers: Worker) -> int:
        """Wait until all have applied equally many positions; returns the number. No request may be in flight."""
        while True:
            heights = {await self.metric(worker, "notary_positions ") for worker in workers}
            lags = {await self.metric(worker, "notary_lag_records ") for worker in workers}
            if len(heights) == 1 and lags == {0}:
                return int(heights.pop())
            await asyncio.sleep(0.1)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a worker from within its own network."""
        networks = {place.host: place.network for place in self._places.values()}
        return await connect_from(networks.get(host, ""), host, port)

    async def rows(self, worker: Worker) -> Rows:
        """Returns every row of a stopped worker's index."""
        return await asyncio.to_thread(read_rows, self.directory / worker.index / worker.name)

    async def remains(self, *workers: Worker) -> Remains:
        """Returns the data of this notary after these workers have ended."""
        config = load(self.directory / "notary.toml", {}, {})
        network = next(iter(self._places.values()), BrokerNetwork()).network
        by_partition = await asyncio.to_thread(run_inside, network, lambda: asyncio.run(read_log_records(config)))
        # Numbered, because a restarted worker may appear here twice under one name.
        rows = {f"{number} ({worker.name})": await self.rows(worker) for number, worker in enumerate(workers)}
        history = keys.present_history(config.key_files)
        return Remains([*self.lost_keys, *(each.verifier_key for each in history)], by_partition, rows, self.history)

    async def check(self, *workers: Worker, roots_right: bool = True, forged: bool = False) -> list[Decided]:
        """Stop the workers when they have read everything, read both topics back, and run all checkers; returns the decisions, by position.

        Every index must be, row by row, what the log decides. Every answer must be one of its decisions, none missing; every receipt must
        verify, and all checkpoints must be of one tree. `roots_right`: also check the roots that workers wrote into the log; not if one of
        them was wrong. No batch of an incarnation may be skipped, except where entries are `forged`.
        """
        height = await self.same_height(*workers)
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            assert await worker.ended() == 0, worker.messages
        left = await self.remains(*workers)
        found = await asyncio.to_thread(left.violations, roots_right=roots_right)
        assert not found, describe(found)
        assert forged or not left.replayed.passing()
        assert {indexes.height(rows) for rows in left.indexes.values()} == {height}
        return list(left.replayed.decisions[:height])


@asynccontextmanager
async def opened(directory: Path, bootstrap: str = "", prefix: str = "", partitions: int = 4) -> AsyncIterator[Notary]:
    """A new notary, whose processes are ended with the block."""
    notary = await asyncio.to_thread(Notary, directory, bootstrap, prefix, partitions)
    try:
        yield notary
    finally:
        await notary.end()


async def connect_from(
    network: str, host: str, port: int, trust: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from within this network namespace; with TLS if `trust` is given."""
    with inside(network):
        connection = socket.socket()
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
        return await asyncio.open_connection(sock=connection, ssl=trust, server_hostname=host if trust else None)
    except BaseException:
        connection.close()
        raise
