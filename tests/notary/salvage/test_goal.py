"""The goal of an attempt, its file, and its comparison with a tree."""

import pytest

from notary.salvage.goal import Goal, decode_goal
from notary.salvage.statements import THE_LOG
from ordering.errors import CorruptRecord
from ordering.salvage import Hashed, Item, Lost
from tests.notary.salvage.witnesses import MemoryIndex

ITEMS: tuple[Item, ...] = (Hashed(bytes(32)), Lost())


@pytest.mark.parametrize("items", [(), ITEMS])
def test_a_goal_is_read_back(items: tuple[Item, ...]) -> None:
    goal = Goal(7, b"r" * 32, items)
    assert decode_goal(goal.encode()) == goal


@pytest.mark.parametrize(
    "data", [b"", b"7\n", b"7 xy\n", b"seven 00\n", b"9" * 5_000 + b" " + b"0" * 64, b"\xff 00", Goal(7, bytes(32), ITEMS).encode()[:-1]]
)
def test_a_damaged_file_is_reported(data: bytes) -> None:
    """Python refuses a number with more than 4,300 digits."""
    with pytest.raises(CorruptRecord):
        assert decode_goal(data).root


def test_a_goal_is_compared_with_the_tree() -> None:
    """The file of a goal may name any size."""
    tree = MemoryIndex(THE_LOG, [Hashed(bytes(32))] * 3).tree
    goals = [(0, bytes(32)), (2, tree.over(0, 2)), (3, tree.root), (3, tree.over(0, 2)), (4, tree.root), (-1, tree.root)]
    assert [Goal(size, root, ()).is_in(tree) for size, root in goals] == [True, True, True, False, False, False]
