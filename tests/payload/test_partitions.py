"""Tests the choice of the next payload partition: only one that accepts appends, a near leader first, in turn."""

from collections import Counter

from payload import PartitionChoice


def test_all_partitions_take_turns() -> None:
    """Without a data centre of its own a worker spreads its batches evenly."""
    choice = PartitionChoice(None)
    leaders = {2: "x", 0: None, 1: "y"}
    assert [choice.choose(leaders) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_leaders_in_the_own_data_centre_come_first() -> None:
    """While the worker's own data centre has leaders, no batch crosses to another one on its way to the leader."""
    choice = PartitionChoice("x")
    leaders = {0: "y", 1: "x", 2: None, 3: "x"}
    assert [choice.choose(leaders) for _ in range(4)] == [1, 3, 1, 3]


def test_without_leaders_in_the_own_data_centre_all_others_serve() -> None:
    """A worker whose data centre has no leaders left uses those elsewhere, whether their data centre is known or not."""
    choice = PartitionChoice("x")
    assert [choice.choose({0: "y", 1: None}) for _ in range(3)] == [0, 1, 0]


def test_partitions_without_a_leader_are_not_chosen() -> None:
    """Only the keys of the mapping accept appends; without any there is no choice, and the turn is not lost."""
    choice = PartitionChoice("x")
    assert choice.choose({4: "x"}) == 4
    assert choice.choose({}) is None
    assert choice.choose({3: "x", 5: "x"}) == 5


def test_partitions_that_come_and_go_starve_none() -> None:
    """While one partition comes and goes, the steady ones still get about equal shares."""
    choice = PartitionChoice(None)
    steady = {0: "x", 1: "x", 2: "x"}
    chosen = Counter(choice.choose({**steady, 3: "x"} if turn % 2 else steady) for turn in range(300))
    assert all(chosen[partition] >= 60 for partition in steady)


def test_the_choice_is_deterministic() -> None:
    """The same leaders, call by call, give the same choices, in any order of the mapping."""
    one, other = PartitionChoice("x"), PartitionChoice("x")
    calls = [{0: "x", 1: "y"}, {2: "x", 0: "x"}, {}, {1: "y", 2: "z"}, {5: "x", 2: "x"}]
    assert [one.choose(call) for call in calls] == [other.choose(dict(reversed(call.items()))) for call in calls]
