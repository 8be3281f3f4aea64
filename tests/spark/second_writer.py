"""A second writer: whoever may append to a notary's topics and is no worker, and what they plant there."""

from aiokafka import AIOKafkaProducer

from ordering.records import Checkpoint, Entry, OrderingRecord, Register, batch_key, encode
from ordering.topics import topic_names
from payload import Submission, decode_submission, encode_batch
from tests.asking.party import Party, spend, state
from tests.checkers.history import Submission as Signed

Planted = list[tuple[str, int | None, int, str | None]]
"""(type, position, ordering offset, id) of each violation that was planted, in the order of offsets."""


class SecondWriter:
    """A life of its own, which begins and goes on, and a plain producer."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, notary: str, incarnation: int, partitions: int) -> None:
        self._producer = producer
        self._ordering, self._payload = topic_names(prefix)
        self._notary = notary
        self._incarnation = incarnation
        self._partitions = partitions

    async def append(self, record: OrderingRecord) -> int:
        """Append to the ordering topic; its offset."""
        placed = await self._producer.send_and_wait(self._ordering, encode(record), partition=0)
        offset: int = placed.offset
        return offset

    async def register(self) -> None:
        """Begin the life."""
        await self.append(Register(b"a second writer.", 1, "second writer", ""))

    async def checkpoint(self, size: int) -> int:
        """A root that no tree has; its offset."""
        return await self.append(Checkpoint(self._incarnation, size, bytes(32)))

    async def entry(self, sequence: int, *submissions: Signed) -> int:
        """An entry without its payload; its offset."""
        asked = tuple([request.transaction_id for each in self._decoded(submissions) for request in each.requests])
        return await self.append(Entry(self._incarnation, sequence, 0, sequence % self._partitions, asked))

    async def content(self, sequence: int, *submissions: Signed) -> None:
        """A payload without its entry."""
        value = encode_batch([each.encoded for each in self._decoded(submissions)])
        key = batch_key(self._incarnation, sequence)
        await self._producer.send_and_wait(self._payload, value, key, sequence % self._partitions)

    async def batch(self, sequence: int, *submissions: Signed) -> int:
        """Both; the entry's offset."""
        await self.content(sequence, *submissions)
        return await self.entry(sequence, *submissions)

    def _decoded(self, submissions: tuple[Signed, ...]) -> list[Submission]:
        return [decode_submission(each.body, self._notary) for each in submissions]


async def plant(bootstrap: str, prefix: str, asking: Party, *, lives: int, partitions: int, decided: int) -> Planted:
    """Whatever can be wrong with a log, once each, behind one of so many `lives` and decisions. Nobody else may be writing.

    The hole is the last one, as nothing behind it can be verified.
    """
    forger, nobody = Party(asking.notary, asking.name), Party(asking.notary, "O=Nobody,L=Nowhere,C=GB")
    good, hidden, lost = (asking.submission(spend(state(label))) for label in ("good", "hidden", "lost"))
    forged, unknown = forger.submission(spend(state("forged"))), nobody.submission(spend(state("unknown"), state("too")))
    shown, far = (asking.submission(spend(state(label))) for label in ("shown", "far"))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        writer = SecondWriter(producer, prefix, asking.notary, lives + 1, partitions)
        await writer.register()
        planted: Planted = [("root-mismatch", 1, await writer.checkpoint(1), None)]
        planted.append(("bad-signature", decided + 1, await writer.batch(1, good, forged), forged.ids[0]))
        planted.append(("unknown-party", decided + 2, await writer.batch(2, unknown), unknown.ids[0]))
        await writer.content(3, hidden)
        planted.append(("id-mismatch", None, await writer.entry(3, shown), None))
        planted.append(("sequence-gap", None, await writer.batch(5, far), None))
        planted.append(("missing-payload", decided + 4, await writer.entry(6, lost), None))
        await writer.checkpoint(decided + 5)
    return planted
