"""Quarantine: looking at rows that broke their contract, and sending mended ones again.

`list --json` prints one JSON object a row with the raw value as text (`value`), or as base64
(`value_base64`) where it is no UTF-8. Mend the values in that file and `replay` it: each row is
produced to its topic as a new message and, decoded rightly this time, joins the open session.
The quarantined original stays where it is: the record of what was received.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape
from rich.table import Table as RichTable

from jobs.kafka.options import python_options
from jobs.tables import Warehouse
from schemas.settings import Settings


class ReplayRefused(ValueError):
    """The file of mended rows cannot be sent; the message names the line. Nothing was sent."""


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


def read_mended(path: Path) -> list[tuple[str, bytes]]:
    """(topic, value) of every line. Raises `ReplayRefused` naming the first wrong line."""
    rows: list[tuple[str, bytes]] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayRefused(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            topic = row["topic"]
            value = (
                row["value"].encode()
                if "value" in row
                else base64.b64decode(row["value_base64"], validate=True)
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReplayRefused(
                f"{path}, line {number}: expected a JSON object with topic and value (text) or "
                f"value_base64, as `spillway quarantine list --json` prints it: {error!r}. "
                "Nothing was sent."
            ) from error
        rows.append((topic, value))
    return rows


def replay_rows(settings: Settings, path: Path) -> int:
    """Send mended rows to their topics; the number sent. All lines are checked before any goes."""
    from kafka import KafkaProducer

    rows = read_mended(path)
    producer = KafkaProducer(
        bootstrap_servers=settings.kafka.bootstrap_servers.split(","),
        enable_idempotence=True,
        max_request_size=16 << 20,
        **python_options(settings.kafka.options, "producer"),
    )
    try:
        sent = [producer.send(topic, value) for topic, value in rows]
        producer.flush()
        for future in sent:
            future.get(timeout=30)
    finally:
        producer.close()
    return len(sent)
