"""Figures 6 to 12 of TR-05-04: how much memory a join takes, and what is best spilled of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.lab.claims import ALIKE, Claim, falling, ratio
from benchmarks.lab.cluster import Spilling
from benchmarks.lab.experiments import (
    AMPLE,
    STILL,
    SYSTEM,
    VICTIMS,
    Experiment,
    Found,
    Picture,
    as_the_system,
    even,
    memory_of,
    thirds,
)
from benchmarks.lab.lines import Line, Outcome
from benchmarks.lab.workload import F64, Workload

LOW, HIGH = "productivity", "most-productive"
PUSHED = (0, 10, 30, 50)


def small_query() -> Experiment:
    """Figure 6."""
    names = [f"M{n}" for n in range(1, 6)]

    def claims(found: Found) -> Sequence[Claim]:
        results = [found[name].run_time for name in names]
        cpu = ratio(found["M5"].run_cpu_s, found["M1"].run_cpu_s)
        return [
            Claim(
                "6",
                "More machines have a negligible effect on throughput; five show a slight drop",
                f"{min(results) / max(results):.2f} of the results with any number of slots, as "
                "every run is exact and the clock virtual; five slots take "
                f"{cpu:.1f} times the CPU time of one",
                None,
            )
        ]

    return Experiment(
        ("6",),
        "A small query on one to five slots",
        "A tuple every 20 ms in each stream, tuple range 50,000, join ratio 1, 40 minutes; memory "
        "for everything. Full size.",
        Workload(40, 20, 50_000, even(1)),
        30,
        tuple(Line(f"M{n}", Spilling(AMPLE), (1.0,) * n) for n in range(1, 6)),
        (Picture("6", "Results of a small query", tuple(names)),),
        claims,
    )


def large_query() -> Experiment:
    """Figure 7."""
    workload = Workload(60, 10, 50_000, even(2)).scaled(1 / 8)
    limit = memory_of(workload, 25 / 60)
    names = [f"M{n}" for n in range(1, 6)]
    spilling, system = "M1, spilling", f"M1, {SYSTEM}"
    own = Spilling(limit, inactive_s=1200)

    def claims(found: Found) -> Sequence[Claim]:
        one, two = (overflow(found[name], limit) or workload.minutes for name in ("M1", "M2"))
        longest = [found[name].run_time for name in names[2:]]
        return [
            Claim(
                "7",
                "One machine overflows after 25 minutes, two after 35: 1.4 times as long",
                f"one after {one:.1f} minutes (memory was set by this), two after {two:.1f}: "
                f"{two / one:.1f} times, as each has half of the state",
                None,
            ),
            Claim(
                "7",
                "With enough memory, more machines do not help: four and five are alike",
                f"{min(longest) / max(longest):.2f} of the results with three to five slots",
                None,
            ),
        ]

    return Experiment(
        ("7",),
        "A large query on one to five slots",
        "A tuple every 10 ms, tuple range 50,000, join ratio 2; 60 minutes instead of 40, to see "
        "two slots overflow. Memory of a slot is what one slot holds after 25 minutes, when the "
        "report's one machine overflows. Lines end where memory does; the last two spill "
        "instead, the first of them as the report does. An eighth of the size.",
        workload,
        30,
        (
            *(Line(f"M{n}", Spilling(AMPLE), (1.0,) * n) for n in range(1, 6)),
            Line(spilling, own),
            Line(system, as_the_system(own)),
        ),
        (Picture("7", "Results of a large query", (*names, spilling, system), ends_at=limit),),
        claims,
        limits=True,
        goals={system: STILL},
    )


def share_pushed() -> Experiment:
    """Figures 9 and 10."""
    workload = Workload(50, 30, 30_000, even(3))
    limit = memory_of(workload, 1 / 2)
    names = [f"{share} % pushed" for share in PUSHED]

    def claims(found: Found) -> Sequence[Claim]:
        outcomes = [found[name] for name in names]
        best = outcomes[0].run_time
        return [
            Claim(
                "9",
                "The more is pushed, the fewer results at run time",
                ", ".join(f"{o.run_time / best:.2f} ({o.name})" for o in outcomes),
                falling([o.run_time for o in outcomes]),
            ),
            Claim(
                "10",
                "The more is pushed each time, the fewer times it happens",
                ", ".join(f"{o.spills} times ({o.name})" for o in outcomes[1:])
                + ": what comes beyond the limit, by what a push takes",
                None,
            ),
            Claim(
                "10",
                "Memory is effectively controlled",
                f"at most {max(max(o.memory[0]) for o in outcomes[1:]) / limit:.3f} of the limit "
                "after each epoch, for a push takes at least what is beyond it",
                None,
            ),
        ]

    return Experiment(
        ("9", "10"),
        "How much to spill at a time",
        "A tuple every 30 ms, tuple range 30,000, join ratio 3, 50 minutes, one slot, random "
        "victims; the last line spills as the system does. Memory is half of the day's state. "
        "Full size.",
        workload,
        30,
        (
            *(
                Line(name, Spilling(limit if share else AMPLE, share / 100, "random"))
                for name, share in zip(names, PUSHED, strict=True)
            ),
            Line(SYSTEM, as_the_system(Spilling(limit))),
        ),
        (
            Picture("9", "Results by the share that is pushed", tuple(names)),
            Picture("10", "Memory by the share that is pushed", tuple(names), True, level=limit),
        ),
        claims,
        limits=True,
        goals={SYSTEM: STILL},
    )


def _victims(
    figure: str,
    title: str,
    setting: str,
    join_ratio: F64,
    claims: Callable[[Found], Sequence[Claim]],
    other_memory: Sequence[float] = (),
) -> Experiment:
    workload = Workload(50, 30, 30_000, join_ratio)

    def spilling(victims: str, share: float) -> Spilling:
        return Spilling(memory_of(workload, share), 0.3, victims, workload.minutes * 30)

    scarcer = {f"{SYSTEM}, memory {share:g}": share for share in other_memory}
    return Experiment(
        (figure,),
        title,
        f"{setting} A tuple every 30 ms, tuple range 30,000, 50 minutes, one slot; 30 % is "
        "pushed at a time; theta_t is half of the run. Memory is half of the day's "
        "state. Full size.",
        workload,
        30,
        (
            *(Line(name, spilling(name, 1 / 2)) for name in VICTIMS),
            Line(SYSTEM, as_the_system(spilling(LOW, 1 / 2))),
            *(
                Line(f"{name}, memory {share:g}", spilling(name, share))
                for share in other_memory
                for name in (LOW, HIGH)
            ),
            *(Line(name, as_the_system(spilling(LOW, share))) for name, share in scarcer.items()),
        ),
        (Picture(figure, f"Results by victims: {title.lower()}", (*VICTIMS, SYSTEM)),),
        claims,
        limits=True,
        goals=dict.fromkeys((SYSTEM, *scarcer), STILL),
    )


def various_ratios() -> Experiment:
    """Figure 11."""

    def claims(found: Found) -> Sequence[Claim]:
        low, high = found[LOW], found[HIGH]
        fewer = ratio(high.missing, low.missing)
        shorter = ratio(max(high.cleanup_cpu_s), max(low.cleanup_cpu_s))
        return [
            Claim(
                "11",
                "Pushing the less productive groups gives many more results at run time",
                f"{ratio(low.run_time, high.run_time):.1f} times those of its opposite",
                low.run_time > high.run_time,
            ),
            Claim(
                "11",
                "It leaves 5.1 times fewer results to cleanup (194,308 against 992,893)",
                f"{fewer:.1f} times fewer ({low.missing:,} against {high.missing:,})",
                fewer > 1,
                5.1,
                fewer,
            ),
            Claim(
                "11",
                "Its cleanup is 13 times shorter (26,879 ms against 359,396)",
                f"{shorter:.1f} times shorter ({max(low.cleanup_cpu_s):.2f} s against "
                f"{max(high.cleanup_cpu_s):.2f})",
                shorter > 1 + ALIKE,
                13.4,
                shorter,
            ),
        ]

    return _victims(
        "11",
        "Partitions of various join ratios",
        "A third of the partitions each with the join ratios 4, 2 and 1.",
        thirds(),
        claims,
        other_memory=(0.25, 0.75),
    )


def even_ratios() -> Experiment:
    """Figure 12."""

    def claims(found: Found) -> Sequence[Claim]:
        more = ratio(found[LOW].run_time, found[HIGH].run_time)
        return [
            Claim(
                "12",
                "With one join ratio for all, it is still slightly better than its opposite",
                f"{more:.2f} times its results",
                more > 1,
            )
        ]

    return _victims(
        "12", "Partitions of one join ratio", "All partitions have the ratio 3.", even(3), claims
    )


def overflow(outcome: Outcome, limit: int) -> float | None:
    """The minute at which a slot's memory passes the limit."""
    return next(
        (
            minute
            for minute, *held in zip(outcome.minutes, *outcome.memory, strict=True)
            if max(held) > limit
        ),
        None,
    )


def memory_experiments() -> tuple[Experiment, ...]:
    """In the order of the figures."""
    return (small_query(), large_query(), share_pushed(), various_ratios(), even_ratios())
