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
from math import inf
from types import MappingProxyType

import numpy as np

from spillway.engine.groups import I64, U64, Bool, GroupMap, disjoint_ranges
from spillway.engine.join.kernel import Rows
from spillway.engine.join.tree import TreeSpec
from spillway.engine.state.arrangement import Segments, SessionState
from spillway.engine.state.runs import merge
from spillway.engine.statistics import HALF_LIFE_MS, Figures
from spillway.policy.expected import F64, Growth
from spillway.policy.victims import GroupFigures, VictimContext, victim_order
from spillway_schemas.hash_space import join_numbers
from spillway_schemas.journal import Prefix


@dataclass(frozen=True)
class Limits:
    """Sizes that decide when and how much to spill. `room_bytes` is what new files may take."""

    budget_bytes: int
    threshold: float
    fraction: float
    room_bytes: int
    forced_bytes: int = 0
    """To spill whatever the memory."""


@dataclass(frozen=True)
class GroupJoins:
    """Of which join each group is, and what policies ask of that; all (g,)."""

    join: I64
    """Its number; the root has the greatest."""
    level: I64
    """How many joins lie above it; 0 at the root."""
    inputs: I64
    window_ms: F64
    """How long a row waits for others; infinite: to the session's end."""

    @classmethod
    def of(cls, spec: TreeSpec, groups: GroupMap) -> GroupJoins:
        """Of an assignment's groups."""
        join = join_numbers(groups.prefixes, len(spec.joins))
        spans = [each.span for each in spec.joins]
        window_ms = [inf if s is None else max(0, *s.horizons_us) / 1000 for s in spans]
        inputs = [len(each.inputs) for each in spec.joins]
        level = np.array(spec.distances, dtype=np.int64)[join]
        return cls(join, level, np.array(inputs, np.int64)[join], np.array(window_ms)[join])

    @property
    def are_of_a_tree(self) -> bool:
        """Whether there is more than one join."""
        return bool(len(self.join)) and int(self.join.max()) > 0


def growth_of(figures: Figures, joins: GroupJoins, left_ms: float | None) -> Growth:
    """How a session's groups have grown. `left_ms`: until it ends; None: not known."""
    counters = figures.counters
    return Growth(
        rows=figures.rows.sum(axis=0),
        rows_in=counters.rows_in,
        recent_rows=counters.recent_rows,
        spilled_norm=counters.spilled_norm,
        session_results=counters.session_results,
        result_rate=counters.recent_results * (np.log(2) / HALF_LIFE_MS),
        join=joins.join,
        inputs=joins.inputs,
        window_ms=joins.window_ms,
        left_ms=left_ms,
    )


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
    joins: GroupJoins,
    left_ms: Mapping[str, float] = MappingProxyType({}),
) -> Victims:
    """Which groups to spill: by the rule first, then for room.

    `left_ms`: how long each session still goes on, where that is known.
    """
    sessions = list(figures)
    if not sessions:
        return Victims({})
    size = np.concatenate([figures[s].bytes for s in sessions])
    intake = np.concatenate([figures[s].intake_bytes for s in sessions])
    chosen: Bool = np.zeros(len(size), dtype=np.bool_)
    memory = int(size.sum())
    bound = int(limits.threshold * limits.budget_bytes)
    wanted = max(int(limits.fraction * memory), memory - bound) if memory > bound else 0
    wanted = max(wanted, limits.forced_bytes)
    overflow = int(intake.sum()) - max(limits.room_bytes, 0)
    freed = by_rule = 0
    if freed < wanted or overflow > 0:
        merged = GroupFigures(
            size,
            np.concatenate([figures[s].counters.results for s in sessions]),
            np.concatenate([figures[s].counters.last_used_ms for s in sessions]),
            growth=tuple(growth_of(figures[s], joins, left_ms.get(s)) for s in sessions),
        )
        if joins.are_of_a_tree:
            merged = replace(
                merged,
                level=np.tile(joins.level, len(sessions)),
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
            by_rule += int(size[group]) if freed < wanted else 0
            freed += int(size[group])
            overflow -= int(intake[group])
    width = len(size) // len(sessions)
    groups = {s: chosen[i * width : (i + 1) * width] for i, s in enumerate(sessions)}
    return Victims(groups, freed - by_rule)


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
