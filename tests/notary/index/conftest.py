"""A new index, and one that many tests copy and damage."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from notary.index import Index
from notary.index.store import FAMILIES
from tests.notary.index.test_index import STEPS, _open, _step, into_tables


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The folder of a new index."""
    return tmp_path / "index"


@pytest.fixture
def index(directory: Path) -> Iterator[Index]:
    """A new index there, open."""
    opened = _open(directory)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed index of 40 steps, with all rows in table files."""
    directory = tmp_path_factory.mktemp("complete") / "index"
    index = _open(directory)
    for step in range(STEPS):
        index.apply(_step(step))
    into_tables(index, FAMILIES)
    index.close()
    return directory


@pytest.fixture
def copied(complete: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(complete, tmp_path / "index"))
