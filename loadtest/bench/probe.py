"""Checks Retry-After: clients that retry after a rejection, and measure the time until they are admitted."""

import asyncio
import time
from collections import deque

from loadtest.bench.wire import REFUSED, Connection, connect, retry_after_s, status_of
from loadtest.signing import Made

AGAIN_S = 0.1


class Probe:
    """A client that retries after a rejection, and measures the time until it is admitted."""

    def __init__(self, url: str, head: bytes, pool: deque[Made], *, obedient: bool) -> None:
        """It takes its submissions from `pool`. An obedient one waits for Retry-After, an impatient one retries every `AGAIN_S`."""
        self._url = url
        self._head = head
        self._pool = pool
        self.obedient = obedient
        self.waits: list[tuple[float, float]] = []
        """(seconds of the first Retry-After, seconds until admission), for submissions rejected at first."""
        self.returns: list[bool] = []
        """For each retry: True if it was admitted."""
        self.waiting = False
        """True while its submission is rejected and not admitted since."""
        self._answer: asyncio.Future[bytes] | None = None

    async def run(self, begins_after_s: float = 0.0) -> None:
        """Send submissions until cancelled."""
        await asyncio.sleep(begins_after_s)
        connection: Connection | None = None
        while self._pool:
            made = self._pool.popleft()
            since_s, told_first_s = time.perf_counter(), None
            while True:
                if connection is None:
                    connection = await connect(self._url, lambda: Connection(self))
                self._answer = asyncio.get_running_loop().create_future()
                sent_s = time.perf_counter()
                connection.call(self._head % len(made.body) + made.body)
                answer = await self._answer
                if not answer:
                    connection = None
                    continue
                told_s = retry_after_s(answer)
                refused = status_of(answer) in REFUSED and told_s is not None
                if self.waiting:
                    self.returns.append(not refused)
                self.waiting = refused
                if told_s is None or not refused:
                    break
                told_first_s = told_s if told_first_s is None else told_first_s
                await asyncio.sleep(told_s if self.obedient else AGAIN_S)
            if told_first_s is not None:
                # Until the sending of the attempt that was admitted: the time for its decision is not included.
                self.waits.append((told_first_s, sent_s - since_s))

    def answered(self, connection: Connection, answer: bytes) -> None:
        """Pass the answer to `run`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def lost(self, connection: Connection, why: str) -> None:
        """Make `run` connect again."""
        self.answered(connection, b"")
