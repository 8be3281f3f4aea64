"""Reads the output of the bench: one JSON object a line (`report.Report`)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec


class Line(msgspec.Struct, frozen=True):
    """One result."""

    figure: str
    case: str
    figures: dict[str, Any]
    parameters: dict[str, Any]
    machine: dict[str, Any]
    time: str
    failed: bool = False
    goal: str | None = None
    load_average: float | None = None


def read(file: Path) -> list[Line]:
    """Returns the results of a file without the failed ones, which are invalid. Raises `ValueError` naming a line that is no result."""
    found: list[Line] = []
    for number, text in enumerate(file.read_text().splitlines(), 1):
        try:
            line = msgspec.convert(json.loads(text), Line)
        except (ValueError, msgspec.ValidationError) as problem:
            raise ValueError(f"{file}, line {number} is not a result: {problem}") from None
        if not line.failed:
            found.append(line)
    return found


def last_of_each(lines: Sequence[Line], figure: str) -> list[Line]:
    """Returns the last result of each case of a figure, in the order in which the cases first appeared."""
    return list({line.case: line for line in lines if line.figure == figure}.values())


def about(line: Line) -> str:
    """Returns the machine, the versions and the day of a result, as text."""
    machine = line.machine
    memory = machine["memory_bytes"] / 2**30
    commit = str(machine.get("git") or "no commit")
    shown = commit[:10] + ("-changed" if commit.endswith("-changed") else "")
    cores = f"{machine['cores']} cores of {machine['cpu']}, {memory:.0f} GiB"
    return f"{cores}, Python {machine['python']}, Kafka {machine['kafka']}; {shown}, {line.time[:10]}, load average {line.load_average}"
