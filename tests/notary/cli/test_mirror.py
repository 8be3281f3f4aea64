"""Tests `notary mirror`: what it reports, and that it refuses what is no mirror. `tests/deploy/manifests/test_users.py` has its process."""

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from aiokafka.admin.config_resource import ConfigResourceType
from prometheus_client.parser import text_string_to_metric_families

from deploy.local import Cluster
from deploy.local.ports import free_ports
from notary import cli, keys
from notary.cli import failover, owner
from notary.cli.failover import _Failover
from notary.cli.mirror import _mirror, _served, source_and_target
from notary.config import load
from notary.topic_watch import TopicWatch
from ordering.connection import AlterSettingsRequest, admin
from ordering.errors import ConfigurationError, NotReady
from ordering.log import LogOffsets
from ordering.records import SALVAGE_FORMAT
from ordering.topics import CreatedTopics, create_topics
from tests.clients.load import until
from tests.notary.process import NotaryDirectory


@pytest.mark.kafka
async def test_changed_settings_of_the_mirror_are_reported(
    kafka_cluster: Cluster, kafka_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its records have the times of the log's, so that retention deletes most of them at once. Brokers' append times make it a log."""
    monkeypatch.setattr("notary.cli.mirror.TopicWatch", partial(TopicWatch, interval_s=0.1))
    options = ["--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix]
    notary = await asyncio.to_thread(NotaryDirectory.create, tmp_path / "notary", options=options)
    topics = f"{kafka_prefix}-mirror"
    await create_topics(kafka_cluster.bootstrap, topics, 4, mirror=True)
    source = load(notary.config)
    target = load(notary.config, {"log.topic_prefix": topics})
    (port,) = free_ports(1)
    caplog.set_level(logging.INFO)
    copying = asyncio.create_task(_mirror(source, target, ("127.0.0.1", port)))

    async def problems() -> float:
        async with httpx.AsyncClient(trust_env=False) as client:
            shown = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        return {family.name: family.samples[0].value for family in text_string_to_metric_families(shown)}["notary_topic_problems"]

    async def change(topic: str, name: str, value: str) -> None:
        async with admin(kafka_cluster.bootstrap, "test", None, 10_000) as client:
            await client._send_request(AlterSettingsRequest(ConfigResourceType.TOPIC, {f"{topics}.{topic}": {name: value}}))

    try:
        await until(lambda: f"copying {kafka_prefix} from" in caplog.text, 0.1)
        assert await problems() == 0
        await change("payload", "retention.ms", "604800000")
        await until(lambda: f"{topics}.payload has retention.ms=604800000, wanted -1" in caplog.text, 0.1)
        await change("ordering", "message.timestamp.type", "LogAppendTime")
        await until(lambda: f"{topics}.ordering has message.timestamp.type=LogAppendTime, wanted CreateTime" in caplog.text, 0.1)
        assert await problems() == 2
        await change("payload", "retention.ms", "-1")
        await change("ordering", "message.timestamp.type", "CreateTime")
        await until(lambda: "the topics' settings are valid again" in caplog.text, 0.1)
        assert await problems() == 0
    finally:
        copying.cancel()
        await asyncio.wait([copying])


def test_a_log_is_not_its_own_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable may make both the same brokers. Then nothing would be copied, and all would look well."""
    for name in ("source", "mirror"):
        log = f'kind = "kafka"\nbootstrap = "{name}:9092"'
        (tmp_path / f"{name}.toml").write_text(f'name = "N"\norigin = "o"\n[log]\n{log}\n')
    monkeypatch.setenv("NOTARY_LOG_BOOTSTRAP", "mirror:9092")
    for command in (["mirror"], ["failover", "--prepare"]):
        assert cli.main([*command, "--config", str(tmp_path / "source.toml"), "--to-config", str(tmp_path / "mirror.toml")]) == 2
        assert "would be the same topics, notary at mirror:9092" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a" * 64, "health..example"])
def test_a_host_that_no_resolver_takes_is_refused(host: str) -> None:
    """It is an error of the configuration."""
    mirror: Any = SimpleNamespace()
    with pytest.raises(ConfigurationError, match=f"--health-listen {host}:0"), _served(mirror, mirror, (), (host, 0)):
        pass


def test_an_impossible_health_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The address is read before anything is copied."""
    file = tmp_path / "notary.toml"
    file.write_text('name = "N"\norigin = "o"\n[log]\nkind = "kafka"\nbootstrap = "broker-1:9092"\n')
    assert cli.main(["mirror", "--config", str(file), "--to", "broker-2:9092", "--health-listen", "9090"]) == 2
    assert "expected HOST:PORT to listen on, got '9090'" in capsys.readouterr().err


async def test_brokers_that_are_away_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries again, as it does later, and says so once. Any other error still ends it."""
    file = tmp_path / "notary.toml"
    file.write_text('name = "N"\norigin = "o"\n[log]\nkind = "kafka"\nbootstrap = "broker-1:9092"\n')
    answers: list[NotReady | bool] = [NotReady("Kafka is away"), NotReady("Kafka is away"), True]

    async def uses_append_times(*_: object, **__: object) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, NotReady):
            raise answer
        return answer

    monkeypatch.setattr("notary.cli.mirror.uses_append_times", uses_append_times)
    monkeypatch.setattr("notary.cli.mirror.AGAIN_S", 0)
    source, target = source_and_target(argparse.Namespace(config=file, to_config=None, to="broker-2:9092"))
    with pytest.raises(ConfigurationError, match="are a log and no mirror"):
        await _mirror(source, target, None)
    assert [record.getMessage() for record in caplog.records] == ["copying cannot begin yet, trying again: Kafka is away"]


def test_the_environment_is_that_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables for the log's brokers do not change the file that names the mirror; its certificates are where it is."""
    (tmp_path / "there").mkdir()
    tls = 'security_protocol = "SSL"\nca_file = "ca.crt"'
    for file, log in (("source.toml", 'bootstrap = "other:9092"'), ("there/mirror.toml", f'bootstrap = "mirror:9092"\n{tls}')):
        (tmp_path / file).write_text(f'name = "N"\norigin = "o"\n[log]\nkind = "kafka"\n{log}\n')
    monkeypatch.setenv("NOTARY_LOG_BOOTSTRAP", "source:9092")
    monkeypatch.chdir(tmp_path)
    given = argparse.Namespace(config=Path("source.toml"), to_config=Path("there/mirror.toml"), to=None)
    source, target = source_and_target(given)
    assert (source.log.bootstrap, target.log.bootstrap) == ("source:9092", "mirror:9092")
    assert target.log.ca_file == str(tmp_path / "there" / "ca.crt")
    assert target.path("index") == source.path("index")


def test_a_key_beside_the_mirrors_configuration_is_not_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The target's site has the notary's key, and the operator's machine does not: `failover --lost` would give up that key."""
    source, target = tmp_path / "here" / "notary.toml", tmp_path / "there" / "notary.toml"
    for file in (source, target):
        file.parent.mkdir()
        file.write_text('name = "N"\norigin = "o"\n[log]\nkind = "kafka"\nbootstrap = "127.0.0.1:1"\n')
    failover = ["failover", "--config", str(source), "--to-config", str(target), "--lost", "--plan"]
    keys.create(target.parent / "notary-key.pem")
    assert cli.main(failover) == 2
    assert f"{target.parent / 'notary-key.pem'} is there" in capsys.readouterr().err
    (target.parent / "notary-key.pem").rename(source.parent / "notary-key.pem")
    assert cli.main(failover) == 2
    assert "is there" not in capsys.readouterr().err, "the key beside --config is compared with the log later"


def test_a_failover_without_the_key_names_no_command_for_the_source(tmp_path: Path) -> None:
    """`notary key rotate --lost` would append to the log of `--config`, which is gone, and not to the mirror."""
    config = load(NotaryDirectory.create(tmp_path / "notary").config)
    log: Any = SimpleNamespace(state=SimpleNamespace(keys=[bytes(32)], key=bytes(32)))
    command = _Failover(config, argparse.Namespace(work=None, lost=False))
    with pytest.raises(ConfigurationError, match=r"this machine missed a rotation.* and give --lost here$") as refused:
        command._check_key(log)
    assert "rotate --lost" not in str(refused.value)


def test_a_mirror_that_lost_its_beginning_needs_no_snapshot(tmp_path: Path) -> None:
    """No snapshot is of the mirror's topics: the remedy of `notary salvage` for freed contents does not exist here."""
    config = load(NotaryDirectory.create(tmp_path / "notary").config)

    async def offsets() -> dict[int, LogOffsets]:
        return {0: LogOffsets(5, 10)}

    log: Any = SimpleNamespace(log=SimpleNamespace(offsets=offsets))
    state: Any = SimpleNamespace(offsets_next={})
    command = _Failover(config, argparse.Namespace(work=None, lost=False))
    with pytest.raises(ConfigurationError, match=r"payload partition 0 .* another mirror, or restore an archive") as refused:
        asyncio.run(command._check_start(log, state))
    assert "snapshot restore" not in str(refused.value)


@pytest.mark.parametrize("flags", [[], ["--flush-messages"]])
def test_a_mirror_is_made_for_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    """Its topics have the log's partitions, at the mirror's brokers. The command warns of few replicas, and if no failover is possible."""
    for name in ("source", "mirror"):
        (tmp_path / f"{name}.toml").write_text(f'name = "N"\norigin = "o"\n[log]\nkind = "kafka"\nbootstrap = "{name}:9092"\n')
    replayed, made = list[str](), list[object]()

    class Log:
        def __init__(self, bootstrap: str) -> None:
            self.log, self.bootstrap, self.state = self, bootstrap, SimpleNamespace(payload_partitions=5, formats=[1])

        async def replay(self) -> None:
            replayed.append(self.bootstrap)

        async def offsets(self) -> dict[int, LogOffsets]:
            return {0: LogOffsets(0, 10)}

    @asynccontextmanager
    async def opened(config: Any, command: str) -> AsyncIterator[Log]:
        yield Log(config.log.bootstrap)

    async def created(*names: object, security: object, **how: object) -> CreatedTopics:
        made.append((*names, how))
        return CreatedTopics(("notary.ordering",), ("notary.payload",), ("few replicas",))

    monkeypatch.setattr(owner, "opened", opened)
    monkeypatch.setattr(failover, "create_topics", created)
    command = ["failover", "--prepare", *flags, "--config", str(tmp_path / "source.toml"), "--to-config", str(tmp_path / "mirror.toml")]
    assert cli.main(command) == 0
    assert (replayed, made) == (["source:9092"], [("mirror:9092", "notary", 5, {"flush_ordering": bool(flags), "mirror": True})])
    warnings = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert warnings == ["few replicas", f"format version {SALVAGE_FORMAT} is not active, and no failover is possible without it:"]


@pytest.mark.parametrize(
    ("is_log", "has_key", "ends", "refused"),
    [
        (True, False, [5], "are no mirror: they have the brokers' append times"),
        (True, True, [5, 5], ""),
        (False, False, [5, 6, 6, 6], ""),
        (False, False, [5, 6, 6, 9], "the mirror still grows: 3 records came into payload partition 0"),
    ],
    ids=["a log", "a failover that was interrupted at its end", "the last records", "a mirror that is filled"],
)
async def test_a_failover_begins_with_a_mirror_that_has_stopped_growing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_log: bool, has_key: bool, ends: list[int], refused: str
) -> None:
    """Records in flight may still arrive, and a partition may lose its leader meanwhile.

    A log is refused, unless this command has made it one and not yet put its key in place.
    """

    @asynccontextmanager
    async def opened(config: Any, command: str, *, mirror: bool) -> AsyncIterator[Any]:
        assert mirror
        yield SimpleNamespace(log=SimpleNamespace(offsets=offsets))

    async def offsets() -> dict[int, LogOffsets]:
        end = ends.pop(0)
        return {0: LogOffsets(0, end), **({1: LogOffsets(0, 4)} if end == 5 else {})}  # later it has no leader

    async def uses_append_times(*_: object) -> bool:
        return is_log

    monkeypatch.setattr(owner, "opened", opened)
    monkeypatch.setattr(failover, "uses_append_times", uses_append_times)
    monkeypatch.setattr(failover, "QUIET_S", 0)
    (tmp_path / "notary.toml").write_text('name = "N"\norigin = "o"\n[log]\nkind = "kafka"\nbootstrap = "broker:9092"\n')
    command = _Failover(load(tmp_path / "notary.toml"), argparse.Namespace(work=tmp_path, lost=False))
    if has_key:
        command._keys.make()
    if refused:
        with pytest.raises(ConfigurationError, match=refused):
            await command._opened().__aenter__()
    else:
        async with command._opened():
            assert ends == []


def test_an_embedded_log_has_no_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a log in Kafka can be copied."""
    notary = NotaryDirectory.create(tmp_path / "notary")
    assert cli.main(["mirror", "--config", str(notary.config), "--to", "broker-1:9092"]) == 2
    assert "has an embedded log: only a log in Kafka has a mirror" in capsys.readouterr().err
