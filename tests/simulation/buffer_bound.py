"""The limit on the bytes that a worker buffers, checked at each of its polls."""

from collections.abc import Sequence

from joiner import Joiner
from joiner.buffer import RECORD_OVERHEAD_BYTES
from ordering.log import ORDERING, Record


class BufferBound:
    """The buffer limit of one process.

    One poll may exceed it. From then on only the partition that the head waits for is read, which is never paused. After an interruption
    the joiner receives several polls together.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = self._allowed = bytes_max

    def polled(self, joiner: Joiner, records: Sequence[Record], *, looked: bool) -> str:
        """Check a poll; `joiner` is in the state in which it asked for these records. Returns the violation, empty for none.

        `looked`: the log was compared since the last interruption.
        """
        size = joiner.buffered_bytes
        if size > self._allowed:
            return f"{size} bytes buffered, {self._allowed} allowed"
        payloads = [record for record in records if record.partition != ORDERING]
        at_least = max(size, self._bytes_max) if looked else max(self._allowed, self._bytes_max)
        self._allowed = at_least + sum([RECORD_OVERHEAD_BYTES + len(record.value or b"") for record in payloads])
        awaited = None if joiner.hole is None else joiner.hole.partition
        if looked and size > self._bytes_max and any(record.partition != awaited for record in payloads):
            return f"{size} bytes buffered, {self._bytes_max} allowed, and partitions besides {awaited} are read on"
        return ""
