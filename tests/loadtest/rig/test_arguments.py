"""Tests that numbers on the command line are within their limits."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable

import pytest

from loadtest.bench.figure import add_arguments
from loadtest.rig.arguments import above_zero, acceptor_processes, count, zero_or_more


@pytest.mark.parametrize(
    ("parse", "text", "number"),
    [
        (above_zero, "0.5", 0.5),
        (zero_or_more, "0", 0.0),
        (zero_or_more, "4", 4.0),
        (count, "12", 12),
        (acceptor_processes, "0", 0),
        (acceptor_processes, "64", 64),
    ],
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
        (acceptor_processes, ["-1", "65", "1000000", "1.5", "", "n"]),
    ],
)
def test_another_text_is_an_error(parse: Callable[[str], float], texts: list[str]) -> None:
    """A number beyond the limits, and a text that is no number, are errors that quote the text."""
    for text in texts:
        with pytest.raises(ArgumentTypeError, match=f"^'{text}' is "):
            parse(text)


@pytest.mark.parametrize("text", ["-1", "1000000"])
def test_an_impossible_number_of_processes_starts_no_notary(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends before it starts brokers, and its error quotes the number."""
    parser = ArgumentParser()
    add_arguments(parser, "-")
    with pytest.raises(SystemExit):
        parser.parse_args([f"--acceptor-processes={text}"])
    assert f"argument --acceptor-processes: '{text}' is not an integer from 0 to 64" in capsys.readouterr().err
