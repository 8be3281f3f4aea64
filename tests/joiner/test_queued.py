"""The limits of the queue of ordering records."""

from joiner import JoinerLimits
from ordering.log import ORDERING
from tests.joiner.history import registered


def test_full_queue_pauses_ordering() -> None:
    """The ordering queue is bounded in ids: behind a hole the ordering topic is paused until the hole is closed."""
    history, reading = registered(limits=JoinerLimits(queue_ids_max=4))
    reading.step(history.entry(1, 1, "a"))
    ready = reading.step(*[history.entry(1, sequence, "b", "c") for sequence in (2, 3, 4)])
    assert ready.paused == {ORDERING}
    ready = reading.step(*[history.fill(1, sequence) for sequence in (1, 2, 3, 4)])
    assert ready.paused == frozenset()
    assert len(reading.batches) == 4


def test_full_queue_counts_records_without_ids() -> None:
    """A flood of ordering records without transaction ids is bounded too."""
    history, reading = registered(limits=JoinerLimits(queue_ids_max=10))
    reading.step(history.entry(1, 1, "a"))
    flood = [history.put(ORDERING, None, b"garbage") for _ in range(10)]
    assert reading.step(*flood, *[history.entry(1, sequence) for sequence in (2, 3)]).paused == {ORDERING}
    assert reading.step(history.fill(1, 1), history.fill(1, 2), history.fill(1, 3)).paused == frozenset()


def test_full_queue_counts_bytes() -> None:
    """Records behind a hole are bounded in bytes too, whatever is in them: one of many megabytes weighs more than a short one."""
    history, reading = registered(limits=JoinerLimits(queue_ids_max=1_000))
    reading.step(history.entry(1, 1, "a"), *[history.put(ORDERING, None, b"garbage") for _ in range(100)])
    assert reading.joiner.queued_ids < 200
    assert reading.step(history.put(ORDERING, None, bytes(32_000))).paused == {ORDERING}
    assert reading.step(history.fill(1, 1)).paused == frozenset()
    assert reading.joiner.queued_ids == 0


def test_keys_count_in_the_weight() -> None:
    """Anyone who may write to the ordering topic can append records with long keys: behind a hole they pause reading too."""
    history, reading = registered(limits=JoinerLimits(queue_ids_max=1_000))
    reading.step(history.entry(1, 1, "a"))
    assert ORDERING in reading.step(history.put(ORDERING, bytes(32_000), b"")).paused
