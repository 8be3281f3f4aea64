"""Kinds of hostile clients that break or stretch HTTP: none of them needs a key."""

import asyncio
import itertools
import time

from tests.hostile.wire import ADDRESS_MAX, Wire, kind
from tests.notary.http.checked_client import post_head

CHUNKED = post_head(None, "Transfer-Encoding: chunked")
GET = b"GET /v1/notary HTTP/1.1\r\nHost: n\r\n\r\n"
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: n\r\n\r\n"
BLOCK = 4 << 10
DRIP_S = 0.25
BUSY_S = 0.005
DECLARED_BYTES = 2_000_000
STOPPED = post_head(DECLARED_BYTES) + b'{"party":"' + b"x" * (1 << 20)
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32)
"""The start of one; the rest never comes."""


async def _without_end(wire: Wire, block: bytes) -> None:
    while True:
        await wire.send(block)


@kind(16, ended=True)
async def trailers(wire: Wire) -> None:
    """Trailers without end."""
    await wire.send(CHUNKED + b"1\r\nx\r\n0\r\n")
    await _without_end(wire, b"A: b\r\n" * (BLOCK // 6))


@kind(16, ended=True)
async def chunk_extensions(wire: Wire) -> None:
    """A chunk whose extension does not end."""
    await wire.send(CHUNKED + b"1;a=")
    await _without_end(wire, b"x" * BLOCK)


@kind(16, ended=True)
async def blank_lines(wire: Wire) -> None:
    """Line ends, and no call."""
    await _without_end(wire, b"\r\n" * (BLOCK // 2))


@kind(16, ended=True)
async def long_heads(wire: Wire) -> None:
    """Headers without end."""
    await wire.send(b"GET / HTTP/1.1\r\n")
    await _without_end(wire, b"A: b\r\n" * (BLOCK // 6))


@kind(100, addresses=4, ended=True)
async def slow_heads(wire: Wire) -> None:
    """A head, byte by byte."""
    for byte in itertools.chain(GET[:-2], itertools.cycle(b"X: y\r\n")):
        await wire.send(bytes((byte,)))
        await asyncio.sleep(DRIP_S)


@kind(100, addresses=4, ended=True)
async def slow_bodies(wire: Wire) -> None:
    """A body, a byte a second."""
    await wire.send(post_head(DECLARED_BYTES) + b'{"party":"')
    while True:
        await wire.send(b"x")
        await asyncio.sleep(1)


@kind(80, addresses=4, ended=True)
async def stopped_bodies(wire: Wire) -> None:
    """A MiB of a body, and nothing more: all of them together fill the byte budget of bodies."""
    await wire.send(STOPPED)
    await wire.until_ended()


@kind(60, addresses=4, ended=True)
async def promised_bodies(wire: Wire) -> None:
    """A client that asks whether it may go on, and does not."""
    await wire.send(post_head(DECLARED_BYTES, "Expect: 100-continue"))
    await wire.until_ended()


@kind(32, addresses=4, ended=True)
async def never_readers(wire: Wire) -> None:
    """Pipelined calls, and no answer is read."""
    wire.read_nothing()
    await _without_end(wire, LARGE * 50)


@kind(ADDRESS_MAX + 100, ended=True)
async def left_open(wire: Wire) -> None:
    """Idle connections from one address, more than it may have."""
    await wire.until_ended()


@kind(160, addresses=4)
async def left_open_by_many(wire: Wire) -> None:
    """Connections from several addresses that are left after a call."""
    await wire.call(GET)
    await wire.until_ended()


@kind(16)
async def comers_and_goers(wire: Wire) -> None:
    """A connection for each call."""
    await wire.call(GET)


@kind(16)
async def resets(wire: Wire) -> None:
    """A RST in the middle: of a head, of a body, before an answer is read, of a chunk, of pipelined calls."""
    at = wire.tally.connections % 5
    await wire.send((GET[:20], post_head(1_000) + b'{"party"', LARGE, CHUNKED + b"5\r\nxy", LARGE * 20 + GET[:9])[at])
    if at % 2:
        await asyncio.sleep(0.01)
    wire.reset()


@kind(8)
async def half_closers(wire: Wire) -> None:
    """Clients that close their half behind half a call."""
    await wire.send(GET + post_head(100) + b"{")
    wire.half_close()
    await wire.until_ended()


@kind(8, ended=True)
async def other_protocols(wire: Wire) -> None:
    """The preface of HTTP/2, and bytes that are no HTTP at all."""
    words = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), CLIENT_HELLO, b"\xff" * 100, b"EHLO notary\r\n\r\n", bytes(5_000))
    await wire.send(words[wire.tally.connections % len(words)])
    await wire.until_ended()


@kind(100, addresses=2, ended=True, needs="tls", plain=True)
async def handshakes(wire: Wire) -> None:
    """TLS handshakes that begin and do not end."""
    await wire.send(CLIENT_HELLO)
    await wire.until_ended()


@kind(1, needs="nobody")
async def busy(wire: Wire) -> None:
    """Computes and sends nothing: the load beside it shows the cost of a busy process on the same machine, without an attack."""
    while True:
        until_s = time.perf_counter() + BUSY_S
        while time.perf_counter() < until_s:
            pass
        await asyncio.sleep(0)
