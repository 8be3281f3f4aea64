"""Tests the checks of broker addresses and topic names before any connection, and the deadline of administration."""

import asyncio

import pytest

from ordering.connection import client_settings
from ordering.errors import ConfigurationError, NotReady
from ordering.topics import find_problems, topic_names

WRONG = ["", ",", "a,,b", ":9092", "a:b", "a:", "a:0", "a:65536", "a..b:9092", "[::1", "[::1]x", "h\udcff:1", f"{'a' * 64}:1", "ü" * 64]


@pytest.mark.parametrize("bootstrap", WRONG)
def test_brokers_that_cannot_be_are_refused(bootstrap: str) -> None:
    """Text that is not HOST:PORT,... is an error that shows the text and the expected form."""
    with pytest.raises(ConfigurationError, match="HOST:PORT") as wrong:
        client_settings(bootstrap, "test", None)
    assert repr(bootstrap) in str(wrong.value)


@pytest.mark.parametrize(
    "bootstrap", ["a:1", "a", "10.0.0.1:9092,b.example:65535", "[::1]:9092", "::1", "my_host.:9092", "bücher.example:1"]
)
def test_brokers_that_can_be_are_taken(bootstrap: str) -> None:
    """Host names, IPv4 and IPv6 addresses are accepted, with Kafka's usual port as the default."""
    assert client_settings(bootstrap, "test", None)["bootstrap_servers"] == bootstrap


async def test_administration_keeps_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may accept a connection and never reply. The client is closed then."""
    closed = asyncio.Event()

    class Hanging:
        async def start(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            closed.set()

    monkeypatch.setattr("ordering.connection.AIOKafkaAdminClient", lambda **_: Hanging())
    with pytest.raises(NotReady, match="host:1 did not answer within 50 ms"):
        await asyncio.wait_for(find_problems("host:1", "p", timeout_ms=50), 5)
    assert closed.is_set()


@pytest.mark.parametrize("prefix", ["", "a b", "a/b", "ü", "\udcff", "a\n", "x" * 241])
def test_prefixes_that_cannot_be_are_refused(prefix: str) -> None:
    """A prefix that would make an invalid topic name is rejected before a broker is asked."""
    with pytest.raises(ConfigurationError, match="topic prefix"):
        topic_names(prefix)


def test_prefixes_that_can_be_are_taken() -> None:
    """Prefixes are accepted up to the longest topic name of Kafka, 249 characters."""
    ordering, payload = topic_names("A-1_b.c" + "x" * 233)
    assert (len(ordering), payload[-8:]) == (249, ".payload")
