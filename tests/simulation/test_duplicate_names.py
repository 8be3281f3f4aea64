"""Tests the simulator's reason for a worker to stop: three incarnations, none of which lasted, ended by a duplicate worker name."""

from collections.abc import Sequence

import pytest

from tests.checkers.records import Entry, Fence, Ordering, Register, Retire, View
from tests.simulation.duplicate_names import lost_quickly

OWN = [b"o%015d" % number for number in range(9)]
LONG_S = 200.0
VIEW = View(1, bytes(32))
ENTRY = Entry(1, 1, VIEW, 0, 0, bytes(32), ())


def _register(nonce: bytes, name: str = "w1") -> Register:
    return Register(nonce, VIEW, 1, name)


def _other(number: int) -> Register:
    return _register(b"x%015d" % number)


@pytest.mark.parametrize(
    ("effects", "lost"),
    [
        ([], 0),
        ([(0, _register(OWN[0])), (1, _register(OWN[1])), (2, _register(OWN[2]))], 0),
        ([(0, _register(OWN[0])), (1, _other(1)), (2, _register(OWN[1])), (3, _other(2)), (4, _register(OWN[2])), (5, _other(3))], 3),
        ([(0, _register(OWN[0])), (LONG_S, _other(1)), (LONG_S, _register(OWN[1])), (LONG_S + 1, _other(2))], 1),
        ([(0, _register(OWN[0])), (1, _other(1)), (2, _other(2)), (3, _other(3))], 1),
        ([(0, _register(OWN[0])), (1, _register(b"y" * 16, "w2")), (2, ENTRY), (3, _register(OWN[1]))], 0),
        ([(0, _register(OWN[0])), (1, Fence(1, VIEW, 1, 0)), (LONG_S, _other(1))], 1),
        ([(0, _register(OWN[0])), (1, Retire(1)), (LONG_S, _other(1))], 1),
    ],
    ids=["nothing", "own", "three", "one that lasted", "only the first was its own", "another name", "fenced before", "retired before"],
)
def test_only_incarnations_ended_by_another_count(effects: Sequence[tuple[float, Ordering]], lost: int) -> None:
    """Only incarnations of this process that another's registration ended count, since the last that lasted; a fence ends one first."""
    assert lost_quickly(effects, "w1", b"o") == lost
