"""Counts the openings and words of `words.toml` in each package, and lowers their ceilings: `python -m tests.docs.words`.

| what is read | openings | words |
|---|---|---|
| Python | docstrings and comments | the complete text |
| Markdown | prose, headings, list items and table cells, without blocks of code | the same |
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("words.toml")
PACKAGES = ("ordering", "payload", "joiner", "notary", "loadtest", "spark_join", "deploy", "tests", "docs")

_LITERAL_OR_COMMENT = re.compile(
    r"""(\"\"\"|''')(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)""", re.DOTALL
)  # ten times as fast as `tokenize`
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Counts(NamedTuple):
    """The numbers of openings and of words: of a file or package."""

    openings: int
    words: int


def read_list() -> tuple[list[str], list[str], dict[str, Counts]]:
    """Returns the openings, the words, and the ceilings by package."""
    read = tomllib.loads(LIST.read_text())
    return read["openings"], read["words"], {package: Counts(*ceiling) for package, ceiling in read["ceilings"].items()}


def files(package: str) -> Iterator[Path]:
    """Yields the Python and Markdown files of a package; `docs` has the pages of the project's folder too."""
    if package == "docs":
        yield from ROOT.glob("*.md")
    for file in (ROOT / package).rglob("*"):
        if file.suffix in (".py", ".md"):
            yield file


def texts(file: Path) -> Iterator[str]:
    """Yields the texts of a file, each with sentences: docstrings and comments of Python, paragraphs and cells of Markdown."""
    source = file.read_text()
    if file.suffix == ".md":
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)", _CODE_BLOCK.sub("", source)):
            yield from paragraph.split(" | ")
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from re.split(r"\n\s*\n|\n(?=\s*[-*|] ?)| \| ", node.value.value)
    last, line, at, comment = 0, 1, 0, ""
    for found in _LITERAL_OR_COMMENT.finditer(source):
        if found["comment"] is None:
            continue
        line, at = line + source.count("\n", at, found.start()), found.start()
        if line != last + 1:
            yield comment
            comment = ""
        comment += found[0].lstrip("#: ") + " "
        last = line
    yield comment


def count(file: Path, openings: list[str], words: list[str]) -> Counts:
    """Returns the counts of one file."""
    begins = re.compile(rf"(?:^[\s|#>*`-]*(?:\d+\. )?|[.!?][*_\"')]*\s+)(?:{'|'.join(openings)})\b")
    listed = re.compile(rf"(?<![a-z])(?:{'|'.join(word.replace(' ', chr(92) + 's+') for word in words)})(?![a-z])", re.IGNORECASE)
    prose = file.read_text() if file.suffix == ".py" else _CODE_BLOCK.sub("", file.read_text())
    return Counts(sum(len(begins.findall(text)) for text in texts(file)), len(listed.findall(prose)))


@cache
def count_all(package: str) -> dict[Path, Counts]:
    """Returns the counts of each file of a package."""
    openings, words, _ = read_list()
    return {file: count(file, openings, words) for file in files(package)}


def total(counted: dict[Path, Counts]) -> Counts:
    """Returns the sums over all files."""
    return Counts(sum(each.openings for each in counted.values()), sum(each.words for each in counted.values()))


def worst(counted: dict[Path, Counts], kind: str, most: int = 5) -> str:
    """Returns the files with the highest counts of a kind, as lines of text."""
    found = Counter({str(file.relative_to(ROOT)): getattr(each, kind) for file, each in counted.items()})
    return "\n".join(f"  {number:4} {file}" for file, number in found.most_common(most) if number)


def main() -> None:
    """Write the present counts as ceilings. Without `--extend` no ceiling rises."""
    _, _, before = read_list()
    rows = []
    for package in PACKAGES:
        now = total(count_all(package))
        if package in before and "--extend" not in sys.argv:
            now = Counts(*map(min, now, before[package]))
        rows.append(f"{package} = [{now.openings}, {now.words}]\n")
    head = LIST.read_text().partition("[ceilings]\n")[0]
    LIST.write_text(head + "[ceilings]\n# package = [openings, words]\n" + "".join(rows))


if __name__ == "__main__":
    main()
