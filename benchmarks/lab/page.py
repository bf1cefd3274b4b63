"""The generated parts of `docs/laboratory.md`, and what is kept of a run. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from benchmarks.lab.claims import Claim
from benchmarks.lab.experiments import PAPER, Experiment
from benchmarks.lab.flux_experiments import FluxExperiment
from benchmarks.lab.flux_lines import FluxOutcome
from benchmarks.lab.flux_page import FluxDone
from benchmarks.lab.lines import Outcome
from benchmarks.lab.window_experiments import WindowExperiment
from benchmarks.lab.window_lines import WindowOutcome
from benchmarks.lab.window_page import WindowDone

FOLDER = "laboratory"
"""Of the charts, below `docs/`."""


@dataclass(frozen=True)
class Limit:
    """What could be had at most, with some memory."""

    memory_bytes: int
    """Of all slots."""
    ceiling: int
    """By any policy that brings nothing back."""
    static: int | None = None
    """By the best static choice; None: that is not known."""
    foresight: int | None = None
    """By a schedule that knows the day: no less than this can be had."""


@dataclass(frozen=True)
class Done:
    """An experiment that has been run."""

    experiment: Experiment
    outcomes: Mapping[str, Outcome]
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """By the names of the lines that spilled."""
    cpu_s: float = 0.0
    """That all of it took."""
    digest: str = ""
    """Of the code and the parameters that it came from: see `benchmarks.lab.digest`."""

    @property
    def claims(self) -> Sequence[Claim]:
        """The report's sentences, judged."""
        return self.experiment.claims(self.outcomes)


T = TypeVar("T", WindowOutcome, FluxOutcome)
AnyDone = Done | WindowDone | FluxDone
AnyExperiment = Experiment | WindowExperiment | FluxExperiment


def claims_table(claims: Iterable[Claim], source: str = "the report") -> str:
    """What a source says, what came out, and whether it holds."""
    rows = [
        [
            claim.figure,
            claim.paper,
            claim.ours,
            _direction(claim),
            {True: "yes", False: "**no**", None: "–"}[claim.factor],
        ]
        for claim in claims
    ]
    return table(("figure", source, "here", "direction", "factor"), rows, right_from=9)


def _direction(claim: Claim) -> str:
    if claim.network:
        return "about its network"
    return {True: "yes", False: "**no**", None: "by construction"}[claim.direction]


def judged(done: Iterable[AnyDone]) -> str:
    """The claims of all experiments of one paper, as a table."""
    every = list(done)
    source = "the report" if all(d.experiment.paper == PAPER for d in every) else "the paper"
    return claims_table((c for each in every for c in each.claims), source)


def figure_section(done: AnyDone) -> str:
    """Setting, charts and figures of an experiment."""
    parts = [done.experiment.setting, ""]
    for each in done.experiment.pictures:
        parts += [f"![{each.title}]({FOLDER}/figure-{each.figure}.svg)", ""]
    return "\n".join([*parts, outcomes_table(done)])


def outcomes_table(done: AnyDone) -> str:
    """A row for each line."""
    if not isinstance(done, Done):
        return table(("line", *done.heads), done.rows)
    columns = _columns(done)
    rows = [
        [outcome.name, *(text(done, outcome) for _, text in columns)]
        for outcome in done.outcomes.values()
    ]
    rows += [[*row, *[""] * (1 + len(columns) - len(row))] for row in _limit_rows(done)]
    return table(("line", *(head for head, _ in columns)), rows)


def ceiling_table(done: Iterable[AnyDone]) -> str:
    """What the defaults reach on every day on which they have to spill: of the ceiling, which does
    not bound what brings groups back, and of all results, which nothing passes."""
    found = []
    for each in done:
        if not isinstance(each, Done):
            continue
        for name, goal in each.experiment.goals.items():
            limit = each.limits.get(name)
            if limit is None:  # kept from a run that did not ask for it
                continue
            outcome = each.outcomes[name]
            share = outcome.run_time / limit.ceiling
            of_all = outcome.run_time / (outcome.run_time + outcome.missing)
            foresight = f"{limit.foresight / limit.ceiling:.1%}" if limit.foresight else "–"
            met = "yes" if share >= goal else "**no**"
            figure = each.experiment.figures[0]
            shares = f"{share:.1%}", foresight, f"{of_all:.1%}"
            found.append([figure, name, *shares, f"{goal:.0%}", met])
    heads = ("figure", "line", "of the ceiling", "foresight", "of all results", "goal", "met")
    return table(heads, found, 2)


def _limit_rows(done: Done) -> list[list[str]]:
    """What could be had with each memory: who, results, what is left, the share of the ceiling."""
    limits = {limit.memory_bytes: limit for limit in done.limits.values()}
    whole = max((o.run_time + o.missing for o in done.outcomes.values()), default=0)
    found = []
    for memory, limit in limits.items():
        of = f", {memory / 2**20:.1f} MiB" if len(limits) > 1 else ""
        both = ("best static choice", limit.static), ("foresight", limit.foresight)
        for name, results in both:
            if results is not None:
                share = f"{results / limit.ceiling:.1%}" if limit.ceiling else "–"
                found.append([f"*{name}{of}*", f"{results:,}", f"{whole - results:,}", share])
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> str:
    """Markdown; columns from number `right_from` on are set to the right."""
    marks = ["--:" if i >= right_from else "---" for i in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _columns(done: Done) -> list[tuple[str, Any]]:
    """(head, (done, outcome) -> text) of what there is to see in any of the lines."""
    outcomes = done.outcomes.values()
    found: list[tuple[str, Any]] = [
        ("results at run time", lambda _, o: f"{o.run_time:,}"),
        ("left to cleanup", lambda _, o: f"{o.missing:,}"),
    ]
    if done.limits:
        found.append(("of the ceiling", _share))
    if any(o.cuts for o in outcomes):
        found += [
            ("spills", lambda _, o: f"{o.spills:,}"),
            ("groups spilled", lambda _, o: f"{o.cuts:,}"),
        ]
    if any(o.returned for o in outcomes):
        found.append(("came back", lambda _, o: f"{o.returned:,}"))
    if any(o.joins_cut for o in outcomes):
        found.append(("of each join", lambda _, o: ", ".join(f"{each:,}" for each in o.joins_cut)))
    if any(o.adaptations for o in outcomes):
        found += [
            ("relocations", lambda _, o: f"{o.adaptations:,}"),
            ("groups moved", lambda _, o: f"{o.moved_groups:,}"),
        ]
    found.append(("run, CPU s", lambda _, o: f"{o.run_cpu_s:.1f}"))
    if any(o.cuts for o in outcomes):
        of_each = "join" if any(o.joins_cut for o in outcomes) else "slot"
        found.append(
            (
                f"cleanup of each {of_each}, CPU s",
                lambda _, o: ", ".join(f"{s:.2f}" for s in o.cleanup_cpu_s),
            )
        )
    return found


def _share(done: Done, outcome: Outcome) -> str:
    limit = done.limits.get(outcome.name)
    return f"{outcome.run_time / limit.ceiling:.1%}" if limit and limit.ceiling else "–"


def dump(done: Iterable[AnyDone]) -> str:
    """Everything that came out, by the experiments' figures."""
    kept = {
        ",".join(each.experiment.figures): {
            "outcomes": [asdict(o) for o in each.outcomes.values()],
            "limits": {name: asdict(limit) for name, limit in _limits(each).items()},
            "cpu_s": each.cpu_s,
            "digest": each.digest,
        }
        for each in done
    }
    return json.dumps(kept, separators=(",", ":")) + "\n"


def _limits(done: AnyDone) -> Mapping[str, Limit]:
    return done.limits if isinstance(done, Done) else {}


def restore(text: str, experiments: Iterable[AnyExperiment]) -> list[AnyDone]:
    """The inverse of `dump`: the experiments that it holds, in the order given.

    Those whose lines have other names or figures by now are left out.
    """
    kept = json.loads(text)
    found: list[AnyDone] = []
    for experiment in experiments:
        each = kept.get(",".join(experiment.figures))
        if not each or [o["name"] for o in each["outcomes"]] != [x.name for x in experiment.lines]:
            continue
        cpu_s, digest = each["cpu_s"], each.get("digest", "")
        if isinstance(experiment, WindowExperiment):
            if of_windows := _restored(WindowOutcome, each["outcomes"]):
                found.append(WindowDone(experiment, of_windows, cpu_s, digest))
        elif isinstance(experiment, FluxExperiment):
            if of_flux := _restored(FluxOutcome, each["outcomes"]):
                found.append(FluxDone(experiment, of_flux, cpu_s, digest))
        else:
            outcomes = {o["name"]: Outcome(**o) for o in each["outcomes"]}
            limits = {name: Limit(**limit) for name, limit in each["limits"].items()}
            found.append(Done(experiment, outcomes, limits, cpu_s, digest))
    return found


def _restored(kind: type[T], outcomes: Sequence[Mapping[str, Any]]) -> dict[str, T]:
    """Outcomes by their names; none when they have other figures by now."""
    names = {each.name for each in fields(kind)}
    if any(o.keys() != names for o in outcomes):
        return {}
    return {o["name"]: kind(**o) for o in outcomes}
