"""The pictures of docs/windows.md: python -m scripts.window_pictures."""

from __future__ import annotations

from pathlib import Path

from spillway.report.svg import Safe, joined, tag

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDE = 720
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
.dim { fill: #57606a } .line { stroke: #8c959f; stroke-width: 1.5; fill: none }
.row { fill: #0969da } .other { fill: #bc4c00 } .gone { fill: #8c959f }
.window { fill: #0969da; fill-opacity: 0.12; stroke: #0969da }
.mark { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 5 4 } .said { fill: #cf222e }
.slice { fill: #2da44e; fill-opacity: 0.15; stroke: #2da44e } .over { fill: #8c959f; fill-opacity: 0.2; stroke: #8c959f }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 } text { fill: #e6edf3 } .dim { fill: #9198a1 } .line { stroke: #656c76 }
  .row { fill: #4493f8 } .other { fill: #f0883e } .said { fill: #f85149 } .mark { stroke: #f85149 }
}
"""  # noqa: E501 - CSS


def _words(x: float, y: float, text: str, look: str = "", anchor: str = "start") -> Safe:
    return tag("text", text, x=x, y=y, class_=look, text_anchor=anchor)


def _line(y: float, name: str) -> Safe:
    """A stream's line of time, with its name in front."""
    return joined([_words(8, y + 4, name), tag("path", class_="line", d=f"M110,{y}H{WIDE - 20}")])


def _dots(y: float, *at: float, look: str = "row") -> Safe:
    return joined([tag("circle", class_=look, cx=x, cy=y, r=6) for x in at])


def _box(x: float, y: float, width: float, height: float, look: str) -> Safe:
    return tag("rect", class_=look, x=x, y=y, width=width, height=height, rx=4)


def _mark(x: float, top: float, bottom: float, text: str) -> Safe:
    path = tag("path", class_="mark", d=f"M{x},{top}V{bottom}")
    return joined([path, _words(x + 6, top + 12, text, "said")])


def _drawn(title: str, height: float, *parts: Safe) -> str:
    return tag(
        "svg",
        tag("title", title),
        tag("style", Safe(STYLE)),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDE} {height:g}",
        role="img",
    )


def joins() -> str:
    """Which rows join."""
    return _drawn(
        "Rows join when all of them lie within the window",
        170,
        _box(230, 30, 240, 100, "window"),
        _words(350, 22, "10 minutes", "dim", "middle"),
        _line(60, "stock"),
        _line(100, "volume"),
        _dots(60, 230),
        _dots(100, 400, look="other"),
        _dots(100, 560, look="other"),
        _words(240, 50, "09:41"),
        _words(300, 120, "09:48: joins it"),
        _words(562, 120, "09:55: does not", "dim"),
        _words(110, 158, "time of the rows", "dim"),
    )


def watermark() -> str:
    """What the watermark follows, and what is late."""
    return _drawn(
        "The watermark follows the partition whose newest row is oldest, less the lateness",
        190,
        _line(60, "stock/0"),
        _line(100, "stock/1"),
        _dots(60, 300, 480, 600),
        _dots(100, 250, 440),
        _dots(100, 180, look="gone"),
        tag("path", class_="line", d="M320,140H440M320,134V146M440,134V146"),
        _words(380, 160, "lateness", "dim", "middle"),
        _mark(320, 16, 146, "watermark"),
        _words(120, 124, "comes now: late", "dim"),
        _words(446, 90, "newest of the slowest"),
        _words(606, 50, "newest"),
    )


def slices() -> str:
    """What leaves memory."""
    parts = []
    for n, look in enumerate(("over", "slice", "slice", "slice", "slice", "slice")):
        parts.append(_box(120 + 80 * n, 50, 78, 40, look))
    return _drawn(
        "A slice leaves memory when the watermark has passed its end by the window",
        170,
        *parts,
        _words(128, 44, "gone", "dim"),
        _words(360, 44, "in memory", "dim", "middle"),
        tag("path", class_="line", d="M198,112H518M198,106V118M518,106V118"),
        _words(358, 132, "window: four slices", "dim", "middle"),
        _mark(520, 16, 130, "watermark"),
        _dots(70, 140, 180, look="gone"),
        _dots(70, 220, 262, 300, 350, 420, 455, 505, 540, 580),
        _words(120, 160, "time of the rows", "dim"),
    )


def carried() -> str:
    """What a window over the end of a session gives, and to whom."""
    return _drawn(
        "A window that reaches over midnight: its results belong to the later day",
        190,
        _box(280, 36, 240, 104, "window"),
        _line(60, "stock"),
        _line(110, "volume"),
        _mark(400, 10, 146, "end of Monday's session"),
        _dots(60, 180, look="gone"),
        _dots(60, 280),
        _dots(110, 320, look="other"),
        _dots(110, 460, look="other"),
        _words(246, 164, "Monday's result", "dim"),
        tag("path", class_="line", d="M280,66L320,104M280,66L460,104"),
        _words(448, 88, "Tuesday's"),
        _words(120, 44, "expired: not carried", "dim"),
    )


DRAWN = {
    "window-joins": joins,
    "window-watermark": watermark,
    "window-slices": slices,
    "window-carried": carried,
}


def main() -> None:
    """Write them."""
    for name, picture in DRAWN.items():
        (PICTURES / f"{name}.svg").write_text(picture() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
