"""A working directory with planted modules, one under each name that Python or a library may import."""

import sys
from collections.abc import Collection
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ALL = frozenset(
    name
    for name in (*sys.stdlib_module_names, *packages_distributions(), "uvloop", "orjson", "sitecustomize", "notary", "ordering", "loadtest")
    if name not in sys.builtin_module_names and name.isidentifier()
)


class Planted:
    """A directory of planted modules. Each records its import, and ends its importer."""

    def __init__(self, folder: Path, names: Collection[str] = ALL) -> None:
        folder.mkdir()
        self.folder = folder
        self._noted = folder.with_name(f"{folder.name}-imported")
        for name in names:
            note = f"with open({str(self._noted)!r}, 'a') as noted: noted.write({name + chr(10)!r})\n"
            (folder / f"{name}.py").write_text(f"{note}raise SystemExit('a planted module was imported: {name}')\n")

    @property
    def imported(self) -> list[str]:
        """The planted modules that some process has imported."""
        return sorted(set(self._noted.read_text().split())) if self._noted.exists() else []

    def stand_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it the working directory of this process, and so of all processes that it starts."""
        monkeypatch.chdir(self.folder)
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
