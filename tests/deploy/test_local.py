"""Tests deploy.local with real brokers. Each test ends every process that it started, also when it fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from deploy.local import CannotRun, Cluster
from deploy.local.__main__ import COULD_NOT, DONE, NO, main
from deploy.local.process import BrokerProcess
from deploy.local.state import write_state
from ordering.connection import admin
from tests.kafka.test_brokers import heal
from tests.notary.process import is_running

# The first test of a fresh checkout downloads Kafka.
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.fixture
def three(kafka_cluster: Cluster) -> Iterator[Cluster]:
    """Three brokers, which are restored at the end of the test."""
    yield kafka_cluster
    heal(kafka_cluster)


async def produce(cluster: Cluster, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True, max_request_size=16 << 20
    ) as producer:
        await asyncio.wait_for(producer.send_and_wait(topic, value), 30)


async def make_topic(cluster: Cluster, name: str, partitions: int) -> None:
    async with admin(cluster.bootstrap, "test", None, 60_000) as client:
        await client.create_topics([NewTopic(name, partitions, len(cluster.state.brokers))])


def test_one_broker_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`up` prints the brokers' addresses, `status` lists what runs, `down` leaves neither a process nor the folder.

    A cluster that was taken down with `--keep-data` comes back with its topics.
    """
    folder = tmp_path / "cluster"
    where = ["--dir", str(folder)]
    assert main(["status", *where]) == NO
    try:
        assert main(["up", *where, "--brokers", "1"]) == DONE
        bootstrap = capsys.readouterr().out.splitlines()[-1]
        while main(["status", *where, "--json"]) != DONE:  # a broker that does not answer within 2 s is not serving
            capsys.readouterr()
        status = json.loads(capsys.readouterr().out)
        assert status["serving"]
        assert status["bootstrap"] == bootstrap
        (broker,) = status["brokers"]
        assert (broker["id"], broker["condition"], broker["registered"]) == (1, "running", True)
        assert main(["up", *where]) == DONE, "a second `up` finds it serving"
        assert main(["up", *where, "--brokers", "3"]) == COULD_NOT
        cluster = Cluster.open(folder)
        asyncio.run(make_topic(cluster, "kept", 2))
        assert main(["down", *where, "--keep-data"]) == DONE
        assert not cluster.status().serving
        assert main(["up", *where]) == DONE
        assert cluster.wait_until_serving().partitions == 2
        assert main(["kill", "2", *where]) == COULD_NOT
        assert main(["kill", "1", *where]) == DONE
        assert main(["status", *where]) == NO
        assert main(["start", "1", *where]) == DONE
        broker = Cluster.open(folder).state.broker(1)
        assert f"127.0.0.1:{broker.port}" == bootstrap, "it came back on its port"
    finally:
        main(["down", *where])
    assert not folder.exists()
    assert broker.process is not None
    assert not is_running(broker.process.pid)
    assert main(["down", *where]) == DONE, "nothing to take down is no error"


def test_three_brokers_outlive_the_crash_of_one(three: Cluster) -> None:
    """After one of three brokers is killed with -9 the others still accept writes, and it comes back."""
    others = three.wait_until_serving().partitions
    asyncio.run(make_topic(three, "crash", 6))
    three.wait_until_serving()
    three.kill(2)
    status = three.wait_until_serving()
    assert [(broker.condition, broker.registered) for broker in status.brokers] == [
        ("running", True),
        ("stopped", False),
        ("running", True),
    ]
    assert (status.partitions - others, status.offline_partitions) == (6, 0)
    asyncio.run(produce(three, "crash", b"x" * 7_000_000))
    three.start(2)
    status = three.wait_until_serving()
    assert [(broker.condition, broker.registered) for broker in status.brokers] == [("running", True)] * 3


def test_a_paused_broker_is_fenced_and_returns(three: Cluster) -> None:
    """A frozen broker loses its session, like an isolated one, and is unfenced when it resumes."""
    three.pause(3)
    fenced = three.wait_until_serving().brokers[2]
    assert (fenced.condition, fenced.registered) == ("paused", False)
    three.resume(3)
    # Not a second look: on a busy machine the session may end once more, since the controller waits 6 s at most.
    returned = three.wait_until_serving().brokers[2]
    assert (returned.condition, returned.registered) == ("running", True)


def test_waiting_works_inside_an_event_loop(three: Cluster) -> None:
    """Code that runs in an event loop may call the synchronous methods."""

    async def inside() -> bool:
        return three.wait_until_serving().serving

    assert asyncio.run(inside())


def test_brokers_end_with_the_process_of_their_block(tmp_path: Path) -> None:
    """The brokers end and the folder is removed if a process is killed inside a `with Cluster…` block."""
    script = (
        "import sys, time; from deploy.local import Cluster\n"
        "with Cluster.create(sys.argv[1], brokers=1) as cluster:\n"
        "    print(cluster.state.broker(1).process.pid, flush=True); time.sleep(120)"
    )
    folder = tmp_path / "cluster"
    command = [sys.executable, "-c", script, str(folder)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        assert is_running(broker)
        owner.send_signal(signal.SIGKILL)
    while is_running(broker) or folder.exists():
        time.sleep(0.05)


def test_the_broker_that_trains_ends_with_its_process(tmp_path: Path) -> None:
    """The broker that runs once, for the class archive, ends too if the process that started it is killed; no file lists it."""
    script = (
        "import sys; from pathlib import Path; from deploy.local.java import Java; from deploy.local.runtime import Runtime, _train\n"
        "class Trained(Runtime):\n"
        "    def format(self, *_): pass\n"
        "    def broker(self, *_): return ['/bin/sh', '-c', f'cd {sys.argv[1]}; echo $$ > new; mv new pid; exec sleep 60']\n"
        "_train(Trained(Java('java', 17, ''), '', None), Path(sys.argv[1]) / 'archive')"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2]) as owner:
        while not (tmp_path / "pid").exists():
            assert owner.poll() is None
            time.sleep(0.05)
        owner.send_signal(signal.SIGKILL)
    broker, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while is_running(broker) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = not is_running(broker)
    if not ended:
        os.kill(broker, signal.SIGKILL)
    assert ended


def test_a_recycled_pid_is_never_killed(tmp_path: Path) -> None:
    """A process with an earlier broker's pid and another start time is left alone, and that broker counts as dead."""
    cluster = Cluster.create(tmp_path / "cluster", brokers=1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        broker = replace(cluster.state.brokers[0], process=BrokerProcess(bystander.pid, "another boot:1"))
        write_state(cluster.directory, replace(cluster.state, brokers=(broker,)))
        assert cluster.status().brokers[0].condition == "died"
        cluster.kill(1)
        write_state(cluster.directory, replace(cluster.state, brokers=(broker,)))
        cluster.down()
        assert bystander.poll() is None
        bystander.communicate(b"\n")
    assert not cluster.directory.exists()


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    """A cluster is only created in a folder of its own, because `down` removes the folder."""
    (tmp_path / "letter.txt").write_text("keep me")
    with pytest.raises(CannotRun, match="not empty"):
        Cluster.create(tmp_path)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_broker_that_dies_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    """If a broker does not start, the error has the end of its log, with Kafka's reason."""
    cluster = Cluster.create(tmp_path / "cluster", brokers=1, overrides={"num.io.threads": "none"})
    with pytest.raises(CannotRun, match=r"died while it started|num\.io\.threads"), cluster:
        pass
    assert not cluster.directory.exists()
