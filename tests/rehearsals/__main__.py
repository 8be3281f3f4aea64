"""`make rehearse`: runs the rehearsals, and writes their table of RPO and RTO into the runbook.

    python -m tests.rehearsals [--only NAME]… [--json]

Rows of rehearsals that did not run stay as they are. Exit codes: 0; 1 if a rehearsal failed, or none ran the commands of a block on a page.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.rehearsals.drill import Measured
from tests.rehearsals.registry import REHEARSALS
from tests.rehearsals.runbook import ROOT, RUNBOOK, pages

TABLE = re.compile(r"(?<=<!-- rehearsed -->\n).*?(?=<!-- end -->)", re.DOTALL)
HEAD = (
    "| disaster | may lose at most (RPO) | lost | noticed after | no decision for | over after (RTO) | measured |\n"
    "|---|---|---|---|---|---|---|\n"
)
_ROW = re.compile(r"^\| \[([^\]]+)\]\(#.*$", re.MULTILINE)
_TOOK = re.compile(r"(<!-- took: ([^>]+) -->).*?(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rehearsals and print their table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsals", description="Rehearse the disasters of docs/runbook.md.")
    parser.add_argument("--only", action="append", default=[], choices=REHEARSALS, metavar="NAME", help="this rehearsal; may be repeated")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each rehearsal, one a line, instead of the table")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rehearsals.jsonl"
        command = [sys.executable, "-m", "pytest", "tests/rehearsals", "-m", "rehearsal", "--rehearsals-out", str(out), "-v"]
        command += [f"--rehearse={name}" for name in chosen.only]
        code = subprocess.call(command, cwd=ROOT, stdout=sys.stderr)
        lines = out.read_bytes().splitlines() if out.exists() else []
    measured = [msgspec.json.decode(line, type=Measured) for line in lines]
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    written = put_into(RUNBOOK.read_text(), measured, f"{today}, {os.cpu_count()} cores")
    RUNBOOK.write_text(written)
    if chosen.json:
        print(*[line.decode() for line in lines], sep="\n")
    else:
        found = TABLE.search(written)
        print(found[0].strip() if found else "")
    left = [] if chosen.only else unfollowed(measured)
    for block in left:
        print(f"no rehearsal ran the commands of {block}", file=sys.stderr)
    return 1 if code or left else 0


def unfollowed(measured: Sequence[Measured]) -> list[str]:
    """Returns the blocks of commands that no rehearsal of their page ran."""
    left = {(each.page, block) for each in measured for block in range(each.blocks)}
    left -= {(each.page, block) for each in measured for block in each.followed}
    return [f"block {block + 1} of '{page}'" for page, block in sorted(left)]


def put_into(page: str, measured: Sequence[Measured], where: str) -> str:
    """Returns the runbook with these rows in its table, and these times on the pages; `where` is the date and the machine."""
    by_name = {each.name: each for each in measured}
    found = TABLE.search(page)
    assert found is not None
    before: Mapping[str, str] = {row[1]: row[0] for row in _ROW.finditer(found[0])}
    rows = [_row(by_name[name], where) if name in by_name else before.get(name, "") for name in REHEARSALS]
    page = TABLE.sub(lambda _: HEAD + "".join([f"{row}\n" for row in rows if row]), page, count=1)
    return _TOOK.sub(lambda took: f"{took[1]}{_took(by_name[took[2]])}{took[3]}" if took[2] in by_name else took[0], page)


def _row(each: Measured, where: str) -> str:
    anchor = pages(RUNBOOK.read_text())[each.page].anchor
    times = " | ".join([_seconds(each.noticed_s), _seconds(each.outage_s), _seconds(each.over_s)])
    return f"| [{each.name}](#{anchor}) | {each.loses} | {each.lost} of {each.decided} | {times} | {where} |"


def _took(each: Measured) -> str:
    noticed, outage, over = map(_seconds, (each.noticed_s, each.outage_s, each.over_s))
    return f"noticed after {noticed}, no decision for {outage}, over after {over}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
