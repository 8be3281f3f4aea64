"""The HTTP adapter of a peer without HTTP: decodes, checks signatures. It does a worker's steps before the log, with the notary's own code.

The server (`notary.http.server`) and the gate (`notary.gate`: decoder and signature check) are those of a worker. Answers have the form of
docs/http.md, without position, log time and receipt, which no peer has. So a peer's adapter does somewhat less than a worker's, never more:
no metrics, no handling of slow bodies, no quotas.

Peers decide requests of inputs only. The load has no references and time windows; a request that has them is rejected.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import httpx
import msgspec
import uvloop

from deploy.local.ports import free_ports
from joiner import AdmittedSubmission
from loadtest.openloop.checker import ReceivedConflict
from loadtest.peers.servers import Servers
from loadtest.rig.generate import write_parties
from loadtest.rig.signing import NOTARY
from notary.gate import Gate
from notary.http.call import JSON, TEXT, Answer, Call
from notary.http.listener import bind
from notary.http.problems import problem_of
from notary.http.server import Server
from notary.http.settings import HttpSettings
from notary.http.submission import SUBMISSIONS, SubmissionCall
from notary.memory import bound_memory, collect_garbage_rarely
from notary.parties import Parties
from ordering.errors import Malformed, NotaryError, OutcomeUnknown
from ordering.ids import StateRef, TransactionId, format_state
from payload import OPEN_FROM_MS, OPEN_UNTIL_MS, Submission

BODIES_BYTES_MAX: Final = 64 << 20


class PeerDecision(msgspec.Struct, frozen=True, gc=False):
    """A peer's decision on one request: committed, unless states were consumed before."""

    transaction_id: TransactionId
    conflicts: tuple[tuple[StateRef, TransactionId], ...] = ()
    """The states consumed before, each with the transaction that consumed it."""


class Decider(Protocol):
    """A peer, as its HTTP adapter sees it."""

    async def decide(self, submission: Submission) -> Sequence[PeerDecision]:
        """Returns durable verdicts, in the order of the requests. Raises `OutcomeUnknown`."""
        ...


Open = Callable[[str], AbstractAsyncContextManager[Decider]]
"""Connects to the peer at an address."""


class _DecisionJson(msgspec.Struct):
    transaction_id: str
    outcome: str
    reason: str | None
    conflicts: list[ReceivedConflict]


class _Decisions(msgspec.Struct):
    decisions: list[_DecisionJson]


_encode = msgspec.json.Encoder().encode


class HttpAdapter:
    """Handles `POST /v1/submissions`, and `/readyz`."""

    def __init__(self, gate: Gate, decider: Decider) -> None:
        self._gate = gate
        self._decider = decider
        self._deciding: set[asyncio.Task[None]] = set()

    def take(self, call: Call) -> None:
        """Handle the head of a call."""
        if call.path == "/readyz":
            call.answer((200, TEXT, b"ok\n"))
        elif call.path != SUBMISSIONS:
            call.answer((404, TEXT, b"POST /v1/submissions\n"))
        else:
            try:
                SubmissionCall(call, self._gate, self)
            except NotaryError as problem:
                call.answer(problem_of(problem))

    def admitted(self, submission_call: SubmissionCall, submission: AdmittedSubmission) -> None:
        """Decide a submission that the gate admitted."""
        deciding = asyncio.get_running_loop().create_task(self._decide(submission_call.call, submission))
        self._deciding.add(deciding)
        deciding.add_done_callback(self._deciding.discard)

    def rejected(self, call: Call, problem: Exception, since_s: float) -> None:
        """Answer a call whose submission the gate rejected."""
        if not isinstance(problem, NotaryError):
            raise problem
        call.answer(problem_of(problem))

    def left(self) -> None:
        """Called when a call has ended; an adapter does not count them."""

    async def _decide(self, call: Call, submission: Submission) -> None:
        try:
            call.answer(await self._answer(submission))
        except OutcomeUnknown as problem:
            call.answer((202, TEXT, str(problem).encode()))
        except NotaryError as problem:
            call.answer(problem_of(problem))

    async def _answer(self, submission: Submission) -> Answer:
        for request in submission.requests:
            if request.references or not request.inputs or (request.from_ms, request.until_ms) != (OPEN_FROM_MS, OPEN_UNTIL_MS):
                raise Malformed("the peers decide requests of inputs only: no references, no time window")
        return 200, JSON, _encode(_Decisions([_decision_json(verdict) for verdict in await self._decider.decide(submission)]))


def _decision_json(verdict: PeerDecision) -> _DecisionJson:
    conflicts = [ReceivedConflict(format_state(state), "input", sha256(consumer).hexdigest()) for state, consumer in verdict.conflicts]
    outcome, reason = ("rejected", "input-conflict") if conflicts else ("committed", None)
    return _DecisionJson(verdict.transaction_id.hex(), outcome, reason, conflicts)


async def serve(open_decider: Open, address: str, port: int, parties: Path) -> None:
    """Serve one peer until SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    gate = Gate(NOTARY, Parties(parties), lambda: None, time.monotonic, bytes_max=BODIES_BYTES_MAX, body_s_max=20.0, turn_s_max=0.005)
    async with open_decider(address) as decider:
        server = Server(HttpAdapter(gate, decider), bind("127.0.0.1", port), settings=HttpSettings(connections_per_address_max=0))
        await server.start()
        await stop.wait()
        await server.stop(5.0)


def main(open_decider: Open) -> None:
    """Run the process that `start` starts: the module of a peer calls this with its own `open_decider`."""
    address, port, parties = sys.argv[1:]
    collect_garbage_rarely()  # as in a worker
    bound_memory()
    uvloop.run(serve(open_decider, address, int(port), Path(parties)))


def start(servers: Servers, module: str, address: str) -> str:
    """Start the HTTP adapter of a peer whose servers run, by the peer's module; returns its URL."""
    parties = servers.folder / "parties.json"
    write_parties(parties)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-P", "-m", module, address, str(port), str(parties)]
    servers.start("http-adapter", command, lambda: is_ready(url))
    return url


def is_ready(url: str) -> bool:
    """Returns True if the server there reports that it is ready."""
    try:
        return httpx.get(f"{url}/readyz", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False
