"""The incarnations of all workers, as the ordering topic defines them (R2, R5).

An incarnation begins with a `register` record, and its number is the ordinal of that record among all that counted. Its state (`Life` in
the code) is its last sequence counted, and whether it is fenced:

| record | counts if | then |
|---|---|---|
| register(nonce, name) | the nonce is new | an incarnation begins; every earlier one of that name is fenced |
| fence(i, last) | incarnation i is not fenced and `last` is its last sequence counted | incarnation i is fenced |
| retire(i) | incarnation i is not fenced | incarnation i is fenced |
| entry(i, s) | incarnation i is not fenced and s is higher than its last sequence counted | s is its last sequence counted |

Nothing else changes this state, so it is a function of the log. Sequences start at 1; 0 means that none was counted.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

SEQUENCE_NONE: Final = 0


class Life(msgspec.Struct, frozen=True, gc=False):
    """The state of one incarnation. `active_at_ms` is the log time at which it registered or last had an entry counted."""

    incarnation: int
    name: str
    nonce: bytes
    sequence_last: int
    fenced: bool
    active_at_ms: int
    format_version: int = 1  # the highest that its software reads


class Lives:
    """All incarnations so far. Made from those that the index holds; `changed` collects those to persist with the step."""

    def __init__(self, lives: Iterable[Life] = ()) -> None:
        self._lives: dict[int, Life] = {life.incarnation: life for life in lives}
        self._nonces: set[bytes] = {life.nonce for life in self._lives.values()}
        self._unfenced_by_name: dict[str, int] = {life.name: life.incarnation for life in self._lives.values() if not life.fenced}
        self.changed: dict[int, Life] = {}

    def get(self, incarnation: int) -> Life | None:
        """Returns the state of that incarnation, None if it has not registered yet."""
        return self._lives.get(incarnation)

    def counts(self, incarnation: int, sequence: int) -> bool:
        """Returns True if an entry of that batch name counts at the head now (R2)."""
        life = self._lives.get(incarnation)
        return life is not None and not life.fenced and sequence > life.sequence_last

    def is_past(self, incarnation: int, sequence: int) -> bool:
        """Returns True if an entry of that batch name can never count any more; False before the incarnation has registered (R5)."""
        life = self._lives.get(incarnation)
        return life is not None and (life.fenced or sequence <= life.sequence_last)

    def count(self, incarnation: int, sequence: int, log_time_ms: int) -> None:
        """Record that an entry counted."""
        life = self._lives[incarnation]
        assert not life.fenced
        assert sequence > life.sequence_last
        self._put(Life(incarnation, life.name, life.nonce, sequence, False, log_time_ms, life.format_version))

    def register(self, nonce: bytes, name: str, log_time_ms: int, format_version: int = 1) -> tuple[Life, Life | None] | None:
        """Apply a register record; returns (the new incarnation, the one it fenced or None), or None when the nonce is known already."""
        if nonce in self._nonces:
            return None
        # Every earlier incarnation of the name but the last was fenced when its successor registered.
        before = self._unfenced_by_name.get(name)
        fenced = self._fence(before) if before is not None else None
        life = Life(len(self._lives) + 1, name, nonce, SEQUENCE_NONE, False, log_time_ms, format_version)
        self._nonces.add(nonce)
        self._unfenced_by_name[name] = life.incarnation
        self._put(life)
        return life, fenced

    def fence(self, incarnation: int, sequence_last: int) -> Life | None:
        """Apply a fence record; returns the incarnation that it fenced, None when it does not count."""
        life = self._lives.get(incarnation)
        if life is None or life.fenced or life.sequence_last != sequence_last:
            return None
        del self._unfenced_by_name[life.name]
        return self._fence(incarnation)

    def retire(self, incarnation: int) -> Life | None:
        """Apply a retire record; returns the incarnation that it ended, None when that was fenced already or has not registered."""
        life = self._lives.get(incarnation)
        return None if life is None else self.fence(incarnation, life.sequence_last)

    def named(self, name: str) -> Life | None:
        """Returns the incarnation of that worker name that is not fenced, None if there is none."""
        incarnation = self._unfenced_by_name.get(name)
        return None if incarnation is None else self._lives[incarnation]

    def names_since(self, log_time_ms: int) -> frozenset[str]:
        """Returns the names of workers with an incarnation that is not fenced and was active at that log time or later."""
        unfenced = [self._lives[incarnation] for incarnation in self._unfenced_by_name.values()]
        return frozenset([life.name for life in unfenced if life.active_at_ms >= log_time_ms])

    def active_since(self, log_time_ms: int) -> list[int]:
        """Returns the incarnations that are not fenced and were active at that log time or later."""
        return [incarnation for incarnation in self._unfenced_by_name.values() if self._lives[incarnation].active_at_ms >= log_time_ms]

    def _fence(self, incarnation: int) -> Life:
        life = self._lives[incarnation]
        fenced = Life(incarnation, life.name, life.nonce, life.sequence_last, True, life.active_at_ms, life.format_version)
        self._put(fenced)
        return fenced

    def _put(self, life: Life) -> None:
        self._lives[life.incarnation] = life
        self.changed[life.incarnation] = life
