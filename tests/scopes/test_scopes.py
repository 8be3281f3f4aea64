"""Tests the named scopes, each to its last state; `explore` lists the conditions."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.scopes.__main__ import main, violation_text
from tests.scopes.explore import Search
from tests.scopes.named import SCOPES

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


# The combined scope takes ten times as long as the same one with pairs of batches, in which all its faults also combine.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name == "combined" else pytest.mark.exhaustive)
        for name, scope in SCOPES.items()
        if not scope.large
    ],
)
def test_all_conditions_hold_in_every_interleaving(name: str, record_property: Callable[[str, object], None]) -> None:
    """In every state of the scope all conditions hold, and every path ends where nothing waits."""
    found = Search(SCOPES[name]).run()
    record_property("states", found.states)
    print(f"{name}: {found.states:,} states, {found.transitions:,} transitions, {found.ends:,} terminal")
    assert not found.violation, violation_text(found)
    assert found.complete
    # A reduction that left orders out would visit fewer states: docs/testing.md gives the numbers of visited states.
    rows = re.findall(rf"^\| {name}(?::[^|]*)? \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(f"{found.states:,}", f"{found.transitions:,}", f"{found.ends:,}")]


def test_combined_pairs_have_the_same_faults() -> None:
    """The scope `combined-pairs` is the combined scope with one batch fewer per worker."""
    pairs, combined = (SCOPES[name] for name in ("combined-pairs", "combined"))
    assert [len(incarnation.partitions) for incarnation in pairs.incarnations] == [2, 2]
    assert msgspec.structs.replace(pairs, name=combined.name, incarnations=combined.incarnations) == combined


@pytest.mark.seconds
def test_command_reports_its_work(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints states, transitions and terminal states, and exits 0 if everything holds."""
    assert main(["--scope", "two-readers"]) == 0
    assert "two-readers" in capsys.readouterr().out
