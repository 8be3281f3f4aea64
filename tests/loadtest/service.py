"""A minimal HTTP service, whose answers a test decides."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

from loadtest.rig.signing import NOTARY
from payload import decode_submission

Answer = Callable[[bytes, bytes], bytes | None]
"""Returns the complete answer to a call, by its head and its body; None closes the connection."""


@asynccontextmanager
async def serving(answer: Answer, *, closed_at_once: int = 0) -> AsyncIterator[str]:
    """Yields the URL of the service. It closes its first `closed_at_once` connections before it has read anything."""
    accepted = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if next(accepted) < closed_at_once:
                return
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                reply = answer(head, await reader.readexactly(int(length or 0)))
                if reply is None:
                    return
                # In two pieces, so that head and body arrive separately.
                writer.write(reply[:100])
                await asyncio.sleep(0)
                writer.write(reply[100:])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def decisions_of(body: bytes) -> bytes:
    """Returns the body of an answer that commits all requests of a submission, each with a receipt."""
    ids = [request.transaction_id.hex() for request in decode_submission(body, NOTARY).requests]
    receipt = {"receipt": "c2sp.org/tlog-proof@v1\nindex 0\n"}
    made = [{"transaction_id": id_, "position": at, "outcome": "committed", "conflicts": [], **receipt} for at, id_ in enumerate(ids)]
    return json.dumps({"decisions": made}, separators=(",", ":")).encode()


def answer_of(status: int, body: bytes = b"", *, retry_after_s: int | None = None) -> bytes:
    """Returns a complete answer."""
    retry = b"" if retry_after_s is None else b"Retry-After: %d\r\n" % retry_after_s
    return b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s" % (status, retry, len(body), body)
