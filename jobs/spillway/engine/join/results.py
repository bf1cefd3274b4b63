"""The `results` table: the one place that makes its schema and completes the join's rows."""

from __future__ import annotations

import pyarrow as pa

from spillway.engine.join.tree import TreeSpec

PHASES = ("run-time", "cleanup", "correction")
SESSION_DATE = pa.field("session_date", pa.string(), nullable=False)
_TAIL = (
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("phase", pa.string(), nullable=False),
    pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
)


def file_schema(spec: TreeSpec) -> pa.Schema:
    """Columns of a results file: the table's without the partition column `session_date`."""
    return pa.schema([*spec.result_schema, *_TAIL])


def result_schema(spec: TreeSpec) -> pa.Schema:
    """Columns of the `results` table (partitioned by `session_date`)."""
    return pa.schema([*spec.result_schema, SESSION_DATE, *_TAIL])


def complete(joined: pa.Table, *, epoch: int, phase: str, committed_us: int) -> pa.Table:
    """Add epoch, phase and commit time (us since 1970) to the join's rows (`file_schema`)."""
    if phase not in PHASES:
        raise ValueError(f"phase must be one of {PHASES}, got {phase!r}")
    values = (epoch, phase, committed_us)
    for field, value in zip(_TAIL, values, strict=True):
        column = pa.repeat(pa.scalar(value, field.type), joined.num_rows)
        joined = joined.append_column(field, column)
    return joined
