"""The bodies of submissions, and the turns that they take."""

import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notary import parties
from notary.bodies import DEBT_BYTES_MAX, TURN_BYTES, Body, Lanes, Side, _Ring, _Waiting
from notary.gate import PARTY_TIMES, UNAUTHENTICATED_ADDRESS_PART, UNAUTHENTICATED_PART, Gate
from notary.parties import Parties
from payload import PARTY_BYTES_MAX, SUBMISSION_BYTES_MAX
from tests.notary.party import NOTARY, Bank


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate with capacity for all bodies of a test; it decodes none, as no event loop runs."""
    parties.write(tmp_path / "parties.json", {"O=Known": Bank("O=Known").public_pem.decode()})
    known = Parties(tmp_path / "parties.json")
    return Gate(NOTARY, known, lambda: None, lambda: 0.0, bytes_max=1 << 30, body_s_max=20.0, turn_s_max=0.005)


def take_next(lanes: Lanes) -> Body:
    """Take the next body, of the side whose turn it is."""
    side = lanes.whose_turn()
    assert side is not None
    return lanes.take(side)


def body_of(gate: Gate, party: str, size: int) -> Body:
    """Returns a body of that size, whose party stands first."""
    body = Body(gate)
    body.piece(b'{"party": "%s", ' % party.encode())
    body.piece(b" " * (size - body.size))
    return body


def let_wait(lanes: Lanes, gate: Gate, rounds: int, size: int, *parties: str) -> None:
    """Add that many bodies of each party, which come by turns."""
    for _ in range(rounds):
        for party in parties:
            lanes.add(body_of(gate, party, size), 0.0)


def test_each_party_has_the_same_share_whatever_the_size_of_its_bodies(gate: Gate) -> None:
    """While three parties wait, none is ahead of another by more than the bytes of a turn and its largest body; each keeps its order."""
    sizes = {"O=Small": 500, "O=Medium": 9_000, "O=Large": 3 * TURN_BYTES}
    waiting = {party: [body_of(gate, party, size) for _ in range(20 * 3 * TURN_BYTES // size)] for party, size in sizes.items()}
    lanes = Lanes(lambda party: 1)
    for bodies in waiting.values():
        for body in bodies:
            lanes.add(body, 0.0)
    taken_bytes = dict.fromkeys(sizes, 0)
    while all(waiting.values()):
        body = lanes.take(Side.PARTIES)
        party = body.party.decode()
        assert body is waiting[party].pop(0)
        taken_bytes[party] += body.size
        assert max(taken_bytes.values()) - min(taken_bytes.values()) <= TURN_BYTES + max(sizes.values())
    for _ in range(sum(len(bodies) for bodies in waiting.values())):
        lanes.take(Side.PARTIES)
    assert not lanes


def test_a_party_has_turns_by_its_weight(gate: Gate) -> None:
    """While both wait, a party of weight 3 has three times the bytes of a party of weight 1, give or take a turn and a body."""
    lanes = Lanes({b"O=Heavy": 3, b"O=Light": 1}.__getitem__)
    let_wait(lanes, gate, 400, 3_000, "O=Light", "O=Heavy")
    taken_bytes = {b"O=Light": 0, b"O=Heavy": 0}
    while taken_bytes[b"O=Heavy"] < 400 * 3_000:
        body = lanes.take(Side.PARTIES)
        taken_bytes[body.party] += body.size
        assert abs(taken_bytes[b"O=Heavy"] - 3 * taken_bytes[b"O=Light"]) <= 3 * (TURN_BYTES + 3_000)


def test_new_connections_give_a_party_no_second_share(gate: Gate) -> None:
    """A party whose bodies also come on new connections pays for them later: it gets no more than another party of its weight."""
    lanes, size = Lanes(lambda party: 1), 2 * TURN_BYTES
    taken_bytes = {b"O=Patient": 0, b"O=Greedy": 0}

    def come(party: str, parties_before: set[bytes]) -> None:
        body = body_of(gate, party, size)
        body.network, body.parties = "127.0.0.1", parties_before
        lanes.add(body, 0.0)

    for _ in range(300):
        come("O=Patient", {b"O=Patient"})
        come("O=Greedy", {b"O=Greedy"})
        come("O=Greedy", set())
    while taken_bytes[b"O=Patient"] < 200 * size:
        body = take_next(lanes)
        taken_bytes[body.party] += body.size
        if not body.of_party:
            lanes.charge(body.party, body.size)
        assert taken_bytes[b"O=Greedy"] <= taken_bytes[b"O=Patient"] + 2 * (size + TURN_BYTES)
    assert taken_bytes[b"O=Greedy"] >= 190 * size, "it gets its share"


def test_what_a_party_pays_later_is_bounded(gate: Gate) -> None:
    """A party that was charged far too much waits for as many bytes of others as are kept, then it has its share again."""
    lanes = Lanes(lambda party: 1)
    let_wait(lanes, gate, 2 * DEBT_BYTES_MAX // TURN_BYTES, TURN_BYTES, "O=Charged", "O=Other")
    before = lanes.ahead_bytes(b"O=Charged", of_party=True)
    lanes.charge(b"O=Charged", 50 * DEBT_BYTES_MAX)
    assert lanes.ahead_bytes(b"O=Charged", of_party=True) >= before
    others_bytes = 0
    while (body := lanes.take(Side.PARTIES)).party != b"O=Charged":
        others_bytes += body.size
    assert DEBT_BYTES_MAX - 2 * TURN_BYTES <= others_bytes <= DEBT_BYTES_MAX + 2 * TURN_BYTES
    assert [lanes.take(Side.PARTIES).party for _ in range(40)].count(b"O=Charged") == 20


class CountedMoves(OrderedDict[bytes, Any]):
    """Counts the turns of lanes."""

    moves = 0

    def move_to_end(self, key: bytes, last: bool = True) -> None:
        """Count it."""
        self.moves += 1
        super().move_to_end(key, last)


def test_large_bodies_of_many_parties_delay_no_turn(gate: Gate) -> None:
    """Each lane owes the bytes of a large body. They pay together, not in hundreds of rounds within one turn of the event loop."""
    lanes, parties = Lanes(lambda party: 1), [f"O={number}" for number in range(100)]
    lanes._parties.lanes = moved = CountedMoves()
    for _ in range(2):
        for number, party in enumerate(parties):
            body = body_of(gate, party, 100)
            body.size = SUBMISSION_BYTES_MAX - TURN_BYTES * number  # as if it were large
            lanes.add(body, 0.0)
    for _ in parties:
        lanes.take(Side.PARTIES)
    moved.moves = 0
    assert lanes.take(Side.PARTIES).party.decode() == parties[-1], "it owes least"
    assert moved.moves <= 3 * len(parties)


@given(st.lists(st.tuples(st.sampled_from("ABCD"), st.integers(1, 50 * TURN_BYTES)), min_size=1, max_size=60), st.data())
def test_rounds_that_are_skipped_change_no_order(sizes: list[tuple[str, int]], data: st.DataObject) -> None:
    """The order is the same as if each lane in debt had its turns one by one."""
    weights = {b"A": 1, b"B": 1, b"C": 2, b"D": 5}
    orders = []
    taken = data.draw(st.integers(0, len(sizes) - 1))
    for one_by_one in (False, True):
        ring = _Ring()
        if one_by_one:
            ring = type("OneByOne", (_Ring,), {"_skip_rounds": lambda ring: None})()
        order = []
        for at, (party, size) in enumerate(sizes):
            lane = ring.lane(party.encode(), weights[party.encode()])
            lane.bodies.append(_Waiting(cast(Body, at), size, 0.0))
            lane.size_bytes += size
            ring.bodies += 1
            if at == taken:
                order += [ring.take().body for _ in range(ring.bodies // 2)]
        order += [ring.take().body for _ in range(ring.bodies)]
        orders.append(order)
    assert orders[0] == orders[1]


def test_nobody_pays_while_nobody_waits(gate: Gate) -> None:
    """A charge has no effect on a party without bodies, and none remains once all bodies have been taken, or rejected."""
    lanes = Lanes(lambda party: 1)
    lanes.charge(b"O=Early", DEBT_BYTES_MAX)
    let_wait(lanes, gate, 1, TURN_BYTES, "O=Early", "O=Other")
    lanes.charge(b"O=Early", DEBT_BYTES_MAX)
    assert len(lanes.take_older(1.0, 2)) == 2
    let_wait(lanes, gate, 1, TURN_BYTES, "O=Early", "O=Other")
    assert [lanes.take(Side.PARTIES).party for _ in range(2)] == [b"O=Early", b"O=Other"]


def test_a_changed_weight_counts_from_the_next_body(gate: Gate) -> None:
    """It also counts while earlier bodies of the party wait."""
    weights = {b"O=Grows": 1, b"O=Stays": 1}
    lanes = Lanes(weights.__getitem__)
    let_wait(lanes, gate, 100, TURN_BYTES, "O=Grows", "O=Stays")
    weights[b"O=Grows"] = 4
    lanes.add(body_of(gate, "O=Grows", TURN_BYTES), 0.0)
    assert [lanes.take(Side.PARTIES).party for _ in range(52)].count(b"O=Grows") in range(40, 44)


def test_the_wait_of_an_address_is_that_of_its_share(gate: Gate) -> None:
    """Beside a party of great weight, addresses have a ninth of the bytes, and the estimate says so."""
    lanes = Lanes(lambda party: 100)
    let_wait(lanes, gate, 500, TURN_BYTES, "O=Heavy")
    for _ in range(10):
        body = body_of(gate, "O=Heavy", TURN_BYTES)
        body.network = "127.0.0.1"
        lanes.add(body, 0.0)
    ahead_bytes, taken_bytes, of_addresses = lanes.ahead_bytes(b"127.0.0.1", of_party=False), 0, 0
    while of_addresses < 10:
        body = take_next(lanes)
        taken_bytes += body.size
        of_addresses += not body.of_party
    assert ahead_bytes / 2 <= taken_bytes <= 2 * ahead_bytes


@pytest.mark.parametrize(("large", "charged"), [(20 * TURN_BYTES, 0), (SUBMISSION_BYTES_MAX, 1)], ids=["", "charged"])
def test_one_large_body_after_another_gets_no_more_than_its_share(gate: Gate, large: int, charged: int) -> None:
    """A party whose next large body comes when its last one was taken is not ahead of the others by more than one body and a turn.

    A lane that is further behind than a charge may bring it stays so far behind: a charge forgives no debt.
    """
    lanes, small = Lanes(lambda party: 1), large // 20
    let_wait(lanes, gate, 200, small, "O=Small")
    lanes.add(body_of(gate, "O=Large", large), 0.0)
    taken_bytes = {b"O=Small": 0, b"O=Large": 0}
    while taken_bytes[b"O=Small"] < 200 * small:
        body = lanes.take(Side.PARTIES)
        taken_bytes[body.party] += body.size
        assert taken_bytes[b"O=Large"] <= taken_bytes[b"O=Small"] + large + TURN_BYTES
        if body.party == b"O=Large":
            lanes.add(body_of(gate, "O=Large", large), 0.0)
            if charged:
                lanes.charge(b"O=Large", charged)
    assert taken_bytes[b"O=Large"] >= 180 * small, "it gets its share"


def test_addresses_together_have_the_share_of_one_party(gate: Gate) -> None:
    """Nine parties wait, and a hundred addresses: a tenth of the bytes would be an equal share, and a ninth is the least that they get."""
    lanes = Lanes(lambda party: 1)
    for at in range(900):
        authenticated, other = body_of(gate, f"O=Party {at % 9}", TURN_BYTES), body_of(gate, "O=Named", TURN_BYTES)
        authenticated.network, authenticated.parties = "127.0.0.1", {f"O=Party {at % 9}".encode()}
        other.network = f"127.0.1.{at % 100}"
        lanes.add(authenticated, 0.0)
        lanes.add(other, 0.0)
    of_party = [take_next(lanes).of_party for _ in range(450)]
    assert 45 <= of_party.count(False) <= 55


def test_names_that_are_not_registered_share_one_lane(gate: Gate) -> None:
    """A thousand made-up parties have as many turns as one."""
    lanes = Lanes(lambda party: int(party == b"O=Known"))
    for at in range(1000):
        lanes.add(body_of(gate, f"O=Made up {at}", TURN_BYTES), 0.0)
        lanes.add(body_of(gate, "O=Known", TURN_BYTES), 0.0)
    taken = [lanes.take(Side.PARTIES).party for _ in range(100)]
    assert taken.count(b"O=Known") == 50


def test_a_party_is_not_delayed_by_clients_that_only_name_it(gate: Gate) -> None:
    """A body counts for its party after a submission of it was admitted, before that for its address; parties have half of all bytes."""
    lanes = Lanes(lambda party: 1)
    for at in range(600):
        for network, parties_before in (("127.0.0.2", b""), (f"127.0.1.{at % 200}", b"O=Other"), ("127.0.0.1", b"O=Named")):
            body = body_of(gate, "O=Named", TURN_BYTES)
            body.network, body.parties = network, {parties_before}
            lanes.add(body, 0.0)
    taken = [take_next(lanes).network for _ in range(1_000)]
    assert taken[:100].count("127.0.0.1") == 50, "half of all, although 201 addresses send more"
    assert 1 <= taken.count("127.0.0.2") <= 3, "an address has as much as each of the others"
    assert taken.count("127.0.0.1") == 500


def test_the_wait_in_a_lane_is_that_of_its_oldest_body(gate: Gate) -> None:
    """Each lane has its own wait; one that was emptied has none, also while it stays because it is ahead of the others."""
    lanes = Lanes(lambda party: 1)
    for at in range(3):
        lanes.add(body_of(gate, "O=Slow", TURN_BYTES), float(at))
    lanes.add(body_of(gate, "O=Quick", TURN_BYTES), 5.0)
    assert lanes.age_s(b"O=Slow", 10.0, of_party=True) == 10.0
    assert lanes.age_s(b"O=Quick", 10.0, of_party=True) == 5.0
    lanes.take(Side.PARTIES)
    lanes.take(Side.PARTIES)
    assert lanes.age_s(b"O=Slow", 10.0, of_party=True) == 9.0
    assert lanes.age_s(b"O=Quick", 10.0, of_party=True) == 0.0
    assert lanes.age_s(b"O=Nobody", 10.0, of_party=True) == 0.0


def test_a_party_that_does_not_stand_first_is_not_known_before_the_decoding(gate: Gate) -> None:
    """A body whose party does not stand first, and an empty one, wait in the lane of no party."""
    elsewhere, empty = Body(gate), Body(gate)
    elsewhere.piece(b'{"requests": [], "party": "O=Known"}')
    assert (elsewhere.party, empty.party, body_of(gate, "O=Known", 100).party) == (b"", b"", b"O=Known")
    assert [len(body_of(gate, "O" * size, 1).party) for size in (PARTY_BYTES_MAX, PARTY_BYTES_MAX + 1)] == [PARTY_BYTES_MAX, 0]


def test_bytes_that_are_no_text_are_no_registered_name(tmp_path: Path) -> None:
    """A party with the replacement character in its name lends no lanes of its own to bytes that are not UTF-8."""
    parties.write(tmp_path / "parties.json", {"O=\ufffd": Bank("O=\ufffd").public_pem.decode()})
    gate = Gate(NOTARY, Parties(tmp_path / "parties.json"), lambda: None, lambda: 0.0, bytes_max=1 << 30, body_s_max=20.0, turn_s_max=0.005)
    assert gate.weight_of("O=\ufffd".encode()) == 1
    assert not any(gate.weight_of(b"O=%c" % octet) for octet in range(0x80, 0x100))


def test_unauthenticated_bodies_leave_capacity_for_others(gate: Gate) -> None:
    """Those of one address have an eighth of all bytes, those of all addresses half. A party has 8/9 of the rest."""

    def incomplete(network: str, parties_before: set[bytes]) -> IncompleteBody:
        body = IncompleteBody(gate)
        body.network, body.parties = network, parties_before
        gate.begin(body, None)
        while body.problem is None and body.size < SUBMISSION_BYTES_MAX:
            body.piece(bytes(SUBMISSION_BYTES_MAX // 2))
        return body

    limit, per_address = (
        gate._bytes_max // SUBMISSION_BYTES_MAX // UNAUTHENTICATED_PART,
        gate._bytes_max // SUBMISSION_BYTES_MAX // UNAUTHENTICATED_ADDRESS_PART,
    )
    bodies = [incomplete(f"127.0.0.{address}", set()) for address in range(UNAUTHENTICATED_ADDRESS_PART) for _ in range(per_address + 1)]
    assert len([body for body in bodies if body.problem is None]) == limit
    assert [body.problem is None for body in bodies[: per_address + 1]] == [True] * per_address + [False]
    authenticated = [incomplete("127.0.0.1", {b"O=Known"}) for _ in range(limit + 1)]
    admitted = limit * PARTY_TIMES // (PARTY_TIMES + 1)
    assert [body.problem is None for body in authenticated] == [True] * admitted + [False] * (limit + 1 - admitted)
    other = incomplete("127.0.0.1", {b"O=Other"})
    assert other.problem is None
    for body in (*bodies, *authenticated, other):
        gate.forget(body)
    assert not gate.body_bytes
    assert not gate._bytes_of
    assert incomplete("127.0.0.1", set()).problem is None


class IncompleteBody(Body):
    """A body that keeps its rejection."""

    problem: Exception | None = None

    def rejected(self, problem: Exception) -> None:
        """Keep it."""
        self.problem = problem


def test_the_bytes_ahead_of_a_body_are_those_of_the_turns_before_its_own(gate: Gate) -> None:
    """A party's body waits for one of each other lane for each of its own; an address waits for all parties in turn, too."""
    lanes = Lanes(lambda party: 1)
    assert lanes.ahead_bytes(b"O=A", of_party=True) == 0
    many = [body_of(gate, "O=A", 700) for _ in range(50)]
    for waiting in (*many, body_of(gate, "O=B", 700), body_of(gate, "O=C", 700)):
        lanes.add(waiting, 0.0)
    size = many[0].size
    assert lanes.ahead_bytes(b"O=A", of_party=True) == 52 * size, "no more than waits"
    assert lanes.ahead_bytes(b"O=B", of_party=True) == 3 * size
    assert lanes.ahead_bytes(b"O=D", of_party=True) == 0
    while lanes:
        take_next(lanes)
        left = lanes._parties.lanes.values()
        assert lanes._parties.weights == len(left), "a party that has left delays nobody"
        assert lanes._parties.size_bytes == sum(lane.size_bytes for lane in left)
    assert lanes.ahead_bytes(b"O=A", of_party=True) == 0


def test_a_heavier_party_waits_for_fewer_bytes(gate: Gate) -> None:
    """Ten bodies of a party of weight 4 wait for a quarter as many others as ten of a party of weight 1."""
    lanes = Lanes({b"O=Heavy": 4, b"O=Light": 1}.__getitem__)
    bodies = [body_of(gate, party, 700) for party in ("O=Heavy", "O=Light") for _ in range(100)]
    for body in bodies[:10] + bodies[100:]:
        lanes.add(body, 0.0)
    assert lanes.ahead_bytes(b"O=Heavy", of_party=True) == 10 * bodies[0].size * 5 // 4
    assert lanes.ahead_bytes(b"O=Light", of_party=True) == 110 * bodies[0].size, "no more than waits"


def test_a_body_in_tiny_pieces_takes_the_memory_that_is_counted(gate: Gate) -> None:
    """A chunk may have two bytes, which is twenty times less than an object of Python."""
    body = Body(gate)
    tracemalloc.start()
    try:
        for _ in range(50_000):
            body.piece(b"{}")
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert body.size == gate.body_bytes == 100_000
    assert held_bytes < 2 * body.size
    assert body.data() == b"{}" * 50_000
