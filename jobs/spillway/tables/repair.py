"""`spillway doctor --repair`: take the torn ends of the logs away. See `damage` for why it may.

Nothing is deleted: what is taken away lies under `_damaged/` of the warehouse afterwards. Run it
only while nothing else uses the warehouse. Repairing twice does nothing the second time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from spillway.storage import Folder, StorageError, folder
from spillway.tables.archive import FOLDER as ARCHIVE
from spillway.tables.archive import Archive
from spillway.tables.damage import (
    LOG,
    checkpoint_files,
    first_bad,
    is_table,
    last_checkpoint,
    log_name,
    log_versions,
)
from spillway.tables.definitions import (
    DATA_TABLES,
    JOURNAL,
    NUMBERED_NAMES,
    SESSIONS,
    definitions,
)
from spillway.tables.errors import DamagedTable
from spillway.tables.events import Sessions
from spillway.tables.journal import Journal
from spillway.tables.log import Table
from spillway.tables.snapshots import JOURNAL_SNAPSHOTS, Snapshots
from spillway.tables.warehouse import APP, Warehouse
from spillway_schemas.journal import Epoch
from spillway_schemas.secret import Options
from spillway_schemas.snapshot import JournalSnapshot

DAMAGED = "_damaged"


def repair(root: str, options: Options | None = None) -> list[str]:
    """Mend what can be mended; return what was done, in sentences (nothing: all was well).

    Raises `DamagedTable` when the journal has lost what tables already hold: then nothing was
    changed in the journal, and a person has to restore it.
    """
    place = folder(root, options)
    done: list[str] = []
    # Data tables first: what they hold afterwards says how far the journal may be shortened.
    names = sorted(definitions(None), key=lambda name: (name == "journal", name))
    for name in names:
        table = place.child(name)
        if next(table.child(LOG).list(), None) is None:
            continue
        done += _checkpoints(place, table, name)
        bad = first_bad(log_versions(table), last_checkpoint(table), _reader(table))
        bad = bad or (_torn_file(table) if name in NUMBERED_NAMES else None)
        while bad:
            done.append(_shorten(place, table, name, *bad))
            bad = _torn_file(table) if name in NUMBERED_NAMES else None
    if done:
        done += [f"still wrong: {problem}" for problem in Warehouse(root, options=options).check()]
    return done


def _shorten(place: Folder, table: Folder, name: str, version: int, problem: str) -> str:
    """Take away the log entries from `version` on; say so."""
    if name == "journal":
        _may_shorten(place, table, version)
    taken = [v for v in reversed(log_versions(table)) if v >= version]
    for entry in taken:  # the last one first: a stop in between leaves no gap
        _set_aside(place, table, name, log_name(entry))
    entries = "entry" if len(taken) == 1 else "entries"
    return f"{name}: log entry {version}: {problem}. Took away {len(taken)} log {entries}"


def _torn_file(table: Folder) -> tuple[int, str] | None:
    """The last log entry of a numbered table, when a file that it adds cannot be read."""
    version = log_versions(table)[-1]
    if version <= last_checkpoint(table):
        return None
    for line in table.read(log_name(version)).splitlines():
        if add := json.loads(line).get("add"):
            try:
                with table.open(add["path"]) as file:
                    pq.read_table(file, page_checksum_verification=True)
            except StorageError:
                raise
            except (pa.ArrowException, OSError) as error:
                return version, f"its file {add['path']} cannot be read ({error})"
    return None


def _checkpoints(place: Folder, table: Folder, name: str) -> list[str]:
    """Take away log checkpoints that cannot be read: the log itself says the same."""
    done: list[str] = []
    while True:
        try:
            last_checkpoint(table)
            found = deltalake.DeltaTable(table.path(), storage_options=table.library_options)
            found.transaction_version(APP)  # opening reads no transactions
        except (DamagedTable, DeltaError, OSError) as error:
            if explained := table.error_of("read", LOG, error):
                raise explained from error
            files = checkpoint_files(table)
            pointer = f"{LOG}/_last_checkpoint"
            if table.size(pointer) is not None:
                _set_aside(place, table, name, pointer)
            elif files:
                _set_aside(place, table, name, files[-1])
            else:
                return done
            done.append(f"{name}: took away a log checkpoint that could not be used ({error})")
        else:
            return done


def _may_shorten(place: Folder, journal: Folder, version: int) -> None:
    """Raise unless no table knows of what a journal that ends before `version` does not."""
    if version == 0:
        raise DamagedTable(f"the journal at {journal.path()} has no readable entry: restore it")
    table = Table(journal, JOURNAL, create=False, fsync=False, version=version - 1)
    snapshots = Snapshots(place.child(JOURNAL_SNAPSHOTS), JournalSnapshot)
    left = Journal(table, snapshots, Archive(place.child(ARCHIVE)))
    last = left.last_epoch()
    for name in DATA_TABLES:
        data = place.child(name)
        if not is_table(data):
            continue
        handle = deltalake.DeltaTable(data.path(), storage_options=data.library_options)
        applied = handle.transaction_version(APP)
        if applied is not None and applied > last:
            raise DamagedTable(
                f"log entry {version} of the journal is torn, and the table {name!r} already "
                f"holds epoch {applied} (warehouse.fsync was off when power was lost): "
                "restore the journal from a backup, or begin a new warehouse"
            )
    sessions = Sessions(Table(place.child("sessions"), SESSIONS, create=False, fsync=False))
    state, entries = left.read_on()
    epochs = [entry for entry in entries if isinstance(entry, Epoch)]
    sealed = {entry.sealed.session for entry in epochs if entry.sealed}
    known = set() if state is None else state.sealed.keys()
    if lost := {event.session for event in sessions.read()} - known - sealed:
        raise DamagedTable(
            f"log entry {version} of the journal is torn, and the sessions {sorted(lost)} are "
            "sealed by what it held (warehouse.fsync was off when power was lost): "
            "restore the journal from a backup, or begin a new warehouse"
        )


def _reader(table: Folder) -> Callable[[int], bytes]:
    return lambda version: table.read(log_name(version))


def _set_aside(place: Folder, table: Folder, name: str, file: str) -> None:
    """Move a file of a table's log into the warehouse's folder of damaged files."""
    kept = place.child(DAMAGED)
    copy = f"{name}-{file.rsplit('/', 1)[-1]}-{uuid.uuid4().hex[:8]}"
    kept.write_new(copy, table.read(file))
    kept.sync([copy])
    table.delete(file)
    table.sync([LOG])
