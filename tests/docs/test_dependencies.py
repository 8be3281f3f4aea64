"""Tests that `docs/dependencies.md` lists the direct dependencies and the releases that the lock pins."""

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sources import ROOT, statements, trees

EXTRAS = {
    "ordering": (),
    "payload": (),
    "joiner": (),
    "notary": ("fast", "traces", "s3", "parquet"),
    "spark_join": ("spark",),
    "deploy": ("dev",),
    "loadtest": ("dev",),
    "tests": ("dev",),
}
"""The extras with which each package runs, besides the dependencies of all."""
GENERATED = "openapi_client"
"""The client that a test generates from the OpenAPI document."""
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def listed() -> dict[str, str]:
    """Returns the releases of the page, by package."""
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (\S+) \|(?: [^|\s][^|]*\|){3}$", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE
    )
    assert len(rows) == len(dict(rows)), "a package has two rows"
    return dict(rows)


def wanted() -> list[Requirement]:
    """Returns the direct dependencies of `pyproject.toml`, its extras included."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(each) for group in (project["dependencies"], *project["optional-dependencies"].values()) for each in group]


def declared(package: str) -> set[str]:
    """Returns the distributions that a package may import."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in EXTRAS[package])]
    return {canonicalize_name(Requirement(each).name) for group in groups for each in group}


def imported(package: str) -> set[str]:
    """Returns the top-level modules of others that a package imports, at its start or later."""
    modules = {name.partition(".")[0] for _, module in trees(package) for name in _imports(module)}
    return modules - sys.stdlib_module_names - EXTRAS.keys() - {GENERATED}


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module


@cache
def providers() -> dict[str, list[str]]:
    """Returns the installed distributions of each top-level module."""
    return dict(packages_distributions())


def pins() -> set[tuple[str, str]]:
    """Returns the names and releases of all lock files."""
    return {pin for file in (ROOT / "requirements").glob("*.txt") for pin in _PIN.findall(file.read_text())}


def test_each_direct_dependency_has_a_row() -> None:
    """The page has a complete row for each direct dependency, and for no other package."""
    assert sorted(listed()) == sorted({each.name for each in wanted()})


@pytest.mark.parametrize("package", EXTRAS)
def test_each_import_is_declared(package: str) -> None:
    """Each library that a package imports is a dependency, or in an extra with which the package runs: none comes by another's grace."""
    may = declared(package)
    modules = imported(package)
    assert modules
    assert [each for each in sorted(modules) if may.isdisjoint(map(canonicalize_name, providers().get(each, [])))] == []


def test_releases_are_those_of_the_lock() -> None:
    """Each release on the page is the one in every lock file that has the package."""
    found = listed()
    assert sorted((name, release) for name, release in pins() if name in found) == sorted(found.items())


def test_the_lock_satisfies_pyproject() -> None:
    """The lock satisfies `pyproject.toml`: otherwise `make lock` is due."""
    releases = dict(pins())
    assert len(releases) > 50
    assert [each for each in wanted() if each.name not in releases or not each.specifier.contains(releases[each.name])] == []


def test_hooks_run_programs_of_the_lock() -> None:
    """Every hook before a commit runs a program of `.venv` that the lock provides, and none is fetched."""
    hooks = [hook for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"] for hook in repo["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    programs = {shlex.split(hook["entry"])[0] for hook in hooks}
    assert programs == {f".venv/bin/{name}" for name in ("ruff", "codespell", "mypy", "python")}
    assert {"ruff", "codespell"} <= dict(pins()).keys()
