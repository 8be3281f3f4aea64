"""Tests the progress of a run: a bar on a terminal, lines elsewhere."""

import io

from rich.console import Console

from loadtest.rig.progress import Bar


def test_a_bar_on_a_terminal_is_one_line() -> None:
    """On a terminal the bar is one overwritten line with its progress, and it is erased at the end."""
    out = io.StringIO()
    bar = Bar(Console(file=out, force_terminal=True, width=60))
    bar.show(0.25, "first")
    bar.show(0.5, "second [50]", "details")
    bar.end()
    written = out.getvalue()
    assert " 25%" in written or " 50%" in written
    assert "second [50], details" in written
    assert written.rstrip().endswith("\x1b[2K"), "the last line is erased"


def test_without_a_terminal_there_are_lines_and_not_too_many() -> None:
    """Without a terminal there is a line when the text changes, and otherwise one in ten seconds."""
    out, times = io.StringIO(), iter([0.0, 1.0, 2.0, 12.0, 13.0])
    bar = Bar(Console(file=out), lambda: next(times))
    for share, text in ((0.1, "a"), (0.2, "a"), (0.3, "a"), (0.4, "b")):
        bar.show(share, text)
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["a,", "a,", "b,"]
