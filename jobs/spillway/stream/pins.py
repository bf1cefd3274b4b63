"""A one-row-per-slot frame whose partition i prefers location i: what pins a slot to its host.

Placement is ours to decide, so the frame is built with explicit preferences: a `LogicalRDD` over
`SparkContext.makeRDD(rows with locations)`. Its constructor is internal to Spark; this module is
the only place that knows it, and has a test of its own.

The frame says that it is hash-partitioned by `slot`, so that a union with blocks repartitioned
by `slot` is partition-aligned. For that to be true, slot i must be represented by a value that
Spark's hash puts into partition i: its *salt*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from spillway.engine.wire.blocks import Block, to_batch

_SEED = 42
"""The seed of Spark's hash partitioning."""


def salts(spark: Any, slots: int) -> tuple[int, ...]:
    """For each slot an int that Spark's hash partitioning puts into the partition of its number."""
    murmur = _class(spark, "org.apache.spark.unsafe.hash.Murmur3_x86_32")(_SEED)
    return least_values(murmur.hashInt, slots)


def least_values(hash_of: Callable[[int], int], slots: int) -> tuple[int, ...]:
    """For each slot the least value from 0 on whose hash, modulo the slots, is its number."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < slots:
        found.setdefault(hash_of(value) % slots, value)
        value += 1
    return tuple(found[slot] for slot in range(slots))


def pinned(spark: Any, schema: Any, salt: Sequence[int], locations: Sequence[str]) -> Any:
    """A frame of `schema` (first column int, second string) with one `anchor` row per slot.

    `locations[i]` is a host name, `executor_<host>_<id>` for one executor, or empty for no
    preference.
    """
    gateway = spark.sparkContext._gateway
    output = spark.createDataFrame([], schema)._jdf.queryExecution().analyzed().output()
    to_seq = _class(spark, "org.apache.spark.api.python.PythonUtils").toSeq
    internal_row = _class(spark, "org.apache.spark.sql.catalyst.expressions.GenericInternalRow")
    anchor = _class(spark, "org.apache.spark.unsafe.types.UTF8String").fromString("anchor")
    of_two, any_object = _class(spark, "scala.Tuple2"), _class(spark, "java.lang.Object")
    rows = []
    for value, location in zip(salt, locations, strict=True):
        cells = gateway.new_array(any_object, output.size())
        cells[0], cells[1] = int(value), anchor
        rows.append(of_two(internal_row(cells), to_seq([location] if location else [])))
    row_class = _class(spark, "java.lang.Class").forName(
        "org.apache.spark.sql.catalyst.InternalRow"
    )
    tag = _class(spark, "scala.reflect.ClassTag").apply(row_class)
    rdd = spark.sparkContext._jsc.sc().makeRDD(to_seq(rows), tag)
    return _by_slot(spark, output, rdd, len(salt))


def shuffled(spark: Any, frame: Any, partitions: int) -> Any:
    """The rows of a frame of blocks, repartitioned by `slot`, as a frame that may be read often.

    All of its readers share one shuffle. Of a frame that a plan holds several times Spark's planner
    makes one only where it knows the parts for the same, which it does not with `pinned` below
    them, nor with conditions that it has moved to the other side of the shuffle.
    """
    planned = frame.repartition(partitions, "slot")._jdf.queryExecution()
    return _by_slot(spark, planned.analyzed().output(), planned.toRdd(), partitions)


def _by_slot(spark: Any, output: Any, rdd: Any, partitions: int) -> Any:
    """A frame over rows of Spark's own, which are partitioned by the first column."""
    from pyspark.sql import DataFrame

    to_seq = _class(spark, "org.apache.spark.api.python.PythonUtils").toSeq
    partitioning = _class(spark, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")(
        to_seq([output.apply(0)]), partitions
    )
    none = _class(spark, "scala.Option").empty()
    plan = _class(spark, "org.apache.spark.sql.execution.LogicalRDD")(
        output, rdd, partitioning, to_seq([]), False, none, spark._jsparkSession, none, none
    )
    of_rows = _class(spark, "org.apache.spark.sql.classic.Dataset").ofRows
    dataset = of_rows(spark._jsparkSession, plan)
    return DataFrame(dataset, spark)


def _class(spark: Any, name: str) -> Any:
    """A class of the JVM by its whole name. Written as a path, each part of it would be looked for
    as a class in every jar: that was a quarter of what the driver's JVM did for an epoch."""
    return getattr(spark.sparkContext._jvm, name)


def salted(salts: tuple[int, ...], blocks: Sequence[Block]) -> Any:
    """Blocks with each slot's number replaced by its salt, so that the shuffle finds it."""
    return to_batch(replace(block, slot=salts[block.slot]) for block in blocks)
