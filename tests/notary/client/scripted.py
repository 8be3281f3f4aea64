"""Workers that speak real HTTP on loopback and misbehave by script, for the client's tests.

The `Notary` behind them is honest: it verifies signatures, and decides each transaction once, in memory. A worker handles its POSTs
by its script, one step a call, and answers honestly once the script has ended. GETs are always honest.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from notary.decision import leaf
from notary.receipts import VerifierKey, sign_note
from notary.receipts.note import to_base64
from notary.receipts.proof import HEAD
from notary.tree import leaf_hash, node_hash
from notary.verify import decision_of
from ordering.ids import format_state
from payload import Request, decode_submission, signed_message

NAME = "O=Notary Service,L=London,C=GB"
PARTY = "O=Bank A,L=London,C=GB"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ORIGIN = "notary.example/london"
VERIFIER = VerifierKey(ORIGIN, KEY.public_key().public_bytes_raw())
VERIFIER_KEY = str(VERIFIER)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_file(folder: Path) -> str:
    """Writes the party's key. Returns the path of its file."""
    file = folder / "key.pem"
    file.touch(0o600)
    file.write_bytes(PEM)
    return str(file)


def request(number: int, state: int | None = None) -> dict[str, Any]:
    """Returns a request of its own for each number; it consumes the state of that number, unless another one is given."""
    consumed = sha256(b"state %d" % (number if state is None else state)).hexdigest()
    return {"inputs": [f"{consumed}:0"], "content_hash": sha256(b"content %d" % number).hexdigest()}


LIES: dict[str, dict[str, Any]] = {
    "other ids": {"transaction_id": "ab" * 32},
    "position text": {"position": "0"},
    "unknown reason": {"outcome": "rejected", "reason": "mood"},
    "committed with reason": {"reason": "outside-time-window"},
    "foreign conflict": {
        "outcome": "rejected",
        "reason": "input-conflict",
        "conflicts": [{"state": f"{'cd' * 32}:1", "kind": "input", "consumed_by": "ef" * 32}],
    },
}
"""The members of a decision that a worker's step changes."""


class Notary:
    """Decides each transaction once, in memory."""

    def __init__(self) -> None:
        self.decisions: dict[str, dict[str, Any]] = {}
        self.consumed: dict[bytes, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def submit(self, body: bytes) -> list[dict[str, Any]]:
        submission = decode_submission(body, NAME)
        ids = [each.transaction_id for each in submission.requests]
        KEY.public_key().verify(submission.signature, signed_message(NAME, submission.party, ids))
        with self.lock:
            return [self._decide(each) for each in submission.requests]

    def _decide(self, asked: Request) -> dict[str, Any]:
        transaction_id = asked.transaction_id.hex()
        if transaction_id not in self.decisions:
            spent = [state for state in asked.inputs if state in self.consumed]
            by = sha256(asked.transaction_id).hexdigest()
            position = len(self.decisions)
            self.decisions[transaction_id] = {
                "transaction_id": transaction_id,
                "position": position,
                "outcome": "rejected" if spent else "committed",
                "reason": "input-conflict" if spent else None,
                "conflicts": [
                    {"state": format_state(state), "kind": "input", "consumed_by": self.consumed[state]["consumed_by"]} for state in spent
                ],
                "log_time": 1760000000000 + position,
            }
            for state in () if spent else asked.inputs:
                self.consumed[state] = {"state": format_state(state), "consumed_by": by, "position": position}
        return self.decisions[transaction_id]


class Worker:
    """A worker with one URL. `bodies` and `headers` hold its POSTs in order, including attempts without an answer."""

    def __init__(self, notary: Notary, script: Sequence[str], then: str = "answer") -> None:
        self.notary = notary
        self.script = list(script)
        self.then = then
        self.url = ""
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def stop(self, server: asyncio.Server) -> None:
        """End all connections. A task that is cancelled before it has begun would not close its own."""
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        # A connection takes some turns of the loop from its acceptance to `_accepted`. A closed server would leave its socket open.
        for _ in range(10):
            await asyncio.sleep(0)
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._call(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one call. Returns false when the connection must be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "POST":
            self.bodies.append(body)
            self.headers.append(headers)
            self.paths.append(path)
            raw = await self._step(self.script.pop(0) if self.script else self.then, body, writer)
        else:
            raw = self._get(path)
        if raw is not None:
            writer.write(raw)
            await writer.drain()
        return raw is not None

    async def _step(self, step: str, body: bytes, writer: asyncio.StreamWriter) -> bytes | None:
        """Returns the reply, or None to close the connection. A step named `lost ...` applies the submission before it fails."""
        decided: Callable[[], list[dict[str, Any]]] = lambda: self.notary.submit(body)  # noqa: E731
        if step == "answer":
            return reply(200, {"decisions": [_with_receipt(each) for each in decided()]})
        if step == "lost reset":
            decided()
            return None
        if step == "reset":
            return None
        if step == "hang":
            await asyncio.sleep(3600)
        if step == "drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        if step == "half":
            writer.write(reply(200, {"decisions": decided()})[:-20])
            await writer.drain()
            return None
        if step == "noise":
            writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            await writer.drain()
            return None
        if step == "202 none":
            return reply(202, {"decisions": [None] * len(decode_submission(body, NAME).requests)}, "Retry-After: 0")
        if step == "202 some":
            return reply(202, {"decisions": [_with_receipt(each) if at % 2 == 0 else None for at, each in enumerate(decided())]})
        if step == "200 with null":
            return reply(200, {"decisions": [None, *decided()[1:]]})
        if step == "no json":
            return reply(200, b"<html>welcome to the proxy</html>")
        if step == "too few":
            return reply(200, {"decisions": decided()[:-1]})
        if step in LIES:
            return reply(200, {"decisions": [{**each, **LIES[step]} for each in decided()]})
        if step == "contradict":
            return reply(200, {"decisions": [_with_receipt({**each, "position": each["position"] + 1000}) for each in decided()]})
        if step == "unproven":
            return reply(200, {"decisions": decided()})
        if step == "redirect":
            return reply(307, b"", "Location: http://127.0.0.1:9/")
        step, *ticket = step.split("; ticket ")
        status, _, rest = step.partition(" ")
        name, _, retry_after = rest.partition(" ")
        problem = {"type": f"/problems/{name}", "title": "A title", "status": int(status), "detail": f"because of {name}"}
        return reply(
            int(status),
            problem,
            "Content-Type: application/problem+json",
            *([f"Retry-After: {retry_after}"] if retry_after else []),
            *[f"Ticket: {each}" for each in ticket],
        )

    def _get(self, path: str) -> bytes:
        if path == "/v1/notary":
            returned = {"name": NAME, "origin": ORIGIN, "verifier_key": VERIFIER_KEY, "software_version": "1", "worker": "w"}
            return reply(200, {**returned, "limits": {"requests": 1000}})
        kind, _, what = path.removeprefix("/v1/").partition("/")
        if kind == "states":
            return reply(
                200,
                next(
                    (each for state, each in self.notary.consumed.items() if format_state(state) == what),
                    {"state": what, "consumed_by": None, "position": None},
                ),
            )
        if kind == "transactions" and what.removesuffix("/receipt") in self.notary.decisions and what.endswith("/receipt"):
            return reply(200, receipt_of(self.notary.decisions[what.removesuffix("/receipt")]).encode())
        if kind == "transactions" and what in self.notary.decisions:
            return reply(200, self.notary.decisions[what])
        return reply(404, {"type": "/problems/not-found"}, "Content-Type: application/problem+json")


def receipt_of(decision: dict[str, Any]) -> str:
    """Returns a receipt that proves the decision: the decision is the last leaf of a tree with equal other leaves."""
    position, others, path = decision["position"], leaf_hash(b"another"), []
    root = leaf_hash(leaf(decision_of(decision)))
    while position:
        if position & 1:
            path.append(to_base64(others) + "\n")
            root = node_hash(others, root)
        others, position = node_hash(others, others), position >> 1
    size = decision["position"] + 1
    note = sign_note(f"{ORIGIN}\n{size}\n{to_base64(root)}\n", [(ORIGIN, KEY)])
    return f"{HEAD}{decision['position']}\n{''.join(path)}\n{note}"


def _with_receipt(decision: dict[str, Any]) -> dict[str, Any]:
    return {**decision, "receipt": receipt_of(decision)}


def reply(status: int, content: object, *headers: str) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def staged(*workers: Worker) -> Iterator[list[str]]:
    """Runs the workers in a separate thread. Yields their URLs."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        stop = asyncio.Event()
        servers = [await worker.start() for worker in workers]
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        for worker, server in zip(workers, servers, strict=True):
            await worker.stop(server)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    loop, stop = started.result()
    try:
        yield [worker.url for worker in workers]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@contextmanager
def nobody() -> Iterator[str]:
    """Yields a URL where connections are rejected, as long as the block runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
