"""A second writer: it has the notary's key, is no worker, and appends records that no worker would."""

from aiokafka import AIOKafkaProducer

from ordering.records import Checkpoint, View, batch_key
from ordering.signatures import SigningKey
from payload import decode_submission, encode_batch
from tests.checkers.history import Submission
from tests.checkers.replay import Replayed
from tests.clients.party import Party, spend, state
from tests.kafka.second_hand import Hand

Planted = list[tuple[str, int | None, int, str | None]]
"""(type, position, ordering offset, id) of each planted violation, in the order of offsets."""


class SecondWriter(Hand):
    """A writer with an incarnation of its own and a plain producer. All its views are those of the log that it found."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, key: SigningKey, found: Replayed) -> None:
        super().__init__(producer, prefix, found.log_id, key)
        self._found = found
        self._incarnation = len(found.incarnations) + 1
        self.view = View(found.seen, found.history)

    async def checkpoint(self, size: int, view: View | None = None) -> int:
        """Append a checkpoint with a root that no tree has; returns its offset."""
        return await self.record(Checkpoint(self._incarnation, view or self.view, size, bytes(32)))

    async def append_entry(
        self, sequence: int, *submissions: Submission, ids: tuple[bytes, ...] | None = None, key: SigningKey | None = None
    ) -> int:
        """Append an entry without its payload, by default with the ids of these submissions; returns its offset."""
        asked = tuple([bytes.fromhex(id_) for each in submissions for id_ in each.ids])
        content, partition = self._value(submissions), sequence % self._found.partitions
        return await self.record(self.entry(self._incarnation, sequence, content, asked if ids is None else ids, partition), key)

    async def content(self, sequence: int, *submissions: Submission) -> None:
        """Append a payload without its entry."""
        await self.payload(sequence % self._found.partitions, batch_key(self._incarnation, sequence), self._value(submissions))

    async def batch(self, sequence: int, *submissions: Submission) -> int:
        """Append a payload and its entry; returns the entry's offset."""
        await self.content(sequence, *submissions)
        return await self.append_entry(sequence, *submissions)

    def _value(self, submissions: tuple[Submission, ...]) -> bytes:
        return encode_batch([decode_submission(each.body, self._found.name).encoded for each in submissions])


async def plant(bootstrap: str, prefix: str, key: SigningKey, party: Party, found: Replayed) -> Planted:
    """Append each possible violation once, behind the records in `found`. No other writer may be active.

    The hole is the last one, because nothing behind it can be verified. A record without the notary's signature is no violation.
    """
    decided = len(found.decisions)
    forger, nobody = Party(party.notary, party.name), Party(party.notary, "O=Nobody,L=Nowhere,C=GB")
    good, shown, far, lost = (party.submission(spend(state(label))) for label in ("good", "shown", "far", "lost"))
    forged, unknown = forger.submission(spend(state("forged"))), nobody.submission(spend(state("unknown"), state("too")))
    other = View(found.seen, bytes(32))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        writer = SecondWriter(producer, prefix, key, found)
        await writer.register("second writer")
        await writer.append_entry(1, good, key=SigningKey(bytes(32)))
        planted: Planted = [("root-mismatch", 1, await writer.checkpoint(1), None)]
        planted.append(("foreign-view", None, await writer.checkpoint(1, view=other), None))
        planted.append(("bad-signature", decided + 1, await writer.batch(1, good, forged), forged.ids[0]))
        planted.append(("unknown-party", decided + 2, await writer.batch(2, unknown), unknown.ids[0]))
        await writer.content(3, shown)
        planted.append(("id-mismatch", None, await writer.append_entry(3, shown, ids=(bytes(32),)), None))
        planted.append(("sequence-gap", None, await writer.batch(5, far), None))
        planted.append(("missing-payload", decided + 4, await writer.append_entry(6, lost), None))
        await writer.checkpoint(decided + 5, view=View(2**64 - 1, bytes(32)))
    return planted
