"""Tests transaction ids and state references: exactly one text per value, and `Malformed` for everything else."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.errors import Malformed
from ordering.ids import INDEX_MAX, STATE_REF_BYTES, excerpt, format_state, parse_hash, parse_state

ID = bytes(range(32))


@given(st.binary(min_size=STATE_REF_BYTES, max_size=STATE_REF_BYTES))
def test_states_round_trip(state: bytes) -> None:
    """Every 36 bytes have a text, which decodes to the same bytes."""
    assert parse_state(format_state(state)) == state


def test_a_state_has_the_index_after_the_id() -> None:
    """The index follows the id, as a big-endian u32 in the bytes and in decimal in the text."""
    assert parse_state(ID.hex() + ":258") == ID + b"\x00\x00\x01\x02"
    assert format_state(ID + b"\x00\x00\x00\x00") == ID.hex() + ":0"
    assert parse_state(f"{ID.hex()}:{INDEX_MAX}") == ID + b"\xff\xff\xff\xff"


def test_a_hash_is_64_lower_case_digits() -> None:
    """64 lower-case digits are 32 bytes."""
    assert parse_hash(ID.hex()) == ID


@pytest.mark.parametrize(
    "text", ["", ID.hex()[:-1], ID.hex() + "0", ID.hex().upper(), ID.hex() + "\n", " " + ID.hex(), "٣" * 64, ID.hex()[:-1] + "g"]
)
def test_one_text_per_hash_is_accepted(text: str) -> None:
    """Only one text per value is accepted: to some readers a second text would be a second transaction."""
    with pytest.raises(Malformed, match=r"^where: expected 64"):
        parse_hash(text, "where")


@pytest.mark.parametrize("index", ["", "00", "01", "-1", "+1", "1 ", "1\n", "4294967296", "99999999999", "٣", "0x1", "1_0"])
def test_one_text_per_state_is_accepted(index: str) -> None:
    """An index has no sign, no leading zeros, ASCII digits only, and fits 32 bits."""
    with pytest.raises(Malformed, match=r"^inputs\[0\]: expected a state reference"):
        parse_state(f"{ID.hex()}:{index}", "inputs[0]")


@given(st.text())
def test_parsers_are_total(text: str) -> None:
    """Any text is a value or `Malformed`, and a value encodes to the text that was read."""
    for parse, form in ((parse_hash, bytes.hex), (parse_state, format_state)):
        try:
            value = parse(text)
        except Malformed:
            continue
        assert form(value) == text


@given(st.text(min_size=200))
def test_excerpts_are_short_ascii(text: str) -> None:
    """An excerpt in a log line is short ASCII, so that a hostile value cannot flood or colour a log."""
    shown = excerpt(text)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) < 130


def test_malformed_without_a_place() -> None:
    """An error without a field has no path in its message."""
    assert str(Malformed("odd")) == "odd"


def test_an_excerpt_of_a_long_text_escapes_only_its_part() -> None:
    """Escaping megabytes for 80 characters would hold the event loop, before any signature is checked."""
    text = "\xe9" * 1_000_000
    tracemalloc.start()
    try:
        found = excerpt(text)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.endswith("... (1000000 characters)")
    assert len(found) < 110
    assert peak_bytes < 10_000
