"""What the simulator lets pass as a worker's reason to stop: three lives lost to another of its name, of which none had lasted."""

from collections.abc import Sequence

import pytest

from ordering.log import ORDERING, Record
from ordering.records import FORMAT_VERSION, Entry, Fence, Register, encode
from tests.simulation.namesakes import lost_quickly

OWN = [b"o%015d" % number for number in range(9)]
LONG_S = 200.0


def _register(nonce: bytes, name: str = "w1") -> Register:
    return Register(nonce, FORMAT_VERSION, name, "0")


def _other(number: int) -> Register:
    return _register(b"x%015d" % number)


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ([], 0),
        ([(0, _register(OWN[0])), (1, _register(OWN[1])), (2, _register(OWN[2]))], 0),
        ([(0, _register(OWN[0])), (1, _other(1)), (2, _register(OWN[1])), (3, _other(2)), (4, _register(OWN[2])), (5, _other(3))], 3),
        ([(0, _register(OWN[0])), (LONG_S, _other(1)), (LONG_S, _register(OWN[1])), (LONG_S + 1, _other(2))], 1),
        ([(0, _register(OWN[0])), (1, _other(1)), (2, _other(2)), (3, _other(3))], 1),
        ([(0, _register(OWN[0])), (1, _other(1)), (2, _other(1)), (3, _register(OWN[0]))], 1),
        ([(0, _register(OWN[0])), (1, _register(b"y" * 16, "w2")), (2, Entry(1, 1, 0, 0, ())), (3, _register(OWN[1]))], 0),
        ([(0, _register(OWN[0])), (1, Fence(1, 0)), (LONG_S, _other(1))], 1),
    ],
    ids=["nothing", "own", "three", "one that lasted", "only the first was its own", "repeats", "another name", "fenced before"],
)
def test_lives_lost(said: Sequence[tuple[float, Register | Fence | Entry]], lost: int) -> None:
    """Only lives of the process that another's registration ended count, since the last that lasted; a life ends at its fence."""
    records = [Record(ORDERING, offset, 0, None, encode(record)) for offset, (_, record) in enumerate(said)]
    assert lost_quickly(records, [at_s for at_s, _ in said], "w1", OWN) == lost
