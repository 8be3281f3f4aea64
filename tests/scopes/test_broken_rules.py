"""Tests that the scopes can fail: for each broken rule one scope finds it."""

from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joiner import Joiner
from joiner.applied import Applied
from joiner.due import DueProposals
from joiner.payloads import Payloads, is_content
from tests.mutants.mutants import MUTANTS, Broken
from tests.scopes.__main__ import violation_text
from tests.scopes.explore import Search
from tests.scopes.named import SCOPES

pytestmark = pytest.mark.seconds

ROOT = Path(__file__).parents[2]
FOUND_BY = {
    "the last record wins": ("fill-race", "emits"),
    "unknown incarnations are dropped": ("lost-send", "has not emitted"),
    "resume past the buffer": ("lost-send", "has not emitted"),
    "sequence unchecked": ("repeat", ""),
    "fenced incarnations still count": ("duplicate-name", ""),
    "fences are not compared": ("fence-race", "holds incarnations"),
    "holes are never filled": ("lost-send", "not proposed for a fill"),
    "what was passed is kept": ("duplicate-name", "can never count"),
    "silent incarnations are never fenced": ("fence-race", "not proposed for a fence"),
    "the hole's own partition is paused": ("tight", "is paused"),
}
"""By mutant, the scope that must find it, and a word of the violation."""
BROKEN = {
    mutant.name: (Broken(mutant.symbol, mutant.code, mutant.broken), *FOUND_BY.pop(mutant.name))
    for mutant in MUTANTS
    if mutant.name in FOUND_BY
}
assert not FOUND_BY, f"no mutant has these names: {(*FOUND_BY,)}"
BROKEN |= {
    "a restart continues behind what waits in the order (R8)": (
        Broken(Joiner._offsets_next, "0 if last is None else last.offset + 1", "self._read_next[ORDERING]"),
        "lost-send",
        "",
    ),
    "a fill that is lost is not proposed again (R4)": (
        Broken(DueProposals.fills, "at > oldest_ms", "True"),
        "lost-fill",
        "not proposed for a fill",
    ),
    "a fill is not content (R3)": (
        Broken(is_content, "is_fill(value, log.log_id, partition, key, payload_hash, log.key)", "False"),
        "lost-send",
        "has not emitted",
    ),
    "what was dropped for want of memory counts as never there (R3)": (
        Broken(Payloads.may_be_dropped, "dropped.may_have(entry.incarnation, entry.sequence)", "False"),
        "tight",
        "",
    ),
    "what was dropped for want of memory is not read again": (
        Broken(Applied._apply_entry, "ready.read_again = True", "pass"),
        "tight",
        "",
    ),
    "a payload of a later batch goes with an earlier one (R5)": (
        Broken(
            Applied._drop_through,
            "self.payloads.buffer.drop_through(incarnation, sequence)",
            "self.payloads.buffer.drop_through(incarnation, sequence and sequence + 1)",
        ),
        "lost-send",
        "",
    ),
}


def _break(one: Broken, patch: pytest.MonkeyPatch) -> None:
    """Give a function its code in the broken file."""
    namespace: dict[str, Any] = {"__name__": one.symbol.__module__}
    exec(compile(one.apply((ROOT / one.file).read_text()), one.file, "exec"), namespace)  # noqa: S102 - the file is ours
    patch.setattr(one.symbol, "__code__", attrgetter(one.symbol.__qualname__)(SimpleNamespace(**namespace)).__code__)


@pytest.mark.parametrize(("broken", "scope", "says"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_found(broken: Broken, scope: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner that breaks the rule is found, with the moves that lead there."""
    _break(broken, monkeypatch)
    found = Search(SCOPES[scope]).run()
    print(f"found after {found.states:,} states\n{violation_text(found)}")
    assert found.violation, f"{found.states:,} states visited, and nothing found"
    assert says in found.violation
    assert found.trace


def test_a_joiner_that_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception from the joiner is reported with its trace, like any other violation."""

    def raises(self: Joiner, *args: object, **how: object) -> None:
        assert not self._queue, "anything"

    search = Search(SCOPES["repeat"])
    monkeypatch.setattr(Joiner, "_apply", raises)
    found = search.run()
    assert "AssertionError" in found.violation
    assert found.trace == ("reader 1 reads the ordering topic 0: register of incarnation 1",)
