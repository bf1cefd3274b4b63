"""The chart: rate of every epoch, and progress over time, as one SVG without dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from benchmarks.side_by_side.epochs import EpochRate

COLOURS = {"copy": "#6b7280", "join": "#c2410c", "ample": "#1d4ed8", "quarter": "#0f766e"}
WIDTH, HEIGHT = 860, 640
LEFT, RIGHT = 70, 190
TOP, GAP, PANEL = 58, 74, 220


def chart(series: Sequence[tuple[str, str, Sequence[EpochRate]]], title: str) -> str:
    """An SVG of (program, title, epochs).

    Above: input rows a second of each epoch against the rows read so far, on a logarithmic scale.
    Below: rows read against seconds since the beginning of the run.
    """
    rows = max(sum(e.rows for e in epochs) for _, _, epochs in series)
    seconds = max(epochs[-1].end_s for _, _, epochs in series)
    rates = [e.rows_per_s for _, _, epochs in series for e in epochs]
    low, high = 10 ** floor(log10(min(rates))), 10 ** ceil(log10(max(rates)))
    upper = _Panel(TOP, rows, low, high, logarithmic=True)
    lower = _Panel(TOP + PANEL + GAP, seconds, 0, rows, logarithmic=False)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(title)}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#374151">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="#111827">'
        f"{escape(title)}</text>",
        *upper.axes("input rows a second, each epoch", "rows read so far", _millions, _short),
        *lower.axes("rows read", "seconds since the beginning of the run", _number, _millions),
    ]
    upper_ends, lower_ends = [], []
    for program, name, epochs in series:
        colour = COLOURS[program]
        steps, curve = _steps(epochs), _curve(epochs)
        parts.append(upper.path(steps, colour))
        parts.append(lower.path(curve, colour))
        upper_ends.append((upper.y(steps[-1][1]), upper.x(steps[-1][0]), name, colour))
        label = f"{name}, {epochs[-1].end_s:,.0f} s"
        lower_ends.append((lower.y(curve[-1][1]), lower.x(curve[-1][0]), label, colour))
    parts += _labels(upper_ends)
    parts += _end_labels(lower_ends)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _steps(epochs: Sequence[EpochRate]) -> list[tuple[float, float]]:
    points, read = [], 0.0
    for epoch in epochs:
        points += [(read, epoch.rows_per_s), (read + epoch.rows, epoch.rows_per_s)]
        read += epoch.rows
    return points


def _curve(epochs: Sequence[EpochRate]) -> list[tuple[float, float]]:
    points, read = [(0.0, 0.0)], 0.0
    for epoch in epochs:
        read += epoch.rows
        points.append((epoch.end_s, read))
    return points


class _Panel:
    """One coordinate system: x from 0 to `x_max`, y from `low` to `high`."""

    def __init__(self, top: float, x_max: float, low: float, high: float, *, logarithmic: bool):
        self.top, self.x_max, self.low, self.high = top, x_max, low, high
        self.logarithmic = logarithmic

    def x(self, value: float) -> float:
        return LEFT + value / self.x_max * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        if self.logarithmic:
            part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.top + PANEL * (1 - part)

    def path(self, points: Sequence[tuple[float, float]], colour: str) -> str:
        text = " ".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        return f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def axes(self, y_title: str, x_title: str, x_form: object, y_form: object) -> list[str]:
        assert callable(x_form)
        assert callable(y_form)
        right, bottom = WIDTH - RIGHT, self.top + PANEL
        parts = [
            f'<text x="{LEFT}" y="{self.top - 10}" font-weight="600">{y_title}</text>',
            f'<text x="{right}" y="{bottom + 36}" text-anchor="end">{x_title}</text>',
        ]
        for value in self._y_ticks():
            at = self.y(value)
            parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#e5e7eb"/>')
            parts.append(
                f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y_form(value)}</text>'
            )
        for value in _ticks(self.x_max):
            at = self.x(value)
            parts.append(f'<path d="M{at:.1f} {bottom}v5" stroke="#9ca3af"/>')
            parts.append(
                f'<text x="{at:.1f}" y="{bottom + 19}" text-anchor="middle">{x_form(value)}</text>'
            )
        parts.append(f'<path d="M{LEFT} {bottom}H{right}" stroke="#9ca3af"/>')
        return parts

    def _y_ticks(self) -> list[float]:
        if not self.logarithmic:
            return _ticks(self.high)
        first, last = round(log10(self.low)), round(log10(self.high))
        values = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
        return [v for v in values if self.low <= v <= self.high]


def _ticks(top: float) -> list[float]:
    step = 10.0 ** floor(log10(top))
    for part in (0.1, 0.2, 0.5, 1.0):
        if top / (step * part) <= 6:
            step *= part
            break
    return [step * n for n in range(int(top / step + 1e-9) + 1)]


def _labels(ends: list[tuple[float, float, str, str]]) -> list[str]:
    """Names beside the ends of the lines, moved apart where they would meet."""
    parts, last = [], float("-inf")
    for y, x, name, colour in sorted(ends):
        at = max(y + 4, last + 15)
        last = at
        parts.append(f'<text x="{x + 8:.1f}" y="{at:.1f}" fill="{colour}">{escape(name)}</text>')
    return parts


def _end_labels(ends: list[tuple[float, float, str, str]]) -> list[str]:
    """The same for the lower panel, where all lines end at one height: one below the other."""
    parts = []
    for number, (y, x, name, colour) in enumerate(sorted(ends, key=lambda end: end[1])):
        right = WIDTH - RIGHT + 8
        at = y + 4 + 16 * number
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{right}" y="{at:.1f}" fill="{colour}">{escape(name)}</text>')
    return parts


def _millions(value: float) -> str:
    return "0" if not value else f"{value / 1e6:g}M" if value >= 1e6 else _short(value)


def _short(value: float) -> str:
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def _number(value: float) -> str:
    return f"{value:g}"
