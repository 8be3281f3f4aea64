"""A writer to a notary's topics that is no worker, with or without the notary's key."""

import os
from hashlib import sha256

from aiokafka import AIOKafkaProducer

from notary import keys
from notary.config import load
from notary.open_log import open_log
from ordering.genesis import read_genesis
from ordering.records import Entry, OrderingRecord, Register, View, batch_key
from ordering.signatures import SigningKey, sign_fill, sign_record
from ordering.topics import topic_names
from tests.kafka.workers import Notary
from tests.ordering.closing import closing


class Hand:
    """A writer that signs with `key`. Its views cover the genesis record alone, which belongs to every history."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, log_id: bytes, key: SigningKey) -> None:
        self._producer = producer
        self._ordering, self._payload = topic_names(prefix)
        self.log_id, self.key = log_id, key
        self.view = View(1, log_id)

    @classmethod
    async def of(cls, notary: Notary, producer: AIOKafkaProducer, *, stolen_key: bool) -> "Hand":
        """Returns a writer with the notary's own key, or with an unknown one."""
        config = load(notary.directory / "notary.toml", {}, {})
        async with closing(await open_log(config)) as log:
            _, log_id = await read_genesis(log)
        seed = keys.load(config.path(config.key_file)).private_bytes_raw() if stolen_key else os.urandom(32)
        return cls(producer, notary.prefix, log_id, SigningKey(seed))

    async def ordering(self, value: bytes | None, key: bytes | None = None) -> int:
        """Append this value to the ordering topic; returns its offset."""
        placed = await self._producer.send_and_wait(self._ordering, value, key=key, partition=0)
        offset: int = placed.offset
        return offset

    async def record(self, record: OrderingRecord, key: SigningKey | None = None) -> int:
        """Append this record, signed with `key` or the writer's; returns its offset."""
        return await self.ordering(sign_record(record, self.log_id, key or self.key))

    async def register(self, name: str) -> None:
        """Append a register record."""
        await self.record(Register(os.urandom(16), self.view, 1, name, "0"))

    async def payload(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append this payload record."""
        await self._producer.send_and_wait(self._payload, value, key, partition=partition)

    def entry(
        self, incarnation: int, sequence: int, content: bytes, ids: tuple[bytes, ...], partition: int = 0, sent_at_ms: int = 0
    ) -> Entry:
        """Returns an entry for that content."""
        return Entry(incarnation, sequence, self.view, sent_at_ms, partition, sha256(content).digest(), ids)

    async def fill(self, entry: Entry) -> None:
        """Append a fill for that entry."""
        name = batch_key(entry.incarnation, entry.sequence)
        await self.payload(entry.partition, name, sign_fill(self.log_id, entry.partition, name, entry.payload_hash, self.key))
