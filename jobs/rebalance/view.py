"""What the controller knows: the journal's totals of slots, the newest `statistics` of groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.policy.view import View
from jobs.protocol.state import JournalState
from jobs.tables import Warehouse
from jobs.tables.names import origin
from schemas.journal import Epoch, Prefix

COLUMNS = ["session_date", "epoch", "slot", "depth", "value", "bytes", "results", "resident"]


@dataclass(frozen=True)
class GroupState:
    """A group's newest figures, all open sessions together."""

    bytes: int = 0
    results: int = 0
    """Of the current generation."""


def group_states(warehouse: Warehouse, state: JournalState) -> dict[Prefix, GroupState]:
    """The groups that hold anything of an open session.

    The figures are those of each slot's newest statistics, which are written every few seconds.
    """
    newest: dict[int, tuple[int, pa.Table]] = {}
    wanted = set(state.slots)
    for rows in _newest_first(warehouse):
        for slot in wanted & set(pc.unique(rows["slot"]).to_pylist()):
            mine = rows.filter(pc.equal(rows["slot"], slot))
            epoch = pc.max(mine["epoch"]).as_py()
            if slot not in newest or epoch > newest[slot][0]:
                newest[slot] = epoch, mine.filter(pc.equal(mine["epoch"], epoch))
        if newest.keys() >= wanted:
            break
    found: dict[Prefix, GroupState] = {}
    for _, rows in sorted(newest.values(), key=lambda pair: pair[0]):
        # A group that has moved is in two slots' figures: the newer ones hold.
        is_open = pc.is_in(rows["session_date"], pa.array([s.date for s in state.sessions]))
        found |= _by_group(rows.filter(pc.and_(rows["resident"], is_open)))
    return found


def _by_group(rows: pa.Table) -> dict[Prefix, GroupState]:
    found: dict[Prefix, GroupState] = {}
    columns = (rows[name].to_pylist() for name in ("depth", "value", "bytes", "results"))
    for depth, value, size, results in zip(*columns, strict=True):
        group = Prefix(depth, value)
        had = found.get(group, GroupState())
        found[group] = GroupState(had.bytes + size, had.results + results)
    return found


def view_of(
    state: JournalState,
    epochs: Sequence[Epoch],
    groups: Mapping[Prefix, GroupState],
    *,
    collection_s: float,
    close_ms: int | None,
    forced_bytes: int,
) -> View:
    """What a policy sees; rows processed by group and buffer occupancy are not collected yet (0).

    Args:
        state: the journal's fold.
        epochs: the open session's epochs, in order.
        groups: `group_states`.
        collection_s: the collection (and sampling) time: the last so many seconds of epochs.
        close_ms: when the session closes, on the stream's clock; None: not known, as now.
        forced_bytes: what policies have forced to spill in the session.
    """
    prefixes = tuple(group for group, _ in state.groups)
    slots = len(state.slots)
    ended = [_seconds(entry.written_at) for entry in epochs]
    now = ended[-1] if ended else 0.0
    last = [e for e, at in zip(epochs, ended, strict=True) if at > now - collection_s]
    busy = np.zeros(slots)
    sampled = np.zeros(slots, dtype=np.int64)
    budget = np.ones(slots, dtype=np.int64)
    for total in (total for entry in last for total in entry.slots):
        if total.slot < slots:
            busy[total.slot] += total.busy_s
            sampled[total.slot] += total.results
    for total in epochs[-1].slots if epochs else []:
        budget[total.slot] = total.budget_bytes
    began = _seconds(last[0].started_at) if last else 0.0
    span = max(now - began, 0.0)
    cut = state.session.last_cuts.keys()
    moved = [at for entry, at in zip(epochs, ended, strict=True) if entry.moved]
    stamps = [entry.recent_input_ms for entry in epochs if entry.recent_input_ms]
    memory = sum(total.state_bytes for total in epochs[-1].slots) if epochs else 0
    spilled = sum(total.spilled_bytes for entry in epochs for total in entry.slots)
    return View(
        groups=prefixes,
        slot=np.array([slot for _, slot in state.groups], dtype=np.int64),
        bytes=np.array([groups.get(g, GroupState()).bytes for g in prefixes], dtype=np.int64),
        results=np.array([groups.get(g, GroupState()).results for g in prefixes], dtype=np.int64),
        processed=np.zeros(len(prefixes), dtype=np.int64),
        spilled=np.array([any(g.overlaps(c) for c in cut) for g in prefixes], dtype=np.bool_),
        budget=budget,
        idle_s=np.maximum(span - busy, 0.0),
        sampled=sampled,
        occupancy=np.zeros(slots),
        collection_s=span,
        since_move_s=now - moved[-1] if moved else float("inf"),
        session_bytes=memory + spilled,
        elapsed_s=(stamps[-1] - stamps[0]) / 1000 if stamps else 0.0,
        left_s=max(0.0, (close_ms - stamps[-1]) / 1000) if close_ms and stamps else 0.0,
        forced_bytes=forced_bytes,
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _newest_first(warehouse: Warehouse) -> Iterator[pa.Table]:
    """The table's files, those of the last epochs first; what was compacted is older than they."""
    table = warehouse.table("statistics")

    def age(path: str) -> tuple[bool, int]:
        made = origin(path)
        return made is None or made.writer != "epoch", -(made.number if made else 0)

    for path in sorted((file.path for file in warehouse.files("statistics")), key=age):
        with table.place.open(path) as source:
            yield pq.ParquetFile(source).read(columns=COLUMNS, use_threads=False)
