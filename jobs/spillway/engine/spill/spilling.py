"""Which groups leave memory in this epoch, and where their rows lie.

Model: memory of a slot = bytes of its live rows, the epoch's included. Above `threshold` x
budget the slot spills `fraction` of its memory (more when that would not bring it below the
threshold), victims by policy; a victim is a (session, group) pair, with all inputs.

Apart from that rule the new rows that stay must fit into the folder, beside the files of dead rows
that are not rewritten yet. Where they do not, victims are added, in the policy's order, until they
do, in the end everything that came: rows of a victim go straight to the spill file, so a slot
never fails because a group is large. What leaves for this reason is counted apart (`Victims`):
intake and upkeep are shaped so that it hardly ever happens (decision 15).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spillway.engine.groups import I64, U64, Bool, GroupMap, disjoint_ranges
from spillway.engine.join.kernel import Rows
from spillway.engine.state.arrangement import Segments, SessionState
from spillway.engine.state.runs import merge
from spillway.engine.statistics import Figures
from spillway.policy.victims import GroupFigures, VictimContext, victim_order
from spillway_schemas.journal import Prefix

SPILL_INTAKES = 2
SPILL_FILES = 4
"""A spill takes at least what so many epochs bring, and the bytes of so many files: smaller ones,
in epoch after epoch, wear all files a little, and leave no room to rewrite them."""


@dataclass(frozen=True)
class Limits:
    """Sizes that decide when and how much to spill. `room_bytes` is what new files may take."""

    budget_bytes: int
    threshold: float
    fraction: float
    room_bytes: int
    forced_bytes: int = 0
    """To spill whatever the memory."""
    brought_bytes: int = 0
    """What the epoch's new rows take. State that moved in or was restored is no intake: it comes
    once."""
    file_bytes: int = 0
    """Of a merged file."""


@dataclass(frozen=True)
class Victims:
    """What leaves memory."""

    groups: Mapping[str, Bool]
    """Per session the groups to spill, bool (g,)."""
    overflow_bytes: int = 0
    """State of those that the rule would have kept: they leave for want of room in the folder."""


def choose_victims(
    figures: Mapping[str, Figures],
    limits: Limits,
    policy: str,
    context: VictimContext,
    level: I64 | None = None,
) -> Victims:
    """Which groups to spill: by the rule first, then for room.

    `level`: of each group of a tree of joins how many joins lie above its own, int64 (g,); None:
    there is one join.
    """
    sessions = list(figures)
    if not sessions:
        return Victims({})
    size = np.concatenate([figures[s].bytes for s in sessions])
    intake = np.concatenate([figures[s].intake_bytes for s in sessions])
    chosen: Bool = np.zeros(len(size), dtype=np.bool_)
    memory = int(size.sum())
    bound = int(limits.threshold * limits.budget_bytes)
    by_rule = max(
        int(limits.fraction * memory),
        memory - bound,
        SPILL_INTAKES * limits.brought_bytes,
        SPILL_FILES * limits.file_bytes,
    )
    wanted = by_rule if memory > bound else 0
    wanted = max(wanted, limits.forced_bytes)
    overflow = int(intake.sum()) - max(limits.room_bytes, 0)
    freed = kept_to = 0
    if freed < wanted or overflow > 0:
        merged = GroupFigures(
            size,
            np.concatenate([figures[s].counters.results for s in sessions]),
            np.concatenate([figures[s].counters.last_used_ms for s in sessions]),
            loss=np.concatenate([figures[s].loss for s in sessions]),
        )
        if level is not None:
            merged = replace(
                merged,
                level=np.tile(level, len(sessions)),
                final_results=np.concatenate([figures[s].counters.final_results for s in sessions]),
                downstream_bytes=np.concatenate(
                    [figures[s].counters.downstream_bytes for s in sessions]
                ),
            )
        for group in victim_order(policy, merged, context).tolist():
            needed = freed < wanted or (overflow > 0 and intake[group] > 0)
            if not needed or not size[group]:
                continue
            chosen[group] = True
            kept_to += int(size[group]) if freed < wanted else 0
            freed += int(size[group])
            overflow -= int(intake[group])
    width = len(size) // len(sessions)
    groups = {s: chosen[i * width : (i + 1) * width] for i, s in enumerate(sessions)}
    return Victims(groups, freed - kept_to)


def rows_of(session: SessionState, segments: Segments, wanted: Bool) -> list[list[Rows]]:
    """Per input the live rows of the wanted buckets, bool (b,), as slices."""
    return [
        [piece for rows, born in session.pieces(i) for piece in segments.slices(rows, born, wanted)]
        for i in range(len(session.parts))
    ]


def staying(fresh: Sequence[Rows], segments: Segments, victims: Bool) -> list[Rows]:
    """Of rows that came in this epoch those that stay, sorted within each piece."""
    if not victims.any():
        return list(fresh)
    return [merge(slices) for slices in spared(fresh, segments, victims) if slices]


def spared(fresh: Sequence[Rows], segments: Segments, victims: Bool) -> list[list[Rows]]:
    """Of each of these rows, the slices that are not in a victim."""
    return [segments.slices(rows, rows.born, ~victims) for rows in fresh]


def flush_ranges(groups: GroupMap, slot: int, ranges: Sequence[Prefix]) -> list[Prefix]:
    """The parts of `ranges` that the slot owns, each within one group, disjoint, in order."""
    found: list[Prefix] = []
    wanted = disjoint_ranges(ranges)
    owned = [groups.prefixes[g] for g in groups.groups_of_slot(slot).tolist()]
    starts: U64 = np.array([p.lo for p in owned], dtype=np.uint64)
    for each in wanted:
        # The group that may cover it begins at or before it; those that it covers lie in it.
        first = max(int(np.searchsorted(starts, np.uint64(each.lo), side="right")) - 1, 0)
        stop = int(np.searchsorted(starts, np.uint64(each.hi - 1), side="right"))
        for group in owned[first:stop]:
            if group.overlaps(each):
                found.append(each if group.covers(each) else group)
    return sorted(found, key=lambda p: p.lo)
