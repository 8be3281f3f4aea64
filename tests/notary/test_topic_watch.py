"""A running worker notices changed topic settings, reports them, and continues. `cli/test_mirror.py` changes them on brokers."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from deploy.local import Cluster
from notary import topic_watch
from notary.config import Config, load
from notary.topic_watch import TopicWatch
from ordering.connection import ClusterFacts, admin, describe_cluster, finalized_features
from ordering.errors import ConfigurationError, NotReady
from ordering.topics import add_partitions, create_topics, find_problems

Answer = Sequence[str] | Exception


def config(tmp_path: Path, log: str = '[log]\nkind = "kafka"\nbootstrap = "127.0.0.1:1"\n') -> Config:
    file = tmp_path / "notary.toml"
    file.write_text(f'name = "O=N"\norigin = "notary.example/x"\n{log}')
    return load(file, environment={})


def scripted(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> None:
    """Replace the brokers' answers by these, in turn."""
    left = list(answers)

    async def find(*_: object, **__: object) -> list[str]:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    monkeypatch.setattr(topic_watch, "find_problems", find)


async def test_what_is_wrong_is_logged_once_and_shown_until_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each new problem is logged once as an error; all present ones stay listed; one line reports that they are gone."""
    scripted(monkeypatch, [], ["A is wrong."], ["A is wrong.", "B is wrong."], ["B is wrong."], [])
    watch = TopicWatch(config(tmp_path))
    caplog.set_level(logging.INFO, "notary.topics")
    for found in ((), ("A is wrong.",), ("A is wrong.", "B is wrong."), ("B is wrong.",), ()):
        await watch.check()
        assert watch.problems == found
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["acknowledged records may be lost: A is wrong.", "acknowledged records may be lost: B is wrong."]
    assert "valid again" in caplog.records[-1].getMessage()


async def test_brokers_that_are_away_say_nothing_of_the_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reported problem stays until a check finds it gone; unreachable brokers do not clear it."""
    scripted(monkeypatch, ["A is wrong."], NotReady("away"), [])
    watch = TopicWatch(config(tmp_path))
    for found in (("A is wrong.",), ("A is wrong.",), ()):
        await watch.check()
        assert watch.problems == found


@pytest.mark.parametrize("problem", [ConfigurationError("give this user the ACL"), ValueError("a bug"), AttributeError("another")])
async def test_no_look_stops_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    """Settings that cannot be read, for any reason, are reported as a problem."""
    scripted(monkeypatch, problem, [])
    watch = TopicWatch(config(tmp_path))
    await watch.check()
    assert watch.problems == (f"The settings of the topics cannot be read: {problem}",)
    await watch.check()
    assert not watch.problems


async def test_it_looks_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check repeats until it is cancelled; an embedded log has no topics to check."""
    looked = asyncio.Semaphore(0)

    async def find(*_: object, **__: object) -> list[str]:
        looked.release()
        return []

    monkeypatch.setattr(topic_watch, "find_problems", find)
    running = asyncio.create_task(TopicWatch(config(tmp_path), interval_s=0.0).run())
    for _ in range(3):
        await looked.acquire()
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    await TopicWatch(config(tmp_path, ""), interval_s=0.0).run()


@pytest.mark.kafka
async def test_features_that_are_too_low_are_a_problem(kafka_cluster: Cluster, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with old metadata, or without eligible leader replicas, is named with the command; one that reports no features is not."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, payload_partitions=1, flush_ordering=True)
    async with admin(kafka_cluster.bootstrap, "test", None, 10_000) as client:
        features = await finalized_features(client)
        ordering = ConfigResource(ConfigResourceType.TOPIC, f"{kafka_prefix}.ordering", {"flush.messages": None})
        [flush] = await client.describe_configs([ordering])
    assert features["metadata.version"] >= 26
    assert features["eligible.leader.replicas.version"] == 1
    assert flush.resources[0][4][0][:2] == ("flush.messages", "1")

    async def low(_: object) -> dict[str, int]:
        return {"metadata.version": 25}

    async def silent(_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr("ordering.topics.finalized_features", low)
    found = await find_problems(kafka_cluster.bootstrap, kafka_prefix)
    assert [problem.split(",")[0] for problem in found] == [
        "The cluster has metadata.version at level 25",
        "The cluster has eligible.leader.replicas.version at level 0",
    ]
    assert "--release-version 4.1" in found[0]
    assert "--feature eligible.leader.replicas.version=1" in found[1]
    monkeypatch.setattr("ordering.topics.finalized_features", silent)
    assert await find_problems(kafka_cluster.bootstrap, kafka_prefix) == []


@pytest.mark.kafka
async def test_partitions_are_added_once(kafka_cluster: Cluster, kafka_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload topic grows; the same number, or fewer, changes nothing, even if a broker knows fewer; a missing topic is an error."""
    await create_topics(kafka_cluster.bootstrap, kafka_prefix, payload_partitions=1)
    for count in (3, 3, 2):
        await add_partitions(kafka_cluster.bootstrap, kafka_prefix, count)
        made = await create_topics(kafka_cluster.bootstrap, kafka_prefix, payload_partitions=3)
        assert made.existed
    with pytest.raises(ConfigurationError, match="does not exist"):
        await add_partitions(kafka_cluster.bootstrap, f"{kafka_prefix}-none", 3)
    answers: list[ClusterFacts] = []

    async def late(*arguments: Any) -> ClusterFacts:
        answers.append(await describe_cluster(*arguments))
        fewer = {name: msgspec.structs.replace(topic, replicas=topic.replicas[:1]) for name, topic in answers[-1].topics.items()}
        return answers[-1] if len(answers) > 1 else msgspec.structs.replace(answers[-1], topics=fewer)

    monkeypatch.setattr("ordering.topics.describe_cluster", late)
    await add_partitions(kafka_cluster.bootstrap, kafka_prefix, 3)
    assert len(answers) == 2
