"""The experiments of Liu, Zhu & Rundensteiner, SIGMOD 2006, section 6.2, with their parameters.

The five-way tree on two slots, a row every 50 ms on each stream, 256 groups a join where the paper
has 300, 60 MB of memory a slot, 30 % spilled at a time. The paper gives averages of join ratios;
how they differ between groups, and the tuple range, are the shipped scenarios'. Nor does it give
the size of a tuple: rows have the sizes that they have here, and memory is the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.lab.claims import ALIKE, Claim, ratio
from benchmarks.lab.cluster import Spilling
from benchmarks.lab.control import POLICIES, POOLED
from benchmarks.lab.experiments import Experiment, Found, Picture
from benchmarks.lab.lines import Line, Outcome
from benchmarks.lab.tree_workload import TreeWorkload
from spillway.policy.automatic import SMALL_SPILL
from spillway.policy.victims import DEFAULT_VICTIMS

PAPER = "SIGMOD 2006"
SCALE = 1 / 8
MEMORY_BYTES = round(60_000_000 * SCALE)
"""Of a slot."""
BOTTOM, LOCAL = "bottom-up", "local-output"
GLOBAL, PENALTY = "global-output", "global-output-penalty"
VICTIMS = (BOTTOM, LOCAL, GLOBAL, PENALTY, DEFAULT_VICTIMS)
UNMOVED, LAZY = "no relocation", "lazy-disk"


def spills(outcome: Outcome) -> float:
    """Times that a slot spilled, on average."""
    return outcome.spills / len(outcome.memory)


def results_claims(figure: str, found: Found) -> list[Claim]:
    """What the paper says of each of its three figures of results."""
    most = {name: found[name].run_time for name in VICTIMS}
    least = min(most[GLOBAL], most[PENALTY])
    local = [
        Claim(
            figure,
            f"Both global orders give much more than {name}",
            f"{ratio(most[GLOBAL], most[name]):.2f} times ({GLOBAL}) and "
            f"{ratio(most[PENALTY], most[name]):.2f} times ({PENALTY}) its results",
            least > (1 + ALIKE) * most[name],
        )
        for name in (BOTTOM, LOCAL)
    ]
    others = max(each for name, each in most.items() if name not in (PENALTY, DEFAULT_VICTIMS))
    return [
        *local,
        Claim(
            figure,
            f"{PENALTY} gives more than all others",
            f"{ratio(most[PENALTY], others):.2f} times the results of the best other",
            most[PENALTY] > others,
        ),
    ]


def spill_claims(figure: str, found: Found) -> list[Claim]:
    """Numbers of spills, of which the paper says that they are alike in all three experiments."""
    often = {name: spills(found[name]) for name in (GLOBAL, PENALTY, BOTTOM)}
    return [
        Claim(
            figure,
            f"{PENALTY} spills less often than {GLOBAL}, and {BOTTOM} less often still",
            ", ".join(f"{each:g} times ({name})" for name, each in often.items()),
            often[GLOBAL] > often[PENALTY] > often[BOTTOM],
        )
    ]


def cleanup_claims(figure: str, found: Found) -> list[Claim]:
    """That of bottom-up; the paper says so of all three experiments."""
    took = {name: sum(found[name].cleanup_cpu_s) for name in VICTIMS}
    longest = max(each for name, each in took.items() if name != BOTTOM)
    return [
        Claim(
            figure,
            f"Cleanup takes much longer after {BOTTOM} than after the others",
            f"{ratio(took[BOTTOM], longest):.2f} times the longest of them "
            f"({took[BOTTOM]:.2f} s against {longest:.2f})",
            took[BOTTOM] > (1 + ALIKE) * longest,
        )
    ]


def cleanup_factor(
    figure: str, found: Found, names: tuple[str, str], seconds: tuple[float, float]
) -> Claim:
    """The cleanup of one order, which took longer in the paper, and that of another."""
    longer, shorter = names
    took = [sum(found[name].cleanup_cpu_s) for name in names]
    factor, ours = seconds[0] / seconds[1], ratio(took[0], took[1])
    return Claim(
        figure,
        f"Cleanup takes {factor:.2f} times as long after {longer} as after {shorter} "
        f"({seconds[0]:.1f} s against {seconds[1]:.1f})",
        f"{ours:.2f} times as long ({took[0]:.2f} s against {took[1]:.2f})",
        ours > 1 + ALIKE,
        factor,
        ours,
    )


def bottom_heavy_claims(found: Found) -> Sequence[Claim]:
    """Of Figures 16 to 18."""
    often = {name: spills(found[name]) for name in (GLOBAL, PENALTY, BOTTOM)}
    fewer = ratio(often[GLOBAL], often[PENALTY])
    least = ratio(often[PENALTY], often[BOTTOM])
    return [
        *results_claims("16", found),
        Claim(
            "17",
            f"{GLOBAL} spills 13 times, {PENALTY} 10 times: 1.3 times as often",
            f"{often[GLOBAL]:g} and {often[PENALTY]:g} times a slot: {fewer:.2f} times as often",
            fewer > 1,
            13 / 10,
            fewer,
        ),
        Claim(
            "18",
            f"{PENALTY} spills 10 times, {BOTTOM} 7 times: 1.4 times as often, and yet with more "
            "results",
            f"{often[PENALTY]:g} and {often[BOTTOM]:g} times a slot: {least:.2f} times as often; "
            f"{ratio(found[PENALTY].run_time, found[BOTTOM].run_time):.2f} times the results",
            least > 1 and found[PENALTY].run_time > found[BOTTOM].run_time,
            10 / 7,
            least,
        ),
        cleanup_factor("16, text", found, (PENALTY, GLOBAL), (495.741, 305.997)),
        *cleanup_claims("16, text", found),
    ]


def top_heavy_claims(found: Found) -> Sequence[Claim]:
    """Of Figure 19."""
    return [
        *results_claims("19", found),
        *spill_claims("19, text", found),
        cleanup_factor("19, text", found, (GLOBAL, PENALTY), (362.752, 278.234)),
        *cleanup_claims("19, text", found),
    ]


def all_heavy_claims(found: Found) -> Sequence[Claim]:
    """Of Figure 20."""
    return [
        *results_claims("20", found),
        *spill_claims("20, text", found),
        *cleanup_claims("20, text", found),
    ]


def against_claims(found: Found) -> Sequence[Claim]:
    """Of a day that the paper does not have."""
    worth = ratio(found[GLOBAL].run_time, found[LOCAL].run_time)
    more = ratio(found[PENALTY].run_time, found[GLOBAL].run_time)
    return [
        Claim(
            "against",
            f"Not in the paper: {GLOBAL} gives more than {LOCAL}, and by over a twentieth",
            f"{worth:.3f} times its results",
            worth > 1 + ALIKE,
        ),
        Claim(
            "against",
            f"Not in the paper: {PENALTY} gives more than {GLOBAL}",
            f"{more:.2f} times its results",
            more > 1,
        ),
    ]


def relocation_claims(found: Found) -> Sequence[Claim]:
    """Of a day that the paper does not have."""
    line, alone, lazy = (found[name].run_time for name in (POOLED, UNMOVED, LAZY))
    return [
        Claim(
            "relocation",
            "Not in the paper: with one eviction line for the groups of all joins and slots more "
            "results come at run time than without relocation",
            f"{ratio(line, alone):.2f} times the results",
            line > alone,
        ),
        Claim(
            "relocation",
            f"Not in the paper: and more than with {LAZY}",
            f"{ratio(line, lazy):.3f} times the results",
            line > lazy,
        ),
    ]


def _relocated() -> Experiment:
    name = "papers-five-way-3-2-3"
    workload = TreeWorkload(name, SCALE)
    spilling = Spilling(2 * MEMORY_BYTES // 3, SMALL_SPILL, LOCAL)
    shares = (4.0, 1.0, 1.0)
    lines = (
        Line(UNMOVED, spilling, shares),
        *(Line(each, spilling, shares, POLICIES[each], 60) for each in (LAZY, POOLED)),
    )
    return Experiment(
        ("tree-relocation",),
        "Trees of joins, with relocation",
        f"The tree of `{name}` on three slots of 40 MB, one of which has two thirds of the groups "
        "of every join at the beginning. What is spilled is the system's default for trees, 5 % "
        f"by {LOCAL}; nothing comes back. Policies are asked every minute, which is an epoch. An "
        "eighth of the size, memory included.",
        workload,
        60,
        lines,
        (Picture("tree-relocation", "Results of the tree", tuple(line.name for line in lines)),),
        relocation_claims,
        limits=True,
        paper=PAPER,
    )


def _five_way(
    figure: str,
    ratios: tuple[int, int, int],
    claims: Callable[[Found], Sequence[Claim]],
    more: tuple[Picture, ...] = (),
    *,
    against: bool = False,
) -> Experiment:
    name = f"papers-five-way-{'-'.join(map(str, ratios))}"
    workload = TreeWorkload(name, SCALE, against=against)
    named = f"join ratios {', '.join(map(str, ratios))}"
    title = f"{named}, keys against each other" if against else named
    paired = (
        " Rows of C and D are paired so that a frequent key of one join comes with a rare one of "
        "the next."
        if against
        else ""
    )
    spilling = partial(Spilling, MEMORY_BYTES, 0.3, inactive_s=workload.minutes * 30)
    return Experiment(
        (f"tree-{figure}", *(each.figure for each in more)),
        f"Trees of joins, {title}",
        f"The five-way tree ((A B C) D) E with the average {named}: the scenario "
        f"`{name}`.{paired} Two slots of 60 MB, 30 % is spilled; theta_t is half of the run. "
        "An eighth of the size, memory included; an epoch is a minute.",
        workload,
        60,
        tuple(Line(name, spilling(victims=name), (1.0, 1.0)) for name in VICTIMS),
        (Picture(f"tree-{figure}", f"Results of the tree: {title}", VICTIMS), *more),
        claims,
        limits=True,
        paper=PAPER,
    )


def tree_experiments() -> tuple[Experiment, ...]:
    """All of them, in the order of the figures."""

    def memory(figure: str, *lines: str) -> Picture:
        title = f"Memory of both slots: {' and '.join(lines)}"
        return Picture(f"tree-{figure}", title, lines, True, level=MEMORY_BYTES)

    return (
        _five_way(
            "16",
            (3, 1, 1),
            bottom_heavy_claims,
            (memory("17", GLOBAL, PENALTY), memory("18", PENALTY, BOTTOM)),
        ),
        _five_way("19", (1, 3, 3), top_heavy_claims),
        _five_way("20", (3, 2, 3), all_heavy_claims),
        _five_way("against", (3, 2, 3), against_claims, against=True),
        _relocated(),
    )
