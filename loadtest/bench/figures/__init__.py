"""figures: the registry. A new figure is a new file of this folder with a tuple `FIGURES`, and nothing else changes.

The bench measures each figure (`program`), its command line lists it, and the page has its tables and its picture (`page`).
"""

from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules

from loadtest.bench.figure import Figure


@lru_cache(maxsize=1)
def all_figures() -> dict[str, Figure]:
    """Returns all figures by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return {figure.name: figure for module in modules for figure in module.FIGURES}
