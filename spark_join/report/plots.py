"""Plots as inline SVG, without scripts, drawn by matplotlib. Colours are classes of the page, so they follow its light or dark theme.

Matplotlib is imported when a page is written, not before: a verification that cannot begin needs none of it.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 860, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 8, 12, 40
_TIME_TICKS = 5
_LANE, _NAMES, _NUMBERS = 24, 130, 110
"""For plots with one row for each name, in pixels: height of a row, and the widths of its name and its number."""

_POINTS_PER_INCH: Final = 72
"""The unit of matplotlib's SVG is a point; here a point is a pixel of the page."""
_SETTINGS: Final[list[Any]] = [
    "default",
    {"svg.fonttype": "none", "svg.hashsalt": "plots", "text.parse_math": False, "font.size": 11, "path.simplify": False},
]
"""The default style comes first: a file `matplotlibrc` of the user or of the working directory changes no plot."""
_CLASSES: Final = {f"#01000{number}": f"c{number}" for number in range(4)} | {"#010010": "w", "#010011": "grid"}
"""Matplotlib draws in these colours, and omits only black; the page gives the classes their own."""
_FILLS: Final = {class_: colour for colour, class_ in _CLASSES.items()}
_STYLE: Final = re.compile(r' style="([^"]*)"')
_ANCHOR: Final = re.compile(r"text-anchor: (\w+)")
_GROUP: Final = re.compile(r'<g id="(?:t(\d+)|[^"]*)">')
_OUTSIDE: Final = re.compile(
    r"""^.*?<svg[^>]*>|<metadata>.*?</metadata>|<defs>.*?</defs>|</svg>\s*$|\n\s*
    |<g\ id=[^>]*/>|\ clip-path="[^"]*"|\ transform="rotate\(-0\ [^"]*\"""",
    re.DOTALL | re.VERBOSE,
)
"""All of matplotlib's file but its shapes: prolog, metadata, a style sheet for the complete page; clips and turns without effect."""


def stacked(
    title: str, unit: str, series: Mapping[str, Sequence[float]], ticks: Sequence[tuple[float, str]], axis: str, colour_first: int = 0
) -> Markup:
    """Renders stacked bars, one bar for each index of the series. `ticks`: (share of the width, text)."""
    figure, axes = _axes(HEIGHT, _LEFT)
    floors = [0.0] * max(map(len, series.values()), default=0)
    titles: list[str] = []
    for number, (name, values) in enumerate(series.items(), colour_first):
        at = [place for place, value in enumerate(values) if value]
        shown = [values[place] for place in at]
        drawn = axes.bar(at, shown, 0.9, [floors[place] for place in at], align="edge", color=_FILLS[f"c{number}"], linewidth=0)
        _name(drawn, titles, [f"{name}: {value:,.6g}" for value in shown])
        floors = [floor + value for floor, value in zip(floors, values, strict=True)]
    _scale(axes, max(floors, default=0))
    _x_axis(axes, len(floors), ticks, axis)
    return _svg(title, unit, _key(series, colour_first), figure, titles)


def lines(title: str, unit: str, series: Mapping[str, Sequence[float | None]], ticks: Sequence[tuple[float, str]], axis: str) -> Markup:
    """Renders points joined by lines. None is a missing point and interrupts the line; a single point is as wide as its bin."""
    figure, axes = _axes(HEIGHT, _LEFT)
    for number, values in enumerate(series.values()):
        points = [float("nan") if value is None else value for value in values]
        axes.plot([at + 0.5 for at in range(len(points))], points, color=_FILLS[f"c{number}"])
        padded = [None, *values, None]
        alone = [at for at, value in enumerate(values) if value is not None and padded[at] is padded[at + 2] is None]
        axes.hlines([points[at] for at in alone], alone, [at + 1 for at in alone], color=_FILLS[f"c{number}"])
    _scale(axes, max([value for values in series.values() for value in values if value is not None], default=0))
    _x_axis(axes, max(map(len, series.values()), default=0), ticks, axis)
    return _svg(title, unit, _key(series, 0), figure, [])


def bars(title: str, unit: str, values: Mapping[str, int]) -> Markup:
    """Renders horizontal bars, one for each name, with its number."""
    figure, axes = _axes(_TOP + len(values) * _LANE, _NAMES, _NUMBERS, 0)
    most = max(values.values(), default=0) or 1
    # One among a hundred million is visible too.
    wide = [max(value / most, 2 / (WIDTH - _NAMES - _NUMBERS)) for value in values.values()]
    rows = range(len(values))
    axes.barh(rows, wide, (_LANE - 6) / _LANE, color=_FILLS["w"], linewidth=0)
    for row, share, value in zip(rows, wide, values.values(), strict=True):
        axes.annotate(f"{value:,}", (share, row), (6, 0), textcoords="offset points", va="center", annotation_clip=False)
    _rows(axes, values)
    axes.set(xlim=(0, 1), xticks=[])
    return _svg(title, unit, "", figure, [])


def lanes(title: str, unit: str, series: Mapping[str, Sequence[int]], ticks: Sequence[tuple[float, str]], axis: str) -> Markup:
    """Renders a lane for each series, with a bar for each value above 0; the highest bar of a lane fills it."""
    figure, axes = _axes(_TOP + len(series) * _LANE + _BOTTOM, _NAMES)
    titles: list[str] = []
    count = max(map(len, series.values()), default=0)
    for row, (name, values) in enumerate(series.items()):
        most = max(values, default=0)
        at = [place for place, value in enumerate(values) if value]
        tall = [max((_LANE - 6) * values[place] / most, 3) / _LANE for place in at]
        wide = max(0.9, 2 * count / (WIDTH - _NAMES - _RIGHT))
        drawn = axes.bar(at, [-each for each in tall], wide, row + 0.42, align="edge", color=_FILLS["w"], linewidth=0)
        _name(drawn, titles, [f"{name}: {values[place]:,}" for place in at])
        axes.axhline(row + 0.42, color=_FILLS["grid"], linewidth=1, zorder=0)
    _rows(axes, series)
    _x_axis(axes, count, ticks, axis)
    return _svg(title, unit, "", figure, titles)


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


def _axes(height: float, left: float, right: float = _RIGHT, bottom: float = _BOTTOM) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure
    from matplotlib.style import context

    with context(_SETTINGS):
        figure = Figure((WIDTH / _POINTS_PER_INCH, height / _POINTS_PER_INCH), frameon=False)
        axes = figure.add_axes((left / WIDTH, bottom / height, 1 - (left + right) / WIDTH, 1 - (_TOP + bottom) / height), frameon=False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return figure, axes


def _scale(axes: "Axes", highest: float) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    locator = MaxNLocator(4, steps=[1, 2, 5, 10])
    axes.set_ylim(0, locator.tick_values(0, highest or 1)[-1])
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.grid(axis="y", color=_FILLS["grid"], linewidth=1)


def _rows(axes: "Axes", names: Iterable[str]) -> None:
    listed = list(names)
    axes.set_yticks(range(len(listed)), listed)
    axes.set_ylim(len(listed) - 0.5, -0.5)


def _x_axis(axes: "Axes", count: int, ticks: Sequence[tuple[float, str]], axis: str) -> None:
    axes.set(xlim=(0, max(count, 1)), xlabel=axis)
    axes.set_xticks([share * max(count, 1) for share, _ in ticks], [text for _, text in ticks])
    for (share, _), label in zip(ticks, axes.get_xticklabels(), strict=True):
        label.set_horizontalalignment("left" if share == 0 else "right" if share == 1 else "center")


def _name(drawn: Iterable[Any], titles: list[str], names: Sequence[str]) -> None:
    """Give each shape an id, by which `_svg` finds its title, the text that a browser shows on it."""
    for shape, title in zip(drawn, names, strict=True):
        shape.set_gid(f"t{len(titles)}")
        titles.append(title)


def _key(names: Iterable[str], colour_first: int) -> Markup:
    return Markup().join([Markup('<span><i class="k{}"></i>{}</span>').format(*each) for each in enumerate(names, colour_first)])


def _svg(title: str, unit: str, key: Markup | str, figure: "Figure", titles: Sequence[str]) -> Markup:
    from matplotlib.style import context

    written = io.StringIO()
    with context(_SETTINGS):
        figure.savefig(written, format="svg", metadata={"Date": None})
    height = round(figure.get_figheight() * _POINTS_PER_INCH)
    shapes = _STYLE.sub(_class_of, _GROUP.sub(partial(_opened, titles), _OUTSIDE.sub("", written.getvalue())))
    page = Markup(
        '<figure><figcaption><b>{title}</b>, {unit}<span class="key">{key}</span></figcaption>'
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{title}, {unit}">{shapes}</svg></figure>'
    )
    return page.format(title=title, unit=unit, key=key, width=WIDTH, height=height, shapes=Markup(shapes))  # noqa: S704, matplotlib escapes


def _opened(titles: Sequence[str], group: re.Match[str]) -> str:
    """Returns a group without its id, which another figure has too, and with its title if it has one."""
    return "<g>" if group[1] is None else str(Markup("<g><title>{}</title>").format(titles[int(group[1])]))


def _class_of(style: re.Match[str]) -> str:
    """Returns the attributes for a style of matplotlib: a class for its colour; the page's style sheet has all the rest."""
    if anchor := _ANCHOR.search(style[1]):
        return f' text-anchor="{anchor[1]}"'
    class_ = next((class_ for colour, class_ in _CLASSES.items() if colour in style[1]), None)
    if class_ is None:
        return ""
    if "fill: none" in style[1]:
        class_ = class_.replace("c", "l")
    return f' class="{class_}"'
