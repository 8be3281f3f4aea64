"""Asking notaries: a party that signs, keep-alive HTTP as thin as it can be, a client that asks until it is told, and a load.

Written from the contract alone, so that it also checks that the contract is enough.
"""

import asyncio
import base64
import hashlib
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.checkers.history import Call, Decided, History, Submission

CALL_S_MAX = 60.0
ASKED_FOR_RECEIPTS = 0.5
OPEN_FROM, OPEN_UNTIL = -(2**63), 2**63 - 1

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def digest(text: str) -> str:
    """A hash to name something by."""
    return hashlib.sha256(text.encode()).hexdigest()


def state(text: str, index: int = 0) -> str:
    """A state reference."""
    return f"{digest(text)}:{index}"


class Party:
    """One who asks, with a key."""

    def __init__(self, notary: str, name: str = "O=Bank A,L=London,C=GB", key: Ed25519PrivateKey | None = None) -> None:
        self.notary = notary
        self.name = name
        self._key = key or Ed25519PrivateKey.generate()

    @property
    def public_pem(self) -> bytes:
        """What the notary has to know."""
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, kind)

    def submission(self, *requests: Mapping[str, Any]) -> Submission:
        """Sign requests."""
        ids = [self._id(request) for request in requests]
        message = b"notary/submission/v1\n" + _text(self.notary) + _text(self.name) + len(ids).to_bytes(4, "big") + b"".join(ids)
        signature = base64.b64encode(self._key.sign(message)).decode()
        body = json.dumps({"party": self.name, "signature": signature, "requests": requests}).encode()
        return Submission(body, requests, [id_.hex() for id_ in ids])

    def _id(self, request: Mapping[str, Any]) -> bytes:
        window = request.get("time_window") or {}
        ends = [window.get("from"), window.get("until")]
        hashed = b"notary/transaction/v1\n" + _text(self.notary)
        for states in (request.get("inputs", ()), request.get("references", ())):
            found = sorted(bytes.fromhex(each[:64]) + int(each[65:]).to_bytes(4, "big") for each in states)
            hashed += len(found).to_bytes(4, "big") + b"".join(found)
        for end, open_end in zip(ends, (OPEN_FROM, OPEN_UNTIL), strict=True):
            hashed += (open_end if end is None else end).to_bytes(8, "big", signed=True)
        return hashlib.sha256(hashed + bytes.fromhex(request["content_hash"])).digest()


def spend(*inputs: str, content: str = "", **others: Any) -> dict[str, Any]:
    """A request."""
    return {"inputs": list(inputs), "content_hash": digest(content), **others}


def _text(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Http:
    """Connections that are kept alive. A call that fails raises `OSError`; whether it was heard, nobody knows."""

    def __init__(self, connect: Connect = asyncio.open_connection, call_s_max: float = CALL_S_MAX) -> None:
        self._connect = connect
        self._call_s_max = call_s_max
        self._idle: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for url in list(self._idle):
            self.forget(url)
        await asyncio.sleep(0)

    def forget(self, url: str) -> None:
        """Close the idle connections: another process listens there now."""
        for _, writer in self._idle.pop(url, ()):
            writer.close()

    async def call(self, url: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request, return its answer."""
        idle = self._idle.setdefault(url, [])  # one list for each process that listened there
        host, port = url.removeprefix("http://").split(":")
        writer = None
        try:
            async with asyncio.timeout(self._call_s_max):
                reader, writer = idle.pop() if idle else await self._connect(host, int(port))
                lines = [f"{method} {path} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
                lines += [f"{name}: {value}" for name, value in ({"content-type": "application/json"} | dict(headers or {})).items()]
                writer.write("\r\n".join([*lines, "", ""]).encode() + body)
                status, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
                content = await reader.readexactly(int(found.get("content-length", "0")))
        except (asyncio.IncompleteReadError, TimeoutError, OSError) as problem:
            if writer is not None:
                writer.close()
            raise ConnectionError(f"{method} {path} of {url}: {problem!r}") from problem
        except BaseException:
            if writer is not None:
                writer.close()
            raise
        if found.get("connection") == "close":
            writer.close()
        else:
            idle.append((reader, writer))
        return Answer(int(status.split()[1]), found, content)

    async def get(self, url: str, path: str) -> Answer:
        """Look something up."""
        return await self.call(url, "GET", path)


class Client:
    """A client that writes down what it asks and what it is told."""

    def __init__(self, http: Http, history: History, wait_s: int = 2) -> None:
        self.http = http
        self.history = history
        self._wait_s = wait_s
        self._draw = random.Random(0)

    async def ask(self, url: str, submission: Submission, *, receipts: bool = False) -> Answer:
        """Ask once, with receipts or without. Raises `ConnectionError`."""
        self.history.submissions.append(submission)
        sent_s = time.monotonic()
        headers = {"prefer": f"wait={self._wait_s}"}
        try:
            path = f"/v1/submissions{'' if receipts else '?receipts=false'}"
            answer = await self.http.call(url, "POST", path, submission.body, headers)
        except (ConnectionError, asyncio.CancelledError):
            self.history.calls.append(Call(submission, url, sent_s, time.monotonic(), 0, ()))
            raise
        decisions = answer.json()["decisions"] if answer.status in (200, 202) else ()
        body = answer.body if decisions else None
        self.history.calls.append(Call(submission, url, sent_s, time.monotonic(), answer.status, decisions, body))
        for decision in decisions:
            assert decision is None or ("receipt" in decision) is receipts, f"{receipts=} was asked for: {decision}"
        return answer

    async def decide(self, urls: Sequence[str], submission: Submission) -> list[Decided]:
        """Ask, at one after the other, until all of it is decided; the decisions, without the receipts that half of the calls ask for.

        The test's time limit is the only one.
        """
        while True:
            for url in urls:
                try:
                    answer = await self.ask(url, submission, receipts=self._draw.random() < ASKED_FOR_RECEIPTS)
                except ConnectionError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status == 200:
                    return [
                        {name: value for name, value in decision.items() if name != "receipt"} for decision in answer.json()["decisions"]
                    ]
                # 202: not known yet; 503: not now. Anything else is a bug.
                assert answer.status in (202, 503), answer
                assert int(answer.headers["retry-after"]) >= 1
                await asyncio.sleep(0.05)


class Load:
    """Clients that keep asking, each at a worker of its choice: mostly fresh states, often spent ones, sometimes the same again."""

    def __init__(self, client: Client, party: Party, urls: Sequence[str], *, seed: int, clients: int = 16, pause_s: float = 0.04) -> None:
        self._client = client
        self._party = party
        self._urls = urls
        self._random = random.Random(seed)
        self._clients = clients
        self._pause_s = pause_s
        self._seed = seed
        self._states: list[str] = []
        self._before: list[Submission] = []
        self._stop = False
        self.decided = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep_asking()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Every client is told the outcome of what it has asked, then it ends."""
        self._stop = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        else:
            await asyncio.gather(*self._tasks)

    async def until(self, more: int) -> None:
        """Wait until that many more submissions have been decided."""
        goal = self.decided + more
        await until(lambda: self.decided >= goal or any(task.done() for task in self._tasks))
        for task in self._tasks:
            if task.done():
                task.result()

    async def _keep_asking(self) -> None:
        while not self._stop:
            urls = self._random.sample(list(self._urls), len(self._urls))
            await self._client.decide(urls, self._next())
            self.decided += 1
            await asyncio.sleep(self._pause_s)

    def _next(self) -> Submission:
        chance = self._random.random
        if self._before and chance() < 0.1:
            return self._random.choice(self._before[-200:])
        requests = []
        for _ in range(self._random.randint(1, 3)):
            number = len(self._states)
            fresh = [state(f"{self._seed}/{number}", index) for index in range(self._random.randint(1, 3))]
            inputs = [*fresh, self._random.choice(self._states[-300:])] if self._states and chance() < 0.3 else fresh
            self._states += fresh
            request = spend(*dict.fromkeys(inputs), content=f"{self._seed}/{number}")
            if chance() < 0.1:
                request["references"] = [self._random.choice(self._states)]
            if chance() < 0.1:
                request["time_window"] = {"from": None, "until": time.time_ns() // 1_000_000 + self._random.randint(-500, 500)}
            requests.append(request)
        submission = self._party.submission(*requests)
        self._before.append(submission)
        return submission


async def until(condition: Callable[[], bool | Awaitable[bool]], pause_s: float = 0.02) -> None:
    """Wait for something that will be; the test's time limit is the only one."""
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        await asyncio.sleep(pause_s)
