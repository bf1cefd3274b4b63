"""What a correction adds to a day of a tree of joins, by Spark SQL. Imports Spark.

What a lower join gave is in no table, so results are made from the leaves' rows again, and only
those that have a new row: turn by turn (`spillway.corrections.leaves`). A turn goes from its leaf
outwards, along the values that leaves share (`spillway.decode.values`). Of each next leaf only rows
are kept that have the values of what was found so far, so what is held is as large as what the
correction reaches, not as the day.

Cost: one reading of each leaf's topic in each turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql

from spillway.cleanup.deferred import frame_schema
from spillway.corrections.leaves import Met, TreeLeaves, turns
from spillway.corrections.task import ADDED_SCHEMA, AdditionTask, PartAdded, add_results
from spillway.decode import StreamPlan
from spillway.decode.chunks import COLUMNS
from spillway.decode.values import LeafValues, outwards
from spillway.sealed_input.decoding import TopicRanges
from spillway.sealed_input.frames import by_value, corrected_rows, decoded_rows
from spillway.sealed_input.times import in_time


def tree_parts_added(
    spark: Any, tree: TreeLeaves, source: TopicRanges, new: pa.Table, task: AdditionTask
) -> list[PartAdded]:
    """What new rows (`rows.ROWS`) add to a session of a tree, written or counted by Spark's tasks.

    `source`: its input, with the rows of the revisions before.
    """
    rows = new.select(COLUMNS)
    added = {
        n: frame
        for n, plan in enumerate(tree.plans)
        if (frame := corrected_rows(spark, plan, source.timing, rows)) is not None
    }
    parts = 2 * spark.sparkContext.defaultParallelism
    write = partial(add_results, task)
    found: list[PartAdded] = []
    for own, met in turns(added.keys(), len(tree.plans)):
        joined = _joined(tree, source, spark, own, met, added)
        results = _shown(joined, tree, task.spec.result_schema).coalesce(parts)
        written = results.mapInArrow(write, frame_schema(ADDED_SCHEMA)).collect()
        found += [PartAdded.model_validate_json(row.added) for row in written]
    return found


def _joined(
    tree: TreeLeaves,
    source: TopicRanges,
    spark: Any,
    own: int,
    met: Sequence[Met],
    added: Mapping[int, Any],
) -> Any:
    """The combinations of one turn: values `v<value>`, and the columns of `_leaf`."""

    def rows_of(n: int) -> Any:
        if met[n] is Met.NEW:
            return added[n]
        old = decoded_rows(spark, tree.plans[n], source)
        return old if met[n] is Met.OLD else old.unionAll(added[n])

    joined, seen = None, set[int]()
    waiting = list(tree.windows)
    for n in outwards(tree.values, own):
        rows = _leaf(n, tree.values.leaves[n], tree.plans[n], rows_of(n))
        if joined is None:
            joined = rows
        else:
            on = [name for name in rows.columns if name in joined.columns]
            few = sql.broadcast(joined.select(*on).distinct())
            joined = joined.join(rows.join(few, on, "left_semi"), on)
        seen.add(n)
        for window in list(waiting):
            span, inputs = window
            if seen.issuperset(chain.from_iterable(inputs)):
                waiting.remove(window)
                joined = joined.where(in_time(span, inputs))
        joined = joined.localCheckpoint()  # it is read twice: what has to match, and what does
    return joined


def _leaf(n: int, leaf: LeafValues, plan: StreamPlan, rows: Any) -> Any:
    """Rows of a leaf that can join: its values as `v<value>`; `k<n>_<source>`, `p<n>_<field>`,
    `partition<n>`, `offset<n>` and, where the plan has a time, `time<n>`."""
    rows, values = by_value(leaf, rows.where("kept"))
    return rows.select(
        *(column.alias(name) for name, column in values),
        *(sql.col(f"k{k}").alias(f"k{n}_{k}") for k in range(len(leaf.sources))),
        *(sql.col(f"p{p}").alias(f"p{n}_{p}") for p in range(len(leaf.fields))),
        sql.col("partition").alias(f"partition{n}"),
        sql.col("offset").alias(f"offset{n}"),
        *([sql.col("time_us").alias(f"time{n}")] if plan.time is not None else []),
    )


def _shown(joined: Any, tree: TreeLeaves, schema: pa.Schema) -> Any:
    """The columns that results show, by their names in the table."""
    found: dict[str, str] = {}
    for n, leaf in enumerate(tree.values.leaves):
        for name, source in leaf.shown:
            found.setdefault(name, f"k{n}_{source}")
        found |= {f"{leaf.name}_{field}": f"p{n}_{p}" for p, field in enumerate(leaf.fields)}
        found |= {f"{leaf.name}_{place}": f"{place}{n}" for place in ("partition", "offset")}
    return joined.select(*(sql.col(found[name]).alias(name) for name in schema.names))
