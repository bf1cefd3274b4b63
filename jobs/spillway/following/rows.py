"""The tables' edge of a follower: what is there, and the rows of a step.

Model: a `Follower` reads the newest version of `results` and never an older one, so it needs no
log entry that was pruned. `sessions` is read before `results`: what a session's `cleaned` says is
in `results` by then.

Memory: some batches of one row group.

Known limitation: rows of a part lie anywhere, so each part reads all columns of the step's files.
A cleanup of 40 parts takes 40 times as long to read as one of the same rows in one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spillway.engine.join.hashing import xxhash64
from spillway.engine.wire.footers import is_sound
from spillway.following.position import (
    FollowStep,
    Newest,
    Position,
    Seen,
    another_history,
    ended_phases,
)
from spillway.protocol.state import JournalState
from spillway.storage import StorageError
from spillway.tables import ActiveFile, DamagedTable, NothingYet, Warehouse, WarehouseError
from spillway.tables.definitions import SESSION_DATE
from spillway.tables.log import LogEntry
from spillway_schemas.corrections import partition_of
from spillway_schemas.exits import FAILED

BATCH_ROWS = 65_536
FOLLOWED = ("sessions", "results")
"""In the order in which they are looked at."""
_CHECKED = ds.ParquetFragmentScanOptions(pre_buffer=False, page_checksum_verification=True)


class HistoryChanged(WarehouseError):
    """The table is not the one that the position is of: it cannot be gone on from there."""

    exit_code = FAILED


class Follower:
    """Looks at `results` and reads from it. For one thread.

    `identity`: the columns that tell rows of a session apart, those of the coordinates.
    """

    def __init__(self, warehouse: Warehouse, identity: Sequence[str]) -> None:
        self._warehouse = warehouse
        self._identity = list(identity)
        self._versions = (-1, -1)
        """Of `sessions` and `results`, when they were looked at last."""
        self._entries: list[LogEntry] = []
        """Of their logs, then."""
        self._seen = Seen(-1, (), ())

    @property
    def columns(self) -> pa.Schema:
        """The table's columns, as seen."""
        schema = self._warehouse.table("results").definition.schema
        assert schema is not None
        return schema

    def journal_state(self) -> JournalState:
        """What the journal adds up to. Raises `NothingYet`."""
        state = self._warehouse.journal.state()
        if state is None:
            raise NothingYet(self._warehouse.place.path())
        return state

    def look(self) -> Seen:
        """See what is there now: the same object, where nothing is new.

        Raises `TableReplaced` where what was seen before is of another log.
        """
        tables = sessions, results = [self._warehouse.table(each) for each in FOLLOWED]
        sessions.refresh()
        ended = self._seen.ended
        if sessions.version != self._versions[0]:
            ended = ended_phases(self._warehouse.sessions.read())
        at = sessions.version
        epoch = self._warehouse.applied("results")
        if (at, results.version) != self._versions:
            for table, entry in zip(tables, self._entries, strict=False):
                table.demand_entry(entry)
            self._entries = [table.entry() for table in tables]
            self._seen = Seen(epoch, results.files(), ended)
            self._versions = (at, results.version)
        return self._seen

    def check(self, position: Position, seen: Seen) -> None:
        """Raise `HistoryChanged` where the position is of another history of the table.

        Reads three columns of the row groups that may have rows of the position's newest epoch, or
        of one after it that it passed without rows: mostly of one file, however large the table.
        """
        if why := another_history(position, seen, self._agrees(position, seen)):
            raise HistoryChanged(
                f"results at {self._warehouse.place.path('results')} is not the table that was "
                f"followed so far: {why}. A warehouse that was restored from a backup gives "
                "results again, in other epochs: follow it from the beginning, into another place, "
                "and let consumers change over"
            )

    def read(self, step: FollowStep) -> Iterator[pa.Table]:
        """The rows of a step, some at a time, with the table's columns.

        Columns that a file does not have, because they came later, are null. Raises `DamagedTable`
        for a file that is gone or cannot be read.
        """
        wanted = pc.field("phase") == step.phase
        if step.phase == "run-time":
            wanted &= (pc.field("epoch") > step.after) & (pc.field("epoch") <= step.upto)
        elif step.phase == "correction":
            partitions = [pc.field(n) for n in self._identity if n.endswith("_partition")]
            revision = partition_of(step.revision)
            wanted &= reduce(or_, (each == revision for each in partitions))
            wanted &= reduce(and_, (each >= revision for each in partitions))
        for file in step.files:
            for rows in self._rows(file, wanted):
                yield self._part(rows, step) if step.parts > 1 else rows

    def _part(self, rows: pa.Table, step: FollowStep) -> pa.Table:
        hashes = xxhash64([rows[name] for name in self._identity])
        return rows.filter(pa.array(hashes % np.uint64(step.parts) == step.part))

    def _agrees(self, position: Position, seen: Seen) -> bool:
        """Whether `position.newest` is the newest row of run time up to `position.epoch`."""
        newest = position.newest
        if newest is None:
            return True
        at = pa.scalar(newest.committed_us, pa.timestamp("us", "UTC"))
        wanted = (
            (pc.field("phase") == "run-time")
            & (pc.field("epoch") == newest.epoch)
            & (pc.field("committed_at") == at)
        )
        if not self._finds(wanted, seen, newest.epoch, newest.epoch):
            return False
        later = (
            (pc.field("phase") == "run-time")
            & (pc.field("epoch") > newest.epoch)
            & (pc.field("epoch") <= position.epoch)
        )
        return not self._finds(later, seen, newest.epoch + 1, position.epoch)

    def _finds(self, wanted: pc.Expression, seen: Seen, least: int, greatest: int) -> bool:
        """Whether there are such rows, of epochs from `least` to `greatest`."""
        files = (
            file
            for file in seen.files
            if least <= greatest
            if file.least is None or (file.least <= greatest and least <= file.greatest)
        )
        names = ["phase", "epoch", "committed_at"]
        return any(True for file in files for _ in self._batches(file, wanted, names))

    def _rows(self, file: ActiveFile, wanted: pc.Expression) -> Iterator[pa.Table]:
        for batch in self._batches(file, wanted):
            yield self._whole(pa.Table.from_batches([batch]), file)

    def _batches(
        self, file: ActiveFile, wanted: pc.Expression, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a file, without its partition's column. None is empty."""
        table = self._warehouse.table("results")
        try:
            with table.place.open(file.path) as source:
                if not is_sound(pq.ParquetFile(source).metadata):
                    raise pa.ArrowInvalid("its footer contradicts itself")
                batches = (
                    ds.ParquetFileFormat()
                    .make_fragment(source)
                    .to_batches(
                        schema=table.definition.file_schema,
                        columns=columns,
                        filter=wanted,
                        batch_size=BATCH_ROWS,
                        batch_readahead=1,
                        use_threads=False,
                        fragment_scan_options=_CHECKED,
                    )
                )
                yield from (batch for batch in batches if batch.num_rows)
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DamagedTable(
                f"{table.place.path(file.path)} of the table 'results' cannot be read ({error}). "
                "Try again; if that does not help run `spillway doctor`"
            ) from error

    def _whole(self, rows: pa.Table, file: ActiveFile) -> pa.Table:
        """With the column that is in the file's folder alone."""
        name = SESSION_DATE.name
        days = pa.repeat(pa.scalar(file.partition[name], pa.string()), rows.num_rows)
        return rows.append_column(SESSION_DATE, days).select(self.columns.names)


def newest_of(rows: pa.Table, known: Newest | None) -> Newest | None:
    """The newest row of run time that is known after more rows."""
    mine = rows.filter(pc.equal(rows["phase"], "run-time")).select(["epoch", "committed_at"])
    if not mine.num_rows:
        return known
    epoch = pc.max(mine["epoch"]).as_py()
    if known is not None and known.epoch > epoch:
        return known
    times = mine.filter(pc.equal(mine["epoch"], epoch))["committed_at"].cast(pa.int64())
    return Newest(epoch, pc.max(times).as_py())
