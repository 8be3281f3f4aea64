"""What breaks, and when: every fault of a plan gets a time, and what it breaks is drawn when it strikes."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING

from notary.index.store import DECISIONS
from ordering.log import ORDERING
from ordering.records import FORMAT_VERSION, Activate, Checkpoint, Fence, Register, batch_key, encode
from payload import decode_submission, encode_batch
from tests.simulation import divergence, loss
from tests.simulation.plan import CLOCK_STANDS_AT_MS, FAULTS_S
from tests.simulation.premises import NOTARY
from tests.simulation.slot import Slot

if TYPE_CHECKING:
    from tests.simulation.world import World

HOLDS_S = (0.1, 0.7, 3.0, 12.0)
"""How long what does not heal by itself holds."""
_NAME = Struct(">QQ")
FORGED_ROOT = bytes(32)
NO_LIFE = 1 << 40
GARBAGE = (b"", b"[", b"{}", b"null", b"[]", b'[{"party":""}]', None)


class Faults:
    """The faults of one simulation."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.draw = random.Random(f"faults {world.plan.seed}")

    async def run(self) -> None:
        """All of them, each at its time."""
        plan = self.world.plan
        kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (plan.crashes, self._crash),
            (plan.machine_crashes, self._machine_crash),
            (plan.stops, self._stop),
            (plan.stalls, self._stall),
            (plan.cut_offs, self._cut_off),
            (plan.leaderless, self._leaderless),
            (plan.cuts, self._cut),
            (plan.snapshots, self._snapshot),
            (plan.wiped, self._wipe),
            (plan.full_disks, self._fill),
            (plan.altered_rows, self._alter),
            (plan.clock_jumps * 3, self._jump),
            (plan.clocks_stand, self._stand),
            (plan.forgers, self._forge),
            (plan.namesake, self._namesake),
            (plan.late_registers, self._register_late),
            (plan.diverged, self._diverge),
            (plan.losses, self._lose),
        ]
        async with asyncio.TaskGroup() as tasks:
            for count, strike in kinds:
                for _ in range(count):
                    tasks.create_task(self._at(self.draw.uniform(0, plan.faults_s), strike))

    async def _at(self, at_s: float, strike: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(at_s)
        await strike()

    async def _hold(self) -> None:
        await asyncio.sleep(self.draw.choice(HOLDS_S))

    def _slot(self) -> Slot:
        return self.draw.choice(self.world.slots)

    def _tell(self, who: str, what: str, counted: str) -> None:
        self.world.say(who, what)
        self.world.count(counted)

    async def _crash(self) -> None:
        slot = self._slot()
        if slot.kill():
            self._tell(slot.label, "is killed", "crashes")

    async def _machine_crash(self) -> None:
        slot = self._slot()
        slot.kill()
        self._tell(slot.label, f"its machine crashes, {slot.disk.lose_unflushed()} batches are lost", "machine crashes")

    async def _stop(self) -> None:
        slot = self._slot()
        if (process := slot.running()) is not None:
            process.stop.set()
            self._tell(slot.label, "is told to end", "orderly ends")

    async def _stall(self) -> None:
        slot = self._slot()
        if (process := slot.running()) is not None and process.log.readers:
            process.log.readers[-1].stalled = True
            self._tell(slot.label, "its reader fails without a word", "stalled readers")

    async def _cut_off(self) -> None:
        slot = self._slot()
        slot.cut_off = True
        self._tell(slot.label, "is cut off from the brokers", "cut off")
        await self._hold()
        slot.cut_off = False
        self.world.cluster.wake()

    async def _leaderless(self) -> None:
        cluster = self.world.cluster
        stream = self.draw.choice(list(cluster.streams))
        cluster.leaderless.add(stream)
        self._tell("cluster", f"stream {stream} has no leader", "streams without a leader")
        await self._hold()
        cluster.leaderless.discard(stream)
        cluster.wake()

    async def _cut(self) -> None:
        cluster = self.world.cluster
        streams = [stream for stream, records in cluster.streams.items() if records and stream not in cluster.shown]
        if not streams:
            return
        stream = self.draw.choice(streams)
        cluster.shown[stream] = self.draw.randrange(len(cluster.streams[stream]))
        self._tell("cluster", f"stream {stream} shows {cluster.shown[stream]} of {len(cluster.streams[stream])}", "cut logs")
        shown = [cluster.loop.time(), float("inf")]
        self.world.shown_less.append(shown)
        await self._hold()
        shown[1] = cluster.loop.time()
        cluster.shown.pop(stream, None)
        cluster.wake()

    async def _snapshot(self) -> None:
        slot = self._slot()
        batches = len(slot.disk.journal)
        await self._hold()
        if batches <= len(slot.disk.journal) and not slot.disk.altered:
            slot.kill()
            self._tell(slot.label, f"a snapshot of {batches} of {len(slot.disk.journal)} batches is put back", "snapshots")
            slot.disk.restore(batches)

    async def _wipe(self) -> None:
        slot = self._slot()
        slot.kill()
        slot.disk.wipe()
        self._tell(slot.label, "gets a new disk", "new disks")

    async def _fill(self) -> None:
        slot = self._slot()
        slot.disk.full = True
        self._tell(slot.label, "its disk is full", "full disks")
        await self._hold()
        slot.disk.full = False

    async def _alter(self) -> None:
        slot = self._slot()
        if (id_ := slot.disk.alter(DECISIONS)) is None:
            return
        self._tell(slot.label, "a row of its index is changed", "altered rows")
        if (process := slot.running()) is not None and self.draw.random() < 0.5:
            await self.world.clients.look_up(process, id_.hex())

    async def _jump(self) -> None:
        jump_ms = self.draw.choice([-100_000, -1_000, 1_000, 30_000, 100_000])
        if self.draw.random() < 0.5:
            self.world.broker_skew_ms += jump_ms
            self._tell("cluster", f"its clock jumps by {jump_ms} ms", "clock jumps")
        else:
            slot = self._slot()
            slot.skew_ms += jump_ms
            self._tell(slot.label, f"its clock jumps by {jump_ms} ms", "clock jumps")

    async def _stand(self) -> None:
        world = self.world
        world.broker_stands_at_ms = -(-world.broker_ms() // CLOCK_STANDS_AT_MS) * CLOCK_STANDS_AT_MS
        self._tell("cluster", "its clock stands still", "clocks that stand still")
        await self._hold()
        world.broker_stands_at_ms = None

    async def _diverge(self) -> None:
        if label := divergence.strike(self.world, self.draw):
            self._tell(label, "may decide otherwise from now on", "altered states")

    async def _lose(self) -> None:
        world = self.world
        world.loss = loss.strike(world, self.draw)
        if world.loss is None:
            return
        self._tell(
            "cluster",
            f"the log has lost its end: { ({stream: len(records) for stream, records in world.cluster.streams.items()}) }",
            "lost logs",
        )
        away_s = min(self.draw.choice(loss.AWAY_S), max(0.0, world.plan.faults_s - world.loop.time()))
        await asyncio.sleep(away_s)
        world.loss.back_s = world.loop.time()
        world.cluster.away = False
        world.cluster.wake()
        world.operator = asyncio.create_task(loss.stop_all(world, world.loss))

    async def _namesake(self) -> None:
        """A second process of one name, on a disk of its own."""
        world = self.world
        slot = self._slot()
        other = Slot(world.plan.seed, slot.label + "'", slot.name, 0)
        world.slots.append(other)
        world.supervise(other)
        self._tell(other.label, f"a second process of the name {slot.name}", "namesakes")
        await asyncio.sleep(min(self.draw.choice([3.0, 20.0]), max(0.0, world.plan.faults_s - world.loop.time())))
        other.ended = True
        other.kill()
        world.slots.remove(other)
        world.gone.append(other)

    async def _register_late(self) -> None:
        """A process that is gone was a worker of this name, and only now the brokers have its register records. Always the same name's."""
        slot = self.world.slots[0]
        for _ in range(self.draw.choice([1, 2, 3]) if self.world.plan.faults_s > FAULTS_S else 1):
            self.world.cluster.land(ORDERING, None, encode(Register(self.draw.randbytes(16), FORMAT_VERSION, slot.name, "gone")))
            self._tell(slot.label, "a register record of a process that is gone comes late", "late register records")
            await asyncio.sleep(self.draw.choice([2.0, 10.0]))

    async def _forge(self) -> None:
        """Whoever may write to the topics can write anything: nonsense, repeats, contents under names that are not theirs."""
        cluster, draw = self.world.cluster, self.draw
        partition = draw.randrange(self.world.plan.partitions)
        stream = draw.choice(list(cluster.streams))
        incarnation, sequence = self._name_to_come()
        kind = draw.choice(["nonsense", "root", "fence", "key", "content", "content", "content", "repeat"])
        if kind == "nonsense":
            cluster.land(ORDERING, None, draw.choice([b"", b"\x01", b"\x01\x01short", b"\x02\x01", b"\x01\x63", encode(Activate(1))]))
        elif kind == "root":
            # Of a life that never will be: in the name of a worker it would be that worker's vote, and one against one is silence (R9).
            cluster.land(ORDERING, None, encode(Checkpoint(NO_LIFE, sequence, FORGED_ROOT)))
        elif kind == "fence":
            cluster.land(ORDERING, None, encode(Fence(incarnation, max(0, sequence - 1))))
        elif kind == "key":
            cluster.land(partition, draw.choice([None, b"short"]), b"[]")
        elif kind == "content":
            asked = decode_submission(draw.choice(self.world.clients.submissions).body, NOTARY)
            cluster.land(partition, batch_key(incarnation, sequence), draw.choice([draw.choice(GARBAGE), encode_batch([asked.encoded])]))
        elif cluster.streams[stream]:
            record = draw.choice(cluster.streams[stream])
            cluster.land(stream, record.key, record.value)
        self._tell("forger", f"writes to the log: {kind}", "forged records")

    def _name_to_come(self) -> tuple[int, int]:
        """The name of a batch that a worker is about to send, more or less."""
        entries = [record.value for record in self.world.cluster.streams[ORDERING] if (record.value or b"").startswith(b"\x01\x01")]
        names = [_NAME.unpack_from(value, 2) for value in entries[-5:] if value is not None and len(value) > _NAME.size + 2]
        incarnation, sequence = self.draw.choice(names) if names else (1, 0)
        return incarnation + (self.draw.random() < 0.2), sequence + self.draw.randint(0, 2)
