"""The bodies of submissions, and the turns that they take."""

from pathlib import Path

import pytest

from notary import parties
from notary.bodies import TURN_BYTES, Body, Lanes
from notary.gate import Gate
from notary.parties import Parties
from tests.notary.party import NOTARY, Bank


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate with room for all bodies of a test; it decodes none, as no event loop runs."""
    parties.write(tmp_path / "parties.json", {"O=Known": Bank("O=Known").public_pem.decode()})
    known = Parties(tmp_path / "parties.json")
    return Gate(NOTARY, known, lambda: None, lambda: 0.0, bytes_max=1 << 30, body_s_max=20.0, turn_s_max=0.005)


def body_of(gate: Gate, party: str, size: int) -> Body:
    """Returns a body of that size, whose party stands first."""
    body = Body(gate)
    body.piece(b'{"party": "%s", ' % party.encode())
    body.piece(b" " * (size - body.size))
    return body


def test_each_party_has_the_same_share_whatever_the_size_of_its_bodies(gate: Gate) -> None:
    """While three parties wait, none is ahead of another by more than the bytes of a turn and its largest body; each keeps its order."""
    sizes = {"O=Small": 500, "O=Medium": 9_000, "O=Large": 3 * TURN_BYTES}
    waiting = {party: [body_of(gate, party, size) for _ in range(20 * 3 * TURN_BYTES // size)] for party, size in sizes.items()}
    lanes = Lanes(lambda party: True)
    for bodies in waiting.values():
        for body in bodies:
            lanes.add(body, 0.0)
    taken_bytes = dict.fromkeys(sizes, 0)
    while all(waiting.values()):
        body = lanes.take(0.0)
        party = body.party().decode()
        assert body is waiting[party].pop(0)
        taken_bytes[party] += body.size
        assert max(taken_bytes.values()) - min(taken_bytes.values()) <= TURN_BYTES + max(sizes.values())
    for _ in range(sum(len(bodies) for bodies in waiting.values())):
        lanes.take(0.0)
    assert not lanes


def test_one_large_body_after_another_gets_no_more_than_its_share(gate: Gate) -> None:
    """A party whose next large body comes when its last one was taken is not ahead of the others by more than one body and a turn."""
    lanes, large = Lanes(lambda party: True), 20 * TURN_BYTES
    for _ in range(200):
        lanes.add(body_of(gate, "O=Small", TURN_BYTES), 0.0)
    lanes.add(body_of(gate, "O=Large", large), 0.0)
    taken_bytes = {b"O=Small": 0, b"O=Large": 0}
    while taken_bytes[b"O=Small"] < 200 * TURN_BYTES:
        body = lanes.take(0.0)
        taken_bytes[body.party()] += body.size
        assert taken_bytes[b"O=Large"] <= taken_bytes[b"O=Small"] + large + TURN_BYTES
        if body.party() == b"O=Large":
            lanes.add(body_of(gate, "O=Large", large), 0.0)
    assert taken_bytes[b"O=Large"] >= 180 * TURN_BYTES, "it gets its share"


def test_names_that_are_not_registered_share_one_lane(gate: Gate) -> None:
    """A thousand made-up parties have as many turns as one."""
    lanes = Lanes(lambda party: party == b"O=Known")
    for at in range(1000):
        lanes.add(body_of(gate, f"O=Made up {at}", TURN_BYTES), 0.0)
        lanes.add(body_of(gate, "O=Known", TURN_BYTES), 0.0)
    taken = [lanes.take(0.0).party() for _ in range(100)]
    assert taken.count(b"O=Known") == 50


def test_the_wait_in_a_lane_is_estimated(gate: Gate) -> None:
    """A lane that yields a body a second says how long the next one is going to wait; another lane has its own waits."""
    lanes = Lanes(lambda party: True)
    for _ in range(40):
        lanes.add(body_of(gate, "O=Slow", TURN_BYTES), 0.0)
    assert lanes.wait_s(b"O=Slow") == 0.0, "nothing is known yet"
    for at in range(1, 11):
        lanes.take(float(at))
    assert lanes.wait_s(b"O=Slow") == pytest.approx(30.0, rel=0.01)
    assert lanes.wait_s(b"O=Quick") == 0.0
    lanes.add(body_of(gate, "O=Quick", TURN_BYTES), 10.0)
    lanes.take(10.5)
    lanes.take(10.5)
    assert lanes.wait_s(b"O=Quick") == 0.0


def test_a_party_that_does_not_stand_first_is_not_known_before_the_decoding(gate: Gate) -> None:
    """A body whose party does not stand first, and an empty one, wait in the lane of no party."""
    elsewhere, empty = Body(gate), Body(gate)
    elsewhere.piece(b'{"requests": [], "party": "O=Known"}')
    assert (elsewhere.party(), empty.party(), body_of(gate, "O=Known", 100).party()) == (b"", b"", b"O=Known")


def test_bytes_that_are_no_text_are_no_registered_name(tmp_path: Path) -> None:
    """A party with the replacement character in its name lends no lanes of its own to bytes that are not UTF-8."""
    parties.write(tmp_path / "parties.json", {"O=\ufffd": Bank("O=\ufffd").public_pem.decode()})
    gate = Gate(NOTARY, Parties(tmp_path / "parties.json"), lambda: None, lambda: 0.0, bytes_max=1 << 30, body_s_max=20.0, turn_s_max=0.005)
    assert gate.is_registered("O=\ufffd".encode())
    assert not any(gate.is_registered(b"O=%c" % octet) for octet in range(0x80, 0x100))
