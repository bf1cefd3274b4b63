"""What `statistics` says of the groups now, for all who decide or show.

Model: each slot writes rows of its groups every few seconds. Those of its newest epoch hold; a
group that has moved, or was split, since is found by its hash range.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.engine.groups import GroupMap
from spillway.engine.statistics import shares_of
from spillway.policy.view import F64, I64, Bool
from spillway.readmodel.model import ReadModel
from spillway.tables import ActiveFile, Warehouse

MOST_FILES = 400
"""Files of statistics that one look opens at most: newest first."""
KIB = 1024.0


@dataclass(frozen=True)
class GroupStates:
    """The newest figures of each group of the assignment, open sessions together; all (g,)."""

    bytes: I64
    results: I64
    """Of the current generation."""
    rate: F64
    """Results per second, lately."""
    processed: I64
    """Rows that came in about the collection time,"""
    processed_s: F64
    """which was so many seconds; 0: not known."""
    came: I64
    """Rows that came since the session began; of a slot that has lost its state and counts anew, at
    least those that it has again."""
    rows: I64
    """In memory, all inputs."""
    session_results: I64
    generations: I64
    """How often it was spilled."""
    spilled_bytes: I64
    """What that wrote out of memory."""
    expected_loss: F64
    """Results that the session would have fewer at run time were the group spilled now."""
    hot_share: F64
    """The share of the group's rows that its most frequent key has; 0: not looked at."""
    hot_key: tuple[str, ...]

    @property
    def loss_per_kib(self) -> F64:
        """Expected loss for each KiB."""
        return per_kib(self.expected_loss, self.bytes)

    def only(self, groups: I64) -> GroupStates:
        """Of some groups, by their numbers."""
        arrays = {
            each.name: column[groups]
            for each in fields(self)
            if isinstance(column := getattr(self, each.name), np.ndarray)
        }
        keys = tuple(self.hot_key[g] for g in groups.tolist())
        return replace(self, **arrays, hot_key=keys)

    @classmethod
    def nothing(cls, groups: int) -> GroupStates:
        """No statistics yet."""
        whole, real = np.zeros(groups, dtype=np.int64), np.zeros(groups)
        return cls(
            bytes=whole,
            results=whole,
            rate=real,
            processed=whole,
            processed_s=real,
            came=whole,
            rows=whole,
            session_results=whole,
            generations=whole,
            spilled_bytes=whole,
            expected_loss=real,
            hot_share=real,
            hot_key=("",) * groups,
        )


def group_states(
    warehouse: Warehouse,
    model: ReadModel,
    collection_s: float,
    sessions: Collection[str] | None = None,
) -> GroupStates:
    """What `statistics` says of the groups of some sessions, by default of those that are open.

    The figures are those of each slot's newest statistics, which are written every few seconds; a
    group that has moved since is in two slots' figures, of which the newer ones hold. Rows that
    came are counted from the newest statistics that are at least `collection_s` older.
    """
    last, before = _looked(warehouse, model, collection_s, sessions)
    groups = GroupMap(model.state.groups)
    if not last:
        return GroupStates.nothing(len(groups))
    now = _latest(groups, last.values())
    then = _latest(groups, before.values())
    # Of many groups statistics are written rarely, and lie further apart than they should.
    apart_s = {slot: _at(last[slot]) - _at(rows) for slot, rows in before.items()}
    return GroupStates(
        bytes=now["bytes"].astype(np.int64),
        results=now["results"].astype(np.int64),
        rate=now["rate"],
        # A slot whose state was lost counts from nothing again.
        processed=np.maximum(now["rows_in"] - then["rows_in"], 0).astype(np.int64),
        processed_s=np.array([apart_s.get(slot, 0.0) for _, slot in model.state.groups]),
        came=np.maximum(now["rows_in"], now["rows"]).astype(np.int64),
        rows=now["rows"].astype(np.int64),
        session_results=now["session_results"].astype(np.int64),
        generations=np.ceil(now["generations"]).astype(np.int64),
        spilled_bytes=now["spilled_bytes"].astype(np.int64),
        expected_loss=now["expected_loss"],
        hot_share=now["hot_rows"] / np.maximum(now["rows"], 1),
        hot_key=_hot_keys(groups, last.values()),
    )


def per_kib(results: npt.ArrayLike, size: npt.ArrayLike) -> F64:
    """Results for each KiB, as people read productivity and loss; 0 without state."""
    size = np.asarray(size)
    found = np.zeros(size.shape)
    np.divide(np.asarray(results) * KIB, size, out=found, where=size > 0)
    return found


def newest(warehouse: Warehouse, model: ReadModel) -> dict[int, pa.Table]:
    """Each slot's newest rows of `statistics` for groups in memory and open sessions."""
    return _looked(warehouse, model, 0.0)[0]


def open_sessions(model: ReadModel) -> list[str]:
    """Dates of the sessions that are not sealed."""
    return list(model.tally.open_sessions)


def _looked(
    warehouse: Warehouse,
    model: ReadModel,
    collection_s: float,
    sessions: Collection[str] | None = None,
) -> tuple[dict[int, pa.Table], dict[int, pa.Table]]:
    """Each slot's newest rows, and its newest that are at least `collection_s` older."""
    chosen = open_sessions(model) if sessions is None else sessions
    dates = pa.array(chosen, pa.string())
    wanted = {slot for _, slot in model.state.groups}
    last: dict[int, pa.Table] = {}
    before: dict[int, pa.Table] = {}
    for number, found in enumerate(_newest_first(warehouse, chosen)):
        rows = found.filter(pc.and_(found["resident"], pc.is_in(found["session_date"], dates)))
        for slot in pc.unique(rows["slot"]).to_pylist():
            mine = rows.filter(pc.equal(rows["slot"], slot))
            for epoch in sorted(pc.unique(mine["epoch"]).to_pylist(), reverse=True):
                one = mine.filter(pc.equal(mine["epoch"], epoch))
                first = last.setdefault(slot, one)
                if slot not in before and _at(first) - _at(one) >= collection_s:
                    before[slot] = one
        if before.keys() >= wanted or number + 1 >= MOST_FILES:
            break
    return last, before


def _at(rows: pa.Table) -> float:
    written: datetime = rows["written_at"][0].as_py()
    return written.timestamp()


def _latest(groups: GroupMap, tables: Iterable[pa.Table]) -> dict[str, F64]:
    """Sums over the sessions of each group's newest figures, float64 (g,)."""
    shared = (
        "bytes",
        "results",
        "rate",
        "rows_in",
        "hot_rows",
        "session_results",
        "spilled_bytes",
        "expected_loss",
    )
    names = (*shared, "generations")  # a split shares out all figures but that one
    found = {name: np.zeros(len(groups)) for name in (*names, "rows")}
    for table in _oldest_first(tables):
        rows, at, share = shares_of(table["depth"].to_numpy(), table["value"].to_numpy(), groups)
        here = np.bincount(at, minlength=len(groups)) > 0
        values = {name: pc.fill_null(table[name], 0).to_numpy() for name in names}
        lists = table["rows"].combine_chunks()
        values["rows"] = lists.flatten().to_numpy().reshape(len(lists), -1).sum(axis=1)
        for name, each in values.items():
            weights = each[rows] * (share if name != "generations" else 1.0)
            total = np.bincount(at, weights=weights, minlength=len(groups))
            found[name] = np.where(here, total, found[name])
    return found


def _hot_keys(groups: GroupMap, tables: Iterable[pa.Table]) -> tuple[str, ...]:
    keys = [""] * len(groups)
    for table in _oldest_first(tables):
        table = table.filter(pc.is_valid(table["hot_key"]))
        rows, at, _ = shares_of(table["depth"].to_numpy(), table["value"].to_numpy(), groups)
        for row, group in zip(rows.tolist(), at.tolist(), strict=True):
            keys[group] = table["hot_key"][row].as_py()
    return tuple(keys)


def _oldest_first(tables: Iterable[pa.Table]) -> list[pa.Table]:
    return sorted(tables, key=lambda table: table["epoch"][0].as_py())


def cut_groups(model: ReadModel) -> Bool:
    """Groups of which the open session has spilled something, bool (g,)."""
    groups = GroupMap(model.state.groups)
    cut = list(model.state.session.last_cuts)
    found = np.zeros(len(groups), dtype=np.bool_)
    if cut:
        depth = np.array([p.depth for p in cut], dtype=np.int64)
        value = np.array([p.value for p in cut], dtype=np.uint64)
        found[shares_of(depth, value, groups)[1]] = True
    return found


def _newest_first(warehouse: Warehouse, dates: Collection[str]) -> Iterator[pa.Table]:
    """The files that may hold rows of these sessions, those of the last epochs first."""
    table = warehouse.table("statistics")

    def may_hold(file: ActiveFile) -> bool:
        first, last = file.sessions or ("", "9")
        return any(first <= date <= last for date in dates)

    def age(file: ActiveFile) -> tuple[int, int]:
        last = file.greatest
        return (0, 0) if last is None else (1, -last)

    for file in sorted(filter(may_hold, warehouse.files("statistics")), key=age):
        with table.place.open(file.path) as source:
            yield pq.ParquetFile(source).read(use_threads=False)
