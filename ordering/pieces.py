"""Work in pieces, so that an event loop can run other tasks in between. Pure.

A generator does one piece before each `yield`, and returns the result of all of it. A piece takes at most one or two milliseconds.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Pieces: TypeAlias = Generator[int, None, T]
"""A generator of pieces. Each yields an estimate of its duration in microseconds, on one core of a small machine (docs/performance.md)."""


def completed(pieces: Generator[object, None, T]) -> T:
    """Do all pieces without a pause. Returns the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: T = done.value
            return result
