"""Fixtures: a notary on the brokers of the test session, whose workers are ended with the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.local import Cluster
from tests.kafka.workers import Notary, opened


@pytest.fixture
async def notary(kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path) -> AsyncIterator[Notary]:
    """A notary with topics of its own."""
    async with opened(tmp_path / "notary", kafka_cluster.bootstrap, kafka_prefix) as made:
        yield made
