"""What all tests share: one small Kafka cluster, started when the first test asks for it, and a fresh topic prefix per test."""

import uuid
from collections.abc import Iterator

import pytest

from deploy.local import Cluster


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three real brokers for the whole session; a test that harms one brings it back before it ends."""
    with Cluster.create(tmp_path_factory.mktemp("kafka") / "cluster", brokers=3) as cluster:
        yield cluster


@pytest.fixture
def kafka_prefix() -> str:
    """A topic prefix that nobody has used."""
    return f"test-{uuid.uuid4().hex[:12]}"
