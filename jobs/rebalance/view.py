"""What the controller knows: the journal's totals of slots, the newest `statistics` of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.engine.groups import GroupMap
from jobs.engine.statistics import placed
from jobs.policy.view import F64, I64, View, occupancy
from jobs.protocol.state import JournalState
from jobs.tables import Warehouse
from jobs.tables.names import origin
from schemas.journal import Epoch

COLUMNS = [
    "session_date",
    "epoch",
    "slot",
    "depth",
    "value",
    "bytes",
    "rows",
    "results",
    "resident",
    "written_at",
    "rate",
    "rows_in",
    "hot_key",
    "hot_rows",
]
MOST_FILES = 400
"""Files of statistics that one look opens at most: newest first."""


@dataclass(frozen=True)
class GroupStates:
    """The newest figures of each group of the assignment, open sessions together; all (g,)."""

    bytes: I64
    results: I64
    """Of the current generation."""
    rate: F64
    """Results per second, lately."""
    processed: I64
    """Rows that came in the collection time."""
    hot_share: F64
    """The share of the group's rows that its most frequent key has; 0: not looked at."""
    hot_key: tuple[str, ...]

    @classmethod
    def nothing(cls, groups: int) -> GroupStates:
        """No statistics yet."""
        whole, real = np.zeros(groups, dtype=np.int64), np.zeros(groups)
        return cls(whole, whole, real, whole, real, ("",) * groups)


def group_states(warehouse: Warehouse, state: JournalState, collection_s: float) -> GroupStates:
    """What `statistics` says of the groups of open sessions.

    The figures are those of each slot's newest statistics, which are written every few seconds; a
    group that has moved since is in two slots' figures, of which the newer ones hold. Rows that
    came are counted from the newest statistics that are at least `collection_s` older.
    """
    dates = pa.array([session.date for session in state.sessions])
    wanted = set(state.slots)
    newest: dict[int, pa.Table] = {}
    before: dict[int, pa.Table] = {}
    for number, found in enumerate(_newest_first(warehouse)):
        rows = found.filter(pc.and_(found["resident"], pc.is_in(found["session_date"], dates)))
        for slot in pc.unique(rows["slot"]).to_pylist():
            mine = rows.filter(pc.equal(rows["slot"], slot))
            for epoch in sorted(pc.unique(mine["epoch"]).to_pylist(), reverse=True):
                one = mine.filter(pc.equal(mine["epoch"], epoch))
                last = newest.setdefault(slot, one)
                if slot not in before and _at(last) - _at(one) >= collection_s:
                    before[slot] = one
        if before.keys() >= wanted or number + 1 >= MOST_FILES:
            break
    groups = GroupMap(state.groups)
    if not newest:
        return GroupStates.nothing(len(groups))
    now = _latest(groups, newest.values())
    then = _latest(groups, before.values())
    return GroupStates(
        bytes=now["bytes"].astype(np.int64),
        results=now["results"].astype(np.int64),
        rate=now["rate"],
        # A slot whose state was lost counts from nothing again.
        processed=np.maximum(now["rows_in"] - then["rows_in"], 0).astype(np.int64),
        hot_share=now["hot_rows"] / np.maximum(now["rows"], 1),
        hot_key=_hot_keys(groups, newest.values()),
    )


def _at(rows: pa.Table) -> float:
    written: datetime = rows["written_at"][0].as_py()
    return written.timestamp()


def _latest(groups: GroupMap, tables: Iterable[pa.Table]) -> dict[str, F64]:
    """Sums over the sessions of each group's newest figures, float64 (g,)."""
    names = ("bytes", "results", "rate", "rows_in", "hot_rows", "rows")
    found = {name: np.zeros(len(groups)) for name in names}
    for table in _oldest_first(tables):
        rows, at, share = placed(table["depth"].to_numpy(), table["value"].to_numpy(), groups)
        for name in names:
            column = table[name]
            if name == "rows":
                lists = column.combine_chunks()
                flat = lists.flatten().to_numpy().reshape(len(lists), -1)
                values = flat.sum(axis=1)
            else:
                values = pc.fill_null(column, 0).to_numpy()
            total = np.bincount(at, weights=values[rows] * share, minlength=len(groups))
            found[name] = np.where(np.bincount(at, minlength=len(groups)) > 0, total, found[name])
    return found


def _hot_keys(groups: GroupMap, tables: Iterable[pa.Table]) -> tuple[str, ...]:
    keys = [""] * len(groups)
    for table in _oldest_first(tables):
        table = table.filter(pc.is_valid(table["hot_key"]))
        rows, at, _ = placed(table["depth"].to_numpy(), table["value"].to_numpy(), groups)
        for row, group in zip(rows.tolist(), at.tolist(), strict=True):
            keys[group] = table["hot_key"][row].as_py()
    return tuple(keys)


def _oldest_first(tables: Iterable[pa.Table]) -> list[pa.Table]:
    return sorted(tables, key=lambda table: table["epoch"][0].as_py())


def view_of(
    state: JournalState,
    epochs: Sequence[Epoch],
    groups: GroupStates,
    *,
    collection_s: float,
    trigger_s: float,
    close_ms: int | None,
    forced_bytes: int,
) -> View:
    """What a policy sees.

    Args:
        state: the journal's fold.
        epochs: the open session's epochs, in order.
        groups: `group_states`.
        collection_s: the collection (and sampling, and reorganisation) time: the last so many
            seconds of epochs.
        trigger_s: the time between the beginnings of two epochs, as it is set.
        close_ms: when the session closes, on the stream's clock; None: not known, as now.
        forced_bytes: what policies have forced to spill in the session.
    """
    prefixes = tuple(group for group, _ in state.groups)
    slots = len(state.slots)
    ended = [_seconds(entry.written_at) for entry in epochs]
    now = ended[-1] if ended else 0.0
    last = [e for e, at in zip(epochs, ended, strict=True) if at > now - collection_s]
    busy = np.zeros((len(last), slots))
    sampled = np.zeros(slots, dtype=np.int64)
    budget = np.ones(slots, dtype=np.int64)
    for row, entry in enumerate(last):
        for total in (each for each in entry.slots if each.slot < slots):
            busy[row, total.slot] = total.busy_s
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
        bytes=groups.bytes,
        results=groups.results,
        processed=groups.processed,
        spilled=np.array([any(g.overlaps(c) for c in cut) for g in prefixes], dtype=np.bool_),
        budget=budget,
        idle_s=np.maximum(span - busy.sum(axis=0), 0.0),
        sampled=sampled,
        occupancy=occupancy(busy, trigger_s),
        collection_s=span,
        since_move_s=now - moved[-1] if moved else float("inf"),
        session_bytes=memory + spilled,
        elapsed_s=(stamps[-1] - stamps[0]) / 1000 if stamps else 0.0,
        left_s=max(0.0, (close_ms - stamps[-1]) / 1000) if close_ms and stamps else 0.0,
        forced_bytes=forced_bytes,
        rate=groups.rate,
        hot_share=groups.hot_share,
        hot_key=groups.hot_key,
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
