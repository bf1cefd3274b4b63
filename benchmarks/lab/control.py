"""The controller: what a policy sees of the slots every so often, and what becomes of its advice.

As the real one: it looks, the policy advises, and the next epoch carries that out. Here a whole
advice is one adaptation and takes one epoch, however many groups move. Slots are never busy on a
virtual clock, so nothing moves for the sake of work; splits and merges are not carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.lab.workload import F64, I64
from spillway.engine.groups import GroupMap
from spillway.engine.statistics import shares_of
from spillway.policy import registry
from spillway.policy.guards import guarded
from spillway.policy.view import Advice, ForceSpill, MoveGroup, View
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import Prefix, SlotTotals
from spillway_schemas.setting_fields import RebalanceSettings, SpillSettings

Policy = Callable[[View], Advice]

THRESHOLD = SpillSettings().threshold
"""Of its budget, at which a slot spills."""
TICK_S = 0.5
"""Looks lie whole epochs apart here, where a real manager's are a little over: a look exactly
`min_span_s` after the last relocation counts as one after it."""
SETTINGS = RebalanceSettings().model_dump() | {
    "threshold": THRESHOLD,
    "min_span_s": RebalanceSettings().min_span_s - TICK_S,
}
"""The system's defaults."""
FORCED, RELOCATED = 100 / 80, 30 / 80
"""DAX, slide 21, which has the parameters of Figure 21: at most 100 MB are forced to disk, and only
more than 30 MB are relocated, where a machine spills at 80 MB."""


def _advise(view: View, name: str, least: float = 0.0, most: float = FORCED) -> Advice:
    """Of the memory at which a slot spills, `least` is too little to relocate, and `most` is what
    active-disk may force to disk in a day."""
    spills_at = THRESHOLD * float(view.budget[0])
    forced = {
        "forced_bytes": round(most * spills_at),
        "relocation_bytes": round(least * spills_at),
    }
    return registry.POLICIES[name].advise(view, SETTINGS | forced)


POOLED = "pooled"
POLICIES: dict[str, Policy] = {
    name: partial(_advise, name=name) for name in ("lazy-disk", "active-disk", POOLED)
}
"""Those that every experiment with relocation runs. TR-05-04 relocates any difference."""


def within_guards(view: View) -> Advice:
    """`pooled` as the controller passes it on."""
    span_s = RebalanceSettings().min_span_s - TICK_S
    return guarded(view, _advise(view, POOLED), span_s, RebalanceSettings().min_gain)


SLIDE_21: dict[str, Policy] = {
    name: partial(_advise, name=name, least=RELOCATED) for name in ("lazy-disk", "active-disk")
}
"""With DAX's least relocation."""

SHORT = 0.8
"""Of what all slots hold before they spill."""


def active_when_short(view: View) -> Advice:
    """`active_disk`, but as `lazy_disk` while less than `SHORT` of all memory is used."""
    short = view.memory.sum() >= SHORT * THRESHOLD * view.budget.sum()
    return _advise(view, "active-disk" if short else "lazy-disk")


WAITING: dict[str, Policy] = {"active-disk when short": active_when_short}
"""Between active-disk and `pooled`."""


@dataclass(frozen=True)
class Order:
    """What the next epoch shall do besides its rows."""

    moves: Mapping[Prefix, int] = field(default_factory=dict)
    forced: Mapping[int, int] = field(default_factory=dict)


@dataclass
class _Seen:
    """What a slot did so far. `sampled`: results since the last look; `spilled_bytes`: less what
    has come back."""

    sampled: int = 0
    spilled_bytes: int = 0


@dataclass
class Controller:
    """A policy with what it remembers of the run so far."""

    policy: Policy
    memory_bytes: int
    """Of each slot, at which it spills: `THRESHOLD` of its budget."""
    day_s: float
    parents: tuple[int, ...] = (ROOT,)
    """Of the joins whose groups these are: see `View`."""
    adaptations: int = 0
    """Times that something moved."""
    moved_groups: int = 0
    forced_bytes: int = 0
    _looked_s: float = 0.0
    _moved_s: float = float("-inf")
    _rows_in: I64 | int = 0
    """(g,) at the last look."""
    _slots: dict[int, _Seen] = field(default_factory=dict)

    def note(self, totals: Iterable[SlotTotals]) -> None:
        """Take in an epoch's totals."""
        for total in totals:
            seen = self._slots.setdefault(total.slot, _Seen())
            seen.sampled += total.results
            seen.spilled_bytes += total.spilled_bytes - total.returned_bytes

    def decide(
        self, now_s: float, groups: GroupMap, figures: pa.Table, cut: Iterable[int]
    ) -> Order:
        """Look at the slots and ask the policy. `cut`: groups that were ever spilled."""
        held = figures.filter(pc.field("resident"))
        slots = [self._slots[s] for s in sorted(self._slots)]
        bytes_ = _by_group(held, "bytes", groups).astype(np.int64)
        rows_in = _by_group(held, "rows_in", groups).astype(np.int64)
        span_s = now_s - self._looked_s
        spilled = np.zeros(len(groups), dtype=np.bool_)
        spilled[list(cut)] = True
        view = View(
            groups=tuple(groups.prefixes),
            slot=groups.slots.astype(np.int64),
            bytes=bytes_,
            results=_by_group(held, "results", groups).astype(np.int64),
            processed=rows_in - self._rows_in,
            spilled=spilled,
            budget=np.full(len(slots), round(self.memory_bytes / THRESHOLD), dtype=np.int64),
            idle_s=np.full(len(slots), span_s),
            sampled=np.array([each.sampled for each in slots], dtype=np.int64),
            occupancy=np.zeros(len(slots)),
            collection_s=span_s,
            since_move_s=now_s - self._moved_s,
            session_bytes=int(bytes_.sum()) + sum(each.spilled_bytes for each in slots),
            elapsed_s=now_s,
            left_s=self.day_s - now_s,
            forced_bytes=self.forced_bytes,
            rate=_by_group(held, "rate", groups),
            loss=_by_group(held, "expected_loss", groups),
            spilled_bytes=_by_group(held, "spilled_bytes", groups).astype(np.int64),
            came=rows_in,
            parents=self.parents,
        )
        self._looked_s, self._rows_in = now_s, rows_in
        for each in slots:
            each.sampled = 0
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


def _by_group(held: pa.Table, column: str, groups: GroupMap) -> F64:
    """(g,) a column of the slots' newest statistics."""
    values = held[column].to_numpy().astype(np.float64)
    # By depth, too: groups of two joins of a tree may have one value.
    _, at, _ = shares_of(held["depth"].to_numpy(), held["value"].to_numpy(), groups)
    return np.bincount(at, weights=values, minlength=len(groups)).astype(np.float64)
