"""`notary init`: the files that it makes, and the files that it never overwrites."""

import asyncio
import fcntl
import json
import os
import stat
import subprocess
import sys
import textwrap
from copy import copy
from pathlib import Path

import pytest

from deploy.local import Cluster
from notary import cli
from notary.config import load
from notary.keys import load as load_key
from notary.keys import load_history, verifier_key
from notary.open_log import check_genesis, open_log
from ordering.embedded import EmbeddedLog
from ordering.errors import ConfigurationError, NotReady, OutcomeUnknown
from ordering.genesis import read_genesis
from ordering.log import ORDERING, Log, check_payload_partitions
from ordering.memory import MemoryLog
from ordering.topics import CreatedTopics
from tests.notary.cli.written import embedded_log

ROOT = Path(__file__).parents[3]
MADE = {"log", "notary-key.pem", "notary-keys.json", "notary.toml", "owner-key.pem", "parties.json"}


def init(*arguments: object) -> int:
    """Run `notary init`."""
    return cli.main(["init", *map(str, arguments)])


def names(directory: Path, name: str = "O=N", origin: str = "notary.example/x") -> tuple[object, ...]:
    """Returns the arguments with name and origin."""
    return directory, "--name", name, "--origin", origin


async def test_a_directory_is_all_that_a_worker_needs(tmp_path: Path) -> None:
    """Key, key history, parties, configuration and log are there, and match one another."""
    assert await asyncio.to_thread(init, *names(tmp_path / "a" / "b")) == 0
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


@pytest.mark.parametrize(("setting", "value"), [("NAME", "O=N "), ("ORIGIN", "notary.example/y")])
async def test_a_misnamed_configuration_is_refused(tmp_path: Path, setting: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration with another name or origin than the log's is rejected with both values, by commands and workers."""
    assert await asyncio.to_thread(init, *names(tmp_path / "n")) == 0
    config = load(tmp_path / "n" / "notary.toml", environment={f"NOTARY_{setting}": value})
    log = await open_log(config)
    genesis, _ = await read_genesis(log)
    await log.close()
    right = genesis.notary_name if setting == "NAME" else genesis.origin
    with pytest.raises(ConfigurationError, match=f"{value!r}.*{right!r}"):
        check_genesis(config, genesis)


async def test_the_log_says_whose_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log's first record has name, origin, partitions and both keys, signed by the owner; its hash is the printed log id."""
    assert await asyncio.to_thread(init, *names(tmp_path / "n"), "--partitions", 3, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    async with embedded_log(tmp_path / "n") as log:
        genesis, log_id = await read_genesis(log)
        assert log.payload_partitions == 3
    assert (genesis.notary_name, genesis.origin, genesis.payload_partitions) == ("O=N", "notary.example/x", 3)
    public_keys = [load_key(tmp_path / "n" / name).public_key().public_bytes_raw() for name in ("notary-key.pem", "owner-key.pem")]
    assert [genesis.notary_key, genesis.owner_key] == public_keys
    assert public_keys[0] != public_keys[1]
    assert printed["log_id"] == log_id.hex()
    assert printed["owner_key"] == str(tmp_path / "n" / "owner-key.pem")


async def test_two_logs_are_never_the_same(tmp_path: Path) -> None:
    """Two notaries of one name have different log ids and keys."""
    found = []
    for each in "ab":
        await asyncio.to_thread(init, *names(tmp_path / each))
        async with embedded_log(tmp_path / each) as log:
            genesis, log_id = await read_genesis(log)
        found += [log_id, genesis.salt, genesis.notary_key, genesis.owner_key]
    assert len(set(found)) == 8


def test_the_keys_are_their_owners_alone(tmp_path: Path) -> None:
    """Only the owner may read the keys, with any umask."""
    before = os.umask(0)
    try:
        init(*names(tmp_path / "n"))
    finally:
        os.umask(before)
    for name in ("notary-key.pem", "owner-key.pem"):
        assert stat.S_IMODE((tmp_path / "n" / name).stat().st_mode) == 0o600


def test_it_is_said_where_the_owners_key_belongs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With an embedded log the owner's key is beside the notary's, and the output says that this is for convenience."""
    assert init(*names(tmp_path / "n")) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("owner key")]
    assert str(tmp_path / "n" / "owner-key.pem") in line
    assert "for convenience" in line
    assert "keep it off the worker" in line


def test_json_lists_the_created_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object, with the verifier key that outsiders need."""
    assert init(*names(tmp_path / "n"), "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    key = load_key(tmp_path / "n" / "notary-key.pem").public_key()
    assert reported["verifier_key"] == verifier_key("notary.example/x", key)
    assert reported["config"] == str(tmp_path / "n" / "notary.toml")


@pytest.mark.parametrize("there", ["notary.toml", "notary-key.pem", "owner-key.pem", "notary-keys.json", "parties.json", "log/something"])
def test_nothing_is_overwritten(tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If one of its files exists already, `init` stops, names it, and leaves it unchanged."""
    file = tmp_path / there
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    assert init(*names(tmp_path)) == 2
    assert there.split("/")[0] in capsys.readouterr().err
    assert file.read_text() == "precious"
    assert os.listdir(tmp_path) == [there.split("/")[0]]
    file.unlink()
    assert init(*names(tmp_path)) == 0


def test_a_link_to_nowhere_is_not_overwritten(tmp_path: Path) -> None:
    """A dangling link is an existing name, and is not overwritten."""
    for name in sorted(MADE):
        (tmp_path / name).symlink_to(tmp_path / "nowhere")
        assert init(*names(tmp_path)) == 2
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_an_empty_log_directory_is_used(tmp_path: Path) -> None:
    """An empty folder `log` may exist already."""
    (tmp_path / "log").mkdir()
    assert init(*names(tmp_path)) == 0
    assert set(os.listdir(tmp_path)) == MADE


NAMES = ["O=Ünïcode,L=Zürich", 'O="quoted\\"', "O=a\tb\x7f\x01", "O=line\nbreak", "𝄞" * 63, "O='x' # y = [z]"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_comes_back_as_it_was_given(tmp_path: Path, name: str) -> None:
    """A name with any characters is read back from the configuration unchanged."""
    assert init(*names(tmp_path / "n", name=name)) == 0
    assert load(tmp_path / "n" / "notary.toml", environment={}).name == name


WRONG: dict[str, tuple[str, ...]] = {
    "empty-name": ("--name", ""),
    "long-name": ("--name", "é" * 128),
    "name-not-utf-8": ("--name", "\udcff"),
    "empty-origin": ("--origin", ""),
    "origin-with-space": ("--origin", "a b"),
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
def test_a_wrong_argument_makes_nothing(tmp_path: Path, wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A bad name, origin or number is rejected before anything is made."""
    assert init(*names(tmp_path / "n"), *wrong) == 2
    assert capsys.readouterr().err.startswith("notary init: ")
    assert not (tmp_path / "n").exists()


def test_a_name_in_another_encoding_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal may not be in UTF-8. The number of bytes is not what is wrong then."""
    assert init(*names(tmp_path / "n", name="O=Z\udcfcrich")) == 2
    assert capsys.readouterr().err == "notary init: --name 'O=Z\\udcfcrich' is not UTF-8\n"


@pytest.mark.parametrize("below", ["file", "file/n", "x" * 300, "n/" + "x" * 300, "n\udcff"])
def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way, an impossible name, or one that the configuration cannot hold, gives a one-line error and exit 2."""
    (tmp_path / "file").write_text("")
    assert init(*names(tmp_path / below)) == 2
    reported = capsys.readouterr().err
    assert reported.startswith("notary init: ")
    assert reported.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]


def in_a_process(code: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run the code in a separate process, with `init(directory)` as the command line runs it."""
    script = """
        import os, resource, signal, sys
        directory = sys.argv[1]
        def init(directory):
            from notary import cli
            return cli.main(["init", directory, "--name", "O=N", "--origin", "notary.example/x"])
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script) + textwrap.dedent(code), str(directory)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.seconds
@pytest.mark.parametrize("bytes_max", [0, 50, 200, 3_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, bytes_max: int) -> None:
    """If any file cannot be written completely, an error line says so, nothing is left, and the next attempt works."""
    script = f"""
        resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_max}, -1))
        code = init(directory)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))  # for the end of the process: `make coverage` writes there
        sys.exit(code)
    """
    limited = in_a_process(script, tmp_path / "n")
    assert limited.returncode == 2
    assert limited.stderr.startswith("notary init: ")
    assert limited.stderr.count("\n") == 1
    assert not (tmp_path / "n").exists()
    assert init(*names(tmp_path / "n")) == 0


@pytest.mark.seconds
@pytest.mark.nightly
def test_an_init_that_is_killed_can_be_repeated(tmp_path: Path) -> None:
    """After a kill before any step on the disk, again and again, a directory with a configuration is complete; another can be completed."""
    script = """
        def dies(directory, step):
            \"\"\"Whether `init` dies or fails; it is killed before the step of that number, if it gets there.\"\"\"
            child = os.fork()
            if child == 0:
                steps = 0
                def count(event, arguments):
                    nonlocal steps
                    if event.split(".")[0] in ("open", "os", "shutil", "tempfile") and any(directory in str(each) for each in arguments):
                        steps += 1
                        if steps == step:
                            os.kill(os.getpid(), signal.SIGKILL)
                sys.stdout = open(os.devnull, "w")
                sys.addaudithook(count)
                os._exit(init(directory))
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0

        import notary.cli.init
        step, made = 0, False
        while not made:
            step += 1
            here = f"{directory}/{step}"
            made = not dies(here, step)
            if not made:
                # The next ones meet what it left, the first few of them for a few steps only.
                for later in (2, 4, 6, 8):
                    dies(here, later)
                # The last one completes the directory, or refuses because it is complete.
                complete = os.path.exists(f"{here}/notary.toml")
                assert dies(here, 0) == complete, step
        print(step)
    """
    done = in_a_process(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
    for made in tmp_path.iterdir():
        assert set(os.listdir(made)) == MADE, made
        config = load(made / "notary.toml", environment={})
        load_history(config.path(config.key_history_file), config.origin, load_key(config.path(config.key_file)).public_key())
        EmbeddedLog.open(config.path(config.log.directory))._store.close()


def test_one_init_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While one `init` works in a directory, another one is rejected."""
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert init(*names(tmp_path)) == 2
    assert "another" in capsys.readouterr().err
    os.close(holder)
    assert init(*names(tmp_path)) == 0


@pytest.mark.parametrize("brokers", ["127.0.0.1:1", "", "127.0.0.1:port", "a..b:9092"])
def test_brokers_that_are_not_there_make_nothing(tmp_path: Path, brokers: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without brokers there is neither a configuration nor an embedded log; existing files stay."""
    assert init(*names(tmp_path / "n"), "--kafka", brokers) == 2
    assert repr(brokers)[1:-1] in capsys.readouterr().err
    assert not (tmp_path / "n").exists()
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "ca.pem").write_text("precious")
    assert init(*names(tmp_path / "n"), "--kafka", brokers) == 2
    assert os.listdir(tmp_path / "n") == ["ca.pem"]


def test_partitions_are_no_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of payload partitions is in the log: neither `--log-settings` nor the environment sets it."""
    (tmp_path / "log.toml").write_text("payload_partitions = 5")
    assert init(*names(tmp_path / "n"), "--kafka", "127.0.0.1:1", "--log-settings", tmp_path / "log.toml") == 2
    assert "payload_partitions" in capsys.readouterr().err
    assert init(*names(tmp_path / "n")) == 0
    with pytest.raises(ConfigurationError, match="NOTARY_LOG_PAYLOAD_PARTITIONS"):
        load(tmp_path / "n" / "notary.toml", environment={"NOTARY_LOG_PAYLOAD_PARTITIONS": "16"})


class Topics:
    """Two topics in memory, as `init` finds them on brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: MemoryLog | None = None
        self.fails: Exception | None = None
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
        if self.fails is not None:
            raise self.fails
        return copy(self.log)  # a copy, so that closing it leaves the other one open


KAFKA = ("--kafka", "127.0.0.1:1")


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Topics that are not there yet."""
    return Topics(monkeypatch)


def test_topics_that_belong_to_somebody_are_refused(tmp_path: Path, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    """A second notary on the same topics exits with 2, names their owner, and leaves nothing."""
    assert init(*names(tmp_path / "first"), *KAFKA) == 0
    assert topics.log is not None
    assert topics.log.end(ORDERING) == 2
    assert init(*names(tmp_path / "second", name="O=Second"), *KAFKA) == 2
    assert "it belongs to notary 'O=N', origin 'notary.example/x'" in capsys.readouterr().err
    assert topics.log.end(ORDERING) == 2
    assert not (tmp_path / "second").exists()


def test_the_owner_is_named_before_the_partitions(tmp_path: Path, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    """With another number of partitions, topics of somebody are rejected with the owner's name, and empty topics with both numbers."""
    topics.log = MemoryLog(3)
    assert init(*names(tmp_path / "n"), *KAFKA) == 2
    assert "has 3 payload partitions, wanted 16" in capsys.readouterr().err
    assert init(*names(tmp_path / "first"), *KAFKA, "--partitions", 3) == 0
    assert init(*names(tmp_path / "n"), *KAFKA) == 2
    err = capsys.readouterr().err
    assert "it belongs to notary 'O=N', origin 'notary.example/x'" in err
    assert "--partitions" not in err
    assert not (tmp_path / "n").exists()


def test_topics_with_records_of_nobody_are_refused(tmp_path: Path, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic with any record in it is rejected."""
    topics.log = MemoryLog(16)
    topics.log.put(ORDERING, None, b"something")
    assert init(*names(tmp_path / "n"), *KAFKA) == 2
    assert "its first record is no genesis record" in capsys.readouterr().err
    assert not (tmp_path / "n").exists()


def test_topics_that_are_empty_are_used(tmp_path: Path, topics: Topics) -> None:
    """After an `init` that died once the topics were there, the next one uses the empty topics."""
    topics.log = MemoryLog(16)
    assert init(*names(tmp_path / "n"), *KAFKA) == 0
    assert topics.log.end(ORDERING) == 2


async def test_an_init_that_could_not_append_goes_on(
    tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If brokers fail before the genesis record, the directory stays with its keys, and the same command completes it."""

    async def append(log: Log, *_: object) -> bytes:
        raise OutcomeUnknown("the brokers went away")

    with monkeypatch.context() as patch:
        patch.setattr("notary.cli.init.append_genesis", append)
        assert await asyncio.to_thread(init, *names(tmp_path / "n"), *KAFKA) == 2
    assert "Run the same command again" in capsys.readouterr().err
    key = (tmp_path / "n" / "notary-key.pem").read_bytes()
    assert await asyncio.to_thread(init, *names(tmp_path / "n", name="O=Other"), *KAFKA) == 2
    for _ in range(2):
        assert await asyncio.to_thread(init, *names(tmp_path / "n"), *KAFKA, "--json") == 0
        assert topics.log is not None
        genesis, log_id = await read_genesis(topics.log)
        assert topics.log.end(ORDERING) == 2
        assert (tmp_path / "n" / "notary-key.pem").read_bytes() == key
        assert genesis.notary_key == load_key(tmp_path / "n" / "notary-key.pem").public_key().public_bytes_raw()
        assert json.loads(capsys.readouterr().out)["log_id"] == log_id.hex()


def test_a_directory_of_a_log_of_others_is_not_overwritten(tmp_path: Path, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    """If two begin at once, the one whose record is second reports the log's owner, at each attempt."""
    assert init(*names(tmp_path / "a"), *KAFKA) == 0
    first, topics.log = topics.log, None
    assert init(*names(tmp_path / "b"), *KAFKA) == 0
    topics.log = first
    capsys.readouterr()
    assert init(*names(tmp_path / "b"), *KAFKA) == 2
    assert "its log belongs to another notary" in capsys.readouterr().err


@pytest.mark.parametrize("other", [("--topic-prefix", "other"), ("--kafka", "127.0.0.2:1"), ("--partitions", "37")])
@pytest.mark.usefixtures("topics")
def test_a_second_init_for_another_log_is_refused(tmp_path: Path, other: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """It would report topics or partitions that the notary does not have."""
    assert init(*names(tmp_path / "n"), *KAFKA) == 0
    capsys.readouterr()
    assert init(*names(tmp_path / "n"), *KAFKA, *other) == 2
    assert other[1] in capsys.readouterr().err


@pytest.mark.kafka
async def test_topics_are_made_once(tmp_path: Path, kafka_cluster: Cluster, kafka_prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On brokers topics and genesis record are made; a second notary is rejected with their owner, with any number of partitions."""
    kafka = ("--kafka", kafka_cluster.bootstrap, "--topic-prefix", kafka_prefix)
    assert await asyncio.to_thread(init, *names(tmp_path / "first"), *kafka, "--partitions", 3, "--flush-messages") == 0
    capsys.readouterr()
    for partitions in (16, 3):
        assert await asyncio.to_thread(init, *names(tmp_path / "n"), *kafka, "--partitions", partitions) == 2
        assert "it belongs to notary 'O=N'" in capsys.readouterr().err
    assert not (tmp_path / "n").exists()
    log = await open_log(load(tmp_path / "first" / "notary.toml", environment={}))
    genesis, _ = await read_genesis(log)
    await log.close()
    assert (log.payload_partitions, genesis.payload_partitions) == (3, 3)


def test_a_second_init_without_the_owners_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` says to move the owner's key off the machine. A second call there says what is missing."""
    assert init(*names(tmp_path / "n")) == 0
    (tmp_path / "n" / "owner-key.pem").rename(tmp_path / "elsewhere.pem")
    capsys.readouterr()
    assert init(*names(tmp_path / "n"), "--kafka", "127.0.0.1:1") == 2
    assert "notary.toml exists already, and owner-key.pem is not beside it" in capsys.readouterr().err


async def test_an_init_without_the_second_record_goes_on(
    tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If brokers fail behind the genesis record, the same command activates the format version."""

    async def fails(*_: object) -> None:
        raise NotReady("the brokers went away")

    with monkeypatch.context() as patch:
        patch.setattr("notary.cli.init._activate", fails)
        assert await asyncio.to_thread(init, *names(tmp_path / "n"), *KAFKA) == 2
    assert "Run the same command again to continue" in capsys.readouterr().err
    for _ in range(2):
        assert await asyncio.to_thread(init, *names(tmp_path / "n"), *KAFKA) == 0
        assert topics.log is not None
        assert topics.log.end(ORDERING) == 2
