"""The newest spilled generations of a slot's groups: what may come back to memory.

Model: of each group of a session the newest `KEPT_GENERATIONS` are known by the file that has
them and by what was in them. They travel with the group's figures. A group begins anew, with
none, where

* it was split or merged: cuts of other ranges lie in between;
* expired rows of it were written since: those are in no memory any more, and had a generation from
  before come back they would count as having met it (`spillway.engine.expiry`);
* its slot was lost, and its figures with it.

Invariant: those of a group are the last cuts that the journal knows of its range, without a gap.
So the newest one may be taken back, and once it has been, the one before it is the newest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import I64, Bool, GroupMap
from spillway_schemas.journal import KEPT_GENERATIONS, FileRecord

KEPT_FIELDS = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("at_ms", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("results", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("file_bytes", pa.int64(), nullable=False),
    ]
)
"""Of a generation: the epoch of its cut, the stream's clock then, its rows, bytes and results, and
its file in the `spill` table."""
KEPT_TYPE = pa.list_(pa.struct(list(KEPT_FIELDS)))
"""Of a group: its generations, oldest first."""


@dataclass(frozen=True)
class NewestGenerations:
    """One kept generation of each group, all int64 (g,); 0 where there is none."""

    rows: I64
    bytes: I64
    results: I64
    at_ms: I64


@dataclass(frozen=True)
class KeptGenerations:
    """Those of a session's groups; immutable."""

    group: I64
    """(k,): the group of each, ascending."""
    table: pa.Table
    """(k rows) of `KEPT_FIELDS`; of a group oldest first."""

    @classmethod
    def none(cls) -> KeptGenerations:
        """Nothing is known."""
        return cls(np.zeros(0, dtype=np.int64), KEPT_FIELDS.empty_table())

    @classmethod
    def known(cls, figures: pa.Table, session: str, groups: GroupMap) -> KeptGenerations:
        """By manifests' figures, of the groups that are still what they were."""
        mine = figures.filter(pc.equal(figures["session"], session)).combine_chunks()
        if not mine.num_rows:
            return cls.none()
        depth = mine["depth"].to_numpy().astype(np.int64)
        value = mine["value"].to_numpy()
        lists = mine["kept"].combine_chunks()
        count = lists.value_lengths().to_numpy()
        held = np.flatnonzero(count)
        if not len(held):
            return cls.none()
        shift = np.where(depth == 0, 0, 64 - depth).astype(np.uint64)
        at = np.searchsorted(groups.starts, value << shift, side="right") - 1
        same = (groups.depths[at] == depth) & (groups.values[at] == value)
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(lists.flatten())])
        group, kept = np.repeat(at, count), np.repeat(same, count)
        return cls(group, table.cast(KEPT_FIELDS))._picked(np.flatnonzero(kept))

    def _picked(self, at: I64) -> KeptGenerations:
        order = at[np.lexsort((self.table["epoch"].to_numpy()[at], self.group[at]))]
        return KeptGenerations(self.group[order], self.table.take(pa.array(order)))

    def column(self, shown: I64) -> pa.ListArray:
        """For the figures of some groups (ascending), one list each."""
        at = np.flatnonzero(np.isin(self.group, shown))
        first = np.searchsorted(self.group[at], shown, side="left")
        offsets = np.append(first, len(at)).astype(np.int32)
        rows = self.table.take(pa.array(at)).combine_chunks()
        columns = [column.combine_chunks() for column in rows.columns]
        structs = pa.StructArray.from_arrays(columns, fields=list(KEPT_FIELDS))
        return pa.ListArray.from_arrays(pa.array(offsets), structs)

    def newest(self, groups: int, before: int = 0) -> NewestGenerations:
        """Of `groups` groups, what the newest one of each held, or the one so many `before` it."""
        last = self._last()
        last = last[last >= before]
        last = last[self.group[last - before] == self.group[last]] - before
        found = {
            name: np.zeros(groups, dtype=np.int64) for name in NewestGenerations.__annotations__
        }
        for name, values in found.items():
            values[self.group[last]] = self.table[name].to_numpy()[last]
        return NewestGenerations(**found)

    def _last(self) -> I64:
        """Where the newest one of each group is."""
        return np.flatnonzero(np.diff(self.group, append=-1))

    def newest_of(self, wanted: Bool) -> pa.Table:
        """The newest one of each wanted group (g,) that has any: `KEPT_FIELDS`, and `group`."""
        last = self._last()
        last = last[wanted[self.group[last]]]
        found = self.table.take(pa.array(last))
        return found.append_column("group", pa.array(self.group[last]))

    def with_cut(
        self,
        wanted: Bool,
        rows: I64,
        size: I64,
        results: I64,
        file: FileRecord,
        *,
        epoch: int,
        now_ms: int,
    ) -> KeptGenerations:
        """With one more generation of the wanted groups. All (g,): what they held."""
        groups = np.flatnonzero(wanted)
        n = len(groups)
        values = [epoch, now_ms, rows[groups], size[groups], results[groups], file.path, file.bytes]
        columns = [
            pa.array(value) if isinstance(value, np.ndarray) else pa.repeat(value, n)
            for value in values
        ]
        more = pa.table(columns, schema=KEPT_FIELDS)
        found = KeptGenerations(
            np.concatenate([self.group, groups]), pa.concat_tables([self.table, more])
        )._picked(np.arange(len(self.group) + n))
        # Those that have KEPT_GENERATIONS of their own group after them go.
        after = np.append(found.group, np.full(KEPT_GENERATIONS, -1))[KEPT_GENERATIONS:]
        return found._picked(np.flatnonzero(after != found.group))

    def without_newest(self, wanted: Bool) -> KeptGenerations:
        """Without the newest one of each wanted group, bool (g,)."""
        last = self._last()
        gone = last[wanted[self.group[last]]]
        return self._picked(np.delete(np.arange(len(self.group)), gone))

    def without(self, groups: Bool) -> KeptGenerations:
        """Without all of these groups, bool (g,)."""
        return self._picked(np.flatnonzero(~groups[self.group]))
