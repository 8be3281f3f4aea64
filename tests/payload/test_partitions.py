"""Tests the choice of the next payload partition: a leader in the own data centre first, then the ordering topic's for a small batch."""

from collections import Counter

from ordering.log import Leader
from payload import PartitionChoice
from payload.partitions import SMALL_BYTES_MAX

X, Y, UNKNOWN = Leader("x"), Leader("y"), Leader(None)
FAR_X, FAR_Y = Leader("x", leads_ordering=False), Leader("y", leads_ordering=False)
"""Leaders that do not lead the ordering topic."""
SMALL, LARGE = SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1


def test_equally_good_partitions_take_turns() -> None:
    """Without a data centre of its own a worker spreads its batches evenly over equally good leaders."""
    choice = PartitionChoice(None)
    leaders = {2: X, 0: UNKNOWN, 1: Y}
    assert [choice.choose(leaders, SMALL) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_leader_of_the_ordering_topic_comes_first() -> None:
    """Both records of a small batch go to one broker in one request, while it leads a payload partition too."""
    choice = PartitionChoice(None)
    assert [choice.choose({0: FAR_X, 1: Y, 2: FAR_Y, 3: Y}, SMALL) for _ in range(4)] == [1, 3, 1, 3]


def test_large_batches_are_spread() -> None:
    """No broker carries the bytes of all large batches, except in the worker's own data centre."""
    leaders = {0: FAR_X, 1: Y, 2: FAR_Y}
    anywhere, near = PartitionChoice(None), PartitionChoice("y")
    assert [anywhere.choose(leaders, LARGE) for _ in range(4)] == [0, 1, 2, 0]
    assert [near.choose(leaders, LARGE) for _ in range(3)] == [1, 2, 1]
    assert [near.choose(leaders, SMALL) for _ in range(2)] == [1, 1]


def test_without_a_partition_there_all_others_serve() -> None:
    """If the leader of the ordering topic leads no payload partition, the others take turns."""
    choice = PartitionChoice(None)
    assert [choice.choose({0: FAR_X, 1: FAR_Y}, SMALL) for _ in range(3)] == [0, 1, 0]


def test_leaders_in_the_own_data_centre_come_first() -> None:
    """While the worker's own data centre has leaders, no batch crosses to another one on its way to the leader."""
    choice = PartitionChoice("x")
    leaders = {0: Y, 1: FAR_X, 2: UNKNOWN, 3: FAR_X}
    assert [choice.choose(leaders, SMALL) for _ in range(4)] == [1, 3, 1, 3]


def test_two_leaders_in_the_own_data_centre_are_not_equal() -> None:
    """If several leaders are in the worker's own data centre, the one that leads the ordering topic too comes first."""
    choice = PartitionChoice("x")
    assert [choice.choose({0: Y, 1: FAR_X, 2: X}, SMALL) for _ in range(2)] == [2, 2]


def test_without_leaders_in_the_own_data_centre_all_others_serve() -> None:
    """A worker whose data centre has no leaders left uses those elsewhere, whether their data centre is known or not."""
    choice = PartitionChoice("x")
    assert [choice.choose({0: Y, 1: UNKNOWN}, SMALL) for _ in range(3)] == [0, 1, 0]


def test_partitions_without_a_leader_are_not_chosen() -> None:
    """Only the keys of the mapping accept appends; without any there is no choice, and the turn is not lost."""
    choice = PartitionChoice("x")
    assert choice.choose({4: X}, SMALL) == 4
    assert choice.choose({}, SMALL) is None
    assert choice.choose({3: X, 5: X}, SMALL) == 5


def test_partitions_that_come_and_go_starve_none() -> None:
    """While one partition comes and goes, the steady ones still get about equal shares."""
    choice = PartitionChoice(None)
    steady = {0: X, 1: X, 2: X}
    chosen = Counter(choice.choose({**steady, 3: X} if turn % 2 else steady, SMALL) for turn in range(300))
    assert all(chosen[partition] >= 60 for partition in steady)


def test_the_choice_is_deterministic() -> None:
    """The same leaders, call by call, give the same choices, in any order of the mapping."""
    one, other = PartitionChoice("x"), PartitionChoice("x")
    calls = [{0: X, 1: Y}, {2: FAR_X, 0: X}, {}, {1: Y, 2: Leader("z")}, {5: X, 2: X}]
    assert [one.choose(call, SMALL) for call in calls] == [other.choose(dict(reversed(call.items())), SMALL) for call in calls]
