"""Types of command-line arguments: numbers within their limits, so that a mistyped option measures nothing. Pure."""

from argparse import ArgumentTypeError
from math import isfinite

from notary.http.settings import ACCEPTOR_PROCESSES_MAX


def above_zero(text: str) -> float:
    """Parses a finite number above 0. Raises `ArgumentTypeError`."""
    number = _number(text)
    if number <= 0:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def zero_or_more(text: str) -> float:
    """Parses a finite number that is 0 or more. Raises `ArgumentTypeError`."""
    number = _number(text)
    if number < 0:
        raise ArgumentTypeError(f"{text!r} is less than 0")
    return number


def count(text: str) -> int:
    """Parses an integer above 0. Raises `ArgumentTypeError`."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not an integer above 0")
    return int(text)


def acceptor_processes(text: str) -> int:
    """Parses a number of acceptor processes. Raises `ArgumentTypeError`."""
    if not text.isdecimal() or int(text) > ACCEPTOR_PROCESSES_MAX:
        raise ArgumentTypeError(f"{text!r} is not an integer from 0 to {ACCEPTOR_PROCESSES_MAX}")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise ArgumentTypeError(f"{text!r} is not a number")
    return number
