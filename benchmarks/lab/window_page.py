"""What is shown and kept of an experiment of windowed joins, and its charts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.lab.claims import Claim
from benchmarks.lab.picture import chart, empty
from benchmarks.lab.window_experiments import WindowExperiment, WindowPicture
from benchmarks.lab.window_lines import WindowOutcome
from spillway.report.svg import ticks

COLUMNS: tuple[tuple[str, Callable[[WindowOutcome], str]], ...] = (
    ("results", lambda o: f"{o.results:,}"),
    ("delay, s", lambda o: f"{o.delay_s:.2f}"),
    ("in the last two minutes", lambda o: f"{o.last_delay_s:.2f}"),
    ("work", lambda o: f"{o.busy:.0%}"),
    ("idle, busiest slot", lambda o: f"{o.idle_least:.0%}"),
    ("left over, s", lambda o: f"{o.left_s:.1f}"),
    ("slots", lambda o: f"{o.slots:g}"),
    ("moved", lambda o: f"{o.moved_groups:,}"),
    ("splits", lambda o: f"{o.splits:,}"),
    ("merges", lambda o: f"{o.merges:,}"),
    ("groups", lambda o: f"{o.groups:,}"),
    ("window of a slot, rows", lambda o: f"{max(o.window_rows):,}"),
    ("CPU, of that with fixed groups", lambda o: f"{o.beside:.2f}" if o.beside else "–"),
    ("run, CPU s", lambda o: f"{o.run_cpu_s:.1f}"),
)


@dataclass(frozen=True)
class WindowDone:
    """An experiment that has been run."""

    experiment: WindowExperiment
    outcomes: Mapping[str, WindowOutcome]
    cpu_s: float = 0.0
    """That all of it took."""
    digest: str = ""

    @property
    def claims(self) -> Sequence[Claim]:
        """The paper's sentences, judged."""
        return self.experiment.claims(self.outcomes)

    @property
    def heads(self) -> list[str]:
        """Of the columns after the line's name."""
        return [head for head, _ in COLUMNS]

    @property
    def rows(self) -> list[list[str]]:
        """A row for each line."""
        return [[o.name, *(text(o) for _, text in COLUMNS)] for o in self.outcomes.values()]

    @property
    def charts(self) -> list[tuple[str, str]]:
        """Each figure with its chart."""
        pictures = self.experiment.pictures
        return [(each.figure, window_picture(each, self.outcomes)) for each in pictures]


def window_picture(wanted: WindowPicture, found: Mapping[str, WindowOutcome]) -> str:
    """The chart of a figure."""
    curves = [
        (name, [(float(x), float(wanted.value(found[line]))) for x, line in points])
        for name, points in wanted.curves.items()
    ]
    xs = [x for _, points in curves for x, _ in points]
    most = max(y for _, points in curves for _, y in points) * 1.05
    top = most if wanted.top is None else min(wanted.top, most)
    plot = empty(wanted.title, (0, max(xs)), (0, top))
    plot.axis_x(ticks(0, max(xs), 8), lambda value: f"{value:,g}", wanted.x)
    plot.axis_y(ticks(0, top), lambda value: f"{value:g}", wanted.y)
    return chart(wanted.title, plot, curves)
