"""Rows of the `quarantine` table: rejected input with where it came from and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spillway_schemas.messages import MOST_MS

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("written_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""Columns of a quarantine file; the table adds its partition column `session_date`."""


def quarantine_tables(
    rejected: Sequence[pa.Table], *, epoch: int, written_at_us: int
) -> Iterator[pa.Table]:
    """Rejected rows (`blocks.REJECTED_SCHEMA`) as rows of the table."""
    for table in rejected:
        n = table.num_rows
        stamp = pa.timestamp("us", tz="UTC")
        # Producers set any date: one beyond what microseconds can say becomes their first or last.
        ms = pc.min_element_wise(pc.max_element_wise(table.column(5), -MOST_MS), MOST_MS)
        kafka = ms.cast(pa.timestamp("ms", tz="UTC")).cast(stamp)
        columns = [
            *table.columns[:5],
            kafka,
            pa.repeat(pa.scalar(epoch, pa.int64()), n),
            pa.repeat(pa.scalar(written_at_us, stamp), n),
        ]
        yield pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)
