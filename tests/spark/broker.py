"""One small broker that listens without encryption and over TLS, and topics of logs that no worker has written."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from deploy.local import Cluster
from deploy.local.ports import free_ports
from deploy.local.state import write_state
from ordering.topics import add_partitions, create_topics, topic_names
from tests.notary.certificates import Authority


class Broker:
    """The addresses of the broker."""

    def __init__(self, cluster: Cluster, tls: str, config: Path) -> None:
        self.bootstrap = cluster.bootstrap
        self.tls = tls
        """The address over TLS"""
        self.config = config
        """The properties file for connections over TLS"""

    def make(self, prefix: str, partitions: int = 1) -> None:
        """Create both topics, as the notary creates them."""
        asyncio.run(create_topics(self.bootstrap, prefix, partitions))

    def append(self, prefix: str, records: Mapping[int, Sequence[bytes]], at_ms: int | None = None, **how: object) -> None:
        """Append these values, by payload partition; -1 is the ordering topic.

        `at_ms` is the time of payloads. `how` has more arguments for `AIOKafkaProducer`.
        """
        asyncio.run(self._append(prefix, records, at_ms, how))

    def delete(self, prefix: str, partition: int, before: int) -> None:
        """Delete a payload partition's records before the offset `before`."""
        asyncio.run(self._delete(topic_names(prefix)[1], partition, before))

    def widen(self, prefix: str, partitions: int) -> None:
        """Add payload partitions, up to this number."""
        asyncio.run(add_partitions(self.bootstrap, prefix, partitions))

    def topics(self) -> list[str]:
        """Returns the names of all topics."""
        return asyncio.run(self._topics())

    async def _topics(self) -> list[str]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await client.start()
        try:
            return list(await client.list_topics())
        finally:
            await client.close()

    async def _append(self, prefix: str, records: Mapping[int, Sequence[bytes]], at_ms: int | None, how: Mapping[str, object]) -> None:
        ordering, payload = topic_names(prefix)
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", **how) as producer:
            if how:
                await producer.begin_transaction()
            for partition, values in records.items():
                for value in values:
                    await producer.send_and_wait(
                        ordering if partition < 0 else payload, value, b"key", max(partition, 0), timestamp_ms=at_ms
                    )
            if how:
                await producer.commit_transaction()

    async def _delete(self, topic: str, partition: int, before: int) -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await client.start()
        try:
            await client.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)})
        finally:
            await client.close()


@contextmanager
def one_broker(folder: Path) -> Iterator[Broker]:
    """A cluster of one broker, for the duration of the with block."""
    authority = Authority()
    pair, key = authority.server(), folder / "broker.pem"
    key.write_bytes(pair.key + pair.certificate)
    cluster = Cluster.create(folder / "cluster", 1)
    (port,) = free_ports(1)
    state = cluster.state
    address = f"{state.brokers[0].host}:{state.brokers[0].port}"
    overrides = {
        "listeners": f"BROKER://{address},CONTROLLER://{state.brokers[0].host}:{state.brokers[0].controller_port},TLS://127.0.0.1:{port}",
        "advertised.listeners": f"BROKER://{address},TLS://127.0.0.1:{port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(key),
        "auto.create.topics.enable": "true",  # Kafka's default: a request of ours that would create a topic shows
    }
    write_state(cluster.directory, replace(state, settings=replace(state.settings, overrides=overrides)))
    config = folder / "client.properties"
    config.write_text(
        f"security.protocol=SSL\nssl.truststore.type = PEM\nssl.truststore.location={authority.put(folder / 'authority.pem')}\n"
    )
    with cluster:
        yield Broker(cluster, f"127.0.0.1:{port}", config)
