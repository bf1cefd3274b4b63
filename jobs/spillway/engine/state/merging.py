"""Geometric merging of runs, and trimming files of dead rows: decisions only, pure.

Model: a logical run is a list of files with disjoint windows. Every epoch adds one run per
session and input. Runs of one size class (powers of `fan_in` in rows) are merged when there are
`fan_in` of them, so a row is copied once for each class, and a key is looked up in at most
`fan_in` - 1 runs a class, plus what is being merged.

A merge never copies an arrangement at once. It advances through the hash space: each step takes
the next stretch of all its sources, writes it as one file of the target run, and moves the lower
ends of the sources' windows up. Below them the target counts, above them the sources do, so the
state is whole after every step, and a merge may stop for lack of room (or fuel) and go on in a
later epoch.

What an epoch owes (compare the fueled merging of differential dataflow). Let an epoch bring d
bytes of an input. A merge of a class copies all that its `fan_in` runs hold, and the next one of
that class is due once as many bytes have come again. So it is done in time when each epoch copies
d for it: one intake for each class that has a merge under way. After n epochs there are log_4(n)
classes above an epoch's own. `Shape.fuel_bytes` allows 4 intakes and two merged files. A file is a
32nd of the budget, which holds n d bytes, or more: two are n / 16 intakes. So an epoch may copy
4 + n / 16 intakes, and owes at most log_4(n): 4 at n = 256 and 5 at n = 1,024, where it may copy 20
and 68. So for as long as the state fits into the budget merges keep up: no class has two under way,
and no epoch copies more than its fuel and a file, however large the runs are. Where files are at
their upper bound (budgets over 512 MiB) fuel is less: 4 + n / 2,048 intakes with 64 GiB. That is
just enough: a fifth intake is needed when the fifth class has its second merge, at n = 2,048, and a
sixth at n = 8,192. With more, two of a class may be under way: with 128 GiB at n = 2,600. Fuel is a
bound and no rate: what is due is copied at once as far as it goes, for fewer runs make look-ups
cheap.

Trimming copies what lives of one file and puts it in the file's place, that with the greatest dead
share first, because it gives most room back for the bytes that it copies.

What trimming owes. Let s be `dead_share`. Of a file of b bytes that is trimmed at least s b are
dead, so at most (1 - s) b are copied: 1 / s - 1 for each byte freed, 5.7 at s = 0.15. A byte is
freed once, so over a day trimming copies no more than 5.7 times what died. In one epoch it goes on,
for want of room, until enough is freed; before the last file that is less than what was short. So
it copies at most 1 / s - 1 times what was short, and what lives of one file; more only if all of it
stays within the fuel. (Bytes are those of rows. Where spills take less than 30 %, s is half of that
part, and 0.025 at least (`StepTask.shape_kept`): 39 for each byte freed.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spillway.engine.state.statefiles import Merging


@dataclass(frozen=True)
class Shape:
    """Sizes that decide how runs are kept. The defaults were measured (`benchmarks/step.py`)."""

    fan_in: int = 4
    """Runs of one size class that are merged into one of the next."""
    smallest_class_rows: int = 1024
    """Runs with fewer rows are all of one class."""
    files_in_budget: int = 32
    """A merged file is this part of the budget: small, so that merging and trimming need little
    room, and large, for each file costs time in every epoch ..."""
    least_file_bytes: int = 64 << 10
    most_file_bytes: int = 16 << 20
    """... within these bounds."""
    new_files_in_budget: int = 32
    """An epoch's new rows are cut into files of this part of the budget, within the bounds."""
    fuel_intakes: int = 4
    fuel_files: int = 2
    """An epoch merges at most this many times its intake, plus this many files' bytes; it trims as
    much, and more only for want of room."""
    trim_from: float = 0.5
    """Folder bytes / budget from which files are trimmed, also when nothing needs the room yet."""
    dead_share: float = 0.15
    """A file with a smaller share of dead bytes is not trimmed."""
    dead_in_budget: float = 0.02
    """Dead bytes of this part of the budget stay: the longer a file waits, the more of it is dead,
    and the less is copied for what is freed."""

    def file_bytes(self, budget_bytes: int) -> int:
        """Bytes of a file that merging aims at."""
        return self._bounded(budget_bytes // self.files_in_budget)

    def new_file_bytes(self, budget_bytes: int) -> int:
        """Bytes of a file of new rows, at most."""
        return self._bounded(budget_bytes // self.new_files_in_budget)

    def fuel_bytes(self, intake_bytes: int, budget_bytes: int) -> int:
        """Bytes that one epoch may copy by merging."""
        return self.fuel_intakes * intake_bytes + self.fuel_files * self.file_bytes(budget_bytes)

    def size_class(self, rows: int) -> int:
        """Class of a run: each is `fan_in` times larger than the one before."""
        size = 0
        while rows >= self.smallest_class_rows * self.fan_in**size:
            size += 1
        return size

    def _bounded(self, size: int) -> int:
        return min(max(size, self.least_file_bytes), self.most_file_bytes)


DEFAULT_SHAPE = Shape()


@dataclass(frozen=True)
class RunSize:
    """A logical run and its live rows."""

    session: str
    input: int
    run: int
    rows: int
    slice: int | None = None
    """Of a windowed join: runs of different slices expire apart, and are never merged."""


def due_merges(
    shape: Shape, runs: Iterable[RunSize], under_way: Sequence[Merging], next_run: int
) -> tuple[list[Merging], int]:
    """The merges to work on, smallest class first (those under way are kept), and `next_run`."""
    runs = list(runs)
    rows = {(r.session, r.input, r.run): r.rows for r in runs}
    busy = {(m.session, m.input, run) for m in under_way for run in (*m.sources, m.target)}
    free: dict[tuple[str, int, int, int], list[int]] = defaultdict(list)
    for run in runs:
        if (run.session, run.input, run.run) not in busy:
            alike = run.slice or 0, shape.size_class(run.rows)
            free[run.session, run.input, *alike].append(run.run)
    merges = list(under_way)
    for (session, input_, *_), members in sorted(free.items()):
        if len(members) >= shape.fan_in:
            merges.append(Merging(session, input_, tuple(sorted(members)), next_run))
            next_run += 1

    def left(merge: Merging) -> int:
        return sum(rows.get((merge.session, merge.input, run), 0) for run in merge.sources)

    return sorted(merges, key=lambda m: (left(m), m.session, m.input, m.target)), next_run


@dataclass(frozen=True)
class FileLiveness:
    """A file and the bytes of its rows, dead ones included, and of those that live."""

    file: str
    bytes: int
    live_bytes: int

    @property
    def dead_share(self) -> float:
        """Share of the file that nothing needs."""
        return 1 - self.live_bytes / max(self.bytes, 1)


def to_trim(
    shape: Shape,
    worn: Iterable[FileLiveness],
    *,
    folder_bytes: int,
    budget_bytes: int,
    short_bytes: int,
    fuel: int,
) -> list[str]:
    """Files to trim, in this order: those with the greatest dead share first.

    Until `short_bytes` are freed, whatever that copies; and on, as far as `fuel` goes, in a folder
    that is filled to `trim_from`, until only `dead_in_budget` is left. Nothing of which nothing
    lives: such a file is let go of as a whole.
    """
    chosen: list[str] = []
    copied = freed = 0
    worn = [each for each in worn if each.live_bytes]
    dead = sum(each.bytes - each.live_bytes for each in worn)
    full = folder_bytes >= shape.trim_from * budget_bytes
    for each in sorted(worn, key=lambda w: (-w.dead_share, w.file)):
        if each.dead_share < shape.dead_share:
            break
        if freed >= short_bytes:
            enough = dead - freed <= shape.dead_in_budget * budget_bytes
            if enough or not full or copied + each.live_bytes > fuel:
                break
        chosen.append(each.file)
        copied += each.live_bytes
        freed += each.bytes - each.live_bytes
    return chosen
