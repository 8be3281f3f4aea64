"""`notary`: exit codes and messages for errors around a command."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from notary import cli
from ordering.errors import ConfigurationError, Fatal, FatalCode
from tests.notary.client.scripted import NAME, PARTY, VERIFIER_KEY, Notary, Worker, key_file, request, staged
from tests.notary.party import Bank
from tests.notary.process import ROOT, NotaryDirectory


@pytest.fixture
def party_add(tmp_path: Path) -> list[str]:
    """A command that prints a line."""
    directory = NotaryDirectory.create(tmp_path / "notary")
    (tmp_path / "k.pem").write_bytes(Bank().public_pem)
    return ["party", "add", "O=A", "--public-key", str(tmp_path / "k.pem"), "--config", str(directory.config)]


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[list[str]]:
    """A command that prints data, and counts on stderr."""
    (tmp_path / "requests.jsonl").write_text(json.dumps(request(1)) + "\n")
    with staged(Worker(Notary(), [])) as urls:
        yield [
            *("submit", str(tmp_path / "requests.jsonl"), "--key", key_file(tmp_path), "--party", PARTY),
            *("--url", urls[0], "--notary-name", NAME, "--verifier-key", VERIFIER_KEY),
        ]


@pytest.fixture(params=["party_add", "submit"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """Each of the two commands."""
    given: list[str] = request.getfixturevalue(request.param)
    return given


# As for users, output is buffered, so a write may fail as late as at Python's exit.
ENVIRONMENT = {variable: value for variable, value in os.environ.items() if variable != "PYTHONUNBUFFERED"}


def in_shell(command: list[str], redirections: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a shell with these redirections."""
    words = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "notary", *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT)


def check_no_trace(done: "subprocess.CompletedProcess[str]") -> None:
    """Fail if stderr has a traceback or another text for programmers."""
    for word in ("Traceback", "Exception ignored", "Group"):
        assert word not in done.stderr, done.stderr


@pytest.mark.seconds
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
def test_output_that_cannot_be_written(command: list[str]) -> None:
    """With a full disk under stdout the command exits with 2, and a line says so."""
    done = in_shell(command, "> /dev/full")
    assert done.returncode == 2
    assert "standard output cannot be written: No space left" in done.stderr
    check_no_trace(done)


@pytest.mark.seconds
def test_a_reader_that_has_left(command: list[str]) -> None:
    """With a closed pipe at stdout the command exits with 2, without a message."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "notary", *command]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=ENVIRONMENT)
    os.close(writing)
    assert done.returncode == 2
    check_no_trace(done)


@pytest.mark.seconds
@pytest.mark.parametrize("redirections", ["2>&-", "2> /dev/full"], ids=["closed", "full"])
def test_messages_that_cannot_be_written(party_add: list[str], submit: list[str], redirections: str) -> None:
    """Without a usable stderr, stdout gets data only, and a failure is still exit 2."""
    assert in_shell(party_add, redirections).returncode == 0
    done = in_shell(submit, redirections)
    assert done.returncode == (0 if redirections == "2>&-" else 2)
    assert [json.loads(line)["position"] for line in done.stdout.splitlines()] == [0]
    done = in_shell([*party_add, "--config", "missing.toml"], redirections)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.seconds
def test_decisions_are_not_asked_for_without_a_place_for_them(submit: list[str]) -> None:
    """With stdout closed `submit` sends nothing and exits with 2."""
    done = in_shell(submit, ">&-")
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr
    check_no_trace(done)


@pytest.mark.seconds
def test_a_table_without_a_place_for_it() -> None:
    """With stdout closed `top` shows nothing; its exit code still says whether a worker answered."""
    done = in_shell(["top", "http://127.0.0.1:1", "--once", "--interval", "0.1"], ">&-")
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize(
    ("problem", "line", "is_bug"),
    [
        (PermissionError(13, "Permission denied", "some/file"), "notary party: [Errno 13] Permission denied: 'some/file'", False),
        (KeyboardInterrupt(), "notary party: interrupted", False),
        (ValueError("a bug of ours"), "ValueError: a bug of ours", True),
        (ExceptionGroup("some", [ValueError("a bug of ours")]), "ValueError: a bug of ours", True),
    ],
    ids=["system", "interrupt", "bug", "bugs"],
)
def test_what_no_command_foresaw(
    problem: BaseException, line: str, is_bug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error of the system is one line, a bug a traceback; both exit with 2."""

    def run(arguments: object) -> int:
        raise problem

    monkeypatch.setattr("notary.cli.party.run", run)
    assert cli.main(["party", "add", "O=A", "--public-key", "k", "--config", "c"]) == 2
    printed = capsys.readouterr().err
    assert line in printed
    assert ("Traceback" in printed) == is_bug


@pytest.mark.parametrize(
    "words",
    [
        *("init", "key", "key show", "key rotate", "key make --config x", "verify", "verify receipt", "verify --verifier-key k"),
        *("log", "log show", "log show --config x --from a", "log show --config x --archive y"),
    ],
)
def test_usage_errors_exit_2(words: str) -> None:
    """An action or argument that is missing, that does not exist, or that excludes another one, is a usage error."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "what"),
    [("export --index x --out y", "writes Parquet"), ("log show --archive x", "reads an archive's Parquet files")],
    ids=["export", "log"],
)
def test_a_missing_pyarrow_is_named(words: str, what: str) -> None:
    """The error names the missing package, and the command that installs it."""
    code = f"import sys; sys.modules['pyarrow'] = None; from notary import cli; sys.exit(cli.main({words.split()!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    expected = f"notary {words.split()[0]}: pyarrow, which {what}, is not installed: pip install 'kafka-notary[parquet]'\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.seconds
@pytest.mark.parametrize("flags", [["--json"], []], ids=["json", "text"])
def test_a_name_that_is_not_utf8(flags: list[str]) -> None:
    """An error about a file whose name is not UTF-8 is one line with the escaped name, and the exit code stays 2."""
    command = [sys.executable, "-P", "-m", "notary", "key", "show", "--config", os.fsdecode(b"/nowhere/\xff.toml"), *flags]
    done = subprocess.run(command, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    check_no_trace(done)
    assert done.returncode == 2
    assert "\\udcff.toml" in done.stderr


def test_a_result_that_is_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    """Results with such names are JSON too: only these bytes are escaped."""
    facts = {"name": ["a\udcff", "ö"], "more": {"\udc80": 1}}
    assert json.loads(cli.json_line(facts)) == {"name": ["a\\udcff", "ö"], "more": {"\\udc80": 1}}


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_json_under_json(as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that ends with an error exits with 2; under `--json` the line is a JSON object. A fatal error's line has its code."""
    problems = iter([Fatal(FatalCode.INDEX_DAMAGED, "the index /x is damaged"), ConfigurationError("cannot read /y")])

    def fail(arguments: object) -> int:
        raise next(problems)

    monkeypatch.setattr("notary.cli.export.run", fail)
    for text, code in (("the index /x is damaged", {"code": "index-damaged"}), ("cannot read /y", {})):
        assert cli.main(["export", "--index", "none", "--out", "none", *["--json"] * as_json]) == 2
        line = capsys.readouterr().err
        if as_json:
            assert json.loads(line) == {"level": "error", "message": f"notary export: {text}", **code}
        else:
            assert line == f"notary export: {text}{' code=index-damaged' if code else ''}\n"
