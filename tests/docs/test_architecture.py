"""Tests that `docs/architecture.md` matches the code: the files and symbols that it names exist, and no file of an example is missing."""

import ast
import re
from pathlib import Path

import pytest

from tests.sources import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("ordering", "payload", "joiner", "notary", "spark_join", "deploy", "loadtest")
_FILE = re.compile(rf"\b(?:{'|'.join((*PACKAGES, 'tests', 'docs'))})/[\w/.-]*\w")
_ROW = re.compile(r"^\| `([\w/.]+\.py)` \|(.*?)\| .*\|$", re.MULTILINE)


def changes() -> dict[str, tuple[list[str], dict[str, list[str]]]]:
    """Returns for each common change its examples, and the symbols by file."""
    found = {}
    for section in PAGE.read_text().split("\n### ")[1:]:
        (sentence,) = re.findall(r"^Example: (.+?)\.(?: |$)", section, re.MULTILINE)
        rows: dict[str, list[str]] = {}
        for file, symbols in _ROW.findall(section):
            rows.setdefault(file, []).extend(re.findall(r"`(\w+)`", symbols))
        found[section.partition("\n")[0]] = (re.findall(r"`([^`]+)`", sentence), rows)
    return found


def defined(file: Path) -> set[str]:
    """Returns the names that a module defines: its functions and classes, and all assigned names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_every_file_on_the_page_exists() -> None:
    """Every file and folder on the page exists."""
    named = set(_FILE.findall(PAGE.read_text()))
    assert len(named) > 40
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_the_page_has_the_frequent_changes() -> None:
    """The page has the changes that developers make most often."""
    assert [*changes()] == ["A rejection reason", "A log backend", "A metric", "A setting", "An HTTP call", "A Spark check"]


@pytest.mark.parametrize("change", changes())
def test_each_file_defines_the_symbols_of_its_row(change: str) -> None:
    """Each file in a table defines the symbols of its row."""
    _, rows = changes()[change]
    gone = [(file, symbol) for file, symbols in rows.items() for symbol in symbols if symbol not in defined(ROOT / file)]
    assert not gone, "docs/architecture.md names symbols that these files do not define"


@pytest.mark.parametrize("change", changes())
def test_no_file_is_missing(change: str) -> None:
    """Every module that mentions an example of a change is in its table."""
    examples, rows = changes()[change]
    modules = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    for example in examples:
        mention = {str(file.relative_to(ROOT)) for file in modules if example in file.read_text()}
        assert mention, example
        missing = sorted(mention - rows.keys())
        assert not missing, f"these files mention `{example}` and have no row in docs/architecture.md, {change}"
