"""Tests that each mutant breaks an existing line, and runs some of every kind (`make mutants` runs all of them)."""

import ast
import re
from pathlib import Path

import pytest

from tests.mutants import __main__ as runner
from tests.mutants.__main__ import ROOT, main, run
from tests.mutants.mutants import MUTANTS, Mutant
from tests.simulation.test_simulation import SEEDS, SEEDS_A_NIGHT, SEEDS_BESIDES

RUN_EVERY_TIME = ("fenced lives still count", "any content will do", "a retry is decided again", "resume past the buffer")
"""A mutant of each of four rules, which few seeds notice."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_breaks_a_line_that_is_there(mutant: Mutant) -> None:
    """Each text occurs once in its file, and the mutated file is valid Python and another program."""
    for file, broken in mutant.apply(lambda name: Path(ROOT, name).read_text()).items():
        assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(Path(ROOT, file).read_text()))


def test_the_page_lists_each() -> None:
    """docs/testing.md has a row for each mutant, with its rule and its number of seeds, which is not below the number measured.

    The seed that noticed it, when the page was written, is one that `make test` runs.
    """
    page = Path(ROOT, "docs/testing.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert [(name, rule, int(most)) for name, rule, _, most in rows] == [(mutant.name, mutant.rule, mutant.seeds) for mutant in MUTANTS]
    assert all(0 < int(seen) <= int(most) for _, _, seen, most in rows)
    assert [name for name, _, seen, _ in rows if int(seen) > SEEDS and int(seen) not in SEEDS_BESIDES] == []


def test_there_are_enough() -> None:
    """There are at least twenty mutants, each with a name of its own."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


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
def test_what_hangs_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not end does not count as noticed."""
    harmless = Mutant("harmless", "none", "notary/version.py", 'VERSION = "0+checkout"', 'VERSION = "0+checkout"')
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
