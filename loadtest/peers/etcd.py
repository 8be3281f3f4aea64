"""etcd: a transaction for each submission puts the keys of its requests if none exists; if one exists, each request has a transaction.

This is etcd's compare-and-put: one key for each state, whose value is the id of the transaction that consumed it. Submissions do not wait
for each other; etcd writes the proposals that arrive together to its log at once. Rejections are not recorded, nor the party, nor the
request: less than the notary keeps.

There are three members, like three brokers: an acknowledged transaction is fsynced on at least two disks. A single member is measured too
(`members`): it saves two thirds of the work on a machine that all three share, but does not survive the loss of its disk.

etcd comes from its own Go modules, pinned in `etcd_client/go.mod`, and is built here. Its tuning is its manual's: a larger space quota
(etcd stops at 2 GiB), fewer snapshots, longer heartbeats for members that share two cores. Python has no client for etcd that is fast
enough. So the HTTP adapter passes requests to a small Go program with etcd's own client (`etcd_client/main.go`), with several connections
spread over the members. `load_alone` lets that program generate transactions itself, without an HTTP adapter: the best that etcd can do.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final

import httpx
import msgspec
import orjson

from deploy.local import golang
from deploy.local.commands import run
from deploy.local.ports import free_ports
from loadtest.peers import http_adapter
from loadtest.peers.http_adapter import PeerDecision
from loadtest.peers.servers import Servers
from ordering.errors import OutcomeUnknown
from ordering.ids import STATE_REF_BYTES, TRANSACTION_ID_BYTES
from payload import Submission

MODULE: Final = Path(__file__).parent / "etcd_client"
SERVER_PACKAGE: Final = "go.etcd.io/etcd/server/v3"
_CACHE: Final = Path(__file__).parents[2] / ".cache" / "etcd"

SETTINGS: Final = {
    "quota-backend-bytes": str(8 << 30),
    "snapshot-count": "100000",
    "heartbeat-interval": "250",
    "election-timeout": "2500",
    "max-txn-ops": "10000",
    "log-level": "warn",
}

_HEAD = Struct(">IQ")
_NUMBER = Struct(">Q")
_COUNT = Struct(">H")
_COMMITTED, _REJECTED = 0, 1
_CONFLICT_BYTES = STATE_REF_BYTES + TRANSACTION_ID_BYTES


class Binaries(msgspec.Struct, frozen=True):
    """The paths of the two programs that were built."""

    server: Path
    client: Path


class Etcd:
    """The members and their HTTP adapter."""

    def __init__(self, servers: Servers, binaries: Binaries, members: int) -> None:
        """Called by `started` only."""
        self._servers = servers
        self._binaries = binaries
        ports = free_ports(2 * members)
        self._ports = list(zip(ports[:members], ports[members:], strict=True))
        self._names = [f"etcd-{at}" for at in range(members)]
        self.url = ""

    def start(self) -> None:
        """Start the members on their existing data, and the HTTP adapter."""
        peers = ",".join([f"m{at}=http://127.0.0.1:{peer}" for at, (_, peer) in enumerate(self._ports)])
        flags = [f"--{name}={value}" for name, value in SETTINGS.items()]
        for at, (port, peer) in enumerate(self._ports):
            command = [
                str(self._binaries.server),
                f"--name=m{at}",
                f"--data-dir={self._servers.folder / f'data-{at}'}",
                f"--listen-client-urls=http://127.0.0.1:{port}",
                f"--advertise-client-urls=http://127.0.0.1:{port}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster={peers}",
                *flags,
            ]
            last = at == len(self._ports) - 1
            self._servers.start(self._names[at], command, self._serves if last else lambda: True)
        self.url = http_adapter.start(self._servers, "loadtest.peers.etcd", f"{self._binaries.client} {self.endpoints}")

    def crash(self) -> None:
        """Kill all processes at once: the members replay their logs when they start again."""
        for name in ("http-adapter", *self._names):
            self._servers.kill(name)

    def pids(self) -> dict[str, list[int]]:
        """Returns the processes that run now; the worker is the HTTP adapter with its client."""
        return {"server": self._servers.pids(*self._names), "worker": self._servers.pids("http-adapter")}

    @property
    def endpoints(self) -> str:
        """The members' addresses for clients."""
        return ",".join([f"127.0.0.1:{port}" for port, _ in self._ports])

    def load_alone(self, seconds: float, in_flight: int, inputs: int) -> float:
        """Returns the requests a second of etcd's own client, without HTTP, signatures or Python."""
        flags = [f"-load={seconds}s", f"-in-flight={in_flight}", f"-inputs={inputs}"]
        return float(orjson.loads(run([self._binaries.client, *flags, self.endpoints]))["requests_per_s"])

    def _serves(self) -> bool:
        # A member answers so once it has a leader; a read through the log would need one too.
        try:
            return all(httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0).json()["health"] == "true" for port, _ in self._ports)
        except (httpx.TransportError, ValueError, KeyError):
            return False


@contextlib.contextmanager
def started(members: int = 3) -> Iterator[Etcd]:
    """Yields new members and their HTTP adapter, for the length of a block. Raises `CannotRun` where etcd cannot be built."""
    binaries = build()
    with Servers.opened("etcd") as servers:
        peer = Etcd(servers, binaries, members)
        peer.start()
        yield peer


def build() -> Binaries:
    """Build etcd and our client of it, unless these sources were built already. Raises `CannotRun`."""
    folder = golang.build(MODULE, [SERVER_PACKAGE, "."], _CACHE)
    return Binaries(folder / "server", folder / "etcd-client")


# ---- in the HTTP adapter's process ----


class EtcdDecider:
    """Passes submissions to etcd's own client, and its answers back; all of them are in flight at once."""

    def __init__(self, client: asyncio.subprocess.Process) -> None:
        """Called by `open_decider` only."""
        assert client.stdin is not None
        self._client = client
        self._to_client = client.stdin
        self._number = 0
        self._waiting: dict[int, tuple[Submission, asyncio.Future[Sequence[PeerDecision]]]] = {}
        self._ended = False

    async def decide(self, submission: Submission) -> Sequence[PeerDecision]:
        """Returns verdicts that a majority of the members has. Raises `OutcomeUnknown`."""
        if self._ended:
            raise OutcomeUnknown("the client of etcd ended")
        self._number += 1
        parts = [b""]
        for request in submission.requests:
            parts += [request.transaction_id, _COUNT.pack(len(request.inputs)), *request.inputs]
        body = b"".join(parts)
        answer: asyncio.Future[Sequence[PeerDecision]] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = (submission, answer)
        self._to_client.write(_HEAD.pack(_NUMBER.size + len(body), self._number) + body)
        return await answer

    async def read(self) -> None:
        """Pass answers to their callers, until cancelled or the client ends."""
        assert self._client.stdout is not None
        try:
            while True:
                length, number = _HEAD.unpack(await self._client.stdout.readexactly(_HEAD.size))
                body = await self._client.stdout.readexactly(length - _NUMBER.size)
                submission, answer = self._waiting.pop(number)
                verdicts = _verdicts(submission, body)
                if not answer.done():
                    if verdicts is None:
                        answer.set_exception(OutcomeUnknown("etcd did not answer in time"))
                    else:
                        answer.set_result(verdicts)
        except asyncio.IncompleteReadError:
            self._ended = True
            for _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(OutcomeUnknown("the client of etcd ended"))


@contextlib.asynccontextmanager
async def open_decider(address: str) -> AsyncIterator[EtcdDecider]:
    """Start the client; `address` is its program and etcd's endpoints."""
    client = await asyncio.create_subprocess_exec(
        *address.split(" "), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=16 << 20
    )
    decider = EtcdDecider(client)
    reading = asyncio.create_task(decider.read())
    try:
        yield decider
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        assert client.stdin is not None
        client.stdin.close()  # makes it exit
        await client.wait()


def _verdicts(submission: Submission, body: bytes) -> list[PeerDecision] | None:
    verdicts: list[PeerDecision] = []
    at = 0
    for request in submission.requests:
        outcome = body[at]
        at += 1
        conflicts: list[tuple[bytes, bytes]] = []
        if outcome == _REJECTED:
            (count,) = _COUNT.unpack_from(body, at)
            at += _COUNT.size
            pieces = [body[start : start + _CONFLICT_BYTES] for start in range(at, at + count * _CONFLICT_BYTES, _CONFLICT_BYTES)]
            conflicts = [(piece[:STATE_REF_BYTES], piece[STATE_REF_BYTES:]) for piece in pieces]
            at += count * _CONFLICT_BYTES
        elif outcome != _COMMITTED:
            return None
        verdicts.append(PeerDecision(request.transaction_id, tuple(conflicts)))
    return verdicts


if __name__ == "__main__":
    http_adapter.main(open_decider)
