"""The expected result of the log so far, updated record by record: the same as the replay of the complete log, but hashable.

The replay reads the complete log each time, so two states are only equal if their complete logs are. Here the past is dropped: a later
record can depend on (incarnations, log time, ordering records that wait, first contents by partition) and on nothing else. Shares no code
with the joiner; each new step of the search is compared with the replay (see `Expectations.append`).
"""

from typing import TypeAlias

from tests.checkers.replay import replay
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
        found = self._steps.get((before, number))
        if found is None:
            state, batches = self._advanced(self.states[before], number)
            self._compare(log, number, batches)
            after = self._numbers.setdefault(state, len(self.states))
            if after == len(self.states):
                self.states.append(state)
            found = self._steps[before, number] = after, batches
        after, batches = found
        end = len(log[0]) + (self._scope.labels[number].partition < 0)
        return after, tuple([(end + batch[0], *batch[1:]) for batch in batches])

    def _advanced(self, before: State, number: int) -> tuple[State, tuple[Batch, ...]]:
        """Returns the state after that label; the offsets of the batches are relative to the end of the ordering topic, and negative."""
        incarnations, log_time, waiting, contents = [*before[0]], before[1], [*before[2]], [[*first] for first in before[3]]
        label = self._scope.labels[number]
        if label.partition < 0:
            waiting.append(number)
        else:
            name = (label.incarnation, label.number)
            if not _past(incarnations, *name) and all(content[:2] != name for content in contents[label.partition]):
                contents[label.partition].append((*name, label.kind == "fill"))
        batches: list[Batch] = []
        while waiting:
            number = waiting[0]
            label = self._scope.labels[number]
            if label.kind == "entry":
                if not _past(incarnations, label.incarnation, label.number) and label.incarnation <= len(incarnations):
                    found = [content for content in contents[label.named] if content[:2] == (label.incarnation, label.number)]
                    if not found:
                        break
                    log_time = max(log_time, min(self._scope.append_time_ms(number), self._scope.sent_at_ms(number) + 60_000))
                    incarnations[label.incarnation - 1] = (label.number, False, log_time)
                    batches.append((-len(waiting), label.incarnation, label.number, log_time, found[0][2]))
            elif label.kind == "fence":
                last, fenced, active = incarnations[label.incarnation - 1]
                incarnations[label.incarnation - 1] = (last, fenced or last == label.number, active)
            elif label.incarnation > len(incarnations):  # otherwise the register record is a repeat
                name_ = self._scope.incarnations[label.incarnation - 1].name
                for at, (last, _, active) in enumerate(incarnations):
                    if self._scope.incarnations[at].name == name_:
                        incarnations[at] = (last, True, active)
                incarnations.append((0, False, max(log_time, self._scope.append_time_ms(number))))
            del waiting[0]
        kept = tuple([tuple(sorted([content for content in first if not _past(incarnations, *content[:2])])) for first in contents])
        return (tuple(incarnations), log_time, tuple(waiting), kept), tuple(batches)

    def _compare(self, log: Log, number: int, batches: tuple[Batch, ...]) -> None:
        place = self._scope.labels[number].partition + 1
        longer = tuple([(*partition, number) if at == place else partition for at, partition in enumerate(log)])
        settled = [(len(longer[0]) + batch[0], *batch[1:]) for batch in batches]
        assert self._joined(longer) == self._joined(log) + settled, f"not what the complete log says: {longer}, {batches}"

    def _joined(self, log: Log) -> list[Batch]:
        # The scope's ordering topic begins after genesis.
        ordering, *payloads = log
        by_partition = [[self._scope.record(number, offset) for offset, number in enumerate(partition)] for partition in payloads]
        first = [genesis(), *[self._scope.record(number, offset) for offset, number in enumerate(ordering, 1)]]
        found = replay(dict(zip(TOPIC_PARTITIONS, [first, *by_partition], strict=True))).batches
        return [(each.offset - 1, each.incarnation, each.sequence, each.log_time, each.signed_fill) for each in found]


def _past(incarnations: list[SeenIncarnation], incarnation: int, sequence: int) -> bool:
    """Returns whether a batch of that name can no longer count."""
    return incarnation <= len(incarnations) and (incarnations[incarnation - 1][1] or sequence <= incarnations[incarnation - 1][0])
