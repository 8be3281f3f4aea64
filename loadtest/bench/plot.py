"""Draws the results: `make bench-plot`, or `python -P -m loadtest.bench.plot bench.jsonl [more.jsonl …] [--to docs/performance]`.

| diagram | from the figure |
|---|---|
| `curve.png`: latency (median and p99) over decided requests a second, an open loop | `curve` |
| `long.png`: rate and the worker's memory over time, many requests in one run | `long` |
| `overload.png`: decided and rejected requests a second over time, and the worker's memory, at several times the capacity | `overload` |
| `stages.png`: CPU seconds for a thousand requests, stage by stage | `stages` |

The last result of each case counts. A figure without results has no diagram, and a message says so.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.bench.report import Line, about, last_of_each, read

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The palette of Okabe and Ito, distinguishable with any colour vision; shapes and dashes differ too."""
MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH_IN, HEIGHT_IN, DOTS_PER_IN = 8.0, 4.5, 110
MIB: Final = "MiB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the diagrams; returns 0 when there was at least one."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.plot", description="Draw what was measured.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines of the bench")
    parser.add_argument("--to", type=Path, default=Path("docs/performance"), metavar="FOLDER", help="(default: docs/performance)")
    chosen = parser.parse_args(arguments)
    lines = [line for file in chosen.files for line in read(file)]
    chosen.to.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for name, draw in PICTURES.items():
        of_figure = last_of_each(lines, name)
        if not of_figure:
            print(f"no line of the figure {name}: {name}.png is not drawn")
            continue
        with mpl.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False}):
            figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DOTS_PER_IN, layout="constrained")
            draw(figure, of_figure)
            # The machine and the date: a figure without them is worth nothing.
            figure.supxlabel(about(of_figure[-1]), fontsize=7, color="0.35")
            # Without a date and a library version in the file, the same lines give the same bytes.
            figure.savefig(chosen.to / f"{name}.png", metadata={"Software": None})
        print(f"{chosen.to / name}.png")
        drawn += 1
    return 0 if drawn else 1


def _curve(figure: Figure, lines: Sequence[Line]) -> None:
    axes = figure.subplots()
    for number, (name, points) in enumerate(_series(lines, lambda line: line.case.rpartition(", at ")[0]).items()):
        points.sort(key=lambda line: line.figures["due_requests_per_s"])
        rates = [line.figures["goodput_requests_per_s"] for line in points]
        for which, dashes, filled in (("p99", "-", True), ("p50", "--", False)):
            # There is no latency where the queue was so long that no submission of the period was sent.
            latencies = [float("nan") if (ms := line.figures[f"latency_ms_{which}"]) is None else ms for line in points]
            style: dict[str, Any] = {"color": COLOURS[number], "marker": MARKS[number], "linestyle": dashes, "markersize": 5}
            label = f"{name}, {'99 of 100' if which == 'p99' else 'median'}"
            axes.plot(rates, latencies, label=label, markerfacecolor=COLOURS[number] if filled else "white", **style)
    axes.set(yscale="log", xlabel="decided requests a second", ylabel="milliseconds, from when it was due", xlim=(0, None))
    axes.set_title("Latency at growing load, past the capacity (open loop)")
    _thousands(axes)
    axes.legend(fontsize=7)


def _long(figure: Figure, lines: Sequence[Line]) -> None:
    rates, memory = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for number, line in enumerate(lines):
        moments = line.figures["by_time"]
        seconds, style = (
            _of(moments, "seconds"),
            {"color": COLOURS[number], "linewidth": 1.2, "linestyle": ("-", "--", ":", "-.")[number % 4]},
        )
        rates.plot(seconds, _of(moments, "requests_per_s"), label=line.case, **style)
        memory.plot(seconds, _of(moments, "worker_mib"), **style)
    rates.set(ylabel="decided requests a second", ylim=(0, None))
    rates.set_title("Rate and memory over a long run")
    memory.set(xlabel="seconds", ylabel=f"worker, {MIB}", ylim=(0, None))
    _thousands(rates)
    rates.legend(fontsize=7)


def _overload(figure: Figure, lines: Sequence[Line]) -> None:
    line = lines[-1]
    moments = line.figures["by_time"]
    rates, memory = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    seconds = _of(moments, "seconds")
    rates.plot(seconds, _of(moments, "requests_per_s"), color=COLOURS[0], marker=MARKS[0], markersize=3, label="decided")
    rates.plot(
        seconds, _of(moments, "refused_requests_per_s"), color=COLOURS[1], marker=MARKS[1], markersize=3, linestyle="--", label="refused"
    )
    rates.axhline(line.figures["capacity_requests_per_s"], color=COLOURS[6], linestyle=":", label="capacity, by a closed loop")
    rates.set(ylabel="requests a second", ylim=(0, None))
    rates.set_title(f"Overload: {line.case}")
    memory.plot(seconds, _of(moments, "worker_mib"), color=COLOURS[2])
    memory.set(xlabel="seconds", ylabel=f"worker, {MIB}", ylim=(0, None))
    _thousands(rates)
    rates.legend(fontsize=7)


def _stages(figure: Figure, lines: Sequence[Line]) -> None:
    # Stages that are 0 in all cases have no bar.
    stages = [stage for stage in lines[0].figures["cpu_s_per_1000"] if any(line.figures["cpu_s_per_1000"][stage] > 0 for line in lines)]
    # A submission of one request costs as much as one of many: separate diagrams, each with its own scale.
    groups = _series(lines, lambda line: str(line.parameters.get("requests")))
    for axes, group in zip(figure.subplots(1, len(groups), sharey=True, squeeze=False)[0], groups.values(), strict=True):
        height = 0.8 / len(group)
        for number, line in enumerate(group):
            places = [at + number * height for at in range(len(stages))]
            spent = [line.figures["cpu_s_per_1000"][stage] * 1000 for stage in stages]
            hatch = ("", "///", "...", "xxx")[number % 4]
            axes.barh(places, spent, height, color=COLOURS[number], edgecolor="white", hatch=hatch, label=line.case)
        axes.set_yticks([at + 0.4 - height / 2 for at in range(len(stages))], stages)
        axes.set(xlabel="CPU milliseconds for a thousand requests")
        axes.legend(fontsize=7, loc="lower right")
    axes.invert_yaxis()
    figure.suptitle("What a worker's CPU time goes into", fontsize=11)


PICTURES: Final[Mapping[str, Callable[[Figure, Sequence[Line]], None]]] = {
    "curve": _curve,
    "long": _long,
    "overload": _overload,
    "stages": _stages,
}


def _series(lines: Iterable[Line], name_of: Callable[[Line], str]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(name_of(line), []).append(line)
    return found


def _of(moments: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [moment[name] for moment in moments]


def _thousands(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


if __name__ == "__main__":
    sys.exit(main())
