"""Tests that texts get plainer: no package has more openings and words of `words.toml`, or more long sentences, than its ceiling."""

from pathlib import Path

import pytest

from tests.docs.words import PACKAGES, Counts, count, count_all, read_list, total, worst

SLACK = 5
LONG = " and so on" * 10
LOWER = "run `.venv/bin/python -m tests.docs.words`, which lowers the ceilings"


@pytest.mark.parametrize("kind", Counts._fields)
@pytest.mark.parametrize("package", PACKAGES)
def test_counts_stay_below_the_ceiling(package: str, kind: str) -> None:
    """The count of a package is at most its ceiling, and a ceiling follows a count that falls."""
    counted = count_all(package)
    now, ceiling = getattr(total(counted), kind), getattr(read_list()[2][package], kind)
    assert now <= ceiling, (
        f"{now} {kind} in {package}, {ceiling} before (tests/docs/words.toml). Write plainer; most are in\n{worst(counted, kind)}"
    )
    assert now >= ceiling - SLACK, f"{now} {kind} in {package} are left of {ceiling} (tests/docs/words.toml): {LOWER}"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""What it is.\n\nHow it works. Who asks.\n"""\n', (3, 0, 0)),
        ("a.py", '"""The result of it, and how it is told."""\n', (0, 1, 0)),
        ("a.py", "x = 1  # Of all\nwhat_is_told = 1\n", (1, 1, 0)),
        ("a.py", "# The rest\n# of it\n# Of them\n", (0, 0, 0)),
        ("a.md", "## What it does\n\n- Who asks.\n- the second\n  opinion\n\n| What | is |\n| a | Of it |\n", (4, 1, 0)),
        ("a.md", "```\nWhat is told\n```\nThe rest. So many.\n", (1, 0, 0)),
        ("a.md", "Whatever is foretold, a teller of the office.\n", (0, 0, 0)),
        ("a.yaml", "# How it works\nkey: told  # Who asks\n", (2, 1, 0)),
        ("Containerfile", "# The rest\n# of it. What is told\nRUN true\n", (1, 1, 0)),
        ("a.jinja", "{# What it is #}<p>What is told</p>\n", (1, 1, 0)),
        ("a.py", f'"""One sentence{LONG}. Another one."""\n', (0, 0, 1)),
        ("a.md", f"One{LONG}\n\n| a{LONG} | b |\n", (0, 0, 2)),
        ("a.md", f"One{LONG[:-4]}.\n\n```\n{LONG}\n```\n", (0, 0, 0)),
        ("a.toml", f"# A comment{LONG}\nkey = 'a text{LONG}'\n", (0, 0, 1)),
    ],
)
def test_openings_words_and_sentences_are_counted(tmp_path: Path, name: str, text: str, expected: tuple[int, int, int]) -> None:
    """Openings count at the start of a sentence, words anywhere, long sentences once; longer words and blocks of code do not count."""
    openings, words, _ = read_list()
    (tmp_path / name).write_text(text)
    assert count(tmp_path / name, openings, words) == expected
