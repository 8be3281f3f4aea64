"""The positions that all processes saw: one transaction each, no gap, and log time that never falls. Pure.

They are kept in pages of two plain arrays, 16 bytes a position: a soak of ten million decisions takes 160 MB, in the master alone.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from loadtest.openloop.checker import HEARD, VIOLATIONS_TOLD

PAGE: Final = 4_096


class _Page:
    __slots__ = ("log_times", "marks")

    def __init__(self) -> None:
        self.marks = bytearray(8 * PAGE)
        self.log_times = array("q", bytes(8 * PAGE))


_NONE: Final = bytes(8)


class Ledger:
    """Checks the positions of one run. `position_first`: the number of decisions before the run."""

    def __init__(self, position_first: int) -> None:
        self._first = position_first
        self._pages: dict[int, _Page] = {}
        self.heard = 0
        """The number of positions seen."""
        self.violations: list[str] = []

    def hear(self, records: bytes) -> None:
        """Add the `HEARD` records of one process."""
        pages = self._pages
        for position, mark, log_time in HEARD.iter_unpack(records):
            number, at = divmod(position, PAGE)
            page = pages.get(number)
            if page is None:
                page = pages[number] = _Page()
            there = page.marks[8 * at : 8 * at + 8]
            if there == _NONE:
                page.marks[8 * at : 8 * at + 8] = mark
                page.log_times[at] = log_time
                self.heard += 1
                if position < self._first:
                    self._violated(f"{mark.hex()}... has position {position}, from before the run: was it sent with this --seed before?")
            elif there != mark or page.log_times[at] != log_time:
                self._violated(f"position {position} was told of {there.hex()}... and of {mark.hex()}..., or with two log times")

    def close(self, *, alone: bool) -> None:
        """Check all positions at the end: log times, and gaps if no other client sent requests (`alone`)."""
        last, log_time_highest = self._first - 1, -(2**63)
        for position, log_time in self._in_order():
            if alone and position != last + 1 and position >= self._first:
                self._violated(f"nobody was told of the positions {last + 1} to {position - 1}: gaps, or somebody else was at work too")
            if log_time < log_time_highest:
                self._violated(f"at position {position} log time falls to {log_time}, it was {log_time_highest}")
            last, log_time_highest = max(last, position), max(log_time_highest, log_time)

    def _in_order(self) -> Iterator[tuple[int, int]]:
        for number in sorted(self._pages):
            page = self._pages[number]
            for at in range(PAGE):
                if page.marks[8 * at : 8 * at + 8] != _NONE:
                    yield number * PAGE + at, page.log_times[at]

    def _violated(self, text: str) -> None:
        if len(self.violations) < VIOLATIONS_TOLD:
            self.violations.append(text)
