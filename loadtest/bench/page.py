"""The tables and pictures of docs/performance.md: `make bench-plot`, or

    python -P -m loadtest.bench.page bench.jsonl [more.jsonl …] [--into docs/performance.md] [--print]

The newest result of each case counts. The text between `<!-- figures: NAME -->` and `<!-- end -->` in the page is replaced by the table of
that name, and the pictures go into the folder of the page's name. A table or picture without results stays as it is.

Figures are published only from a quiet machine and a commit. If others took 2 % of the machine or more while a result was measured, or its
tree had uncommitted changes, the tables and the picture of its figure stay as they are too, and the exit code is 1. `--print` prints all
tables, those included, and writes nothing.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from loadtest.bench.figure import Figure, Row
from loadtest.bench.figures import all_figures
from loadtest.bench.report import ResultLine, about, last_of_each, read

WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 8.0, 4.5, 110
_MARKED = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and its pictures, or print the tables; returns 0 when nothing was refused and there was at least one table."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.page", description="Tables and pictures of results.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines of the bench")
    parser.add_argument(
        "--into", type=Path, default=Path("docs/performance.md"), metavar="PAGE", help="the page (default: docs/performance.md)"
    )
    parser.add_argument("--print", action="store_true", help="print all tables, also those that are not published, and write nothing")
    chosen = parser.parse_args(arguments)
    lines = [line for file in chosen.files for line in read(file)]
    if chosen.print:
        made = tables(lines)
        print("\n".join([f"## {name}\n\n{table}" for name, table in made.items()]))
        return 0 if made else 1
    shown = [name for name, figure in all_figures().items() if figure.tables or figure.draw]
    refused = {name: unfit for name in shown if (unfit := [line for line in last_of_each(lines, name) if line.refusals])}
    made = tables([line for line in lines if line.figure not in refused])
    chosen.into.write_text(put_into(chosen.into.read_text(), made))
    draw_all([line for line in lines if line.figure not in refused], chosen.into.with_suffix(""))
    for name, unfit in refused.items():
        print(refusal(name, unfit), file=sys.stderr)
    return 1 if refused or not made else 0


def refusal(name: str, unfit: Sequence[ResultLine]) -> str:
    """Returns the reasons why a figure is not published, for each of its results."""
    reasons = [f"  {line.case}: {', '.join(line.refusals)}" for line in unfit]
    command = f"`make bench ONLY={name}`" if all_figures()[name].parts else "the page's first table has the command"
    remedy = f"measure a commit again ({command}) on a quiet machine, or look at the tables with --print"
    return "\n".join([f"{name}: not written; {remedy}", *reasons])


def tables(lines: Sequence[ResultLine]) -> dict[str, str]:
    """Returns the tables by name, each with its machines below it; none for a figure that was not measured."""
    made = {}
    for figure in all_figures().values():
        of_figure = last_of_each(lines, figure.name)
        for name, rows_of in figure.tables.items():
            rows = rows_of(of_figure) if of_figure else []
            if len(rows) > 1:
                made[name] = "\n\n".join([_table(rows), *about(of_figure)]) + "\n"
    return made


def put_into(page: str, made: Mapping[str, str]) -> str:
    """Returns the page with these tables inserted. Raises `ValueError` for a marker with an unknown name."""
    known = [name for figure in all_figures().values() for name in figure.tables]

    def replaced(marked: re.Match[str]) -> str:
        begin, name, end = marked.groups()
        if name not in known:
            raise ValueError(f"there is no table {name}: there are {', '.join(known)}")
        return f"{begin}\n{made[name]}\n{end}" if name in made else marked[0]

    return _MARKED.sub(replaced, page)


def draw_all(lines: Sequence[ResultLine], folder: Path) -> None:
    """Draw the picture of each figure that has one and was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in all_figures().values():
        if figure.draw is None:
            continue
        if of_figure := last_of_each(lines, figure.name):
            _draw(figure, of_figure, folder / f"{figure.name}.png")
            print(folder / f"{figure.name}.png")
        else:
            print(f"no result of the figure {figure.name} to draw: {figure.name}.png stays as it is")


def _draw(figure: Figure, lines: Sequence[ResultLine], file: Path) -> None:
    assert figure.draw is not None
    with mpl.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False}):
        picture = Picture(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, layout="constrained")
        figure.draw(picture, lines)
        # The machines and the dates: a figure without them is worth nothing.
        picture.supxlabel("\n".join(about(lines)), fontsize=7, color="0.35")
        # Without a date and a library version in the file, the same lines give the same bytes.
        picture.savefig(file, metadata={"Software": None})


def _table(rows: Sequence[Row]) -> str:
    head, *others = rows
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *others)])


if __name__ == "__main__":
    sys.exit(main())
