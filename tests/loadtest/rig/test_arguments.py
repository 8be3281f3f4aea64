"""Tests that numbers on the command line are within their limits."""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from loadtest.rig.arguments import above_zero, count, zero_or_more


@pytest.mark.parametrize(
    ("parse", "text", "number"), [(above_zero, "0.5", 0.5), (zero_or_more, "0", 0.0), (zero_or_more, "4", 4.0), (count, "12", 12)]
)
def test_a_number_within_its_limits(parse: Callable[[str], float], text: str, number: float) -> None:
    """A number within the limits is parsed."""
    assert parse(text) == number


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (above_zero, ["0", "-5", "nan", "inf", "", "ten"]),
        (zero_or_more, ["-1", "nan", "-inf", "ten"]),
        (count, ["0", "-1", "1.5", "", "n"]),
    ],
)
def test_another_text_is_an_error(parse: Callable[[str], float], texts: list[str]) -> None:
    """A number beyond the limits, and a text that is no number, are errors that quote the text."""
    for text in texts:
        with pytest.raises(ArgumentTypeError, match=f"^'{text}' is "):
            parse(text)
