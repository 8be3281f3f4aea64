"""Tests of the text about a refused salvage."""

from notary.salvage.report import sides_of
from notary.salvage.statements import THE_LOG, ChoiceRefused
from tests.notary.salvage.witnesses import MemoryIndex, decided


def test_each_side_names_the_answers_that_it_has() -> None:
    """A source that reaches no further than the position contradicts no answer."""
    log = MemoryIndex(THE_LOG, [decided(position, position) for position in range(3)])
    indexes = [MemoryIndex(name, [decided(position, position) for position in range(size)]) for name, size in (("w1", 3), ("w2", 5))]
    lines = list(sides_of(ChoiceRefused(3, "two leaves", ["w1"], ["w2"]), log, indexes, []))
    assert lines == [
        "               without w1: contradicts no answer",
        "               without w2: contradicts the answers for positions 3 to 4 that it has",
    ]
