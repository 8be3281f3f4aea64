"""PostgreSQL: a unique index on states, many requests a transaction, like a notary on a database.

The schema is that of Corda's JPA notary (`JPAUniquenessProvider` in its public source): committed states with the transaction that consumed
each, committed transactions, and a log of requests with party and signature. The procedure is Corda's too: requests gather while a batch is
in flight, and a batch is one database transaction. Three variants are measured:

| `way`, `standbys` | meaning |
|---|---|
| `insert`, 0 | PostgreSQL at its fastest: acknowledged data is on one disk |
| `insert`, 2 | as safe as three brokers with two in sync, as Corda's guidelines ask: a standby has flushed it too |
| `jpa`, 0 | step by step like Corda's code, one disk |

`jpa` selects the batch's consumed states, decides in memory, and inserts row by row in one flight, over one connection. (Corda waits 200 ms
for 32 requests; here it never waits, and takes up to 1,000.) `insert` is faster, and is what PostgreSQL's users would write: it inserts the
batch at once from arrays, with one statement in one round trip. If the unique index rejects the statement, it rolls back and continues like
`jpa`. It has several connections, so that the commit of one overlaps the work of another. COPY instead of arrays needed a separate
transaction around three commands, and reached half to two thirds of the rate here. In both variants keys are 36 and 32 raw bytes, where
Corda has text.

The server is tuned as its manual and its users advise for many small commits on a dedicated machine, and gives a notary's guarantees:
`fsync`, `full_page_writes` and `synchronous_commit` are on. PostgreSQL 15 from Debian, or the newest one installed. Rejections are not
recorded: a spent state stays spent, so that sending again has the same outcome.
"""

import asyncio
import contextlib
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import asyncpg
import msgspec

from deploy.local import CannotRun
from deploy.local.ports import free_ports
from loadtest.peers import http_adapter
from loadtest.peers.http_adapter import PeerDecision
from loadtest.peers.servers import Servers
from ordering.errors import OutcomeUnknown
from ordering.ids import StateRef, TransactionId
from payload import Submission

Way: TypeAlias = Literal["insert", "jpa"]

USER: Final = "postgres"
CONNECTIONS: Final = {"insert": 3, "jpa": 1}
BATCH_REQUESTS_MAX: Final = 1_000
TRIES_MAX: Final = 20

SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "effective_cache_size": "4GB",
    "wal_buffers": "64MB",
    "wal_compression": "lz4",  # new pages of a random index are logged completely
    "min_wal_size": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "random_page_cost": "1.1",
    "jit": "off",
    "max_connections": "20",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}

_SCHEMA = """
CREATE TABLE committed_states (state bytea PRIMARY KEY, consumed_by bytea NOT NULL);
CREATE TABLE committed_transactions (transaction_id bytea PRIMARY KEY);
CREATE TABLE request_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, party text NOT NULL, signature bytea NOT NULL,
    transaction_ids bytea NOT NULL, requested_at timestamptz NOT NULL DEFAULT now()
);
"""

_INSERT = """
WITH states AS (INSERT INTO committed_states SELECT * FROM unnest($1::bytea[], $2::bytea[])),
     transactions AS (INSERT INTO committed_transactions SELECT unnest($3::bytea[]))
INSERT INTO request_log (party, signature, transaction_ids) SELECT * FROM unnest($4::text[], $5::bytea[], $6::bytea[])
"""

_INSERT_ROWS = (
    "INSERT INTO committed_states VALUES ($1, $2)",
    "INSERT INTO committed_transactions VALUES ($1)",
    "INSERT INTO request_log (party, signature, transaction_ids) VALUES ($1, $2, $3)",
)

_LOOK_UP = "SELECT state, consumed_by FROM committed_states WHERE state = ANY($1::bytea[])"


class Postgresql:
    """A server, its standbys, and their HTTP adapter."""

    def __init__(self, servers: Servers, binaries: Path, way: Way, standbys: int) -> None:
        """Called by `started` only."""
        self._servers = servers
        self._binaries = binaries
        self._way = way
        self._ports = free_ports(1 + standbys)
        self._names = [f"postgresql-{at}" for at in range(1 + standbys)]
        self.url = ""

    def start(self) -> None:
        """Start the servers on their existing data (a standby without any copies it first), and the HTTP adapter."""
        for at, name in enumerate(self._names):
            if not (self._servers.folder / name).exists():
                data = self._servers.folder_for(name, USER)
                source = f"host=127.0.0.1 port={self._ports[0]} user={USER} application_name=standby{at}"
                copy = [str(self._binaries / "pg_basebackup"), "-D", str(data), "-d", source, "-R", "--checkpoint=fast", "--no-sync"]
                self._servers.run(copy, user=USER)
            self._start_server(at)
        address = f"postgresql://{USER}@127.0.0.1:{self._ports[0]}/postgres"
        self.url = http_adapter.start(self._servers, "loadtest.peers.postgresql", f"{self._way} {address}")

    def crash(self) -> None:
        """End all at once: the servers replay their logs when they start again."""
        self._servers.kill("http-adapter")
        for name in self._names:
            self._servers.kill(name, signal.SIGQUIT)

    def pids(self) -> dict[str, list[int]]:
        """Returns the processes that run now."""
        return {"server": self._servers.pids(*self._names), "worker": self._servers.pids("http-adapter")}

    def _start_server(self, at: int) -> None:
        settings = dict(SETTINGS)
        if len(self._names) > 1:
            settings["synchronous_standby_names"] = f"ANY 1 ({', '.join([f'standby{at}' for at in range(1, len(self._names))])})"
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._ports[at])]
        self._servers.start(
            self._names[at],
            [str(self._binaries / "postgres"), "-D", str(self._servers.folder / self._names[at]), "-p", str(self._ports[at]), *flags],
            lambda: subprocess.run(ready, check=False).returncode == 0,
            user=USER,
            end_with=signal.SIGQUIT,  # immediate, with its shared memory; the data is deleted too
        )


@contextlib.contextmanager
def started(way: Way = "insert", standbys: int = 0) -> Iterator[Postgresql]:
    """Yields new servers and their HTTP adapter, for the length of a block. Raises `CannotRun` where there is no PostgreSQL."""
    binaries = find_binaries()
    with Servers.opened("postgresql") as servers:
        peer = Postgresql(servers, binaries, way, standbys)
        data = servers.folder_for("postgresql-0", USER)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        servers.run(initdb, user=USER)
        peer.start()
        yield peer


def find_binaries() -> Path:
    """Returns the directory of initdb and postgres, which Debian keeps off the PATH. Raises `CannotRun`."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: int(file.parts[-3]))
    on_path = shutil.which("initdb")
    if not debian and on_path is None:
        raise CannotRun("there is no PostgreSQL here: `make peers` as root installs Debian's postgresql-15")
    return debian[-1].parent if debian else Path(str(on_path)).resolve().parent


# ---- in the HTTP adapter's process ----


class _Waiting(msgspec.Struct):
    submission: Submission
    answer: asyncio.Future[Sequence[PeerDecision]]


class PostgresqlDecider:
    """Gathers submissions into batches; each connection has one in flight."""

    def __init__(self, way: Way) -> None:
        """Called by `open_decider` only."""
        self._way = way
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()

    async def decide(self, submission: Submission) -> Sequence[PeerDecision]:
        """Returns verdicts that are committed in the database. Raises `OutcomeUnknown`."""
        answer: asyncio.Future[Sequence[PeerDecision]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(submission, answer))
        self._wake.set()
        return await answer

    async def work(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Decide batches over one connection, until cancelled."""
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            batch = self._take()
            try:
                verdicts = await self._decide(connection, [waiting.submission for waiting in batch])
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as problem:
                for waiting in batch:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(OutcomeUnknown(f"the database did not answer: {problem}"))
                await asyncio.sleep(0.1)  # without its database an adapter cannot do anything else
                continue
            for waiting, decisions in zip(batch, verdicts, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(decisions)

    def _take(self) -> list[_Waiting]:
        batch = [self._queue.popleft()]
        requests = len(batch[0].submission.requests)
        while self._queue and (requests := requests + len(self._queue[0].submission.requests)) <= BATCH_REQUESTS_MAX:
            batch.append(self._queue.popleft())
        return batch

    async def _decide(self, connection: "asyncpg.Connection[asyncpg.Record]", batch: list[Submission]) -> list[list[PeerDecision]]:
        if self._way == "insert" and await _insert_at_once(connection, batch):
            return [[PeerDecision(request.transaction_id) for request in each.requests] for each in batch]
        states = sorted({state for each in batch for request in each.requests for state in request.inputs})
        for _ in range(TRIES_MAX):
            consumed: dict[StateRef, TransactionId] = {row[0]: row[1] for row in await connection.fetch(_LOOK_UP, states)}
            known, new = len(consumed), list[TransactionId]()
            verdicts = [[_decision(request.transaction_id, request.inputs, consumed, new) for request in each.requests] for each in batch]
            try:
                await (_insert if self._way == "insert" else _insert_rows)(connection, batch, dict(list(consumed.items())[known:]), new)
            except asyncpg.UniqueViolationError:
                continue  # another connection was faster with one of these states
            return verdicts
        raise OutcomeUnknown(f"not decided after {TRIES_MAX} tries")


@contextlib.asynccontextmanager
async def open_decider(address: str) -> AsyncIterator[PostgresqlDecider]:
    """Connect, and create the tables if they are missing. `address`: the way, and the server's address."""
    word, _, server = address.partition(" ")
    way: Way = "jpa" if word == "jpa" else "insert"
    decider = PostgresqlDecider(way)
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(CONNECTIONS[way]):
            connections.append(await asyncpg.connect(server))
            stack.push_async_callback(connections[-1].close, timeout=2)
        if await connections[0].fetchval("SELECT to_regclass('committed_states')") is None:
            await connections[0].execute(_SCHEMA)
        working = [asyncio.create_task(decider.work(connection)) for connection in connections]
        try:
            yield decider
        finally:
            for task in working:
                task.cancel()
            await asyncio.wait(working)


def _decision(
    transaction_id: TransactionId, inputs: Sequence[StateRef], consumed: dict[StateRef, TransactionId], new: list[TransactionId]
) -> PeerDecision:
    conflicts = tuple([(state, consumed[state]) for state in inputs if state in consumed])
    if not conflicts:
        consumed.update(dict.fromkeys(inputs, transaction_id))
        new.append(transaction_id)
    elif all(consumed.get(state) == transaction_id for state in inputs):
        conflicts = ()  # sent again
    return PeerDecision(transaction_id, conflicts)


async def _insert_at_once(connection: "asyncpg.Connection[asyncpg.Record]", batch: list[Submission]) -> bool:
    """Commit the complete batch; returns False when that is impossible, and then nothing was done."""
    requests = [request for each in batch for request in each.requests]
    consumed = {state: request.transaction_id for request in requests for state in request.inputs}
    # The index would not detect a state that two of them want: the dictionary has it once.
    if len(consumed) != sum([len(request.inputs) for request in requests]):
        return False
    try:
        await _insert(connection, batch, consumed, [request.transaction_id for request in requests])
    except asyncpg.UniqueViolationError:
        return False
    return True


async def _insert(
    connection: "asyncpg.Connection[asyncpg.Record]",
    batch: list[Submission],
    consumed: dict[StateRef, TransactionId],
    transaction_ids: list[TransactionId],
) -> None:
    """Insert in one statement, so in one transaction, durable on return. Raises `UniqueViolationError` without any effect.

    It inserts in the order of the keys, so that two batches with the same states wait for each other in only one direction.
    """
    states = sorted(consumed)
    parties, signatures, ids = zip(*[_logged(each) for each in batch], strict=True)
    await connection.execute(_INSERT, states, [consumed[state] for state in states], sorted(transaction_ids), parties, signatures, ids)


async def _insert_rows(
    connection: "asyncpg.Connection[asyncpg.Record]",
    batch: list[Submission],
    consumed: dict[StateRef, TransactionId],
    transaction_ids: list[TransactionId],
) -> None:
    """Insert the same, each row by a statement of its own; those of one table are sent together, as in a JDBC batch."""
    rows = (sorted(consumed.items()), [(id_,) for id_ in sorted(transaction_ids)], [_logged(each) for each in batch])
    async with connection.transaction():
        for statement, of_table in zip(_INSERT_ROWS, rows, strict=True):
            await connection.executemany(statement, of_table)


def _logged(submission: Submission) -> tuple[str, bytes, bytes]:
    return submission.party, submission.signature, b"".join([request.transaction_id for request in submission.requests])


if __name__ == "__main__":
    http_adapter.main(open_decider)
