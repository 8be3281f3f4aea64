"""Tests the lines between data centres: delay, order, loss and cuts, with a clock and random numbers that the test controls."""

import itertools
import random
from typing import Any

from deploy.centres.lines import Lines, NetworkLine


def lines_of(**settings: Any) -> Lines:
    return Lines({pair: NetworkLine(**settings) for pair in itertools.permutations((1, 2), 2)})


def test_a_packet_arrives_when_its_delay_is_over() -> None:
    """A packet arrives when its delay is over, not before, and at its target."""
    lines = lines_of(delay_s=0.02)
    lines.send(1, 2, b"hello", now_s=5.0, dice=0.5)
    assert lines.due_next_s == 5.02
    assert lines.due(5.019) == []
    assert lines.due(5.02) == [(2, b"hello")]
    assert lines.due_next_s is None


def test_a_line_keeps_the_order() -> None:
    """No packet arrives before an earlier one, for any jitter, and even if the delay shrinks meanwhile."""
    draw, lines = random.Random(1), lines_of(delay_s=0.02, jitter_s=0.05)
    for number in range(200):
        if number == 100:
            lines.lines[1, 2].delay_s = 0.0
        lines.send(1, 2, number.to_bytes(1, "big"), now_s=number / 1000, dice=draw.random())
    arrived = [packet for at_ms in range(400) for _, packet in lines.due(at_ms / 1000)]
    assert arrived == [number.to_bytes(1, "big") for number in range(200)]


def test_a_cut_swallows_what_is_sent_and_what_is_under_way_in_one_direction() -> None:
    """A cut drops new packets and those in flight in one direction; the other continues, and so does this one after the healing."""
    lines = lines_of(delay_s=1.0)
    lines.send(1, 2, b"under way", now_s=0.0, dice=0.5)
    lines.lines[1, 2].cut = True
    lines.send(1, 2, b"cut", now_s=0.5, dice=0.5)
    lines.send(2, 1, b"other way", now_s=0.5, dice=0.5)
    assert lines.due(2.0) == [(1, b"other way")]
    lines.lines[1, 2].cut = False
    lines.send(1, 2, b"healed", now_s=3.0, dice=0.5)
    assert lines.due(4.0) == [(2, b"healed")]
    assert (lines.lines[1, 2].packets, lines.lines[1, 2].bytes, lines.lines[1, 2].lost) == (1, 6, 2)


def test_a_share_of_the_packets_is_lost() -> None:
    """About the requested share of the packets is lost; the others arrive."""
    draw, lines = random.Random(2), lines_of(loss=0.3, jitter_s=0.001)
    for _ in range(10_000):
        lines.send(1, 2, b"x", now_s=0.0, dice=draw.random())
    assert len(lines.due(1.0)) == 10_000 - lines.lines[1, 2].lost
    assert 0.27 < lines.lines[1, 2].lost / 10_000 < 0.33


def test_what_goes_to_nobody_is_dropped() -> None:
    """A packet to a centre that does not exist is dropped."""
    lines = lines_of()
    lines.send(1, 7, b"x", now_s=0.0, dice=0.5)
    assert lines.due_next_s is None
