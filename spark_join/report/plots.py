"""Plots as inline SVG, without scripts. Colours are variables of the page, so they follow its light or dark theme."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 8, 12, 40
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_TIME_TICKS = 5
_LANE, _NAMES, _NUMBERS = 24, 130, 110
"""For plots with one row for each name, in pixels: height of a row, and the widths of its name and its number."""


def stacked(
    title: str, unit: str, series: Mapping[str, Sequence[float]], ticks: Sequence[tuple[float, str]], axis: str, colour_first: int = 0
) -> str:
    """Renders stacked bars, one bar for each index of the series. `ticks`: (share of the width, text)."""
    sums = [sum(values) for values in zip(*series.values(), strict=True)]
    top, height = _scale(max(sums, default=0))
    wide = _INNER_WIDTH / max(len(sums), 1)
    floors = [0.0] * len(sums)
    shapes = []
    for number, (name, values) in enumerate(series.items(), colour_first):
        for at, value in enumerate(values):
            if value:
                upper = floors[at] + value
                place = f'x="{_LEFT + at * wide:.1f}" y="{height(upper):.1f}" width="{max(wide - 0.5, 0.5):.1f}"'
                tall = height(floors[at]) - height(upper)
                shapes.append(f'<rect class="c{number}" {place} height="{tall:.1f}"><title>{escape(name)}: {value:,.6g}</title></rect>')
                floors[at] = upper
    return _figure(title, unit, _key(series, colour_first), shapes, top, height, ticks, axis)


def lines(title: str, unit: str, series: Mapping[str, Sequence[float | None]], ticks: Sequence[tuple[float, str]], axis: str) -> str:
    """Renders points joined by lines. None is a missing point and interrupts the line; a single point is a dot."""
    top, height = _scale(max([value for values in series.values() for value in values if value is not None], default=0))
    shapes = []
    for number, values in enumerate(series.values()):
        wide = _INNER_WIDTH / max(len(values), 1)
        run: list[tuple[str, str]] = []
        for at, value in enumerate([*values, None]):
            if value is not None:
                run.append((f"{_LEFT + (at + 0.5) * wide:.1f}", f"{height(value):.1f}"))
                continue
            if len(run) == 1:
                shapes.append(f'<circle class="c{number}" cx="{run[0][0]}" cy="{run[0][1]}" r="2.5"/>')
            elif run:
                shapes.append(f'<polyline class="l{number}" points="{" ".join([",".join(point) for point in run])}"/>')
            run = []
    return _figure(title, unit, _key(series, 0), shapes, top, height, ticks, axis)


def bars(title: str, unit: str, values: Mapping[str, int]) -> str:
    """Renders horizontal bars, one for each name, with its number."""
    most = max(values.values(), default=0)
    shapes = []
    for number, (name, value) in enumerate(values.items()):
        y = _TOP + number * _LANE
        wide = (WIDTH - _NAMES - _NUMBERS) * value / max(most, 1)
        # One among a hundred million is visible too.
        shapes.append(f'<rect class="w" x="{_NAMES}" y="{y}" width="{max(wide, 2):.1f}" height="{_LANE - 6}"/>')
        shapes.append(_text(_NAMES - 6, y + _LANE - 10, "end", name))
        shapes.append(_text(_NAMES + max(wide, 2) + 6, y + _LANE - 10, "start", f"{value:,}"))
    return _svg(title, unit, "", shapes, _TOP + len(values) * _LANE)


def lanes(title: str, unit: str, series: Mapping[str, Sequence[int]], ticks: Sequence[tuple[float, str]], axis: str) -> str:
    """Renders a lane for each series, with a bar for each value above 0; the highest bar of a lane fills it."""
    shapes = []
    inner = WIDTH - _NAMES - _RIGHT
    bottom = _TOP + len(series) * _LANE
    for number, (name, values) in enumerate(series.items()):
        floor_y = _TOP + (number + 1) * _LANE - 2
        wide, most = inner / max(len(values), 1), max(values, default=0)
        shapes.append(f'<line class="grid" x1="{_NAMES}" x2="{WIDTH - _RIGHT}" y1="{floor_y}" y2="{floor_y}"/>')
        shapes.append(_text(_NAMES - 6, floor_y - 5, "end", name))
        for at, value in enumerate(values):
            if value:
                tall = max((_LANE - 6) * value / most, 3)
                place = f'x="{_NAMES + at * wide:.1f}" y="{floor_y - tall:.1f}" width="{max(wide - 0.5, 2):.1f}" height="{tall:.1f}"'
                shapes.append(f'<rect class="w" {place}><title>{escape(name)}: {value:,}</title></rect>')
    shapes += _x_axis(ticks, axis, _NAMES, bottom)
    return _svg(title, unit, "", shapes, bottom + _BOTTOM)


def time_ticks(start_ms: int, span_ms: int) -> list[tuple[float, str]]:
    """Returns ticks for a span of time, UTC: (share of the width, text)."""
    form = (
        "%H:%M:%S.%f"
        if span_ms < 10_000
        else "%H:%M:%S"
        if span_ms < 7_200_000
        else "%m-%d %H:%M"
        if span_ms < 30 * 86_400_000
        else "%Y-%m-%d"
    )
    ticks = [start_ms + span_ms * at // _TIME_TICKS for at in range(_TIME_TICKS + 1)]
    return [(at / _TIME_TICKS, moment(at_ms, form).removesuffix("000")) for at, at_ms in enumerate(ticks)]


def moment(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Formats a time, UTC. A log may have times that no calendar has; they are formatted as milliseconds."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _scale(highest: float) -> tuple[float, Callable[[float], float]]:
    """Returns a round number that is at least `highest`, and a function from a value to its y coordinate."""
    unit = 10 ** floor(log10(highest)) if highest > 0 else 1
    top = next(unit * step for step in (1, 2, 5, 10) if unit * step >= highest)
    return top, lambda value: _TOP + _INNER_HEIGHT * (1 - value / top)


def _key(names: Iterable[str], colour_first: int) -> str:
    return "".join([f'<span><i class="k{number}"></i>{escape(name)}</span>' for number, name in enumerate(names, colour_first)])


def _figure(
    title: str,
    unit: str,
    key: str,
    shapes: Sequence[str],
    top: float,
    height: Callable[[float], float],
    ticks: Sequence[tuple[float, str]],
    axis: str,
) -> str:
    grid = []
    for part in range(5):
        value = top * part / 4
        y = height(value)
        grid.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        grid.append(_text(_LEFT - 6, y + 4, "end", f"{value:,.6g}"))
    return _svg(title, unit, key, [*grid, *shapes, *_x_axis(ticks, axis, _LEFT, HEIGHT - _BOTTOM)], HEIGHT)


def _x_axis(ticks: Sequence[tuple[float, str]], axis: str, left: float, y: float) -> list[str]:
    inner = WIDTH - left - _RIGHT
    drawn = []
    for at, (share, text) in enumerate(ticks):
        x = left + share * inner
        anchor = "start" if share == 0 else "end" if share == 1 and at == len(ticks) - 1 else "middle"
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>')
        drawn.append(_text(x, y + 16, anchor, text))
    return [*drawn, _text(left + inner / 2, y + _BOTTOM - 6, "middle", axis)]


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, unit: str, key: str, shapes: Sequence[str], height: float) -> str:
    return (
        f'<figure><figcaption><b>{escape(title)}</b>, {escape(unit)}<span class="key">{key}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}, {escape(unit)}">{"".join(shapes)}</svg></figure>'
    )
