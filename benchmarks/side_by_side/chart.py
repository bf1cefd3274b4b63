"""The chart: rate of every epoch, and progress over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10

from benchmarks.framed import LINE_HEIGHT, apart, framed
from benchmarks.side_by_side.epochs import EpochRate
from spillway.report.svg import Plot, Point, Safe, tag, ticks

COLOURS = {
    "copy": "#6b7280",
    "join": "#c2410c",
    "batch": "#a16207",
    "ample": "#1d4ed8",
    "quarter": "#0f766e",
}
WIDTH, PANEL, TOP, NAMES = 860, 300, 30, 210
HEIGHT = TOP + 2 * PANEL


def chart(series: Sequence[tuple[str, str, Sequence[EpochRate]]], title: str) -> str:
    """An SVG of (program, title, epochs).

    Above: input rows a second of each epoch against the rows read so far, on a logarithmic scale.
    Below: rows read against seconds since the beginning of the run.
    """
    rows = max(sum(e.rows for e in epochs) for _, _, epochs in series)
    seconds = max(epochs[-1].end_s for _, _, epochs in series)
    rates = [log10(e.rows_per_s) for _, _, epochs in series for e in epochs]
    upper = _plot((0, rows), (floor(min(rates)), ceil(max(rates))), "rate of every epoch")
    upper.axis_x(ticks(0, rows), _short, "rows read so far")
    upper.axis_y(
        _decades(upper.y0, upper.y1), lambda y: _short(round(10**y)), "input rows a second"
    )
    lower = _plot((0, seconds), (0, rows), "progress over time")
    lower.axis_x(ticks(0, seconds), _short, "seconds since the beginning of the run")
    lower.axis_y(ticks(0, rows), _short, "rows read")
    for program, _, epochs in series:
        for plot, points in ((upper, _steps(epochs)), (lower, _curve(epochs))):
            plot.add(tag("path", class_="line", d=plot.path(points), stroke=COLOURS[program]))
    _name_rates(upper, series)
    _name_ends(lower, series)
    drawn = [
        tag("g", plot.svg_body(), transform=f"translate(0 {TOP + PANEL * number})")
        for number, plot in enumerate((upper, lower))
    ]
    return framed(title, drawn, width=WIDTH, height=HEIGHT, left=upper.left)


def _plot(x: tuple[float, float], y: tuple[float, float], label: str) -> Plot:
    plot = Plot(x, y, label=label, width=WIDTH, height=PANEL)
    plot.right = WIDTH - NAMES
    return plot


def _steps(epochs: Sequence[EpochRate]) -> list[Point]:
    points, read = [], 0.0
    for epoch in epochs:
        rate = log10(epoch.rows_per_s)
        points += [(read, rate), (read + epoch.rows, rate)]
        read += epoch.rows
    return points


def _curve(epochs: Sequence[EpochRate]) -> list[Point]:
    points, read = [(0.0, 0.0)], 0.0
    for epoch in epochs:
        read += epoch.rows
        points.append((epoch.end_s, read))
    return points


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten, as logarithms."""
    values = [n + log10(m) for n in range(round(low), round(high) + 1) for m in (1, 2, 5)]
    return [value for value in values if value <= high + 1e-9]


def _name_rates(plot: Plot, series: Sequence[tuple[str, str, Sequence[EpochRate]]]) -> None:
    """Names as high as the lines end, moved apart where they would meet."""
    ends = sorted((plot.py(_steps(epochs)[-1][1]), name, p) for p, name, epochs in series)
    for height, (_, name, program) in zip(
        apart([y for y, _, _ in ends], plot.bottom), ends, strict=True
    ):
        plot.add(_name(plot, height + 4, name, program))


def _name_ends(plot: Plot, series: Sequence[tuple[str, str, Sequence[EpochRate]]]) -> None:
    """All of these lines end at one height: a dot at each end, the names one below the other."""
    ends = sorted((epochs[-1].end_s, name, p, _curve(epochs)[-1]) for p, name, epochs in series)
    for number, (seconds, name, program, (x, y)) in enumerate(ends):
        plot.add(tag("circle", cx=plot.px(x), cy=plot.py(y), r=4, fill=COLOURS[program]))
        text = f"{name}, {seconds:,.0f} s"
        plot.add(_name(plot, plot.py(y) + 4 + LINE_HEIGHT * number, text, program))


def _name(plot: Plot, y: float, text: str, program: str) -> Safe:
    return tag("text", text, x=plot.right + 8, y=round(y, 1), style=f"fill: {COLOURS[program]}")


def _short(value: float) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
