"""Submissions from a seed: the same seed gives the same bytes. Every state is new, so every request commits.

A load of ten million requests does not fit in memory: another process generates its submissions ahead.

    async with Ahead.of(seed, requests, inputs, submissions) as ahead:
        await ahead.filled()            # the buffer is full, or holds all of them
        made = ahead.take()             # None where the generator lags, or none are left (`ahead.left`)

The process writes to a pipe and blocks when that is full, so that the buffer is bounded. As a command:

    python -P -m loadtest.rig.generate SEED REQUESTS INPUTS SUBMISSIONS     lengths and bytes of bodies and ids, on stdout
"""

import asyncio
import contextlib
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from joiner import OrderedBatch, Ready
from loadtest.rig.machine import environment
from loadtest.rig.signing import NOTARY, PARTY, Made, SubmissionSigner
from ordering.log import ORDERING
from payload import OPEN_FROM_MS, OPEN_UNTIL_MS, Request

KEPT_BYTES_MAX = 64 << 20

_LENGTHS = struct.Struct(">II")


class PayloadValue(msgspec.Struct, frozen=True, gc=False):
    """A payload record's value and the transaction ids of all its requests, in order."""

    value: bytes
    ids: tuple[bytes, ...]


def party_key(party: str = PARTY) -> Ed25519PrivateKey:
    """Returns the key that signs every submission of a party. It is the same for all seeds, so one registration is enough."""
    return Ed25519PrivateKey.from_private_bytes(sha256(b"loadtest.bench party" + party.encode()).digest())


def party_key_pem(party: str = PARTY) -> bytes:
    """Returns the public key of a party in PEM, as `notary party add` takes it."""
    return party_key(party).public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_parties(file: Path) -> None:
    """Write a notary's file of parties, with the loads' party alone."""
    file.write_bytes(msgspec.json.encode({PARTY: party_key_pem().decode()}))


def submissions(seed: int, requests: int, inputs: int, *, party: str = PARTY, signed: bool = True) -> Iterator[Made]:
    """Yields submissions of a party without end. Unsigned ones have random bytes for signatures: replay does not verify them."""
    random = Random(seed)
    writer = SubmissionSigner(NOTARY, party, party_key(party).sign if signed else lambda message: random.randbytes(64))
    texts, ids = [""] * requests, [b""] * requests
    while True:
        for at in range(requests):
            # The content hash, then the transaction hashes of the states.
            drawn = random.randbytes(32 * (inputs + 1))
            states = sorted([drawn[start : start + 32] + b"\0\0\0\x01" for start in range(32, len(drawn), 32)])
            texts[at], ids[at] = writer.request(states, drawn[:32])
        yield writer.submission(texts, ids)


def payload_values(
    seed: int, submission_requests: int, inputs: int, batch_bytes_max: int, *, signed: bool = False
) -> Iterator[PayloadValue]:
    """Yields payload records without end, each with as many submissions as fit, at least one."""
    bodies: list[bytes] = []
    ids: list[bytes] = []
    size = 0
    for made in submissions(seed, submission_requests, inputs, signed=signed):
        if bodies and size + len(made.body) > batch_bytes_max:
            yield PayloadValue(b"[" + b",".join(bodies) + b"]", tuple(ids))
            bodies, ids, size = [], [], 0
        bodies.append(made.body)
        ids += [made.ids[start : start + 32] for start in range(0, len(made.ids), 32)]
        size += len(made.body)


def steps(seed: int, requests: int, inputs: int) -> Iterator[Ready]:
    """Yields steps as the joiner passes them to the index, without end: each has one batch of `requests` decoded requests."""
    random = Random(seed)
    sequence = 0
    while True:
        made = []
        for _ in range(requests):
            drawn = random.randbytes(36 * inputs + 64)
            states = tuple(sorted([drawn[start : start + 36] for start in range(64, len(drawn), 36)]))
            made.append(Request(drawn[:32], states, (), OPEN_FROM_MS, OPEN_UNTIL_MS, drawn[32:64]))
        sequence += 1
        batch = OrderedBatch(sequence, 1, sequence, 1_760_000_000_000 + sequence, False, tuple(made))
        yield Ready({ORDERING: sequence + 1, 0: sequence}, batch.log_time_ms, advanced=True, batches=[batch])


# ---- ahead, by another process ----


class Ahead:
    """A bounded buffer of the submissions that another process generates."""

    def __init__(self, reader: asyncio.StreamReader, pid: int, count: int) -> None:
        """Called by `Ahead.of` only."""
        self._reader = reader
        self._kept: deque[Made] = deque()
        self._kept_bytes = 0
        self._has_space = asyncio.Event()
        self._filled = asyncio.Event()
        self._came = 0
        self._count = count
        self.pid = pid
        self.left = count
        """The number of submissions not taken yet."""
        self.problem = ""
        """The reason why no more submissions will come although some are left; empty otherwise."""

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, seed: int, requests: int, inputs: int, count: int) -> AsyncIterator["Ahead"]:
        """Yields the buffer for `count` submissions; their process runs for the length of the block."""
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-P", "-m", "loadtest.rig.generate", *map(str, (seed, requests, inputs, count))],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
            limit=1 << 20,
            start_new_session=True,  # a Ctrl-C is for the process that reads it
        )
        assert process.stdout is not None
        ahead = cls(process.stdout, process.pid, count)
        filling = asyncio.create_task(ahead._fill())
        try:
            yield ahead
        finally:
            filling.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def filled(self) -> None:
        """Return when the buffer is full, or holds everything left."""
        await self._filled.wait()

    def take(self) -> Made | None:
        """Returns the next submission, or None if none is in the buffer."""
        if not self._kept:
            return None
        made = self._kept.popleft()
        self.left -= 1
        self._kept_bytes -= len(made.body)
        self._has_space.set()
        return made

    async def _fill(self) -> None:
        try:
            while self._came < self._count:
                body_length, ids_length = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
                both = await self._reader.readexactly(body_length + ids_length)
                self._kept.append(Made(both[:body_length], both[body_length:]))
                self._kept_bytes += body_length
                self._came += 1
                while self._kept_bytes >= KEPT_BYTES_MAX:
                    self._filled.set()
                    self._has_space.clear()
                    await self._has_space.wait()
        except asyncio.IncompleteReadError:
            self.problem = f"the process that makes the submissions ended after {self._came} of {self._count}"
        finally:
            self._filled.set()


def _write(seed: int, requests: int, inputs: int, count: int) -> None:
    out = sys.stdout.buffer
    for made in islice(submissions(seed, requests, inputs), count):
        out.write(_LENGTHS.pack(len(made.body), len(made.ids)))
        out.write(made.body)
        out.write(made.ids)
    out.flush()


if __name__ == "__main__":
    # The reader may exit before everything is written: then the rest is not needed.
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        _write(*map(int, sys.argv[1:]))
        # Its CPU time can be read as long as the process exists: wait until the reader closes stdin or exits.
        sys.stdin.read()
