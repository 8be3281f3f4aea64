"""Tickets: the time and the party for which one is valid."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest

from notary import tickets as tickets_module
from notary.tickets import OPEN_S_MIN, Tickets
from tests.notary.test_gate import Clock

KEY = b"k" * 32


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only when a test moves it."""
    return Clock()


@pytest.mark.parametrize("after_s", [1, 2, 30])
def test_one_counts_in_its_window_alone(clock: Clock, after_s: int) -> None:
    """A ticket is valid from the end of its Retry-After, for as long again and five seconds at least; not before, not after."""
    tickets = Tickets(KEY, clock)
    ticket = tickets.give(after_s, "O=A")
    opens_s, closes_s = clock.now_s + after_s, clock.now_s + after_s + max(after_s, OPEN_S_MIN)
    for now_s, counts in (
        (clock.now_s, False),
        (opens_s - 0.01, False),
        (opens_s, True),
        (closes_s - 0.01, True),
        (closes_s, False),
    ):
        clock.now_s = now_s
        assert tickets.counts(ticket, "O=A") is counts


def test_one_counts_for_its_party_alone(clock: Clock) -> None:
    """A ticket is valid at the head, where the party is not known yet; one that was given there is valid for any party."""
    tickets = Tickets(KEY, clock)
    own, anybodys = tickets.give(1, "O=A"), tickets.give(1)
    clock.now_s += 1
    assert [tickets.counts(own, party) for party in (None, "O=A", "O=B")] == [True, True, False]
    assert [tickets.counts(anybodys, party) for party in (None, "O=A", "O=B")] == [True, True, True]
    tickets.use(own, "O=B")
    assert tickets.counts(own, "O=A"), "another party cannot use it up"


def test_one_counts_once(clock: Clock) -> None:
    """A used ticket is not valid again, even when its base64 is written in another way."""
    tickets = Tickets(KEY, clock)
    ticket, other = tickets.give(1, "O=A"), tickets.give(1, "O=A")
    clock.now_s += 1
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    alike = ticket[:-1] + alphabet[alphabet.index(ticket[-1:]) ^ 1 :][:1]
    assert alike != ticket
    assert urlsafe_b64decode(alike + b"=") == urlsafe_b64decode(ticket + b"=")
    tickets.use(ticket, "O=A")
    assert [tickets.counts(each, "O=A") for each in (ticket, alike, other)] == [False, False, True]
    assert tickets.used == 1


def test_foreign_and_forged_ones_are_passed_over(clock: Clock) -> None:
    """A ticket of another key or with a changed bit, or text that is no ticket, is not valid, and raises no error."""
    tickets, others = Tickets(KEY, clock), Tickets(b"o" * 32, clock)
    ticket = tickets.give(1, "O=A")
    foreign = others.give(1, "O=A")
    clock.now_s += 1
    data = bytearray(urlsafe_b64decode(ticket + b"="))
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert not tickets.counts(urlsafe_b64encode(bytes(data)).rstrip(b"="), "O=A")
        data[bit // 8] ^= 1 << bit % 8
    for nonsense in (foreign, b"", b"x", b"=" * 59, b"\xff" * 59, b"A" * 59, ticket + b"=", ticket[:-1]):
        assert not tickets.counts(nonsense, "O=A")
        tickets.use(nonsense, "O=A")
    assert tickets.used == 0
    assert tickets.counts(ticket, "O=A")


def test_those_that_share_a_key_know_each_others(clock: Clock) -> None:
    """A worker accepts the tickets that its acceptor process issued."""
    worker, acceptor = Tickets(KEY, clock), Tickets(KEY, clock, (1 << 64) - 2)
    given = [acceptor.give(1), acceptor.give(1), worker.give(1)]
    clock.now_s += 1
    for ticket in given:
        assert worker.counts(ticket)
        worker.use(ticket, "O=A")
    assert worker.used == 3


def test_what_is_kept_of_used_ones_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ticket is valid while the maximum of used ones is remembered; those whose time is over are forgotten."""
    monkeypatch.setattr(tickets_module, "USED_MAX", 10)
    tickets = Tickets(KEY, clock)
    given = [tickets.give(1, "O=A") for _ in range(12)]
    later = tickets.give(7, "O=A")
    clock.now_s += 1
    for ticket in given:
        tickets.use(ticket, "O=A")
    assert (tickets.used, len(tickets._used)) == (10, 10)
    assert not tickets.counts(given[-1], "O=A")
    clock.now_s += 6
    assert tickets.counts(later, "O=A")
    assert len(tickets._used) == 0
