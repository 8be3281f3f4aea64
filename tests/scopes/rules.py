"""The transitions of a scope: the state after each move, the conditions that must hold there, and the key by which states are equal."""

from typing import Any, TypeAlias, TypeVar

import msgspec

from tests.scopes.expected import Batch, Expectations
from tests.scopes.reading import NOTHING_BACK, Readings, Step
from tests.scopes.scope import TOPIC_PARTITIONS, Scope
from tests.scopes.state import Left, ModelState, Move, Moves, Reader, next_of

T = TypeVar("T")


Key: TypeAlias = tuple[bytes, Left, int]


class Broken(Exception):
    """Raised when a condition fails. The text names it; `move` led to it, None if the state itself shows it."""

    move: Move | None = None


class Rules:
    """The states of a scope (`ModelState`): the first one, the moves of each, and their results. Raises `Broken`."""

    def __init__(self, scope: Scope, *, merge: bool = True, lazy: bool = True, late: bool = True) -> None:
        self.scope, self._merge = scope, merge
        self.expectations = Expectations(scope)
        self.readings = Readings(scope)
        self._moves = Moves(scope, self.readings, lazy=lazy, late=late)
        self._encoder = msgspec.msgpack.Encoder()

    def first(self) -> ModelState:
        """Returns the state before the first move."""
        scope = self.scope
        left = Left(scope.crashes, scope.restarts, scope.lost, scope.repeats, scope.fills, scope.ticks, scope.fences)
        arrived = ((0,) * len(TOPIC_PARTITIONS),) * len(scope.incarnations)
        reader = Reader(self.readings.start, (0,) * len(TOPIC_PARTITIONS), (), ())
        return ModelState(arrived, (), left, (), ((),) * len(TOPIC_PARTITIONS), 0, 0, (reader,) * scope.readers)

    def key(self, state: ModelState) -> Key:
        """Returns all that the future of a state depends on: the state, the faults left, and the labels that could be repeated."""
        log, left = state.log, state.left
        written = state.written if left.repeats or left.fences else 0
        ends = tuple([len(partition) for partition in log])
        readers: list[Any] = []
        again = ends
        for reader in state.readers:
            back = self.readings.seen[reader.reading].back
            if reader.at == ends and back == NOTHING_BACK and not reader.owed:
                readers.append((reader.reading, back, reader.handed, ()))
                continue
            lag = tuple([end - at for end, at in zip(ends, reader.at, strict=True)])
            again = tuple([min(start, at - more) for start, at, more in zip(again, reader.at, back, strict=True)])
            readers.append((reader.reading, lag, reader.handed, [(batch[0] - ends[0], *batch[1:]) for batch in reader.owed]))
        readers.sort()
        # Records that no reader reads again are left out, and with them the absolute offsets.
        rest: Any = log
        if self._merge:
            rest = () if again == ends else [partition[start:] for partition, start in zip(log, again, strict=True)]
        core = self._encoder.encode((state.arrived, state.crashed, state.on_way, rest, state.expected, readers))
        return core, left, written

    def after(self, state: ModelState) -> tuple[list[tuple[Move, ModelState]], bool]:
        """Returns all moves with their results, and whether this state is terminal: nothing more must or will happen."""
        following = []
        stands = True
        for move in self._moves.of(state):
            stands = stands and not move.must
            try:
                following.append((move, self._moved(state, move)))
            except Broken as problem:
                problem.move = move
                raise
        if not stands and not state.left.ticks:
            return following, False
        proposed = 0
        for at, reader in enumerate(state.readers):
            if reader.handed:
                continue  # it steps first
            tick = Move("tick", at)
            try:
                step, later = self._stepped(state, at, passed=True)
                if stands:
                    self._check_proposals(state, reader, step)
            except Broken as problem:
                problem.move = tick
                raise
            proposed += len(step.proposed)
            following.append((tick, later if stands else _less(later, "ticks")))
        ended = stands and not proposed
        if ended:
            self._check_end(state)
        return following, ended

    # ---- transitions ----

    def _moved(self, state: ModelState, move: Move) -> ModelState:
        match move.kind:
            case "append":
                return self._written(state, move)
            case "read":
                return self._read(state if move.label is None else self._written(state, move), move)
            case "step":
                return self._stepped(state, move.reader)[1]
            case "restart":
                return self._restarted(_less(state, "restarts"), move.reader)
            case "crash":
                return self._crashed(_less(state, "crashes"), move)
            case "lose":
                return msgspec.structs.replace(_less(state, "lost"), arrived=_arrived(state, move))
        assert move.kind == "lose-on-way"
        return msgspec.structs.replace(_less(state, "lost"), on_way=_without(state.on_way, move.label))

    def _crashed(self, state: ModelState, move: Move) -> ModelState:
        arrived = state.arrived
        if not self.scope.stragglers:
            # A send to a paused topic-partition was not awaited: it may have arrived before the crash.
            paused = [self.readings.seen[reader.reading].paused for reader in state.readers]
            sends, came = self.scope.sends[move.incarnation - 1], arrived[move.incarnation - 1]
            ends = [came[place] if any(by[place] for by in paused) else len(sends[place]) for place in range(len(TOPIC_PARTITIONS))]
            ends[0] = ends[0] if came[0] else 0  # its register record arrives: see `Moves`
            arrived = _put(arrived, move.incarnation - 1, tuple(ends))
        return msgspec.structs.replace(state, arrived=arrived, crashed=tuple(sorted([*state.crashed, move.incarnation])))

    def _restarted(self, state: ModelState, at: int) -> ModelState:
        """Restart a reader: records that it had not applied count as never read; the batches that it must still emit stay."""
        reader = state.readers[at]
        back = self.readings.seen[reader.reading].back
        again = tuple([offset - more for offset, more in zip(reader.at, back, strict=True)])
        if min(again) < 0:
            raise Broken(f"reader {at + 1} continues from offsets {again}, before the log begins")
        after = Reader(self.readings.restart(reader.reading, state.left.restarts > 0 or self.scope.rereads), again, (), reader.owed)
        return msgspec.structs.replace(state, readers=_put(state.readers, at, after))

    def _written(self, state: ModelState, move: Move) -> ModelState:
        """Returns the state whose log has one more record, with the batches that every reader must emit from now on."""
        assert move.label is not None
        place, arrived, on_way = move.partition + 1, state.arrived, state.on_way
        left = state.left
        if move.cause == "send":
            arrived = _arrived(state, move)
            if move.skipped:
                left = _less(state, "lost").left
        elif move.cause == "on-way":
            on_way = _without(on_way, move.label)
        else:
            left = _less(state, {"repeat": "repeats", "fill": "fills", "fence": "fences"}[move.cause]).left
        expected, batches = self.expectations.append(state.expected, state.log, move.label)
        readers = state.readers
        if batches:
            readers = tuple([Reader(reader.reading, reader.at, reader.handed, reader.owed + batches) for reader in readers])
        log = _put(state.log, place, (*state.log[place], move.label))
        return ModelState(arrived, state.crashed, left, on_way, log, state.written | 1 << move.label, expected, readers)

    def _read(self, state: ModelState, move: Move) -> ModelState:
        reader = state.readers[move.reader]
        offset = next_of(self.scope, reader, move.partition)
        handed = (*reader.handed, state.log[move.partition + 1][offset])
        reader = Reader(reader.reading, reader.at, handed, reader.owed)
        state = msgspec.structs.replace(state, readers=_put(state.readers, move.reader, reader))
        # A reader that may pass several records to one step steps at any time.
        return state if self.scope.portion_max > 1 else self._stepped(state, move.reader)[1]

    def _stepped(self, state: ModelState, at: int, *, passed: bool = False) -> tuple[Step, ModelState]:
        reader = state.readers[at]
        step = self.readings.step(reader.reading, reader.handed, passed, state.left.restarts > 0 or self.scope.rereads)
        if step.wrong:
            raise Broken(step.wrong)
        batches = tuple([(reader.at[0] + batch[0], *batch[1:]) for batch in step.batches])
        if batches != reader.owed[: len(batches)]:
            raise Broken(
                f"reader {at + 1} emits {_rendered(batches)}, and the log says {_rendered(reader.owed) or 'that nothing is settled'}"
            )
        stands_at = [*reader.at]
        for number in reader.handed:
            stands_at[self.scope.labels[number].partition + 1] += 1
        now_at = tuple([at_ - more for at_, more in zip(stands_at, step.again, strict=True)])
        after = Reader(step.reading, now_at, (), reader.owed[len(batches) :])
        self._check_caught_up(state, after, at)
        on_way = tuple(sorted({*state.on_way, *step.proposed})) if step.proposed else state.on_way
        return step, msgspec.structs.replace(state, on_way=on_way, readers=_put(state.readers, at, after))

    # ---- conditions ----

    def _check_caught_up(self, state: ModelState, reader: Reader, at: int) -> None:
        """Check a reader at the log's end: it has emitted all settled batches, knows the incarnations, and buffers no useless record."""
        seen = self.readings.seen[reader.reading]
        if seen.more or _is_behind(state, reader):
            return
        incarnations, log_time_ms, _, contents = self.expectations.states[state.expected]
        if reader.owed:
            raise Broken(f"reader {at + 1} has read all of the log and has not emitted {_rendered(reader.owed)}")
        if (seen.incarnations, seen.log_time_ms) != (incarnations, log_time_ms):
            raise Broken(
                f"reader {at + 1} holds incarnations {seen.incarnations} at {seen.log_time_ms}, and the log says {incarnations}"
                f" at {log_time_ms}"
            )
        for held, may_count in zip(seen.buffered, contents, strict=True):
            if held:
                never = sorted(held - {content[:2] for content in may_count})
                if never:
                    raise Broken(f"reader {at + 1} buffers {never}, which can never count")

    def _check_proposals(self, state: ModelState, reader: Reader, step: Step) -> None:
        """Check a state where nothing else must happen: after a hole_timeout, it proposes a fill for the hole and fences for the silent."""
        seen, numbers = self.readings.seen[reader.reading], self.scope.numbers
        if seen.hole is not None and numbers["fill", *seen.hole] not in step.proposed:
            raise Broken(f"the hole {seen.hole} is a hole_timeout old and not proposed for a fill")
        incarnations, log_time_ms, _, _ = self.expectations.states[state.expected]
        for incarnation in sorted({content[0] for held in seen.buffered for content in held}):
            if incarnation > len(incarnations):
                continue
            last, fenced, active_at_ms = incarnations[incarnation - 1]
            silent = active_at_ms < log_time_ms - self.scope.limits.worker_timeout_ms
            if silent and not fenced and numbers["fence", incarnation, last] not in step.proposed:
                raise Broken(f"incarnation {incarnation} is silent, an orphan of its is buffered, and it is not proposed for a fence")

    def _check_end(self, state: ModelState) -> None:
        """Check that nothing waits for ever: every record that is in the order, or must enter it, was applied. Partitions may be paused."""
        for incarnation, sends in enumerate(self.scope.sends, 1):
            if incarnation not in state.crashed and state.arrived[incarnation - 1][0] < len(sends[0]):
                raise Broken(f"stalled: records of incarnation {incarnation} come, and no reader reads the ordering topic any more")
        for at, reader in enumerate(state.readers):
            if reader.at[0] < len(state.log[0]) or self.readings.seen[reader.reading].hole is not None:
                raise Broken(f"stalled: reader {at + 1} does not apply the rest of the ordering topic")
            if reader.owed:
                raise Broken(f"reader {at + 1} has not emitted {_rendered(reader.owed)}, and nothing more happens")


def _arrived(state: ModelState, move: Move) -> tuple[tuple[int, ...], ...]:
    """Returns the arrivals after that incarnation's next send to that topic-partition is in the log, or lost."""
    sent = state.arrived[move.incarnation - 1]
    return _put(state.arrived, move.incarnation - 1, _put(sent, move.partition + 1, sent[move.partition + 1] + 1 + move.skipped))


def _is_behind(state: ModelState, reader: Reader) -> bool:
    return reader.at != tuple([len(partition) for partition in state.log])


def _less(state: ModelState, fault: str) -> ModelState:
    """Returns the state with one fault of this kind fewer left."""
    return msgspec.structs.replace(state, left=msgspec.structs.replace(state.left, **{fault: getattr(state.left, fault) - 1}))


def _without(labels: tuple[int, ...], gone: int | None) -> tuple[int, ...]:
    return tuple([label for label in labels if label != gone])


def _put(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _rendered(batches: tuple[Batch, ...]) -> str:
    texts = [
        f"({incarnation}, {n}){' filled' if filled else ''} of offset {offset} at {at}" for offset, incarnation, n, at, filled in batches
    ]
    return ", ".join(texts)
