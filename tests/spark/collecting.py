"""How many rows come to the driver, where nothing that grows with a log may."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.classic.dataframe import DataFrame


@contextmanager
def brought_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows of each collecting within the block; of those that are read one by one, as many as were."""
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
