"""What a windowed join gives while memory is short: `python -m benchmarks.window_memory`.

One slot has four tenths of the memory that its windows take, on days that go on as they began and
on days that change. Two streams of numbers, a window of ten minutes, 50 minutes, 64 groups, an
epoch every ten seconds; the steps are the engine's own. Groups differ in how many partners a row
finds. A line is a policy of victims, and one by which spilled generations come back.

Results must be pairs of one key within the window, each once. Beside them stands the ceiling: no
policy that spills whole groups gives more, whatever it knows, unless generations come back. It is
that of `benchmarks.lab.clairvoyant`, with rows that leave memory a window after they came, where
the engine's stay until their slice has expired.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.lab.clairvoyant import priced_ceiling
from benchmarks.lab.cluster import SESSION, Spilling
from benchmarks.lab.window_cluster import Stepped, WindowCluster
from benchmarks.lab.window_workload import STREAMS, US, WindowDay
from spillway.engine.groups import GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway.engine.task import StepTask
from spillway.policy.automatic import fraction_for
from spillway.policy.reactivation import DEFAULT_REACTIVATION
from spillway.policy.victims import DEFAULT_VICTIMS
from spillway_schemas.journal import Prefix, SlotReport, SlotTotals

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

BITS = 6
GROUPS = 1 << BITS
WINDOW_S, EPOCH_S, DAY_S = 600, 10, 3_000
KEYS, ROWS_A_SECOND = 3_000, 30.0
SHARE = 0.4
"""Of the memory that the windows take."""
AMPLE = 1 << 28
LINES = (
    (DEFAULT_VICTIMS, DEFAULT_REACTIVATION),
    (DEFAULT_VICTIMS, "off"),
    ("productivity", "off"),
)


@dataclass(frozen=True)
class MemoryDay:
    """What arrives."""

    rows: WindowDay
    group: tuple[I64, I64]
    """Per stream, (n,) each row's group."""

    @property
    def epochs(self) -> int:
        """Of the day."""
        return int(max(times[-1] for times in self.rows.time_us)) // (EPOCH_S * US) + 1

    def epoch_of(self, stream: int) -> I64:
        """(n,) of each row."""
        return self.rows.time_us[stream] // (EPOCH_S * US)


def shares(kind: str, rng: np.random.Generator) -> F64:
    """(e, g) the share of the rows that each group has in each epoch. Raises KeyError: no such
    day."""
    epochs, order = DAY_S // EPOCH_S, rng.permutation(GROUPS)
    weight: F64 = np.ones((epochs, GROUPS))
    half, third, fifth = GROUPS // 2, GROUPS // 3, GROUPS // 5
    match kind:
        case "still":
            weight[:] = np.exp(rng.normal(0, 1, GROUPS))
        case "swap":
            weight[: epochs // 2, order[:half]] = weight[epochs // 2 :, order[half:]] = 8
        case "silent":
            weight[epochs * 2 // 5 :, order[:third]] = 0
        case "rotating":
            for turn in range(5):
                busy = order[turn * fifth : (turn + 1) * fifth]
                weight[turn * epochs // 5 : (turn + 1) * epochs // 5, busy] = 12
        case _:
            raise KeyError(kind)
    found: F64 = weight / weight[0].sum()
    return found


DAYS = {
    "still": "groups differ in their rows, all day",
    "swap": "half of the groups is eight times as busy, after half of the day the other half",
    "silent": "a third of the groups falls silent after 20 minutes",
    "rotating": "a fifth of the groups is twelve times as busy, every ten minutes another fifth",
}


def drawn(kind: str, seed: int = 1, rows_a_second: float = ROWS_A_SECOND) -> MemoryDay:
    """A day; the same seed, the same day."""
    rng = np.random.default_rng(seed)
    keys = np.arange(KEYS)
    group_of = (xxhash64([pa.array(keys)]) >> np.uint64(64 - BITS)).astype(np.int64)
    part = rng.uniform(0.1, 1, GROUPS)
    """Of its keys that a group uses: the fewer, the more partners a row finds."""
    used = [np.flatnonzero(group_of == g) for g in range(GROUPS)]
    used = [each[: max(1, int(part[g] * len(each)))] for g, each in enumerate(used)]
    flat, first = np.concatenate(used), np.cumsum([0, *map(len, used)])[:-1]
    sizes = np.array([len(each) for each in used])
    expected = shares(kind, rng) * rows_a_second * EPOCH_S
    times, drawn_keys = [], []
    for _ in range(STREAMS):
        count = rng.poisson(expected)
        epoch, group = (np.repeat(each.ravel(), count.ravel()) for each in np.indices(count.shape))
        time_us = ((epoch + rng.random(len(epoch))) * EPOCH_S * US).astype(np.int64)
        key = flat[first[group] + (rng.random(len(group)) * sizes[group]).astype(np.int64)]
        order = np.argsort(time_us, kind="stable")
        times.append(time_us[order])
        drawn_keys.append(key[order])
    hashes = tuple(xxhash64([pa.array(each)]) for each in drawn_keys)
    left, right = (group_of[each] for each in drawn_keys)
    return MemoryDay(WindowDay(tuple(times), tuple(drawn_keys), hashes), (left, right))


# --- the engine ------------------------------------------------------------------------------


@dataclass
class ShortCluster(WindowCluster):
    """One slot that spills. Its run-time results are kept; nothing is cleaned up."""

    spilling: Spilling = field(default_factory=lambda: Spilling(AMPLE))
    totals: list[SlotTotals] = field(default_factory=list)
    reach: dict[Prefix, int] = field(default_factory=dict)
    """Of each range that was spilled, the greatest time, us: see `StepTask.reach`."""

    def _task(self, slot: int, until_s: float) -> StepTask:
        manifest, until_ms = self.manifests.get(slot), round(until_s * 1000)
        close_ms = DAY_S * 1000
        task = self.spilling.task(slot, self.epoch, manifest, self.groups, until_ms, close_ms)
        reach = {SESSION: tuple(self.reach.items())}
        return replace(task, expired_by={SESSION: self.progress.watermark_us}, reach=reach)

    def _kept(self, reports: Sequence[SlotReport], *, statistics: bool) -> Stepped:
        self.totals += [report.totals for report in reports if report.totals is not None]
        for cut in (cut for report in reports for cut in report.cuts):
            if cut.greatest_us is not None:
                self.reach[cut.range] = max(self.reach.get(cut.range, 0), cut.greatest_us)
        return super()._kept(reports, statistics=statistics)


@dataclass(frozen=True)
class MemoryOutcome:
    """What a line came to."""

    pairs: I64
    """(r, 2) the rows of each result."""
    memory_bytes: int
    """The most that was held."""
    rows: int
    """Likewise."""
    spilled: int
    returned: int
    """Rows."""
    cpu_s: float


def run(day: MemoryDay, spilling: Spilling) -> MemoryOutcome:
    """The day on one slot. Raises ValueError for a result that is none, or that comes twice."""
    with tempfile.TemporaryDirectory() as root:
        cluster = ShortCluster(
            day.rows, root, float(WINDOW_S), GroupMap.initial(GROUPS, 1), spilling=spilling
        )
        found, start = [], time.process_time()
        for epoch in range(day.epochs):
            done = cluster.run(float((epoch + 1) * EPOCH_S), cluster.groups)
            found += [np.stack(each, axis=1) for each in done.results.values()]
        cpu_s = time.process_time() - start
    pairs = np.concatenate(found)
    left, right = pairs.T
    apart = np.abs(day.rows.time_us[0][left] - day.rows.time_us[1][right])
    if (day.rows.keys[0][left] != day.rows.keys[1][right]).any() or (apart > WINDOW_S * US).any():
        raise ValueError("rows were joined that do not belong together")
    if len(np.unique(left * len(day.rows.keys[1]) + right)) < len(pairs):
        raise ValueError("a result came twice")
    totals = cluster.totals
    return MemoryOutcome(
        pairs,
        max(each.state_bytes for each in totals),
        max(each.rows for each in totals),
        sum(each.spilled_rows for each in totals),
        sum(each.returned_rows for each in totals),
        cpu_s,
    )


# --- the ceiling -----------------------------------------------------------------------------


def generations(day: MemoryDay, pairs: I64) -> F64:
    """(e + 1, e + 1, g): what a generation of the epochs a ... b - 1 gives. `pairs`: all results of
    the day, as in `MemoryOutcome`."""
    epochs = day.epochs
    left, right = pairs.T
    when = np.stack([day.epoch_of(0)[left], day.epoch_of(1)[right]])
    found: F64 = np.zeros((epochs + 1, epochs + 1, GROUPS))
    np.add.at(found[:, 1:], (when.min(axis=0), when.max(axis=0), day.group[0][left]), 1.0)
    return found[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)


def ceiling(day: MemoryDay, gains: F64, memory_rows: int, reached: int, rounds: int = 200) -> int:
    """Results at run time that no policy exceeds without generations that come back. Rows are held
    for no longer than the window. `reached`: what some policy gave, which steers the prices."""
    came: F64 = np.zeros((day.epochs + 1, GROUPS))
    for stream in range(STREAMS):
        np.add.at(came, (day.epoch_of(stream) + 1, day.group[stream]), 1)
    keeps = WINDOW_S // EPOCH_S
    return priced_ceiling(gains, came.cumsum(axis=0), memory_rows, reached, rounds, keeps)


# --- the table -------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", nargs="+", choices=DAYS, default=list(DAYS), metavar="DAY")
    args = parser.parse_args(argv)
    console = Console()
    table = Table("day", "victims", "comes back", "results", "of the ceiling", "spilled", "back")
    for kind in args.days:
        day = drawn(kind)
        ample = run(day, Spilling(AMPLE))
        memory = int(SHARE * ample.memory_bytes)
        found = []
        for victims, back in LINES:
            share = fraction_for("automatic", back)
            found.append(run(day, Spilling(memory, share, victims, reactivation=back)))
            console.print(f"{kind}: {victims}, {back}, {found[-1].cpu_s:.0f} CPU s")
        gains = generations(day, ample.pairs)
        rows = int(SHARE * ample.rows)
        most = ceiling(day, gains, rows, max(len(o.pairs) for o in found[1:]))
        for (victims, back), one in zip(LINES, found, strict=True):
            given = len(one.pairs)
            cells = f"{given:,}", f"{given / most:.1%}", f"{one.spilled:,}", f"{one.returned:,}"
            table.add_row(kind, victims, back, *cells)
        part = f"{most / len(ample.pairs):.1%} of all"
        table.add_row(kind, "ceiling", "", f"{most:,}", part, "", "", end_section=True)
    console.print(table)


if __name__ == "__main__":
    main()
