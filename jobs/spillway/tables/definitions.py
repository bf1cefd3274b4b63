"""The tables: columns and partitions of each. Pure (pyarrow only).

`results` and `spill` depend on the query: `spillway.engine.join.results.result_schema(spec)` and
`spillway.engine.spill.spillfile.spill_schema(spec)`. The others are fixed. Every table is on
Delta's plain protocol (reader 1, writer 2). The partition column `session_date` is a string
`YYYY-MM-DD` and is not stored in the Parquet files; `statistics` is not partitioned.

`journal`, `commands` and `sessions` are *numbered* tables: row n is committed with application
transaction (table's name, n), so that each number is taken exactly once and rows have an order.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spillway.engine.spill.spillfile import SPILL_COLUMNS
from spillway.engine.statistics import STATISTICS_SCHEMA
from spillway.engine.wire.quarantine import QUARANTINE_SCHEMA

TIMESTAMP = pa.timestamp("us", tz="UTC")
REMOVED_KNOWN_S = 2 * 24 * 3600
"""How long a table's log remembers that a file was removed, in seconds."""

SESSION_DATE = pa.field("session_date", pa.string(), nullable=False)


@dataclass(frozen=True)
class TableDefinition:
    """Name, columns (the partition columns among them) and partition columns of a table."""

    name: str
    schema: pa.Schema | None
    """None: whatever the existing table has (a reader knows no query)."""
    partition_by: tuple[str, ...] = ()

    @property
    def file_schema(self) -> pa.Schema:
        """Columns of the table's Parquet files: all but the partition columns."""
        if self.schema is None:
            raise ValueError(f"the columns of {self.name} are not known yet: open the table first")
        return pa.schema([f for f in self.schema if f.name not in self.partition_by])


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


JOURNAL = TableDefinition(
    "journal",
    pa.schema(
        [
            _required("n", pa.int64()),
            _required("kind", pa.string()),
            pa.field("epoch", pa.int64()),  # epochs only
            _required("term", pa.int64()),  # 0 for the genesis
            _required("written_at", TIMESTAMP),
            _required("entry", pa.string()),  # JSON, without files: spillway_schemas.journal.HEAD
            pa.field("files", pa.string()),  # JSON: spillway_schemas.journal.FILES; null: none
        ]
    ),
)

COMMANDS = TableDefinition(
    "commands",
    pa.schema(
        [
            _required("n", pa.int64()),
            _required("id", pa.string()),
            _required("kind", pa.string()),
            _required("session", pa.string()),
            _required("reason", pa.string()),
            _required("by", pa.string()),
            _required("written_at", TIMESTAMP),
            _required("command", pa.string()),  # JSON, spillway_schemas.commands.COMMAND
        ]
    ),
)

SESSIONS = TableDefinition(
    "sessions",
    pa.schema(
        [
            _required("n", pa.int64()),
            _required("session_date", pa.string()),
            _required("event", pa.string()),  # see events.SessionEvent
            pa.field("expected", pa.int64()),
            pa.field("run_time", pa.int64()),
            pa.field("cleanup", pa.int64()),
            pa.field("missing", pa.int64()),
            pa.field("doubled", pa.int64()),
            pa.field("complete", pa.bool_()),
            pa.field("generations", pa.int64()),
            pa.field("seconds", pa.float64()),
            _required("details", pa.string()),  # JSON object
            _required("written_at", TIMESTAMP),
        ]
    ),
)

QUARANTINE = TableDefinition(
    "quarantine", pa.schema([*QUARANTINE_SCHEMA, SESSION_DATE]), ("session_date",)
)
STATISTICS = TableDefinition("statistics", STATISTICS_SCHEMA)

CORRECTIONS = TableDefinition(
    "corrections",
    pa.schema(
        [
            _required("revision", pa.int64()),
            _required("topic", pa.string()),
            _required("partition", pa.int32()),  # the revision, below zero
            _required("offset", pa.int64()),
            _required("value", pa.binary()),
            _required("kafka_timestamp", TIMESTAMP),
            _required("source", pa.string()),
            _required("reason", pa.string()),
            _required("by", pa.string()),
            _required("digest", pa.string()),
            pa.field("read_to", pa.string()),  # JSON, spillway_schemas.corrections.TopicPlace
            SESSION_DATE,
        ]
    ),
    ("session_date",),
)

NUMBERED = (JOURNAL, COMMANDS, SESSIONS)
NUMBERED_NAMES = frozenset(table.name for table in NUMBERED)
OF_QUERY = ("results", "spill")
"""Tables whose columns are the query's."""
ON_DEMAND = frozenset({CORRECTIONS.name})
"""Tables that their first writer makes: most warehouses never have them."""
DATA_TABLES = ("spill", "results", "quarantine", "statistics")
"""Tables whose files the journal names."""


def definitions(
    results: pa.Schema | None, spill: pa.Schema | None = SPILL_COLUMNS
) -> dict[str, TableDefinition]:
    """Every table of a warehouse, by name.

    `results` is that table's schema, `spill` that of its files; None: as it is.
    """
    spilled = None if spill is None else pa.schema([*spill, SESSION_DATE])
    tables = (
        *NUMBERED,
        TableDefinition("spill", spilled, ("session_date",)),
        QUARANTINE,
        STATISTICS,
        CORRECTIONS,
        TableDefinition("results", results, ("session_date",)),
    )
    return {table.name: table for table in tables}
