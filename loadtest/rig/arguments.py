"""Types of command-line arguments: numbers within their limits, so that a mistyped option measures nothing. Pure."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from typing import TypeVar

from notary.http.settings import ACCEPTOR_PROCESSES_MAX

_Number = TypeVar("_Number", int, float)


def above_zero(text: str) -> float:
    """Parses a finite number above 0. Raises `ArgumentTypeError`."""
    return _parsed(text, float, lambda number: 0 < number < inf, "a number above 0")


def zero_or_more(text: str) -> float:
    """Parses a finite number that is 0 or more. Raises `ArgumentTypeError`."""
    return _parsed(text, float, lambda number: 0 <= number < inf, "a number from 0 on")


def count(text: str) -> int:
    """Parses an integer above 0. Raises `ArgumentTypeError`."""
    return _parsed(text, int, lambda number: number > 0, "an integer above 0")


def acceptor_processes(text: str) -> int:
    """Parses a number of acceptor processes. Raises `ArgumentTypeError`."""
    most = ACCEPTOR_PROCESSES_MAX
    return _parsed(text, int, lambda number: 0 <= number <= most, f"an integer from 0 to {most}")


def _parsed(text: str, kind: type[_Number], is_allowed: Callable[[_Number], bool], described: str) -> _Number:
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)  # allowed nowhere
    if not is_allowed(number):
        raise ArgumentTypeError(f"{text!r} is not {described}")
    return number
