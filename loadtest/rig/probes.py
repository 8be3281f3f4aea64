"""Clients that check Retry-After: after a rejection an impatient one retries all the time, an obedient one returns when it was asked to.

So an impatient one measures when capacity was free.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from loadtest.rig.connections import REFUSED, ClientConnection, connect, retry_after_s, status_of
from loadtest.rig.latencies import Percentiles, percentiles_of
from loadtest.rig.signing import Made

AGAIN_S = 0.1


class ProbeResults(msgspec.Struct):
    """The results of all probes of a load."""

    retry_after_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The first Retry-After value that each impatient probe received."""
    waited_s: Percentiles = msgspec.field(default_factory=Percentiles)
    """The time from that rejection until the impatient probe was admitted."""
    waited_to_retry_after: Percentiles = msgspec.field(default_factory=Percentiles)
    """That time, as a multiple of the Retry-After value."""
    waiting: int = 0
    """The number of impatient probes not yet admitted at the end."""
    obedient_returns: int = 0
    """The number of times that obedient probes returned after the Retry-After time."""
    obedient_admitted: int = 0
    """The number of those returns that were admitted."""


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
        connection: ClientConnection | None = None
        while self._pool:
            made = self._pool.popleft()
            since_s, first_s = time.perf_counter(), None
            while True:
                if connection is None:
                    connection = await connect(self._url, lambda: ClientConnection(self))
                self._answer = asyncio.get_running_loop().create_future()
                sent_s = time.perf_counter()
                connection.call(self._head % len(made.body) + made.body)
                answer = await self._answer
                if not answer:
                    connection = None
                    continue
                retry_s = retry_after_s(answer)
                refused = status_of(answer) in REFUSED and retry_s is not None
                if self.waiting:
                    self.returns.append(not refused)
                self.waiting = refused
                if retry_s is None or not refused:
                    break
                first_s = retry_s if first_s is None else first_s
                await asyncio.sleep(retry_s if self.obedient else AGAIN_S)
            if first_s is not None:
                # Until the sending of the attempt that was admitted: the time for its decision is not included.
                self.waits.append((first_s, sent_s - since_s))

    def answered(self, connection: ClientConnection, answer: bytes) -> None:
        """Pass the answer to `run`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def lost(self, connection: ClientConnection, why: str) -> None:
        """Make `run` connect again."""
        self.answered(connection, b"")


def results_of(probes: Sequence[Probe]) -> ProbeResults:
    """Returns the sum of what the probes measured."""
    impatient, obedient = [[probe for probe in probes if probe.obedient == which] for which in (False, True)]
    waits = [wait for probe in impatient for wait in probe.waits]
    returns = [admitted for probe in obedient for admitted in probe.returns]
    return ProbeResults(
        percentiles_of([after_s for after_s, _ in waits]),
        percentiles_of([waited_s for _, waited_s in waits]),
        percentiles_of([waited_s / after_s for after_s, waited_s in waits if after_s]),
        len([probe for probe in impatient if probe.waiting]),
        len(returns),
        sum(returns),
    )
