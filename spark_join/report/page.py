"""Renders `report.html`: one self-contained page with the numbers of `report.json`, plots, and the violations.

Names and texts on it come from the log, which anyone may have written. All of them are escaped, and invisible characters are spelled out.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec
from pyspark.sql import Row

from spark_join.report.plots import bars, lanes, lines, moment, stacked, time_ticks
from spark_join.report.series import Series


class Violations(msgspec.Struct, frozen=True):
    """The violations that the page shows, a bounded number."""

    shown: Sequence[Row]
    """The rows of the table: rows of `violations.VIOLATION`"""
    over_time: Mapping[str, Sequence[int]]
    """See `series.violations_over_time`"""


_WORD_MAX: Final = 30
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
td.long { overflow-wrap: anywhere; } th, td.n, td:first-child { white-space: nowrap; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } code { font-size: .9em; }
figure { margin: 1.5em 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--dim); font: 11px system-ui, sans-serif; }
.key span { margin-left: 1em; white-space: nowrap; } .key i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.grid { stroke: var(--grid); } polyline { fill: none; stroke-width: 1.8; stroke-linecap: round; stroke-linejoin: round; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.k0 { background: var(--c0); } .k1 { background: var(--c1); } .k2 { background: var(--c2); } .k3 { background: var(--c3); }
.w { fill: var(--bad); }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); stroke-dasharray: 5 3; }
"""
_HEAD: Final = (
    '<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
    # If some text is not escaped after all, the browser runs and fetches nothing.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
)


def page(said: Mapping[str, Any], numbers: Series, violations: Violations) -> str:
    """Renders the page. `said` is the content of `report.json`."""
    wrong = sum(said["violations"].values())
    verdict = f'<b class="bad">{_count(wrong, "violation", "violations")}</b>' if wrong else '<b class="good">no violation</b>'
    name = _text(said["notary"])
    parts = [
        f"{_HEAD}<title>{name}: the log, verified</title><style>{_STYLE}</style>\n<h1>{name}</h1>\n",
        f"<p>{said['decisions']:,} decisions, {verdict}.{_undecided(said)} Verified at {_text(said['verified_at'])}.</p>\n",
        _continued(said["continued_from"]),
        "<h2>Decisions</h2>\n" + _summary(said),
        "<h2>Exported indexes</h2>\n" + _exports(said),
        "<h2>Over time</h2>\n" + (_over_time(numbers) if numbers.moments else "<p>Nothing was asked: there is nothing to draw.</p>\n"),
        "<h2>Violations</h2>\n" + _violations(said, numbers, violations, wrong),
        _settled(said["settled"]),
        "<h2>What was read</h2>\n" + _ranges(said),
        "<h2>How long it took</h2>\n" + _table(("stage", "seconds"), [(stage, f"{took:,.1f}") for stage, took in said["stages_s"].items()]),
        f'<p class="dim">{_text(", ".join([f"{what} {version}" for what, version in said["versions"].items()]))}</p>\n</html>\n',
    ]
    return "".join(parts)


def _count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many}"


def _continued(before: Mapping[str, Any] | None) -> str:
    """Renders the part that an earlier run had verified. Only the numbers `decisions` and `root` on the page include it."""
    if before is None:
        return "<p>The log was read from its beginning.</p>\n"
    told = [
        ("report", before["report"]),
        ("its SHA-256", before["report_sha256"]),
        ("how far", f"up to ordering offset {before['ordering_offset']:,}: {before['decisions']:,} decisions"),
        ("root over them", before["root"]),
        ("signatures", "checked" if before["signatures_checked"] else "not all of them were checked"),
    ]
    said = (
        "<p>An earlier run had verified the log up to there, and found no violation. That part was not read again: how many decisions there"
        " are and the root over them are of the whole log, everything else on this page is of what came since.</p>\n"
    )
    return f"<h2>Verified before</h2>\n{said}{_table(('', ''), told)}"


def _exports(said: Mapping[str, Any]) -> str:
    if not said["exports"]:
        return "<p>None was compared.</p>\n"
    clean = "as the log says" + ("" if said["undecided_from_offset"] is None else ", as far as that is decided")
    rows = []
    for source, export in said["exports"].items():
        found = ", ".join([f"{count:,} {type_}" for type_, count in export["violations"].items()])
        rows.append((source, f"{export['decisions']:,}", found or clean))
    return _table(("index", "decisions", "outcome"), rows)


def _summary(said: Mapping[str, Any]) -> str:
    here = sum(said["outcomes"].values())
    rows = [(name, f"{count:,}", f"{count / here:.2%}" if here else "") for name, count in said["outcomes"].items()]
    checkpoints = said["checkpoints"]
    told = [
        ("root over all", said["root"]),
        ("checkpoints compared", f"{checkpoints['compared']:,}"),
        ("not compared", f"{checkpoints['not_compared']:,}, with views from behind the hole"),
        ("skipped", f"{checkpoints['skipped']:,}, of incarnations that are over, of other histories, or not signed"),
        ("signatures", "checked" if said["signatures_checked"] else "not checked"),
    ]
    return _table(("outcome", "decisions", "share"), rows) + _table(("", ""), told)


def _undecided(said: Mapping[str, Any]) -> str:
    offset = said["undecided_from_offset"]
    if offset is None:
        return ""
    entries = _count(said["undecided_entries"], "entry", "entries")
    requests = _count(said["undecided_requests"], "request", "requests")
    return f" Nothing is decided from ordering offset {offset:,} on, {entries} with {requests}: {_text(said['undecided_because'])}."


def _over_time(numbers: Series) -> str:
    moments, width_s = numbers.moments, numbers.width_ms / 1000
    ticks, axis = _time_axis(numbers)
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


def _time_axis(numbers: Series) -> tuple[list[tuple[float, str]], str]:
    ticks = time_ticks(numbers.start_ms, numbers.width_ms * len(numbers.moments))
    return ticks, f"log time, UTC, from {moment(numbers.start_ms)}; {numbers.width_ms / 1000:,.6g} s a bin"


def _size(power: int) -> str:
    if power < 1:
        return "0" if power < 0 else "1"
    return f"{1 << power:,}–{(2 << power) - 1:,}"


def _violations(said: Mapping[str, Any], numbers: Series, violations: Violations, wrong: int) -> str:
    if not wrong:
        return "<p>None.</p>\n"
    drawn = bars("By type", "violations", said["violations"])
    if violations.over_time:
        ticks, axis = _time_axis(numbers)
        unit = "in which bin there are how many; each type by its own scale"
        drawn += lanes("Where in the log", unit, violations.over_time, ticks, axis)
    nowhere = wrong - sum([sum(counts) for counts in violations.over_time.values()])
    if nowhere and numbers.moments:
        drawn += f"<p>{_count(nowhere, 'violation', 'violations')} of no ordering record and no decision, so of no time.</p>\n"
    columns = list(violations.shown[0].asDict())
    rest = wrong - len(violations.shown)
    more = f"<p>{rest:,} more are in <code>violations/</code>.</p>\n" if rest else ""
    return drawn + _table(columns, [["" if row[each] is None else str(row[each]) for each in columns] for row in violations.shown]) + more


def _settled(settled: Mapping[str, Any]) -> str:
    """Renders the foreign views that the owner has settled, which are no violations; returns "" if there are none."""
    if not settled["writers"]:
        return ""
    records, writers = _count(settled["records"], "record", "records"), _count(settled["writers"], "writer", "writers")
    rows = [[str(each) for each in row.values()] for row in settled["shown"]]
    rest = settled["writers"] - len(rows)
    return (
        f"<h2>Settled differences</h2>\n<p>{records} of {writers} had another history. The owner has settled that the history of this log"
        f" stands, so these are no violations.</p>\n{_table(list(settled['shown'][0]), rows)}"
        + (f"<p>{_count(rest, 'more writer is', 'more writers are')} not listed.</p>\n" if rest else "")
    )


def _ranges(said: Mapping[str, Any]) -> str:
    rows = [
        (f"{topic}, partition {partition}", f"{first:,}", f"{end:,}")
        for topic, partitions in said["ranges"].items()
        for partition, (first, end) in partitions.items()
    ]
    kinds = [(kind, f"{count:,}") for kind, count in said["ordering_records"].items()]
    skipped = [(reason, f"{each['records']:,}", f"{each['offset_first']:,}") for reason, each in said["skipped"].items()]
    without_effect = _table(("without effect, because of its", "records", "first at offset"), skipped) if skipped else ""
    return _table(("", "from offset", "up to, exclusive"), rows) + _table(("ordering records", "how many"), kinds) + without_effect


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    told = "".join(["<tr>" + "".join([_cell(each) for each in row]) + "</tr>\n" for row in rows])
    return f'<div class="wide"><table><tr>{"".join([f"<th>{_text(each)}</th>" for each in head])}</tr>\n{told}</table></div>\n'


def _cell(text: str) -> str:
    number = text.replace(",", "").replace(".", "").removesuffix("%").isdecimal() and len(text) < 30
    if number:
        return f'<td class="n">{text}</td>'
    # The browser may break a word only in cells that would be too wide.
    return f'<td class="long">{_text(text)}</td>' if max(map(len, text.split()), default=0) > _WORD_MAX else f"<td>{_text(text)}</td>"


def _text(text: str) -> str:
    """Escapes a text for HTML. Control and direction characters, which could make it look like another text, are spelled out."""
    return escape("".join([each if each.isprintable() else f"\\u{ord(each):04x}" for each in text]))
