"""The paper's policies at the end of a reorganisation epoch, and what becomes of their advice.

They are the system's own (`spillway.policy.clusters`) with its settings; theta is scaled as the
rows are. A master does all three at once, where a controller of this system has one policy; so
their advice is carried out together. A group that moves is not split or merged at the same time.
The guards that the controller adds are left out, as in `benchmarks.lab.control`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.lab.workload import F64, I64
from spillway.engine.groups import GroupMap
from spillway.policy.registry import POLICIES
from spillway.policy.slots import rearranged
from spillway.policy.view import (
    MergeGroups,
    MoveGroup,
    SetSlots,
    SplitGroup,
    Suggestion,
    View,
    occupancy,
)
from spillway_schemas.journal import Prefix
from spillway_schemas.setting_fields import RebalanceSettings

GROUPS = 64
"""The paper has 60 partitions; a group is a prefix of a hash here."""
MOST_SLOTS = 5
ROW_BYTES = 36
"""Of a row in state: its hash, its key, its coordinate, its time."""
TUPLE_BYTES = 64
"""The paper's."""
THETA_BYTES = RebalanceSettings().theta_bytes
BUDGET_BYTES = 1 << 28


def settings(factor: float) -> dict[str, float | int | str]:
    """The system's defaults; theta holds `factor` of the tuples that the paper's holds."""
    theta = round(THETA_BYTES * factor * ROW_BYTES / TUPLE_BYTES)
    return RebalanceSettings().model_dump() | {"theta_bytes": theta, "groups": GROUPS}


@dataclass
class Master:
    """The policies, with what was counted since they were last asked."""

    policies: tuple[str, ...]
    factor: float
    swing: float
    """See `View`."""
    moved: int = 0
    splits: int = 0
    merges: int = 0
    changes: int = 0
    """Of the number of slots."""
    _do_s: list[F64] = field(default_factory=list)
    _span_s: list[float] = field(default_factory=list)

    def note(self, do_s: F64, span_s: float) -> None:
        """Take in what slots had to do in an epoch, (s,)."""
        self._do_s.append(do_s)
        self._span_s.append(span_s)

    def reorganise(self, now_s: float, groups: GroupMap, held: I64, processed: I64) -> GroupMap:
        """Ask the policies. `held`, `processed`: (g,) rows in memory, and rows that came."""
        slots = int(groups.slots.max()) + 1
        do_s = np.array([each[:slots] for each in self._do_s])
        span_s = sum(self._span_s)
        view = View(
            groups=tuple(groups.prefixes),
            slot=groups.slots.astype(np.int64),
            bytes=held * ROW_BYTES,
            results=np.zeros(len(groups), dtype=np.int64),
            processed=processed,
            spilled=np.zeros(len(groups), dtype=np.bool_),
            budget=np.full(slots, BUDGET_BYTES, dtype=np.int64),
            idle_s=np.maximum(np.array(self._span_s)[:, None] - do_s, 0).sum(axis=0),
            sampled=np.zeros(slots, dtype=np.int64),
            occupancy=occupancy(do_s, self._span_s[0], np.zeros(len(do_s), dtype=np.bool_)),
            collection_s=span_s,
            elapsed_s=now_s,
            cores=MOST_SLOTS,
            swing=self.swing,
            seed=round(now_s),
        )
        self._do_s, self._span_s = [], []
        advice = [POLICIES[name].advise(view, settings(self.factor)) for name in self.policies]
        return self._obeyed(groups, view, [s for each in advice for s in each.suggestions])

    def _obeyed(self, groups: GroupMap, view: View, suggested: list[Suggestion]) -> GroupMap:
        owner = dict(groups.assignment())
        wanted = [s.slots for s in suggested if isinstance(s, SetSlots)]
        if wanted:
            sizes = dict(zip(view.groups, view.bytes.tolist(), strict=True))
            moves = {m.group: m.to for m in rearranged(owner.items(), sizes, wanted[0])}
            self.changes += 1
        else:
            moves = {s.group: s.to for s in suggested if isinstance(s, MoveGroup)}
        self.moved += len(moves)
        owner |= moves
        for each in suggested:
            if isinstance(each, SplitGroup) and each.group not in moves:
                slot = owner.pop(each.group)
                owner |= dict.fromkeys(halves(each.group), slot)
                self.splits += 1
            elif isinstance(each, MergeGroups) and not moves.keys() & set(halves(each.group)):
                one, other = halves(each.group)
                owner[each.group] = owner.pop(one)
                del owner[other]
                self.merges += 1
        return GroupMap(owner.items())


def halves(group: Prefix) -> tuple[Prefix, Prefix]:
    """The two ranges that a split makes of one."""
    one, other = (Prefix(group.depth + 1, 2 * group.value + bit) for bit in (0, 1))
    return one, other
