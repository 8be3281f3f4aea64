"""Clients of a backlogged lane are read for a part of the time, the oldest first; then the newest, which can still be answered in time."""

import asyncio
import time

import pytest

from notary.duty_cycle import DutyCycle
from notary.http import lanes as lanes_module
from notary.http.lanes import ClientKey, ClientLanes, WaitingLanes, lane_of
from tests.clients.load import until

A, B = ClientKey("192.0.2.1", {b"a"}), ClientKey("192.0.2.1", {b"b"})
NOBODY, REMEMBERED = ClientKey("192.0.2.1"), ClientKey("192.0.2.7")


class Taken:
    """The order in which clients were read. Each takes more than its slice of time."""

    def __init__(self) -> None:
        self.lanes = ClientLanes(DutyCycle(time.perf_counter))
        self.names: list[str] = []
        self.waited_s: list[float] = []

    def wait(self, client: ClientKey, name: str, *, size: int = 0, begun: bool = False) -> None:
        """Let a client wait for its turn."""

        def take(waited_s: float) -> None:
            self.names.append(name)
            self.waited_s.append(waited_s)
            time.sleep(2 * lanes_module.SLICE_S)

        self.lanes.wait(client, take, size=size, begun=begun)

    async def until(self, count: int) -> None:
        """Return when so many were read."""
        await until(lambda: len(self.names) >= count, lanes_module.BACKLOG_CHECK_S)

    async def some_turns(self) -> None:
        """Return when all that may be read were read."""
        await asyncio.sleep(10 * lanes_module.BACKLOG_CHECK_S)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """There is time for all clients but those of backlogged lanes, which have no part of it."""
    for name in ("UNAUTHENTICATED_TURN_S", "AUTHENTICATED_TURN_S", "LATE_S", "NEWEST_FIRST_S"):
        monkeypatch.setattr(lanes_module, name, 60.0)
    monkeypatch.setattr(lanes_module, "BACKLOGGED_PART", 0.0)
    return Taken()


@pytest.mark.parametrize("backlogged", [A, NOBODY])
async def test_a_backlogged_line_has_a_part_of_the_time(taken: Taken, monkeypatch: pytest.MonkeyPatch, backlogged: ClientKey) -> None:
    """Most of what its clients send is rejected. They are read after others, as far as their part of the time goes, and at last anyway."""
    taken.lanes.is_backlogged = backlogged.__eq__
    for client, name in ((backlogged, "first"), (backlogged, "second"), (B, "other")):
        taken.wait(client, name)
    await taken.some_turns()
    assert taken.names == ["other"]
    assert (taken.lanes.may_go(backlogged), taken.lanes.may_go(B)) == (False, True)
    taken.lanes._rejecting_s = 1e-9  # time for one
    await taken.until(2)
    await taken.some_turns()
    assert taken.names == ["other", "first"]
    monkeypatch.setattr(lanes_module, "LATE_S", 0.0)
    await taken.until(3)
    assert taken.names == ["other", "first", "second"]


async def test_one_that_floods_does_not_use_up_the_time_of_others(taken: Taken) -> None:
    """Backlogged lanes take turns, a client each, and clients that are read because they have waited for long cost no other its time."""
    taken.lanes.is_backlogged = lambda client: True
    for name in ("a late one", "its second"):
        taken.wait(A, name)
    waiting = taken.lanes._authenticated[A.lane, False]
    waiting[0] = waiting[0]._replace(since_s=waiting[0].since_s - lanes_module.LATE_S)
    taken.wait(B, "another")
    taken.lanes._rejecting_s = 1e-9  # time for one
    await taken.until(2)
    await taken.some_turns()
    assert taken.names == ["a late one", "another"]


async def test_the_newest_is_read_first_where_one_has_waited_too_long(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a burst the oldest is first. Behind a backlog that is longer than a burst, the newest is: it can still be answered in time."""
    taken.lanes.is_backlogged = A.__eq__
    for name in ("old", "newer", "newest"):
        taken.wait(A, name)
    monkeypatch.setattr(lanes_module, "NEWEST_FIRST_S", 0.0)
    taken.lanes._rejecting_s = 1e-9  # time for one, which is rejected
    await taken.until(1)
    assert taken.names == ["old"]
    taken.lanes.is_backlogged = B.__eq__
    await taken.until(3)
    assert taken.names == ["old", "newest", "newer"]
    assert taken.waited_s[1] < taken.waited_s[2], "each gets the time for which it has waited"
    for name in ("one", "two"):
        taken.wait(A, name)
    monkeypatch.setattr(lanes_module, "NEWEST_FIRST_S", 60.0)
    await taken.until(5)
    assert taken.names[3:] == ["one", "two"]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_flood_of_newer_ones_keeps_nobody_waiting_for_ever(taken: Taken, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """A flood of look-ups never makes its lane backlogged. One that has waited for long goes first there, too, however many come after."""
    monkeypatch.setattr(lanes_module, "NEWEST_FIRST_S", 0.0)
    monkeypatch.setattr(lanes_module, "LATE_S", 0.0)
    for name in ("old", "newer", "newest"):
        taken.wait(A, name, begun=begun)
    await taken.until(3)
    assert taken.names == ["old", "newer", "newest"]


async def test_the_bytes_of_those_that_wait_are_bounded(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of large bodies does not fill the memory while it is not read: the oldest are read, and rejected."""
    monkeypatch.setattr(lanes_module, "WAITING_BYTES_MAX", 100)
    taken.lanes.is_backlogged = A.__eq__
    for name in ("first", "second", "third", "last"):
        taken.wait(A, name, size=40)
    await taken.until(2)
    await taken.some_turns()
    assert taken.names == ["first", "second"]


async def test_a_body_that_has_begun_is_read_to_its_end(taken: Taken) -> None:
    """It was let in when its first piece came, and half of it would only fill the memory: it does not wait behind the backlog."""
    taken.lanes.is_backlogged = A.__eq__
    taken.wait(A, "another")
    await taken.some_turns()
    assert (taken.lanes.may_go(A), taken.lanes.may_go(A, begun=True)) == (False, True)
    taken.wait(A, "the rest", begun=True)
    await taken.until(1)
    await taken.some_turns()
    assert taken.names == ["the rest"]


async def test_a_server_that_stops_reads_what_has_come(taken: Taken) -> None:
    """It is about to close the connections, so a backlog keeps nobody waiting any more."""
    taken.lanes.is_backlogged = A.__eq__
    taken.wait(A, "last")
    await taken.some_turns()
    assert taken.names == []
    taken.lanes.ends = True
    await taken.until(1)


async def test_strangers_are_served_in_active_slices(taken: Taken) -> None:
    """During a pause, only clients with an admitted submission go on, or who come from an address with one."""
    now_s = 0.0
    taken.lanes = ClientLanes(DutyCycle(lambda: now_s, lambda: True))
    taken.lanes.remember(REMEMBERED.network)
    assert taken.lanes.may_go(NOBODY)
    now_s += 0.01
    await asyncio.sleep(0)
    assert [taken.lanes.may_go(client) for client in (A, NOBODY, REMEMBERED)] == [True, False, True]
    for client, name in ((NOBODY, "stranger"), (A, "party"), (REMEMBERED, "one who came back")):
        taken.wait(client, name)
    await taken.some_turns()
    assert taken.names == ["party", "one who came back"]
    now_s += 0.02
    await taken.until(3)
    now_s += 0.01
    await asyncio.sleep(0)
    taken.wait(NOBODY, "at the end")
    taken.lanes.ends = True
    await taken.until(4)


@pytest.mark.parametrize(("weight", "others"), [(1, 0), (1, 1), (1, 3), (3, 1)])
async def test_a_party_with_cheap_calls_has_its_part_of_the_time(
    taken: Taken, monkeypatch: pytest.MonkeyPatch, weight: int, others: int
) -> None:
    """While submissions of others wait for decisions, it is served as an address once its part is used up; alone it has all the time."""
    now_s = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    lanes = taken.lanes = ClientLanes(DutyCycle(lambda: -1.0))  # without an active slice
    waiting = WaitingLanes(lambda party: weight if party == A.lane else 1)
    for number in range(others):
        waiting.enter(b"other %d" % number, b"other %d" % number)
    lanes.part_of = waiting.part_of
    served, part = 0, 1_000 * weight // (weight + others)
    for _ in range(1_000):  # each call takes a slice of time
        served += lanes.may_go(A)
        now_s += lanes_module.SLICE_S
        await asyncio.sleep(0)
    saved = round(lanes_module.CREDIT_S_MAX / lanes_module.SLICE_S)
    assert (served if not others else served - saved) in range(part - 5, part + 6)
    if others:
        while lanes.may_go(A):
            now_s += lanes_module.SLICE_S
            await asyncio.sleep(0)
        taken.wait(A, "waits for an active slice")
        await asyncio.sleep(0)
        assert (lanes.may_go(B), taken.names) == (True, [])
        for number in range(others):
            waiting.leave(b"other %d" % number, b"other %d" % number)
        assert lanes.may_go(ClientKey("192.0.2.3", A.parties))
        lanes.ends = True
        await taken.until(1)


def test_a_part_of_the_time_is_by_weight() -> None:
    """A party counts once, however many of its submissions wait, and with its weight at the latest of them. An address has weight 1."""
    weights = {b"a": 3, b"b": 2}
    waiting = WaitingLanes(lambda party: weights.get(party, 1))
    for party in (b"a", b"b", b"b"):
        waiting.enter(party, party)
    assert [waiting.part_of(lane) for lane in (b"a", b"b", "192.0.2.1")] == [3 / 5, 2 / 5, 1 / 6]
    weights[b"b"] = 6
    assert waiting.part_of(b"a") == 3 / 5
    waiting.enter(b"b", b"b")
    assert waiting.part_of(b"a") == 3 / 9
    for _ in range(2):
        waiting.leave(b"b", b"b")
    waiting.leave(b"a", b"a")
    assert [waiting.part_of(lane) for lane in (b"a", b"b")] == [3 / 9, 1.0]
    waiting.leave(b"b", b"b")
    assert (bool(waiting), waiting.part_of(b"a")) == (False, 1.0)


def test_a_proxy_has_the_parts_of_its_parties() -> None:
    """Submissions of many parties that come in one lane, as through a proxy, leave it all the time, and their parts beside others."""
    weights = {b"a": 3, b"b": 2}
    waiting = WaitingLanes(lambda party: weights.get(party, 1))
    for party in (b"a", b"a", b"b"):
        waiting.enter("192.0.2.1", party)
    assert waiting.part_of("192.0.2.1") == 1.0
    waiting.enter(b"c", b"c")
    assert [waiting.part_of(lane) for lane in ("192.0.2.1", b"c")] == [5 / 6, 1 / 6]
    waiting.leave("192.0.2.1", b"b")
    assert waiting.part_of("192.0.2.1") == 3 / 4
    for lane, party in (("192.0.2.1", b"a"), (b"c", b"c"), ("192.0.2.1", b"a")):
        waiting.leave(lane, party)
    assert not waiting


def test_a_party_counts_once_in_however_many_lanes() -> None:
    """New connections of a party, from many addresses, take no part of others, nor of its own while no other party's submissions wait."""
    weights = {b"a": 3, b"b": 2}
    waiting = WaitingLanes(lambda party: weights.get(party, 1))
    lanes = [f"192.0.2.{number}" for number in range(20)]
    for lane in lanes:
        waiting.enter(lane, b"a")
    assert [waiting.part_of(lane) for lane in ("192.0.2.1", b"a", b"b")] == [1.0, 1.0, 2 / 5]
    waiting.enter("192.0.2.200", b"b")
    assert [waiting.part_of(lane) for lane in ("192.0.2.1", b"a", b"b", "192.0.2.200")] == [3 / 5, 3 / 5, 2 / 5, 2 / 5]
    for lane in lanes:
        waiting.leave(lane, b"a")
    assert [waiting.part_of(lane) for lane in ("192.0.2.1", b"a", b"b")] == [1 / 3, 3 / 5, 1.0]


def test_copies_of_others_submissions_give_a_party_no_more_time() -> None:
    """On a party's connection they wait in the lanes of their own parties."""
    waiting = WaitingLanes(lambda party: 1)
    for party in (b"a", b"a", b"b", b"b", b"c", b"d"):
        waiting.enter(lane_of(party, A.network, A.parties), party)
    assert [waiting.part_of(lane) for lane in (b"a", b"b", b"c", b"d")] == [1 / 4] * 4
    assert [lane_of(b"a", "192.0.2.1", set()), lane_of(b"a", "192.0.2.7", {b"a", b"b"})] == ["192.0.2.1", "192.0.2.7"]


def test_a_party_with_the_name_of_an_address_is_not_in_its_lane() -> None:
    """It would otherwise delay all clients behind that address, such as a proxy's, and have the parts of their parties."""
    thief, proxy = ClientKey("192.0.2.9", {b"192.0.2.1"}), ClientKey("192.0.2.1", {b"a", b"b"})
    assert thief.lane != proxy.lane
    waiting = WaitingLanes(lambda party: 5 if party == b"192.0.2.1" else 1)
    for party in (b"a", b"b"):
        waiting.enter(lane_of(party, proxy.network, proxy.parties), party)
    waiting.enter(thief.lane, b"192.0.2.1")
    assert [waiting.part_of(client.lane) for client in (thief, proxy, ClientKey("192.0.2.5"))] == [5 / 7, 2 / 7, 1 / 8]
    waiting.leave(thief.lane, b"192.0.2.1")
    waiting.enter(b"c", b"c")
    assert waiting.part_of(NOBODY.lane) == 2 / 3


async def test_addresses_with_an_admitted_submission_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections from an address where a submission was admitted lately are authenticated; the oldest address is forgotten."""
    monkeypatch.setattr(lanes_module, "UNAUTHENTICATED_TURN_S", 0.0)
    monkeypatch.setattr(lanes_module, "AUTHENTICATED_TURN_S", 60.0)
    monkeypatch.setattr(lanes_module, "ADDRESSES_MAX", 2)
    addresses = [ClientKey(f"192.0.2.{number}") for number in range(1, 5)]
    lanes = ClientLanes(DutyCycle(time.perf_counter))
    lanes.may_go(B)  # begins the turn
    time.sleep(0.001)  # noqa: ASYNC251 - the turn's time passes
    for number in (0, 1, 0, 2):
        lanes.remember(addresses[number].network)
    assert [lanes.may_go(client) for client in addresses] == [True, False, True, False]
    await asyncio.sleep(0)


async def test_strangers_do_not_hold_up_clients_who_come_back(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection from a remembered address is read before those of many others."""
    monkeypatch.setattr(lanes_module, "UNAUTHENTICATED_TURN_S", 0.0)
    taken.lanes.remember("192.0.2.9")
    taken.wait(ClientKey("192.0.2.9"), "first")
    for number in range(3):
        taken.wait(ClientKey(f"192.0.2.{number}"), f"stranger {number}")
    taken.wait(ClientKey("192.0.2.9"), "second")
    await taken.until(3)
    assert taken.names[:3] == ["first", "second", "stranger 0"]


async def test_nobody_overtakes_the_clients_of_its_line(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work for another lane may be done at once, and begins a slice of time."""
    monkeypatch.setattr(lanes_module, "SLICE_S", 60.0)
    taken.lanes.wait(A, lambda waited_s: None)
    assert not taken.lanes.may_go(A)
    assert taken.lanes.slice_is_over()
    assert taken.lanes.may_go(B)
    assert not taken.lanes.slice_is_over()


async def test_little_time_is_saved_for_backlogged_lines(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """After hours without a backlog, its rejections do not use the time of others."""
    monkeypatch.setattr(lanes_module, "BACKLOGGED_PART", 1.0)
    taken.wait(B, "other")
    await taken.until(1)
    assert taken.lanes._rejecting_s == lanes_module.REJECTING_S_MAX
