"""Prints pip's constraints for the lowest releases that `pyproject.toml` allows of what users install: `python -m tests.lowest`."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

FOR_USERS = ("fast", "traces", "s3", "parquet", "spark")
"""The extras with packages that run with a notary; those of `dev` and `java` are tools."""


def lowest(pyproject: Path) -> list[str]:
    """Returns `name==release` for each package that a lower bound or a pin names."""
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in FOR_USERS)]
    requirements = [Requirement(each) for group in groups for each in group]
    return sorted({f"{each.name}=={bound.version}" for each in requirements for bound in each.specifier if bound.operator in (">=", "==")})


if __name__ == "__main__":
    print("\n".join(lowest(Path(__file__).parents[1] / "pyproject.toml")))
