"""Joiners with one broken rule each, which a useful search must find."""

from collections.abc import Callable, Sequence
from typing import Any

from joiner import Buffer, Incarnations, IncarnationState, Joiner, Ready
from joiner.buffer import Buffered
from joiner.payloads import Payloads
from ordering.log import ORDERING, Record
from ordering.records import Entry, decode_batch_key
from ordering.signatures import FILL_BYTES


def _with(
    buffer: type[Buffer] = Buffer, incarnations: type[Incarnations] = Incarnations, payloads: type[Payloads] = Payloads
) -> Callable[..., Joiner]:
    """Returns a joiner class with parts of these classes."""

    class Broken(Joiner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.incarnations = incarnations(self.incarnations.snapshot())
            self.payloads = payloads(self.limits, self.incarnations, self.history)
            self.payloads.buffer = buffer()

    return Broken


class _LastWins(Buffer):
    def get(self, partition: int, incarnation: int, sequence: int) -> Sequence[Buffered]:
        return super().get(partition, incarnation, sequence)[::-1]


class _FillsIgnored(Buffer):
    def add(self, partition: int, incarnation: int, sequence: int, record: Buffered) -> None:
        if len(record.value or b"") != FILL_BYTES:
            super().add(partition, incarnation, sequence, record)


class _PassedKept(Buffer):
    def drop_through(self, incarnation: int, sequence: int | None) -> int:
        return super().drop_through(incarnation, sequence) if sequence is not None else 0


class _SequenceUnchecked(Incarnations):
    def counts(self, incarnation: int, sequence: int) -> bool:
        state = self.get(incarnation)
        return state is not None and not state.fenced

    def count(self, incarnation: int, sequence: int, log_time_ms: int) -> None:
        state = self._incarnations[incarnation]
        self._put(IncarnationState(incarnation, state.name, state.nonce, sequence, False, log_time_ms))


class _FencedCounts(Incarnations):
    def counts(self, incarnation: int, sequence: int) -> bool:
        state = self.get(incarnation)
        return state is not None and sequence > state.sequence_last

    def is_past(self, incarnation: int, sequence: int) -> bool:
        state = self.get(incarnation)
        return state is not None and sequence <= state.sequence_last

    def count(self, incarnation: int, sequence: int, log_time_ms: int) -> None:
        state = self._incarnations[incarnation]
        self._put(IncarnationState(incarnation, state.name, state.nonce, sequence, state.fenced, log_time_ms))


class _FenceUncompared(Incarnations):
    def fence(self, incarnation: int, sequence_last: int) -> IncarnationState | None:
        state = self.get(incarnation)
        return super().fence(incarnation, state.sequence_last) if state is not None else None


class _UnknownDropped(Joiner):
    def _take_payload(self, record: Record, ready: Ready) -> None:
        if self.incarnations.get(decode_batch_key(record.key)[0]) is not None:
            super()._take_payload(record, ready)


class _ResumesPastBuffer(Joiner):
    def _offsets_next(self) -> dict[int, int]:
        return {**self._read_next, ORDERING: super()._offsets_next()[ORDERING]}


class _ResumesPastQueue(Joiner):
    def _offsets_next(self) -> dict[int, int]:
        return {**super()._offsets_next(), ORDERING: self._read_next[ORDERING]}


class _NeverFills(Joiner):
    def _propose_fills(self, ready: Ready, now_ms: int) -> None:
        pass


class _FillsOnce(Joiner):
    """A fill that is lost in flight is not proposed again."""

    def _propose_fills(self, ready: Ready, now_ms: int) -> None:
        before = dict(self._due.fills_proposed_ms)
        super()._propose_fills(ready, now_ms)
        ready.fills = [fill for fill in ready.fills if (fill.incarnation, fill.sequence) not in before]
        self._due.fills_proposed_ms |= before


class _NeverFences(Joiner):
    def _propose_fences(self, ready: Ready, now_ms: int) -> None:
        pass


class _PausesHole(Joiner):
    def _paused(self) -> frozenset[int]:
        paused = super()._paused()
        return paused | {0, 1} if paused & {0, 1} else paused


class _DroppedForgotten(Payloads):
    def may_be_dropped(self, entry: Entry, content: Buffered | None) -> bool:
        return False


class _DroppedNotReadAgain(Joiner):
    def step(self, *arguments: Any, **more: Any) -> Ready:
        ready = super().step(*arguments, **more)
        ready.read_again = False
        return ready


class _LaterDropped(Buffer):
    def drop_through(self, incarnation: int, sequence: int | None) -> int:
        return super().drop_through(incarnation, sequence + 1 if sequence else sequence)


# The broken rule, the joiner, the scope that must find it, a word of the violation.
BROKEN: tuple[tuple[str, Callable[..., Joiner], str, str], ...] = (
    ("the last record of a key wins (R3)", _with(buffer=_LastWins), "fill-race", "emits"),
    ("a payload of an incarnation not yet registered is dropped (R5)", _UnknownDropped, "lost-send", "has not emitted"),
    ("a restart continues behind what was buffered (R8)", _ResumesPastBuffer, "lost-send", "has not emitted"),
    ("a restart continues behind what waits in the order (R8)", _ResumesPastQueue, "lost-send", ""),
    ("an entry counts whatever its sequence (R2)", _with(incarnations=_SequenceUnchecked), "repeat", ""),
    ("an entry of a fenced incarnation counts (R5)", _with(incarnations=_FencedCounts), "duplicate-name", ""),
    ("a fence counts whatever was counted since (R5)", _with(incarnations=_FenceUncompared), "fence-race", "holds incarnations"),
    ("a hole is never proposed for a fill (R4)", _NeverFills, "lost-send", "not proposed for a fill"),
    ("a fill that is lost is not proposed again (R4)", _FillsOnce, "lost-fill", "not proposed for a fill"),
    ("a fill is not content (R3)", _with(buffer=_FillsIgnored), "lost-send", "has not emitted"),
    ("orphans of a fenced incarnation are kept (R5)", _with(buffer=_PassedKept), "duplicate-name", "can never count"),
    ("a silent incarnation is never proposed for a fence (R5)", _NeverFences, "fence-race", "not proposed for a fence"),
    ("the partition of the hole is paused", _PausesHole, "tight", "is paused"),
    ("what was dropped for want of memory counts as never there (R3)", _with(payloads=_DroppedForgotten), "tight", ""),
    ("what was dropped for want of memory is not read again", _DroppedNotReadAgain, "tight", ""),
    ("a payload of a later batch goes with an earlier one (R5)", _with(buffer=_LaterDropped), "lost-send", ""),
)
