"""`notary retire`, `partitions`, `activate` and `settle`: the records that the owner signs, and their effects."""

import argparse
import asyncio
import io
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from notary.cli.owner import OWNER_KEY, agreed, opened
from notary.cli.replay import Replay
from notary.config import load
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError
from ordering.log import ORDERING
from ordering.records import FORMAT_VERSION, OrderingRecord, Settle, Trim, View, decode
from ordering.signatures import SigningKey, endorse_key
from ordering.store import KEY, encode_row, open_store
from tests.notary.cli.command import Command
from tests.notary.cli.written import die, embedded_log, entry, log_ends, log_id, register, signing_key, write
from tests.notary.http.checked_client import serving
from tests.notary.party import Bank, spend
from tests.notary.process import NotaryDirectory, NotaryProcess

COMMANDS = {"retire": ("w1",), "partitions": ("8",), "activate": ("1",), "settle": ("--index", "index/worker-1")}


@pytest.fixture
def directory(tmp_path: Path) -> NotaryDirectory:
    """A notary with four payload partitions, whose log has a genesis record only."""
    return NotaryDirectory.create(tmp_path / "notary", options=["--format-version", "1"])


@pytest.fixture
def owner(directory: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the owner's commands on that log."""
    return Command(capsys, config=directory.config)


def records_in(directory: NotaryDirectory) -> int:
    """Returns the number of ordering records in the log."""
    return log_ends(directory.path)[ORDERING]


# ---- all commands ----


@pytest.mark.seconds
@pytest.mark.parametrize("command", [*COMMANDS, "log"])
@pytest.mark.parametrize(("setting", "right"), [("NAME", "O=Notary Service,L=London,C=GB"), ("ORIGIN", "notary.example/test")])
def test_a_misnamed_configuration_is_refused(
    directory: NotaryDirectory, command: str, setting: str, right: str, monkeypatch: pytest.MonkeyPatch, owner: Command, indexed: Path
) -> None:
    """Another name or origin than the log's gives exit 2 with both values, and nothing is appended."""
    monkeypatch.chdir(indexed)
    monkeypatch.setenv(f"NOTARY_{setting}", "other")
    complaint = owner.refuses(command, *{**COMMANDS, "log": ("show",)}[command])
    assert "'other'" in complaint
    assert repr(right) in complaint
    assert records_in(directory) == 1


@pytest.mark.seconds
@pytest.mark.parametrize("command", COMMANDS)
def test_another_owners_key_is_refused(
    directory: NotaryDirectory, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Command, indexed: Path
) -> None:
    """A key other than the owner's, also the notary's own, gives exit 2, and nothing is appended."""
    monkeypatch.chdir(indexed)
    write(directory.path, [register("w1", 1)])
    other = NotaryDirectory.create(tmp_path / "other")
    for key in (other.path / "owner-key.pem", directory.path / "notary-key.pem"):
        assert "the owner of this log has" in owner.refuses(command, *COMMANDS[command], "--owner-key", key)
    assert records_in(directory) == 2


@pytest.mark.parametrize("command", [*COMMANDS, "key"])
def test_an_embedded_log_is_open_in_its_worker(
    notary_directory: NotaryDirectory, worker: NotaryProcess, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """While its worker runs the commands exit with 2, and say to stop it."""
    index = notary_directory.path / "index" / worker.name
    arguments = {**COMMANDS, "settle": ("--index", index), "key": ("rotate",)}[command]
    refused = Command(capsys, config=notary_directory.config).refuses(command, *arguments)
    assert "stop the worker, run this command, start the worker again" in refused


def test_a_terminal_sees_progress(directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch, owner: Command) -> None:
    """On a terminal a line shows the progress of reading, and is removed at the end."""
    write(directory.path, [register("w1", number) for number in range(1, 60)])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("notary.cli.PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr("notary.cli.replay.POLL_MS", 0)
    monkeypatch.setattr(Replay, "_is_done", lambda self, ends, done=Replay._is_done: done(self, ends) and self._progress.is_shown)
    owner.run("retire", "w1")
    assert "notary retire: 60 of 60 ordering records read" in owner.err


@pytest.mark.parametrize(("typed", "agrees"), [("1234", True), ("1,234\n", True), ("1235", False), ("", False)])
def test_a_number_is_typed_as_the_plan_shows_it(typed: str, agrees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything but that number is a no."""
    terminal = io.StringIO(typed)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert agreed(argparse.Namespace(yes=False, json=False), "trim", "nothing was changed", "the position", 1234) is agrees


QUESTION = """
import argparse, asyncio
from notary.cli.owner import agreed

async def ask():
    agreed(argparse.Namespace(yes=False, json=False), "trim", "nothing was changed", "the position", 1)

asyncio.run(ask())
"""


@pytest.mark.seconds
def test_ctrl_c_ends_the_question() -> None:
    """One Ctrl-C ends the command while it waits for the number; without its own handler asyncio would need a second one."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-P", "-c", QUESTION], stdin=theirs, stdout=theirs, stderr=theirs, process_group=0) as process:
        os.close(theirs)
        printed = b""
        while b"to go on:" not in printed:
            printed += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(10) == -signal.SIGINT
        finally:
            process.kill()
    os.close(ours)


# ---- retire ----


def test_a_retired_worker_has_no_vote(directory: NotaryDirectory, owner: Command) -> None:
    """The incarnation is fenced; a second `retire` lists the worker names that are left; the worker may register again."""
    write(directory.path, [register("w1", 1), register("w2", 2), register("w1", 3)])
    expected = {"offset": 4, "took_effect": True, "why_not": None, "name": "w1", "incarnation": 3}
    assert owner.json("retire", "w1") == expected
    assert "'w1' has no incarnation to retire. Workers that have one: w2" in owner.refuses("retire", "w1")
    write(directory.path, [register("w1", 4)])
    assert "took effect    ordering record 6: worker w1 (incarnation 4) is retired" in owner.run("retire", "w1")


def test_a_record_that_takes_no_effect(directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch, owner: Command) -> None:
    """A record that comes too late takes no effect: the command prints the reason and exits with 1."""
    write(directory.path, [register("w1", 1)])
    owner.run("retire", "w1")
    # As when another operator retired the worker meanwhile: the command still assumes that its incarnation is not fenced.
    monkeypatch.setattr("joiner.incarnations.Incarnations.named", lambda incarnations, name: incarnations.get(1))
    why_not = "retire of incarnation 1 does not count: it is over"
    printed = owner.json("retire", "w1", code=1)
    assert (printed["took_effect"], printed["offset"], printed["why_not"]) == (False, 3, why_not)
    assert owner.run("retire", "w1", code=1) == f"no effect      ordering record 4: {why_not}\n"


# ---- partitions ----


@pytest.mark.seconds
def test_partitions_are_added(own_directory: NotaryDirectory, bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    """An embedded log grows while its worker is stopped; the worker then uses the new partitions. Other counts are rejected."""
    partitions = Command(capsys, "partitions", config=own_directory.config)
    with serving(own_directory.config):
        pass
    printed = partitions.json(6)
    assert (printed["took_effect"], printed["payload_partitions"], printed["payload_partitions_before"]) == (True, 6, 4)
    before = records_in(own_directory)
    for count in (6, 4, 0, 1001):
        partitions.refuses(count)
    assert records_in(own_directory) == before
    with serving(own_directory.config) as client:
        for _ in range(24):
            client.decide(bank, spend())
    ends = log_ends(own_directory.path)
    assert set(ends) == {ORDERING, *range(6)}
    assert ends[4]
    assert ends[5]


def test_partitions_that_nobody_declared_are_used_by_the_next_call(
    directory: NotaryDirectory, monkeypatch: pytest.MonkeyPatch, owner: Command
) -> None:
    """After a kill between the partitions and the record the log is unchanged, and the same command continues."""
    with monkeypatch.context() as patch:
        patch.setattr("notary.cli.owner.OwnedLog.append", die)
        owner.refuses("partitions", 8)
    assert EmbeddedLog.open(directory.path / "log").payload_partitions == 8
    assert owner.json("partitions", 8)["payload_partitions_before"] == 4


# ---- activate ----


def test_a_version_that_all_with_a_vote_read_is_activated(directory: NotaryDirectory, owner: Command) -> None:
    """A worker that cannot read the version blocks the activation, and is named; without it the record takes effect, once."""
    write(directory.path, [register("old", 1, 1), register("new", 2, 2)])
    why_not = owner.json("activate", 2, code=1)["why_not"]
    assert "old" in why_not
    assert "cannot read" in why_not
    owner.run("retire", "old")
    printed = owner.json("activate", 2)
    assert (printed["took_effect"], printed["format_version"]) == (True, 2)
    assert "is active already" in owner.refuses("activate", 2)


def test_a_command_goes_on_in_a_log_with_a_trim(directory: NotaryDirectory, owner: Command) -> None:
    """A command reads the ordering topic alone past a trim record: the payload topic may begin later since."""
    write(directory.path, [register("w1", 1, 2)])
    owner.run("activate", 2)
    key = signing_key(directory.path / "notary-key.pem").public_key
    write(directory.path, [Trim(key, View(1, log_id(directory.path)), 1, bytes(32))], OWNER_KEY)
    assert owner.json("retire", "w1")["took_effect"]


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, 65_536])
def test_a_version_that_this_software_cannot_read_is_refused(directory: NotaryDirectory, version: int, owner: Command) -> None:
    """Software that cannot read a version does not activate it."""
    assert f"this software reads format versions 1 to {FORMAT_VERSION}, not" in owner.refuses("activate", version)
    assert records_in(directory) == 1


# ---- failover ----


async def test_a_mirror_without_records_is_named(directory: NotaryDirectory) -> None:
    """A genesis record of its own, as for a new log, would spoil the mirror."""
    shutil.rmtree(directory.path / "log")
    EmbeddedLog.create(directory.path / "log", 4)
    with pytest.raises(ConfigurationError, match="is empty: `notary mirror` has copied nothing into it"):
        async with opened(load(directory.config), "failover", mirror=True):
            pass


# ---- settle ----


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory, bank: Bank) -> Path:
    """A notary's folder with decisions and the index `index/worker-1`; tests copy it."""
    folder = tmp_path_factory.mktemp("indexed") / "notary"
    directory = NotaryDirectory.create(folder)
    directory.register(bank)
    with serving(directory.config) as client:
        client.decide(bank, spend(), spend())
    return folder


@pytest.fixture
def settled(indexed: Path, tmp_path: Path) -> NotaryDirectory:
    """A copy of that folder."""
    return NotaryDirectory(Path(shutil.copytree(indexed, tmp_path / "settled")))


@pytest.fixture
def settle(settled: NotaryDirectory, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary settle` there."""
    return Command(capsys, "settle", "--index", settled.path / "index" / "worker-1", config=settled.config)


@pytest.mark.seconds
def test_a_history_is_settled(settled: NotaryDirectory, settle: Command) -> None:
    """The command prints the settled history. A worker with that history continues, and the longer one may be settled again.

    A second record for the same history takes no effect, so that a copy of it ends no later suspicion.
    """
    printed = settle.json()
    assert printed["took_effect"]
    assert printed["seen"] >= 4  # genesis, activate, register, one entry
    assert len(printed["history"]) == 64
    why_not = settle.json(code=1)["why_not"]
    assert why_not == "a settle record does not count: it names no newer history of this log, or another key"
    with serving(settled.config):
        pass
    settle.run()
    settle.refuses("--index", settled.path)


@pytest.mark.seconds
def test_a_history_is_settled_in_a_log_of_either_format_version(directory: NotaryDirectory, owner: Command) -> None:
    """The command writes the form of the record that counts in this log: from version 2 on it names the key in force."""
    index = directory.path / "index" / "worker-1"
    for activate in (False, True):
        if activate:
            owner.run("activate", 2)
        with serving(directory.config):
            pass  # a longer history than the last one
        owner.run("settle", "--index", index)


@pytest.mark.seconds
def test_a_history_that_the_log_does_not_hold_is_refused(settled: NotaryDirectory, settle: Command) -> None:
    """An index whose records are no longer in the log cannot be settled, since every worker would stop. Nothing is appended."""
    store, _ = open_store(settled.path / "log")
    store.put(KEY.pack(ORDERING + 1, 3), encode_row(0, None, b"something else"))  # in place of the last entry
    store.close()
    assert "does not hold the history of this index" in settle.refuses()


@pytest.mark.seconds
def test_an_index_of_another_log_is_refused(indexed: Path, directory: NotaryDirectory, owner: Command) -> None:
    """An index that was made from another log is rejected."""
    assert "was made from the log" in owner.refuses("settle", "--index", indexed / "index" / "worker-1")
    assert records_in(directory) == 1


@pytest.mark.seconds
def test_a_record_behind_a_hole_waits(settled: NotaryDirectory, settle: Command) -> None:
    """Behind a hole the effect of a settle record is unknown: exit 2, and its offset."""
    write(settled.path, [register("w9", 9), entry(2, 1, b"lost")])
    assert "it waits behind an entry without content" in settle.refuses()


@pytest.mark.seconds
def test_a_settle_record_behind_a_hole_names_the_key_at_its_place(settled: NotaryDirectory, settle: Command) -> None:
    """A rotation waits behind the hole: the record names the key that it puts in force, or no worker would give up the lost content."""
    before, after = signing_key(settled.path / "notary-key.pem"), SigningKey(b"\x09" * 32)
    write(settled.path, [register("w9", 9), entry(2, 1, b"lost")])
    write(settled.path, [endorse_key(after, log_id(settled.path), before.public_key)], OWNER_KEY)
    settle.refuses()
    last = asyncio.run(_last_record(settled))
    assert isinstance(last, Settle)
    assert last.key == after.public_key


async def _last_record(directory: NotaryDirectory) -> OrderingRecord:
    async with embedded_log(directory.path) as log:
        end = (await log.offsets())[ORDERING].log_end
        reader = await log.open_reader({ORDERING: end - 1})
        [record] = [record for record in await reader.poll(1_000) if record.partition == ORDERING]
        await reader.close()
        return decode(record.value, {1, 2})
