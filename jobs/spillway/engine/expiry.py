"""What has expired leaves a slot's state; what cleanup needs of it is written to its generation.

Model: rules in `spillway_schemas.windows`, slices in `spillway.engine.state.slices`. Before an
epoch's rows are joined, the slices that the watermark of the epoch before has passed leave memory;
after it, those of the epoch's own rows (a row that was joined below may be old when it comes).
Nothing is copied: a file that is not named by the next manifest is garbage.

An expired row is written only where an earlier generation may have a partner of it. It belongs to
the generation that was in memory when it left, whose cut comes later
(`spillway.engine.spill.generations`).

Cost: with the slices that expire. Rows are looked at only in groups that were ever spilled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spillway.engine.groups import I64, GroupMap
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.state.arrangement import ALL, SessionState, everything
from spillway.engine.state.slices import greatest_of, is_over, least_of, taken
from spillway_schemas.hash_space import ROOT, join_of
from spillway_schemas.journal import Prefix
from spillway_schemas.windows import BEGINNING_US, needed


def take_expired(
    spec: TreeSpec, session: SessionState, watermark_us: int, *, new: bool
) -> list[list[Rows]]:
    """Take the slices that have expired out of a session; per input their live rows.

    `new`: of the epoch's own rows; otherwise of all that was there before.
    """
    if new:
        gone, session.new = _parted(spec, session.new, watermark_us)
        return gone
    gone, session.installed = _parted(spec, session.installed, watermark_us)
    whole = everything(session.drops)
    for input_ in range(len(spec.inputs)):
        stays = []
        for part in session.parts[input_]:
            if is_over(spec, input_, part.file.slice, watermark_us):
                gone[input_] += whole.slices(part.rows, part.file.born, ALL)
            else:
                stays.append(part)
        session.parts[input_] = stays
    return gone


def _parted(
    spec: TreeSpec, pieces: Sequence[Sequence[Rows]], watermark_us: int
) -> tuple[list[list[Rows]], list[list[Rows]]]:
    """Rows per input that have expired, and those that stay. In new lists: others count the old."""
    gone: list[list[Rows]] = []
    stays: list[list[Rows]] = []
    for input_, some in enumerate(pieces):
        over = [is_over(spec, input_, rows.slice, watermark_us) for rows in some]
        gone.append([rows for rows, is_gone in zip(some, over, strict=True) if is_gone])
        stays.append([rows for rows, is_gone in zip(some, over, strict=True) if not is_gone])
    return gone, stays


def still_needed(
    spec: TreeSpec,
    groups: GroupMap,
    reach: Sequence[tuple[Prefix, int]],
    gone: Sequence[Sequence[Rows]],
) -> list[list[Rows]]:
    """Of expired rows, per input, those that cleanup may join. `reach`: the ranges that were ever
    spilled, with the greatest time of what was."""
    if not reach:
        return [[] for _ in gone]
    until = _until(spec, groups, reach)
    kept: list[list[Rows]] = []
    for input_, pieces in enumerate(gone):
        kept.append([])
        span = spec.join_of_input(input_).span
        for rows in pieces:
            assert span is not None, "rows expire where there is a window"
            least = least_of(spec, input_, rows.table)
            mine = needed(least, until[groups.group_of(rows.key_hash)], span.width_us)
            if mine.any():
                kept[-1].append(rows if mine.all() else taken(rows, mine))
    return kept


def _until(spec: TreeSpec, groups: GroupMap, reach: Sequence[tuple[Prefix, int]]) -> I64:
    """Per group, int64 (g,): the greatest time of what was spilled of any part of it, and of all
    that joins below its join have spilled; `BEGINNING_US`: nothing."""
    joins = len(spec.joins)
    below = [BEGINNING_US] * joins
    until = np.full(len(groups), BEGINNING_US, dtype=np.int64)
    for prefix, time_us in reach:
        above = spec.parents[join_of(prefix, joins)]
        while above != ROOT:
            below[above] = max(below[above], time_us)
            above = spec.parents[above]
        first, stop = _span(groups, prefix)
        np.maximum(until[first:stop], time_us, out=until[first:stop])
    for join, space in enumerate(spec.spaces):
        first, stop = _span(groups, space)
        np.maximum(until[first:stop], below[join], out=until[first:stop])
    return until


def _span(groups: GroupMap, prefix: Prefix) -> tuple[int, int]:
    """The groups [first, stop) that overlap a range."""
    first = int(np.searchsorted(groups.starts, np.uint64(prefix.lo), side="right")) - 1
    return first, int(np.searchsorted(groups.starts, np.uint64(prefix.hi - 1), side="right"))


def greatest_by_group(
    groups: GroupMap, rows: Sequence[Sequence[Rows]], timed: Sequence[bool]
) -> I64:
    """The greatest time of the rows of each group, int64 (g,); `timed`: of each input whether its
    rows have times."""
    found = np.full(len(groups), BEGINNING_US, dtype=np.int64)
    for pieces, has_times in zip(rows, timed, strict=True):
        for each in pieces:
            if has_times:
                np.maximum.at(found, groups.group_of(each.key_hash), greatest_of(each.table))
    return found
