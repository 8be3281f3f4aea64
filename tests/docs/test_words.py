"""Tests that sentences get plainer: no package has more of the openings and words in `words.toml` than its ceiling."""

from pathlib import Path

import pytest

from tests.docs.words import PACKAGES, Counts, count, count_all, read_list, total, worst

SLACK = 5
LOWER = "run `.venv/bin/python -m tests.docs.words`, which lowers the ceilings"


@pytest.mark.parametrize("kind", Counts._fields)
@pytest.mark.parametrize("package", PACKAGES)
def test_counts_stay_below_the_ceiling(package: str, kind: str) -> None:
    """The count of a package is at most its ceiling, and a ceiling follows a count that falls."""
    counted = count_all(package)
    now, ceiling = getattr(total(counted), kind), getattr(read_list()[2][package], kind)
    assert now <= ceiling, f"{now} {kind} of words.toml in {package}, {ceiling} before. Write plainer; most are in\n{worst(counted, kind)}"
    assert now >= ceiling - SLACK, f"{now} {kind} of words.toml in {package} are left of {ceiling}: {LOWER}"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""What it is.\n\nHow it works. Who asks.\n"""\n', (3, 0)),
        ("a.py", '"""The result of it, and how it is told."""\n', (0, 1)),
        ("a.py", "x = 1  # Of all\nwhat_is_told = 1\n", (1, 1)),
        ("a.py", "# The rest\n# of it\n# Of them\n", (0, 0)),
        ("a.md", "## What it does\n\n- Who asks.\n- the second\n  opinion\n\n| What | is |\n| a | Of it |\n", (4, 1)),
        ("a.md", "```\nWhat is told\n```\nThe rest. So many.\n", (1, 0)),
        ("a.md", "Whatever is foretold, a teller of the office.\n", (0, 0)),
    ],
)
def test_openings_and_words_are_counted(tmp_path: Path, name: str, text: str, expected: tuple[int, int]) -> None:
    """Openings count at the start of a text or sentence, words anywhere; longer words and blocks of code do not count."""
    openings, words, _ = read_list()
    (tmp_path / name).write_text(text)
    assert count(tmp_path / name, openings, words) == expected
