"""Delta tables, by delta-rs: the journal first, then the tables that it names.

Every commit to every table of a warehouse is made here (Spark only reads them).

| module | idea |
|---|---|
| `definitions` | columns and partitions of each table |
| `errors` | what can go wrong, and what each error means for whoever meets it |
| `log` | one table: the only place that commits; conflicts, unknown outcomes, fsync |
| `columns` | what a table's columns become when its query changes |
| `numbered`, `journal`, `events` | numbered tables: `journal`, `commands`, `sessions` |
| `snapshots` | what the journal's entries add up to: a cache |
| `rowgroups` | one row group of a numbered file at a time |
| `archive` | the journal's old entries, one file a session |
| `warehouse` | all tables: apply, cleanup's commits, upkeep |
| `compaction` | few files instead of many; the only place that takes files out of a table |
| `retention` | which days' spilled rows and statistics are kept no longer |
| `garbage` | which files may be deleted |
| `statekey` | the key for the digests of state files |
| `damage`, `repair` | torn logs after a loss of power |

Importing this package imports deltalake, which does not survive a `fork`: spawn.
"""

from spillway.tables.definitions import DATA_TABLES, TableDefinition, definitions
from spillway.tables.errors import (
    DamagedArchive,
    DamagedTable,
    FileMismatch,
    JournalConflict,
    NothingYet,
    NoWarehouse,
    OutcomeUnknown,
    TableConflict,
    TableReplaced,
    WarehouseError,
    WrongTable,
)
from spillway.tables.events import NumberedCommand, SessionEvent
from spillway.tables.journal import Journal
from spillway.tables.log import ActiveFile
from spillway.tables.snapshots import Snapshots
from spillway.tables.warehouse import KeptCorrections, Warehouse, exists, opened

__all__ = [
    "DATA_TABLES",
    "ActiveFile",
    "DamagedArchive",
    "DamagedTable",
    "FileMismatch",
    "Journal",
    "JournalConflict",
    "KeptCorrections",
    "NoWarehouse",
    "NothingYet",
    "NumberedCommand",
    "OutcomeUnknown",
    "SessionEvent",
    "Snapshots",
    "TableConflict",
    "TableDefinition",
    "TableReplaced",
    "Warehouse",
    "WarehouseError",
    "WrongTable",
    "definitions",
    "exists",
    "opened",
]
