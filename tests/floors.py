"""Compares the coverage of each package with its floor in `pyproject.toml`: `python -m tests.floors coverage.json`."""

import json
import sys
import tomllib
from collections import Counter
from pathlib import Path


def shares(report: Path) -> dict[str, float]:
    """Returns the share of lines in percent that the tests ran, by package, from the report of `coverage json`."""
    lines: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for file, found in json.loads(report.read_text())["files"].items():
        package = Path(file).parts[0]
        lines[package] += found["summary"]["num_statements"]
        covered[package] += found["summary"]["covered_lines"]
    return {package: 100 * covered[package] / lines[package] for package in sorted(lines)}


def main(report: Path) -> int:
    """Print the share and the floor of each package; returns 1 if a share is below its floor."""
    floors: dict[str, float] = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["floors"]
    found = shares(report)
    for package, floor in floors.items():
        share = found.get(package, 0.0)
        print(f"{package:<12}{share:5.1f} % of lines, floor {floor} %{'' if share >= floor else ': too low'}")
    return int(any(found.get(package, 0.0) < floor for package, floor in floors.items()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
