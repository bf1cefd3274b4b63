"""Charts as SVG files that stand alone. Pure: outcomes in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.framed import apart, framed
from benchmarks.lab.experiments import Picture
from benchmarks.lab.lines import Outcome
from spillway.report.svg import Plot, Point, Safe, tag, ticks

WIDTH, HEIGHT, NAMES = 860, 380, 210
COLOURS = ("#1d4ed8", "#c2410c", "#0f766e", "#7c3aed", "#ca8a04", "#6b7280", "#db2777", "#65a30d")

Curve = tuple[str, Sequence[Point]]


def picture(wanted: Picture, found: Mapping[str, Outcome]) -> str:
    """The chart of a figure."""
    curves = [
        curve
        for name in wanted.lines
        for curve in (_memory(found[name]) if wanted.memory else [_results(found[name], wanted)])
    ]
    x = max(at for _, points in curves for at, _ in points)
    y = max(value for _, points in curves for _, value in points)
    plot = empty(wanted.title, (0, x), (0, y * 1.05))
    unit, name = _unit(y)
    what = f"state in memory, {name}B" if wanted.memory else f"results, {name}".rstrip(", ")
    plot.axis_x(ticks(0, x, 8), lambda value: f"{value:g}", "minutes")
    plot.axis_y(ticks(0, y), lambda value: f"{value / unit:g}", what)
    if wanted.level:
        plot.level(wanted.level, "spills above", "")
    return chart(wanted.title, plot, curves)


def empty(title: str, x: tuple[float, float], y: tuple[float, float]) -> Plot:
    """A chart without curves, with room for their names at the right."""
    plot = Plot(x, y, label=title, width=WIDTH, height=HEIGHT)
    plot.right, plot.top = WIDTH - NAMES, 40
    return plot


def chart(title: str, plot: Plot, curves: Sequence[Curve]) -> str:
    """A file with the curves, each with its name."""
    for number, (_, points) in enumerate(curves):
        alike = sum(_coincide(points, earlier) for _, earlier in curves[:number])
        plot.add(_line(plot, points, number, alike))
    for text in _names(plot, curves):
        plot.add(text)
    drawn = [plot.svg()]
    return framed(title, drawn, width=WIDTH, height=HEIGHT, left=plot.left)


def _results(outcome: Outcome, wanted: Picture) -> Curve:
    points: list[Point] = list(zip(outcome.minutes, map(float, outcome.results), strict=True))
    if wanted.ends_at is not None:
        held = zip(*outcome.memory, strict=True)
        fits = [max(slots) <= wanted.ends_at for slots in held]
        points = points[: fits.index(False)] if False in fits else points
    return outcome.name, points


def _memory(outcome: Outcome) -> list[Curve]:
    several = len(outcome.memory) > 1
    return [
        (
            f"{outcome.name}, slot {slot + 1}" if several else outcome.name,
            list(zip(outcome.minutes, map(float, held), strict=True)),
        )
        for slot, held in enumerate(outcome.memory)
    ]


def _coincide(one: Sequence[Point], other: Sequence[Point]) -> bool:
    """Whether one line lies on the other from end to end."""
    return list(one) == list(other)


def _line(plot: Plot, points: Sequence[Point], number: int, alike: int) -> Safe:
    """A line; with gaps when it lies on `alike` others, so that these can be seen."""
    return tag(
        "path",
        class_="line",
        d=plot.path(points),
        stroke=COLOURS[number % len(COLOURS)],
        stroke_dasharray=f"6 {6 * alike}" if alike else None,
    )


def _names(plot: Plot, curves: Sequence[Curve]) -> list[Safe]:
    """Names at the right, as high as their lines end, moved apart where they would meet; a line
    that ends before has a dot there, and its name below the dot, where there is room."""
    early = [i for i, (_, points) in enumerate(curves) if points[-1][0] < plot.x1]
    found = []
    for i in early:
        x, y = (at(v) for at, v in zip((plot.px, plot.py), curves[i][1][-1], strict=True))
        colour = COLOURS[i % len(COLOURS)]
        below = y + 14 if y + 14 < plot.bottom else y - 8
        found += [
            tag("circle", cx=x, cy=y, r=4, fill=colour),
            tag("text", curves[i][0], x=x + 6, y=below, style=f"fill: {colour}"),
        ]
    ends = sorted(
        (plot.py(points[-1][1]), i) for i, (_, points) in enumerate(curves) if i not in early
    )
    heights = apart([y for y, _ in ends], plot.bottom)
    for height, (_, i) in zip(heights, ends, strict=True):
        style = f"fill: {COLOURS[i % len(COLOURS)]}"
        y = round(height + 4, 1)
        found.append(tag("text", curves[i][0], x=plot.right + 8, y=y, style=style))
    return found


def _unit(most: float) -> tuple[float, str]:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if most >= unit:
            return unit, name
    return 1.0, ""
