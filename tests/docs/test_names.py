"""Tests of names: one public class has one name, and the logger is called `logger`."""

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.sources import ROOT, statements, trees

PACKAGES = ("deploy", "joiner", "loadtest", "notary", "ordering", "payload", "spark_join")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for file, module in trees(*PACKAGES):
        yield str(file.relative_to(ROOT)), module


def shared(modules: Iterator[tuple[str, ast.Module]]) -> dict[str, list[str]]:
    """Returns the files of each public class name that two modules define."""
    files: dict[str, list[str]] = defaultdict(list)
    for file, module in modules:
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(file)
    return {name: defined for name, defined in files.items() if len(defined) > 1}


def misnamed(module: ast.Module) -> list[int]:
    """Returns the lines that keep the result of `getLogger` under a name other than `logger`."""
    return [
        node.lineno
        for node in statements(module)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "logging.getLogger"
        and [ast.unparse(target) for target in node.targets] != ["logger"]
    ]


def test_one_class_has_a_name_and_a_logger_is_called_logger() -> None:
    """A public class name stands once in the product, so a search for it finds one thing. `log` is the Log in every module."""
    loggers: dict[str, list[int]] = {}

    def modules() -> Iterator[tuple[str, ast.Module]]:
        for file, module in _modules():
            loggers[file] = misnamed(module)
            yield file, module

    assert shared(modules()) == {}
    assert {file: lines for file, lines in loggers.items() if lines} == {}


def test_a_shared_class_name_is_found() -> None:
    """Two modules that define one public name are reported with both files; private names may repeat."""
    text = "class Batch: ...\nclass _Own: ...\n"
    assert shared(iter([("a.py", ast.parse(text)), ("b.py", ast.parse(text))])) == {"Batch": ["a.py", "b.py"]}


@pytest.mark.parametrize(("text", "lines"), [("log = logging.getLogger('a')", [1]), ("logger = logging.getLogger('a')", [])])
def test_a_misnamed_logger_is_found(text: str, lines: list[int]) -> None:
    """A logger under another name is reported with its line."""
    assert misnamed(ast.parse(text)) == lines
