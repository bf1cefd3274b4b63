"""How long slots work and rows wait: a cost model, on a virtual clock. Pure.

Source: Chakraborty & Singh, sections II and IV-D. A slot gets the rows of a distribution epoch at
its end. Each row is joined with the rows of the other stream in its mini-partition by a block
nested loop: all of them are scanned. A slot works

    row_s x rows  +  scan_s x rows scanned  +  result_s x results

seconds for an epoch, begins when it has got the rows and is done with those of the epochs before,
and what it could not do before the next distribution is left over. A result is out when its slot is
done with the epoch; its *production delay* is the time since the later of its two rows arrived.

A group that moves costs both slots `move_s` for each of its rows, and takes its share of what was
left over with it. (The delay of results that wait for this is reckoned as if it had stayed.)

Why not the engine's seconds: they go with the machine, and its steps look rows up by their hash
instead of scanning. They are measured beside this.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.lab.workload import F64, I64
from spillway.engine.groups import GroupMap
from spillway_schemas.journal import HASH_BITS

LEAF_BITS = 16
"""Rows are counted by so many bits of their hash; no group is a part of such a leaf."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a slot, for the paper's tuples."""

    row_s: float = 50e-6
    """To receive a row, and keep it."""
    scan_s: float = 10e-9
    """To compare two rows."""
    result_s: float = 5e-6
    """To make a result, and send it."""
    move_s: float = 2e-6
    """To give or to take a row of a group that moves, in bulk: 64 bytes alone take 0.5 us on the
    paper's network."""

    def work_s(self, factor: float, rows: F64, scanned: F64, results: F64, moved: F64) -> F64:
        """(s,) what slots work; each row of a day that has `factor` of them stands for more."""
        each = 1 / factor
        found: F64 = each * (self.row_s * rows + self.result_s * results + self.move_s * moved)
        return found + each**2 * self.scan_s * scanned


def scanned(before: I64, new: I64) -> I64:
    """(g,) pairs of rows that a nested loop compares in an epoch, by group: each new row with all
    rows of the other stream, once. Both (2, g): rows there before, and new rows."""
    found: I64 = new[0] * before[1] + new[1] * before[0] + new[0] * new[1]
    return found


def by_group(leaves: I64, groups: GroupMap) -> I64:
    """(g,) sums of what is counted by leaf. Raises ValueError for a group within a leaf."""
    if int(groups.depths.max()) > LEAF_BITS:
        raise ValueError(f"a group of {groups.depths.max()} bits; leaves have {LEAF_BITS}")
    starts = (groups.starts >> np.uint64(HASH_BITS - LEAF_BITS)).astype(np.int64)
    found: I64 = np.add.reduceat(leaves, starts)
    return found


@dataclass
class Queues:
    """What slots have left over, and what their results waited."""

    slots: int
    left_s: F64 = field(init=False)
    """(s,) work that was not done when the newest rows came."""
    idle_s: F64 = field(init=False)
    """(s,) since the last `begin`, as all below."""
    busy_s: F64 = field(init=False)
    delay_s: float = 0.0
    """Of all results together."""
    results: int = 0

    def __post_init__(self) -> None:
        self.left_s = np.zeros(self.slots)
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self.idle_s, self.busy_s = np.zeros(self.slots), np.zeros(self.slots)
        self.delay_s, self.results = 0.0, 0

    def hand_over(self, source: I64, to: I64, share: F64) -> None:
        """Groups move. (m,) each: from which slot, to which, and the share of the first one's work
        that is theirs."""
        waits = self.left_s[source] * share
        np.add.at(self.left_s, source, -waits)
        np.add.at(self.left_s, to, waits)

    def epoch(self, end_s: float, span_s: float, work_s: F64, results: I64, came_s: F64) -> F64:
        """Take in an epoch that ends at `end_s`, `span_s` after the one before it.

        Args:
            work_s: (s,) what its rows take.
            results: (s,) what they give.
            came_s: (s,) when the later rows of these arrived, summed.

        Returns (s,) what slots have to do in the span after its end, what was left over included.
        """
        do_s: F64 = self.left_s + work_s
        self.delay_s += float((results * (end_s + do_s) - came_s).sum())
        self.results += int(results.sum())
        self.busy_s += np.minimum(do_s, span_s)
        self.idle_s += np.maximum(span_s - do_s, 0.0)
        self.left_s = np.maximum(do_s - span_s, 0.0)
        return do_s
