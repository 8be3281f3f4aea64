"""The syntax trees of files in Python, for tests that read code."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def trees(*packages: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yields (file, syntax tree) for every file of packages. None is kept: each garbage collection would visit all of their nodes."""
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            yield file, ast.parse(file.read_text())


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yields the statements below a node, with those inside of them: a tenth of the nodes that `ast.walk` visits."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, block, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)
