"""One line of a figure of windowed joins: a day on a cluster, from the first epoch to the last.

The engine's epochs are the reorganisation epochs, in which nothing is decided. The distribution
epochs within are reckoned by the cost model: a result is of the one in which its later row came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from benchmarks.lab import window_exact
from benchmarks.lab.exact import NotExact
from benchmarks.lab.lines import scratch
from benchmarks.lab.window_cluster import Stepped, WindowCluster
from benchmarks.lab.window_control import GROUPS, MOST_SLOTS, Master
from benchmarks.lab.window_cost import LEAF_BITS, Cost, Queues, by_group, scanned
from benchmarks.lab.window_exact import U64, Given
from benchmarks.lab.window_workload import STREAMS, US, WindowDay, WindowWorkload, generate_window
from benchmarks.lab.workload import F64, I64
from spillway.engine.groups import GroupMap
from spillway_schemas.journal import HASH_BITS
from spillway_schemas.windows import swing

MOVES, TUNING, SLOTS = "supplier-consumer", "fine-tuning", "declustering"
LAST_S = 120.0
"""What counts of a line for its delay in the end."""


@dataclass(frozen=True)
class WindowLine:
    """A day, how many slots it begins with, and what its master does."""

    name: str
    workload: WindowWorkload
    slots: int
    policies: tuple[str, ...] = (MOVES, TUNING)
    distribution_s: float = 2.0
    reorganisation_s: float = 20.0
    cost: Cost = field(default_factory=Cost)
    shares: tuple[float, ...] = ()
    """What part of the groups each slot has at the beginning; none: all alike."""
    fill_s: float = 20.0
    """Length of the engine's epochs while the window fills: whole distribution epochs."""
    beside: bool = False
    """Whether each epoch is done by a second cluster, too, whose groups stay as they are."""

    @property
    def ends_s(self) -> list[float]:
        """Of the engine's epochs: reorganisation epochs once the window has filled."""
        end_s, filled_s = self.workload.minutes * 60, self.workload.window_s
        start = np.arange(self.fill_s, filled_s + 1e-9, self.fill_s)
        rest = np.arange(filled_s + self.reorganisation_s, end_s + 1e-9, self.reorganisation_s)
        return [*start.tolist(), *rest.tolist()]


@dataclass(frozen=True)
class WindowOutcome:
    """What a line came to, after the window has filled. All but the CPU seconds follows from the
    day and the cost model."""

    name: str
    results: int
    delay_s: float
    """A result's, on average."""
    last_delay_s: float
    """The same of the last two minutes, or of all that counts."""
    busy: float
    """The share of the time that a slot works, on average over the slots in use."""
    idle_least: float
    """The share of the time that the busiest slot is idle."""
    left_s: float
    """Work that the busiest slot has left over at the end, in seconds."""
    slots: float
    """In use, on average."""
    moved_groups: int
    splits: int
    merges: int
    groups: int
    """At the end."""
    window_rows: list[int]
    """Per slot, the most rows in memory."""
    shares: list[float]
    """Least, mean and greatest number of rows a second that a slot of those in use gets."""
    beside: float
    """The CPU time of an epoch, in times of that of the cluster beside it: the median. 0: there was
    none."""
    run_cpu_s: float
    """Of the engine's steps, with the routing before and the reading of results after them;
    measured."""


def run_window(
    line: WindowLine, progress: Callable[[float], None] = lambda _: None
) -> WindowOutcome:
    """Run the line. Raises `NotExact` when results or rows in memory, epoch by epoch and slot by
    slot, are not what keys and times say."""
    with scratch() as root:
        return _Run(line, root).run(progress)


class _Run:
    """A line under way."""

    def __init__(self, line: WindowLine, root: str) -> None:
        self.line = line
        self.work = line.workload
        self.day = generate_window(self.work)
        groups = GroupMap.initial(GROUPS, line.slots, line.shares)
        self.cluster, self.other = (
            WindowCluster(self.day, f"{root}/{name}", self.work.window_s, groups)
            for name in ("own", "other")
        )
        self.ratios: list[float] = []
        self.master = Master(line.policies, self.work.factor, swing([self.cluster.spec.root.span]))
        self.queues = Queues(MOST_SLOTS)
        shift = np.uint64(HASH_BITS - LEAF_BITS)
        self.leaves = [(hashes >> shift).astype(np.int64) for hashes in self.day.hashes]
        self.numbers = window_exact.numbers(self.day)
        self.given = window_exact.given(self.day, self.work.window_s, self.numbers)
        self.most: I64 = np.zeros(MOST_SLOTS, dtype=np.int64)
        self.came: I64 = np.zeros(MOST_SLOTS, dtype=np.int64)
        self.in_use_s: F64 = np.zeros(MOST_SLOTS)
        self.cpu_s = 0.0
        self.before_last = 0, 0.0
        """Results and their delay before the last minutes."""

    def run(self, progress: Callable[[float], None]) -> WindowOutcome:
        """All epochs."""
        ends_s = self.line.ends_s
        begins_s = [0.0, *ends_s[:-1]]
        first = window_exact.first_held(self.day, self.work.window_s, begins_s)
        groups, moved = self.cluster.groups, np.zeros(MOST_SLOTS)
        for number, (begin_s, end_s) in enumerate(zip(begins_s, ends_s, strict=True)):
            if begin_s == self.work.window_s:
                self._begin_counting()
            if begin_s <= max(ends_s[-1] - LAST_S, self.work.window_s):
                self.before_last = self.queues.results, self.queues.delay_s
            done = self._step(end_s, groups)
            for problem in wrong(
                self.day, self.given, self.numbers, groups, (begin_s, end_s), first[number], done
            ):
                raise NotExact(f"{self.line.name}: {problem}")
            held = self._reckon(groups, begin_s, end_s, self.line.distribution_s, done, moved)
            for slot, rows in done.rows.items():
                self.most[slot] = max(self.most[slot], rows)
            new = [self.day.between(s, begin_s, end_s) for s in range(STREAMS)]
            came: I64 = np.sum(
                [by_group(self._count(s, new[s]), groups) for s in range(STREAMS)], axis=0
            )
            self.came += np.bincount(groups.slots, weights=came, minlength=MOST_SLOTS).astype(int)
            self.in_use_s[: int(groups.slots.max()) + 1] += end_s - begin_s
            after = self.master.reorganise(end_s, groups, held, came)
            moved = self._hand_over(groups, after, held, came)
            groups = after
            progress((number + 1) / len(ends_s))
        return self._outcome(groups)

    def _step(self, end_s: float, groups: GroupMap) -> Stepped:
        turns = [(self.cluster, groups)]
        if self.line.beside:
            turns.append((self.other, self.other.groups))
        if len(self.ratios) % 2:  # neither is always the first
            turns.reverse()
        cpu_s: dict[bool, float] = {}
        for cluster, owners in turns:
            start = time.process_time()
            stepped = cluster.run(end_s, owners)
            own = cluster is self.cluster
            cpu_s[own] = time.process_time() - start
            if own:
                done = stepped
        self.cpu_s += cpu_s[True]
        if self.line.beside:
            self.ratios.append(cpu_s[True] / cpu_s[False])
        return done

    def _begin_counting(self) -> None:
        self.queues.begin()
        self.most[:], self.came[:], self.in_use_s[:], self.cpu_s = 0, 0, 0, 0.0
        self.ratios = []
        self.master.moved = self.master.splits = self.master.merges = 0

    def _count(self, stream: int, rows: slice) -> I64:
        return np.bincount(self.leaves[stream][rows], minlength=1 << LEAF_BITS)

    def _reckon(
        self,
        groups: GroupMap,
        begin_s: float,
        end_s: float,
        span_s: float,
        done: Stepped,
        moved: F64,
    ) -> I64:
        """The distribution epochs of one of the engine's. Returns (g,) rows in memory at its end.

        `moved`: (s,) rows that slots gave and got before it.
        """
        parts = round((end_s - begin_s) / span_s)
        edges_s: F64 = begin_s + span_s * np.arange(parts + 1, dtype=np.float64)
        results, came_s = _results(self.day, done, edges_s)
        first = window_exact.first_held(self.day, self.work.window_s, edges_s[:-1].tolist())
        before = np.zeros((STREAMS, len(groups)), dtype=np.int64)
        new = np.zeros_like(before)
        for part in range(parts):
            at, until = edges_s[part : part + 2].tolist()
            for stream in range(STREAMS):
                rows = self.day.between(stream, at, until)
                old = slice(int(first[part, stream]), rows.start)
                before[stream] = by_group(self._count(stream, old), groups)
                new[stream] = by_group(self._count(stream, rows), groups)
            rows_in, pairs = (
                np.bincount(groups.slots, each, MOST_SLOTS).astype(np.float64)
                for each in (new.sum(axis=0), scanned(before, new))
            )
            work_s = self.line.cost.work_s(
                self.work.factor, rows_in, pairs, results[part], moved * (part == 0)
            )
            do_s = self.queues.epoch(until, span_s, work_s, results[part], came_s[part])
            self.master.note(do_s, span_s)
        held: I64 = (before + new).sum(axis=0)
        return held

    def _hand_over(self, before: GroupMap, after: GroupMap, held: I64, came: I64) -> F64:
        """Groups go to other slots, and work that waits with them. `held`, `came`: (g,) rows of the
        groups before. Returns (s,) rows that slots give and get."""
        to = after.slot_of(before.starts).astype(np.int64)
        going = np.flatnonzero(to != before.slots)
        source, to = before.slots[going].astype(np.int64), to[going]
        of_slot = np.bincount(before.slots, weights=came, minlength=MOST_SLOTS)
        self.queues.hand_over(source, to, came[going] / np.maximum(of_slot[source], 1))
        both = np.concatenate([source, to])
        return np.bincount(both, np.tile(held[going], 2), MOST_SLOTS).astype(np.float64)

    def _outcome(self, groups: GroupMap) -> WindowOutcome:
        span_s = self.work.minutes * 60 - self.work.window_s
        used = self.in_use_s > 0
        rate = self.came[used] / self.in_use_s[used] / self.work.factor
        queues, master = self.queues, self.master
        results, delay_s = self.before_last
        last_s = (queues.delay_s - delay_s) / max(queues.results - results, 1)
        return WindowOutcome(
            name=self.line.name,
            results=queues.results,
            delay_s=round(queues.delay_s / max(queues.results, 1), 3),
            last_delay_s=round(last_s, 3),
            busy=round(float(queues.busy_s.sum() / self.in_use_s.sum()), 4),
            idle_least=round(float((queues.idle_s[used] / self.in_use_s[used]).min()), 4),
            left_s=round(float(queues.left_s.max()), 2),
            slots=round(float(self.in_use_s.sum()) / span_s, 2),
            moved_groups=master.moved,
            splits=master.splits,
            merges=master.merges,
            groups=len(groups),
            window_rows=self.most[used].tolist(),
            shares=[round(float(each)) for each in (rate.min(), rate.mean(), rate.max())],
            beside=round(median(self.ratios), 3) if self.ratios else 0.0,
            run_cpu_s=round(self.cpu_s, 2),
        )


def _results(day: WindowDay, done: Stepped, edges_s: F64) -> tuple[F64, F64]:
    """Per distribution epoch and slot, (e, s): results, and when their later rows came, summed."""
    epochs = len(edges_s) - 1
    counts, sums = (np.zeros((epochs, MOST_SLOTS)) for _ in range(2))
    edges_us = np.round(edges_s * US).astype(np.int64)
    for slot, (left, right) in done.results.items():
        later = np.maximum(day.time_us[0][left], day.time_us[1][right])
        at = np.searchsorted(edges_us, later, side="right") - 1
        counts[:, slot] = np.bincount(at, minlength=epochs)
        sums[:, slot] = np.bincount(at, weights=later / US, minlength=epochs)
    return counts, sums


def wrong(
    day: WindowDay,
    given: Given,
    numbers: Sequence[U64],
    groups: GroupMap,
    span_s: tuple[float, float],
    first: I64,
    done: Stepped,
) -> Iterator[str]:
    """Where an epoch's results, told apart by their rows, and rows in memory are not those that
    there must be, at each slot. `first`: (streams,) see `window_exact.first_held`."""
    results, weight, rows = (np.zeros(MOST_SLOTS, dtype=np.uint64) for _ in range(3))
    for stream in range(STREAMS):
        new = day.between(stream, *span_s)
        slot = groups.slot_of(day.hashes[stream][new])
        np.add.at(results, slot, given.results[stream][new].astype(np.uint64))
        np.add.at(weight, slot, given.weight[stream][new])
        held = slice(int(first[stream]), new.stop)
        slot = groups.slot_of(day.hashes[stream][held])
        rows += np.bincount(slot, minlength=MOST_SLOTS).astype(np.uint64)
    for slot_ in range(MOST_SLOTS):
        left, right = done.results.get(slot_, (np.zeros(0, int), np.zeros(0, int)))
        with np.errstate(over="ignore"):
            weighs = (numbers[0][left] * numbers[1][right]).sum(dtype=np.uint64)
        for what, ours, wanted in (
            ("results", len(left), results[slot_]),
            ("results, told by their rows", weighs, weight[slot_]),
            ("rows in memory", done.rows.get(slot_, 0), rows[slot_]),
        ):
            if ours != wanted:
                yield f"wrong {what} of slot {slot_} until {span_s[1]:g} s: {ours}, not {wanted}"
