"""Proposals that are due: fills for holes that are old enough (R4), and fences for silent incarnations (R5). Pure.

The clock decides only when to *propose*. The log decides whether a proposal takes effect.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from joiner.incarnations import Incarnations
from joiner.payloads import Payloads
from joiner.queued import Queued
from joiner.ready import FenceWanted, FillWanted
from joiner.settings import JoinerLimits

FILL_SCANS = 8
"""The number of scans per hole_timeout for further holes, while the head is an old hole."""


class DueProposals:
    """The times of the proposals of one joiner. `now_ms` is the time of a monotonic clock."""

    def __init__(self, limits: JoinerLimits) -> None:
        self._limits = limits
        self.fills_due_ms = 0
        """The time of the next scan for holes; the first is a hole_timeout after the head became a hole. Negative: not set yet."""
        self.fills_proposed_ms: dict[tuple[int, int], int] = {}
        """By batch name: the time of the last proposal."""
        self.silent: dict[int, tuple[int, int]] = {}
        """By silent incarnation with a payload in memory: its last counted sequence, and the time when it was first found silent or when a
        fence was last proposed."""

    def forget(self) -> None:
        """Drop all times: the joiner gets all records again."""
        self.fills_due_ms = 0
        self.fills_proposed_ms.clear()
        self.silent.clear()

    def head_changed(self) -> None:
        """Begin a new hole_timeout: the head is another hole, or no hole."""
        self.fills_due_ms = -1

    def fills(self, queue: Iterable[Queued], now_ms: int, fill_for: Callable[[Queued], FillWanted | None]) -> Iterator[FillWanted]:
        """Yields fills for the hole at the head once it is old enough, and for later holes that are old enough (R4).

        `fill_for` returns the fill for a record that is a hole.
        """
        limits = self._limits
        if self.fills_due_ms < 0:
            self.fills_due_ms = now_ms + limits.hole_timeout_ms
        if now_ms < self.fills_due_ms:
            return
        # Half a million records may wait here, and a step may come every millisecond. So not every step scans, and a scan covers only the
        # first records. Every hole still gets its turn: the head comes first, and all move up when it is filled.
        self.fills_due_ms = now_ms + limits.hole_timeout_ms // FILL_SCANS
        oldest_ms, left = now_ms - limits.hole_timeout_ms, limits.fills_proposed_max
        # A proposal is repeated only after another timeout: one fill in flight is enough.
        self.fills_proposed_ms = {name: at for name, at in self.fills_proposed_ms.items() if at > oldest_ms}
        for queued in islice(queue, limits.fill_scan_records_max):
            if queued.arrived_ms > oldest_ms or not left:
                break
            if (fill := fill_for(queued)) is not None:
                self.fills_proposed_ms[fill.incarnation, fill.sequence] = now_ms
                left -= 1
                yield fill

    def fences(self, incarnations: Incarnations, payloads: Payloads, log_time_ms: int, now_ms: int) -> Iterator[FenceWanted]:
        """Yields fences for incarnations with payloads here that have been silent while log time advanced by worker_timeout (R5)."""
        limits = self._limits
        silent_since_ms = log_time_ms - limits.worker_timeout_ms
        silent: dict[int, tuple[int, int]] = {}
        for incarnation in incarnations.unfenced():
            state = incarnations.get(incarnation)
            if state is None or state.active_at_ms >= silent_since_ms or not payloads.buffer.size_of(incarnation)[0]:
                continue
            # Log time does not advance while no worker sends. So after a quiet period, the first entry makes every other incarnation look
            # silent. An incarnation whose payload was read just before its entry has hole_timeout to show that it is not silent.
            sequence_last, since_ms = self.silent.get(incarnation, (-1, now_ms))
            if sequence_last != state.sequence_last:
                since_ms = now_ms
            elif now_ms - since_ms >= limits.hole_timeout_ms:
                since_ms = now_ms
                yield FenceWanted(incarnation, state.sequence_last)
            silent[incarnation] = (state.sequence_last, since_ms)
        self.silent = silent
