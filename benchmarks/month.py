"""A month of sessions in one run of the stream: what grows with days, and the picture of it.

`tests/integration/test_month.py` runs the month (`make soak`) and hands in a `DayEnd` a session;
here is what is compared, and `docs/measured/month.svg`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.framed import framed
from spillway.report.svg import Plot, Safe, tag, ticks

MOST_RATIO = 1.2
"""The last quarter of a month against its second: what stays flat differs by noise."""
FEW = 5
WIDTH, PANEL, TOP, LEFT = 430, 190, 34, 62


@dataclass(frozen=True)
class DayEnd:
    """What a session left behind when it was complete, the next one running."""

    session: str
    epochs: int
    figures: dict[str, float] = field(default_factory=dict)
    """By `MEASURES`."""


MEASURES = {
    "driver_mib": "driver, resident MiB",
    "jvm_mib": "JVM, resident MiB",
    "workers_mib": "workers, resident MiB",
    "files_open": "files open",
    "threads": "threads",
    "state_mib": "state folder, MiB",
    "live_files": "live files but results'",
    "result_files": "live files of results a day",
    "checkpoint_files": "files in the checkpoint",
    "log_kib": "log, KiB a day",
    "epoch_ms": "an epoch, ms (median)",
    "refresh_ms": "a look at the journal, ms",
}
"""What is measured at each session's end, with the words for the picture."""


@dataclass(frozen=True)
class Trend:
    """One measure over the month."""

    name: str
    early: float
    """The median of the second quarter of the sessions: by then everything is warm."""
    late: float
    """The median of the last quarter."""

    @property
    def ratio(self) -> float:
        """How much it grew; 1 for what is not there at all."""
        return self.late / self.early if self.early else float(self.late > 0) + 1.0

    @property
    def is_flat(self) -> bool:
        """Whether that is noise: in whole numbers, a few more or less are no growth."""
        return self.ratio <= MOST_RATIO or self.late - self.early <= FEW


def trends(days: Sequence[DayEnd]) -> list[Trend]:
    """Every measure's trend. Raises ValueError for fewer than eight sessions."""
    if len(days) < 8:
        raise ValueError(f"{len(days)} sessions have no quarters that say anything: use 8 or more")
    quarter = len(days) // 4
    second, last = days[quarter : 2 * quarter], days[-quarter:]
    return [
        Trend(
            name,
            median(day.figures[name] for day in second),
            median(day.figures[name] for day in last),
        )
        for name in MEASURES
    ]


def chart(days: Sequence[DayEnd]) -> str:
    """An SVG: a panel a measure, over the sessions, from zero; its ratio beside its name."""
    ratios = {each.name: each.ratio for each in trends(days)}
    drawn: list[Safe] = []
    for number, (name, words) in enumerate(MEASURES.items()):
        values = [day.figures[name] for day in days]
        top = max(*values, 1.0)
        plot = Plot((1, len(days)), (0, 1.15 * top), label=words, width=WIDTH, height=PANEL)
        plot.axis_x([1, *range(5, len(days) + 1, 5)], lambda x: f"{x:.0f}", "session")
        plot.axis_y(ticks(0, 1.15 * top, 4), lambda y: f"{y:,.10g}", "")
        points = [(k + 1.0, value) for k, value in enumerate(values)]
        plot.add(tag("path", class_="line", d=plot.path(points), stroke="#1d4ed8"))
        heading = f"{words}: {ratios[name]:.2f} times"
        plot.add(tag("text", heading, x=plot.left, y=10))
        column, row = number % 2, number // 2
        at = f"translate({column * WIDTH} {TOP + row * (PANEL + 8)})"
        drawn.append(tag("g", plot.svg_body(), transform=at))
    height = TOP + (len(MEASURES) + 1) // 2 * (PANEL + 8)
    title = f"{len(days)} sessions in one run: the last quarter against the second"
    return framed(title, drawn, width=2 * WIDTH, height=height, left=LEFT)
