"""Counts the rows that reach the Spark driver; their number must not grow with the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.classic.dataframe import DataFrame


@contextmanager
def brought_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yields a list of row counts, one per collect within the with block; a local iterator counts the rows that were read from it."""
    counts: list[int] = []
    collect, iterate = DataFrame.collect, DataFrame.toLocalIterator

    def collected(frame: DataFrame) -> Any:
        rows = collect(frame)
        counts.append(len(rows))
        return rows

    def iterated(frame: DataFrame, prefetchPartitions: bool = False) -> Any:  # noqa: N803  # Spark's name for it
        at = len(counts)
        counts.append(0)
        for row in iterate(frame, prefetchPartitions):
            counts[at] += 1
            yield row

    with monkeypatch.context() as patched:
        patched.setattr(DataFrame, "collect", collected)
        patched.setattr(DataFrame, "toLocalIterator", iterated)
        yield counts
