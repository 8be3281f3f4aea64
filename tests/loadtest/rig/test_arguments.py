"""Tests that numbers on the command line are within their limits."""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from loadtest.bench.__main__ import main as bench
from loadtest.bench.figures.long import main as long
from loadtest.peers.__main__ import main as peers
from loadtest.rig.arguments import above_zero, acceptor_processes, count, zero_or_more


@pytest.mark.parametrize(
    ("parse", "right", "wrong"),
    [
        (above_zero, {"0.5": 0.5}, ["0", "-5", "nan", "inf", "", "ten"]),
        (zero_or_more, {"0": 0, "4": 4}, ["-1", "nan", "-inf", "ten"]),
        (count, {"12": 12}, ["0", "-1", "1.5", "", "n"]),
        (acceptor_processes, {"0": 0, "64": 64}, ["-1", "65", "1000000", "1.5", "", "n"]),
    ],
)
def test_numbers_have_limits(parse: Callable[[str], float], right: dict[str, float], wrong: list[str]) -> None:
    """A number within its limits is parsed; a number beyond them, and a text that is no number, are errors that quote the text."""
    assert {text: parse(text) for text in right} == right
    for text in wrong:
        with pytest.raises(ArgumentTypeError, match=f"^'{text}' is "):
            parse(text)


@pytest.mark.parametrize(
    ("main", "option", "value"),
    [
        (bench, "--only", "everything"),
        (bench, "--seconds", "0"),
        (peers, "--seconds", "0"),
        (peers, "--rounds", "0"),
        (long, "--acceptor-processes", "1000000"),
    ],
)
def test_an_impossible_value_measures_nothing(
    main: Callable[[list[str]], int], option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 2 before it starts brokers, and its error quotes the value."""
    with pytest.raises(SystemExit) as stopped:
        main([f"{option}={value}"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: " in error
    assert f"'{value}'" in error
