"""Geometric merging of runs, and reclaiming dead bytes: decisions only, pure.

Model: a logical run is a list of files with disjoint windows. Every epoch adds one run per
session and input. Runs of one size class (powers of `FAN_IN` in rows) are merged when there are
`FAN_IN` of them, so a row is copied once for each class, and a key is looked up in at most
`FAN_IN` - 1 runs a class, plus what is being merged.

A merge never copies an arrangement at once. It advances through the hash space: each step takes
the next stretch of all its sources, writes it as one file of the target run, and moves the lower
ends of the sources' windows up. Below them the target counts, above them the sources do, so the
state is whole after every step, and a merge may stop for lack of room (or fuel) and go on in a
later epoch.

Reclaiming rewrites the live part of one file, that with most dead bytes first, because it gives
most room back for the room it takes until the old file may go (one epoch later).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.engine.statefiles import Merging

FAN_IN = 4
SMALLEST_CLASS_ROWS = 1024
"""Runs with fewer rows are all of one class."""

FILES_IN_BUDGET = 128
LEAST_FILE_BYTES = 64 << 10
MOST_FILE_BYTES = 16 << 20

FUEL_INTAKES = 4
FUEL_FILES = 2
"""An epoch merges at most this many times its intake, plus this many files' worth of bytes."""

RECLAIM_FROM = 0.5
"""Folder bytes / budget above which dead bytes are reclaimed."""
RECLAIM_HARD_FROM = 0.75
"""... and above which everything that the room allows is reclaimed, whatever the fuel."""
DEAD_SHARE = 0.15
"""A file with a smaller share of dead bytes is not rewritten."""


@dataclass(frozen=True)
class RunSize:
    """A logical run and its live rows."""

    session: str
    input: int
    run: int
    rows: int


def file_bytes(budget_bytes: int) -> int:
    """Bytes of a run file that merging aims at: small, so that few groups share a file."""
    return min(max(budget_bytes // FILES_IN_BUDGET, LEAST_FILE_BYTES), MOST_FILE_BYTES)


def fuel_bytes(intake_bytes: int, budget_bytes: int) -> int:
    """Bytes that one epoch may copy by merging."""
    return FUEL_INTAKES * intake_bytes + FUEL_FILES * file_bytes(budget_bytes)


def size_class(rows: int) -> int:
    """Class of a run: each is `FAN_IN` times larger than the one before."""
    size = 0
    while rows >= SMALLEST_CLASS_ROWS * FAN_IN**size:
        size += 1
    return size


def due_merges(
    runs: Iterable[RunSize], under_way: Sequence[Merging], next_run: int
) -> tuple[list[Merging], int]:
    """The merges to work on, smallest class first (those under way are kept), and `next_run`."""
    runs = list(runs)
    rows = {(r.session, r.input, r.run): r.rows for r in runs}
    busy = {(m.session, m.input, run) for m in under_way for run in (*m.sources, m.target)}
    free: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for run in runs:
        if (run.session, run.input, run.run) not in busy:
            free[run.session, run.input, size_class(run.rows)].append(run.run)
    merges = list(under_way)
    for (session, input_, _), members in sorted(free.items()):
        if len(members) >= FAN_IN:
            merges.append(Merging(session, input_, tuple(sorted(members)), next_run))
            next_run += 1

    def left(merge: Merging) -> int:
        return sum(rows.get((merge.session, merge.input, run), 0) for run in merge.sources)

    return sorted(merges, key=lambda m: (left(m), m.session, m.input, m.target)), next_run


@dataclass(frozen=True)
class Worn:
    """A file with dead bytes in it: `file` is any token of the caller's."""

    file: str
    bytes: int
    live_bytes: int

    @property
    def dead_share(self) -> float:
        """Share of the file that nothing needs."""
        return 1 - self.live_bytes / max(self.bytes, 1)


def to_reclaim(
    worn: Iterable[Worn], *, folder_bytes: int, budget_bytes: int, fuel: int
) -> list[str]:
    """Files to rewrite, in this order, as long as room is left for each."""
    fill = folder_bytes / budget_bytes
    if fill < RECLAIM_FROM:
        return []
    chosen: list[str] = []
    copied = 0
    for each in sorted(worn, key=lambda w: (-w.dead_share, w.file)):
        if each.dead_share < DEAD_SHARE:
            break
        if fill < RECLAIM_HARD_FROM and copied + each.live_bytes > fuel:
            break
        chosen.append(each.file)
        copied += each.live_bytes
    return chosen
