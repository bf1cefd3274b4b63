"""Numbered tables: row n is committed with application transaction (table's name, n).

Model: a table whose rows are numbered 0, 1, 2, ... Each append is one commit of one small file
(of one row, or of several that belong together; the file is named by the last number).
Numbers are taken exactly once, whoever races: `append_as` takes exactly the number that the
caller says, `append_next` the next free one.

Invariants:

* `append_as(n)` succeeds only when the last number that this handle has *seen* is n - 1 and
  nobody has committed n since. It never looks for something newer before it commits, so that a
  caller who has not read number n cannot append n + 1 by accident.
* Files carry the least and greatest n, so `read(after)` opens only the files that it needs,
  also after compaction.
* `read` raises when a number is missing or doubled.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spillway.engine.wire.datafile import write_data_file
from spillway.tables.errors import DamagedTable, JournalConflict, TableConflict
from spillway.tables.log import ActiveFile, Table
from spillway_schemas.filenames import entry_name

NEXT_ATTEMPTS = 1000
"""Times that `append_next` asks for another number when others are faster."""


class Numbered:
    """A numbered table as one process sees it."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._app = table.name

    def last(self) -> int:
        """Return the last number as seen; -1 when there is none."""
        return self._table.transaction(self._app)

    def refresh(self) -> None:
        """See what others have appended."""
        self._table.refresh()

    def append_as(self, n: int, *rows: Mapping[str, Any]) -> None:
        """Append rows as the numbers n, n + 1, ...: all or none of them.

        Raises `JournalConflict`, `OutcomeUnknown`.
        """
        try:
            seen = self.last()
        except TableConflict as error:
            raise JournalConflict(str(error)) from error
        if n != seen + 1:
            raise JournalConflict(
                f"{self._app}: number {n} cannot follow {seen}: "
                "another process has appended what this one has not read"
            )
        definition = self._table.definition
        last = n + len(rows) - 1
        numbered = [{"n": n + i, **row} for i, row in enumerate(rows)]
        record = write_data_file(
            self._table.place,
            definition.name,
            entry_name(last, uuid.uuid4().hex[:12]),
            definition.file_schema,
            [pa.Table.from_pylist(numbered, schema=definition.file_schema)],
        )
        assert record is not None  # there are rows
        self._table.sync_files([record])
        try:
            self._table.commit([record], self._app, last)
        except TableConflict as error:
            raise JournalConflict(str(error)) from error

    def append_next(self, *rows: Mapping[str, Any]) -> int:
        """Append rows under the next free numbers, in one commit; return the first number."""
        for _ in range(NEXT_ATTEMPTS):
            self.refresh()
            n = self.last() + 1
            try:
                self.append_as(n, *rows)
            except JournalConflict:
                continue
            return n
        raise TableConflict(f"{self._app}: {NEXT_ATTEMPTS} others were faster; try again")

    def read(self, after: int = -1, columns: Sequence[str] = ()) -> pa.Table:
        """Return the rows with a number above `after`, as seen, ordered by n.

        `columns`: those that are wanted; none: all. Raises `DamagedTable` when a number is missing
        or doubled.
        """
        parts = list(self.parts(after, columns))
        none = self._table.definition.file_schema.empty_table()
        return pa.concat_tables(parts or [none.select(columns) if columns else none])

    def parts(self, after: int = -1, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """The rows of `read`, a few at a time: memory does not grow with the table.

        Of a large file, such as the night's compaction makes, only the row groups are read that
        have such numbers, one after the other. Raises `DamagedTable` at the first number that is
        missing or doubled.
        """
        expected, last = after + 1, self.last()
        schema = self._table.definition.file_schema
        if columns:
            wanted = ["n", *(name for name in columns if name != "n")]
            schema = pa.schema([schema.field(name) for name in wanted])
        for files in _apart(f for f in self._table.files() if _greatest(f) > after):
            groups = chain.from_iterable(self._groups(f.path, schema, after) for f in files)
            # Files whose numbers overlap are sorted together; those of one file are in order.
            for rows in groups if len(files) == 1 else _together(groups):
                rows = rows.filter(pc.field("n") > after).sort_by("n")
                if rows["n"].to_pylist() != list(range(expected, expected + len(rows))):
                    raise self._damaged(after, last)
                expected += len(rows)
                yield rows.select(columns) if columns else rows
        if expected != last + 1:
            raise self._damaged(after, last)

    def _damaged(self, after: int, last: int) -> DamagedTable:
        return DamagedTable(
            f"{self._app} should hold the numbers {after + 1} to {last}, each once, but does "
            "not: run `spillway doctor --repair`, and restore the table if that does not help"
        )

    def _groups(self, path: str, schema: pa.Schema, after: int) -> Iterator[pa.Table]:
        """The row groups of a file that may have a number above `after`, in the order of these."""
        place = self._table.place
        try:
            source = pa.BufferReader(place.map(path))
            file = pq.ParquetFile(source, page_checksum_verification=True)
            bounds = [_bounds(file.metadata.row_group(k)) for k in range(file.num_row_groups)]
            for group in sorted(range(len(bounds)), key=bounds.__getitem__):
                if bounds[group][1] > after:
                    rows = file.read_row_group(group, columns=schema.names, use_threads=False)
                    yield rows.cast(schema)
        except (pa.ArrowException, OSError) as error:
            raise DamagedTable(
                f"{place.path(path)} of the table {self._app!r} cannot be read ({error}): "
                "stop everything that uses the warehouse and run `spillway doctor --repair`"
            ) from error


def _together(groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
    if some := list(groups):
        yield pa.concat_tables(some)


def _bounds(group: pq.RowGroupMetaData) -> tuple[float, float]:
    """The least and the greatest number in a row group; infinite when it does not say."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "n":
            known = column.statistics
            if known is not None and known.has_min_max:
                return float(known.min), float(known.max)
    return -math.inf, math.inf


def _greatest(file: ActiveFile) -> float:
    return math.inf if file.greatest is None else file.greatest


def _apart(files: Iterable[ActiveFile]) -> Iterator[list[ActiveFile]]:
    """Files in the order of their numbers; those whose ranges overlap come together."""
    together: list[ActiveFile] = []
    reach = -math.inf
    for file in sorted(files, key=lambda f: -math.inf if f.least is None else f.least):
        if together and file.least is not None and file.least > reach:
            yield together
            together = []
        together.append(file)
        reach = max(reach, _greatest(file))
    if together:
        yield together
