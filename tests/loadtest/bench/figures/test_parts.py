"""Tests what the figures of a worker's parts count."""

import hashlib
import threading
import time
from typing import Any

import pytest

from loadtest.bench.figures.parts import _apply

pytestmark = pytest.mark.seconds


class BusyIndex:
    """An index that applies a step at once, while a thread works on without the interpreter, as RocksDB's threads do."""

    def __init__(self) -> None:
        self.position_next = 0
        self.spent_s = 0.0
        self._over = threading.Event()
        self._working = threading.Thread(target=self._work)
        self._working.start()

    def apply(self, ready: Any) -> None:
        """Count the requests of a step."""
        self.position_next += sum([len(batch.requests) for batch in ready.batches])

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._working.join()

    def _work(self) -> None:
        began_s = time.thread_time()
        while not self._over.is_set():
            hashlib.sha256(bytes(1 << 20))
        self.spent_s = time.thread_time() - began_s


def test_threads_between_the_calls_are_counted() -> None:
    """Flushes go on while the next step is generated: their CPU time counts, that of generating does not."""
    index: Any = BusyIndex()
    try:
        began_s = time.process_time()
        _, _, cpu_s = _apply(index, 0.2, 1, 1, 100)
        all_of_it_s = time.process_time() - began_s
    finally:
        index.close()
    assert index.spent_s * 0.8 < cpu_s < all_of_it_s
