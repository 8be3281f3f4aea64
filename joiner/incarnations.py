"""The incarnations of all workers, as the ordering topic defines them (R2, R5).

An incarnation begins with a `register` record. Its number is the ordinal of that record among all register records that counted. Its state
is its last counted sequence, and whether it is fenced:

| record | counts if | then |
|---|---|---|
| register(nonce, name) | the nonce is new | an incarnation begins; every earlier one of that name is fenced |
| fence(i, last) | incarnation i is not fenced and `last` is its last sequence counted | incarnation i is fenced |
| retire(i) | incarnation i is not fenced | incarnation i is fenced |
| entry(i, s) | incarnation i is not fenced and s is higher than its last sequence counted | s is its last sequence counted, sealed or not |

Nothing else changes this state, so it is a function of the log. Sequences start at 1; 0 means that none was counted.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

SEQUENCE_NONE: Final = 0


class IncarnationState(msgspec.Struct, frozen=True, gc=False):
    """The state of one incarnation. `active_at_ms` is the log time at which it registered or last had an entry counted."""

    incarnation: int
    name: str
    nonce: bytes
    sequence_last: int
    fenced: bool
    active_at_ms: int
    format_version: int = 1  # the highest that its software reads


class Incarnations:
    """All incarnations so far, made from those in the index. `changed` collects the ones to persist with the step."""

    def __init__(self, incarnations: Iterable[IncarnationState] = ()) -> None:
        self.restore(incarnations)

    def restore(self, incarnations: Iterable[IncarnationState]) -> None:
        """Replace the content by these incarnations, which are persisted already."""
        self._incarnations: dict[int, IncarnationState] = {state.incarnation: state for state in incarnations}
        self._nonces: set[bytes] = {state.nonce for state in self._incarnations.values()}
        self._unfenced_by_name: dict[str, int] = {
            state.name: state.incarnation for state in self._incarnations.values() if not state.fenced
        }
        self.changed: dict[int, IncarnationState] = {}

    def snapshot(self) -> tuple[IncarnationState, ...]:
        """Returns all incarnations, in the order in which they registered."""
        return tuple(self._incarnations.values())

    def get(self, incarnation: int) -> IncarnationState | None:
        """Returns the state of that incarnation, None if it has not registered yet."""
        return self._incarnations.get(incarnation)

    def counts(self, incarnation: int, sequence: int) -> bool:
        """Returns True if an entry of that batch name counts at the head now (R2)."""
        state = self._incarnations.get(incarnation)
        return state is not None and not state.fenced and sequence > state.sequence_last

    def is_past(self, incarnation: int, sequence: int) -> bool:
        """Returns True if an entry of that batch name can never count any more; False before the incarnation has registered (R5)."""
        state = self._incarnations.get(incarnation)
        return state is not None and (state.fenced or sequence <= state.sequence_last)

    def count(self, incarnation: int, sequence: int, log_time_ms: int) -> None:
        """Record that an entry counted."""
        state = self._incarnations[incarnation]
        assert not state.fenced
        assert sequence > state.sequence_last
        self._put(IncarnationState(incarnation, state.name, state.nonce, sequence, False, log_time_ms, state.format_version))

    def use_up(self, incarnation: int, sequence: int) -> None:
        """Record that an entry took effect by a seal (R11): its sequence is used up, and the incarnation was not active.

        Otherwise a later entry with this batch name could count. A reader for which the sealed entry was a hole has dropped its payload.
        """
        self.count(incarnation, sequence, self._incarnations[incarnation].active_at_ms)

    def register(
        self, nonce: bytes, name: str, log_time_ms: int, format_version: int = 1
    ) -> tuple[IncarnationState, IncarnationState | None] | None:
        """Apply a register record. Returns (the new incarnation, the one that it fenced or None); None if the nonce is known already."""
        if nonce in self._nonces:
            return None
        # Only the last incarnation of the name can be unfenced: each earlier one was fenced when its successor registered.
        before = self._unfenced_by_name.get(name)
        fenced = self._fence(before) if before is not None else None
        state = IncarnationState(len(self._incarnations) + 1, name, nonce, SEQUENCE_NONE, False, log_time_ms, format_version)
        self._nonces.add(nonce)
        self._unfenced_by_name[name] = state.incarnation
        self._put(state)
        return state, fenced

    def fence(self, incarnation: int, sequence_last: int) -> IncarnationState | None:
        """Apply a fence record. Returns the incarnation that it fenced; None if the record does not count."""
        state = self._incarnations.get(incarnation)
        if state is None or state.fenced or state.sequence_last != sequence_last:
            return None
        del self._unfenced_by_name[state.name]
        return self._fence(incarnation)

    def retire(self, incarnation: int) -> IncarnationState | None:
        """Apply a retire record. Returns the incarnation that it ended; None if that was fenced already or has not registered."""
        state = self._incarnations.get(incarnation)
        return None if state is None else self.fence(incarnation, state.sequence_last)

    def named(self, name: str) -> IncarnationState | None:
        """Returns the unfenced incarnation of a worker name; None if there is none."""
        incarnation = self._unfenced_by_name.get(name)
        return None if incarnation is None else self._incarnations[incarnation]

    def unfenced(self) -> list[int]:
        """Returns the incarnations that are not fenced, in order: at most one for each worker name."""
        return sorted(self._unfenced_by_name.values())

    def names_since(self, log_time_ms: int) -> frozenset[str]:
        """Returns the names of workers with an incarnation that is not fenced and was active at that log time or later."""
        unfenced = [self._incarnations[incarnation] for incarnation in self._unfenced_by_name.values()]
        return frozenset([state.name for state in unfenced if state.active_at_ms >= log_time_ms])

    def active_since(self, log_time_ms: int) -> list[int]:
        """Returns the incarnations that are not fenced and were active at that log time or later."""
        return [
            incarnation for incarnation in self._unfenced_by_name.values() if self._incarnations[incarnation].active_at_ms >= log_time_ms
        ]

    def _fence(self, incarnation: int) -> IncarnationState:
        state = self._incarnations[incarnation]
        fenced = IncarnationState(incarnation, state.name, state.nonce, state.sequence_last, True, state.active_at_ms, state.format_version)
        self._put(fenced)
        return fenced

    def _put(self, state: IncarnationState) -> None:
        self._incarnations[state.incarnation] = state
        self.changed[state.incarnation] = state
