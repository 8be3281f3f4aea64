"""What stands still: only what has more to come, and since when it has not moved."""

from joiner.standstill import Standstill


def test_behind_and_not_moved() -> None:
    """Who has more to come and stays is counted from the look that saw it there first."""
    still = Standstill()
    assert still.look({0: 5}, {0: 6}, 100) == {0: 0}
    assert still.look({0: 5}, {0: 9}, 103) == {0: 3}


def test_at_the_end() -> None:
    """Who is at its end need not move, and is counted anew when more comes."""
    still = Standstill()
    still.look({0: 5}, {0: 6}, 100)
    assert still.look({0: 5}, {0: 5}, 101) == {}
    assert still.look({0: 5}, {0: 6}, 102) == {0: 0}


def test_moved() -> None:
    """Who moves is not standing still, however far behind."""
    still = Standstill()
    still.look({0: 5, 1: 5}, {0: 99, 1: 99}, 100)
    assert still.look({0: 6, 1: 5}, {0: 99, 1: 99}, 104) == {0: 0, 1: 4}


def test_not_looked_at() -> None:
    """Who was left out of a look is counted anew after it."""
    still = Standstill()
    still.look({0: 5}, {0: 6}, 100)
    assert still.look({0: 5}, {}, 101) == {}
    assert still.look({0: 5}, {0: 6}, 102) == {0: 0}
