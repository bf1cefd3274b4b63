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
* The oldest rows may lie in an archive. Whoever reads the table's own rows does not open it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spillway.engine.wire.datafile import write_data_file
from spillway.storage import StorageError
from spillway.tables.archive import Archive
from spillway.tables.errors import DamagedTable, JournalConflict, TableConflict
from spillway.tables.log import ActiveFile, Table
from spillway.tables.rowgroups import RowGroup, apart, row_groups, upper
from spillway_schemas.filenames import entry_name

NEXT_ATTEMPTS = 1000
"""Times that `append_next` asks for another number when others are faster."""


class Numbered:
    """A numbered table as one process sees it."""

    def __init__(self, table: Table, archive: Archive | None = None) -> None:
        """`archive`: where the rows are that the table does not hold any more."""
        self._table = table
        self._archive = archive
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
        missing or doubled, and `DamagedArchive` at the first that only a damaged archive has.
        """
        expected, last = after + 1, self.last()
        schema = self._table.definition.file_schema
        if columns:
            wanted = ["n", *(name for name in columns if name != "n")]
            schema = pa.schema([schema.field(name) for name in wanted])
        files = self._table.files()
        for rows in chain(self._archived(files, after, schema), self._held(files, after, schema)):
            rows = rows.filter(pc.field("n") > after).sort_by("n")
            if rows["n"].to_pylist() != list(range(expected, expected + len(rows))):
                raise self._damaged(after, last)
            expected += len(rows)
            yield rows.select(columns) if columns else rows
        if expected != last + 1:
            raise self._damaged(after, last)

    def first(self) -> int:
        """Return the least number that the table itself holds, as seen; 0 when it holds none."""
        return _first(self._table.files())

    def _archived(
        self, files: Sequence[ActiveFile], after: int, schema: pa.Schema
    ) -> Iterator[pa.Table]:
        """The rows above `after` that the table does not hold any more, in order."""
        if self._archive is not None and after + 1 < _first(files):
            yield from self._archive.parts(after, _first(files) - 1, schema)

    def _held(
        self, files: Sequence[ActiveFile], after: int, schema: pa.Schema
    ) -> Iterator[pa.Table]:
        """The table's own rows above `after`, and some below; those that overlap come together.

        Row groups of one file may overlap as well: compaction writes file after file.
        """
        for some in apart(file for file in files if upper(file) > after):
            groups = chain.from_iterable(self._groups(file.path) for file in some)
            for near in apart(group for group in groups if upper(group) > after):
                yield pa.concat_tables([self._rows(group, schema) for group in near])

    def _damaged(self, after: int, last: int) -> DamagedTable:
        return DamagedTable(
            f"{self._table.place.path()} should hold the numbers {after + 1} to {last}, each once, "
            "but does not: run `spillway doctor --repair`, and restore the table if that does not "
            "help"
        )

    def _groups(self, path: str) -> list[RowGroup]:
        with self._readable(path):
            return row_groups(path, self._table.place.open(path))

    def _rows(self, group: RowGroup, schema: pa.Schema) -> pa.Table:
        with self._readable(group.path):
            return group.read(schema)

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        """Say what to do about a file that cannot be read."""
        try:
            yield
        except StorageError:
            raise
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise DamagedTable(
                f"{self._table.place.path(path)} of the table {self._app!r} cannot be read "
                f"({error}): stop everything that uses the warehouse and run "
                "`spillway doctor --repair`"
            ) from error


def _first(files: Iterable[ActiveFile]) -> int:
    return min((file.least or 0 for file in files), default=0)
