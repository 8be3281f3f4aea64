"""Kinds of hostile clients whose calls are correct, and cost the worker more than the client."""

import asyncio
import itertools
import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from loadtest.rig.signing import NOTARY, SubmissionSigner
from tests.hostile.wire import Wire, body_of, kind
from tests.notary.http.checked_client import post_head

PARTY = "O=Hostile Party,L=Paris,C=FR"
FLOOD_REQUESTS = 100
PIPELINED = 50
SUBMISSION_BYTES = 2 << 20
WAIT_S = 5
"""A long poll keeps its connection until it ends, even when its client has gone: half-closed clients get answers. Less than `END_S_MAX`."""


def party_key() -> Ed25519PrivateKey:
    """Returns the key of the hostile party, which is a registered one."""
    return Ed25519PrivateKey.from_private_bytes(sha256(b"tests.hostile party").digest())


def get(path: str) -> bytes:
    """Returns a call that looks something up."""
    return f"GET {path} HTTP/1.1\r\nHost: n\r\n\r\n".encode()


def post(body: bytes) -> bytes:
    """Returns a call that submits a body."""
    return post_head(len(body)) + body


def prepared(wire: Wire, name: str) -> bytes:
    """Returns a call with a prepared body."""
    return post(body_of(Path(wire.target.folder) / name))


def _filled(head: bytes, tail: bytes) -> bytes:
    """Returns a call with the largest body that is allowed."""
    return post(head + b"x" * (SUBMISSION_BYTES - len(head) - len(tail)) + tail)


UNKNOWN = _filled(b'{"party":"O=Nobody","signature":"' + b"A" * 86 + b'==","requests":["', b'"]}')
NAMELESS = _filled(b'{"requests":["', b'"],"party":"O=Nobody"}')
DEEP = [
    post(body) for body in (b"[" * SUBMISSION_BYTES, b'{"party":' * 200_000, b'{"x":' * 1_000 + b"[" * 100_000 + b'],"party":"O=Nobody"}')
]
NUMBERS = post(b'{"requests":[' + b"1," * (SUBMISSION_BYTES // 2 - 20) + b'1],"party":"O=Nobody"}')


async def _again_and_again(wire: Wire, data: bytes) -> None:
    while True:
        wire.tally.calls += 1
        await wire.call(data)


@kind(64, addresses=4)
async def party_flood(wire: Wire) -> None:
    """New submissions of one party, well signed, as fast as they are answered; `Retry-After` is ignored."""
    for body in _submissions(FLOOD_REQUESTS):
        wire.tally.calls += 1
        await wire.call(body)


@kind(16)
async def cheap_calls(wire: Wire) -> None:
    """Pipelined calls that cost little, on connections of a party: behind an admitted submission."""
    await wire.call(next(_submissions(1)))
    while True:
        wire.tally.calls += PIPELINED
        await wire.send(PIPELINED * get("/livez"))
        for _ in range(PIPELINED):
            await wire.answer()


def _submissions(requests: int) -> Iterator[bytes]:
    """Yields calls of one party, each with so many new requests."""
    drawn = random.Random(random.random())
    writer = SubmissionSigner(NOTARY, PARTY, party_key().sign)
    while True:
        made = [writer.request([drawn.randbytes(32) + b"\0\0\0\1"], drawn.randbytes(32)) for _ in range(requests)]
        yield post(writer.submission([text for text, _ in made], [id_ for _, id_ in made]).body)


@kind(16)
async def unknown_parties(wire: Wire) -> None:
    """2 MiB of a party that is not registered."""
    await _again_and_again(wire, UNKNOWN)


@kind(16)
async def nameless_parties(wire: Wire) -> None:
    """2 MiB of a party that is not registered, with the party as the last member."""
    await _again_and_again(wire, NAMELESS)


@kind(16)
async def bad_signatures(wire: Wire) -> None:
    """1,000 requests of a registered party, signed by another."""
    await _again_and_again(wire, prepared(wire, "bad-signature"))


@kind(8)
async def deep_json(wire: Wire) -> None:
    """Lists in lists in lists."""
    for call in itertools.cycle(DEEP):
        wire.tally.calls += 1
        await wire.call(call)


@kind(16)
async def many_numbers(wire: Wire) -> None:
    """A body of numbers, which is no submission."""
    await _again_and_again(wire, NUMBERS)


@kind(16)
async def old_retries(wire: Wire) -> None:
    """1,000 requests that were decided long ago, with their receipts."""
    await _again_and_again(wire, prepared(wire, "retry"))


@kind(16)
async def conflicting_retries(wire: Wire) -> None:
    """A request that was rejected with 10,000 conflicts, which its answer lists again."""
    await _again_and_again(wire, prepared(wire, "conflicts"))


@kind(16)
async def fat_tiles(wire: Wire) -> None:
    """The leaves of decisions that have 10,000 conflicts each."""
    await _again_and_again(wire, get(wire.target.bundle))


@kind(16)
async def fat_decisions(wire: Wire) -> None:
    """Decisions that have 10,000 conflicts each."""
    for id_ in itertools.cycle(wire.target.conflicts):
        wire.tally.calls += 1
        await wire.call(get(f"/v1/transactions/{id_}"))


@kind(16)
async def receipts(wire: Wire) -> None:
    """Receipts, which the worker makes for each call."""
    for id_ in itertools.cycle(wire.target.conflicts):
        wire.tally.calls += 1
        await wire.call(get(f"/v1/transactions/{id_}/receipt"))


@kind(520, addresses=4)
async def long_polls(wire: Wire) -> None:
    """Waits for transactions that nobody sends; more than may wait."""
    while True:
        wire.tally.calls += 1
        await wire.call(get(f"/v1/transactions/{random.randbytes(32).hex()}?wait={WAIT_S}"))
        await asyncio.sleep(WAIT_S / 25)  # one that may not wait is answered at once; short, so that all together are always too many


@kind(8)
async def metrics(wire: Wire) -> None:
    """Metrics, which cost as much as many calls."""
    await _again_and_again(wire, get("/metrics"))


@kind(8)
async def documents(wire: Wire) -> None:
    """The largest answer that never changes."""
    await _again_and_again(wire, get("/openapi.json"))


@kind(8)
async def long_queries(wire: Wire) -> None:
    """Queries with as many fields as a head holds."""
    await _again_and_again(wire, post_head(2).replace(b"submissions ", b"submissions?" + b"a=%41&" * 4_000 + b" ") + b"{}")
