"""One worker's way into the log: gather, send both at once, send again what did not count (R1, R4, R5).

A submission waits in the queue, travels in a batch, and is answered when the log has decided it:

    queued -> in a batch (incarnation, sequence) -> ordered with content -> answered
                      |                                  ^
                      +-- filled, passed or fenced ------+  (queued again, at the front, for a new batch)

A batch goes back to the queue only when the *log* says that it will never count: a fill came first, a later sequence of its life was
counted, or its life was fenced. A failed append says nothing about the log, so it ends the life instead: the worker registers again
with a new writer, and its own register record fences the old life at a definite place in the order (R5). Until that place is read the
old life's batches may still count; once it is read they cannot. No timer is needed to be safe, and nothing is sent twice for nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from joiner.queue import Batch, QueueLimits, SubmissionQueue
from joiner.ready import Fenced, OrderedBatch, Ready
from ordering.errors import Fatal, NotReady, OutcomeUnknown
from ordering.log import ORDERING, Log, Writer
from ordering.records import FORMAT_VERSION, Entry, Register, batch_key, encode
from payload import PartitionChoice, Submission

log = logging.getLogger("notary.sender")

Decision = TypeVar("Decision")

NAMESAKE_FENCES_MAX = 3
NAMESAKE_LIFE_S = 60.0
"""Two processes that share a name end each other's lives at once. What ends a life that has lasted is something else: a register
record of a process that is gone, come late, or somebody's mistake that is over."""


class SenderSettings(msgspec.Struct, frozen=True):
    """Who sends, and how much at a time."""

    worker_name: str
    software_version: str
    data_centre: str | None = None
    in_flight_max: int = 4
    batch_bytes_early: int = 128 << 10  # with another batch in flight, wait until this much is gathered
    reopen_wait_s: float = 0.5
    queue: QueueLimits = QueueLimits()


class _Life:
    """This worker's present life: the only one that sends. `broken` says why it must end."""

    def __init__(self, incarnation: int, writer: Writer) -> None:
        self.incarnation = incarnation
        self.writer = writer
        self.sequence_next = 1
        self.appending_since: dict[int, float] = {}  # sequence -> loop time: the batches whose appends have not returned
        self.broken = ""


class Sender(Generic[Decision]):
    """Takes submissions, gets them decided. One event loop; `run` must be running, and `resolve` be called with every step."""

    def __init__(
        self,
        log_: Log,
        settings: SenderSettings,
        clock_ms: Callable[[], int],
        nonce: Callable[[], bytes],
    ) -> None:
        self._log = log_
        self._settings = settings
        self._clock_ms = clock_ms
        self._nonce = nonce
        self._choice = PartitionChoice(settings.data_centre)
        self.queue: SubmissionQueue[Decision] = SubmissionQueue(settings.queue)
        self.unresolved: dict[tuple[int, int], Batch[Decision]] = {}
        """Batches that the log has not spoken on, by name; the joiner's `own`."""
        self._life: _Life | None = None
        self._writer: Writer | None = None
        self._registering: tuple[bytes, asyncio.Future[int]] | None = None
        self._nonces: set[bytes] = set()
        self._registered_s: dict[int, float] = {}  # this worker's lives: incarnation -> loop time at which its register record was read
        self._fenced: set[int] = set()
        self._namesake_fences = 0
        self._fatal: Fatal | None = None
        self._wake = asyncio.Event()
        self._leaderless = False
        self.batches_sent = 0
        self.batches_sent_again = 0

    # ---- what the service sees ----

    @property
    def incarnation(self) -> int | None:
        """This worker's present life; None while it registers."""
        return None if self._life is None else self._life.incarnation

    def not_ready(self, append_wait_max_s: float) -> str | None:
        """Why nothing can be taken now; None when it can."""
        life = self._life
        if life is None or life.broken:
            return "this worker has no registered life: it is reading the log up to its register record, or registering again"
        oldest = min(life.appending_since.values(), default=None)
        if oldest is not None and asyncio.get_running_loop().time() - oldest > append_wait_max_s:
            return f"the log has not acknowledged an append for more than {append_wait_max_s:g} s"
        return None

    def submit(self, submission: Submission, *, held: bool = False) -> asyncio.Future[Sequence[Decision]]:
        """Take a submission in; its decisions come in the order of its requests, or `OutcomeUnknown`.

        Raises `Overloaded`, but not for one whose room was `held` in the queue until now.
        """
        answer = self.queue.put(submission, held=held)
        self._wake.set()
        return answer

    # ---- what the log says ----

    def resolve(self, ready: Ready, outcomes: Sequence[Sequence[Decision]]) -> None:
        """A step that is durable now: answer what it decided, queue again what it says will never count."""
        now_s = asyncio.get_running_loop().time()
        for life in ready.registered:
            if self._registering is not None and life.nonce == self._registering[0]:
                self._registered_s[life.incarnation] = now_s
                if not self._registering[1].done():
                    self._registering[1].set_result(life.incarnation)
        for batch, decided in zip(ready.batches, outcomes, strict=True):
            if batch.incarnation in self._registered_s:
                self._resolve_own(batch, decided)
        for fenced in ready.fenced:
            self._resolve_fenced(fenced, now_s)

    def _resolve_own(self, ordered: OrderedBatch, decided: Sequence[Decision]) -> None:
        name = (ordered.incarnation, ordered.sequence)
        # What this life sent before it and the log has not spoken on was passed: it will never count.
        self._send_again([other for other in self.unresolved if other[0] == name[0] and other[1] < name[1]])
        life = self._life
        if life is not None and life.incarnation == name[0] and life.sequence_next <= name[1]:
            # Only a forger does that. What this life would send up to there is passed already, and would wait for ever.
            life.broken = f"sequence {name[1]} was counted for it, and it has not sent that"
            self._wake.set()
        batch = self.unresolved.get(name)
        if batch is None:
            return
        # Others than were asked: somebody forged a batch of that name. Its decisions stand, and are no answer to ours.
        if ordered.filled or ordered.requests != batch.requests:
            self._send_again([name])
            return
        del self.unresolved[name]
        self._wake.set()
        self.queue.answer(batch, decided)

    def _resolve_fenced(self, fenced: Fenced, now_s: float) -> None:
        incarnation = fenced.life.incarnation
        if incarnation not in self._registered_s:
            return
        # It may be fenced in the very step that registers it, before the life has begun here.
        self._fenced.add(incarnation)
        self._send_again([name for name in self.unresolved if name[0] == incarnation])
        if self._life is not None and self._life.incarnation == incarnation:
            self._life.broken = "it was fenced"
            self._wake.set()
        if now_s - self._registered_s[incarnation] > NAMESAKE_LIFE_S:
            self._namesake_fences = 0
        elif fenced.by is not None and fenced.by.nonce not in self._nonces:
            self._namesake_fences += 1
            log.warning("fenced by a namesake worker=%s incarnation=%d", fenced.life.name, incarnation)
            if self._namesake_fences >= NAMESAKE_FENCES_MAX:
                self._fatal = Fatal(
                    f"another process registered as worker {fenced.life.name!r} {NAMESAKE_FENCES_MAX} times:"
                    " two processes share a name; give each its own with --name."
                    " If only this one runs, records of one that is gone came late: start it again"
                )
                self._wake.set()

    def _send_again(self, names: list[tuple[int, int]]) -> None:
        """Back to the front of the queue, in the order in which they were sent."""
        for name in reversed(names):
            self.queue.put_back(self.unresolved.pop(name))
            self.batches_sent_again += 1
        self._wake.set()

    # ---- lives ----

    async def run(self) -> None:
        """Live, one life after the other, until cancelled. Raises `Fatal` when a namesake keeps fencing this worker."""
        while True:
            try:
                writer = await self._log.open_writer()
            except NotReady as problem:
                log.info("no writer yet: %s", problem)
                await asyncio.sleep(self._settings.reopen_wait_s)
                continue
            self._writer = writer
            began_s = asyncio.get_running_loop().time()
            try:
                life = await self._register(writer)
                self._life = life
                if life.incarnation in self._fenced:
                    life.broken = "it was fenced"
                log.info("registered worker=%s incarnation=%d", self._settings.worker_name, life.incarnation)
                await self._live(life)
                log.warning("life ends incarnation=%d: %s", life.incarnation, life.broken)
            except OutcomeUnknown as problem:
                # The register record may be in the log all the same: then it begins a life that stays silent.
                log.warning("could not register: %s", problem)
            finally:
                self._life = self._writer = None
                await writer.close()
            # Every life is a record that is kept for ever: where each ends at once, there must not be a thousand a second.
            lasted_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(max(0.0, self._settings.reopen_wait_s - lasted_s))

    async def _register(self, writer: Writer) -> _Life:
        nonce = self._nonce()
        self._nonces.add(nonce)
        registered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Listening before the record can be read.
        self._registering = (nonce, registered)
        record = Register(nonce, FORMAT_VERSION, self._settings.worker_name, self._settings.software_version)
        await writer.append(ORDERING, None, encode(record))
        return _Life(await registered, writer)

    async def _live(self, life: _Life) -> None:
        """Send batches until the life is broken."""
        async with asyncio.TaskGroup() as sends:
            while not life.broken and self._fatal is None:
                self._send_what_is_due(life, sends)
                self._wake.clear()
                await self._wake.wait()
            # The appends on their way are given up with the writer: whether they arrive, the log will tell.
            await life.writer.close()
        if self._fatal is not None:
            raise self._fatal

    def _send_what_is_due(self, life: _Life, sends: asyncio.TaskGroup) -> None:
        settings = self._settings
        while self.queue:
            # An append that hangs holds nothing back once the log has spoken on its batch: what was filled is sent again now.
            gathering = any((life.incarnation, sequence) in self.unresolved for sequence in life.appending_since)
            if len(life.appending_since) >= settings.in_flight_max or (gathering and self.queue.queued_bytes < settings.batch_bytes_early):
                return
            partition = self._choice.choose(self._log.leaders())
            if partition is not None and self._leaderless:
                log.info("a payload partition has a leader again")
            elif partition is None and not self._leaderless:
                log.warning("no payload partition has a leader: what was taken in waits")
            self._leaderless = partition is None
            if partition is None:
                asyncio.get_running_loop().call_later(settings.reopen_wait_s, self._wake.set)
                return
            batch = self.queue.take_batch()
            sequence, life.sequence_next = life.sequence_next, life.sequence_next + 1
            self.unresolved[life.incarnation, sequence] = batch
            life.appending_since[sequence] = asyncio.get_running_loop().time()
            self.batches_sent += 1
            sends.create_task(self._send(life, sequence, partition, batch))

    async def _send(self, life: _Life, sequence: int, partition: int, batch: Batch[Decision]) -> None:
        """Both records set out together (R1). Dying between them leaves one alone: peers fill for the entry, or forget the payload."""
        ids = tuple([request.transaction_id for request in batch.requests])
        entry = Entry(life.incarnation, sequence, self._clock_ms(), partition, ids)
        key = batch_key(life.incarnation, sequence)
        try:
            both = await asyncio.gather(
                life.writer.append(partition, key, batch.value),
                life.writer.append(ORDERING, None, encode(entry)),
                return_exceptions=True,
            )
        finally:
            del life.appending_since[sequence]
            self._wake.set()
        for problem in both:
            if isinstance(problem, OutcomeUnknown):
                life.broken = life.broken or str(problem)
            elif isinstance(problem, BaseException):
                raise problem

    async def append_aside(self, stream: int, key: bytes | None, value: bytes | None) -> None:
        """Append a record that is no batch of ours (a fill, a fence); nothing while there is no writer.

        It must not need a life: what keeps this worker's own register record from being read may be a hole before it.
        """
        writer = self._writer
        if writer is None:
            return
        try:
            await writer.append(stream, key, value)
        except OutcomeUnknown as problem:
            if writer is not self._writer:
                return  # it was given up meanwhile: that says nothing about the one after it
            if self._life is not None:
                self._life.broken = self._life.broken or str(problem)
                self._wake.set()
            elif self._registering is not None and not self._registering[1].done():
                self._registering[1].set_exception(problem)
                self._registering[1].exception()  # seen: the append of the register record may fail first, and nobody wait here
