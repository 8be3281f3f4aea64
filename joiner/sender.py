"""One worker's producer: gathers submissions, sends payload and entry at once, and sends batches again that did not count (R1, R4, R5).

A submission waits in the queue, travels in a batch, and is answered when the log has decided it:

    queued -> in a batch (incarnation, sequence) -> ordered with content -> answered
                      |                                  ^
                      +-- filled, passed or fenced ------+  (queued again, at the front, for a new batch)

A batch goes back to the queue only when the *log* shows that it will never count: a fill came first, a later sequence of its incarnation
was counted, its incarnation was fenced, or another key came into force. A failed append does not show whether the log has its record. So it
ends the incarnation: the worker registers again with a new writer, and its register record fences the old incarnation at one place in the
order (R5). Until the worker has read that place, the old batches may still count; after it they cannot. An acknowledged record must come
before a log end offset that was requested after the acknowledgement. If it does not, the log lost it, or every worker skips it. Then the
incarnation ends too (R10). Safety needs no timer, and no batch is sent twice without need.

Every record appended here is signed with the key in force and has this worker's view of the log (R10). While `may_not_append` returns
a reason, this worker appends only fills.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from joiner.core import Joiner
from joiner.queue import AdmittedSubmission, Batch, Pending, SubmissionQueue
from joiner.rate import Shortest
from joiner.ready import Fenced, FenceWanted, FillWanted, OrderedBatch, Ready
from joiner.settings import QueueLimits, SenderSettings
from ordering.errors import Fatal, FatalCode, NotReady, OutcomeUnknown
from ordering.log import ORDERING, Leader, Log, Writer
from ordering.records import FORMAT_VERSION, Checkpoint, Entry, Fence, OrderingRecord, Register, batch_key
from ordering.signatures import SigningKey, sign_fill, sign_record
from payload import PartitionChoice

logger = logging.getLogger("notary.sender")

Decision = TypeVar("Decision")

DUPLICATE_NAME_FENCES_MAX = 3
DUPLICATE_NAME_SESSION_S = 60.0
"""Two processes with the same worker name fence each other at once. If an incarnation has lasted longer, its fence has another reason.

Either the register record of a process that is gone arrived late, or an operator made a mistake and has corrected it.
"""

SEQUENTIAL_S = 30.0
"""For this time after a batch of ours was filled, an entry is sent only after its payload is acknowledged.

If payloads take longer than the hole_timeout of other workers, every batch whose records are sent together would be filled.
"""

APPENDS_S = 10.0
"""The window for the duration of an append: the shortest append of the last 10 to 20 seconds counts."""

KEY_WAIT_S = 2.0
"""A worker that has not registered yet stops if it lacks the same key for this time: sooner, it may have read only one of two rotations."""


class Keys(Protocol):
    """The private keys that this worker has."""

    def key_for(self, public_key: bytes) -> SigningKey | None:
        """Returns the private half of a public key; None if this worker does not have it."""
        ...

    def fill_key_for(self, public_key: bytes) -> SigningKey | None:
        """Returns the same for a fill. A fill of a hole before a rotation needs the key that was in force there."""
        ...

    def public_keys(self) -> list[bytes]:
        """Returns the public halves of all keys that this worker has."""
        ...


class _Registering(NamedTuple):
    """A register record that is on its way."""

    nonce: bytes
    incarnation: asyncio.Future[int]
    """The incarnation that it begins, once this worker has read it."""
    public_key: bytes
    """The key that signed it."""


class _Session:
    """This worker's present incarnation, the only one that sends. `broken`: the reason why it must end; empty while there is none."""

    def __init__(self, incarnation: int, writer: Writer, key: SigningKey) -> None:
        self.incarnation = incarnation
        self.writer = writer
        self.key = key
        self.sequence_next = 1
        self.appending_since: dict[int, float] = {}  # sequence -> loop time: the batches whose appends have not returned
        self.holds_back = False  # a batch waits for its payload's acknowledgement: no later entry may overtake its entry
        self.broken = ""


class Sender(Generic[Decision]):
    """Sends submissions to the log until they are decided. One event loop uses it. `run` must run, and `resolve` must get every step."""

    def __init__(
        self,
        log: Log,
        joiner: Joiner,
        keys: Keys,
        worker_name: str,
        software_version: str,
        settings: SenderSettings,
        limits: QueueLimits,
        clock_ms: Callable[[], int],
        nonce: Callable[[], bytes],
    ) -> None:
        self._log = log
        self._joiner = joiner
        self._keys = keys
        self._worker_name, self._software_version = worker_name, software_version
        self._settings = settings
        self._clock_ms = clock_ms
        self._nonce = nonce
        self._choice = PartitionChoice(settings.data_centre or None)
        self.queue: SubmissionQueue[Decision] = SubmissionQueue(limits)
        self._appends = Shortest(APPENDS_S)
        self.queue.append_s = self._appends.value
        self.unresolved: dict[tuple[int, int], Batch[Decision]] = {}
        """Batches that are sent and not decided yet, by name."""
        self.may_not_append: Callable[[], str | None] = lambda: None
        """Returns the reason why only fills may be appended now; None when all records may. The driver sets it."""
        self.sending: Callable[[tuple[int, int], Batch[Decision]], AbstractContextManager[None]] = lambda name, batch: nullcontext()
        """Returns a context that is entered around the appends of a batch, for observers."""
        self._session: _Session | None = None
        self._writer: Writer | None = None
        self._writer_failed = ""
        self._registering: _Registering | None = None
        self._acknowledged: set[tuple[int, int] | bytes] = set()  # names of batches, nonces of register records
        self._expected: dict[tuple[int, int] | bytes, int] = {}  # the same names -> the ordering offset before which the record must be
        self._sequential_until_s = 0.0
        self._nonces: set[bytes] = set()
        self._registered_s: dict[int, float] = {}  # this worker's incarnations -> loop time when their register records were read
        self._fenced: set[int] = set()
        self._duplicate_name_fences = 0
        self._fatal: Fatal | None = None
        self._wake = asyncio.Event()
        self._leaderless_since_s: float | None = None
        """The time since which submissions wait because no payload partition has a leader; None if they wait for another reason."""
        self._leader_timer: asyncio.TimerHandle | None = None
        self.batches_sent = 0
        self.batches_sent_again = 0

    # ---- for the service ----

    @property
    def incarnation(self) -> int | None:
        """This worker's present incarnation; None while it registers."""
        return None if self._session is None else self._session.incarnation

    def not_ready(self) -> str | None:
        """Returns the reason why no submission can be admitted now; None if one can."""
        if (why := self.may_not_append()) is not None:
            return why
        if (log_state := self._joiner.log_state) is not None and self._keys.key_for(log_state.key) is None:
            return key_missing_text(log_state.key, self._keys.public_keys())
        session = self._session
        if session is None or session.broken:
            return "this worker has no incarnation yet: it is reading the log up to its register record, or registering again"
        oldest, limit_s = min(session.appending_since.values(), default=None), self._settings.append_wait_s_max
        if oldest is not None and asyncio.get_running_loop().time() - oldest > limit_s:
            return f"the log has not acknowledged an append for more than {limit_s:g} s"
        since_s = self._leaderless_since_s
        if since_s is not None and asyncio.get_running_loop().time() - since_s > limit_s and not self._leaders():
            return f"no payload partition has had a leader for more than {limit_s:g} s"
        return None

    def submit(self, submission: AdmittedSubmission) -> Pending[Decision]:
        """Admit a submission that the queue does not reject; its `waiters` get its decisions."""
        pending = self.queue.put(submission)
        self._wake.set()
        return pending

    def reading_is_behind(self) -> bool:
        """Returns True while too many batches are acknowledged and not decided: the log has them, and this worker has not applied them.

        Another batch would only wait in the log, first come, first served, where parties do not take turns.
        """
        session = self._session
        return session is not None and len(self.unresolved) - len(session.appending_since) >= self._settings.unapplied_max

    # ---- effects of the log ----

    def resolve(self, ready: Ready, outcomes: Sequence[Sequence[Decision]]) -> None:
        """Handle a step that is durable now: answer the batches that it decided, and queue again those that will never count."""
        now_s = asyncio.get_running_loop().time()
        for state in ready.registered:
            if self._registering is not None and state.nonce == self._registering.nonce:
                self._registered_s[state.incarnation] = now_s
                if not self._registering.incarnation.done():
                    self._registering.incarnation.set_result(state.incarnation)
        for batch, decided in zip(ready.batches, outcomes, strict=True):
            if batch.incarnation in self._registered_s:
                self._resolve_own(batch, decided, now_s)
        for fenced in ready.fenced:
            self._resolve_fenced(fenced, now_s)
        if ready.log_state is not None:
            self._resolve_key(ready.log_state.key)

    def _resolve_key(self, key: bytes) -> None:
        """Handle a step that changed the log's state. If another key came into force, records that we signed before no longer count."""
        session = self._session
        if session is not None and session.key.public_key != key:
            session.broken = session.broken or "another key of the notary is in force"
            self._send_again(list(self.unresolved))
        if self._registering is not None and self._registering.public_key != key:
            self._stop_registering("another key of the notary is in force")

    def acknowledged(self) -> frozenset[tuple[int, int] | bytes]:
        """Returns the names of the appends that the log has acknowledged and this worker has not read yet."""
        return frozenset(self._acknowledged - self._expected.keys())

    def expect(self, acknowledged: frozenset[tuple[int, int] | bytes], log_end_offset: int) -> None:
        """Record that the ordering topic ended at `log_end_offset` after these appends were acknowledged.

        Once the log is applied up to there, the records were read or never will be. If one was not read, the log lost it, or every worker
        skips it (R10). Then this worker begins a new incarnation, which sends those batches again.
        """
        pending = self.unresolved.keys() | ({self._registering.nonce} if self._registering is not None else set())
        self._acknowledged &= pending
        # The log may have lost its end since then. So do not wait for records beyond its present end.
        self._expected = {name: min(end, log_end_offset) for name, end in self._expected.items() if name in pending}
        for name in acknowledged & self._acknowledged:
            self._expected.setdefault(name, log_end_offset)
        late = [name for name, end in self._expected.items() if end <= self._joiner.offset_head]
        if not late:
            return
        if self._session is not None and any(isinstance(name, tuple) and name[0] == self._session.incarnation for name in late):
            self._session.broken = self._session.broken or "an append that was acknowledged is not in the log"
            self._wake.set()
        if self._registering is not None and self._registering.nonce in late:
            self._stop_registering("a register record that was acknowledged is not in the log")

    def wake(self) -> None:
        """Check again whether something may be appended."""
        self._wake.set()

    def _stop_registering(self, why: str) -> None:
        if self._registering is not None and not self._registering.incarnation.done():
            self._registering.incarnation.set_exception(OutcomeUnknown(why))
            self._registering.incarnation.exception()  # marks it as retrieved: if the append fails first, nobody awaits this future

    def _resolve_own(self, ordered: OrderedBatch, decided: Sequence[Decision], now_s: float) -> None:
        name = (ordered.incarnation, ordered.sequence)
        # The log has passed earlier batches of this incarnation that are not decided: they will never count.
        self._send_again([other for other in self.unresolved if other[0] == name[0] and other[1] < name[1]])
        session = self._session
        if session is not None and session.incarnation == name[0] and session.sequence_next <= name[1]:
            # Another holder of the notary's key has used this incarnation. Our next sequences up to that one would not count.
            session.broken = f"the log has counted sequence {name[1]}, which this worker has not sent: another process has the notary's key"
            self._wake.set()
        batch = self.unresolved.get(name)
        if batch is None:
            return
        # If the requests differ, another holder of the notary's key wrote a batch of that name. Its decisions do not answer ours.
        if ordered.filled or ordered.requests != batch.requests:
            self._sequential_until_s = now_s + SEQUENTIAL_S
            self._send_again([name])
            return
        del self.unresolved[name]
        self._wake.set()
        self.queue.answer(batch, decided)

    def _resolve_fenced(self, fenced: Fenced, now_s: float) -> None:
        incarnation = fenced.state.incarnation
        if incarnation not in self._registered_s:
            return
        # The step that registers an incarnation may also retire or fence it, before this worker has begun to use it.
        if fenced.retired and incarnation == max(self._registered_s):
            self._fatal = Fatal(
                FatalCode.RETIRED,
                f"the owner has retired worker {fenced.state.name!r} (incarnation {incarnation}): start it again to let it take part",
            )
            self._wake.set()
        self._fenced.add(incarnation)
        self._send_again([name for name in self.unresolved if name[0] == incarnation])
        if self._session is not None and self._session.incarnation == incarnation:
            self._session.broken = "it was fenced"
            self._wake.set()
        if now_s - self._registered_s[incarnation] > DUPLICATE_NAME_SESSION_S:
            self._duplicate_name_fences = 0
        elif fenced.by is not None and fenced.by.nonce not in self._nonces:
            self._duplicate_name_fences += 1
            logger.warning("fenced by a duplicate worker name worker=%s incarnation=%d", fenced.state.name, incarnation)
            if self._duplicate_name_fences >= DUPLICATE_NAME_FENCES_MAX:
                self._fatal = Fatal(
                    FatalCode.DUPLICATE_WORKER_NAME,
                    f"another process registered as worker {fenced.state.name!r} {DUPLICATE_NAME_FENCES_MAX} times:"
                    " two processes share a name; give each its own name with --name."
                    " If only this process runs, late records of an ended process arrived: start this worker again",
                )
                self._wake.set()

    def _send_again(self, names: list[tuple[int, int]]) -> None:
        """Put these batches back at the front of the queue, in the order in which they were sent."""
        for name in reversed(names):
            self.queue.put_back(self.unresolved.pop(name))
            self.batches_sent_again += 1
        self._wake.set()

    # ---- incarnations ----

    async def run(self) -> None:
        """Run one incarnation after the other, until cancelled. Raises `Fatal`, e.g. when a duplicate worker name keeps fencing it."""
        while True:
            try:
                writer = await self._log.open_writer()
            except NotReady as problem:
                logger.info("no producer can be opened yet, trying again: %s", problem)
                await asyncio.sleep(self._settings.reopen_wait_s)
                continue
            self._writer, self._writer_failed = writer, ""
            began_s = asyncio.get_running_loop().time()
            try:
                session = await self._register(writer, await self._key_in_force())
                self._session = session
                if session.incarnation in self._fenced:
                    session.broken = "it was fenced"
                log_state = self._joiner.log_state
                if log_state is not None and log_state.key != session.key.public_key:
                    # The step that read its register record also read a key record.
                    session.broken = "another key of the notary is in force"
                logger.info("registered worker=%s incarnation=%d", self._worker_name, session.incarnation)
                await self._send_until_broken(session)
                logger.warning("the incarnation ended, registering again incarnation=%d: %s", session.incarnation, session.broken)
            except OutcomeUnknown as problem:
                # The register record may be in the log nevertheless: then it begins an incarnation that stays silent.
                logger.warning("the register record was not acknowledged, trying again: %s", problem)
            finally:
                self._session = self._writer = None
                await writer.close()
            # If every incarnation ends at once, there must not be a thousand a second: each register record is kept for ever.
            lasted_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(max(0.0, self._settings.reopen_wait_s - lasted_s))

    async def _key_in_force(self) -> SigningKey:
        """Wait until this worker may append; returns the key to sign with."""
        missing, since_s = b"", 0.0
        while True:
            if self._writer_failed:
                # Fills need a working writer even before this worker has an incarnation: the head may wait for them.
                raise OutcomeUnknown(self._writer_failed)
            log_state = self._joiner.log_state
            if log_state is None or self.may_not_append() is not None:
                missing = b""  # a later key record may not have been read yet, so waiting begins again
            elif (key := self._keys.key_for(log_state.key)) is not None:
                return key
            else:
                now_s = asyncio.get_running_loop().time()
                if log_state.key != missing:
                    missing, since_s = log_state.key, now_s
                elif not self._registered_s and now_s - since_s >= KEY_WAIT_S:
                    # This worker has read the log to its end, and would have read a later key record by now.
                    raise Fatal(FatalCode.KEY_MISSING, key_missing_text(log_state.key, self._keys.public_keys()))
            if self._fatal is not None:
                raise self._fatal
            self._wake.clear()
            await self._wake.wait()

    async def _register(self, writer: Writer, key: SigningKey) -> _Session:
        nonce = self._nonce()
        self._nonces.add(nonce)
        registered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # Set this before the record can be read back.
        self._registering = _Registering(nonce, registered, key.public_key)
        record = Register(nonce, self._joiner.history.view, FORMAT_VERSION, self._worker_name, self._software_version)
        await writer.append(ORDERING, None, self._signed(record, key))
        self._acknowledged.add(nonce)
        try:
            return _Session(await registered, writer, key)
        finally:
            self._registering = None

    async def _send_until_broken(self, session: _Session) -> None:
        """Send batches until the incarnation must end."""
        async with asyncio.TaskGroup() as sends:
            while not session.broken and self._fatal is None:
                self._send_what_is_due(session, sends)
                self._wake.clear()
                await self._wake.wait()
            # Closing the writer cancels the appends in flight; the log shows whether their records arrive.
            await session.writer.close()
        if self._fatal is not None:
            raise self._fatal

    def _send_what_is_due(self, session: _Session, sends: asyncio.TaskGroup) -> None:
        settings = self._settings
        if self._leaderless_since_s is not None and (self._leaders() or not self.queue):
            if self.queue:
                logger.info("a payload partition has a leader again")
            self._leaderless_since_s = None
        while self.queue and self.may_not_append() is None and not session.holds_back:
            # The append of a batch that the log has decided or filled may hang: it does not delay other batches.
            is_appending = any((session.incarnation, sequence) in self.unresolved for sequence in session.appending_since)
            if self.reading_is_behind():
                return
            if len(session.appending_since) >= settings.in_flight_max or (
                is_appending and self.queue.queued_bytes < settings.batch_bytes_early
            ):
                return
            partition = self._choice.choose(self._leaders(), self.queue.queued_bytes)
            if partition is None:
                if self._leaderless_since_s is None:
                    self._leaderless_since_s = asyncio.get_running_loop().time()
                    logger.warning("no payload partition has a leader: the admitted submissions wait")
                # One timer is enough: each wake-up would otherwise leave another, and they would add up.
                if self._leader_timer is not None:
                    self._leader_timer.cancel()
                self._leader_timer = asyncio.get_running_loop().call_later(settings.reopen_wait_s, self._wake.set)
                return
            batch = self.queue.take_batch()
            sequence, session.sequence_next = session.sequence_next, session.sequence_next + 1
            self.unresolved[session.incarnation, sequence] = batch
            session.appending_since[sequence] = asyncio.get_running_loop().time()
            self.batches_sent += 1
            session.holds_back = asyncio.get_running_loop().time() < self._sequential_until_s
            sends.create_task(self._send(session, sequence, partition, batch, session.holds_back))

    def _leaders(self) -> dict[int, Leader]:
        """Returns the payload partitions that an entry may name and that have a leader now."""
        log_state = self._joiner.log_state
        declared = 0 if log_state is None else log_state.payload_partitions
        return {partition: leader for partition, leader in self._log.leaders().items() if partition < declared}

    async def _send(self, session: _Session, sequence: int, partition: int, batch: Batch[Decision], sequentially: bool) -> None:
        """Append both records together (R1). If a crash leaves only one of them, peers fill the hole of the entry, or drop the payload.

        `sequentially`: append the entry only after the payload is acknowledged. Later batches wait meanwhile, so that the entries of an
        incarnation still enter the log in order, without a gap.
        """
        ids = tuple([request.transaction_id for request in batch.requests])
        view = self._joiner.history.view
        entry = Entry(session.incarnation, sequence, view, self._clock_ms(), partition, batch.payload_hash, ids)
        batch.entry_value, batch.signed_by = self._signed(entry, session.key), session.key.public_key
        payload = session.writer.append(partition, batch_key(session.incarnation, sequence), batch.value)
        ordering = session.writer.append(ORDERING, None, batch.entry_value)
        both: list[BaseException | None]
        try:
            with self.sending((session.incarnation, sequence), batch):
                if sequentially:
                    both = await self._append_sequentially(session, payload, ordering)
                else:
                    both = list(await asyncio.gather(payload, ordering, return_exceptions=True))
        finally:
            since_s = session.appending_since.pop(sequence)
            self._wake.set()
        for problem in both:
            if isinstance(problem, OutcomeUnknown):
                session.broken = session.broken or str(problem)
            elif isinstance(problem, BaseException):
                raise problem
        if not any(both):
            self._acknowledged.add((session.incarnation, sequence))
            now_s = asyncio.get_running_loop().time()
            self._appends.measured(now_s - since_s, now_s)

    async def _append_sequentially(
        self, session: _Session, payload: Coroutine[Any, Any, None], ordering: Coroutine[Any, Any, None]
    ) -> list[BaseException | None]:
        """Append the payload, then the entry. Returns the problem that prevented one of them, if any."""
        try:
            await payload
            if session.broken:
                return [OutcomeUnknown(session.broken)]
            # The `await` below hands the entry to the writer before any other task runs.
            session.holds_back = False
            self._wake.set()
            await ordering
        except OutcomeUnknown as problem:
            # If the entry of a batch was not sent, the batch is the last of its incarnation: the next one would leave a gap.
            return [problem]
        finally:
            ordering.close()
        return []

    # ---- other records of this worker ----

    async def append_fill(self, fill: FillWanted) -> None:
        """Append a fill (R4). It needs no incarnation: a hole may be before this worker's own register record."""
        log_state = self._joiner.log_state
        assert log_state is not None
        if (key := self._keys.fill_key_for(log_state.key)) is None:
            logger.warning(
                "cannot fill incarnation=%d sequence=%d: this fill needs the key %s, which this worker does not have. If no worker has"
                " it, see docs/runbook.md, 'A hole that stays'",
                fill.incarnation,
                fill.sequence,
                log_state.key.hex(),
            )
            return
        name = batch_key(fill.incarnation, fill.sequence)
        await self._append(fill.partition, name, sign_fill(log_state.log_id, fill.partition, name, fill.payload_hash, key))

    async def append_fence(self, fence: FenceWanted) -> None:
        """Append a fence (R5); nothing while this worker has no incarnation or may not append."""
        if (session := self._session) is not None and self.may_not_append() is None:
            record = Fence(session.incarnation, self._joiner.history.view, fence.incarnation, fence.sequence_last)
            await self._append(ORDERING, None, self._signed(record, session.key))

    async def append_checkpoint(self, tree_size: int, root: bytes) -> None:
        """Append a checkpoint (R9); nothing while this worker has no incarnation or may not append."""
        if (session := self._session) is not None and self.may_not_append() is None:
            record = Checkpoint(session.incarnation, self._joiner.history.view, tree_size, root)
            await self._append(ORDERING, None, self._signed(record, session.key))

    def _signed(self, record: OrderingRecord, key: SigningKey) -> bytes:
        log_state = self._joiner.log_state
        assert log_state is not None
        return sign_record(record, log_state.log_id, key)

    async def _append(self, partition: int, key: bytes | None, value: bytes) -> None:
        writer = self._writer
        if writer is None:
            return
        try:
            await writer.append(partition, key, value)
        except OutcomeUnknown as problem:
            if writer is not self._writer:
                return  # this writer was closed meanwhile, so its failure shows nothing about the next writer
            if self._session is not None:
                self._session.broken = self._session.broken or str(problem)
                self._wake.set()
            else:
                self._writer_failed = str(problem)
                self._wake.set()
                self._stop_registering(str(problem))


def key_missing_text(wanted: bytes, present: list[bytes]) -> str:
    """Returns the message for a worker that lacks the key in force."""
    return (
        f"the key in force in this log is {wanted.hex()}, and this worker has {', '.join([key.hex() for key in present])}: it cannot sign"
        " records. Copy the key file from the machine where the key was rotated, or name this notary's own log"
        " (docs/runbook.md, Rotating the notary's key)"
    )
