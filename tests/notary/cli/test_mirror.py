"""Tests `notary mirror` as a process: it copies until a signal, and refuses what is no mirror."""

import asyncio
from pathlib import Path

import pytest

from deploy.local import Cluster
from notary import cli
from ordering.topics import create_topics
from tests.clients.load import until
from tests.kafka.mirrors import Mirror
from tests.notary.process import NotaryDirectory

pytestmark = pytest.mark.kafka


async def test_copies_until_a_signal(kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path) -> None:
    """It logs that it copies, and exits with 0 after SIGTERM; the topics of a log are refused, with exit code 2."""
    options = ["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix]
    notary = await asyncio.to_thread(NotaryDirectory.create, tmp_path / "notary", options=options)
    await create_topics(kafka_cluster.bootstrap, f"{kafka_prefix}-mirror", 4, mirror=True)
    target = tmp_path / "target.toml"
    target.write_text(notary.config.read_text().replace(f'"{kafka_prefix}"', f'"{kafka_prefix}-mirror"'))
    with Mirror(notary.config, str(target), flag="--to-config") as mirror:
        await until(lambda: f"copying {kafka_prefix} from" in mirror.messages, 0.1)
        mirror.stop()
    with Mirror(notary.config, str(notary.config), flag="--to-config") as mirror:
        assert await asyncio.to_thread(mirror.ended) == 2
    assert "are a log and no mirror" in mirror.messages


def test_an_impossible_health_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The address is read before anything is copied."""
    file = tmp_path / "notary.toml"
    file.write_text('name = "N"\norigin = "o"\n[log]\nkind = "kafka"\nbootstrap = "broker-1:9092"\n')
    assert cli.main(["mirror", "--config", str(file), "--to", "broker-2:9092", "--health-listen", "9090"]) == 2
    assert "expected HOST:PORT to listen on, got '9090'" in capsys.readouterr().err


def test_an_embedded_log_has_no_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a log in Kafka can be copied."""
    notary = NotaryDirectory.create(tmp_path / "notary")
    assert cli.main(["mirror", "--config", str(notary.config), "--to", "broker-1:9092"]) == 2
    assert "has an embedded log: only a log in Kafka has a mirror" in capsys.readouterr().err
