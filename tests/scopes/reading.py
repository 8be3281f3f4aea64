"""Readers: real joiners with their persisted state, as numbers; each step of each is computed once.

`Joiner.step` is pure: the same state and the same input give the same result. So the search knows a reader's state by a number, and calls
the joiner only for steps that no reader in any state has taken yet. Offsets here are relative to the next offset of each topic-partition.
"""

from typing import Any

import msgspec

from joiner import Joiner, JoinerSnapshot, JoinerState, Mark, Ready
from ordering.log import ORDERING
from tests.joiner.history import KEY
from tests.scopes.expected import Batch, SeenIncarnation
from tests.scopes.frozen import NOW_MS, OFFSET, effect_at, frozen
from tests.scopes.scope import TOPIC_PARTITIONS, Scope, genesis, ids_of


class Kept(msgspec.Struct, frozen=True):
    """The joiner's part of a reader's index (R8), without the offsets."""

    log_time_ms: int = 0
    incarnations: tuple[Any, ...] = ()
    marks: tuple[int, ...] = (-1,) * len(TOPIC_PARTITIONS)  # their distances from the offsets at which a restart reads on


class Reading(msgspec.Struct, frozen=True):
    """A reader between two steps; `kept` is None, and `back` zero, where no later restart can need them."""

    joiner: JoinerSnapshot
    paused: frozenset[int]
    more: bool
    kept: Kept | None
    back: tuple[int, ...]  # records that a restart reads again, by topic-partition


class Seen(msgspec.Struct, frozen=True):
    """The properties of a reading that the search uses, computed once."""

    paused: tuple[bool, ...]
    more: bool
    hole: tuple[int, int] | None
    incarnations: tuple[SeenIncarnation, ...]
    log_time_ms: int
    buffered: tuple[frozenset[tuple[int, int]], ...]  # (incarnation, sequence), by partition
    back: tuple[int, ...]


class Step(msgspec.Struct, frozen=True):
    """One step of a reader; `wrong` is the violation in the step itself, empty for none."""

    reading: int
    batches: tuple[Batch, ...] = ()
    proposed: tuple[int, ...] = ()  # labels of fills and fences
    wrong: str = ""
    again: tuple[int, ...] = (0,) * len(TOPIC_PARTITIONS)  # records that the reader reads again, having dropped some


NOTHING_BACK = (0,) * len(TOPIC_PARTITIONS)


class Readings:
    """All readings so far, by number; `start` is the one of an empty index."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._numbers: dict[Reading, int] = {}
        self._readings: list[Reading] = []
        self.seen: list[Seen] = []
        self._steps: dict[tuple[Any, ...], Step] = {}
        self._starts: dict[tuple[Kept, bool], int] = {}
        begun = Joiner()
        begun.step([genesis()], 0)
        assert begun.log_state is not None
        self._log_state = begun.log_state
        self._joiner = self._made(Kept())
        """Restored to the state before each step."""
        self.start = self._started(Kept(), keep=scope.restarts > 0 or scope.rereads)

    @property
    def joiners(self) -> frozenset[JoinerSnapshot]:
        """The joiner states so far."""
        return frozenset([reading.joiner for reading in self._readings])

    @property
    def steps(self) -> int:
        """The number of joiner steps that were computed."""
        return len(self._steps)

    def restart(self, reading: int, keep: bool) -> int:
        """Restart a reader from its persisted state; returns the number of the new reading."""
        kept = self._readings[reading].kept
        assert kept is not None
        return self._started(kept, keep)

    def step(self, reading: int, handed: tuple[int, ...], passed: bool, keep: bool) -> Step:
        """Pass in the records with these labels, at once or after a hole_timeout; persist the result."""
        key = (reading, handed, passed, keep)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._step(self._readings[reading], handed, passed, keep)
        return found

    def _step(self, reading: Reading, handed: tuple[int, ...], passed: bool, keep: bool) -> Step:
        scope = self._scope
        joiner = self._joiner
        joiner.restore(reading.joiner)
        now_ms = NOW_MS + (scope.limits.hole_timeout_ms if passed else 0)
        read_next = dict.fromkeys(TOPIC_PARTITIONS, OFFSET)
        records = []
        for number in handed:
            partition = scope.labels[number].partition
            records.append(scope.record(number, read_next[partition]))
            read_next[partition] += 1
        try:
            # The signatures of a scope's records are good: to verify them in each step would take longer than all the rest.
            ready = joiner.step(records, now_ms, {record.value: KEY.public_key for record in records if record.value is not None})
        except Exception as problem:  # whatever it raises is what this looks for
            return Step(-1, wrong=f"the joiner raised {type(problem).__name__}: {problem}")
        if joiner.read_next() != read_next:
            return Step(-1, wrong=f"the joiner takes {joiner.read_next()} for what is read next, and it is {read_next}")
        kept, back = None, NOTHING_BACK
        if keep:
            assert reading.kept is not None
            kept, back = (
                reading.kept,
                tuple([reading.back[partition + 1] + read_next[partition] - OFFSET for partition in TOPIC_PARTITIONS]),
            )
            if ready.advanced:
                incarnations = {state.incarnation: state for state in (*kept.incarnations, *ready.incarnations)}
                kept = Kept(ready.log_time_ms, tuple([state for _, state in sorted(incarnations.items())]))
                back = tuple([read_next[partition] - ready.offsets_next[partition] for partition in TOPIC_PARTITIONS])
                if min(back) < 0:
                    return Step(-1, wrong=f"what is persisted continues at {ready.offsets_next}, and was read up to {read_next}")
                marks = tuple([_mark(joiner, partition) - ready.offsets_next[partition] for partition in TOPIC_PARTITIONS])
                kept = msgspec.structs.replace(kept, marks=marks)
        again = NOTHING_BACK
        if ready.read_again:
            joiner.forget_unapplied()
            again = tuple([read_next[partition] - joiner.read_next()[partition] for partition in TOPIC_PARTITIONS])
            back = tuple([more - less for more, less in zip(back, again, strict=True)]) if keep else NOTHING_BACK
            ready.paused = frozenset()
        after = self._number(Reading(frozen(joiner, now_ms, keep), ready.paused, ready.more, kept, back), joiner)
        numbers, wrong = scope.numbers, _wrong(joiner, ready)
        proposed = []
        for fill in ready.fills:
            wanted = numbers.get(("fill", fill.incarnation, fill.sequence))
            if wanted is None or scope.labels[wanted].partition != fill.partition or not joiner.is_hole(fill):
                return Step(-1, wrong=f"{fill} is proposed, and no such content is wanted")
            proposed.append(wanted)
        for fence in ready.fences:
            wanted = numbers.get(("fence", fence.incarnation, fence.sequence_last))
            if wanted is None:
                return Step(-1, wrong=f"{fence} is proposed, and there is no such incarnation, or no such sequence of it")
            proposed.append(wanted)
        batches = []
        for batch in ready.batches:
            ids = tuple([request.transaction_id for request in batch.requests])
            if ids != (() if batch.filled else ids_of(batch.incarnation, batch.sequence)):
                wrong = f"batch ({batch.incarnation}, {batch.sequence}) has other requests than were sent"
            batches.append((batch.offset - OFFSET, batch.incarnation, batch.sequence, batch.log_time_ms, batch.filled))
        return Step(after, tuple(batches), tuple(proposed), wrong, again)

    def _started(self, kept: Kept, keep: bool) -> int:
        if (kept, keep) not in self._starts:
            joiner = self._made(kept)
            value = frozen(joiner, NOW_MS, keep)
            self._starts[kept, keep] = self._number(Reading(value, frozenset(), False, kept if keep else None, NOTHING_BACK), joiner)
        return self._starts[kept, keep]

    def _made(self, kept: Kept) -> Joiner:
        marks = {partition: Mark(OFFSET + at, b"") for partition, at in zip(TOPIC_PARTITIONS, kept.marks, strict=True)}
        last = effect_at(OFFSET + kept.marks[0], self._log_state)
        state = JoinerState(dict.fromkeys(TOPIC_PARTITIONS, OFFSET), kept.log_time_ms, kept.incarnations, self._log_state, (last,), marks)
        return Joiner(state, self._scope.limits, "reader")

    def _number(self, reading: Reading, joiner: Joiner) -> int:
        number = self._numbers.setdefault(reading, len(self._readings))
        if number == len(self._readings):
            self._readings.append(reading)
            self.seen.append(_seen(reading, joiner))
        return number


def _mark(joiner: Joiner, partition: int) -> int:
    """Returns the offset of the furthest record of that topic-partition that took effect, one before the first record if there is none."""
    last = joiner.history.last
    assert last is not None
    return last.offset if partition == ORDERING else joiner.marks[partition].offset


def _wrong(joiner: Joiner, ready: Ready) -> str:
    """Returns the violation of a rule that every step must keep, whatever the log contains; empty for none."""
    hole = joiner.hole
    if hole is not None and hole.partition in ready.paused:
        return f"partition {hole.partition} is paused, and the hole ({hole.incarnation}, {hole.sequence}) is to be filled from it"
    if hole is None and not ready.more and ORDERING in ready.paused:
        return "the ordering topic is paused, and the head waits for nothing"
    if not ready.advanced and (ready.batches or ready.incarnations):
        return "the head has not moved, so nothing is persisted, and there are batches or incarnations"
    return ""


def _seen(reading: Reading, joiner: Joiner) -> Seen:
    buffered = {partition: frozenset([batch[:2] for batch in batches]) for partition, batches in reading.joiner.buffer}
    return Seen(
        tuple([partition in reading.paused for partition in TOPIC_PARTITIONS]),
        reading.more,
        (joiner.hole.incarnation, joiner.hole.sequence) if joiner.hole is not None else None,
        tuple([(state.sequence_last, state.fenced, state.active_at_ms) for state in reading.joiner.incarnations]),
        joiner.log_time_ms,
        tuple([buffered.get(partition, frozenset()) for partition in TOPIC_PARTITIONS if partition != ORDERING]),
        reading.back,
    )
