"""The warehouse: all tables under one root, and the few things that may be done to them.

Order of an epoch (the driver's): `sync_files(entry.files)`, `journal.append(entry)`, then
`apply` for each table that the entry names, then `maintain()`. With `fsync` on each of these
returns only when its effect is on disk, so that after a loss of power the journal never names a
file that is torn, and no table holds what the journal does not.

Invariants:

* `apply(table, epoch, files)` takes effect at most once per (table, epoch), whoever calls it and
  how often; a driver that was taken over can only repeat what is there.
* `apply_cleanup(session, ranges)`: the same for (session, n), and in order of n.
* `keep_correction`, `apply_correction`: the same for (session, revision); results of a revision
  come after its rows, and after those of the revision before it.
* A commit names only files that exist with the size that their record says.

Known limitation: one `Warehouse` object is for one thread; another thread or process opens its
own. It must not be made before a `fork` (deltalake does not survive one): spawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import SecretBytes

from spillway.engine.spill.spillfile import SPILL_COLUMNS
from spillway.protocol.losses import loss_of
from spillway.protocol.redo import settled_epoch
from spillway.protocol.state import genesis_at
from spillway.storage import Folder, folder
from spillway.tables.archive import FOLDER as ARCHIVE
from spillway.tables.archive import Archive
from spillway.tables.compaction import APP as COMPACTION
from spillway.tables.compaction import COMPACTED, DAY_BYTES, FAN_IN, compact
from spillway.tables.damage import is_table
from spillway.tables.definitions import (
    CORRECTIONS,
    DATA_TABLES,
    NUMBERED_NAMES,
    OF_QUERY,
    ON_DEMAND,
    REMOVED_KNOWN_S,
    TableDefinition,
    definitions,
)
from spillway.tables.errors import (
    DamagedTable,
    FileMismatch,
    NoWarehouse,
    TableConflict,
)
from spillway.tables.events import Commands, Sessions
from spillway.tables.garbage import MIN_AGE_S, Settled, Sorted, removals, sort_orphans
from spillway.tables.journal import Journal
from spillway.tables.log import ActiveFile, Table
from spillway.tables.snapshots import JOURNAL_SNAPSHOTS, S, Snapshots
from spillway.tables.statekey import state_key
from spillway_schemas.filenames import correction_app
from spillway_schemas.hash_space import spaces
from spillway_schemas.journal import FileRecord, Genesis, Sealed
from spillway_schemas.losses import AcceptedLoss
from spillway_schemas.secret import Options
from spillway_schemas.setting_fields import WarehouseSettings
from spillway_schemas.snapshot import JournalSnapshot

APP = "spillway"
"""Application id of the streaming job's commits; the version is the epoch."""

APPLY_ATTEMPTS = 100

CLEANED_INTO = ("results", "spill")
"""Tables that a cleanup writes; each of its ranges has its commit in one of them."""


@dataclass
class Compacted:
    """What `maintain` did."""

    checkpoints: list[str] = field(default_factory=list)
    compacted: dict[str, int] = field(default_factory=dict)
    """Per table: files that were replaced."""


@dataclass(frozen=True)
class KeptCorrections:
    """Corrections of one session, as one look at the tables shows them."""

    paths: tuple[str, ...] = ()
    """Files of the table `corrections`, in its folder: the rows of all revisions."""
    rows: int = 0
    last: int = 0
    """The newest revision whose rows are kept; 0: there is none."""
    applied: int = 0
    """The newest revision whose results are in."""


def exists(root: str, options: Options | None = None) -> bool:
    """Whether there is a warehouse at `root`. `options`: of its object store."""
    return is_table(folder(root, options).child("journal"))


def opened(place: WarehouseSettings, *, fsync: bool | None = None) -> Warehouse:
    """The warehouse that the settings name, as it is. `fsync`: None: as they say.

    Raises as `Warehouse` does.
    """
    durable = place.fsync if fsync is None else fsync
    return Warehouse(place.root, fsync=durable, options=place.options)


class Warehouse:
    """All tables under one root.

    With `results` (that table's schema; `spill` is that of spilled rows) every table that is not
    there yet is made; without it existing tables are opened as they are (what readers do). A
    `results` or `spill` of other columns that nobody has ever used is made anew; one that was used
    stays as it is until `widen_columns`. Tables of `later` wait for their first use: a stream makes
    these two when the journal says that the warehouse is its query's.
    Raises `NoWarehouse`, `WrongTable`, `DamagedTable`; ValueError for a root that is no path.
    """

    def __init__(
        self,
        root: str,
        results: pa.Schema | None = None,
        fsync: bool = True,
        *,
        spill: pa.Schema = SPILL_COLUMNS,
        later: Collection[str] = (),
        options: Options | None = None,
    ) -> None:
        """`options`: of the object store, where `root` is the URI of one."""
        self.place: Folder = folder(root, options)
        self._create = results is not None
        self._fsync = fsync
        self._definitions = definitions(results, None if results is None else spill)
        self._tables: dict[str, Table] = {}
        self._looked: dict[str, int] = {}
        """Per table: the version at which `maintain` last looked for small files."""
        if not self._create and not is_table(self.place.child("journal")):
            raise NoWarehouse(
                f"there is no warehouse at {self.place.path()}: "
                "start `spillway stream` once, or name another warehouse.root"
            )
        self.journal = Journal(
            self.table("journal"),
            self.snapshots(JOURNAL_SNAPSHOTS, JournalSnapshot),
            Archive(self.place.child(ARCHIVE)),
        )
        self.commands = Commands(self.table("commands"))
        self.sessions = Sessions(self.table("sessions"))
        if self._create:
            for name in self._definitions:
                if name not in {*later, *ON_DEMAND}:
                    self.table(name)

    def snapshots(self, name: str, kind: type[S]) -> Snapshots[S]:
        """What the journal's entries add up to, as it is kept in the folder `name`."""
        return Snapshots(self.place.child(name), kind)

    def table(self, name: str) -> Table:
        """Return one table, opened on first use. Raises KeyError for a name that is none."""
        if name not in self._tables:
            self._tables[name] = self._opened_to_write(self._definitions[name])
        return self._tables[name]

    def _opened_to_write(self, definition: TableDefinition) -> Table:
        """A table, made where there is none; one of a query, and unused, with its columns."""
        name, schema = definition.name, definition.schema
        if name not in OF_QUERY or schema is None or not self._create:
            return self._opened(definition, create=self._create)
        if is_table(self.place.child(name)):
            unused = self._unused(name)
            if unused is not None and unused.definition.schema != schema:
                with suppress(TableConflict):  # another process was faster
                    unused.change_columns(schema)
        return self._opened(definition, create=True)

    def compare_columns(
        self, results: pa.Schema, spill: pa.Schema, *, changes: bool = False
    ) -> None:
        """Raise `WrongTable` when a query with these columns cannot go on here; makes nothing.

        `results` and `spill` are as they are given to a warehouse. `changes`: its query changes,
        or has changed: tables may have other columns, too, and can be given what they lack.
        """
        wanted = definitions(results, spill)
        for name in OF_QUERY:
            schema = wanted[name].schema
            assert schema is not None, "both are given"
            if not is_table(self.place.child(name)) or self._unused(name) is not None:
                continue
            table = self._opened(wanted[name], create=False)
            if not changes:
                table.check_columns(schema)

    def widen_columns(self) -> None:
        """Give `results` and `spill` the columns that this warehouse was opened with, beside their
        own. Their rows stay as they are. Raises `WrongTable`."""
        for name in OF_QUERY:
            schema = self._definitions[name].schema
            assert schema is not None, "opened with a query"
            table = self.table(name)
            for _ in range(APPLY_ATTEMPTS):
                table.refresh()
                try:
                    table.widen_columns(schema)
                except TableConflict:  # a cleanup, say
                    continue
                break
            else:
                raise TableConflict(f"{name}: its columns met others {APPLY_ATTEMPTS} times")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tables that there are."""
        return tuple(
            name
            for name in self._definitions
            if name not in ON_DEMAND or is_table(self.place.child(name))
        )

    def files(self, name: str, session: str | None = None) -> list[ActiveFile]:
        """Return the newest version's files of a table, or of one session in it; none of a table
        that nobody has made yet."""
        if name not in self.names:
            return []
        table = self.table(name)
        table.refresh()
        files = table.files()
        if session is None:
            return files
        return [file for file in files if file.partition["session_date"] == session]

    def folder(self, name: str) -> Folder:
        """Return a table's folder: where data files are written under fresh names."""
        return self.place.child(name)

    # --- the streaming job ---------------------------------------------------------------

    def sync_files(self, records: Iterable[FileRecord]) -> None:
        """Make data files durable, before the journal names them (when `fsync` is on)."""
        for name, files in _by_table(records).items():
            self.table(name).sync_files(files)

    def applied(self, table: str) -> int:
        """Return the epoch of the table's last application transaction; -1 when none."""
        handle = self.table(table)
        handle.refresh()
        return handle.transaction(APP)

    def applied_all(self) -> dict[str, int]:
        """Return `applied` of every table whose files the journal names."""
        return {name: self.applied(name) for name in DATA_TABLES}

    def apply(self, table: str, epoch: int, files: Sequence[FileRecord]) -> None:
        """Commit exactly the files that the journal's entry of `epoch` names for the table.

        Does nothing when that was done already. Raises `FileMismatch`, `OutcomeUnknown`.
        """
        self._commit_once(table, APP, epoch, lambda _: files)

    def state_key(self) -> SecretBytes:
        """Return the key for the digests of state files; made when there is none.

        Raises `NotPrivate` when others can read it.
        """
        return state_key(self.place)

    # --- cleanup -------------------------------------------------------------------------

    def cleanup_applied(self, session: str) -> int:
        """Return the last of the session's ranges whose missing results are in; -1 when none."""
        return max(self._cleaned_to(name, session) for name in CLEANED_INTO)

    def _cleaned_to(self, name: str, session: str) -> int:
        table = self.table(name)
        table.refresh()
        return table.transaction(f"cleanup/{session}")

    def apply_cleanup(
        self,
        session: str,
        ranges: Mapping[int, Sequence[FileRecord]],
        table: str = "results",
    ) -> int:
        """Commit what consecutive ranges of the session lacked, all at once: to `results`, or, of a
        join below the root, to `spill` as rows of the join above.

        `ranges`: of each number the files (none is fine). Those that are in already are left out.
        Returns the last range that was in before. Raises ValueError when the one before these is
        not in, `FileMismatch`, `OutcomeUnknown`.
        """
        before = self.cleanup_applied(session)
        if min(ranges) > before + 1:
            raise ValueError(
                f"range {min(ranges)} of session {session} cannot be committed: {before + 1} comes "
                "first"
            )

        def after(n: int) -> list[FileRecord]:
            return [file for k, files in ranges.items() if k > n for file in files]

        if max(ranges) > before:
            self.table(table).sync_files(after(before))
            self._commit_once(
                table, f"cleanup/{session}", max(ranges), lambda seen: after(max(seen, before))
            )
        return before

    def deferred_applied(self, session: str) -> int:
        """Return 0 when `apply_deferred` was done for the session, else -1."""
        table = self.table("spill")
        table.refresh()
        return table.transaction(_deferred(session))

    def apply_deferred(self, session: str, files: Sequence[FileRecord]) -> None:
        """Commit the rows of the session that slots had lost, as spilled rows.

        Does nothing when that was done already. Raises `FileMismatch`, `OutcomeUnknown`.
        """
        self.table("spill").sync_files(files)
        self._commit_once("spill", _deferred(session), 0, lambda _: files)

    # --- corrections ---------------------------------------------------------------------

    def corrections(self, session: str) -> KeptCorrections:
        """Return the corrections of a closed session whose rows are kept, and how many are in."""
        if CORRECTIONS.name not in self.names:
            return KeptCorrections()
        # Rows come first: whoever commits meanwhile is seen as one that is not in yet, or again.
        files = self.files("corrections", session)
        self.table("results").refresh()
        return KeptCorrections(
            tuple(file.path for file in files),
            sum(file.rows for file in files),
            max(self.table("corrections").transaction(correction_app(session)), 0),
            self.corrected_to(session),
        )

    def correction_rows(self, kept: KeptCorrections, columns: Sequence[str]) -> pa.Table:
        """Return these columns of the corrections' rows, in no order. Raises `DamagedTable`."""
        schema = CORRECTIONS.file_schema
        wanted = pa.schema([schema.field(name) for name in columns])
        place = self.folder(CORRECTIONS.name)
        parts = [wanted.empty_table()]
        for path in kept.paths:
            try:
                with place.open(path) as file:
                    rows = pq.read_table(
                        file, columns=list(columns), page_checksum_verification=True
                    )
                parts.append(rows.select(columns).cast(wanted))
            except (pa.ArrowException, OSError, KeyError, ValueError) as error:
                raise DamagedTable(
                    f"{place.path(path)} of the table 'corrections' cannot be read ({error}): "
                    "restore it from a backup of the warehouse"
                ) from error
        return pa.concat_tables(parts)

    def corrected_to(self, session: str) -> int:
        """Return the newest revision whose results are in `results` as last seen; 0 when none."""
        return max(self.table("results").transaction(correction_app(session)), 0)

    def keep_correction(self, session: str, revision: int, files: Sequence[FileRecord]) -> None:
        """Commit the rows of a session's correction as this revision.

        Raises `TableConflict` when there is one of this number, or the one before is lacking;
        `FileMismatch`, `OutcomeUnknown`.
        """
        table = self._made("corrections")
        table.sync_files(files)
        table.refresh()
        if (seen := max(table.transaction(correction_app(session)), 0)) != revision - 1:
            raise TableConflict(f"corrections: after revision {seen} of {session} comes the next")
        _check_files(table, files)
        table.commit(files, correction_app(session), revision)

    def apply_correction(self, session: str, revision: int, files: Sequence[FileRecord]) -> None:
        """Commit the results that a revision adds.

        Does nothing when that was done already. Raises ValueError when the revision before it is
        not in; `FileMismatch`, `OutcomeUnknown`.
        """
        if revision > (before := self.corrections(session).applied) + 1:
            raise ValueError(
                f"revision {revision} of {session} cannot be committed: {before + 1} comes first"
            )
        self.table("results").sync_files(files)
        self._commit_once("results", correction_app(session), revision, lambda _: files)

    def _made(self, name: str) -> Table:
        """A table of `ON_DEMAND`, made when it is not there."""
        if name not in self._tables:
            self._tables[name] = self._opened(self._definitions[name], create=True)
        return self._tables[name]

    # --- upkeep --------------------------------------------------------------------------

    def accepted_loss(self, genesis: Genesis, sealed: Sealed) -> AcceptedLoss | None:
        """Return what a sealed session has lost for good, as people have accepted it: while it was
        open, and since."""
        since = sealed.base if sealed.carried is None else min(sealed.base, sealed.carried.since)
        entries = self.journal.read_after(since - 1) if sealed.lost_to else []
        return loss_of(genesis, sealed, entries, self.sessions.accepted_loss(sealed.session))

    def maintain(self, *, most_bytes: int = DAY_BYTES) -> Compacted:
        """Do what is due: compact small files, write log checkpoints. Cheap when nothing is.

        Call it after every epoch: at most `most_bytes` are rewritten per table and call.
        """
        done = Compacted()
        for name, table in self._tables.items():
            due = table.version - self._looked.get(name, -FAN_IN) >= FAN_IN
            if name in COMPACTED and due:
                if files := compact(table, most_bytes=most_bytes, target_bytes=most_bytes):
                    done.compacted[name] = files
                else:  # otherwise there may be more: it goes on after the next epoch
                    self._looked[name] = table.version
            if table.checkpoint():
                done.checkpoints.append(name)
        return done

    def settled(self) -> Settled:
        """Return what can no longer change (see `garbage`)."""
        transactions = {}
        corrected = {file.partition["session_date"] for file in self.files("corrections")}
        for name in self.names:
            table = self.table(name)
            table.refresh()
            apps = (COMPACTION, name, *map(correction_app, corrected))
            transactions[name] = {app: table.transaction(app) for app in apps}
        applied = self.applied_all()
        state, entries = self.journal.read_on(applied)
        return Settled(
            epoch=settled_epoch(entries, applied, -1 if state is None else state.epoch),
            cleaned=frozenset(self.sessions.cleaned()),
            transactions=transactions,
        )

    def vacuum(
        self,
        *,
        min_age_s: float = MIN_AGE_S,
        dry_run: bool = False,
        now_s: float | None = None,
    ) -> dict[str, Sorted]:
        """Delete files that nothing names and nothing can name any more; say what was found.

        Safe beside a running stream and a running cleanup. `dry_run` deletes nothing.
        """
        if min_age_s > REMOVED_KNOWN_S:
            raise ValueError(
                f"a minimum age of {min_age_s:.0f} s cannot be kept: the tables remember removed "
                f"files for {REMOVED_KNOWN_S:.0f} s"
            )
        now_s = time.time() if now_s is None else now_s
        settled = self.settled()  # before the listing, see `garbage`
        found = {}
        for name in settled.transactions:
            table = self.table(name)
            listed = list(table.place.list())
            table.refresh()
            # A file must not go before the log entry that removed it is on disk.
            table.sync_log()
            found[name] = sort_orphans(
                name,
                listed,
                [file.path for file in table.files()],
                removals(table),
                settled,
                now_s=now_s,
                min_age_s=min_age_s,
            )
            if not dry_run:
                table.place.delete(*(info.name for info in found[name].delete))
        return found

    def check(self, *, thorough: bool = True) -> list[str]:
        """Say what is wrong between the tables, in sentences; empty when nothing is.

        A damaged log raises already when the table is opened. `thorough`: read every entry of the
        journal, also those that a snapshot stands for, and the archived ones: time grows with the
        journal, memory does not. Raises `DamagedTable` for an entry that is missing or cannot be
        read, `DamagedArchive`.
        """
        problems = []
        # What is written last is read first: whoever works beside this has then written the rest.
        history = self.sessions.history()
        cleaned = {date for date, found in history.outcomes().items() if found.cleaned}
        corrected = history.corrected()
        applied_all = self.applied_all()
        self.journal.refresh()
        if thorough:
            self.journal.check()
        last, owed = self.journal.owed(applied_all)
        for name, applied in applied_all.items():
            if applied > last:
                problems.append(
                    f"{name} holds epoch {applied}, but the journal ends at {last}: journal "
                    "entries were lost. Restore the journal from a backup, or use a new warehouse"
                )
        problems += self._lost_cleanups(cleaned)
        problems += self._lost_corrections(corrected)
        sizes = {
            (name, file.path): file.bytes
            for name in (*applied_all, *NUMBERED_NAMES, *ON_DEMAND)
            for file in self.files(name)
        }
        # The next start gives the tables what the journal owes them.
        sizes |= {(each.table, file.path): file.bytes for each in owed for file in each.files}
        there = {
            name: {info.name: info.bytes for info in self.table(name).place.list()}
            for name in {name for name, _ in sizes}
        }
        for (name, path), wanted in sizes.items():
            size = there[name].get(path)
            if size != wanted:
                problems.append(
                    f"{name}: {path} should have {wanted} bytes and "
                    f"{'is gone' if size is None else f'has {size}'}. Restore it from a backup"
                )
        return problems

    def _lost_cleanups(self, cleaned: set[str]) -> Iterator[str]:
        """Say of which cleaned sessions `results`, or `spill` of a tree of joins, as seen, lacks
        ranges."""
        known = self.journal.sealed() if cleaned else {}
        if not cleaned & known.keys():
            return
        geneses = self.journal.geneses()
        for session in sorted(cleaned & known.keys()):
            sealed = known[session]
            root = spaces(len(genesis_at(geneses, sealed.epoch).parents))[-1]
            ranges = sealed.ranges
            below = sum(not root.covers(each) for each in ranges)
            for table, wanted in (("results", len(ranges)), ("spill", below)):
                there = self.table(table).transaction(f"cleanup/{session}") + 1
                if there < wanted:
                    yield (
                        f"{table} has {there} of the {wanted} ranges of {session}, which is "
                        "cleaned: commits were lost. Restore the warehouse from a backup, or make "
                        "the day again"
                    )

    def _lost_corrections(self, corrected: Mapping[str, int]) -> Iterator[str]:
        """Say of which corrections tables lack what they have committed. `corrected`: the newest
        revision of each session."""
        for session, revision in sorted(corrected.items()):
            kept = self.corrections(session)
            for table, there in (("corrections", kept.last), ("results", kept.applied)):
                if there < revision:
                    yield (
                        f"{table} has {there} of the {revision} corrections of {session}: commits "
                        "were lost. Restore the warehouse from a backup"
                    )

    # --- inside --------------------------------------------------------------------------

    def _opened(self, definition: TableDefinition, *, create: bool) -> Table:
        place = self.place.child(definition.name)
        return Table(place, definition, create=create, fsync=self._fsync)

    def _unused(self, name: str) -> Table | None:
        """A table as it is, when no epoch has named a file for it and it never had one."""
        table = self._opened(replace(self._definitions[name], schema=None), create=False)
        unused = table.transaction(APP) < 0 and not table.files()
        return table if unused and self.journal.last_epoch() < 0 else None

    def _commit_once(
        self,
        name: str,
        app: str,
        version: int,
        files_after: Callable[[int], Sequence[FileRecord]],
    ) -> None:
        """Commit (app, version) unless it is in. `files_after`: the files that are lacking after
        that version of `app` (-1: none) which is in."""
        table = self.table(name)
        for _ in range(APPLY_ATTEMPTS):
            table.refresh()
            # Checked on the handle that commits, with no refresh in between.
            if (seen := table.transaction(app)) >= version:
                return
            files = files_after(seen)
            _check_files(table, files)
            try:
                table.commit(files, app, version)
            except TableConflict:
                continue
            return
        raise TableConflict(f"{name}: {APPLY_ATTEMPTS} commits of ({app!r}, {version}) met others")


def _deferred(session: str) -> str:
    return f"deferred/{session}"


def _check_files(table: Table, files: Sequence[FileRecord]) -> None:
    by = set(table.definition.partition_by)
    for file in files:
        if file.table != table.name:
            raise ValueError(f"{file.path} is for {file.table}, not for {table.name}")
        if set(file.partition) != by:
            raise ValueError(
                f"{file.path}: {table.name} is partitioned by {sorted(by)}, "
                f"the file says {file.partition}"
            )
        size = table.place.size(file.path)
        if size != file.bytes:
            there = "is not there" if size is None else f"has {size} bytes"
            raise FileMismatch(
                f"{table.name}: {table.place.path(file.path)} should have {file.bytes} bytes but "
                f"{there}. Something else deletes or changes files of the warehouse, or power was "
                "lost with warehouse.fsync off: restore the file, or use a new warehouse"
            )


def _by_table(records: Iterable[FileRecord]) -> dict[str, list[FileRecord]]:
    tables: dict[str, list[FileRecord]] = {}
    for record in records:
        tables.setdefault(record.table, []).append(record)
    return tables
