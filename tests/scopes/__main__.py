"""`python -m tests.scopes`: every interleaving of the named scopes, on the real joiner; see `explore`.

Exit status: 0 if everything holds in all states, 1 for a violation, 2 for wrong usage.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from tests.scopes.explore import Explored, Search
from tests.scopes.named import SCOPES

COLUMNS = ("scope", "states", "transitions", "terminal", "joiner states", "joiner steps", "seconds")


def main(argv: Sequence[str]) -> int:
    """Run the chosen scopes; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.scopes", description="Visit every interleaving of small scopes.")
    parser.add_argument("--scope", default="all", choices=["all", *SCOPES], metavar="NAME", help=f"one of: all, {', '.join(SCOPES)}")
    parser.add_argument("--large", action="store_true", help="with all: the large scopes too; they take minutes to hours, and gigabytes")
    parser.add_argument("--json", action="store_true", help="one JSON object a scope instead of the table")
    asked = parser.parse_args(argv)
    scopes = [
        scope for scope in SCOPES.values() if asked.scope == scope.name or (asked.scope == "all" and (asked.large or not scope.large))
    ]
    found = []
    for scope in scopes:
        found.append(Search(scope).run(progress=partial(_progress, scope.name)))
        _progress("", 0, 0)
        if asked.json:
            print(json.dumps(msgspec.to_builtins(found[-1])), flush=True)
        if found[-1].violation:
            break
    if not asked.json:
        _print_table(found)
    violated = [explored for explored in found if explored.violation]
    for explored in violated:
        print(violation_text(explored), file=sys.stderr)
    return 1 if violated else 0


def violation_text(explored: Explored) -> str:
    """Returns the violation, the moves that lead to it, and the command that repeats it."""
    lines = [f"violation in scope {explored.scope}, after {explored.states:,} states: {explored.violation}"]
    lines += [f"{number:3}. {text}" for number, text in enumerate(explored.trace, 1)]
    return "\n".join([*lines, f"again: python -m tests.scopes --scope {explored.scope}"])


def _progress(name: str, states: int, seconds: float) -> None:
    """Overwrite the progress line, on a terminal only."""
    if not sys.stderr.isatty():
        return
    text = f"{name}: {states:,} states, {states / max(seconds, 1e-9):,.0f} a second" if name else ""
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _print_table(found: list[Explored]) -> None:
    rows: list[tuple[str, ...]] = [COLUMNS]
    for e in found:
        numbers = (e.states, e.transitions, e.ends, e.joiner_states, e.joiner_steps)
        rows.append((e.scope, *[f"{number:,}" for number in numbers], f"{e.seconds:.1f}{' (violation)' if e.violation else ''}"))
    widths = [max([len(row[at]) for row in rows]) for at in range(len(COLUMNS))]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
