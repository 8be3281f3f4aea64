"""Tests the buffer: payload records by batch key, until their entries are applied or their incarnations end."""

import sys

from joiner.buffer import RECORD_OVERHEAD_BYTES, Buffer, Buffered
from ordering.records import batch_key


def _add(buffer: Buffer, partition: int, incarnation: int, sequence: int, offset: int, value: bytes = b"") -> None:
    buffer.add(partition, incarnation, sequence, Buffered(offset, 0, value))


def _values(buffer: Buffer, partition: int, incarnation: int, sequence: int) -> list[bytes | None]:
    return [record.value for record in buffer.get(partition, incarnation, sequence)]


def test_all_of_a_key_are_kept_in_order() -> None:
    """All records of a key stay, in the order of their offsets: the entry decides which one is the content."""
    buffer = Buffer()
    _add(buffer, 0, 1, 1, 5, b"first")
    _add(buffer, 0, 1, 1, 6, b"second")
    assert _values(buffer, 0, 1, 1) == [b"first", b"second"]
    assert buffer.records == 2
    assert buffer.drop_through(1, 1) == 1
    assert (buffer.records, buffer.size_bytes) == (0, 0)


def test_nothing_holds_what_was_dropped() -> None:
    """The buffer keeps nothing of dropped records: a writer to thousands of partitions must not fill memory with them."""
    buffer, values = Buffer(), [b"large %d" % partition * 1_000 for partition in range(50)]
    before = [sys.getrefcount(value) for value in values]
    for partition in range(50):
        _add(buffer, partition, 1, partition, 0, values[partition])
    buffer.drop_through(1, None)
    assert buffer.size_bytes == 0
    assert [sys.getrefcount(value) for value in values] == before


def test_the_last_ones_that_wait() -> None:
    """The last waiting records are those with a value, by offset whatever their keys, back to the first with an earlier append time."""
    buffer = Buffer()
    assert buffer.last_run(0) == []
    for offset, (sequence, append_time_ms) in enumerate([(1, 7), (2, 7), (3, 8), (1, 9), (4, 9), (2, 9), (5, 9)]):
        buffer.add(0, 1 if sequence < 5 else 2, sequence, Buffered(offset, append_time_ms, b"%d" % offset))
    assert [record.offset for record in buffer.last_run(0)] == [2, 3, 4, 5, 6]
    buffer.drop_through(2, 5)
    assert [(record.offset, record.key, record.value) for record in buffer.last_run(0)][-1] == (5, batch_key(1, 2), b"5")
    buffer.drop_values(0, 1, 3)
    assert [record.offset for record in buffer.last_run(0)] == [1, 3, 4, 5]
    assert buffer.last_run(1) == []


def test_partitions_are_apart() -> None:
    """Records with the same key in two partitions are two records."""
    buffer = Buffer()
    _add(buffer, 0, 1, 1, 5, b"here")
    _add(buffer, 1, 1, 1, 9, b"there")
    assert _values(buffer, 1, 1, 1) == [b"there"]
    assert buffer.drop_through(1, 1) == 2


def test_drop_through_removes_one_incarnation_up_to_a_sequence() -> None:
    """Dropping an incarnation up to a sequence removes its records in every partition; later ones and other incarnations stay."""
    buffer = Buffer()
    for offset, (partition, incarnation, sequence) in enumerate([(0, 1, 3), (1, 1, 1), (0, 1, 2), (0, 2, 1), (1, 1, 4)]):
        _add(buffer, partition, incarnation, sequence, offset)
    assert buffer.drop_through(1, 3) == 3
    assert buffer.get(1, 1, 4)
    assert buffer.get(0, 2, 1)
    assert buffer.drop_through(1, 3) == 0
    assert buffer.drop_through(1, None) == 1
    assert [buffer.size_of(incarnation)[0] for incarnation in (1, 2)] == [0, 1]


def test_offsets_earliest_are_those_of_the_first_buffered_records() -> None:
    """The offset to read again from is that of the earliest buffered record."""
    buffer = Buffer()
    assert not buffer.offsets_earliest()
    _add(buffer, 0, 1, 1, 5)
    _add(buffer, 0, 2, 1, 6)
    _add(buffer, 0, 2, 1, 7)
    buffer.drop_through(1, 1)
    assert buffer.offsets_earliest() == {0: 6}
    assert (buffer.holds(0), buffer.holds(1)) == (True, False)


def test_size_of_an_incarnation() -> None:
    """The size of one incarnation counts a second record of a key too, and removals subtract."""
    buffer = Buffer()
    records = [(0, 1, 1, b"1"), (1, 1, 2, b"22"), (1, 1, 2, b"again"), (0, 2, 1, b"")]
    for offset, (partition, incarnation, sequence, content) in enumerate(records):
        _add(buffer, partition, incarnation, sequence, offset, content)
    assert buffer.size_of(1) == (3, 3 * RECORD_OVERHEAD_BYTES + 8)
    buffer.drop_through(1, 1)
    assert buffer.size_of(1) == (2, 2 * RECORD_OVERHEAD_BYTES + 7)
    buffer.drop_through(1, None)
    assert (buffer.size_of(1), buffer.size_of(2)) == ((0, 0), (1, RECORD_OVERHEAD_BYTES))


def test_emptied_records_keep_their_offsets() -> None:
    """Records that are not the content release their bytes, once, and still hold the offset to read again from."""
    buffer = Buffer()
    _add(buffer, 0, 1, 1, 5, b"junk")
    _add(buffer, 0, 1, 2, 6, b"other")
    for _ in range(2):
        buffer.drop_values(0, 1, 1)
        assert buffer.size_bytes == 2 * RECORD_OVERHEAD_BYTES + 5
    assert _values(buffer, 0, 1, 1) == [None]
    assert buffer.offsets_earliest() == {0: 5}
    buffer.drop_values(0, 9, 9)
    buffer.drop_through(1, None)
    assert (buffer.size_bytes, buffer.records) == (0, 0)


def test_many_records_of_a_key_are_released_but_the_first() -> None:
    """If many records of a key are not the content, only the first keeps its offset: a flood under one key costs no memory."""
    buffer = Buffer()
    for offset in range(5, 100):
        _add(buffer, 0, 1, 1, offset, b"junk")
    buffer.drop_values(0, 1, 1)
    assert (buffer.records, buffer.size_bytes) == (1, RECORD_OVERHEAD_BYTES)
    assert [(record.offset, record.value) for record in buffer.records_of(0)] == [(5, None)]
    assert buffer.drop_through(1, 1) == 1
    assert (buffer.records, buffer.size_bytes, buffer.offsets_earliest()) == (0, 0, {})
