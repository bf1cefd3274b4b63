"""One Delta table and its transaction log: the only place that commits.

Model: a `Table` holds one delta-rs handle, that is, one *seen* version of the table. `commit`
checks and commits against that seen version. Only `refresh` (and a commit that succeeded) moves
it forward.

What delta-rs 1.6.6 does, tried, and what follows from it:

* A commit whose application id was committed by anyone *after* the seen version is refused
  ("Concurrent transaction failed"), however many retries are allowed: a retry re-checks every
  version since the seen one. So retries are safe, and they let commits of *other* application
  ids (cleanup, compaction) pass. `max_commit_retries=0` would refuse those too.
* After a refresh the same id is accepted with any version, also a lower one. So the caller
  must compare `transaction()` with what it wants, and commit with no refresh between.
* Removing files is *not* checked against a concurrent removal of the same files when the data
  does not change: two concurrent compactions, also delta-rs's own `optimize.compact`, double
  every row. So a compaction is guarded by an application id of its own (see `compaction`), and
  `optimize.compact` is never used.
* An append is refused when files were removed since the seen version and the data did change;
  after a refresh it passes.
* An empty last log entry loads silently. See `damage`.
* delta-rs never calls fsync. With `fsync` on, `commit` returns only when the new log entry, and
  every older one that this process has not synced yet, is on disk.

Failure paths:

* *The commit is refused*: `TableConflict`, nothing was written but an orphan.
* *The commit raised something else* (disk full, log folder unreadable), or others committed at
  the same time: the log is searched for the commit's own id. Found: done. Another writer took
  the transaction: `TableConflict`. Neither, and the operating system refused the write:
  `StorageError`, which says why; the commit did not happen. Otherwise: `OutcomeUnknown`.
* *An object store's answer was lost*, or it failed: the same search. Neither the commit's own id
  nor another's transaction: the entry was not written, or is still on its way. So the same commit,
  with the same id, is tried again on the same handle. Whichever of its attempts comes first is
  found by the next; a later one meets a log entry that is there, and the store refuses it. Once the
  store has not answered for `Folder.patience_s`: `OutcomeUnknown`. An entry that lands later still
  was committed then: the next driver's claim, or the next redo, meets it.
* *The process was frozen inside a commit* for so long that the log entry's number was taken and
  pruned: the same search; the entry that it wrote is below the last checkpoint, where nobody
  looks.

The log is kept short (`KEEP_ENTRIES`): delta-rs lists its folder several times a commit. So a
table cannot be read as of a version of long ago; the journal says what happened.

Known limitation: a `Table` is for one thread.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    PostCommitHookProperties,
    RemoveAction,
    Transaction,
)

from spillway.storage import Folder
from spillway.tables.columns import ColumnConflict, Fields, united
from spillway.tables.damage import (
    COUNTS,
    LOG,
    check_log,
    is_table,
    last_checkpoint,
    log_name,
    log_versions,
)
from spillway.tables.definitions import (
    NUMBERED_NAMES,
    OF_QUERY,
    REMOVED_KNOWN_S,
    SESSION_DATE,
    TableDefinition,
)
from spillway.tables.errors import (
    DamagedTable,
    NoWarehouse,
    OutcomeUnknown,
    TableConflict,
    TableReplaced,
    WrongTable,
)
from spillway_schemas.journal import FileRecord

RETRIES = 100
"""Times that a commit moves behind commits of other application ids. At 15 (delta-rs's default)
17 of 1,500 were refused when three processes raced."""

CHECKPOINT_EVERY = 100
"""Versions between two log checkpoints: bounds what opening a table reads."""

KEEP_ENTRIES, KEEP_S = 300, 600.0
"""Log entries that are kept before the last checkpoint: this many at least, and all that are
younger than this many seconds. `repair` and readers that have just begun work with them."""

_GONE = re.compile("file not found|object at location .* not found", re.IGNORECASE)
"""What delta-rs says when an entry, or a checkpoint, is not there any more. A field may be "not
found", too, in a checkpoint that is damaged."""

AGAIN_S = 0.2
"""Between two attempts at a commit whose answer was lost."""

COMMIT_ID = "spillwayCommit"
"""Key in a commit's description: a fresh id, by which a commit is found in the log again."""

_PLAIN = (1, 2)
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True)
class ActiveFile:
    """A data file that is part of the table."""

    path: str
    bytes: int
    rows: int
    partition: Mapping[str, str]
    least: Any = None
    """Least `n` of a numbered table's rows, least epoch of others; None when it is not known."""
    greatest: Any = None
    sessions: tuple[str, str] | None = None
    """First and last session of its rows; None for numbered tables, and when it is not known."""


@dataclass(frozen=True)
class LogEntry:
    """An entry of a table's log."""

    version: int
    text: bytes | None
    """None: it was pruned."""


class Table:
    """One table, as one process sees it. Raises `NoWarehouse`, `WrongTable`, `DamagedTable`."""

    def __init__(
        self,
        place: Folder,
        definition: TableDefinition,
        *,
        create: bool,
        fsync: bool,
        version: int | None = None,
    ) -> None:
        """Open the table in `place`; with `create`, make it when it is not there.

        `version` opens it as it was then, whatever came later, to read only.
        """
        self.place = place
        self.definition = definition
        self.name = definition.name
        self._fsync = fsync
        path = place.path()
        if not is_table(place):
            if not create:
                raise NoWarehouse(
                    f"there is no table {self.name!r} at {path}: "
                    "start `spillway stream` once, or name another warehouse.root"
                )
            self._create()
        if version is None:
            check_log(place, self.name)
        try:
            self._handle = self._open(version)
        except TableNotFoundError as error:
            raise NoWarehouse(f"there is no table {self.name!r} at {path}") from error
        except (DeltaError, OSError) as error:
            if explained := place.error_of("read", "", error):
                raise explained from error
            raise self._unreadable(error) from error
        if definition.schema is not None:
            self._check_definition(definition.schema)
        if definition.schema is None or self.name in OF_QUERY:
            self.definition = replace(definition, schema=pa.schema(self._handle.schema()))
        self._transactions: dict[str, int] = {}
        self._checkpoint = last_checkpoint(place)
        self._synced = self._checkpoint
        self.sync_log()

    def _unreadable(self, error: Exception) -> DamagedTable:
        return DamagedTable(
            f"the log of {self.name!r} at {self.place.path()} cannot be read ({error}): stop "
            "everything that uses the warehouse and run `spillway doctor --repair`"
        )

    @property
    def version(self) -> int:
        """The table version that this process sees."""
        return int(self._handle.version())

    @property
    def seen_columns(self) -> pa.Schema:
        """Columns of the table's files as seen now: another process may have widened them since it
        was opened."""
        by = self.definition.partition_by
        return pa.schema([f for f in pa.schema(self._handle.schema()) if f.name not in by])

    def refresh(self) -> None:
        """See the newest version of the table. Raises `TableReplaced` where that is an older one
        than this process has seen."""
        before = self.version
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError) as error:
            if explained := self.place.error_of("read", LOG, error):
                raise explained from error
            if (last := max(log_versions(self.place), default=-1)) < before:
                raise self._replaced(
                    f"its log ends at version {last}, and version {before} was seen before"
                ) from error
            raise
        if self.version != before:
            self._transactions.clear()

    def entry(self) -> LogEntry:
        """The log's entry of the version that this process sees."""
        return self._entry(self.version)

    def demand_entry(self, seen: LogEntry) -> None:
        """Raise `TableReplaced` where the log has another entry of that version now.

        `refresh` adds what is new to what was seen, and does not ask whose log it is: one that was
        restored, and has grown past the seen version since, would be taken for the same.
        """
        now = self._entry(seen.version)
        if None not in (now.text, seen.text) and now != seen:
            raise self._replaced(f"version {seen.version} is another one than was seen before")

    def _entry(self, version: int) -> LogEntry:
        try:
            return LogEntry(version, self.place.read(log_name(version)))
        except FileNotFoundError:
            return LogEntry(version, None)

    def _replaced(self, why: str) -> TableReplaced:
        return TableReplaced(
            f"the table {self.name!r} at {self.place.path()} was restored or replaced while this "
            f"process had it open: {why}. Start it again"
        )

    def transaction(self, app: str) -> int:
        """Return the last version of an application transaction as seen; -1 when none.

        Raises `TableConflict` when what this process sees is so old that its log is pruned, and
        `DamagedTable` for a log entry or a checkpoint that is none.
        """
        if app not in self._transactions:
            try:  # delta-rs reads the log for it
                version = self._handle.transaction_version(app)
            except DeltaError as error:
                if explained := self.place.error_of("read", LOG, error):
                    raise explained from error
                if not _GONE.search(str(error)):
                    # Of an entry, or of a checkpoint, which opening the table reads only in part.
                    raise self._unreadable(error) from error
                raise TableConflict(
                    f"{self.name}: others have committed so much since this process looked "
                    f"last (version {self.version}) that it must look again ({error})"
                ) from error
            self._transactions[app] = -1 if version is None else int(version)
        return self._transactions[app]

    def files(self) -> list[ActiveFile]:
        """Return the table's files as seen. Raises `DamagedTable` for one without its number of
        rows, which every writer of ours gives."""
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        columns = set(actions.column_names)
        by = self.definition.partition_by
        numbered = self.name in NUMBERED_NAMES
        told = ("n",) if numbered else ("epoch", SESSION_DATE.name)
        bounds = [f"{end}.{column}" for column in told for end in ("min", "max")]
        wanted = ["path", "size_bytes", "num_records", *(f"partition.{p}" for p in by)]
        rows = actions.select([c for c in (*wanted, *bounds) if c in columns]).to_pylist()
        if uncounted := [row["path"] for row in rows if row.get("num_records") is None]:
            raise DamagedTable(
                f"the table {self.name!r} is damaged: its log at {self.place.path(LOG)} does not "
                f"say how many rows {min(uncounted)} has. Something other than spillway has "
                "changed it: restore the log from a backup"
            )
        return [
            ActiveFile(
                path=row["path"],
                bytes=row["size_bytes"],
                rows=row["num_records"],
                partition={p: row[f"partition.{p}"] for p in by},
                least=row.get(bounds[0]),
                greatest=row.get(bounds[1]),
                sessions=_sessions(row),
            )
            for row in rows
        ]

    def commit(
        self,
        adds: Sequence[FileRecord],
        app: str,
        version: int,
        *,
        removes: Sequence[ActiveFile] = (),
        drops: bool = False,
        retries: int = RETRIES,
    ) -> None:
        """Add (and remove) files in one commit with the application transaction (app, version).

        Checks against the version that this process sees, without looking for a newer one, and
        then sees its own commit. With `removes` the rows stay the same (a compaction), unless it
        `drops` them. Raises `TableConflict`, `OutcomeUnknown`, `StorageError`.
        """
        self.place.assure_safe()
        now_ms = time.time_ns() // 1_000_000
        change = drops or not removes
        actions: list[Any] = [
            AddAction(f.path, f.bytes, f.partition, now_ms, change, f.stats) for f in adds
        ]
        actions += [
            RemoveAction(f.path, change, now_ms, f.bytes, dict(f.partition)) for f in removes
        ]
        commit_id = uuid.uuid4().hex
        properties = CommitProperties(
            custom_metadata={
                COUNTS["add"]: len(adds),
                COUNTS["remove"]: len(removes),
                COUNTS["txn"]: 1,
                COMMIT_ID: commit_id,
            },
            max_commit_retries=retries,
            app_transactions=[Transaction(app, version)],
        )
        known, before = dict(self._transactions), self.version
        until = time.monotonic() + self.place.patience_s
        while True:
            failure: Exception | None = None
            try:
                self._handle.create_write_transaction(
                    actions,
                    mode="append",
                    schema=self._handle.schema(),
                    partition_by=list(self.definition.partition_by),
                    commit_properties=properties,
                    post_commithook_properties=_NO_HOOKS,
                )
                self.refresh()
            except Exception as error:  # noqa: BLE001 - told apart by reading the log again
                failure = error
            if failure is None and self.version == before + 1:
                # Nobody else's commit: what was known still holds.
                self._transactions = {**known, app: version}
                break
            try:
                self._confirm(commit_id, before, app, version, failure)
            except OutcomeUnknown:
                if time.monotonic() >= until:
                    raise
                time.sleep(AGAIN_S)
            else:
                break
        self.sync_log()

    def _confirm(
        self, commit_id: str, before: int, app: str, version: int, failure: Exception | None
    ) -> None:
        """Return, with a handle that sees it, when the commit is in the log; else raise.

        Needed when the commit raised, and when others committed since `before`: a process that
        was frozen inside a commit may have written a log entry whose number was used, and
        pruned, long ago. delta-rs calls that a success; no reader ever sees it.
        """
        what = f"{self.name}: the commit of transaction ({app!r}, {version})"
        try:
            fresh = self._open()
            taken = fresh.transaction_version(app)
            newer = range(before + 1, int(fresh.version()) + 1)
            found = any(commit_id.encode() in self.place.read(log_name(v)) for v in newer)
        except FileNotFoundError as error:
            raise OutcomeUnknown(
                f"{what}: this process was suspended for so long that the table's log has moved on"
            ) from error
        except Exception as error:
            raise OutcomeUnknown(f"{what}: the table cannot be read ({error})") from error
        if found:
            self._handle = fresh
            self._transactions = {}
            return
        conflict = taken is not None and taken >= version
        explained = None if failure is None else self.place.error_of("write", LOG, failure)
        if explained is not None and not conflict:
            if self.place.is_atomic:  # the request may have been lost, or its answer
                raise OutcomeUnknown(f"{what}: {explained}") from failure
            # delta-rs links a log entry into place whole, and the log was read after it failed.
            raise explained from failure
        if isinstance(failure, CommitFailedError) or conflict:
            raise TableConflict(
                f"{what} was refused: another writer has committed ({app!r}, {taken})"
            ) from failure
        raise OutcomeUnknown(f"{what}: {failure or 'it is not in the log'}") from failure

    def sync_files(self, records: Iterable[FileRecord]) -> None:
        """Make data files durable, before anything names them (when `fsync` is on)."""
        if self._fsync:
            self.place.sync([record.path for record in records])

    def sync_log(self) -> None:
        """Make every log entry up to the seen version durable (when `fsync` is on)."""
        version = self.version
        if self._fsync and version > self._synced:
            self.place.sync([log_name(v) for v in range(self._synced + 1, version + 1)])
        self._synced = version

    def checkpoint(self, every: int = CHECKPOINT_EVERY) -> bool:
        """Write a log checkpoint when the last one is `every` versions old; whether it did."""
        if self.version - self._checkpoint < every:
            return False
        try:
            self._handle.create_checkpoint()
        except (DeltaError, OSError) as error:
            if explained := self.place.error_of("write", LOG, error):
                raise explained from error
            raise
        self._checkpoint = self.version
        if self._fsync:
            self.place.sync(
                [log_name(self.version, "checkpoint.parquet"), "_delta_log/_last_checkpoint"]
            )
        self._prune()
        return True

    def _prune(self) -> None:
        """Delete log entries and checkpoints that are far behind the last checkpoint.

        A commit lists the log's folder several times: with 10,000 entries it took 60 ms.
        """
        oldest = self._checkpoint - KEEP_ENTRIES
        written_before = time.time() - KEEP_S
        log = self.place.child(LOG)
        old = [
            info.name
            for info in log.list()
            if (number := info.name[:20]).isdigit()
            and int(number) < oldest
            and info.modified_s < written_before
        ]
        log.delete(*old)

    def change_columns(self, schema: pa.Schema) -> None:
        """Give a table that has no files other columns.

        Raises `TableConflict` when somebody else has committed since this process looked.
        """
        self._commit_columns(deltalake.Schema.from_arrow(schema))

    def widen_columns(self, schema: pa.Schema) -> None:
        """See that the table has these columns beside its own (`columns.united`).

        Raises `WrongTable` where it cannot, `TableConflict` as `change_columns` does.
        """
        found = json.loads(self._handle.schema().to_json())
        columns = self._united(found["fields"], schema)
        if columns != found["fields"]:
            self._commit_columns(
                deltalake.Schema.from_json(json.dumps({**found, "fields": columns}))
            )
        self.definition = replace(self.definition, schema=pa.schema(self._handle.schema()))

    def _united(self, found: Fields, schema: pa.Schema) -> Fields:
        try:
            return united(found, _fields(schema))
        except ColumnConflict as error:
            raise WrongTable(
                f"the query has changed: {self.name} at {self.place.path()} {error}. A column "
                "keeps its type: leave it out (results.columns), read the stream by another name "
                '("trade as t"), or use another warehouse.root'
            ) from error

    def _commit_columns(self, schema: deltalake.Schema) -> None:
        self.place.assure_safe()
        try:
            self._handle.create_write_transaction(
                [],
                mode="overwrite",
                schema=schema,
                partition_by=list(self.definition.partition_by),
                # Of no partition: no file goes.
                partition_filters=[(by, "=", "") for by in self.definition.partition_by],
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError as error:
            raise TableConflict(f"{self.name}: another process has changed it: {error}") from error
        except (DeltaError, OSError) as error:
            if explained := self.place.error_of("write", LOG, error):
                raise explained from error
            raise
        self._handle.update_incremental()
        self.sync_log()

    def _open(self, version: int | None = None) -> deltalake.DeltaTable:
        path, options = self.place.path(), self.place.library_options
        return deltalake.DeltaTable(path, version=version, storage_options=options)

    def _create(self) -> None:
        self.place.assure_safe()
        try:
            deltalake.DeltaTable.create(
                self.place.path(),
                schema=deltalake.Schema.from_arrow(self.definition.schema),
                partition_by=list(self.definition.partition_by),
                name=self.name,
                configuration={
                    "delta.deletedFileRetentionDuration": f"interval {REMOVED_KNOWN_S} seconds"
                },
                storage_options=self.place.library_options,
            )
        except Exception as error:
            if is_table(self.place):
                return  # another process was faster, or the answer was lost
            if explained := self.place.error_of("write", "", error):
                raise explained from error
            raise

    def _check_definition(self, schema: pa.Schema) -> None:
        protocol = self._handle.protocol()
        needs = (protocol.min_reader_version, protocol.min_writer_version)
        if needs > _PLAIN:
            raise WrongTable(
                f"{self.name} asks for Delta protocol {needs}; spillway keeps to {_PLAIN}. "
                "Something else has changed the table: make it anew or restore it"
            )
        by = list(self._handle.metadata().partition_columns)
        if self.name in OF_QUERY and by == list(self.definition.partition_by):
            self._united(_fields(self._handle.schema()), schema)
        else:
            self.check_columns(schema)

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise `WrongTable` when the table does not have exactly these columns."""
        wanted, found = _fields(schema), _fields(self._handle.schema())
        by = list(self._handle.metadata().partition_columns)
        if wanted != found or by != list(self.definition.partition_by):
            of_query = self.name == "results"
            what = "the query has changed" if of_query else "another version of spillway made this"
            else_ = "Bring the old query file back, or use" if of_query else "Use"
            raise WrongTable(
                f"{what}: {self.name} at {self.place.path()} {_differences(found, wanted)}. "
                f"{else_} another warehouse.root"
            )


def _sessions(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The bounds of a file's sessions: its partition's session, or what its statistics say."""
    if day := row.get(f"partition.{SESSION_DATE.name}"):
        return day, day
    first, last = (row.get(f"{end}.{SESSION_DATE.name}") for end in ("min", "max"))
    return None if first is None or last is None else (first, last)


def _fields(schema: Any) -> Fields:
    """Columns as Delta writes them, of an Arrow schema or a Delta one."""
    known = schema if isinstance(schema, deltalake.Schema) else deltalake.Schema.from_arrow(schema)
    fields: Fields = json.loads(known.to_json())["fields"]
    return fields


def _differences(found: Fields, wanted: Fields) -> str:
    """In which columns a table is not as it should be."""
    has, needs = _columns(found), _columns(wanted)
    parts = []
    if gone := [name for name in needs if name not in has]:
        parts.append(f"lacks {', '.join(gone)}")
    if more := [name for name in has if name not in needs]:
        parts.append(f"has {', '.join(more)}, which it should not")
    changed = [n for n in has if n in needs and has[n] != needs[n]]
    parts += [f"has {name} as {has[name]}, not {needs[name]}" for name in changed]
    return " and ".join(parts) or "has the same columns in another order or partition"


def _columns(fields: Fields) -> dict[str, str]:
    return {
        f["name"]: f"{f['type']}{'' if f['nullable'] else ' that is never null'}" for f in fields
    }
