"""Somebody who writes to a notary's topics and is no worker: without its key, or with it."""

import os
from hashlib import sha256

from aiokafka import AIOKafkaProducer

from notary import keys
from notary.config import load
from notary.worker import open_log
from ordering.genesis import read_genesis
from ordering.records import Entry, OrderingRecord, Register, View, batch_key
from ordering.signatures import SigningKey, sign_fill, sign_record
from ordering.topics import topic_names
from tests.kafka.workers import Notary


class Hand:
    """Writes records under `key`. Its views say that it has seen the genesis record, which is everybody's history."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, log_id: bytes, key: SigningKey) -> None:
        self._producer = producer
        self._ordering, self._payload = topic_names(prefix)
        self.log_id, self.key = log_id, key
        self.view = View(1, log_id)

    @classmethod
    async def of(cls, notary: Notary, producer: AIOKafkaProducer, *, stolen_key: bool) -> "Hand":
        """With the notary's own key, or with one of nobody's."""
        config = load(notary.directory / "notary.toml", {}, {})
        log = await open_log(config)
        try:
            _, log_id = await read_genesis(log)
        finally:
            await log.close()
        seed = keys.load(config.path(config.key_file)).private_bytes_raw() if stolen_key else os.urandom(32)
        return cls(producer, notary.prefix, log_id, SigningKey(seed))

    async def ordering(self, value: bytes | None, key: bytes | None = None) -> None:
        """Append these bytes."""
        await self._producer.send_and_wait(self._ordering, value, key=key, partition=0)

    async def record(self, record: OrderingRecord) -> None:
        """Append this record, signed."""
        await self.ordering(sign_record(record, self.log_id, self.key))

    async def register(self, name: str) -> None:
        """Append a registration."""
        await self.record(Register(os.urandom(16), self.view, 1, name, "0"))

    async def payload(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append these bytes."""
        await self._producer.send_and_wait(self._payload, value, key, partition=partition)

    def entry(
        self, incarnation: int, sequence: int, content: bytes, ids: tuple[bytes, ...], partition: int = 0, sent_at_ms: int = 0
    ) -> Entry:
        """An entry for that content."""
        return Entry(incarnation, sequence, self.view, sent_at_ms, partition, sha256(content).digest(), ids)

    async def fill(self, entry: Entry) -> None:
        """Append a fill for that entry."""
        name = batch_key(entry.incarnation, entry.sequence)
        await self.payload(entry.partition, name, sign_fill(self.log_id, entry.partition, name, entry.payload_hash, self.key))
