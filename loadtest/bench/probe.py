"""Whether Retry-After is true: clients that ask again when they were refused, and note how long it took."""

import asyncio
import time
from collections import deque

from loadtest.bench.wire import REFUSED, Connection, connect, retry_after_s, status_of
from loadtest.signing import Made

AGAIN_S = 0.1


class Probe:
    """A client that asks again when it was refused, and notes how long it took."""

    def __init__(self, url: str, head: bytes, pool: deque[Made], *, obedient: bool) -> None:
        """It takes its submissions from `pool`. An obedient one comes back when it was told to, another asks again all the time."""
        self._url = url
        self._head = head
        self._pool = pool
        self.obedient = obedient
        self.waits: list[tuple[float, float]] = []
        """(seconds told at first, seconds until it was taken in), of those refused at first."""
        self.returns: list[bool] = []
        """Each time that it came back: whether it was taken in then."""
        self.waiting = False
        """Whether it was refused, and not taken in since."""
        self._answer: asyncio.Future[bytes] | None = None

    async def run(self, begins_after_s: float = 0.0) -> None:
        """Ask, until cancelled."""
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
                # Until it was sent the time that it was taken in: how long its decision took is another matter.
                self.waits.append((told_first_s, sent_s - since_s))

    def answered(self, connection: Connection, answer: bytes) -> None:
        """For `run`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def lost(self, connection: Connection, why: str) -> None:
        """For `run`, which connects again."""
        self.answered(connection, b"")
