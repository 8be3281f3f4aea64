"""Counts the openings and words of `words.toml`, and long sentences, in each package: `python -m tests.docs.words` lowers their ceilings.

| files | openings and long sentences | words |
|---|---|---|
| Python | docstrings and comments | the complete text |
| Markdown | prose, headings, list items and table cells, without blocks of code; no sentences of the changelog | the same |
| YAML, TOML, properties, shell, make, containers | comments | the complete text |
| jinja | comments | the complete text |
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.sources import ROOT, statements

LIST = Path(__file__).with_name("words.toml")
PACKAGES = ("ordering", "payload", "joiner", "notary", "loadtest", "spark_join", "deploy", "tests", "docs", "project")
PROJECT = ("Makefile", "pyproject.toml", ".pre-commit-config.yaml", ".ci/*", "requirements/*.in")
"""The files of `project`: the project's own settings and commands."""
SENTENCE_WORDS_MAX = 30
_SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".properties", ".sh", ".jinja"}
_NAMES = {"Containerfile"}

_LITERAL_OR_COMMENT = re.compile(
    r"""(\"\"\"|''')(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)""", re.DOTALL
)  # ten times as fast as `tokenize`
_COMMENTS = re.compile(r"(?:^[ \t]*#.*\n?)+|(?<=\s)#+ .*", re.MULTILINE)
"""Comment lines that follow each other, or the comment at the end of a line: of a file that is neither Python nor Markdown."""
_JINJA_COMMENT = re.compile(r"\{#(.*?)#\}", re.DOTALL)
_SENTENCE_END = re.compile(r"[.!?][*_\"')]*\s+")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


class Counts(NamedTuple):
    """The numbers of openings, of words and of long sentences: of a file or package."""

    openings: int
    words: int
    sentences: int


def read_list() -> tuple[list[str], list[str], dict[str, Counts]]:
    """Returns the openings, the words, and the ceilings by package."""
    read = tomllib.loads(LIST.read_text())
    return read["openings"], read["words"], {package: Counts(*ceiling) for package, ceiling in read["ceilings"].items()}


def files(package: str) -> Iterator[Path]:
    """Yields the files of a package with text for people; `docs` has the pages of the project's folder too."""
    if package == "project":
        for pattern in PROJECT:
            yield from ROOT.glob(pattern)
    if package == "docs":
        yield from ROOT.glob("*.md")
    for file in (ROOT / package).rglob("*"):
        if (file.suffix in _SUFFIXES or file.name in _NAMES) and file != LIST:
            yield file


def texts(file: Path) -> Iterator[str]:
    """Yields the texts of a file, each with sentences: docstrings and comments, paragraphs and cells of Markdown."""
    source = file.read_text()
    if file.suffix == ".md":
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)", _CODE_BLOCK.sub("", source)):
            yield from paragraph.split(" | ")
        return
    if file.suffix == ".jinja":
        yield from _JINJA_COMMENT.findall(source)
        return
    if file.suffix != ".py":
        for found in _COMMENTS.finditer(source):
            yield re.sub(r"^[ \t]*#+ ?", "", found[0], flags=re.MULTILINE)
        return
    for node in statements(ast.parse(source)):
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
    prose = _CODE_BLOCK.sub("", file.read_text()) if file.suffix == ".md" else file.read_text()
    found = list(texts(file))
    return Counts(sum(len(begins.findall(text)) for text in found), len(listed.findall(prose)), len(long_sentences(file, found)))


def long_sentences(file: Path, found: Iterable[str]) -> list[tuple[int, str]]:
    """Returns the sentences of more than `SENTENCE_WORDS_MAX` words in the texts of a file, each with that number, longest first."""
    if file.name == "CHANGELOG.md":
        return []
    sentences = (sentence for text in found for sentence in _SENTENCE_END.split(text))
    counted = ((sum(any(map(str.isalnum, word)) for word in sentence.split()), " ".join(sentence.split())) for sentence in sentences)
    return sorted((each for each in counted if each[0] > SENTENCE_WORDS_MAX), reverse=True)


@cache
def count_all(package: str) -> dict[Path, Counts]:
    """Returns the counts of each file of a package."""
    openings, words, _ = read_list()
    return {file: count(file, openings, words) for file in files(package)}


def total(counted: dict[Path, Counts]) -> Counts:
    """Returns the sums over all files."""
    return Counts(*(sum(numbers) for numbers in zip(*counted.values(), strict=True)))


def worst(counted: dict[Path, Counts], kind: str) -> str:
    """Returns the files with the highest counts of a kind, as lines of text."""
    found = Counter({str(file.relative_to(ROOT)): getattr(each, kind) for file, each in counted.items()})
    return "\n".join(f"  {number:4} {file}" for file, number in found.most_common(5) if number)


def main() -> None:
    """Write the present counts as ceilings. Without `--extend` no ceiling rises."""
    _, _, before = read_list()
    rows = []
    for package in PACKAGES:
        now = total(count_all(package))
        if package in before and "--extend" not in sys.argv:
            now = Counts(*map(min, now, before[package]))
        rows.append(f"{package} = {list(now)}\n")
    head = LIST.read_text().partition("[ceilings]\n")[0]
    LIST.write_text(head + "[ceilings]\n# package = [openings, words, sentences]\n" + "".join(rows))


if __name__ == "__main__":
    main()
