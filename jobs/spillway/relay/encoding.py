"""Rows of `results` as Kafka records: JSON values, keyed by what the query joins on. Pure.

A value is an object with every column of the table, null included. Times are RFC 3339 in UTC with
six digits, decimals are text (a reader's double would round them). A record's key is that of the
row: where the query joins on one text its bytes, so that a producer's partitioner puts input and
result into partitions of one number; else the value's object of the key columns alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

TIME = "%Y-%m-%dT%H:%M:%S%.6fZ"


def records(rows: pa.Table, keys: Sequence[str]) -> tuple[Any, Any]:
    """Keys and values of the rows: Arrow large strings (n,), (n,). `keys`: names of columns."""
    frame = pl.DataFrame(pl.from_arrow(rows))
    times = pl.selectors.datetime()
    frame = frame.with_columns(times.dt.convert_time_zone("UTC").dt.strftime(TIME))
    values = frame.select(pl.struct(pl.all()).struct.json_encode()).to_series()
    if len(keys) == 1 and pa.types.is_string(rows.schema.field(keys[0]).type):
        named = frame[keys[0]]
    else:
        named = frame.select(pl.struct(*keys).struct.json_encode()).to_series()
    return named.to_arrow(), values.to_arrow()
