"""Fixtures: a notary on each kind of log, because clients may rely on the same promises on both."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.local import Cluster
from tests.kafka.workers import Notary, Worker, opened


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.nightly])])
async def notary(request: pytest.FixtureRequest, kafka_prefix: str, tmp_path: Path) -> AsyncIterator[Notary]:
    """A notary on an embedded log, and one on brokers."""
    bootstrap = ""
    if request.param == "kafka":
        cluster: Cluster = request.getfixturevalue("kafka_cluster")
        bootstrap = cluster.bootstrap
    async with opened(tmp_path / "notary", bootstrap, kafka_prefix) as made:
        yield made


@pytest.fixture
async def worker(notary: Notary) -> Worker:
    """A worker of that notary, ready."""
    return await notary.start("a").ready()
