"""Tests that each mutant breaks an existing line, and runs some of every kind (`make mutants` runs all of them)."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from notary import version
from tests.mutants import __main__ as runner
from tests.mutants.__main__ import ROOT, main, run
from tests.mutants.mutants import MUTANTS, Broken, Mutant
from tests.simulation.test_simulation import SEEDS_A_NIGHT

RUN_EVERY_TIME = ("fenced incarnations still count", "any content will do", "a retry is decided again", "resume past the buffer")
"""A mutant of each of four rules, which few seeds notice."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_breaks_a_line_that_is_there(mutant: Mutant) -> None:
    """Its code occurs once in its symbol, and the mutated file is valid Python and another program."""
    for file, broken in applied(mutant).items():
        assert broken != unbroken(file)
        ast.parse(broken)


@pytest.mark.seconds
def test_no_mutant_names_what_is_not_there(tmp_path: Path) -> None:
    """A mutant that raises `NameError` is noticed at once, whatever the simulator checks."""
    for number, mutant in enumerate(MUTANTS):
        for at, broken in enumerate(applied(mutant).values()):
            (tmp_path / f"m{number}_{at}.py").write_text(f"# {mutant.name}\n{broken}\n")
    command = (sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@cache
def applied(mutant: Mutant) -> dict[str, str]:
    """Returns the mutated files."""
    return mutant.apply(lambda name: Path(ROOT, name).read_text())


@cache
def unbroken(file: str) -> str:
    """Returns a file's source in the form that mutated ones have."""
    return ast.unparse(ast.parse(Path(ROOT, file).read_text()))


def ten() -> None:
    """The symbol of the mutants of `TEN`."""


TEN = """
def one():
    if now_s:
        now_s += 10

def ten():
    if now_s > 3:
        now_s += 10
    return (now_s)
"""


@pytest.mark.parametrize(
    ("code", "broken", "lines"),
    [
        ("(now_s >\n3)", "0", ["if 0:", "now_s += 10", "return now_s"]),
        ("now_s += (10)", "pass", ["if now_s > 3:", "pass", "return now_s"]),
        ("now_s += 10", "now_s += 1\nnow_s += 2", ["if now_s > 3:", "now_s += 1", "now_s += 2", "return now_s"]),
        ("if now_s > 3:", "if False:", ["if False:", "now_s += 10", "return now_s"]),
        ("if now_s > 3:", "now_s = 3\nif now_s:", ["now_s = 3", "if now_s:", "now_s += 10", "return now_s"]),
    ],
)
def test_code_is_found_as_python_parses_it(code: str, broken: str, lines: list[str]) -> None:
    """An expression, a statement or the head of a compound statement is replaced, whatever its brackets and lines, in its symbol alone."""
    before, _, after = Broken(ten, code, broken).apply(TEN).partition("def ten():\n")
    assert [line.strip() for line in after.splitlines()] == lines
    assert before == ast.unparse(ast.parse(TEN)).partition("def ten():\n")[0]


@pytest.mark.parametrize(
    ("code", "source", "why"),
    [
        ("now_s", "def eleven(): pass", "no ten"),
        ("now_ms", TEN, "0 times in ten"),
        ("now_s", TEN, "2 times in ten"),
        ("now_s += 11", TEN, "0 times in ten"),
        ("if now_s:", TEN, "0 times in ten"),
    ],
)
def test_code_that_is_not_there_once_is_an_error(code: str, source: str, why: str) -> None:
    """A symbol that its file does not define is an error, and so is code that it does not have, or has more than once."""
    with pytest.raises(ValueError, match=why):
        Broken(ten, code, "pass" if code.endswith("11") else "if False:" if code.endswith(":") else "0").apply(source)


def test_there_are_a_hundred_mutants_with_names() -> None:
    """There are more than a hundred mutants, as docs/testing.md has it, each with a name of its own."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 100


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RUN_EVERY_TIME)
def test_the_simulator_notices_the_mutant(name: str) -> None:
    """The simulator notices the mutant within its stated number of seeds."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    caught = run(mutant)
    assert 0 < caught.seeds <= mutant.seeds, caught.how


def test_states_within_how_many_seeds() -> None:
    """No mutant states more seeds than the simulator runs in a night."""
    assert all(0 < mutant.seeds <= SEEDS_A_NIGHT for mutant in MUTANTS)


@pytest.mark.seconds
def test_a_mutant_that_hangs_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not end does not count as noticed."""
    harmless = Mutant("harmless", "none", version, '"0.1.0"', '"0.1.0"')
    monkeypatch.setattr(runner, "SECONDS_MAX", 0.01)
    caught = run(harmless)
    assert caught.seeds == 0
    assert caught.how.startswith("it hangs")


def test_an_unknown_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown mutant name is a usage error."""
    with pytest.raises(SystemExit) as end:
        main(["--only", "nonsense"])
    assert end.value.code == 2
    assert "no mutant has" in capsys.readouterr().err
