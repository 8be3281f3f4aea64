"""Submissions generated ahead by another process: a load of ten million requests does not fit in memory.

    async with Ahead.of(seed, requests, inputs, submissions) as ahead:
        await ahead.filled()            # the buffer is full, or holds all of them
        made = ahead.take()             # None where the generator lags, or none are left (`ahead.left`)

The process writes to a pipe and blocks when that is full, so that the buffer is bounded. As a command:

    python -P -m loadtest.rig.ahead SEED REQUESTS INPUTS SUBMISSIONS     lengths and bytes of bodies and ids, on stdout
"""

import asyncio
import contextlib
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice

from loadtest.rig.generate import submissions
from loadtest.rig.notaries import environment
from loadtest.rig.signing import Made

KEPT_BYTES_MAX = 64 << 20
_LENGTHS = struct.Struct(">II")


class Ahead:
    """A bounded buffer of the submissions that another process generates."""

    def __init__(self, reader: asyncio.StreamReader, pid: int, count: int) -> None:
        """Called by `Ahead.of` only."""
        self._reader = reader
        self._kept: deque[Made] = deque()
        self._kept_bytes = 0
        self._room = asyncio.Event()
        self._more = asyncio.Event()
        self._came = 0
        self._count = count
        self.pid = pid
        self.left = count
        """The number of submissions not taken yet."""
        self.problem = ""
        """The reason why no more will come although some are left; empty otherwise."""

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, seed: int, requests: int, inputs: int, count: int) -> AsyncIterator["Ahead"]:
        """Yields the buffer for `count` submissions; their process runs for the length of the block."""
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-P", "-m", "loadtest.rig.ahead", *map(str, (seed, requests, inputs, count))],
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
        while self._kept_bytes < KEPT_BYTES_MAX and self._came < self._count and not self.problem:
            self._more.clear()
            await self._more.wait()

    async def more(self) -> None:
        """Return when a submission is in the buffer, or none will come."""
        while not self._kept and self.left and not self.problem:
            self._more.clear()
            await self._more.wait()

    def take(self) -> Made | None:
        """Returns the next submission, or None if none is in the buffer."""
        if not self._kept:
            return None
        made = self._kept.popleft()
        self.left -= 1
        self._kept_bytes -= len(made.body)
        self._room.set()
        return made

    async def _fill(self) -> None:
        try:
            while self._came < self._count:
                body_length, ids_length = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
                both = await self._reader.readexactly(body_length + ids_length)
                self._kept.append(Made(both[:body_length], both[body_length:]))
                self._kept_bytes += body_length
                self._came += 1
                self._more.set()
                while self._kept_bytes >= KEPT_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
        except asyncio.IncompleteReadError:
            self.problem = f"the process that makes the submissions ended after {self._came} of {self._count}"
        finally:
            self._more.set()


def _write(seed: int, requests: int, inputs: int, count: int) -> None:
    out = sys.stdout.buffer
    for made in islice(submissions(seed, requests, inputs), count):
        out.write(_LENGTHS.pack(len(made.body), len(made.ids)))
        out.write(made.body)
        out.write(made.ids)
    out.flush()


if __name__ == "__main__":
    # The reader may exit before all is written: then the rest is not needed.
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        _write(*map(int, sys.argv[1:]))
        # Its CPU time can be read as long as the process exists: wait until the reader closes stdin or exits.
        sys.stdin.read()
