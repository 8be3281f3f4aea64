"""The expected result of the log so far: the replay of the complete log, without what cannot matter any more, so that it is hashable.

Two states are only equal if their complete logs are, as long as they have the past. A later record can depend on (incarnations, log time,
ordering records that wait, first contents by partition) and on nothing else. Shares no code with the joiner.
"""

from typing import TypeAlias

from tests.checkers.replay import Replayed, replay
from tests.scopes.scope import PARTITIONS, TOPIC_PARTITIONS, Scope, genesis

SeenIncarnation: TypeAlias = tuple[int, bool, int]
"""An incarnation: last sequence counted, fenced or not, log time of its last activity."""

State: TypeAlias = tuple[tuple[SeenIncarnation, ...], int, tuple[int, ...], tuple[tuple[tuple[int, int, bool], ...], ...]]
"""(incarnations, log time, labels not applied yet, by partition (incarnation, sequence, is a fill) of first contents)."""

Batch: TypeAlias = tuple[int, int, int, int, bool]
"""(offset, incarnation, sequence, log time, filled), as every reader must emit it."""

Log: TypeAlias = tuple[tuple[int, ...], ...]

EMPTY: State = ((), 0, (), ((),) * PARTITIONS)


class Expectations:
    """The expected states that the search has reached, by number; the empty log's is 0."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._numbers: dict[State, int] = {EMPTY: 0}
        self.states: list[State] = [EMPTY]
        self._steps: dict[tuple[int, int], tuple[int, tuple[Batch, ...]]] = {}

    def append(self, before: int, log: Log, number: int) -> tuple[int, tuple[Batch, ...]]:
        """Append that label to that log; returns the number of the state after it, and the batches that it settles."""
        place = self._scope.labels[number].partition + 1
        longer = tuple([(*partition, number) if at == place else partition for at, partition in enumerate(log)])
        found = self._steps.get((before, number))
        if found is None:
            found = self._steps[before, number] = self._step(log, longer)
        after, batches = found
        return after, tuple([(len(longer[0]) + batch[0], *batch[1:]) for batch in batches])

    def _step(self, log: Log, longer: Log) -> tuple[int, tuple[Batch, ...]]:
        """Returns the same; the offsets of the batches are relative to the end of the ordering topic, and negative."""
        settled, replayed = self._replayed(log).batches, self._replayed(longer)
        assert replayed.batches[: len(settled)] == settled, f"what is settled stays: {longer}"
        # The scope's ordering topic begins after genesis.
        end = len(longer[0]) + 1
        new = [(b.offset - end, b.incarnation, b.sequence, b.log_time, b.signed_fill) for b in replayed.batches[len(settled) :]]
        state = self._state(longer, replayed)
        after = self._numbers.setdefault(state, len(self.states))
        if after == len(self.states):
            self.states.append(state)
        return after, tuple(new)

    def _state(self, log: Log, replayed: Replayed) -> State:
        incarnations = tuple([(each.sequence_last, each.fenced, each.active_at) for each in replayed.incarnations])
        contents = []
        for partition in log[1:]:
            first: dict[tuple[int, int], bool] = {}
            for label in [self._scope.labels[number] for number in partition]:
                first.setdefault((label.incarnation, label.number), label.kind == "fill")
            contents.append(tuple(sorted([(*name, fill) for name, fill in first.items() if not _past(incarnations, *name)])))
        return incarnations, replayed.log_time, log[0][replayed.offset_head - 1 :], tuple(contents)

    def _replayed(self, log: Log) -> Replayed:
        ordering, *payloads = log
        by_partition = [[self._scope.record(number, offset) for offset, number in enumerate(partition)] for partition in payloads]
        first = [genesis(), *[self._scope.record(number, offset) for offset, number in enumerate(ordering, 1)]]
        return replay(dict(zip(TOPIC_PARTITIONS, [first, *by_partition], strict=True)))


def _past(incarnations: tuple[SeenIncarnation, ...], incarnation: int, sequence: int) -> bool:
    """Returns whether a batch of that name can no longer count."""
    return incarnation <= len(incarnations) and (incarnations[incarnation - 1][1] or sequence <= incarnations[incarnation - 1][0])
