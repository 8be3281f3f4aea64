"""The tables of docs/performance.md, as measured: `python -P -m loadtest.bench.markdown bench.jsonl [more.jsonl …] [--into FILE]`.

With `--into`, the text between `<!-- figures: NAME -->` and `<!-- end -->` in that file is replaced by the table of that name; a table
whose figure was not measured stays as it is. Without it, all tables are printed. The last result of a case counts.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.bench.report import Line, about, last_of_each, read
from loadtest.bench.stages.places import INTAKE, SERIAL, STAGES

Row = Sequence[str]
WORKERS: Final = (1, 2, 3, 4, 8)
_PLACE = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables or insert them; returns 0 when there was at least one."""
    parser = argparse.ArgumentParser(prog="python -P -m loadtest.bench.markdown", description="Tables of what was measured.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines of the bench")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a page with places for the tables")
    chosen = parser.parse_args(arguments)
    made = tables([line for file in chosen.files for line in read(file)])
    if chosen.into is None:
        print("\n".join([f"## {name}\n\n{table}" for name, table in made.items()]))
    else:
        chosen.into.write_text(put_into(chosen.into.read_text(), made))
    return 0 if made else 1


def tables(lines: Sequence[Line]) -> dict[str, str]:
    """Returns the tables by name, each with the machine below it; none for a figure that was not measured."""
    made = {}
    for name, (figure, rows_of) in TABLES.items():
        of_figure = last_of_each(lines, figure)
        rows = rows_of(of_figure) if of_figure else []
        if len(rows) > 1:
            made[name] = f"{_table(rows)}\n\n{about(of_figure[-1])}\n"
    return made


def put_into(page: str, made: Mapping[str, str]) -> str:
    """Returns the page with these tables inserted. Raises `ValueError` for a marker with an unknown name."""

    def replaced(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        if name not in TABLES:
            raise ValueError(f"there is no table {name}: there are {', '.join(TABLES)}")
        return f"{begin}\n{made[name]}\n{end}" if name in made else place[0]

    return _PLACE.sub(replaced, page)


def _end_to_end(lines: Sequence[Line]) -> Sequence[Row]:
    loads = [line for line in lines if "two_appends_ms_p50" not in line.figures and not line.case.startswith("idle")]
    head = ("case", "requests/s", "p50", "p99", "CPU s for 1,000 requests: worker", "brokers", "load", "cores taken by others")
    return [head] + [
        (
            line.case,
            _number(line, "requests_per_s"),
            f"{_number(line, 'latency_ms_p50')} ms",
            f"{_number(line, 'latency_ms_p99')} ms",
            *[_number(line, f"{who}_cpu_s_per_1000") for who in ("worker", "brokers", "load")],
            _number(line, "others_cores"),
        )
        for line in loads
    ]


def _idle(lines: Sequence[Line]) -> Sequence[Row]:
    head = ("one client, nothing else to do", "median", "p99", "two appends alone", "times that")
    return [head] + [
        (
            line.case.removeprefix("idle round trip, "),
            *[f"{_number(line, name)} ms" for name in ("latency_ms_p50", "latency_ms_p99")],
            f"{_number(line, 'two_appends_ms_p50')} ms" if "two_appends_ms_p50" in line.figures else "",
            _number(line, "times_two_appends"),
        )
        for line in lines
        if line.case.startswith("idle")
    ]


def _receipts(lines: Sequence[Line]) -> Sequence[Row]:
    head = ("case", "with receipts", "without, before and after", "taken by receipts")
    return [head] + [
        (
            line.case,
            f"{_number(line, 'requests_per_s')}/s",
            " and ".join([f"{rate:,}/s" for rate in line.figures["without_receipts_before_after"]]),
            f"{line.figures['taken_by_receipts_percent']:.0f} %",
        )
        for line in lines
        if "taken_by_receipts_percent" in line.figures
    ]


def _alone(lines: Sequence[Line]) -> Sequence[Row]:
    head = ("case", "requests/s", "inputs/s", "CPU microseconds a request")
    return [head] + [
        (line.case, *[_number(line, name) for name in ("requests_per_s", "inputs_per_s", "cpu_us_per_request")]) for line in lines
    ]


def _stages(lines: Sequence[Line]) -> Sequence[Row]:
    rows: list[Row] = [("CPU ms for 1,000 requests", "what it is", *[line.case for line in lines])]
    for stage, what in STAGES.items():
        spent = [_milliseconds(line.figures["cpu_s_per_1000"].get(stage, 0.0)) for line in lines]
        if any(each != "0" for each in spent):
            rows.append((stage, what, *spent))
    for name, what in (
        ("all_stages_cpu_s_per_1000", "**the sum**, without the sampler"),
        ("process_cpu_s_per_1000", "what the process has spent, by its own clock, without the sampler"),
        ("worker_cpu_s_per_1000", "what the kernel says, with the sampler"),
    ):
        rows.append(("", what, *[_milliseconds(line.figures[name]) for line in lines]))
    rows.append(("", "looks of the sampler", *[f"{line.figures['looks']:,}" for line in lines]))
    return rows


def _cores(lines: Sequence[Line]) -> Sequence[Row]:
    head = (
        "case", "cores of a worker for 10,000/s", f"of these intake ({', '.join(INTAKE)})", f"in order ({', '.join(SERIAL)})",
        "the rest", "brokers", "one worker is full at", "all in order is full at",
    )  # fmt: skip
    rows: list[Row] = [head]
    for line in lines:
        everything, intake, serial = [line.figures[f"{name}_cpu_s_per_1000"] * 10 for name in ("all_stages", "intake", "serial")]
        brokers = line.figures.get("brokers_cpu_s_per_1000")
        rows.append(
            (
                line.case,
                *[f"{cores:.2f}" for cores in (everything, intake, serial, everything - intake - serial)],
                "" if brokers is None else f"{brokers * 10:.2f}",
                f"{1_000 / line.figures['main_thread_cpu_s_per_1000']:,.0f}/s",
                f"{10_000 / serial:,.0f}/s" if serial else "",
            )
        )
    return rows


def _workers(lines: Sequence[Line]) -> Sequence[Row]:
    """Returns an estimate for workers on machines of their own, with one core for each interpreter: computed, not measured."""
    alone = [line for line in lines if line.parameters["processes"] == 1]
    rows: list[Row] = [("workers", *[f"{line.case}: full at" for line in alone], "cores of all workers then")]
    for workers in WORKERS:
        full = [workers_full_at(line, workers) for line in alone]
        rows.append((str(workers), *[f"{rate:,.0f}/s" for rate, _ in full], ", ".join([f"{cores:.1f}" for _, cores in full])))
    return rows


def workers_full_at(line: Line, workers: int) -> tuple[float, float]:
    """Returns (requests a second, cores of all workers) at the rate where each worker's main thread is fully busy.

    The work for a worker's own requests is shared among the workers; each does the ordered work and reads the whole log. Each also decodes
    the requests that the others admitted, which a single worker does not.
    """
    beside = line.figures["beside_cpu_s_per_1000"]
    spent = {stage: cpu_s for stage, cpu_s in line.figures["cpu_s_per_1000"].items() if stage != "sampler"}
    main = {stage: cpu_s - beside.get(stage, 0.0) for stage, cpu_s in spent.items() if stage != "native threads"}
    everyone = (*SERIAL, "kafka client", "native threads")

    def of_one(costs: Mapping[str, float]) -> float:
        own = sum([cpu_s for stage, cpu_s in costs.items() if stage not in everyone])
        return own / workers + sum([costs.get(stage, 0.0) for stage in everyone]) + costs["decode"] * (workers - 1) / workers

    requests_per_s = 1_000 / of_one(main)
    return requests_per_s, workers * of_one(spent) * requests_per_s / 1_000


def _curve(lines: Sequence[Line]) -> Sequence[Row]:
    head = ("case, at a share of its capacity", "due/s", "decided/s", "p50", "p99", "refused", "not sent", "worker's cores")
    return [head] + [
        (
            line.case,
            *[_number(line, name) for name in ("due_requests_per_s", "goodput_requests_per_s")],
            *[f"{number} ms" if (number := _number(line, name)) else "" for name in ("latency_ms_p50", "latency_ms_p99")],
            *[f"{line.figures[name]:.0%}" for name in ("refused_share", "unsent_share")],
            _number(line, "worker_cores"),
        )
        for line in lines
    ]


def _overload(lines: Sequence[Line]) -> Sequence[Row]:
    rows: list[Row] = [("", *[line.case for line in lines])]
    for name, what, form in (
        ("capacity_requests_per_s", "capacity, by a closed loop, requests/s", "{:,.0f}"),
        ("due_requests_per_s", "due, requests/s", "{:,.0f}"),
        ("sent_requests_per_s", "sent (the rest found no connection), requests/s", "{:,.0f}"),
        ("goodput_requests_per_s", "**decided**, requests/s", "{:,.0f}"),
        ("goodput_share_of_capacity", "of the capacity (goal: 90%)", "{:.0%}"),
        ("refused_share", "of all answers: refused (503)", "{:.0%}"),
        ("undecided_share", "taken in and not decided in time (202)", "{:.0%}"),
        ("dropped_share", "no answer, the connection ended", "{:.0%}"),
        ("from_sending_ms_p50", "those let in: median, from sending, ms", "{:,.0f}"),
        ("from_sending_ms_p99", "those let in: p99, from sending, ms", "{:,.0f}"),
        ("latency_ms_p99", "those let in: p99, from when it was due, ms", "{:,.0f}"),
        ("refusal_ms_p50", "a refusal takes, median, ms", "{:,.1f}"),
        ("refusal_ms_p99", "a refusal takes, p99, ms", "{:,.1f}"),
        ("told_s_p50", "Retry-After, median, s", "{:,.0f}"),
        ("wait_s_p50", "refused, and asking every 0.1 s: let in after, median, s", "{:,.2f}"),
        ("wait_s_p99", "the same, p99, s", "{:,.2f}"),
        ("wait_to_told_p50", "that, as a part of what it was told, median", "{:,.2f}"),
        ("waits", "of so many that were refused first", "{:,}"),
        ("still_waiting", "and so many were not let in by the end", "{:,}"),
        ("obedient_taken_share", "came back when told to: let in then", "{:.0%}"),
        ("obedient_returns", "of so many that came back", "{:,}"),
        ("worker_mib_first", "the worker's memory at first, MiB", "{:,.0f}"),
        ("worker_mib_max", "and at most, MiB", "{:,.0f}"),
        ("worker_cores", "cores: worker", "{:,.2f}"),
        ("load_cores", "cores: load", "{:,.2f}"),
        ("machine_cores", "cores: everything on the machine", "{:,.2f}"),
    ):
        # Without waits there are no figures about them.
        told = [line.figures.get(name) if line.figures.get("waits") or not name.startswith("wait_") else None for line in lines]
        rows.append((what, *["" if each is None else form.format(each) for each in told]))
    return rows


def _long(lines: Sequence[Line]) -> Sequence[Row]:
    line = lines[-1]
    head = ("tenth", "requests/s", "p50", "p99", "worker, CPU s for 1,000", "brokers", "worker's memory", "index", "log")
    rows: list[Row] = [head]
    for number, tenth in enumerate(line.figures["tenths"], 1):
        latencies = [f"{tenth[name]:,.0f} ms" for name in ("latency_ms_p50", "latency_ms_p99")]
        costs = [f"{tenth[name]:.3f}" if name in tenth else "" for name in ("worker_cpu_s_per_1000", "brokers_cpu_s_per_1000")]
        sizes = [f"{tenth[name]:,.0f} MiB" for name in ("worker_mib", "index_mib", "log_mib")]
        rows.append((str(number), f"{tenth['requests_per_s']:,.0f}", *latencies, *costs, *sizes))
    ratio, cores = line.figures.get("last_to_first_tenth"), line.figures["load_cores"]
    whole = (
        f"all: {line.case}"
        + ("" if ratio is None else f"; the last tenth to the first: {ratio:.2f}")
        + f"; the load took {cores:.2f} cores"
    )
    rows.append((whole, f"{line.figures['requests_per_s']:,.0f}", *[""] * 7))
    return rows


def _peers(lines: Sequence[Line]) -> Sequence[Row]:
    head = ("who, 4 inputs a request", "requests/s", "p50", "p99", "the notary does so many times that", "goal", "of append and read alone")
    return [head] + [
        (
            line.case,
            _number(line, "requests_per_s"),
            *[f"{_number(line, name)} ms" for name in ("latency_ms_p50", "latency_ms_p99")],
            _number(line, "notary_times"),
            line.goal or "",
            f"{line.figures['share_of_append_and_read']:.0%}" if "share_of_append_and_read" in line.figures else "",
        )
        for line in lines
    ]


def _limits(lines: Sequence[Line]) -> Sequence[Row]:
    return [("the limits, each alone", "requests/s")] + [(line.case, _number(line, "requests_per_s")) for line in lines]


TABLES: Final[Mapping[str, tuple[str, Callable[[Sequence[Line]], Sequence[Row]]]]] = {
    "end-to-end": ("end-to-end", _end_to_end),
    "idle": ("end-to-end", _idle),
    "receipts": ("end-to-end", _receipts),
    "stages": ("stages", _stages),
    "cores": ("stages", _cores),
    "workers": ("stages", _workers),
    "decode": ("decode", _alone),
    "apply": ("apply", _alone),
    "rebuild": ("rebuild", _alone),
    "curve": ("curve", _curve),
    "overload": ("overload", _overload),
    "long": ("long", _long),
    "peers": ("peers", _peers),
    "limits": ("limits", _limits),
}
"""By the name of their marker: (the figure, the function that makes the rows of its results, head first)."""


def _table(rows: Sequence[Row]) -> str:
    head, *others = rows
    return "\n".join(["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *others)])


def _number(line: Line, name: str) -> str:
    value: Any = line.figures.get(name)
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _milliseconds(cpu_s: float) -> str:
    return f"{cpu_s * 1000:.3g}"


if __name__ == "__main__":
    sys.exit(main())
