"""`notary init`: what it makes, and what it never overwrites."""

import json
import os
import stat
from pathlib import Path

import pytest

from notary import cli
from notary.config import load
from notary.keys import load as load_key
from notary.keys import verifier_key
from ordering.embedded import EmbeddedLog


def init(*arguments: object) -> int:
    """Run it."""
    return cli.main(["init", *map(str, arguments)])


def names(directory: Path, name: str = "O=N", origin: str = "notary.example/x") -> tuple[object, ...]:
    """Its arguments."""
    return directory, "--name", name, "--origin", origin


async def test_a_directory_is_all_that_a_worker_needs(tmp_path: Path) -> None:
    """Key, parties, configuration and log are there, and fit one another."""
    assert init(*names(tmp_path / "a" / "b")) == 0
    config = load(tmp_path / "a" / "b" / "notary.toml", environment={})
    assert (config.name, config.origin) == ("O=N", "notary.example/x")
    load_key(config.path(config.key_file))
    assert json.loads(config.path(config.parties_file).read_text()) == {}
    log = EmbeddedLog.open(config.path(config.log.directory))
    assert log.payload_partitions == 16
    await log.close()


def test_the_key_is_its_owners_alone(tmp_path: Path) -> None:
    """Nobody else may read the key, whatever the umask is."""
    before = os.umask(0)
    try:
        init(*names(tmp_path / "n"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "n" / "notary-key.pem").stat().st_mode) == 0o600


def test_json_tells_what_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` is one object, with the verifier key that outsiders need."""
    assert init(*names(tmp_path / "n"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    key = load_key(tmp_path / "n" / "notary-key.pem").public_key()
    assert told["verifier_key"] == verifier_key("notary.example/x", key)
    assert told["config"] == str(tmp_path / "n" / "notary.toml")


@pytest.mark.parametrize("there", ["notary.toml", "notary-key.pem", "parties.json", "log/something"])
def test_nothing_is_overwritten(tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where one of its files is there already, init stops, says which, and leaves it as it is."""
    file = tmp_path / there
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    assert init(*names(tmp_path)) == 2
    assert there.split("/")[0] in capsys.readouterr().err
    assert file.read_text() == "precious"
    assert not (tmp_path / "notary.toml").exists() or there == "notary.toml"


def test_a_second_init_is_refused(tmp_path: Path) -> None:
    """The same directory twice: the first notary stays what it was."""
    init(*names(tmp_path / "n"))
    before = {file: file.read_bytes() for file in sorted((tmp_path / "n").glob("*.*"))}
    assert init(*names(tmp_path / "n", name="O=Another")) == 2
    assert {file: file.read_bytes() for file in before} == before


NAMES = ["O=Ünïcode,L=Zürich", 'O="quoted\\"', "O=a\tb\x7f\x01", "O=line\nbreak", "𝄞" * 63, "O='x' # y = [z]"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_comes_back_as_it_was_given(tmp_path: Path, name: str) -> None:
    """Whatever characters a name has, the configuration says the very same."""
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
    "no-partitions": ("--partitions", "0"),
    "too-many-partitions": ("--partitions", "1001"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_argument_makes_nothing(tmp_path: Path, wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A name, origin or number that cannot be is refused before anything is made."""
    assert init(*names(tmp_path / "n"), *wrong) == 2
    assert capsys.readouterr().err.startswith("notary init: ")
    assert not (tmp_path / "n").exists()


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way: exit 2."""
    (tmp_path / "file").write_text("")
    assert init(*names(tmp_path / "file" / "n")) == 2
    assert str(tmp_path / "file" / "n") in capsys.readouterr().err


def test_brokers_that_are_not_there_make_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its topics there is no configuration that claims them."""
    assert init(*names(tmp_path / "n"), "--kafka", "127.0.0.1:1") == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert not (tmp_path / "n").exists()


def test_usage_errors_exit_2() -> None:
    """A missing flag is a usage error."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["init"])
    assert ended.value.code == 2
