"""Which groups leave memory in this epoch, and where their rows lie.

Model: memory of a slot = bytes of its live rows, the epoch's included. Above `threshold` x
budget the slot spills `fraction` of its memory (more when that would not bring it below the
threshold), victims by policy; a victim is a (session, group) pair, with all inputs.

What comes back of spilled generations (`spillway.policy.reactivation`) is as much as the rule
spills, at the most, and as much more is spilled for it; where the rule spills nothing, it is no
more than what is free. What has left its window since takes no memory, and does not count.

Apart from that rule, merging needs room in the folder (`spillway.engine.upkeep`), and the new rows
that stay must fit beside the files of rows that die in this epoch. Where they do not, victims are
added, in the policy's order, until they do, in the end everything that came: rows of a victim go
straight to the spill file, so a slot never fails because a group is large. What leaves for these
reasons is counted apart (`Victims`): see decision 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from spillway.engine.groups import I64, U64, Bool, GroupMap, disjoint_ranges
from spillway.engine.join.kernel import Rows
from spillway.engine.state.arrangement import Segments, SessionState
from spillway.engine.state.runs import merge
from spillway.engine.statistics import Figures
from spillway.policy.expected import Gain
from spillway.policy.reactivation import MOST_READ_BYTES, Candidates, Residents, returning, worth_of
from spillway.policy.victims import GroupFigures, VictimContext, victim_order
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
    brought_bytes: int = 0
    """What the epoch's new rows take, and the least that a spill does: else there would be one in
    epoch after epoch. State that moved in or was restored is no intake: it comes once."""
    returned_bytes: int = 0
    """State that has come back in this epoch."""
    short_bytes: int = 0
    """To spill, what leaves by the rule included, so that upkeep has room to work."""

    @property
    def bound_bytes(self) -> int:
        """Memory beyond which the slot spills."""
        return int(self.threshold * self.budget_bytes)

    def by_rule(self, memory_bytes: int) -> int:
        """What is spilled because of the memory that was there before anything came back."""
        if memory_bytes <= self.bound_bytes:
            return 0
        return max(
            int(self.fraction * memory_bytes),
            memory_bytes - self.bound_bytes,
            self.brought_bytes,
        )


@dataclass(frozen=True)
class Victims:
    """What leaves memory."""

    groups: Mapping[str, Bool]
    """Per session the groups to spill, bool (g,)."""
    overflow_bytes: int = 0
    """State of those that the rule would have kept: they leave for want of room in the folder."""


def choose_returns(
    figures: Mapping[str, Figures],
    limits: Limits,
    policy: str,
    *,
    victims: str,
    context: VictimContext,
    level: I64 | None = None,
    to_come_bytes: int,
) -> dict[str, Bool]:
    """Groups whose newest spilled generation comes back: per session with any, bool (g,).

    `victims`, `context`, `level`: as of `choose_victims`, for what leaves in any case stays away.
    `to_come_bytes`: by which memory is expected to grow until the session ends.
    """
    if limits.forced_bytes or limits.short_bytes:
        return {}  # who forces a spill wants the memory, and upkeep wants the room
    if not any(each.gains for each in figures.values()):
        return {}
    size, loss = _of_all(figures, "bytes"), _of_all(figures, "loss")
    memory = int(size.sum())
    by_rule, free = limits.by_rule(memory), limits.bound_bytes - memory
    leaving: Bool = np.zeros(len(size), dtype=np.bool_)
    most = max(free, 0)
    if by_rule:
        most = by_rule
        order = _in_order(figures, victims, context, level)
        leaving[order] = (np.cumsum(size[order]) - size[order] < by_rule) & (size[order] > 0)
    brought = int(_of_all(figures, "intake_bytes").sum())
    most = min(most, (limits.room_bytes - brought) // 2)
    if most <= 0:
        return {}
    found = returning(
        policy,
        Residents(size, loss, leaving),
        _candidates(figures),
        most_bytes=most,
        most_read_bytes=MOST_READ_BYTES,
        spare_bytes=max(free - to_come_bytes, 0),
        seed=context.seed,
    )
    return {name: mine for name, mine in _by_session(figures, found).items() if mine.any()}


def _candidates(figures: Mapping[str, Figures]) -> Candidates:
    """Of all sessions' groups, one session after the other."""
    found = []
    for each in figures.values():
        width = len(each.bytes)
        none = np.zeros(width)
        gains = each.gains or [Gain(none, none, none)]
        kept = [each.kept.newest(width, before) for before in range(len(gains))]
        stays = [gain.stays * of.bytes for gain, of in zip(gains, kept, strict=True)]
        worth = worth_of([gain.results for gain in gains], [of.bytes for of in kept], stays)
        newest = kept[0]
        found.append((newest.bytes, stays[0], worth, gains[0].at_once, newest.at_ms))
    return Candidates(*(np.concatenate(each) for each in zip(*found, strict=True)))


def _of_all(figures: Mapping[str, Figures], name: str) -> np.ndarray:
    """A figure of all sessions' groups, one session after the other."""
    return np.concatenate([getattr(each, name) for each in figures.values()])


def _by_session(figures: Mapping[str, Figures], flags: Bool) -> dict[str, Bool]:
    width = len(flags) // len(figures)
    return {s: flags[i * width : (i + 1) * width] for i, s in enumerate(figures)}


def choose_victims(
    figures: Mapping[str, Figures],
    limits: Limits,
    policy: str,
    context: VictimContext,
    level: I64 | None = None,
    returned: Mapping[str, Bool] = MappingProxyType({}),
) -> Victims:
    """Which groups to spill: by the rule first, then for room.

    `level`: of each group of a tree of joins how many joins lie above its own, int64 (g,); None:
    there is one join. `returned`: per session groups that have just come back, bool (g,); they
    leave after all others, for want of room or while there is more than the rule allows.
    """
    sessions = list(figures)
    if not sessions:
        return Victims({})
    size, intake = _of_all(figures, "bytes"), _of_all(figures, "intake_bytes")
    chosen: Bool = np.zeros(len(size), dtype=np.bool_)
    memory = int(size.sum())
    by_rule = limits.by_rule(memory - limits.returned_bytes)
    # As much more as has come back; where nothing was to be spilled, what is over now.
    by_rule += limits.returned_bytes if by_rule else 0
    wanted = max(by_rule, memory - limits.bound_bytes, limits.forced_bytes)
    overflow = int(intake.sum()) - max(limits.room_bytes, 0)
    freed = kept_to = 0
    if freed < max(wanted, limits.short_bytes) or overflow > 0:
        none: Bool = np.zeros(len(size) // len(sessions), dtype=np.bool_)
        back = np.concatenate([returned.get(s, none) for s in sessions])
        order = _in_order(figures, policy, context, level)
        for group in [*order[~back[order]].tolist(), *order[back[order]].tolist()]:
            over = memory - freed > limits.bound_bytes
            by_rule_too = freed < wanted and (over or not back[group])
            for_room = freed < limits.short_bytes or (overflow > 0 and intake[group] > 0)
            if not (by_rule_too or for_room) or not size[group]:
                continue
            chosen[group] = True
            kept_to += int(size[group]) if by_rule_too else 0
            freed += int(size[group])
            overflow -= int(intake[group])
    return Victims(_by_session(figures, chosen), freed - kept_to)


def _in_order(
    figures: Mapping[str, Figures], policy: str, context: VictimContext, level: I64 | None
) -> I64:
    """All sessions' groups, one session after the other: their indices, first victim first."""
    counters = [each.counters for each in figures.values()]
    merged = GroupFigures(
        _of_all(figures, "bytes"),
        np.concatenate([each.results for each in counters]),
        np.concatenate([each.last_used_ms for each in counters]),
        loss=_of_all(figures, "loss"),
    )
    if level is not None:
        merged = replace(
            merged,
            level=np.tile(level, len(figures)),
            final_results=np.concatenate([each.final_results for each in counters]),
            downstream_bytes=np.concatenate([each.downstream_bytes for each in counters]),
        )
    return victim_order(policy, merged, context)


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
