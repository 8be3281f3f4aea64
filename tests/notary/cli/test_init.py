"""`notary init`: the files that it makes, and the files that it never overwrites."""

import asyncio
import fcntl
import itertools
import json
import os
import stat
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest

from deploy.local import Cluster
from notary.config import load
from notary.keys import load as load_key
from notary.keys import load_history, verifier_key
from notary.open_log import open_log
from ordering.embedded import EmbeddedLog
from ordering.errors import NotReady, OutcomeUnknown
from ordering.genesis import read_genesis
from ordering.log import ORDERING, check_payload_partitions
from ordering.memory import MemoryLog
from ordering.topics import CreatedTopics
from tests.notary.cli.command import Command
from tests.notary.cli.written import embedded_log

ROOT = Path(__file__).parents[3]
MADE = {"log", "notary-key.pem", "notary-keys.json", "notary.toml", "owner-key.pem", "parties.json"}


@pytest.fixture
def init(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary init`."""
    return Command(capsys, "init")


def names(directory: Path, name: str = "O=N", origin: str = "notary.example/x") -> tuple[object, ...]:
    """Returns the arguments with name and origin."""
    return directory, "--name", name, "--origin", origin


async def test_a_directory_is_all_that_a_worker_needs(tmp_path: Path, init: Command) -> None:
    """Key, key history, parties, configuration and log are there, and match one another."""
    await asyncio.to_thread(init.run, *names(tmp_path / "a" / "b"))
    config = load(tmp_path / "a" / "b" / "notary.toml", environment={})
    assert (config.name, config.origin) == ("O=N", "notary.example/x")
    key = load_key(config.path(config.key_file)).public_key()
    [first] = load_history(config.path(config.key_history_file), config.origin, key)
    assert (first.verifier_key, first.endorsement) == (verifier_key(config.origin, key), None)
    assert json.loads(config.path(config.parties_file).read_text()) == {}
    log = EmbeddedLog.open(config.path(config.log.directory))
    assert log.payload_partitions == 16
    await log.close()
    assert set(os.listdir(tmp_path / "a" / "b")) == MADE


async def test_the_log_says_whose_it_is(tmp_path: Path, init: Command) -> None:
    """The log's first record has name, origin, partitions and both keys, signed by the owner; `--json` prints its hash, and the keys."""
    printed = await asyncio.to_thread(init.json, *names(tmp_path / "n"), "--partitions", 3)
    async with embedded_log(tmp_path / "n") as log:
        genesis, log_id = await read_genesis(log)
        assert log.payload_partitions == 3
    assert (genesis.notary_name, genesis.origin, genesis.payload_partitions) == ("O=N", "notary.example/x", 3)
    keys = [load_key(tmp_path / "n" / name).public_key() for name in ("notary-key.pem", "owner-key.pem")]
    assert [genesis.notary_key, genesis.owner_key] == [key.public_bytes_raw() for key in keys]
    assert genesis.notary_key != genesis.owner_key
    assert (printed["log_id"], printed["verifier_key"]) == (log_id.hex(), verifier_key("notary.example/x", keys[0]))
    assert (printed["owner_key"], printed["config"]) == (str(tmp_path / "n" / "owner-key.pem"), str(tmp_path / "n" / "notary.toml"))


async def test_two_logs_are_never_the_same(tmp_path: Path, init: Command) -> None:
    """Two notaries of one name have different log ids and keys."""
    found = []
    for each in "ab":
        await asyncio.to_thread(init.run, *names(tmp_path / each))
        async with embedded_log(tmp_path / each) as log:
            genesis, log_id = await read_genesis(log)
        found += [log_id, genesis.salt, genesis.notary_key, genesis.owner_key]
    assert len(set(found)) == 8


def test_the_keys_are_their_owners_alone(tmp_path: Path, init: Command) -> None:
    """Only the owner may read the keys, with any umask."""
    before = os.umask(0)
    try:
        init.run(*names(tmp_path / "n"))
    finally:
        os.umask(before)
    for name in ("notary-key.pem", "owner-key.pem"):
        assert stat.S_IMODE((tmp_path / "n" / name).stat().st_mode) == 0o600


def test_it_is_said_where_the_owners_key_belongs(tmp_path: Path, init: Command) -> None:
    """With an embedded log the owner's key is beside the notary's, and the output says that this is for convenience."""
    [line] = [line for line in init.run(*names(tmp_path / "n")).splitlines() if line.startswith("owner key")]
    for words in (str(tmp_path / "n" / "owner-key.pem"), "for convenience", "keep it off the worker"):
        assert words in line


@pytest.mark.parametrize("there", ["notary.toml", "notary-key.pem", "owner-key.pem", "notary-keys.json", "parties.json", "log/something"])
def test_nothing_is_overwritten(tmp_path: Path, there: str, init: Command) -> None:
    """If one of its files exists already, `init` stops, names it, and leaves it unchanged."""
    file = tmp_path / there
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    assert there.split("/")[0] in init.refuses(*names(tmp_path))
    assert file.read_text() == "precious"
    assert os.listdir(tmp_path) == [there.split("/")[0]]
    file.unlink()
    init.run(*names(tmp_path))


def test_a_link_to_nowhere_is_not_overwritten(tmp_path: Path, init: Command) -> None:
    """A dangling link is an existing name, and is not overwritten."""
    for name in sorted(MADE):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
        init.refuses(*names(tmp_path))
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_an_empty_log_directory_is_used(tmp_path: Path, init: Command) -> None:
    """An empty folder `log` may exist already."""
    (tmp_path / "log").mkdir()
    init.run(*names(tmp_path))
    assert set(os.listdir(tmp_path)) == MADE


NAMES = ["O=Ünïcode,L=Zürich", 'O="quoted\\"', "O=a\tb\x7f\x01", "O=line\nbreak", "𝄞" * 63, "O='x' # y = [z]"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_comes_back_as_it_was_given(tmp_path: Path, name: str, init: Command) -> None:
    """A name with any characters is read back from the configuration unchanged."""
    init.run(*names(tmp_path / "n", name=name))
    assert load(tmp_path / "n" / "notary.toml", environment={}).name == name


WRONG: dict[str, tuple[str, ...]] = {
    "empty-name": ("--name", ""),
    "long-name": ("--name", "é" * 128),
    "name-not-utf-8": ("--name", "\udcff"),
    "empty-origin": ("--origin", ""),
    "origin-with-space": ("--origin", "a b"),
    "origin-with-wide-space": ("--origin", "\u2003a"),
    "origin-with-plus": ("--origin", "a+b"),
    "origin-with-newline": ("--origin", "a\nb"),
    "origin-with-nul-like": ("--origin", "a\x01b"),
    "origin-not-utf-8": ("--origin", "\udcff"),
    "origin-like-an-endorsement": ("--origin", "notary/key/v1"),
    "flush-without-kafka": ("--flush-messages",),
    "replication-without-kafka": ("--replication", "3"),
    "prefix-without-kafka": ("--topic-prefix", "london"),
    "no-replica": ("--replication", "0", "--kafka", "127.0.0.1:1"),
    "long-origin": ("--origin", "x" * 256),
    "no-partitions": ("--partitions", "0"),
    "too-many-partitions": ("--partitions", "1001"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_argument_makes_nothing(tmp_path: Path, wrong: tuple[str, ...], init: Command) -> None:
    """A bad name, origin or number is rejected before anything is made."""
    assert init.refuses(*names(tmp_path / "n"), *wrong).startswith("notary init: ")
    assert not (tmp_path / "n").exists()


def test_an_empty_name_is_no_directory(tmp_path: Path, init: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's empty variable does not put keys into the present folder."""
    monkeypatch.chdir(tmp_path)
    assert "DIR is empty: name a folder" in init.refuses("", *names(tmp_path)[1:])
    assert not list(tmp_path.iterdir())


def test_a_name_in_another_encoding_is_shown(tmp_path: Path, init: Command) -> None:
    """A terminal may not be in UTF-8. The number of bytes is not what is wrong then."""
    assert init.refuses(*names(tmp_path / "n", name="O=Z\udcfcrich")) == "notary init: --name 'O=Z\\udcfcrich' is not UTF-8\n"


@pytest.mark.parametrize("below", ["file", "file/n", "x" * 300, "n/" + "x" * 300, "n\udcff"])
def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path, below: str, init: Command) -> None:
    """A file in the way, an impossible name, or one that the configuration cannot hold, gives a one-line error and exit 2."""
    (tmp_path / "file").write_text("")
    reported = init.refuses(*names(tmp_path / below))
    assert reported.startswith("notary init: ")
    assert reported.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]
    assert ("is a file: name a new or an empty folder" in reported) == (below == "file")


ON_A_SMALL_DISK = """
import resource, sys
from notary import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
code = cli.main(sys.argv[2:])
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))  # for the end of the process: `make coverage` writes there
sys.exit(code)
"""


def in_a_process(*command: object) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.seconds
@pytest.mark.parametrize("bytes_max", [0, 50, 200, 3_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, bytes_max: int, init: Command) -> None:
    """If any file cannot be written completely, an error line says so, nothing is left, and the next attempt works."""
    limited = in_a_process("-c", ON_A_SMALL_DISK, bytes_max, "init", *names(tmp_path / "n"))
    assert limited.returncode == 2
    assert limited.stderr.startswith("notary init: ")
    assert limited.stderr.count("\n") == 1
    assert not (tmp_path / "n").exists()
    init.run(*names(tmp_path / "n"))


@pytest.mark.seconds
@pytest.mark.nightly
def test_an_init_that_is_killed_can_be_repeated(tmp_path: Path, init: Command) -> None:
    """After kills before any change on the disk, a directory with a configuration is complete; another can be completed."""

    def dies(directory: Path, change: int) -> bool:
        """Returns whether `init` dies or fails; it is killed before the change of that number, if it gets there."""
        dying = ("-P", "-m", "tests.notary.snapshots.dying", change, directory)
        return in_a_process(*dying, "init", *names(directory)).returncode != 0

    for change in itertools.count(1):
        directory = tmp_path / f"{change}"
        if not dies(directory, change):
            break
        # The next ones meet what it left, the first few of them for a few changes only.
        for later in (2, 4, 6, 8):
            dies(directory, later)
        # The last one completes the directory, or refuses because it is complete.
        init.run(*names(directory), code=2 if (directory / "notary.toml").exists() else 0)
    assert change > 10
    for made in tmp_path.iterdir():
        assert set(os.listdir(made)) == MADE, made
        config = load(made / "notary.toml", environment={})
        load_history(config.path(config.key_history_file), config.origin, load_key(config.path(config.key_file)).public_key())
        EmbeddedLog.open(config.path(config.log.directory))._store.close()


def test_one_init_at_a_time(tmp_path: Path, init: Command) -> None:
    """While one `init` works in a directory, another one is rejected."""
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert "another" in init.refuses(*names(tmp_path))
    os.close(holder)
    init.run(*names(tmp_path))


@pytest.mark.parametrize("brokers", ["127.0.0.1:1", "", "127.0.0.1:port", "a..b:9092"])
def test_brokers_that_are_not_there_make_nothing(tmp_path: Path, brokers: str, init: Command) -> None:
    """Without brokers there is neither a configuration nor an embedded log; existing files stay. If none can be reached, the error asks."""
    reported = init.refuses(*names(tmp_path / "n"), "--kafka", brokers)
    assert repr(brokers)[1:-1] in reported
    assert ("Do brokers listen there, and does this machine reach them?" in reported) == (brokers == "127.0.0.1:1")
    assert not (tmp_path / "n").exists()
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "ca.pem").write_text("precious")
    init.refuses(*names(tmp_path / "n"), "--kafka", brokers)
    assert os.listdir(tmp_path / "n") == ["ca.pem"]


def test_partitions_are_no_setting(tmp_path: Path, init: Command) -> None:
    """The number of payload partitions is in the log: `--log-settings` does not set it, nor does the environment (`test_config.py`)."""
    (tmp_path / "log.toml").write_text("payload_partitions = 5")
    refused = init.refuses(*names(tmp_path / "n"), "--kafka", "127.0.0.1:1", "--log-settings", tmp_path / "log.toml")
    assert "payload_partitions" in refused


class Topics:
    """Two topics in memory, as `init` finds them on brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: MemoryLog | None = None
        monkeypatch.setattr("notary.cli.init.create_topics", self.create)
        monkeypatch.setattr("notary.cli.init.KafkaLog.open", self.open)

    async def create(self, *_: object, payload_partitions: int, **__: object) -> CreatedTopics:
        if self.log is None:
            self.log = MemoryLog(payload_partitions)
            return CreatedTopics(("notary.ordering", "notary.payload"), (), ())
        check_payload_partitions("topic notary.payload", self.log.payload_partitions, payload_partitions, "give --partitions")
        return CreatedTopics((), ("notary.ordering", "notary.payload"), ())

    async def open(self, *_: object, **__: object) -> MemoryLog:
        assert self.log is not None
        return copy(self.log)  # a copy, so that closing it leaves the other one open


KAFKA = ("--kafka", "127.0.0.1:1")


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Topics that are not there yet."""
    return Topics(monkeypatch)


def test_topics_that_belong_to_somebody_are_refused(tmp_path: Path, topics: Topics, init: Command) -> None:
    """A second notary on the same topics exits with 2, names their owner, and leaves nothing."""
    init.run(*names(tmp_path / "first"), *KAFKA)
    assert topics.log is not None
    assert topics.log.end(ORDERING) == 2
    assert "it belongs to notary 'O=N', origin 'notary.example/x'" in init.refuses(*names(tmp_path / "second", name="O=Second"), *KAFKA)
    assert topics.log.end(ORDERING) == 2
    assert not (tmp_path / "second").exists()


def test_the_owner_is_named_before_the_partitions(tmp_path: Path, topics: Topics, init: Command) -> None:
    """With another number of partitions, topics of somebody are rejected with the owner's name, and empty topics with both numbers."""
    topics.log = MemoryLog(3)
    assert "has 3 payload partitions, wanted 16" in init.refuses(*names(tmp_path / "n"), *KAFKA)
    init.run(*names(tmp_path / "first"), *KAFKA, "--partitions", 3)
    err = init.refuses(*names(tmp_path / "n"), *KAFKA)
    assert "it belongs to notary 'O=N', origin 'notary.example/x'" in err
    assert "--partitions" not in err
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("step", "problem"),
    [("append_genesis", OutcomeUnknown("the brokers went away")), ("_activate", NotReady("the brokers went away"))],
    ids=["before the genesis record", "behind it"],
)
async def test_an_init_that_could_not_append_goes_on(
    tmp_path: Path, topics: Topics, step: str, problem: Exception, monkeypatch: pytest.MonkeyPatch, init: Command
) -> None:
    """If brokers fail, the directory stays with its keys, and the same command completes it."""

    async def fails(*_: object) -> bytes:
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(f"notary.cli.init.{step}", fails)
        assert "Run the same command again to continue" in await asyncio.to_thread(init.refuses, *names(tmp_path / "n"), *KAFKA)
    key = (tmp_path / "n" / "notary-key.pem").read_bytes()
    await asyncio.to_thread(init.refuses, *names(tmp_path / "n", name="O=Other"), *KAFKA)
    for _ in range(2):
        printed = await asyncio.to_thread(init.json, *names(tmp_path / "n"), *KAFKA)
        assert topics.log is not None
        genesis, log_id = await read_genesis(topics.log)
        assert topics.log.end(ORDERING) == 2
        assert (tmp_path / "n" / "notary-key.pem").read_bytes() == key
        assert genesis.notary_key == load_key(tmp_path / "n" / "notary-key.pem").public_key().public_bytes_raw()
        assert printed["log_id"] == log_id.hex()


def test_a_directory_of_a_log_of_others_is_not_overwritten(tmp_path: Path, topics: Topics, init: Command) -> None:
    """If two begin at once, the one whose record is second reports the log's owner, at each attempt."""
    init.run(*names(tmp_path / "a"), *KAFKA)
    first, topics.log = topics.log, None
    init.run(*names(tmp_path / "b"), *KAFKA)
    topics.log = first
    assert "its log belongs to another notary" in init.refuses(*names(tmp_path / "b"), *KAFKA)


@pytest.mark.parametrize("other", [("--topic-prefix", "other"), ("--kafka", "127.0.0.2:1"), ("--partitions", "37")])
@pytest.mark.usefixtures("topics")
def test_a_second_init_for_another_log_is_refused(tmp_path: Path, other: tuple[str, str], init: Command) -> None:
    """It would report topics or partitions that the notary does not have."""
    init.run(*names(tmp_path / "n"), *KAFKA)
    assert other[1] in init.refuses(*names(tmp_path / "n"), *KAFKA, *other)


@pytest.mark.kafka
async def test_topics_are_made_once(tmp_path: Path, kafka_cluster: Cluster, kafka_prefix: str, init: Command) -> None:
    """On brokers topics and genesis record are made; a second notary is rejected with their owner, with any number of partitions."""
    kafka = ("--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix)
    await asyncio.to_thread(init.run, *names(tmp_path / "first"), *kafka, "--partitions", 3, "--flush-messages")
    for partitions in (16, 3):
        refused = await asyncio.to_thread(init.refuses, *names(tmp_path / "n"), *kafka, "--partitions", partitions)
        assert "it belongs to notary 'O=N'" in refused
    assert not (tmp_path / "n").exists()
    log = await open_log(load(tmp_path / "first" / "notary.toml", environment={}))
    genesis, _ = await read_genesis(log)
    await log.close()
    assert (log.payload_partitions, genesis.payload_partitions) == (3, 3)


def test_a_second_init_without_the_owners_key(tmp_path: Path, init: Command) -> None:
    """`init` says to move the owner's key off the machine. A second call there says what is missing."""
    init.run(*names(tmp_path / "n"))
    (tmp_path / "n" / "owner-key.pem").rename(tmp_path / "elsewhere.pem")
    refused = init.refuses(*names(tmp_path / "n"), "--kafka", "127.0.0.1:1")
    assert "notary.toml exists already, and owner-key.pem is not beside it" in refused
