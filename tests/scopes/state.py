"""One state of a small model, and the moves that can follow it.

Moves that must happen at some time (a send of a live incarnation arrives, a record is read) differ from moves that may happen. When no move
is left that must happen, only the proposals of the readers themselves can lead on.
"""

from collections.abc import Iterator
from itertools import combinations

import msgspec

from ordering.log import describe
from tests.scopes.expected import Batch
from tests.scopes.reading import Readings
from tests.scopes.scope import TOPIC_PARTITIONS, Label, Scope


class Left(msgspec.Struct, frozen=True, array_like=True):
    """The number of each fault that may still happen."""

    crashes: int
    restarts: int
    lost: int
    repeats: int
    fills: int
    ticks: int
    fences: int

    def within(self, other: "Left") -> bool:
        """Returns whether the other has at least as many of each fault left."""
        return (
            self.crashes <= other.crashes
            and self.restarts <= other.restarts
            and self.lost <= other.lost
            and self.repeats <= other.repeats
            and self.fills <= other.fills
            and self.ticks <= other.ticks
            and self.fences <= other.fences
        )


class Reader(msgspec.Struct, frozen=True, gc=False):
    """A reader: the number of its reading, its next offsets, the labels passed to it since its last step, and the batches that it owes.

    It owes the batches that the log has settled and that it has not emitted.
    """

    reading: int
    at: tuple[int, ...]
    handed: tuple[int, ...]
    owed: tuple[Batch, ...]


class ModelState(msgspec.Struct, frozen=True):
    """A state, as a value.

    `arrived` counts, by incarnation and topic-partition, the sends that are in the log or lost; `written` has one bit per label.
    """

    arrived: tuple[tuple[int, ...], ...]
    crashed: tuple[int, ...]
    left: Left
    on_way: tuple[int, ...]
    log: tuple[tuple[int, ...], ...]
    written: int
    expected: int
    readers: tuple[Reader, ...]


class Move(msgspec.Struct, frozen=True):
    """One possible move. `incarnation` is the incarnation whose send it is, 0 for none; `must` is true if it happens at some time."""

    kind: str  # read | append | step | tick | lose | lose-on-way | crash | restart
    reader: int = 0
    partition: int = -1
    label: int | None = None
    cause: str = ""  # for a record that is written: send | on-way | repeat | fill | fence
    incarnation: int = 0
    must: bool = False
    skipped: int = 0  # sends before it in its topic-partition that are lost


class Moves:
    """The possible moves in a scope's states; `explore` explains `lazy` and `late`."""

    def __init__(self, scope: Scope, readings: Readings, *, lazy: bool, late: bool) -> None:
        self._scope, self._readings, self._lazy, self._late = scope, readings, lazy, late

    def of(self, state: ModelState) -> list[Move]:
        """Returns all moves except the passing of time."""
        moves = [move for at in range(len(state.readers)) for move in self._reader_moves(state, at)]
        if not self._lazy:
            moves += [move for partition in TOPIC_PARTITIONS for move in self._writes(state, partition, "append", 0)]
        if (state.left.crashes or state.left.lost) and (not self._late or self._excusable(state, moves)):
            moves += self._faults(state)
        return moves

    def _reader_moves(self, state: ModelState, at: int) -> Iterator[Move]:
        reader = state.readers[at]
        seen = self._readings.seen[reader.reading]
        if state.left.restarts:
            yield Move("restart", at)
        if reader.handed or seen.more:
            yield Move("step", at, must=True)
        if seen.more or len(reader.handed) == self._scope.portion_max:
            return
        for place, partition in enumerate(TOPIC_PARTITIONS):
            if seen.paused[place]:
                continue
            if next_of(self._scope, reader, partition) < len(state.log[place]):
                yield Move("read", at, partition, must=True)
            elif self._lazy:
                yield from self._writes(state, partition, "read", at)

    def _writes(self, state: ModelState, partition: int, kind: str, at: int) -> Iterator[Move]:
        """Yields the records that may be written next to that topic-partition."""
        scope, left, place = self._scope, state.left, partition + 1
        for incarnation, sends in enumerate(scope.sends, 1):
            done = state.arrived[incarnation - 1][place]
            if done < len(sends[place]):
                registers = place == 0 and done == 0
                # Incarnations are numbered by their register records. One that never registers is not part of the scope.
                if registers and incarnation > 1 and not state.arrived[incarnation - 2][0]:
                    continue
                must = registers or incarnation not in state.crashed
                yield Move(kind, at, partition, sends[place][done], "send", incarnation, must)
                if self._late and left.lost and not registers and done + 1 < len(sends[place]):
                    yield Move(kind, at, partition, sends[place][done + 1], "send", incarnation, skipped=1)
        for number in state.on_way:
            if scope.labels[number].partition == partition:
                yield Move(kind, at, partition, number, "on-way", must=True)
        if left.repeats:
            for number in sorted(set(state.log[place])):
                yield Move(kind, at, partition, number, "repeat")
        if left.fills and place:
            for number in scope.partition_fills[partition]:
                yield Move(kind, at, partition, number, "fill")
        if left.fences and not place:
            for number, label in enumerate(scope.labels):
                if label.kind == "fence" and self._may_fence(state, label):
                    yield Move(kind, at, partition, number, "fence")

    def _may_fence(self, state: ModelState, label: Label) -> bool:
        """Returns whether a peer, which may have read any part of the log, can fence this incarnation at this sequence."""
        kind = "entry" if label.number else "register"
        return self._scope.numbers[kind, label.incarnation, label.number] in state.log[0]

    def _faults(self, state: ModelState) -> Iterator[Move]:
        left = state.left
        living = [(incarnation, partition) for incarnation, partition in self._under_way(state) if incarnation not in state.crashed]
        if left.crashes:
            for incarnation in sorted({incarnation for incarnation, _ in living}):
                yield Move("crash", incarnation=incarnation)
        if left.lost:
            for incarnation, partition in living:
                if not self._late or self._is_last(state, incarnation, partition):
                    yield Move("lose", partition=partition, incarnation=incarnation)
            for number in state.on_way:
                yield Move("lose-on-way", label=number)

    def _under_way(self, state: ModelState) -> Iterator[tuple[int, int]]:
        """Yields (incarnation, topic-partition) of all sends in flight, except register records (see `_writes`)."""
        for incarnation, sends in enumerate(self._scope.sends, 1):
            for place, partition in enumerate(TOPIC_PARTITIONS):
                if (place or state.arrived[incarnation - 1][0]) and state.arrived[incarnation - 1][place] < len(sends[place]):
                    yield incarnation, partition

    def _is_last(self, state: ModelState, incarnation: int, partition: int) -> bool:
        return state.arrived[incarnation - 1][partition + 1] == len(self._scope.sends[incarnation - 1][partition + 1]) - 1

    def _excusable(self, state: ModelState, moves: list[Move]) -> bool:
        """Returns whether the faults left can explain everything that must arrive and does not; earlier they would change nothing."""
        must = [move for move in moves if move.must]
        if any(move.cause not in ("send", "on-way") or self._registers(move) for move in must):
            return False
        sends = {(move.incarnation, move.partition) for move in must if move.cause == "send"}
        fills = len({move.label for move in must if move.cause == "on-way"})
        incarnations = sorted({incarnation for incarnation, _ in sends})
        for crashed in combinations(incarnations, min(state.left.crashes, len(incarnations))):
            lost = [send for send in sends if send[0] not in crashed]
            if len(lost) + fills <= state.left.lost and all(self._is_last(state, *send) for send in lost):
                return True
        return False

    def _registers(self, move: Move) -> bool:
        return move.label is not None and self._scope.labels[move.label].kind == "register"


def rendered(scope: Scope, state: ModelState, move: Move) -> str:
    """Returns a description of the move for the trace."""
    reader = f"reader {move.reader + 1}"
    match move.kind:
        case "read" | "append":
            place, partition = move.partition + 1, describe(move.partition)
            offset = len(state.log[place]) if move.label is not None else next_of(scope, state.readers[move.reader], move.partition)
            label = scope.labels[move.label if move.label is not None else state.log[place][offset]]
            causes = {"repeat": " comes again", "fill": " by a peer", "fence": " by a peer", "on-way": " as proposed"}
            lost = f"the send of incarnation {move.incarnation} before it is lost; " if move.skipped else ""
            who = "the log gets" if move.kind == "append" else f"{reader} reads"
            return f"{lost}{who} {partition} {offset}: {label}{causes.get(move.cause, '')}"
        case "step":
            return f"{reader} steps"
        case "tick":
            return f"a hole_timeout passes for {reader}"
        case "restart":
            return f"{reader} crashes, and continues from what it has persisted"
        case "crash":
            return f"incarnation {move.incarnation} crashes: what it has under way may never come"
        case "lose":
            return f"the next send of incarnation {move.incarnation} to {describe(move.partition)} is lost"
    assert move.label is not None
    return f"{scope.labels[move.label]}, on its way, is lost"


def next_of(scope: Scope, reader: Reader, partition: int) -> int:
    """Returns the next offset of that topic-partition for this reader."""
    if not reader.handed:
        return reader.at[partition + 1]
    return reader.at[partition + 1] + sum([1 for number in reader.handed if scope.labels[number].partition == partition])
