"""`report.html`: one page that needs nothing else, with the numbers of `report.json`, plots, and what is wrong.

Names and texts in it come from the log, which anyone may have written: all of it is escaped, and what cannot be seen is spelled out.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from pyspark.sql import Row

from spark_join.report.plots import lines, moment, stacked, time_ticks
from spark_join.report.series import Series

VIOLATIONS_SHOWN_MAX = 1_000
"""Of the table; `violations/` has them all."""

_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #1a1a1a; --dim: #5c5c5c; --grid: #d9d9d9;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --bad: #b00020; --good: #00663d; }
@media (prefers-color-scheme: dark) { :root { --back: #16181c; --text: #e6e6e6; --dim: #a0a4ab; --grid: #3a3e45;
  --c0: #56b4e9; --c1: #e69f00; --c2: #2fc496; --c3: #e39ac4; --bad: #ff7a85; --good: #55d69e; } }
body { background: var(--back); color: var(--text); font: 15px/1.45 system-ui, sans-serif; max-width: 880px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.15em; margin-top: 2em; }
.bad { color: var(--bad); } .good { color: var(--good); } .dim { color: var(--dim); }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .5em 0; }
th, td { text-align: left; padding: .2em 1em .2em 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
td { overflow-wrap: anywhere; } th, td.n, td:first-child { white-space: nowrap; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } code { font-size: .9em; }
figure { margin: 1.5em 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
.key span { margin-left: 1em; white-space: nowrap; } .key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.grid { stroke: var(--grid); } polyline { fill: none; stroke-width: 1.8; stroke-linecap: round; stroke-linejoin: round; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.k0 { background: var(--c0); } .k1 { background: var(--c1); } .k2 { background: var(--c2); } .k3 { background: var(--c3); }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); stroke-dasharray: 5 3; }
"""
_HEAD: Final = (
    '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
    # Should something get past the escaping after all, the browser runs and fetches nothing.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
)


def page(said: Mapping[str, Any], numbers: Series, violations: Sequence[Row]) -> str:
    """The page. `said` is what `report.json` says, `violations` are at most `VIOLATIONS_SHOWN_MAX` of them."""
    wrong = sum(said["violations"].values())
    verdict = f'<b class="bad">{wrong:,} violations</b>' if wrong else '<b class="good">no violation</b>'
    name = _text(said["notary"])
    parts = [
        f"{_HEAD}<title>{name}: the log, verified</title><style>{_STYLE}</style>\n<h1>{name}</h1>\n",
        f"<p>{said['decisions']:,} decisions, {verdict}.{_undecided(said)}</p>\n",
        _summary(said),
        "<h2>Over time</h2>\n" + _over_time(numbers) if numbers.moments else "<p>Nothing was asked: there is nothing to draw.</p>\n",
        "<h2>Violations</h2>\n" + _violations(said, violations, wrong),
        "<h2>What was read</h2>\n" + _ranges(said),
        "<h2>How long it took</h2>\n" + _table(("stage", "seconds"), [(stage, f"{took:,.1f}") for stage, took in said["stages_s"].items()]),
        f'<p class="dim">{_text(", ".join([f"{what} {version}" for what, version in said["versions"].items()]))}</p>\n</html>\n',
    ]
    return "".join(parts)


def _summary(said: Mapping[str, Any]) -> str:
    here = sum(said["outcomes"].values())
    rows = [(name, f"{count:,}", f"{count / here:.2%}" if here else "") for name, count in said["outcomes"].items()]
    checkpoints = said["checkpoints"]
    told = [
        ("root over all of them", said["root"]),
        ("checkpoints compared", f"{checkpoints['compared']:,}; {checkpoints['not_compared']:,} behind the hole could not be"),
        ("checkpoints of lives that had not begun or had ended", f"{checkpoints['passed_over']:,} of these"),
        ("signatures", "checked" if said["signatures_checked"] else "not checked"),
    ]
    return _table(("outcome", "decisions", "share"), rows) + _table(("", ""), told)


def _undecided(said: Mapping[str, Any]) -> str:
    offset = said["undecided_from_offset"]
    return "" if offset is None else f" Nothing is decided from ordering offset {offset} on: a hole."


def _over_time(numbers: Series) -> str:
    moments, width_s = numbers.moments, numbers.width_ms / 1000
    span_ms = numbers.width_ms * len(moments)
    ticks = time_ticks(numbers.start_ms, span_ms)
    axis = f"log time, UTC, from {moment(numbers.start_ms)}; {width_s:,.6g} s a bin"
    rates = {name: [each.outcomes[name] / width_s for each in moments] for name in moments[0].outcomes}
    refused = dict(list(rates.items())[1:])
    sizes = numbers.batch_sizes
    powers = range(min(sizes), max(sizes) + 1)
    size_ticks = [((at + 0.5) / len(powers), _size(power)) for at, power in enumerate(powers)]
    return "".join(
        [
            stacked("Requests", "decisions a second", rates, ticks, axis),
            stacked("Conflicts and other rejections", "decisions a second", refused, ticks, axis, colour_first=1),
            stacked("Batch sizes", "batches", {"batches": [sizes.get(power, 0) for power in powers]}, size_ticks, "requests of a batch"),
            lines(
                "Between the append times of a batch's payload and of its entry",
                "milliseconds, whichever came first",
                {"median": [each.apart_ms_p50 for each in moments], "99 of 100": [each.apart_ms_p99 for each in moments]},
                ticks,
                axis,
            ),
        ]
    )


def _size(power: int) -> str:
    if power < 1:
        return "0" if power < 0 else "1"
    return f"{1 << power:,}–{(2 << power) - 1:,}"


def _violations(said: Mapping[str, Any], shown: Sequence[Row], wrong: int) -> str:
    if not wrong:
        return "<p>None.</p>\n"
    columns = list(shown[0].asDict())
    counts = _table(("type", "how many"), [(name, f"{count:,}") for name, count in said["violations"].items()])
    rest = f"<p>{wrong - len(shown):,} more are in <code>violations/</code>.</p>\n" if wrong > len(shown) else ""
    return counts + _table(columns, [["" if row[each] is None else str(row[each]) for each in columns] for row in shown]) + rest


def _ranges(said: Mapping[str, Any]) -> str:
    rows = [
        (f"{topic}, partition {partition}", f"{first:,}", f"{end:,}")
        for topic, partitions in said["ranges"].items()
        for partition, (first, end) in partitions.items()
    ]
    kinds = [(kind, f"{count:,}") for kind, count in said["ordering_records"].items()]
    return _table(("", "from offset", "up to, exclusive"), rows) + _table(("ordering records", "how many"), kinds)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    told = "".join(["<tr>" + "".join([_cell(each) for each in row]) + "</tr>\n" for row in rows])
    return f'<div class="wide"><table><tr>{"".join([f"<th>{_text(each)}</th>" for each in head])}</tr>\n{told}</table></div>\n'


def _cell(text: str) -> str:
    number = text.replace(",", "").replace(".", "").removesuffix("%").isdecimal() and len(text) < 30
    return f'<td class="n">{text}</td>' if number else f"<td>{_text(text)}</td>"


def _text(text: str) -> str:
    """Text that a page shows and nothing else. Directions and controls, which could make it look like another, are spelled out."""
    return escape("".join([each if each.isprintable() else f"\\u{ord(each):04x}" for each in text]))
