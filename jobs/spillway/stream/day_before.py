"""How the rows of the session before came, by group: read from `statistics`, once a session.

The statistics of a session have, every few seconds, how many rows of each group had come. Here of
every `BIN_MS` of the session's hours the last ones before its end are read. Files and their row
groups are passed over where the times that they name hold none of these.

A group that was split or merged since is what its hashes were then. A slot that had lost its state
counted from nothing again: what it counted then is added. A session that was not observed from its
open to its close, or one of long ago, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway import calendar
from spillway.engine.groups import I64, GroupMap
from spillway.engine.statistics import F64, shares_of
from spillway.policy.forecast import Profile
from spillway.protocol.state import JournalState, genesis_of
from spillway.tables import Warehouse
from spillway_schemas.journal import HASH_BITS

BIN_MS = 300_000
STANDS_MS = 120_000
"""Statistics this long before the end of a bin stand for it: they are written at least so often."""
UNSEEN_MS = 1_800_000
"""The longest time of the session's hours without a count."""
RECENT_DAYS = 7
"""A session before today's by more than this is no day before: a week has a holiday or two."""
COLUMNS = ("session_date", "resident", "written_at", "epoch", "depth", "value", "rows_in")


@dataclass
class DayBefore:
    """The rows of a session by the groups that there were, and by others."""

    groups: GroupMap
    profile: Profile
    """By `groups`."""
    _other: tuple[GroupMap, Profile] | None = field(default=None, repr=False)

    def of(self, groups: GroupMap) -> Profile:
        """The profile by an assignment's groups."""
        known = self._other or (self.groups, self.profile)
        if groups.prefixes == known[0].prefixes:
            return known[1]
        rows, at, share = shares_of(self.groups.depths, self.groups.values, groups)
        counts = np.zeros((len(groups), self.profile.rows.shape[1]))
        np.add.at(counts, at, self.profile.rows[rows] * share[:, None])
        self._other = groups, Profile(self.profile.at_ms, counts)
        return self._other[1]


def day_before(warehouse: Warehouse, state: JournalState, name: str) -> DayBefore | None:
    """How the rows of the last session before the open one came, by the calendar `name`; None:
    there was none, it has no hours, or nothing is known of it."""
    earlier = [date for date in state.sealed if date < state.session.date]
    if not earlier or not calendar.is_trading_day(name, max(earlier)):
        return None
    date = max(earlier)
    if genesis_of(state, state.sealed[date]) is not state.genesis:
        return None  # its groups are of another query
    apart = datetime.fromisoformat(state.session.date) - datetime.fromisoformat(date)
    if apart.days > RECENT_DAYS:
        return None
    opens_ms, closes_ms = calendar.open_ms(name, date), calendar.close_ms(name, date)
    times = np.append(np.arange(opens_ms, closes_ms, BIN_MS), closes_ms)
    groups = GroupMap(state.groups)
    found = _counted(groups, pa.concat_tables([_NONE, *_near(warehouse, date, times)]))
    seen = np.array(sorted(found), dtype=np.int64)
    if np.diff([opens_ms, *times[seen], closes_ms]).max() > UNSEEN_MS:
        return None
    at_ms, sums = times[seen] - opens_ms, _sums([found[n] for n in seen.tolist()])
    if at_ms[0] > 0:
        at_ms, sums = np.append(0, at_ms), np.insert(sums, 0, 0.0, axis=1)
    return DayBefore(groups, Profile(at_ms, sums))


_NONE = pa.table(
    {name: pa.array([], pa.int64()) for name in ("bin", "epoch", "depth", "value", "rows_in")}
)


def _near(warehouse: Warehouse, date: str, times: I64) -> Iterator[pa.Table]:
    """Of a session's statistics the rows that stand for a time, each with its number."""
    table = warehouse.table("statistics")
    for file in warehouse.files("statistics"):
        first, last = file.sessions or (date, date)
        if not first <= date <= last:
            continue
        with table.place.open(file.path) as source:
            opened = pq.ParquetFile(source)
            for number in range(opened.num_row_groups):
                if _may_stand(opened, number, times):
                    rows = opened.read_row_group(number, columns=list(COLUMNS), use_threads=False)
                    yield _standing(rows, date, times)


def _may_stand(opened: pq.ParquetFile, number: int, times: I64) -> bool:
    """Whether a row group has a time that is near one of these.

    By the times themselves: to ask the footer ends the process where it is damaged
    (`spillway.engine.wire.footers`).
    """
    written = opened.read_row_group(number, columns=["written_at"], use_threads=False)
    found = pc.min_max(written["written_at"].cast(pa.int64()))
    if found["min"].as_py() is None:
        return True
    low, high = (found[end].as_py() // 1000 for end in ("min", "max"))
    return bool(((times >= low) & (times - STANDS_MS <= high)).any())


def _standing(rows: pa.Table, date: str, times: I64) -> pa.Table:
    mine = rows.filter(pc.and_(rows["resident"], pc.equal(rows["session_date"], date)))
    written_ms = mine["written_at"].cast(pa.int64()).to_numpy() // 1000
    number = np.searchsorted(times, written_ms)
    near = number < len(times)
    near &= times[np.minimum(number, len(times) - 1)] - written_ms <= STANDS_MS
    some = mine.filter(pa.array(near))
    return pa.table(
        {
            "bin": number[near].astype(np.int64),
            **{each: some[each].cast(pa.int64()).fill_null(0) for each in COLUMNS[3:]},
        }
    )


def _counted(groups: GroupMap, rows: pa.Table) -> dict[int, F64]:
    """By the number of each time that statistics stand for, the rows of each group, (g,); NaN: they
    do not tell of it."""
    found: dict[int, F64] = {}
    bins, epochs, depths, values, counts = (column.to_numpy() for column in rows.columns)
    for number in np.unique(bins).tolist():
        at = np.flatnonzero(bins == number)
        mine = at[_newest(epochs[at], depths[at], values[at])]
        row, group, share = shares_of(depths[mine].astype(np.int32), values[mine], groups)
        weights = counts[mine][row] * share
        here = np.bincount(group, minlength=len(groups)) > 0
        counted = np.bincount(group, weights=weights, minlength=len(groups))
        found[number] = np.where(here, counted, np.nan)
    return found


def _newest(epochs: I64, depths: I64, values: I64) -> I64:
    """Which rows have the last word on their hashes, (n,) each: a group may have moved, been split
    or merged, and be told of under each of its names."""
    low = values << (HASH_BITS - 1 - depths)  # a bit less than the hashes, which are unsigned
    high = low + (np.int64(1) << (HASH_BITS - 1 - depths)) - 1
    taken = np.zeros(0, dtype=np.int64)
    for epoch in np.unique(epochs)[::-1].tolist():
        mine = np.flatnonzero(epochs == epoch)
        if len(taken):
            after = np.minimum(np.searchsorted(high[taken], low[mine]), len(taken) - 1)
            ends = high[taken][after]
            mine = mine[(ends < low[mine]) | (low[taken][after] > high[mine])]
        taken = np.concatenate([taken, mine])
        taken = taken[np.argsort(low[taken], kind="stable")]
    return taken


def _sums(counted: list[F64]) -> F64:
    """What had come by each time, (g, b), of what slots had counted by then; NaN: not told.

    Far less than before: a slot began to count anew. A little less: the count of a group that was
    split or merged is that of its hashes by their shares.
    """
    before = np.zeros(len(counted[0]))
    sums = [before]
    for now in counted:
        told = np.where(np.isnan(now), before, now)
        sums.append(sums[-1] + np.where(told < before / 2, told, told - before))
        before = told
    found: F64 = np.maximum.accumulate(np.stack(sums[1:], axis=1), axis=1)
    return found
