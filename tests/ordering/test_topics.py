"""Tests `ordering.topics` with brokers that refuse a request, or learn of a change late."""

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import for_code

from ordering.connection import ClusterFacts, TopicFacts, TopicsRequest
from ordering.errors import ConfigurationError, NotaryError, NotReady
from ordering.topics import add_partitions, free_records, inspect, topic_names, use_append_times, uses_append_times

UNKNOWN, NOT_LEADER, NOT_AUTHORIZED, POLICY = 3, 6, 29, 44
TOPIC_ID = uuid.UUID(int=1)
LOG = ("host:1", "p")
extend = partial(add_partitions, *LOG, 4)
free = partial(free_records, *LOG, str(TOPIC_ID), {0: 3})


class Refused:
    """An administration client that may describe topics of one partition. Every other request gets this error code."""

    def __init__(self, code: int) -> None:
        self._code = code

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def _send_request(self, request: object) -> Any:
        if isinstance(request, TopicsRequest):
            topics = [(0, name, TOPIC_ID, False, [(0, 0, 1, 1, [1])]) for name in request._topics]
            return SimpleNamespace(cluster_id="cluster", brokers=[1], topics=topics)
        return SimpleNamespace(responses=[(self._code, "", 2, "p.ordering")])

    async def describe_configs(self, *_: object) -> list[Any]:
        return [SimpleNamespace(resources=[(self._code, "", 2, "p.ordering", [])])]

    async def create_partitions(self, *_: object, **__: object) -> None:
        raise for_code(self._code)

    async def delete_records(self, *_: object) -> None:
        raise for_code(self._code)


@pytest.mark.parametrize(
    ("call", "code", "error", "problem"),
    [
        (extend, NOT_AUTHORIZED, ConfigurationError, "This user may not alter topics"),
        (extend, POLICY, ConfigurationError, "p.payload cannot be extended to 4 partitions: .*PolicyViolationError$"),
        (free, NOT_AUTHORIZED, ConfigurationError, "this user may not delete records of p.payload"),
        (free, NOT_LEADER, NotReady, "p.payload has a partition without a leader, or this user may not describe"),
        (partial(free_records, *LOG, "another id", {0: 3}), NOT_LEADER, ConfigurationError, "is another one than the log's"),
        (partial(use_append_times, *LOG), NOT_AUTHORIZED, ConfigurationError, "give this user the ACL operation AlterConfigs"),
        (partial(uses_append_times, *LOG), NOT_AUTHORIZED, ConfigurationError, "give this user the ACL operation DescribeConfigs"),
        (partial(uses_append_times, *LOG), UNKNOWN, NotReady, "do not all know topic p.ordering yet"),
    ],
)
async def test_what_brokers_refuse_is_named(
    call: Callable[[], Awaitable[object]], code: int, error: type[NotaryError], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an error that may pass is `NotReady`: a command would repeat any other for ever, as if the brokers were away."""
    monkeypatch.setattr("ordering.connection.AIOKafkaAdminClient", lambda **_: Refused(code))
    with pytest.raises(error, match=problem):
        await call()


async def test_brokers_that_have_not_heard_of_a_topic_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One topic may be known before the other, or have no leader yet."""
    one, both = (ClusterFacts("cluster", 1, dict.fromkeys(names, TopicFacts("", (1,)))) for names in (["p.ordering"], topic_names("p")))
    answers = iter((NotReady("no leader"), one, both))

    async def describe(*_: object) -> ClusterFacts:
        answer = next(answers)
        if isinstance(answer, NotReady):
            raise answer
        return answer

    async def no_problems(*_: object) -> list[str]:
        return []

    monkeypatch.setattr("ordering.topics.describe_cluster", describe)
    monkeypatch.setattr("ordering.topics._problems", no_problems)
    unused: Any = None
    assert await inspect(unused, "p", 60_000) == (both, [])


async def test_brokers_that_have_not_heard_of_a_setting_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover ends only once those that answer have the new time type."""
    answers = iter((["Topic p.ordering is a mirror."], []))

    async def look(*_: object) -> tuple[None, list[str]]:
        return None, next(answers)

    monkeypatch.setattr("ordering.connection.AIOKafkaAdminClient", lambda **_: Refused(0))
    monkeypatch.setattr("ordering.topics.inspect", look)
    await use_append_times(*LOG)
    assert next(answers, None) is None
