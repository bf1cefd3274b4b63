"""Where spilled rows are, and what a row group of them holds.

Model: an index has the row groups of all spill files of a session. A source is that index, the
folder that has the files, and the join whose rows are wanted; it gives the rows of a hash range.

Invariants:

* An index says what need not be read. Which rows come back is decided by the rows themselves.
* Rows that lie void, for their cut was taken back, are left out by `alive`.
* What is not a row of the query is damage: `SpillDamaged`, which names the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.groups import U64, Bool
from spillway.engine.join.tree import TreeSpec
from spillway.engine.spill.generations import GenerationEnds, VoidedCuts
from spillway.engine.spill.spillfile import (
    MIXED,
    RowGroups,
    SpillDamaged,
    SpillFile,
    read_rows,
    row_column,
    row_struct,
)
from spillway.storage import Folder
from spillway_schemas.journal import Prefix


@dataclass(frozen=True)
class SpillIndex:
    """A session's spill files and their row groups (`RowGroups.file` counts in `files`)."""

    files: tuple[SpillFile, ...]
    groups: RowGroups

    @staticmethod
    def of(surveyed: Sequence[tuple[SpillFile, RowGroups]]) -> SpillIndex:
        """An index of files as `survey` returned them (the position it was given is ignored)."""
        parts = []
        for position, (_, groups) in enumerate(surveyed):
            columns = {**vars(groups), "file": np.full(len(groups), position, np.int64)}
            parts.append(RowGroups(**columns))
        return SpillIndex(tuple(file for file, _ in surveyed), RowGroups.concat(parts))

    def within(self, ranges: Sequence[Prefix]) -> SpillIndex:
        """Only what the ranges need: what a task takes with it."""
        wanted = np.zeros(len(self.groups), np.bool_)
        for prefix in ranges:
            wanted |= self.groups.touch(prefix.lo, prefix.hi)
        groups = self.groups.pick(wanted)
        used, file = np.unique(groups.file, return_inverse=True)
        columns = {**vars(groups), "file": file.astype(np.int64)}
        return SpillIndex(tuple(self.files[i] for i in used), RowGroups(**columns))


@dataclass(frozen=True)
class SpillSource:
    """Where spilled rows are: the `spill` table's folder and what its files hold."""

    folder: Folder
    index: SpillIndex
    spec: TreeSpec
    operator: int = 0
    """The join whose rows are wanted."""
    ends: GenerationEnds | None = None
    """Of a query with windows: the session's cuts. Rows may have been written before their
    generation ended."""
    voided: VoidedCuts | None = None
    """Cuts that were taken back; None: none was."""
    doubtful: frozenset[int] = frozenset()
    """Of an outer join: inputs, by their positions in it, of which rows are lost."""

    @property
    def inputs(self) -> range:
        """The join's inputs."""
        return self.spec.inputs_of(self.operator)

    def touching(self, lo: int, hi: int) -> RowGroups:
        """Row groups that may hold rows of the operator with a hash in [lo, hi)."""
        near = self.index.groups.touching(lo, hi)
        return near.pick((near.operator == self.operator) | (near.operator == MIXED))

    def rows(
        self, near: RowGroups, lo: int, hi: int, columns: Sequence[str], *, whole: bool = False
    ) -> Iterator[tuple[int, int, pa.Table]]:
        """Rows with a hash in [lo, hi): (file's position, row group, its rows) each.

        `whole`: with the columns that have the rows of their inputs.
        """
        opened: dict[str, Any] = {}
        for file, input_ in np.unique(np.stack([near.file, near.input]), axis=1).T.tolist():
            wanted = columns
            if whole:
                inputs = self.inputs if input_ == MIXED else [input_]
                wanted = (*columns, *(row_column(self.spec, i) for i in inputs))
            groups = near.group[(near.file == file) & (near.input == input_)].tolist()
            for group, table in read_rows(
                self.folder,
                self.index.files[file],
                groups,
                lo,
                hi,
                operator=self.operator,
                columns=wanted,
                opened=opened,
            ):
                yield file, group, table


@dataclass(frozen=True)
class SpilledRows:
    """Rows of one file, input and generation, in any order."""

    file: int
    epoch: int
    input: int
    key_hash: U64
    table: pa.Table
    """`partition`, `offset`, and the input's struct as `row`."""

    def only(self, mask: Bool) -> SpilledRows:
        """The rows where `mask` is true."""
        if mask.all():
            return self
        table = self.table.filter(pa.array(mask))
        return SpilledRows(self.file, self.epoch, self.input, self.key_hash[mask], table)


def rows_of_input(source: SpillSource, parts: Sequence[SpilledRows], input_: int) -> pa.Table:
    """The parts' rows, all of one input, as its row schema."""
    spec = source.spec
    for part in parts:
        if problem := _wrong(spec, part.table["row"], input_):
            where = source.folder.path(source.index.files[part.file].path)
            problem = f"a row of input {input_} is not one of this query: {problem}"
            raise SpillDamaged(where, problem)
    table = pa.concat_tables([part.table for part in parts])
    schema = spec.row_schema(input_)
    columns = [pc.struct_field(table["row"], k) for k in range(table["row"].type.num_fields)]
    if not spec.inputs[input_].leaves:
        columns += [table["partition"], table["offset"]]
    # A column whose text would overflow one chunk keeps several.
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()


def _wrong(spec: TreeSpec, rows: pa.ChunkedArray, input_: int) -> str:
    """Why these structs are no rows of an input; empty when they are."""
    wanted = row_struct(spec, input_)
    if not rows.type.equals(wanted):
        return f"it has {rows.type} instead of {wanted}"
    if rows.null_count:
        return "it is not there"
    for k, field in enumerate(spec.join_of_input(input_).keys):
        if not field.nullable and pc.struct_field(rows, k).null_count:
            return f"it has no {field.name}"
    return ""


def alive(voided: VoidedCuts, table: pa.Table) -> pa.Table:
    """The rows that no cut which was taken back had written. Of one epoch, in the order of hashes,
    as our own row groups are, they are stretches, which are not copied."""
    hashes, epochs = table["key_hash"].to_numpy().view(np.uint64), table["epoch"].to_numpy()
    if (epochs != epochs[0]).any() or (hashes[1:] < hashes[:-1]).any():
        return table.filter(pa.array(~voided.hold(hashes, epochs)))
    parts, done = [], 0
    for first, end in voided.stretches(hashes, int(epochs[0])):
        parts.append(table.slice(done, first - done))
        done = end
    return pa.concat_tables([*parts, table.slice(done)]) if parts else table
