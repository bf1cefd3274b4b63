"""Quarantine: looking at rows that broke their contract.

`list --json` prints one JSON object a row with the raw value as text (`value`), or as base64
(`value_base64`) where it is no UTF-8. Mend the values in that file and `replay` it
(`jobs.mended`): each row is produced to its topic as a new message and, decoded rightly this time,
joins the open session. The quarantined original stays where it is: the record of what was received.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape
from rich.table import Table as RichTable

from jobs.tables import Warehouse


def list_rows(warehouse: Warehouse, session: str | None, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` quarantined rows (of one session), newest first."""
    files = warehouse.files("quarantine")
    if session is not None:
        files = [f for f in files if f.partition["session_date"] == session]
    place = warehouse.folder("quarantine")
    found: list[dict[str, Any]] = []
    for file in sorted(files, key=lambda f: f.path, reverse=True):
        part = pq.read_table(pa.BufferReader(place.read(file.path)))
        part = part.sort_by([("epoch", "descending"), ("offset", "descending")])
        found += [_row(row, file.partition["session_date"]) for row in part.to_pylist()]
    found.sort(key=lambda row: (row["epoch"], row["kafka_timestamp"]), reverse=True)
    return found[:limit]


def _row(row: dict[str, Any], session: str) -> dict[str, Any]:
    shown = {
        "session_date": session,
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "reason": row["reason"],
        "epoch": row["epoch"],
        "kafka_timestamp": row["kafka_timestamp"].isoformat(),
    }
    value: bytes | None = row["value"]
    if value is None:
        return {**shown, "value": None}
    try:
        return {**shown, "value": value.decode()}
    except UnicodeDecodeError:
        return {**shown, "value_base64": base64.b64encode(value).decode()}


def table(rows: list[dict[str, Any]]) -> RichTable:
    """The rows for people; values cut short."""
    shown = RichTable("session", "topic", "partition", "offset", "reason", "value", box=None)
    for row in rows:
        value = row.get("value", row.get("value_base64"))
        text = "(no value)" if value is None else value if len(value) <= 60 else value[:57] + "..."
        shown.add_row(
            row["session_date"],
            escape(row["topic"]),
            str(row["partition"]),
            str(row["offset"]),
            escape(row["reason"]),
            escape(text.encode("unicode_escape").decode()),
        )
    return shown
