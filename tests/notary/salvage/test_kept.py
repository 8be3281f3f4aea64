"""The kept log as a source, on an in-memory log."""

from notary.salvage.kept import KeptIndex
from ordering.salvage import Lost
from tests.joiner.history import History
from tests.joiner.salvaged import Owner, SalvageReader


def test_log_time_is_that_of_the_last_decision() -> None:
    """A position without a decision has none, and neither has an empty log."""
    history = History()
    history.register("w1", version=2)
    history.activate(2)

    def log_time_ms() -> int:
        return KeptIndex(SalvageReader(history).read().index).log_time_ms

    assert log_time_ms() == 0
    for sequence, label in enumerate("ab", 1):
        decided_ms = history.entry(1, sequence, label).append_time_ms
        history.payload(1, sequence, label)
        assert log_time_ms() == decided_ms
    Owner(history).salvage(Lost())
    assert log_time_ms() == decided_ms
