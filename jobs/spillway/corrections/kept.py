"""The revisions of a session in the tables: their rows in `corrections`, and in `sessions` the
events that they are in."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spillway.corrections.rows import ROWS, CorrectionRefused, KeptRevision
from spillway.engine.wire.datafile import write_data_files
from spillway.tables import SessionEvent, Warehouse
from spillway.tables.definitions import CORRECTIONS
from spillway_schemas.corrections import Revision, TopicPlace
from spillway_schemas.filenames import correct_name


class SessionRevisions:
    """The revisions of one session."""

    def __init__(self, warehouse: Warehouse, session: str, without: int) -> None:
        """`without`: results that the session had before any of them."""
        self._warehouse = warehouse
        self._session = session
        self._without = without

    def kept(self) -> list[KeptRevision]:
        """The revisions whose rows are kept, in order."""
        names = ["revision", "source", "reason", "by", "digest", "read_to"]
        table = self._read(names)
        counted = table.group_by(names).aggregate([([], "count_all")]).sort_by("revision")
        return [
            KeptRevision(
                rows=row.pop("count_all"),
                read_to=_place(row.pop("read_to")),
                **row,
            )
            for row in counted.to_pylist()
        ]

    def rows(self, since: int, before: int) -> pa.Table:
        """Rows of the kept revisions from `since` to the one before `before` (`ROWS`)."""
        table = self._read(["revision", *ROWS.names])
        of = pc.field("revision")
        return table.filter((of >= since) & (of < before)).select(ROWS.names).cast(ROWS)

    def _read(self, columns: Sequence[str]) -> pa.Table:
        kept = self._warehouse.corrections(self._session)
        return self._warehouse.correction_rows(kept, columns)

    def keep(self, mine: KeptRevision, rows: pa.Table) -> None:
        """Commit a revision's rows. Raises `TableConflict` when the number is taken."""
        n = len(rows)
        place = None if mine.read_to is None else mine.read_to.model_dump_json()
        told = {**vars(mine), "read_to": place}
        columns = [
            rows[field.name] if field.name in ROWS.names else _repeated(told[field.name], field, n)
            for field in CORRECTIONS.file_schema
        ]
        files = write_data_files(
            self._warehouse.folder(CORRECTIONS.name),
            CORRECTIONS.name,
            partial(correct_name, self._session, mine.revision, uuid.uuid4().hex[:12]),
            CORRECTIONS.file_schema,
            [pa.Table.from_arrays(columns, schema=CORRECTIONS.file_schema)],
            {"session_date": self._session},
        )
        self._warehouse.keep_correction(self._session, mine.revision, files)

    def note(self, kept: KeptRevision, seconds: float) -> Revision:
        """Say in `sessions` that a revision is in, unless somebody has; what is said of it.

        `seconds`: how long that took. Raises `CorrectionRefused` when results of before are gone.
        """
        stored = sum(file.rows for file in self._warehouse.files("results", self._session))
        # As seen with these files. Whoever commits the next revision has noted this one before.
        applied = self._warehouse.corrected_to(self._session)
        known = self.noted()
        if kept.revision in known or applied > kept.revision:
            return self.noted()[kept.revision]
        before = self._without + sum(each.results for each in known.values())
        mine = kept.as_noted(stored - before)
        if mine.results < 0:
            raise CorrectionRefused(
                f"the results table holds {stored:,} rows of {self._session}, and {before:,} were "
                "there before its last correction: rows are missing. Something other than spillway "
                "has changed the table: restore it"
            )
        self._warehouse.sessions.append(
            SessionEvent(
                session=self._session,
                event="corrected",
                seconds=seconds,
                details=mine.model_dump(),
            )
        )
        return mine

    def noted(self) -> dict[int, Revision]:
        """The revisions that are in, by their numbers."""
        return self._warehouse.sessions.revisions(self._session)


def _repeated(value: Any, field: pa.Field, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, field.type), n)


def _place(text: str | None) -> TopicPlace | None:
    return None if text is None else TopicPlace.model_validate_json(text)
