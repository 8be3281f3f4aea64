"""Tests of the text about a refused salvage."""

from notary.salvage.choice import choose
from notary.salvage.reach import Reach
from notary.salvage.report import lines_of, sides_of
from notary.salvage.statements import THE_LOG, ChoiceRefused
from ordering.salvage import Item, Lost
from tests.notary.salvage.witnesses import MemoryIndex, decided


def test_each_side_names_the_answers_that_it_has() -> None:
    """A source that reaches no further than the position contradicts no answer."""
    log = MemoryIndex(THE_LOG, [decided(position, position) for position in range(3)])
    indexes = [MemoryIndex(name, [decided(position, position) for position in range(size)]) for name, size in (("w1", 3), ("w2", 5))]
    lines = list(sides_of(ChoiceRefused(3, "two leaves", ["w1"], ["w2"]), log, indexes, [], None))
    assert lines == [
        "               without w1: contradicts no answer",
        "               without w2: contradicts the answers for positions 3 to 4 that it has",
    ]


def test_a_log_on_the_wrong_side_is_restored_up_to_an_offset() -> None:
    """Without the log the salvage is made in new topics, which have it up to before the entry that shows the contradiction."""
    log, index = MemoryIndex(THE_LOG, [decided(0, 0), decided(1, 9)]), MemoryIndex("w1", [decided(0, 0), decided(1, 1)])
    refusal = ChoiceRefused(1, "two leaves", [THE_LOG], ["w1"])
    restored, copied = [next(iter(sides_of(refusal, log, [index], [], until))) for until in (17, None)]
    assert restored == "               without the log: archive it, restore that into new topics with --until 17, and salvage there"
    assert copied == "               without the log: copy the log up to before position 1 into new topics, and salvage there"


def test_an_earlier_salvage_changes_no_later_checkpoint() -> None:
    """Position 1 is lost since an earlier salvage. Checkpoints from after it keep their roots, and the plan says so."""
    items: list[Item] = [decided(0, 0), Lost(), *[decided(position, position) for position in range(2, 8)]]
    choice = choose(MemoryIndex(THE_LOG, items[:4]), [MemoryIndex("w1", items)], [])
    lines = list(lines_of(choice, [], [], {}, Reach(4, 0, 0, 0, (), 0, 0)))
    at = next(number for number, line in enumerate(lines) if line.startswith("checkpoints"))
    assert lines[at : at + 2] == [
        "checkpoints    all keep their roots, and are consistent with the new tree",
        "               except those above 1 from before the salvage that declared that position lost",
    ]
