"""The experiments of Flux (UCB/CSD-2-1205), sections 4 to 6, with their parameters, on a model of
flows (`benchmarks.lab.flux_cluster`), by the system's own policies; and more slots. The paper's
figures are by the policies as they are printed there, `noise` 0. What is ours has the system's, but
what holds back a move that needs luck (`spillway.policy.guards`) is not in the model.

The policies go by figures that the model gives: idle time, tuples of each group, state in memory
and on disk. So utilisation is real here, as it is not where a virtual epoch takes no time. What the
paper does not say was chosen: which slots are loaded (a permutation drawn once), how keys of the
80/20 distribution lie (drawn once), and how much is spooled at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.lab.claims import ALIKE, Claim, alike, ratio
from benchmarks.lab.flux_cluster import LOADED, MB, Buffer
from benchmarks.lab.flux_lines import GB, FluxLine, FluxOutcome
from spillway.policy.view import NOISE

FluxFound = Mapping[str, FluxOutcome]
"""An experiment's outcomes by the lines' names."""

PAPER = "Flux"
BUFFERS = (0, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536)
MANY = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
FEW = (0, 1, 2, 4, 8, 12, 16, 18, 20)
DELTAS_S = (0.01, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0)
SKEW = FluxLine("", skewed=True, busiest=True, at_s=0.0, seconds=60.0, tail_s=60.0)
LARGE = FluxLine("", groups_of_slot=128, group_bytes=6 * MB, seconds=60.0)
HALF, SOME = GB - 512 * MB, GB - 262 * MB
"""What is left of 1 GB where 512 MB, or 262 MB, are taken."""
SLOTS, GROUPS = 1024, 32_768
EPOCH_TUPLES = 44_000
"""Of a slot in two seconds."""


@dataclass(frozen=True)
class FluxPicture:
    """One chart: some lines by the second, or for each curve points and the lines they are of."""

    figure: str
    title: str
    x: str
    y: str
    lines: tuple[str, ...] = ()
    curves: Mapping[str, Sequence[tuple[float, str]]] = field(default_factory=dict)
    value: Callable[[FluxOutcome], float] = lambda o: o.steady
    by_second: Callable[[FluxOutcome], Sequence[float]] = lambda o: o.throughput
    unit: float = 1000.0


@dataclass(frozen=True)
class FluxExperiment:
    """Some lines on clusters of their own."""

    figures: tuple[str, ...]
    title: str
    setting: str
    lines: tuple[FluxLine, ...]
    pictures: tuple[FluxPicture, ...]
    claims: Callable[[FluxFound], Sequence[Claim]]
    paper: str = PAPER


THOUSANDS = "tuples a second, thousands"


def short_term() -> FluxExperiment:
    """Figure 3."""
    kinds: Mapping[str, Literal["shared", "apart", "epochs"]] = {
        "skew buffer": "shared",
        "queues apart": "apart",
        "epochs": "epochs",
    }
    base = FluxLine("", rotating_s=0.5, seconds=16.0, tail_s=16.0)
    curves: dict[str, list[tuple[float, str]]] = {}
    lines = []
    for name, kind in kinds.items():
        for tuples in BUFFERS[kind == "epochs" :]:
            buffer = Buffer(tuples, kind)
            lines.append(replace(base, name=f"{name}, {tuples:,}", buffer=buffer))
            curves.setdefault(name, []).append((tuples, lines[-1].name))
    free = replace(base, name="no load", rotating_s=0.0)

    def claims(found: FluxFound) -> Sequence[Claim]:
        whole = found["no load"].steady
        none = found["skew buffer, 0"].steady / whole
        both = [
            (
                tuples,
                found[f"skew buffer, {tuples:,}"].steady / whole,
                found[f"queues apart, {tuples:,}"].steady / whole,
            )
            for tuples in BUFFERS[1:]
        ]
        least, ours, theirs = next(each for each in both if each[1] > each[2])
        near = found["skew buffer, 2,048"].steady / whole
        two_s = found["epochs, 65,536"].steady / whole
        return [
            Claim(
                "3",
                "With no buffer throughput drops to about half of the unloaded case",
                f"{none:.2f} of it",
                none < 1 - ALIKE,
                0.5,
                none,
            ),
            Claim(
                "3",
                "As buffer size is increased, Flux quickly beats Exchange",
                f"with {least} tuples a producer {ours:.2f} against {theirs:.2f}",
                least == BUFFERS[1],
            ),
            Claim(
                "3",
                "and approaches the throughput of the unloaded case",
                f"{near:.2f} of it with 2,048 tuples (160 KB)",
                near > 1 - ALIKE,
            ),
            Claim(
                "3",
                "Not in the paper: an epoch's rows do what the buffer does, if it lasts longer "
                "than the load on a slot",
                f"{two_s:.2f} of it with epochs of 65,536 tuples a slot (3 s), "
                f"{found['epochs, 2,048'].steady / whole:.2f} with 2,048 (0.1 s)",
                None,
            ),
        ]

    return FluxExperiment(
        ("flux-3",),
        "Short-term imbalance",
        "32 slots; a process that takes 57 % of a slot's throughput goes round, 0.5 s on each. "
        "Throughput by the tuples that each producer can hold: in one skew buffer, in queues apart "
        "for each consumer (Exchange), and as an epoch of this system, in which all slots work "
        "off their part before the next one begins.",
        (free, *lines),
        (
            FluxPicture(
                "flux-3",
                "Throughput under a load that goes round",
                "tuples a producer",
                THOUSANDS,
                curves={
                    name: [point for point in points if point[0] <= 16_384]
                    for name, points in curves.items()
                },
            ),
        ),
        claims,
    )


def load() -> FluxExperiment:
    """Figures 7 and 8."""
    one = FluxLine("static, 1 loaded", loaded=1, seconds=40.0)
    lines = [
        one,
        replace(one, name="flux-load, 1 loaded", policy="flux-load"),
        replace(one, name="no load", loaded=0),
        replace(
            one,
            name="flux-load in epochs, 1 loaded",
            policy="flux-load",
            buffer=Buffer(EPOCH_TUPLES, "epochs"),
            delta_min_s=2.0,
            noise=NOISE,
            seconds=120.0,
        ),
    ]
    for n in MANY[2:]:
        for policy in ("", "flux-load"):
            name = f"{policy or 'static'}, {n} loaded"
            lines.append(replace(one, name=name, policy=policy, loaded=n, seconds=60.0))
    curves = {
        kind: [(n, "no load" if n == 0 else f"{kind}, {n} loaded") for n in MANY]
        for kind in ("static", "flux-load")
    }

    def claims(found: FluxFound) -> Sequence[Claim]:
        whole = found["no load"].steady
        static = [found[f"static, {n} loaded"].steady / whole for n in MANY[1:]]
        balanced = [found[f"flux-load, {n} loaded"].steady / whole for n in MANY[1:]]
        possible = [1 - n / 32 * (1 - LOADED) for n in MANY[1:]]
        alone, with_moves = found["static, 1 loaded"], found["flux-load, 1 loaded"].throughput
        felt = next((s for s, rate in enumerate(alone.throughput) if rate < 0.9 * whole), None)
        low = [s for s, rate in enumerate(with_moves) if rate < 0.9 * possible[0] * whole]
        mended = low[-1] + 1 if low and low[-1] + 1 < len(with_moves) else None
        felt_s = None if felt is None else felt - 1
        mended_s = None if felt is None or mended is None else mended - felt
        epochs = found["flux-load in epochs, 1 loaded"]
        return [
            Claim(
                "7",
                "The load is felt once the skew buffer is full: after 4 s",
                "it is not felt" if felt_s is None else f"after {felt_s} s",
                felt_s is not None and felt_s > 0,
                4,
                felt_s,
                seconds=True,
            ),
            Claim(
                "7",
                "9 s later the policy has mended it, with 32 moves",
                (
                    "it does not stay above nine tenths of what is possible; "
                    if mended_s is None
                    else f"nine tenths of what is possible for good {mended_s} s later; "
                )
                + f"{found['flux-load, 1 loaded'].moved} moves in 40 s",
                mended_s is not None,
                9,
                mended_s,
                seconds=True,
            ),
            Claim(
                "8",
                "Static: throughput drops once a single machine is perturbed, and remains there",
                f"{max(static):.2f} to {min(static):.2f} of the unloaded case",
                None,
            ),
            Claim(
                "8",
                "With the policy it degrades linearly",
                "of what the loaded cluster can do at all: "
                + ", ".join(
                    f"{got / most:.2f} ({n})"
                    for n, got, most in zip(MANY[1:], balanced, possible, strict=True)
                ),
                all(
                    got > 0.8 * most for got, most in zip(balanced[:-1], possible[:-1], strict=True)
                ),
            ),
            Claim(
                "7",
                "Not in the paper: the same in epochs of two seconds, and with as long a "
                "collection time",
                f"{epochs.steady / whole:.2f} of the unloaded case after "
                f"{epochs.last_move_s:.0f} s and {epochs.moved} moves",
                epochs.steady > static[0] * whole,
            ),
        ]

    return FluxExperiment(
        ("flux-7", "flux-8"),
        "Load on some slots",
        "32 slots with 64 groups of 10,000 tuples (800 KB) each; the process loads one slot, or "
        "more, from the first second on. delta_min 10 ms, th_imb 1.2, th_util 0.9.",
        tuple(lines),
        (
            FluxPicture(
                "flux-7",
                "Balancing a processing load",
                "seconds",
                THOUSANDS,
                lines=tuple(line.name for line in lines[:3]),
            ),
            FluxPicture(
                "flux-8", "Throughput by loaded slots", "slots loaded", THOUSANDS, curves=curves
            ),
        ),
        claims,
    )


def collection() -> FluxExperiment:
    """Figure 9."""
    lines = []
    curves: dict[str, list[tuple[float, str]]] = {}
    for loaded in (0, 8):
        kind = f"{loaded} loaded" if loaded else "no load"
        static = replace(SKEW, name=f"static, {kind}", loaded=loaded)
        lines.append(static)
        curves[static.name] = [(delta_s * 1000, static.name) for delta_s in DELTAS_S]
        for delta_s in DELTAS_S:
            line = replace(
                static,
                name=f"flux-load, {kind}, {delta_s * 1000:g} ms",
                policy="flux-load",
                delta_min_s=delta_s,
            )
            lines.append(line)
            curves.setdefault(f"flux-load, {kind}", []).append((delta_s * 1000, line.name))

    def claims(found: FluxFound) -> Sequence[Claim]:
        free, under = found["static, no load"].steady, found["static, 8 loaded"].steady
        short = found["flux-load, no load, 10 ms"].steady / free
        long_ = found["flux-load, no load, 250 ms"].steady / free
        loaded = found["flux-load, 8 loaded, 150 ms"].steady / free
        return [
            Claim(
                "9",
                "At small delta_min the policy achieves half the throughput of the static case",
                f"{short:.2f} of it at 10 ms; groups are under way for "
                f"{found['flux-load, no load, 10 ms'].moving:.0%} of the time",
                short < 1 - ALIKE,
                0.5,
                short,
            ),
            Claim(
                "9",
                "At 250 ms it outperforms the static case",
                f"{long_:.2f} of it",
                long_ > 1 + ALIKE,
            ),
            Claim(
                "9",
                "With load on 8 machines static throughput drops, and the policy outperforms the "
                "static unloaded case at 150 ms",
                f"static {under / free:.2f}; {loaded:.2f} at 150 ms",
                under < (1 - ALIKE) * free and loaded > 1 + ALIKE,
            ),
        ]

    return FluxExperiment(
        ("flux-9",),
        "The least collection time under skew",
        "32 slots; keys follow an 80/20 distribution at every scale, so one key has a quarter of "
        "all tuples. With no load, and with load on 8 slots, that of the most popular key among "
        "them. Means of 60 s.",
        tuple(lines),
        (
            FluxPicture(
                "flux-9", "Throughput by delta_min", "delta_min, ms", THOUSANDS, curves=curves
            ),
        ),
        claims,
    )


def memory() -> FluxExperiment:
    """Figures 11 to 14."""
    lines = [replace(LARGE, name="no pressure", seconds=30.0)]
    for n in FEW[1:]:
        for policy in ("", "flux-memory"):
            lines.append(
                replace(
                    LARGE,
                    name=f"{policy or 'static'}, {n} short",
                    policy=policy,
                    memory=((n, HALF),),
                    seconds=60.0 if n == 1 else 300.0,
                    tail_s=20.0,
                )
            )
    curves = {
        kind: [(n, "no pressure" if n == 0 else f"{kind}, {n} short") for n in FEW]
        for kind in ("static", "flux-memory")
    }
    first = ("static, 1 short", "flux-memory, 1 short")

    def claims(found: FluxFound) -> Sequence[Claim]:
        free = found["no pressure"]
        static = [found[f"static, {n} short"] for n in FEW[1:]]
        moved = {n: found[f"flux-memory, {n} short"] for n in FEW[1:]}
        stalled = sum(each < 0.1 * free.steady for each in found[first[0]].throughput)
        back = next(
            (
                s
                for s, (rate, late) in enumerate(
                    zip(moved[1].throughput, moved[1].latency_s, strict=True)
                )
                if s > 5 and rate > 0.95 * free.steady and late < 1e-3
            ),
            -1,
        )
        orders = ratio(static[0].steady_latency_s, free.steady_latency_s)
        below = [n for n in FEW[2:] if n <= 16]  # the run with one is over before it is at rest
        # Work moves with the groups: where others hold more, they are slower than they were.
        fine = [moved[n].steady / free.steady for n in below]
        gained = [moved[n].steady / found[f"static, {n} short"].steady for n in below]
        return [
            Claim(
                "11",
                "The short machine writes 256 MB, which stalls the stage for 14 s",
                f"{stalled} s with less than a tenth of the throughput",
                stalled > 1,
                14,
                stalled,
                seconds=True,
            ),
            Claim(
                "11, 12",
                "With the policy throughput and latency are those of the unloaded case at 37 s",
                f"at {back} s, with {moved[1].moved} moves" if back > 0 else "they never are",
                back > 0,
                37,
                back if back > 0 else None,
                seconds=True,
            ),
            Claim(
                "13",
                "Static: one machine degrades the whole stage",
                f"{static[0].steady / free.steady:.2f} of the throughput with one, "
                f"{static[-1].steady / free.steady:.2f} with {FEW[-1]}",
                None,
            ),
            Claim(
                "14",
                "and latency rises by several orders of magnitude",
                f"{orders:,.0f} times",
                orders > 100,
            ),
            Claim(
                "13, 14",
                "With the policy all memory is used, until it is exhausted at 16: there throughput "
                "drops steeply and latency rises",
                f"with 2 to {below[-1]} short slots {min(fine):.2f} of the throughput or more, "
                f"{min(gained):.1f} times that without moves, all in memory, which is full then; "
                f"with 18 {moved[18].steady / free.steady:.2f} and "
                f"{moved[18].steady_latency_s * 1000:,.0f} ms, with 20 "
                f"{moved[20].steady / free.steady:.2f} and "
                f"{moved[20].steady_latency_s * 1000:,.0f} ms",
                min(gained) > 1
                and all(moved[n].steady_latency_s < 1e-3 for n in below)
                and moved[18].steady < 0.8 * moved[16].steady
                and moved[18].steady_latency_s > 100 * moved[16].steady_latency_s,
            ),
        ]

    return FluxExperiment(
        ("flux-11", "flux-12", "flux-13", "flux-14"),
        "Too little memory on some slots",
        "32 slots with 128 groups of 6 MB each, 768 MB of 1 GB; from the first second on some "
        "slots have 512 MB less. A slot spills what does not fit, and its groups on disk take "
        "turns (t_gap is the time to read one). Disks read and write 20 MB/s, a seek takes 5 ms.",
        tuple(lines),
        (
            FluxPicture(
                "flux-11", "Throughput when one slot is short", "seconds", THOUSANDS, lines=first
            ),
            FluxPicture(
                "flux-12",
                "Latency when one slot is short",
                "seconds",
                "ms",
                lines=first,
                by_second=lambda o: o.latency_s,
                unit=1e-3,
            ),
            FluxPicture(
                "flux-13", "Throughput by short slots", "slots short", THOUSANDS, curves=curves
            ),
            FluxPicture(
                "flux-14",
                "Latency by short slots",
                "slots short",
                "ms",
                curves=curves,
                value=lambda o: o.steady_latency_s,
                unit=1e-3,
            ),
        ),
        claims,
    )


def both() -> FluxExperiment:
    """Figure 15."""
    policies = ("flux-load", "flux-memory", "flux-hybrid")
    medium = replace(LARGE, loaded=8, memory=((8, HALF),), at_s=0.0, seconds=300.0, tail_s=20.0)
    heavy = replace(medium, loaded=32, memory=((16, HALF), (16, SOME)))
    lines = [replace(medium, name="static, medium")]
    lines += [replace(medium, name=f"{each}, medium", policy=each) for each in policies]
    lines += [replace(heavy, name=f"{each}, heavy", policy=each) for each in policies]

    def claims(found: FluxFound) -> Sequence[Claim]:
        work, space, hybrid = (found[f"{each}, medium"] for each in policies)
        late = [found[f"{each}, heavy"] for each in policies]
        halved = ratio(late[2].steady_latency_s, late[0].steady_latency_s)
        return [
            Claim(
                "15(a)",
                "Medium: by memory alone throughput is worse than by load or by both",
                f"{space.steady / 1000:,.0f} thousand against {work.steady / 1000:,.0f} and "
                f"{hybrid.steady / 1000:,.0f}",
                space.steady < (1 - ALIKE) * min(work.steady, hybrid.steady),
            ),
            Claim(
                "15, text",
                "and the hybrid is there sooner (55 s) than load alone (63 s)",
                f"last moves after {hybrid.last_move_s:.0f} s and {work.last_move_s:.0f} s",
                hybrid.last_move_s < work.last_move_s,
            ),
            Claim(
                "15(b)",
                "Heavy: throughput is the same by load and by both",
                f"{late[0].steady / 1000:,.0f} and {late[2].steady / 1000:,.0f} thousand",
                alike([late[0].steady, late[2].steady], 0.1),
            ),
            Claim(
                "15(c)",
                "and the hybrid halves the latency",
                f"{halved:.2f} times",
                halved < 1 - ALIKE,
                0.5,
                halved,
            ),
        ]

    return FluxExperiment(
        ("flux-15",),
        "Load and memory at once",
        "As before, from the beginning on. Medium: 8 slots are loaded and have 512 MB less. Heavy: "
        "all are loaded, half have 512 MB less, the others 262 MB. 300 s (the paper has 100), of "
        "which the last 20 count.",
        tuple(lines),
        (
            FluxPicture(
                "flux-15",
                "Three policies under medium pressure",
                "seconds",
                THOUSANDS,
                lines=tuple(line.name for line in lines[:4]),
            ),
        ),
        claims,
    )


def many() -> FluxExperiment:
    """1,024 slots and 32,768 groups. Ours."""
    base = FluxLine("", slots=SLOTS, groups_of_slot=GROUPS // SLOTS, loaded=32, seconds=150.0)
    base = replace(base, delta_min_s=0.25, noise=NOISE)
    short = replace(base, loaded=0, group_bytes=12e6, memory=((32, 256e6),))
    lines = (
        replace(base, name="no load", loaded=0),
        replace(base, name="static"),
        replace(base, name="flux-load", policy="flux-load"),
        replace(short, name="static, 32 short"),
        replace(short, name="flux-memory, 32 short", policy="flux-memory"),
        replace(short, name="flux-hybrid, 32 short", policy="flux-hybrid"),
    )

    def claims(found: FluxFound) -> Sequence[Claim]:
        whole = found["no load"].steady
        possible = 1 - 32 / SLOTS * (1 - LOADED)
        by_load = found["flux-load"].steady / whole
        slowest = max(each.decision_ms for each in found.values())
        short_ = found["flux-hybrid, 32 short"].steady / whole
        return [
            Claim(
                "1,024",
                "Decisions take under 100 ms",
                f"{slowest:.0f} ms at the most",
                slowest < 100,
            ),
            Claim(
                "1,024",
                "Moves are a perturbation: with 32 slots loaded the others go on",
                f"{by_load:.2f} of the throughput, where {possible:.2f} can be had and "
                f"{found['static'].steady / whole:.2f} without moves",
                by_load > 0.9 * possible,
            ),
            Claim(
                "1,024",
                "The same with 32 slots that are short of memory",
                f"{short_:.2f} of it, {found['static, 32 short'].steady / whole:.2f} without moves",
                short_ > 0.9,
            ),
        ]

    return FluxExperiment(
        ("flux-1024",),
        "1,024 slots",
        "1,024 slots with 32 groups each, 32 slots loaded, or short of memory (groups of 12 MB, "
        "256 MB on these). The network's bound grows with the slots. delta_min 250 ms.",
        lines,
        (
            FluxPicture(
                "flux-1024",
                "1,024 slots, 32 of them loaded or short",
                "seconds",
                "tuples a second, millions",
                lines=tuple(line.name for line in lines),
                unit=1e6,
            ),
        ),
        claims,
        paper="1,024 slots",
    )


def flux_experiments() -> tuple[FluxExperiment, ...]:
    """All of them, in the order of the figures."""
    return (short_term(), load(), collection(), memory(), both(), many())
