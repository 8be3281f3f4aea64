"""Aimed losses: each kind waits for the moment at which a loss does the most harm, and strikes then (R10).

Drawn losses (`damage`) hit any records. Aimed losses hit records that one rule alone protects, so that no seed has to be lucky:

- `acknowledged`: an entry or a register record whose writer knows that it is in the log, and has not read it yet;
- `shown`: records that a worker has applied before its reader stalled; it continues writing, and others replay the log;
- `leaderless`: a content that was joined, in a partition that grows again and then has no leader;
- `unused`: records that no entry asked for, so that no index shows that they are gone; contents take their offsets;
- `unordered`: the furthest content of a partition, which was not the last to be joined;
- `ahead`: payloads that were read, and whose entries were not;
- `kept`: the same before the furthest content of a partition, which has no leader when its readers are interrupted;
- `held`: a payload that readers hold back until the ordering topic, which has no leader, can be compared;
- `unread`: an entry that waits for its content at a worker whose queue is so full that it has paused the ordering topic;
- `examined`: a record with a foreign view, or one before it, while a worker compares its history with the log because of that view.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ordering.log import ORDERING, Record
from ordering.records import FORMAT_VERSION, Register, View
from ordering.signatures import sign_record
from tests.checkers.records import batch_key, ordering_record
from tests.checkers.replay import Batch, Replayed, replay
from tests.simulation.cluster import SimulatedReader
from tests.simulation.damage import name_of
from tests.simulation.machine import Machine
from tests.simulation.plan import AIMED

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

WAITS_S = 8.0
LOOKS_S = 0.05
EXAMINED_LOOKS_S = 0.002
"""A comparison with the log is short."""
BEHIND_S = 3.0
ENTRY, REGISTER = 1, 2
"""Kinds of ordering records: the second byte of each (docs/formats.md)."""


class Aimed:
    """The aimed losses of one simulation."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._cluster = simulation.cluster
        self._draw = random.Random(f"aimed losses {simulation.plan.seed}")

    async def strike(self) -> None:
        """Cause one loss of the plan's kind, if its moment comes."""
        kind = self._simulation.plan.aimed
        strikes: dict[str, Callable[[], Awaitable[bool]]] = {name: getattr(self, f"_{name}") for name in AIMED}
        if await strikes[kind]():
            self._simulation.count(f"aimed losses: {kind}")

    # ---- the ordering topic ----

    async def _acknowledged(self) -> bool:
        """Delay all readers, and lose an acknowledged record before any of them reads it."""
        cluster, draw = self._cluster, self._draw
        cluster.behind_s[ORDERING] = BEHIND_S
        kind = draw.choice([ENTRY, REGISTER])
        if kind == REGISTER:
            draw.choice(self._simulation.machines).kill()
        length = len(cluster.by_partition[ORDERING])
        found = await self._until(lambda: self._landed(length, kind) is not None)
        if found:
            await asyncio.sleep(min(BEHIND_S - 0.3, 4 * self._simulation.plan.fates.delay_s) * draw.uniform(0.5, 1))
            self._cut(ORDERING, self._landed(length, kind) or length)
        cluster.behind_s.pop(ORDERING, None)
        cluster.wake()
        return found

    def _landed(self, offset: int, kind: int) -> int | None:
        """Returns the offset of the first record of that kind from `offset` on, None if there is none."""
        records = self._cluster.by_partition[ORDERING][offset:]
        return next((record.offset for record in records if (record.value or b"")[1:2] == bytes([kind])), None)

    async def _shown(self) -> bool:
        """Stall one worker's reader while it continues writing; the others get new disks when its records are in the log."""
        simulation, cluster, draw = self._simulation, self._cluster, self._draw
        if len(simulation.machines) < 2 or not await self._until(lambda: any(map(self._answered, simulation.machines))):
            return False
        machine = draw.choice([machine for machine in simulation.machines if self._answered(machine)])
        process = machine.running()
        worker = None if process is None else process.worker
        if process is None or worker is None:
            return False
        others = [other for other in simulation.machines if other.name != machine.name]
        down = [other for other in others if draw.random() < 0.5]
        for other in down:
            other.down = True
            other.kill()
        if down:
            # The stopped workers know nothing of what will be lost: their indexes end before it.
            length = len(worker.driver.joiner.history.since(0))
            await self._until(lambda: len(worker.driver.joiner.history.since(0)) > length + 2, WAITS_S / 2)
        for reader in process.log.readers:
            reader.stalled = True
        effects = worker.driver.joiner.history.since(0)[2 if not down else length :]
        if process.dead or not effects:
            for other in down:
                other.down = False
            return False
        self._cut(ORDERING, draw.choice(effects[-6:]).offset)
        cluster.wake()
        incarnations, length = worker.driver.joiner.incarnations, len(cluster.by_partition[ORDERING])
        wrote = await self._until(
            lambda: any(
                name_of(ordering_record(record.value), incarnations) == machine.name for record in cluster.by_partition[ORDERING][length:]
            )
        )
        for other in others:
            if other in down:
                other.down = False
            elif draw.random() < 0.9:
                other.kill()
                self._simulation.freeing.new_disk(other.disk)
        return wrote

    def _answered(self, machine: Machine) -> bool:
        process = machine.running()
        return process is not None and any(given.process is process for given in self._simulation.clients.calls.given)

    async def _unread(self) -> bool:
        """Delay all contents until a worker has paused the ordering topic, then lose the entry that waits at its head."""
        cluster, partitions = self._cluster, range(len(self._cluster.by_partition) - 1)
        cluster.behind_s |= dict.fromkeys(partitions, BEHIND_S)
        found = await self._until(lambda: self._unread_head() is not None)
        if found:
            self._cut(ORDERING, self._unread_head() or len(cluster.by_partition[ORDERING]))
            await asyncio.sleep(BEHIND_S)
        for partition in partitions:
            cluster.behind_s.pop(partition, None)
        cluster.wake()
        return found

    def _unread_head(self) -> int | None:
        """Returns the offset of the entry at the head of a worker that has paused the ordering topic, None if there is none."""
        for machine in self._simulation.machines:
            process = machine.running()
            driver = None if process is None or process.worker is None else process.worker.driver
            reader = None if driver is None else driver._reader
            assert reader is None or isinstance(reader, SimulatedReader)
            if driver is not None and reader is not None and reader.is_paused(ORDERING) and driver.joiner.hole_offset is not None:
                return driver.joiner.hole_offset
        return None

    async def _examined(self) -> bool:
        """Write a record with a foreign view, and lose it, or one before it, as soon as a worker compares its history with the log."""
        simulation, cluster, draw = self._simulation, self._cluster, self._draw
        if not cluster.takes(ORDERING):
            return False
        replayed, owner = replay(cluster.by_partition), simulation.owner
        view = View(max(1, replayed.seen - draw.randint(0, 3)), draw.randbytes(32))
        record = Register(draw.randbytes(16), view, FORMAT_VERSION, "stranger", "0")
        offset = len(cluster.by_partition[ORDERING])
        cluster.land(ORDERING, None, sign_record(record, owner.log_id, owner.in_force()))
        found = await self._until(lambda: self._evidence() is not None, looks_s=EXAMINED_LOOKS_S)
        offset = self._evidence() or offset
        self._cut(ORDERING, draw.choice([offset, max(1, offset - draw.randint(1, 6))]))
        return found

    def _evidence(self) -> int | None:
        """Returns the offset of the record with the foreign view for which a worker compares its history now, None if there is none."""
        drivers = [process.worker.driver for process in self._simulation.processes() if process.worker is not None]
        return next((driver.trust.examining.offset for driver in drivers if driver.trust.examining is not None), None)

    # ---- payload partitions ----

    async def _leaderless(self) -> bool:
        """Lose a joined content, put another record in its place, then take the leader away so that no worker can compare it."""
        found = await self._partition(lambda replayed, partition: self._furthest(replayed, partition) >= 0)
        if found is None:
            return False
        partition, replayed = found
        self._cut(partition, self._furthest(replayed, partition))
        for _ in range(self._draw.randint(1, 3)):
            self._cluster.land(partition, b"nobody's", b"nothing", forged=True)
        await asyncio.sleep(self._draw.uniform(0.2, 2))
        self._cluster.leaderless.add(partition)
        await asyncio.sleep(self._draw.uniform(2, 6))
        self._cluster.leaderless.discard(partition)
        self._cluster.elected(partition)
        return True

    async def _unused(self) -> bool:
        """Lose records that no entry asks for after they were read, so that other records take their offsets."""
        cluster, draw = self._cluster, self._draw
        if draw.random() < 0.4:
            return await self._unused_in_order()
        found = await self._partition(lambda replayed, partition: self._furthest(replayed, partition) >= 0)
        if found is None or not cluster.takes(found[0]):
            return False
        partition, replayed = found
        offset = len(cluster.by_partition[partition])
        copied = cluster.by_partition[partition][self._furthest(replayed, partition)]
        for _ in range(draw.randint(2, 4)):
            cluster.land(partition, copied.key, copied.value, forged=True)
        await asyncio.sleep(draw.uniform(0.2, 2))
        if not await self._until(lambda: self._furthest(replay(cluster.by_partition), partition) < offset, WAITS_S / 4):
            return False
        self._cut(partition, offset)
        return True

    async def _unused_in_order(self) -> bool:
        """Lose ordering records without a signature after they were read, so that other records take their offsets."""
        cluster, draw = self._cluster, self._draw
        if not cluster.takes(ORDERING):
            return False
        offset = len(cluster.by_partition[ORDERING])
        for _ in range(draw.randint(2, 4)):
            cluster.land(ORDERING, None, b"nothing", forged=True)
        await asyncio.sleep(draw.uniform(0.2, 2))
        last = max([one.offset for one in replay(cluster.by_partition).records if one.why_not is None])
        if last < offset:
            self._cut(ORDERING, offset)
        return last < offset

    async def _unordered(self) -> bool:
        """Lose the furthest content of a partition, which was joined before another one of the same partition."""
        machine = self._draw.choice(self._simulation.machines)
        self._cluster.slow_entries_s[machine.label] = self._simulation.plan.append_timeout_s / 2
        found = await self._partition(
            lambda replayed, partition: self._last(replayed, partition) < self._furthest(replayed, partition), 2 * WAITS_S
        )
        self._cluster.slow_entries_s.pop(machine.label, None)
        if found is None:
            return False
        partition, replayed = found
        await asyncio.sleep(self._draw.choice([0, 0, 0.2]))
        if self._furthest(replay(self._cluster.by_partition), partition) == self._furthest(replayed, partition):
            self._cut(partition, self._furthest(replayed, partition))
            self._cluster.land(partition, b"nobody's", b"nothing", forged=True)
        return True

    async def _ahead(self) -> bool:
        """Delay the ordering topic, and lose a payload that was read meanwhile before its entry is read."""
        cluster, draw = self._cluster, self._draw
        partition = draw.randrange(len(cluster.by_partition) - 1)
        cluster.behind_s[ORDERING] = BEHIND_S
        offset = len(cluster.by_partition[partition])
        found = await self._until(lambda: any(self._is_payload(record) for record in cluster.by_partition[partition][offset:]))
        if found:
            await asyncio.sleep(draw.uniform(0.3, BEHIND_S / 2))
            self._cut(partition, draw.randint(offset, max(offset, len(cluster.by_partition[partition]) - 1)))
        cluster.behind_s.pop(ORDERING, None)
        cluster.wake()
        return found

    async def _kept(self) -> bool:
        """Lose a buffered payload and the content after it; its entry arrives while that partition has no leader."""
        cluster, draw = self._cluster, self._draw
        machine = draw.choice(self._simulation.machines)
        cluster.slow_entries_s[machine.label] = self._simulation.plan.append_timeout_s / 2
        found = await self._partition(lambda replayed, partition: self._waiting(replayed, partition) >= 0)
        if found is not None:
            partition, replayed = found
            await asyncio.sleep(draw.uniform(0, 0.2))
            self._cut(partition, self._waiting(replayed, partition))
            cluster.leaderless.add(partition)
            cluster.elected(ORDERING)
            await asyncio.sleep(draw.uniform(2, 6))
            cluster.leaderless.discard(partition)
            cluster.elected(partition)
        cluster.slow_entries_s.pop(machine.label, None)
        return found is not None

    async def _held(self) -> bool:
        """Lose a payload that a reader holds back while the ordering topic has no leader; its entry is the next one that it reads there."""
        cluster, draw = self._cluster, self._draw
        cluster.behind_s[ORDERING] = BEHIND_S
        found = await self._until(lambda: self._next_content() is not None)
        if found and (content := self._next_content()) is not None:
            cluster.leaderless.add(ORDERING)
            cluster.elected(content.partition)
            await asyncio.sleep(draw.uniform(0.5, 2))
            self._cut(content.partition, content.content_offset)
            await asyncio.sleep(draw.uniform(2, 4))
            cluster.leaderless.discard(ORDERING)
        cluster.behind_s.pop(ORDERING, None)
        cluster.wake()
        return found

    def _next_content(self) -> Batch | None:
        """Returns the next batch that a worker has not joined yet, if its content lies behind others that the worker has joined."""
        batches = replay(self._cluster.by_partition).batches
        for process in self._simulation.processes():
            marks = {} if process.worker is None else process.worker.driver.joiner.marks
            after = next((batch for batch in batches if ORDERING in marks and batch.offset > marks[ORDERING].offset), None)
            if after is not None and after.partition in marks and after.content_offset > marks[after.partition].offset:
                return after
        return None

    # ---- the present log ----

    async def _partition(self, fits: Callable[[Replayed, int], bool], seconds: float = WAITS_S) -> tuple[int, Replayed] | None:
        """Returns a payload partition for which `fits` holds, with the log as it is then; None if there is none within `seconds`."""
        until_s = self._simulation.loop.time() + seconds
        while self._simulation.loop.time() < until_s and not self._simulation.healed:
            replayed = replay(self._cluster.by_partition)
            fitting = [partition for partition in range(len(self._cluster.by_partition) - 1) if fits(replayed, partition)]
            if fitting:
                return self._draw.choice(fitting), replayed
            await asyncio.sleep(LOOKS_S)
        return None

    async def _until(self, holds: Callable[[], bool], seconds: float = WAITS_S, looks_s: float = LOOKS_S) -> bool:
        until_s = self._simulation.loop.time() + seconds
        while not holds():
            if self._simulation.loop.time() >= until_s or self._simulation.healed:
                return False
            await asyncio.sleep(looks_s)
        return True

    @staticmethod
    def _furthest(replayed: Replayed, partition: int) -> int:
        """Returns the offset of the furthest content joined in that partition, -1 for none."""
        return max([batch.content_offset for batch in replayed.batches if batch.partition == partition], default=-1)

    @staticmethod
    def _last(replayed: Replayed, partition: int) -> int:
        """Returns the offset of the content that was joined last in that partition, -1 for none."""
        return next((batch.content_offset for batch in reversed(replayed.batches) if batch.partition == partition), -1)

    def _waiting(self, replayed: Replayed, partition: int) -> int:
        """Returns the offset of a payload before the furthest content there whose entry may still arrive, -1 for none."""
        for record in self._cluster.by_partition[partition][: max(0, self._furthest(replayed, partition))]:
            name = batch_key(record.key)
            state = None if name is None else replayed.unfenced(name[0])
            if name is not None and state is not None and name[1] > state.sequence_last and self._is_payload(record):
                return record.offset
        return -1

    @staticmethod
    def _is_payload(record: Record) -> bool:
        return (record.value or b"").startswith(b"[")

    def _cut(self, partition: int, end: int) -> None:
        if end < len(self._cluster.by_partition[partition]):
            self._simulation.losses.cut(partition, max(end, int(partition == ORDERING)))
            self._cluster.wake()
