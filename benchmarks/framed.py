"""Pictures for the documentation: plots and names on a white ground, as files that stand alone."""

from __future__ import annotations

from collections.abc import Sequence

from spillway.report.svg import Safe, joined, tag

LINE_HEIGHT = 15
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #374151 }
.mid { text-anchor: middle } .end { text-anchor: end } .title { font-size: 15px; font-weight: 600 }
.line { fill: none; stroke-width: 2 }
.grid { stroke: #e5e7eb } .frame, .tick { stroke: #9ca3af }
.level { stroke: #374151; stroke-dasharray: 2 3 }
"""


def framed(title: str, drawn: Sequence[Safe], *, width: int, height: int, left: float) -> str:
    """An SVG file: what was drawn, below a title that begins at `left`. All in pixels."""
    style = tag("style", Safe(STYLE))
    ground = tag("rect", width=width, height=height, fill="#ffffff")
    return (
        tag(
            "svg",
            joined([style, ground, tag("text", title, class_="title", x=left, y=22), *drawn]),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            role="img",
            aria_label=title,
        )
        + "\n"
    )


def apart(heights: Sequence[float], bottom: float) -> list[float]:
    """Ascending heights of names, moved apart where they would meet, and not below `bottom`."""
    found = list(heights)
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + LINE_HEIGHT)
    # What was pushed below the frame goes up again, from the last name on.
    below = bottom
    for i in reversed(range(len(found))):
        found[i] = min(found[i], below)
        below = found[i] - LINE_HEIGHT
    return found
