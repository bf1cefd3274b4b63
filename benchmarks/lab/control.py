"""The controller: what a policy sees of the slots every so often, and what becomes of its advice.

As the real one: it looks, the policy advises, and the next epoch carries that out. Here a whole
advice is one adaptation and takes one epoch, however many groups move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.lab.workload import I64
from jobs.engine.groups import GroupMap
from jobs.policy.disk import active_disk, lazy_disk
from jobs.policy.view import Advice, ForceSpill, MoveGroup, View
from schemas.journal import Prefix, SlotTotals

Policy = Callable[[View], Advice]

POLICIES: dict[str, Policy] = {"lazy-disk": lazy_disk, "active-disk": active_disk}
"""Those that every experiment with relocation runs, with their defaults."""

SHORT = 0.8
"""Of the memory of all slots."""


def active_when_short(view: View) -> Advice:
    """`active_disk`, but as `lazy_disk` while less than `SHORT` of all memory is used."""
    if view.memory.sum() < SHORT * view.budget.sum():
        return lazy_disk(view)
    return active_disk(view)


@dataclass(frozen=True)
class Order:
    """What the next epoch shall do besides its rows."""

    moves: Mapping[Prefix, int] = field(default_factory=dict)
    forced: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Controller:
    """A policy with what it remembers of the run so far."""

    policy: Policy
    memory_bytes: int
    """Of each slot, at which it spills: M_cluster is the sum."""
    day_s: float
    adaptations: int = 0
    """Times that something moved."""
    moved_groups: int = 0
    forced_bytes: int = 0
    _looked_s: float = 0.0
    _moved_s: float = float("-inf")
    _sampled: dict[int, int] = field(default_factory=dict)
    _spilled_bytes: int = 0

    def note(self, totals: list[SlotTotals]) -> None:
        """Take in an epoch's totals."""
        for total in totals:
            self._sampled[total.slot] = self._sampled.get(total.slot, 0) + total.results
            self._spilled_bytes += total.spilled_bytes

    def decide(
        self, now_s: float, groups: GroupMap, figures: pa.Table, totals: list[SlotTotals]
    ) -> Order:
        """Look at the slots and ask the policy."""
        bytes_, results = _by_group(figures, len(groups))
        slots = len(totals)
        held = sum(total.state_bytes for total in totals)
        view = View(
            groups=tuple(groups.prefixes),
            slot=groups.slots.astype(np.int64),
            bytes=bytes_,
            results=results,
            processed=np.zeros(len(groups), dtype=np.int64),
            spilled=np.zeros(len(groups), dtype=np.bool_),
            budget=np.full(slots, self.memory_bytes, dtype=np.int64),
            idle_s=np.zeros(slots),
            sampled=np.array([self._sampled.get(s, 0) for s in range(slots)], dtype=np.int64),
            occupancy=np.zeros(slots),
            collection_s=now_s - self._looked_s,
            since_move_s=now_s - self._moved_s,
            session_bytes=held + self._spilled_bytes,
            elapsed_s=now_s,
            left_s=self.day_s - now_s,
            forced_bytes=self.forced_bytes,
        )
        self._looked_s, self._sampled = now_s, {}
        return self._obeyed(self.policy(view), now_s)

    def _obeyed(self, advice: Advice, now_s: float) -> Order:
        moves = {s.group: s.to for s in advice.suggestions if isinstance(s, MoveGroup)}
        forced = {s.slot: s.bytes for s in advice.suggestions if isinstance(s, ForceSpill)}
        if moves:
            self._moved_s = now_s
            self.adaptations += 1
            self.moved_groups += len(moves)
        self.forced_bytes += sum(forced.values())
        return Order(moves, forced)


def _by_group(figures: pa.Table, groups: int) -> tuple[I64, I64]:
    """(bytes, results of the current generation) of each group, from the slots' statistics."""
    held = figures.filter(pc.field("resident"))
    at = held["value"].to_numpy()
    bytes_, results = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    np.add.at(bytes_, at, held["bytes"].to_numpy())
    np.add.at(results, at, held["results"].to_numpy())
    return bytes_, results
