"""Quarantine: looking at rows that broke their contract.

`list --json` prints one JSON object a row with the raw value as text (`value`), or as base64
(`value_base64`) where it is no UTF-8. Mend the values in that file and `replay` it
(`spillway.mended`): each row is produced to its topic as a new message and, decoded rightly this
time, joins the open session. The quarantined original stays where it is: the record of what was
received.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from rich.markup import escape
from rich.table import Table as RichTable

from spillway.storage import Folder
from spillway.tables import ActiveFile, Warehouse

I64 = npt.NDArray[np.int64]

READ_ROWS = 1_024
"""Rows whose values are in memory at the same time."""


def list_rows(warehouse: Warehouse, session: str | None, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` quarantined rows (of one session), newest first.

    Values may be large and rows may be many, so they are chosen by their numbers, and of the
    files that may have one of them: values are read of chosen rows only.
    """
    files = sorted(warehouse.files("quarantine", session), key=lambda file: file.path)
    place = warehouse.folder("quarantine")
    chosen = _newest(place, files, limit)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for at in np.unique(chosen[:, _FILE]).tolist():
        wanted = np.sort(chosen[chosen[:, _FILE] == at, _ROW])
        day = files[at].partition["session_date"]
        for row, found in zip(wanted.tolist(), _rows(place, files[at].path, wanted), strict=True):
            rows[at, row] = _row(found, day)
    return [rows[at, row] for at, row in chosen[:, (_FILE, _ROW)].tolist()]


_ROW, _OFFSET, _FILE, _TIME, _EPOCH = range(5)
"""Columns of rows that are being chosen; the last one counts most."""


def _newest(place: Folder, files: Sequence[ActiveFile], limit: int) -> I64:
    """The newest rows, newest first (n, 5)."""
    held = np.zeros((0, 5), np.int64)
    for at in sorted(range(len(files)), key=lambda at: _last_epoch(files[at]), reverse=True):
        if len(held) == limit and _last_epoch(files[at]) < held[-1, _EPOCH]:
            break
        with place.open(files[at].path) as source:
            names = ["offset", "kafka_timestamp", "epoch"]
            part = pq.ParquetFile(source).read(columns=names, use_threads=False)
        # As numbers: a record's time is its producer's, and may be of the year 290,000.
        offset, time, epoch = (c.cast(pa.int64()).to_numpy() for c in part.select(names).columns)
        row = np.arange(part.num_rows)
        fresh = np.stack([row, offset, np.full_like(row, at), time, epoch], axis=1)
        held = np.concatenate([held, fresh])
        held = held[np.lexsort(held.T)[::-1][:limit]]
    return held


def _last_epoch(file: ActiveFile) -> float:
    return math.inf if file.greatest is None else file.greatest


def _rows(place: Folder, path: str, wanted: I64) -> Iterator[dict[str, Any]]:
    """Rows of one file by their places (n,), ascending."""
    with place.open(path) as source:
        file = pq.ParquetFile(source)
        begin = 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if ((wanted >= begin) & (wanted < end)).any():
                for batch in file.iter_batches(READ_ROWS, row_groups=[group], use_threads=False):
                    here = wanted[(wanted >= begin) & (wanted < begin + batch.num_rows)]
                    picked = batch.take(pa.array(here - begin))
                    at = picked.schema.get_field_index("kafka_timestamp")
                    time = picked.column(at).cast(pa.int64())
                    yield from (
                        picked.set_column(at, "kafka_timestamp", time)
                        .drop_columns(["written_at"])
                        .to_pylist()
                    )
                    begin += batch.num_rows
            begin = end


def _row(row: dict[str, Any], session: str) -> dict[str, Any]:
    shown = {
        "session_date": session,
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "reason": row["reason"],
        "epoch": row["epoch"],
        "kafka_timestamp": _time(row["kafka_timestamp"]),
    }
    value: bytes | None = row["value"]
    if value is None:
        return {**shown, "value": None}
    try:
        return {**shown, "value": value.decode()}
    except UnicodeDecodeError:
        return {**shown, "value_base64": base64.b64encode(value).decode()}


def _time(micros: int) -> str:
    """ISO 8601, also of years that Python's datetime does not have."""
    return f"{np.datetime64(micros, 'us')}".removesuffix(".000000") + "+00:00"


def table(rows: list[dict[str, Any]]) -> RichTable:
    """The rows for people; values cut short."""
    shown = RichTable("session", "topic", "partition", "offset", "reason", "value", box=None)
    for row in rows:
        value = row.get("value")
        if "value_base64" in row:  # beside others that are text it would pass for one
            value = f"base64: {row['value_base64']}"
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
