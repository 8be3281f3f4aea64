"""Tests that `docs/dependencies.md` lists the direct dependencies and the releases that the lock pins."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
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


def pins() -> set[tuple[str, str]]:
    """Returns the names and releases of all lock files."""
    return {pin for file in (ROOT / "requirements").glob("*.txt") for pin in _PIN.findall(file.read_text())}


def test_each_direct_dependency_has_a_row() -> None:
    """The page has a complete row for each direct dependency, and for no other package."""
    assert sorted(listed()) == sorted({each.name for each in wanted()})


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
