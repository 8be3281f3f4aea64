"""The buffer: first records of batch keys, until their entries or their ends come."""

from joiner.buffer import RECORD_OVERHEAD_BYTES, Buffer, Buffered


def test_first_is_kept() -> None:
    """Of two records with one key in one partition the first stays."""
    buffer = Buffer(1)
    assert buffer.add(0, 1, 1, Buffered(5, b"first"))
    assert not buffer.add(0, 1, 1, Buffered(6, None))
    assert buffer.get(0, 1, 1) == Buffered(5, b"first")
    assert buffer.records == 1


def test_partitions_are_apart() -> None:
    """The same key in two partitions is two records."""
    buffer = Buffer(2)
    assert buffer.add(0, 1, 1, Buffered(5, b"here"))
    assert buffer.add(1, 1, 1, Buffered(9, None))
    assert buffer.get(1, 1, 1) == Buffered(9, None)
    assert buffer.drop_through(1, 1) == 2


def test_drop_through() -> None:
    """A life's records up to a sequence go, in every partition; later ones and other lives' stay."""
    buffer = Buffer(2)
    for offset, (partition, incarnation, sequence) in enumerate([(0, 1, 3), (1, 1, 1), (0, 1, 2), (0, 2, 1), (1, 1, 4)]):
        buffer.add(partition, incarnation, sequence, Buffered(offset, b""))
    assert buffer.drop_through(1, 3) == 3
    assert buffer.get(1, 1, 4) is not None
    assert buffer.get(0, 2, 1) is not None
    assert buffer.drop_through(1, 3) == 0
    assert buffer.drop_through(1, None) == 1
    assert buffer.incarnations() == [2]


def test_offset_earliest() -> None:
    """The offset to read again from is that of the earliest record still here."""
    buffer = Buffer(2)
    assert buffer.offset_earliest(0) is None
    buffer.add(0, 1, 1, Buffered(5, b""))
    buffer.add(0, 2, 1, Buffered(6, b""))
    buffer.drop_through(1, 1)
    assert buffer.offset_earliest(0) == 6
    assert buffer.offset_earliest(1) is None


def test_size() -> None:
    """Values and a fixed cost a record are counted, so that a flood of fills is bounded too; what leaves is taken off."""
    buffer = Buffer(1)
    buffer.add(0, 1, 1, Buffered(0, b"12345"))
    buffer.add(0, 1, 2, Buffered(1, None))
    assert buffer.size_bytes == 2 * RECORD_OVERHEAD_BYTES + 5
    buffer.drop_through(1, None)
    assert (buffer.size_bytes, buffer.records) == (0, 0)


def test_size_of_a_life() -> None:
    """The same for one life; a second record of a key is not counted, and what leaves is taken off."""
    buffer = Buffer(2)
    for partition, incarnation, sequence, content in [(0, 1, 1, b"1"), (1, 1, 2, b"22"), (1, 1, 2, b"again"), (0, 2, 1, None)]:
        buffer.add(partition, incarnation, sequence, Buffered(0, content))
    assert buffer.size_of(1) == (2, 2 * RECORD_OVERHEAD_BYTES + 3)
    buffer.drop_through(1, 1)
    assert buffer.size_of(1) == (1, RECORD_OVERHEAD_BYTES + 2)
    buffer.drop_through(1, None)
    assert (buffer.size_of(1), buffer.size_of(2)) == ((0, 0), (1, RECORD_OVERHEAD_BYTES))
