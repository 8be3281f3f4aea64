"""A minimal HTTP client with keep-alive connections.

It aborts connections: over TLS an orderly end waits for the other side, which may be a process that was killed.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

CALL_S_MAX = 60.0
AGAIN_S_MAX = 10.0
PAUSED = b"did not run for a while"
"""In the answer of a worker whose process was paused for two seconds, as on a busy machine, until it has compared its log."""

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Returns the decoded body."""
        return json.loads(self.body)


class Http:
    """Keep-alive connections. A failed call raises `OSError`; it is unknown whether it reached the server."""

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
        """Close the idle connections: another process listens at this address now."""
        for _, writer in self._idle.pop(url, ()):
            writer.transport.abort()

    async def call(self, url: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request, and for some seconds again while the worker answers that its process was paused; returns the last answer."""
        ends_s = time.monotonic() + AGAIN_S_MAX
        while (answer := await self.call_once(url, method, path, body, headers)).status == 503 and PAUSED in answer.body:
            if time.monotonic() > ends_s:
                break
            await asyncio.sleep(0.05)
        return answer

    async def call_once(self, url: str, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request; returns its answer."""
        idle = self._idle.setdefault(url, [])  # one list per process that has listened there
        host, port = url.partition("://")[2].split(":")
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
                writer.transport.abort()
            raise ConnectionError(f"{method} {path} of {url}: {problem!r}") from problem
        except BaseException:
            if writer is not None:
                writer.transport.abort()
            raise
        if found.get("connection") == "close" or self._idle.get(url) is not idle:  # that process was replaced meanwhile
            writer.transport.abort()
        else:
            idle.append((reader, writer))
        return Answer(int(status.split()[1]), found, content)

    async def get(self, url: str, path: str) -> Answer:
        """Send a GET request; returns its answer."""
        return await self.call(url, "GET", path)
