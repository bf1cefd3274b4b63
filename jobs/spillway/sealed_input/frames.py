"""Input of a sealed session as Spark frames of decoded rows (`decoding.decoded_schema`).

A row that was rejected has a coordinate only: its key is null, which no join key is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.decode import StreamPlan
from spillway.decode.chunks import chunks_of
from spillway.decode.values import LeafValues
from spillway.sealed_input.decoding import TopicRanges, decoded, decoded_schema
from spillway.sealed_input.timing import Timing
from spillway.stream.messages import ranges_of, whole_frame


def decoded_rows(spark: Any, plan: StreamPlan, source: TopicRanges) -> Any:
    """All rows of one input as they were decoded: `decoding.decoded_schema`."""
    schema = decoded_schema(plan)
    topic = {plan.topic: source.end[plan.topic]}
    rows = whole_frame(
        spark,
        source.messages,
        ranges_of({plan.topic: source.start[plan.topic]}, topic),
        partial(decoded, plan, schema, source.timing),
        from_arrow_schema(schema),
    )
    if source.corrections is None:
        return rows
    added = corrected_rows(spark, plan, source.timing, source.corrections)
    return rows if added is None else rows.unionAll(added)


def corrected_rows(
    spark: Any, plan: StreamPlan, timing: Timing | None, corrections: pa.Table
) -> Any | None:
    """The same of rows of corrections (`decode.chunks.COLUMNS`); None: the input has none."""
    schema = decoded_schema(plan)
    mine = corrections.filter(pc.field("topic") == plan.topic)
    # Spark takes an empty batch for the end of all; these have rows.
    batches = list(decoded(plan, schema, timing, chunks_of(mine)))
    if not batches:
        return None
    return spark.createDataFrame(pa.Table.from_batches(batches, schema), from_arrow_schema(schema))


def by_value(leaf: LeafValues, rows: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Those rows of a leaf in which all sources of a value are equal; and its values, by their
    names `v<value>` and as columns of the rows."""
    first = {value: leaf.values.index(value) for value in leaf.has}
    for source, value in enumerate(leaf.values):
        if first[value] != source:
            rows = rows.where(sql.col(f"k{first[value]}") == sql.col(f"k{source}"))
    return rows, [(f"v{value}", sql.col(f"k{source}")) for value, source in first.items()]
