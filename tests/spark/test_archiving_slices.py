"""Tests that the growth of a log is split into parts that miss nothing."""

from hypothesis import given
from hypothesis import strategies as st

from spark_join.archiving import offsets_in, slices
from spark_join.log import ORDERING, TopicPartition
from spark_join.log.kafka import OffsetRange

lengths = st.integers(0, 40)


@given(lengths, st.lists(st.tuples(st.integers(0, 9), lengths), min_size=1, max_size=4), st.integers(1, 60), st.integers(-9, 60))
def test_each_offset_once_and_payloads_first(entries: int, payloads: list[tuple[int, int]], records_max: int, ahead: int) -> None:
    """Parts are consecutive in each partition, none is empty or too large, and no entry comes before the payloads of its time."""
    payload = {("payload", number): OffsetRange(first, first + length) for number, (first, length) in enumerate(payloads)}
    wanted = {ORDERING: OffsetRange(3, 3 + entries), **payload}

    def payload_ends(offset: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(payload, offset + ahead)

    parts = list(slices(wanted, records_max, payload_ends))
    ends = {topic_partition: offset_range.offset_first for topic_partition, offset_range in wanted.items()}
    for part in parts:
        assert 0 < offsets_in(part) <= records_max + len(wanted)
        for topic_partition, offset_range in part.items():
            assert ends[topic_partition] == offset_range.offset_first < offset_range.offset_end
            ends[topic_partition] = offset_range.offset_end
        if ORDERING in part:
            wanted_then = payload_ends(part[ORDERING].offset_end)
            assert all(
                ends[topic_partition] >= min(offset_range.offset_end, wanted_then[topic_partition])
                for topic_partition, offset_range in payload.items()
            )
    assert ends == {topic_partition: offset_range.offset_end for topic_partition, offset_range in wanted.items()}
    if offsets_in(wanted) <= records_max:
        assert len(parts) <= 1
