"""Plots as inline SVG, without scripts; all text is escaped. Colours are variables of the page, so they follow its light or dark theme."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import floor, log10

from markupsafe import Markup

WIDTH, HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 8, 12, 40
_INNER_WIDTH, _INNER_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_TIME_TICKS = 5
_LANE, _NAMES, _NUMBERS = 24, 130, 110
"""For plots with one row for each name, in pixels: height of a row, and the widths of its name and its number."""


def stacked(
    title: str, unit: str, series: Mapping[str, Sequence[float]], ticks: Sequence[tuple[float, str]], axis: str, colour_first: int = 0
) -> Markup:
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
                tall = height(floors[at]) - height(upper)
                title_of_bar = f"{name}: {value:,.6g}"
                shapes.append(_bar(f"c{number}", _LEFT + at * wide, height(upper), max(wide - 0.5, 0.5), tall, title_of_bar))
                floors[at] = upper
    return _figure(title, unit, _key(series, colour_first), shapes, top, height, ticks, axis)


def lines(title: str, unit: str, series: Mapping[str, Sequence[float | None]], ticks: Sequence[tuple[float, str]], axis: str) -> Markup:
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
                shapes.append(Markup('<circle class="c{}" cx="{}" cy="{}" r="2.5"/>').format(number, *run[0]))
            elif run:
                points = " ".join([",".join(point) for point in run])
                shapes.append(Markup('<polyline class="l{}" points="{}"/>').format(number, points))
            run = []
    return _figure(title, unit, _key(series, 0), shapes, top, height, ticks, axis)


def bars(title: str, unit: str, values: Mapping[str, int]) -> Markup:
    """Renders horizontal bars, one for each name, with its number."""
    most = max(values.values(), default=0)
    shapes = []
    for number, (name, value) in enumerate(values.items()):
        y = _TOP + number * _LANE
        wide = (WIDTH - _NAMES - _NUMBERS) * value / max(most, 1)
        # One among a hundred million is visible too.
        shapes.append(_bar("w", _NAMES, y, max(wide, 2), _LANE - 6))
        shapes.append(_text(_NAMES - 6, y + _LANE - 10, "end", name))
        shapes.append(_text(_NAMES + max(wide, 2) + 6, y + _LANE - 10, "start", f"{value:,}"))
    return _svg(title, unit, "", shapes, _TOP + len(values) * _LANE)


def lanes(title: str, unit: str, series: Mapping[str, Sequence[int]], ticks: Sequence[tuple[float, str]], axis: str) -> Markup:
    """Renders a lane for each series, with a bar for each value above 0; the highest bar of a lane fills it."""
    shapes = []
    inner = WIDTH - _NAMES - _RIGHT
    bottom = _TOP + len(series) * _LANE
    for number, (name, values) in enumerate(series.items()):
        floor_y = _TOP + (number + 1) * _LANE - 2
        wide, most = inner / max(len(values), 1), max(values, default=0)
        shapes.append(_grid(_NAMES, WIDTH - _RIGHT, floor_y, floor_y))
        shapes.append(_text(_NAMES - 6, floor_y - 5, "end", name))
        for at, value in enumerate(values):
            if value:
                tall = max((_LANE - 6) * value / most, 3)
                shapes.append(_bar("w", _NAMES + at * wide, floor_y - tall, max(wide - 0.5, 2), tall, f"{name}: {value:,}"))
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


def _key(names: Iterable[str], colour_first: int) -> Markup:
    return Markup().join([Markup('<span><i class="k{}"></i>{}</span>').format(*each) for each in enumerate(names, colour_first)])


def _figure(
    title: str,
    unit: str,
    key: Markup,
    shapes: Sequence[Markup],
    top: float,
    height: Callable[[float], float],
    ticks: Sequence[tuple[float, str]],
    axis: str,
) -> Markup:
    grid = []
    for part in range(5):
        value = top * part / 4
        y = height(value)
        grid.append(_grid(_LEFT, WIDTH - _RIGHT, y, y))
        grid.append(_text(_LEFT - 6, y + 4, "end", f"{value:,.6g}"))
    return _svg(title, unit, key, [*grid, *shapes, *_x_axis(ticks, axis, _LEFT, HEIGHT - _BOTTOM)], HEIGHT)


def _x_axis(ticks: Sequence[tuple[float, str]], axis: str, left: float, y: float) -> list[Markup]:
    inner = WIDTH - left - _RIGHT
    drawn = []
    for at, (share, text) in enumerate(ticks):
        x = left + share * inner
        anchor = "start" if share == 0 else "end" if share == 1 and at == len(ticks) - 1 else "middle"
        drawn.append(_grid(x, x, y, y + 4))
        drawn.append(_text(x, y + 16, anchor, text))
    return [*drawn, _text(left + inner / 2, y + _BOTTOM - 6, "middle", axis)]


def _bar(class_: str, x: float, y: float, width: float, height: float, title: str = "") -> Markup:
    inside = Markup("<title>{}</title>").format(title) if title else ""
    shape = Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>')
    return shape.format(class_, x, y, width, height, inside)


def _grid(x1: float, x2: float, y1: float, y2: float) -> Markup:
    return Markup('<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(x1, x2, y1, y2)


def _text(x: float, y: float, anchor: str, text: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def _svg(title: str, unit: str, key: Markup | str, shapes: Sequence[Markup], height: float) -> Markup:
    figure = Markup(
        '<figure><figcaption><b>{title}</b>, {unit}<span class="key">{key}</span></figcaption>'
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}, {unit}">{shapes}</svg></figure>'
    )
    return figure.format(title=title, unit=unit, key=key, width=WIDTH, height=height, shapes=Markup().join(shapes))
