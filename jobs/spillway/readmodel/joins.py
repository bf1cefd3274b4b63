"""What a tree's joins hold and give: the figures of their groups, and the journal's cuts.

A query of one join has no figures by join: those of all its groups say the same.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from spillway.engine.groups import GroupMap
from spillway.policy.view import F64, I64
from spillway.protocol.state import genesis_of, kept_groups
from spillway.readmodel.groups import GroupStates, group_states, open_sessions, per_kib
from spillway.readmodel.model import ReadModel
from spillway.tables import Warehouse
from spillway_schemas.hash_space import ROOT, join_numbers
from spillway_schemas.journal import Record


class JoinFigures(Record):
    """One join of a tree. What is in memory is some seconds old, as statistics are."""

    join: str
    reader: str | None
    """The join that reads its results; None: it is the root."""
    rows: int
    """In memory, all inputs."""
    bytes: int
    results: int
    """That it gave itself at run time."""
    rate: float
    """Results per second, lately."""
    productivity: float
    """Results of the current generations for each KiB of state in memory."""
    cuts: int
    """Generations that were spilled, the seal's included."""
    spilled_bytes: int
    """What spills wrote out of memory; the seal's flush is not one."""
    groups: dict[int, int]
    """How many each slot owns; only slots that own some."""
    slot_bytes: dict[int, int]
    """Bytes in memory of the same slots."""


def look_at_joins(
    warehouse: Warehouse, model: ReadModel, session: str | None = None
) -> list[JoinFigures]:
    """Every join, children first: of a session, or of those that are open.

    Of a sealed session memory is what the last statistics before its seal say. None for one join,
    nor for a session whose query had other joins: its groups are no more.
    """
    state = model.state
    if len(state.genesis.joins) == 1:
        return []
    sealed = None if session is None else state.sealed.get(session)
    if sealed is not None and not kept_groups(state, genesis_of(state, sealed)):
        return []
    sessions = open_sessions(model) if session is None else [session]
    return join_figures(model, group_states(warehouse, model, 0.0, sessions), sessions)


def join_figures(
    model: ReadModel, states: GroupStates, sessions: Collection[str]
) -> list[JoinFigures]:
    """The figures of the assignment's groups by join, and the cuts of the sessions."""
    genesis = model.state.genesis
    names, tallies = genesis.joins, [model.tally.sessions[date] for date in sessions]
    groups = GroupMap(model.state.groups)
    owner = join_numbers(groups.prefixes, len(names))

    def summed(column: I64 | F64) -> F64:
        return np.bincount(owner, weights=column, minlength=len(names)).astype(np.float64)

    rows, size, spilled = summed(states.rows), summed(states.bytes), summed(states.spilled_bytes)
    given, rate = summed(states.session_results), summed(states.rate)
    # Every result of the root is in the journal, at once.
    given[-1] = sum(each.results for each in tallies)
    productivity = per_kib(summed(states.results), size)
    found = []
    for number, name in enumerate(names):
        parent, mine = genesis.parents[number], owner == number
        slots = np.unique(groups.slots[mine]).tolist()
        count = np.bincount(groups.slots[mine])
        held = np.bincount(groups.slots[mine], weights=states.bytes[mine])
        found.append(
            JoinFigures(
                join=name,
                reader=None if parent == ROOT else names[parent],
                rows=int(rows[number]),
                bytes=int(size[number]),
                results=int(given[number]),
                rate=round(float(rate[number]), 3),
                productivity=round(float(productivity[number]), 4),
                cuts=sum(each.cuts_by_join.get(number, 0) for each in tallies),
                spilled_bytes=int(spilled[number]),
                groups={slot: int(count[slot]) for slot in slots},
                slot_bytes={slot: int(held[slot]) for slot in slots},
            )
        )
    return found
