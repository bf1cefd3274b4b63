"""All partition groups as columns, cut for people: a map of bounded size, and a table to search.

Model: a `GroupTable` has one row for each group of the assignment, in the order of hashes. Its
figures are those of the newest `statistics` (some seconds old). There may be 32,768 groups; what
leaves here is bounded: the map has about `MOST_CELLS` cells (neighbours of one slot and join become
one, with sums), and the table gives the first rows of an order, after a search over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from spillway.policy.automatic import fraction_for, reactivation_for, victims_for
from spillway.policy.victims import DEFAULT_VICTIMS, GroupFigures, VictimContext, victim_order
from spillway.policy.view import F64, I64, Bool
from spillway.readmodel.groups import GroupStates, cut_groups, group_states, per_kib
from spillway.readmodel.model import ReadModel
from spillway.report.model import StatusRecord
from spillway.tables import Warehouse
from spillway_schemas.hash_space import group_text, join_named, join_numbers
from spillway_schemas.journal import Prefix
from spillway_schemas.query import SINGLE
from spillway_schemas.setting_fields import SpillSettings

MOST_CELLS = 1024
MOST_ROWS = 500

Order = Literal[
    "group",
    "slot",
    "bytes",
    "rows",
    "results",
    "rate",
    "loss_per_kib",
    "generations",
    "spilled_bytes",
    "hot_share",
]
ORDERS: tuple[str, ...] = get_args(Order)

STATES = ("empty", "resident", "partly", "spilled", "moving")
"""`partly`: something was spilled, newer rows are in memory; `moving`: is to change its slot."""
EMPTY, RESIDENT, PARTLY, SPILLED, MOVING = range(len(STATES))


@dataclass(frozen=True)
class GroupTable:
    """Columns over the groups; all (g,)."""

    epoch: int
    """Of the journal; statistics may be some epochs older."""
    prefixes: tuple[Prefix, ...]
    slot: I64
    state: I64
    """Index into `STATES`."""
    target: I64
    """Where the group moves to; -1: nowhere."""
    figures: GroupStates
    names: Sequence[str] = (SINGLE,)
    """Of the query's joins, children first."""
    spills_next: Bool | None = None
    """What a spill of each slot would take now, at least, bool (g,); None: slots spill by another
    order than expected loss."""
    texts: list[str] = field(default_factory=list)
    """What a search looks at; made when somebody searches."""

    @cached_property
    def joins(self) -> I64:
        """The number of each group's join."""
        return join_numbers(self.prefixes, len(self.names))

    def text(self, g: int) -> str:
        """A group as it is written for people."""
        return group_text(self.prefixes[g], self.names)

    def of_join(self, name: str) -> GroupTable:
        """The groups of one join. Raises `UnknownJoin`."""
        mine = np.flatnonzero(self.joins == join_named(name, self.names))
        return replace(
            self,
            prefixes=tuple(self.prefixes[g] for g in mine.tolist()),
            slot=self.slot[mine],
            state=self.state[mine],
            target=self.target[mine],
            figures=self.figures.only(mine),
            spills_next=None if self.spills_next is None else self.spills_next[mine],
            texts=[],
        )


class Cells(StatusRecord):
    """The map: one list entry per cell, cells ordered by slot and then by hash."""

    first: list[str]
    """The cell's first group."""
    last: list[str]
    groups: list[int]
    slot: list[int]
    state: list[int]
    """Index into `states`; of several groups the one that says most."""
    moving: list[int]
    spilled: list[int]
    """Groups of which something was spilled."""
    bytes: list[int]
    results: list[int]
    rate: list[float]
    loss_per_kib: list[float]
    """Expected loss for each KiB."""
    spilled_bytes: list[int]
    spills_next: list[int]
    """Groups that a spill of their slot would take now; 0 where that is not known."""


class Row(StatusRecord):
    """A group of the table."""

    group: str
    slot: int
    state: str
    target: int | None
    bytes: int
    rows: int
    results: int
    session_results: int
    rate: float
    loss_per_kib: float
    """Expected loss for each KiB: results that a spill now would give up."""
    generations: int
    spilled_bytes: int
    hot_key: str | None
    hot_share: float | None


class Groups(StatusRecord):
    """The groups' view: of all joins, or of one."""

    epoch: int
    joins: list[str]
    """Of a tree, the root first; empty for a query of one join."""
    join: str
    """The one whose groups these are; empty: all of them."""
    total: int
    states: tuple[str, ...]
    counts: list[int]
    """Groups in each state."""
    cells: Cells
    line: tuple[float, float] | None
    """The eviction lines of the slots, the lowest and the highest: up to where, in expected loss
    for each KiB, a spill would take groups now. Of all joins together. None: nothing is in memory,
    or slots spill by another order."""
    rows: list[Row]
    found: int
    """Groups that the search has found, of which `rows` are the first."""


def look_at_groups(warehouse: Warehouse, model: ReadModel, spill: SpillSettings) -> GroupTable:
    """Read what is known of every group now. `spill`: as slots are told to."""
    found = group_states(warehouse, model, collection_s=0.0)
    prefixes = tuple(group for group, _ in model.state.groups)
    at = {prefix: g for g, prefix in enumerate(prefixes)}
    target = np.full(len(prefixes), -1, dtype=np.int64)
    for move in model.state.moves:
        if move.group in at:
            target[at[move.group]] = move.to
    cut = cut_groups(model) | (found.generations > 0)
    slot = np.array([slot for _, slot in model.state.groups], dtype=np.int64)
    victims = victims_for(spill.victims, len(model.state.genesis.joins))
    fraction = fraction_for(spill.fraction, reactivation_for(spill.reactivation, victims))
    by_loss = victims == DEFAULT_VICTIMS
    return GroupTable(
        epoch=model.state.epoch,
        prefixes=prefixes,
        slot=slot,
        state=_states(found.rows > 0, cut, target >= 0),
        target=target,
        figures=found,
        names=model.state.genesis.joins,
        spills_next=next_to_be_spilled(slot, found, fraction) if by_loss else None,
    )


def next_to_be_spilled(slot: I64, figures: GroupStates, fraction: float) -> Bool:
    """What a spill of each slot by expected loss would take now, bool (g,): `fraction` of its
    memory. It takes more where epochs bring much."""
    known = GroupFigures(
        figures.bytes,
        figures.results,
        np.zeros(len(slot), dtype=np.int64),
        loss=figures.expected_loss,
    )
    order = victim_order(DEFAULT_VICTIMS, known, VictimContext(0, 0, 0))
    order = order[np.argsort(slot[order], kind="stable")]
    mine, size = slot[order], figures.bytes[order]
    before = size.cumsum() - size
    # From where the slot's own groups begin.
    before -= before[np.searchsorted(mine, mine)]
    memory = np.bincount(slot, figures.bytes)
    found: Bool = np.zeros(len(slot), dtype=np.bool_)
    found[order] = (before < (fraction * memory).astype(np.int64)[mine]) & (size > 0)
    return found


def _states(held: Bool, cut: Bool, moving: Bool) -> I64:
    state = np.where(held, np.where(cut, PARTLY, RESIDENT), np.where(cut, SPILLED, EMPTY))
    return np.where(moving, MOVING, state).astype(np.int64)


def groups_view(
    table: GroupTable, order: str, *, descending: bool, search: str, most: int, join: str = ""
) -> Groups:
    """The map of all groups (or those of a join), and the first rows of a table.

    Raises `UnknownJoin`.
    """
    names = list(reversed(table.names)) if len(table.names) > 1 else []
    line = eviction_lines(table)
    if join:
        table = table.of_join(join)
    chosen = _searched(table, search)
    keys = _order(table, order)[chosen]
    ranks = np.argsort(-keys if descending else keys, kind="stable")
    first = chosen[ranks[: min(most, MOST_ROWS)]]
    return Groups(
        epoch=table.epoch,
        joins=names,
        join=join,
        total=len(table.prefixes),
        states=STATES,
        counts=np.bincount(table.state, minlength=len(STATES)).tolist(),
        cells=cells(table, MOST_CELLS),
        line=line,
        rows=[_row(table, g) for g in first.tolist()],
        found=len(chosen),
    )


def eviction_lines(table: GroupTable) -> tuple[float, float] | None:
    """See `Groups.line`."""
    if table.spills_next is None or not table.spills_next.any():
        return None
    dearest = np.zeros(int(table.slot.max()) + 1)
    taken = table.slot[table.spills_next]
    np.maximum.at(dearest, taken, table.figures.loss_per_kib[table.spills_next])
    lines = dearest[np.unique(taken)]
    return round(float(lines.min()), 4), round(float(lines.max()), 4)


def cells(table: GroupTable, most: int) -> Cells:
    """The map in about `most` cells, and one more for each join of each slot at the most."""
    total = len(table.prefixes)
    each = max(1, -(-total // most))
    by_slot = np.argsort(table.slot, kind="stable")
    slot, joins = table.slot[by_slot], table.joins[by_slot]
    # Within a slot, `each` neighbours of a join are one cell.
    other = (slot[1:] != slot[:-1]) | (joins[1:] != joins[:-1])
    begins = np.flatnonzero(np.r_[True, other]) if total else np.zeros(0, np.int64)
    place = np.arange(total) - np.repeat(begins, np.diff(np.r_[begins, total]))
    starts = np.flatnonzero(place % each == 0)
    counts = np.diff(np.r_[starts, total])

    def added(column: I64 | F64) -> I64 | F64:
        return np.add.reduceat(column[by_slot], starts) if total else column

    figures = table.figures
    size, results, rate = added(figures.bytes), added(figures.results), added(figures.rate)
    names = [table.text(g) for g in by_slot[starts].tolist()]
    ends = by_slot[starts + counts - 1].tolist() if total else []
    state = table.state
    spilled = added(((state == PARTLY) | (state == SPILLED)).astype(np.int64))
    moving = added((state == MOVING).astype(np.int64))
    held = added(((state == PARTLY) | (state == RESIDENT)).astype(np.int64))
    known = table.spills_next
    spills_next = np.zeros(total, np.int64) if known is None else known.astype(np.int64)
    of_cell = _states(held > 0, spilled > 0, moving > 0)
    return Cells(
        first=names,
        last=[table.text(g) for g in ends],
        groups=counts.tolist(),
        slot=slot[starts].tolist(),
        state=of_cell.tolist(),
        moving=moving.tolist(),
        spilled=spilled.tolist(),
        bytes=size.tolist(),
        results=results.tolist(),
        rate=np.round(rate, 3).tolist(),
        loss_per_kib=np.round(per_kib(added(figures.expected_loss), size), 4).tolist(),
        spilled_bytes=added(figures.spilled_bytes).tolist(),
        spills_next=added(spills_next).tolist(),
    )


def _order(table: GroupTable, order: str) -> F64:
    match order:
        case "group":
            return np.arange(len(table.prefixes), dtype=np.float64)
        case "slot":
            return table.slot.astype(np.float64)
        case _:
            column: F64 = getattr(table.figures, order).astype(np.float64)
            return column


def _searched(table: GroupTable, search: str) -> I64:
    """Groups whose name, slot, state or hottest key contains every word of the search."""
    words = search.casefold().split()
    everything = np.arange(len(table.prefixes), dtype=np.int64)
    if not words:
        return everything
    if not table.texts:
        slots, states, keys = table.slot.tolist(), table.state.tolist(), table.figures.hot_key
        table.texts.extend(
            f"{table.text(g)} slot:{slots[g]} {STATES[states[g]]} {keys[g]}".casefold()
            for g in range(len(table.prefixes))
        )
    for word in words:
        hit = [word in table.texts[g] for g in everything.tolist()]
        everything = everything[np.array(hit, dtype=np.bool_)]
    return everything


def _row(table: GroupTable, g: int) -> Row:
    figures, target = table.figures, int(table.target[g])
    return Row(
        group=table.text(g),
        slot=int(table.slot[g]),
        state=STATES[int(table.state[g])],
        target=None if target < 0 else target,
        bytes=int(figures.bytes[g]),
        rows=int(figures.rows[g]),
        results=int(figures.results[g]),
        session_results=int(figures.session_results[g]),
        rate=round(float(figures.rate[g]), 3),
        loss_per_kib=round(float(figures.loss_per_kib[g]), 4),
        generations=int(figures.generations[g]),
        spilled_bytes=int(figures.spilled_bytes[g]),
        hot_key=figures.hot_key[g] or None,
        hot_share=round(float(figures.hot_share[g]), 4) if figures.hot_key[g] else None,
    )
