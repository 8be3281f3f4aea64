"""Fixtures: a notary on the brokers of the test session, whose workers are ended with the test, and its owner's commands."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from deploy.local import Cluster
from notary import cli
from notary.cli import failover
from tests.kafka.workers import Notary, opened

Owner: TypeAlias = Callable[..., Awaitable[Any]]


@pytest.fixture
async def notary(kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path) -> AsyncIterator[Notary]:
    """A notary with topics of its own."""
    async with opened(tmp_path / "notary", kafka_cluster.bootstrap, kafka_prefix) as made:
        yield made


@pytest.fixture
def owner(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Owner:
    """Runs commands of the owner, which wait for a shorter time until nothing comes into a mirror."""
    monkeypatch.setattr(failover, "QUIET_S", 1.0)

    async def run(*arguments: object, fails: bool = False) -> Any:
        """Run a command of the owner; returns its JSON, or its message if it `fails`."""
        capsys.readouterr()
        given = [*map(str, arguments), "--config", str(tmp_path / "notary" / "notary.toml"), "--json"]
        code = await asyncio.to_thread(cli.main, given)
        printed = capsys.readouterr()
        assert code == (2 if fails else 0), printed.out + printed.err
        return printed.err if fails else json.loads(printed.out)

    return run
