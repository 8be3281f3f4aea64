"""Latencies as HdrHistograms, percentiles, and errors of a load. Pure.

A histogram has a fixed size for any number of values, and histograms of several processes can be added. A percentile is at most 0.1 % above
the true one.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec
from hdrh.histogram import HdrHistogram

_US_MAX: Final = 3_600_000_000
"""One hour; a longer duration counts as one hour."""
_DIGITS: Final = 3
FAILURES_LISTED: Final = 5


class Percentiles(msgspec.Struct, frozen=True):
    """The percentiles of some values; all are 0 when there are none."""

    p50: float = 0.0
    p99: float = 0.0
    count: int = 0


class Latencies:
    """A histogram of durations in milliseconds."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, _US_MAX, _DIGITS)

    def add(self, ms: float) -> None:
        """Add one duration."""
        self._histogram.record_value(min(max(round(ms * 1_000), 1), _US_MAX))

    def add_all(self, other: "Latencies") -> None:
        """Add all durations of another histogram."""
        self._histogram.add(other._histogram)

    @property
    def count(self) -> int:
        """The number of durations."""
        return int(self._histogram.get_total_count())

    def percentile_ms(self, percent: float) -> float:
        """Returns the duration that `percent` percent did not exceed; 0 when there are none."""
        if not self.count:
            return 0.0
        # HdrHistogram rounds the rank to the nearest one: of 60 values it would report the 59th for 99 percent.
        rank = ceil(self.count * percent / 100)
        return float(self._histogram.get_value_at_percentile(100 * rank / self.count)) / 1_000

    def percentiles(self) -> Percentiles:
        """Returns the percentiles that the results of a load have, in milliseconds."""
        return Percentiles(self.percentile_ms(50), self.percentile_ms(99), self.count)

    def encode(self) -> str:
        """Returns the histogram as text, in the form that HdrHistograms of all languages have."""
        return bytes(self._histogram.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "Latencies":
        """Returns the histogram that `encode` wrote."""
        made = cls()
        made._histogram = HdrHistogram.decode(text)
        return made


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the least value that `percent` percent of a few values do not exceed, exactly; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def percentiles_of(values: Sequence[float]) -> Percentiles:
    """Returns the exact percentiles of a few values of any unit."""
    return Percentiles(percentile(values, 50), percentile(values, 99), len(values))


class Failures:
    """Errors of a load: their number, and descriptions of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, text: str) -> None:
        """Count one error."""
        self.count += 1
        if len(self.first) < FAILURES_LISTED:
            self.first.append(text)
