"""Tests the peer systems, each started for real: right answers, nothing lost; and that a wrong peer is found."""

import asyncio
import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.local import CannotRun, Cluster
from deploy.local.process import BrokerProcess
from loadtest.bench.figures.peers import measure_limits
from loadtest.bench.report import Report
from loadtest.openloop.checker import ReceivedConflict
from loadtest.peers import http_adapter, postgresql, single_topic
from loadtest.peers.__main__ import ON_BROKERS, PEERS, main, start
from loadtest.peers.contest import ContestDecision, ask, changed, contest, double_spends, recheck
from loadtest.peers.http_adapter import HttpAdapter, PeerDecision
from loadtest.peers.servers import Servers
from loadtest.peers.single_topic import PAYLOAD, SingleTopicLog
from loadtest.rig.generate import submissions, write_parties
from loadtest.rig.signing import NOTARY
from notary.gate import Gate
from notary.http.listener import bind
from notary.http.server import Server
from notary.memory import GARBAGE_OBJECTS
from notary.parties import Parties
from ordering.log import ORDERING, Record
from ordering.memory import MemoryLog
from ordering.records import SIGNATURE_BYTES, Checkpoint, Entry, View, batch_key, encode
from ordering.signatures import FILL_BYTES
from payload import Submission

ROOT = Path(__file__).parents[3]

NAMES = [*ON_BROKERS, *[name for name in PEERS if name != "etcd-1"]]


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.kafka if name in ON_BROKERS else pytest.mark.peers) for name in NAMES]
)
def peer(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A system under comparison, with its servers."""
    with start(request.param, request.getfixturevalue("kafka_cluster") if request.param in ON_BROKERS else None) as started:
        yield started


def test_clients_that_fight_over_states(peer: Any) -> None:
    """One of all clients that ask for a state commits, the others learn which one, and asking again changes nothing."""
    assert contest(peer.url, 1) == []


def test_what_was_committed_outlives_a_crash(peer: Any) -> None:
    """After all processes of a peer died at once its states are still consumed, by the same transactions."""
    decisions, problems = asyncio.run(ask(peer.url, islice(submissions(7, 3, 4), 20)))
    assert problems == []
    assert {each.outcome for each in decisions} == {"committed"}
    peer.crash()
    peer.start()
    assert recheck(peer.url, 7, 3, 4) == []


@pytest.mark.peers
def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes a JSON line for each peer and size, with rate, latency and the cost of servers and worker, and a table."""
    out = tmp_path / "peers.jsonl"
    flags = ["--only", "postgresql", "--seconds", "1", "--rounds", "1", "--loads", "10:3", "--json", str(out)]
    assert main(flags) == 0
    (result,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert (result["figure"], result["parameters"]["peer"], result["failed"]) == ("peers", "postgresql", False)
    assert (result["case"], result["parameters"]["connections"]) == ("postgresql, 10 a submission, 3 connections", 3)
    assert {"requests_per_s", "latency_ms_p99", "server_cpu_s_per_1000", "worker_cpu_s_per_1000"} <= result["figures"].keys()
    assert "postgresql" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.kafka
def test_limits_have_a_rate_each(kafka_cluster: Cluster) -> None:
    """Append and read, and verify, each have a rate, at one request a submission and at a hundred."""
    lines = io.StringIO()
    appended = measure_limits(Report(lines, io.StringIO()), kafka_cluster.bootstrap, None, 0.5, 1)
    results = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [result["figure"] for result in results] == ["limits"] * 4
    assert all(result["figures"]["requests_per_s"] > 0 for result in results)
    assert appended.keys() == {1, 100}


def test_an_unknown_peer_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt `--only` starts nothing and lists the valid names."""
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "etcetera"])
    assert stopped.value.code == 2
    assert "single-topic" in capsys.readouterr().err


@pytest.mark.parametrize("loads", ["", "many", "1:", "0", "1:-1", "1:x", "1,,100"])
def test_an_unreadable_load_is_rejected(loads: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A `--loads` that names no number of requests or connections starts nothing and quotes the part that is wrong."""
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "postgresql", "--loads", loads])
    assert stopped.value.code == 2
    assert f"--loads {loads}: expected" in capsys.readouterr().err


def test_a_peer_that_does_not_start_leaves_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that measures nothing leaves the results of earlier runs as they are."""

    def find_none() -> None:
        raise CannotRun("there is no PostgreSQL here")

    out = tmp_path / "peers.jsonl"
    out.write_text("results of an hour\n")
    monkeypatch.setattr(postgresql, "find_binaries", find_none)
    assert main(["--only", "postgresql", "--json", str(out)]) == 2
    assert out.read_text() == "results of an hour\n"


# ---- wrong peers ----


class Careless:
    """A peer that commits every request."""

    async def decide(self, submission: Submission) -> Sequence[PeerDecision]:
        """Commit all requests."""
        return [PeerDecision(request.transaction_id) for request in submission.requests]


async def test_a_peer_that_double_spends_is_found_out(tmp_path: Path) -> None:
    """A peer that allows double spends is found, both by competing clients and by a check of the states after a load."""
    parties = tmp_path / "parties.json"
    write_parties(parties)
    gate = Gate(NOTARY, Parties(parties), lambda: None, time.monotonic, bytes_max=1 << 20, body_s_max=20.0, turn_s_max=0.005)
    server = Server(HttpAdapter(gate, Careless()), bind("127.0.0.1", 0))
    await server.start()
    try:
        assert any("spent twice" in problem for problem in await asyncio.to_thread(contest, server.url, 1))
        assert any("spends what was spent" in problem for problem in await asyncio.to_thread(recheck, server.url, 1, 1, 4))
    finally:
        await server.stop(1.0)


def _decision(id_: str, *conflicts: ReceivedConflict) -> ContestDecision:
    return ContestDecision(id_ * 64, "rejected" if conflicts else "committed", conflicts)


def test_a_rejection_needs_a_reason() -> None:
    """A rejection for a state that no transaction consumed, or for no state, is a problem."""
    inputs = {"a" * 64: ["s:0"]}
    assert len(double_spends(inputs, [_decision("a", ReceivedConflict("s:0", "input", "0" * 64))])) == 1
    assert len(double_spends(inputs, [ContestDecision("a" * 64, "rejected", ())])) == 1


def test_an_outcome_that_changes() -> None:
    """A retry may report more conflicts, but neither fewer nor another outcome."""
    one, other = ReceivedConflict("s:0", "input", "0" * 64), ReceivedConflict("t:0", "input", "1" * 64)
    assert changed([_decision("a", one)], [_decision("a", one, other)]) == []
    assert len(changed([_decision("a", one, other)], [_decision("a", one)])) == 1
    assert len(changed([_decision("a")], [_decision("a", one)])) == 1


@pytest.mark.parametrize("module", [http_adapter, single_topic])
def test_a_peer_collects_garbage_as_rarely_as_a_worker(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a peer has the garbage collector of `notary serve`, so that the comparison is not about that."""
    before, seen = gc.get_threshold(), []
    monkeypatch.setattr(module, "uvloop", SimpleNamespace(run=lambda serving: (serving.close(), seen.append(gc.get_threshold()[0]))))
    monkeypatch.setattr(module, "bound_memory", lambda: True)
    monkeypatch.setattr(single_topic, "load", lambda *_: None)
    monkeypatch.setattr(single_topic, "set_up_logging", lambda *_, **__: None)
    try:
        if module is http_adapter:
            monkeypatch.setattr(sys, "argv", ["peer", "address", "1", str(tmp_path)])
            http_adapter.main(lambda _: contextlib.nullcontext(Careless()))
        else:
            monkeypatch.setattr(sys, "argv", ["peer", "--config", "c", "--name", "n", "--listen", "127.0.0.1:0"])
            single_topic.main()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert seen == [GARBAGE_OBJECTS]


# ---- the log of a single topic ----


FILL = bytes(FILL_BYTES)


async def _filled_log() -> tuple[MemoryLog, SingleTopicLog, list[Record]]:
    """Returns a log with a checkpoint, a batch and a fill, and the records that a reader returns from its start."""
    inner = MemoryLog(1, lambda: 5)
    log = SingleTopicLog(inner)
    writer = await log.open_writer()
    view = View(1, bytes(32))
    await writer.append(ORDERING, None, encode(Checkpoint(1, view, 2, bytes(32))) + bytes(SIGNATURE_BYTES))
    entry = encode(Entry(1, 1, view, 4, PAYLOAD, bytes(32), (bytes(32),))) + bytes(SIGNATURE_BYTES)
    await asyncio.gather(writer.append(PAYLOAD, batch_key(1, 1), b"[]"), writer.append(ORDERING, None, entry))
    await writer.append(PAYLOAD, batch_key(1, 2), FILL)
    reader = await log.open_reader({})
    return inner, log, await reader.poll(0)


async def test_a_batch_is_one_record() -> None:
    """Both parts of a batch are one record of the single partition, and are read as two records, the payload first."""
    inner, log, records = await _filled_log()
    assert (await inner.offsets())[ORDERING].log_end == 3
    assert (await inner.offsets())[PAYLOAD].log_end == 0
    assert [(record.partition, record.offset, record.key) for record in records] == [
        (ORDERING, 0, None),
        (PAYLOAD, 1, batch_key(1, 1)),
        (ORDERING, 1, None),
        (PAYLOAD, 2, batch_key(1, 2)),
    ]
    assert [record.value for record in records if record.partition == PAYLOAD] == [b"[]", FILL]
    assert await log.offsets() == {partition: (await inner.offsets())[ORDERING] for partition in (ORDERING, PAYLOAD)}


async def test_reading_on_from_two_places() -> None:
    """Each part is read from its own offset, whatever the other's is."""
    _, log, records = await _filled_log()
    reader = await log.open_reader({ORDERING: 1, PAYLOAD: 2})
    assert await reader.poll(0) == [records[2], records[3]]


async def test_a_payload_that_is_not_wanted_now() -> None:
    """Payloads are held back while their topic-partition is paused, and not lost."""
    _, log, records = await _filled_log()
    reader = await log.open_reader({})
    reader.pause([PAYLOAD])
    assert await reader.poll(0) == [records[0], records[2]]
    assert (reader.offset_next(ORDERING), reader.offset_next(PAYLOAD)) == (3, 1)
    reader.pause([])
    assert await reader.poll(0) == [records[1], records[3]]
    assert reader.offset_next(PAYLOAD) == 3


# ---- processes ----


@pytest.mark.seconds
def test_processes_end_whatever_happens() -> None:
    """A with block whose process is killed leaves neither the processes that it started nor their folder."""
    program = (
        "import time; from loadtest.peers.servers import Servers\n"
        "with Servers.opened('test') as servers:\n"
        "    servers.start('sleeper', ['sleep', '600'], lambda: True)\n"
        "    print(servers.pids('sleeper')[0], servers.folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    block = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert block.stdout is not None
    pid, folder = block.stdout.readline().split()
    born = json.loads((Path(folder) / "processes.json").read_text())[0][1]
    block.kill()
    block.communicate()
    assert BrokerProcess(int(pid), born).wait(30)
    for _ in range(1_200):
        if not Path(folder).exists():
            break
        time.sleep(0.1)
    assert not Path(folder).exists()


@pytest.mark.seconds
def test_a_server_that_does_not_start_says_why() -> None:
    """If a server does not start, the end of its log is in the error, and no folder is left."""
    with Servers.opened("test") as servers:
        folder = servers.folder
        with pytest.raises(Exception, match="no space"):
            servers.start("loud", ["sh", "-c", "echo no space; exit 3"], lambda: False)
    assert not folder.exists()


@pytest.mark.seconds
def test_children_are_counted() -> None:
    """The pids of a process include its children, so that all of a server's cost is counted."""
    with Servers.opened("test") as servers:
        servers.start("parent", ["sh", "-c", "sleep 600 & wait"], lambda: len(servers.pids("parent")) == 2)
        pids = servers.pids("parent")
        os.kill(pids[1], signal.SIGKILL)
    assert len(pids) == 2
