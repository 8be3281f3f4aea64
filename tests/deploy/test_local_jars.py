"""The jars that are fetched have the bytes that `jars.sha256` pins."""

from hashlib import sha256
from pathlib import Path

import pytest

from deploy.local import __main__, jars
from deploy.local.errors import CannotRun

FILES = {"one-1.0.jar": b"one", "two-2.0.jar": b"two"}


@pytest.fixture
def libs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two fetched jars, which are pinned beside one of another set."""
    folder = tmp_path / "libs"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    pins = [f"{sha256(content).hexdigest()}  {jars.BROKER.name}/{name}" for name, content in FILES.items()]
    pins.append(f"{sha256(b'three').hexdigest()}  {jars.TOOLS.name}/three-3.0.jar")
    (tmp_path / "jars.sha256").write_text("\n".join([*pins, ""]))
    monkeypatch.setattr(jars, "PINS", tmp_path / "jars.sha256")
    return folder


def test_jars_that_are_pinned_are_accepted(libs: Path) -> None:
    """The jars of one set are compared with the pins of that set alone."""
    jars._check(libs, jars.BROKER)


def test_a_jar_with_other_bytes_is_refused(libs: Path) -> None:
    """The message names the jar, both hashes, and the command that pins again."""
    (libs / "two-2.0.jar").write_bytes(b"twO")
    with pytest.raises(CannotRun, match=r"two-2\.0\.jar") as caught:
        jars._check(libs, jars.BROKER)
    assert all(sha256(content).hexdigest() in str(caught.value) for content in (b"two", b"twO"))
    assert "deploy.local pin" in str(caught.value)


def test_a_jar_too_many_or_too_few_is_refused(libs: Path) -> None:
    """A jar that no line pins, and a pinned one that was not fetched, are errors too."""
    (libs / "extra-1.0.jar").write_bytes(b"extra")
    with pytest.raises(CannotRun, match=r"extra-1\.0\.jar.*not listed"):
        jars._check(libs, jars.BROKER)
    (libs / "extra-1.0.jar").unlink()
    (libs / "one-1.0.jar").unlink()
    with pytest.raises(CannotRun, match=r"one-1\.0\.jar is none"):
        jars._check(libs, jars.BROKER)


def test_an_interrupted_fetch_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After Ctrl-C the command exits with 2: `fetch` has no folder of a cluster to look at."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "prepare", interrupted)
    assert __main__.main(["fetch"]) == 2
    assert capsys.readouterr().err == "deploy.local: interrupted\n"


def test_every_set_is_pinned() -> None:
    """The pins that the project ships have the jar that stands for each set."""
    pinned = jars.PINS.read_text()
    for each in jars.ALL:
        assert f"  {each.name}/{each.landmark}\n" in pinned
