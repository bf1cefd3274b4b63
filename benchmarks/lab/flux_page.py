"""What is shown and kept of an experiment of Flux's, and its charts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.lab.claims import Claim
from benchmarks.lab.flux_experiments import FluxExperiment, FluxPicture
from benchmarks.lab.flux_lines import FluxOutcome
from benchmarks.lab.picture import chart, empty
from spillway.report.svg import ticks


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f}" if seconds < 0.1 else f"{seconds * 1000:,.0f}"


COLUMNS: tuple[tuple[str, Callable[[FluxOutcome], str]], ...] = (
    ("tuples a second, at the end", lambda o: f"{o.steady:,.0f}"),
    ("whole run", lambda o: f"{o.whole:,.0f}"),
    ("latency without the buffer, ms", lambda o: _ms(o.steady_latency_s)),
    ("groups moved", lambda o: f"{o.moved:,}"),
    ("the last at, s", lambda o: f"{o.last_move_s:.1f}" if o.moved else "–"),
    ("time with moves", lambda o: f"{o.moving:.0%}" if o.rounds else "–"),
    ("rounds", lambda o: f"{o.rounds:,}" if o.rounds else "–"),
    ("slowest decision, ms", lambda o: f"{o.decision_ms:.0f}" if o.rounds else "–"),
)


@dataclass(frozen=True)
class FluxDone:
    """An experiment that has been run."""

    experiment: FluxExperiment
    outcomes: Mapping[str, FluxOutcome]
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
        return [(each.figure, flux_picture(each, self.outcomes)) for each in pictures]


def flux_picture(wanted: FluxPicture, found: Mapping[str, FluxOutcome]) -> str:
    """The chart of a figure: lines by the second, or points of several lines."""
    curves = [
        (name, [(float(second), value / wanted.unit) for second, value in enumerate(values)])
        for name in wanted.lines
        for values in [wanted.by_second(found[name])]
    ]
    curves += [
        (name, [(float(x), wanted.value(found[line]) / wanted.unit) for x, line in points])
        for name, points in wanted.curves.items()
    ]
    last = max(x for _, points in curves for x, _ in points)
    top = max(y for _, points in curves for _, y in points) * 1.05
    plot = empty(wanted.title, (0, last), (0, top))
    plot.axis_x(ticks(0, last, 8), lambda value: f"{value:,g}", wanted.x)
    plot.axis_y(ticks(0, top), lambda value: f"{value:g}", wanted.y)
    return chart(wanted.title, plot, curves)
