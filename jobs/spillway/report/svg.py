"""Plain SVG and HTML text, with no way to forget escaping; axes, lines, areas and bars.

Why not a charting library: the report must work from a file, with scripts forbidden, in dark and
in light. Libraries that draw in the browser need a script of 50 to 4,500 kB; those that draw SVG
in Python (pygal, leather, matplotlib) bring fixed colours or hundreds of packages. What is needed
is five simple charts whose colours are the page's CSS variables.

Model: `Safe` is text that is markup already. `tag` takes strings and `Safe`s and escapes every
string, so a symbol from a message can never become markup. A `Plot` maps data to the pixels of
one SVG; it draws into a list of elements in the order of the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from spillway.report.words import visible

Point = tuple[float, float]


class Safe(str):
    """Markup."""


def tag(name: str, /, *children: str, **attributes: object) -> Safe:
    """One element. Attribute names: `_` becomes `-`, a trailing one goes (`class_`)."""
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{safe(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = "".join(safe(child) for child in children)
    if not inner and name in ("line", "path", "rect", "circle", "meta"):
        return Safe(f"<{name}{''.join(parts)}/>")
    return Safe(f"<{name}{''.join(parts)}>{inner}</{name}>")


def safe(text: str) -> Safe:
    """Text as markup: escaped, unless it is markup already. Control characters are shown."""
    return text if isinstance(text, Safe) else Safe(escape(visible(text)))


def joined(parts: Sequence[str]) -> Safe:
    """One after another."""
    return Safe("".join(safe(part) for part in parts))


def ticks(low: float, high: float, about: int = 5, base: int = 10) -> list[float]:
    """Round numbers from `low` to `high` (base 2: powers of two, for bytes)."""
    if high <= low:
        return [low]
    raw = (high - low) / max(about, 1)
    if base == 2:
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


class Plot:
    """One chart: a frame, two axes, and what is drawn in between."""

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        label: str,
        width: int = 560,
        height: int = 250,
        left: int = 62,
    ) -> None:
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = left, width - 14, 14, height - 40
        self.x0, self.x1 = x[0], x[1] if x[1] > x[0] else x[0] + 1
        self.y0, self.y1 = y[0], y[1] if y[1] > y[0] else y[0] + 1
        self._label = label
        self._drawn: list[Safe] = []
        self._over: list[Safe] = []

    def px(self, x: float) -> float:
        """Pixel of a value of the horizontal axis; what lies beyond stays at the edge."""
        part = (x - self.x0) / (self.x1 - self.x0)
        return round(self.left + min(max(part, 0.0), 1.0) * (self.right - self.left), 1)

    def py(self, y: float) -> float:
        """Pixel of a value of the vertical axis."""
        part = (y - self.y0) / (self.y1 - self.y0)
        return round(self.bottom - min(max(part, 0.0), 1.0) * (self.bottom - self.top), 1)

    def add(self, element: Safe) -> None:
        """Draw an element given in pixels."""
        self._drawn.append(element)

    def axis_x(self, at: Sequence[float], text: Callable[[float], str], title: str) -> None:
        """Ticks below, and what they count."""
        for value in at:
            x = self.px(value)
            self.add(tag("line", class_="tick", x1=x, x2=x, y1=self.bottom, y2=self.bottom + 4))
            self.add(tag("text", text(value), class_="at mid", x=x, y=self.bottom + 16))
        middle = (self.left + self.right) / 2
        self.add(tag("text", title, class_="axis mid", x=middle, y=self.height - 6))

    def axis_y(self, at: Sequence[float], text: Callable[[float], str], title: str) -> None:
        """Lines across, their values at the left, and what they count."""
        for value in at:
            y = self.py(value)
            self.add(tag("line", class_="grid", x1=self.left, x2=self.right, y1=y, y2=y))
            self.add(tag("text", text(value), class_="at end", x=self.left - 6, y=y + 4))
        middle = (self.top + self.bottom) / 2
        turned = f"rotate(-90 12 {middle})"
        self.add(tag("text", title, class_="axis mid", x=12, y=middle, transform=turned))

    def line(self, points: Sequence[Point], class_: str) -> None:
        """A line through the points."""
        if points:
            self.add(tag("path", class_=f"line {class_}", d=self.path(points)))

    def area(self, upper: Sequence[Point], lower: Sequence[Point] | None, class_: str) -> None:
        """The area between two lines, or below one."""
        if not upper:
            return
        below = lower or [(upper[0][0], self.y0), (upper[-1][0], self.y0)]
        path = self.path(upper) + "L" + self.path(list(reversed(below)))[1:] + "Z"
        self.add(tag("path", class_=f"area {class_}", d=path))

    def bar(self, x: float, width: float, low: float, high: float, class_: str) -> None:
        """A bar from `x`, `width` wide in the data's units."""
        a, b = self.px(x), self.px(x + width)
        top, bottom = self.py(high), self.py(low)
        if bottom - top > 0:
            self.add(
                tag(
                    "rect",
                    class_=f"bar {class_}",
                    x=a,
                    y=top,
                    width=round(max(b - a, 0.5), 1),
                    height=round(bottom - top, 1),
                )
            )

    def level(self, y: float, text: str, class_: str, *, below: bool = False) -> None:
        """A line across at a value, named at its right end."""
        self.levels([(self.x0, y), (self.x1, y)], text, class_, below=below)

    def levels(
        self, points: Sequence[Point], text: str, class_: str, *, below: bool = False
    ) -> None:
        """The same for a value that changes: a line through the points, named at the last one."""
        at = self.py(points[-1][1])
        self._over.append(tag("path", class_=f"level {class_}", d=self.path(points)))
        self._over.append(
            tag(
                "text",
                text,
                class_=f"at end {class_}",
                x=self.right - 2,
                y=at + 12 if below else at - 4,
            )
        )

    def triangle(self, x: float, y: float, class_: str, hint: str) -> None:
        """A mark that points down at a point."""
        a, b = self.px(x), self.py(y)
        path = f"M{a - 5},{b - 11}L{a + 5},{b - 11}L{a},{b - 2}Z"
        self._over.append(tag("path", tag("title", hint), class_=f"mark {class_}", d=path))

    def hint(self, x0: float, x1: float, text: str) -> None:
        """What a pointer that rests on this stretch is told."""
        a, b = self.px(x0), self.px(x1)
        self._over.append(
            tag(
                "rect",
                tag("title", text),
                class_="hint",
                x=a,
                y=self.top,
                width=round(max(b - a, 1.0), 1),
                height=self.bottom - self.top,
            )
        )

    def svg_body(self) -> Safe:
        """What was drawn, for a picture of several plots."""
        frame = tag(
            "line", class_="frame", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom
        )
        return joined([*self._drawn, frame, *self._over])

    def svg(self) -> Safe:
        """The whole chart."""
        return tag(
            "svg",
            self.svg_body(),
            viewBox=f"0 0 {self.width} {self.height}",
            role="img",
            aria_label=self._label,
        )

    def path(self, points: Sequence[Point]) -> str:
        """What an SVG path through the points is written as."""
        return "M" + "L".join(f"{self.px(x)},{self.py(y)}" for x, y in points)


def _attribute(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
