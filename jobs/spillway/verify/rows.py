"""Input rows from Kafka and results from the table, as keys and hashes. Spark frames.

Every frame has the columns `k0, k1, ...`: the join key, as it is, so that keys are compared
exactly. Input rows that were rejected when they were decoded, and rows of `quarantine`, have a null
key, which no join key is: they meet in one group of their own.

The proof of one join without a window reads and sums without Spark (`single`); these frames name
its differences. Where frames are summed, the hash of an input row is Spark's `xxhash64`
(the engine has one of its own) of the salt, the input's number, the coordinate, the payload columns
that results carry, and which of them are null (`xxhash64` passes over nulls).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.decode import StreamPlan
from spillway.sealed_input.decoding import TIMED, TopicRanges, key_names
from spillway.sealed_input.frames import decoded_rows
from spillway.verify.arithmetic import PRIMES
from spillway.verify.tasks import TableFiles, file_rows

# --- rows with their coordinates and hashes --------------------------------------------------


def input_rows(
    spark: Any,
    plan: StreamPlan,
    source: TopicRanges,
    salt: int,
    hashed: Sequence[str] | None = None,
) -> Any:
    """All rows of one input: key, `partition`, `offset`, `hash`, `kept` (false: rejected), and
    `TIMED` where the plan has a time.

    `hashed`: columns that the hash is of, beside the coordinate; by default those of the payload,
    `p0`, `p1`, ...
    """
    return hashed_rows(decoded_rows(spark, plan, source), plan, salt, hashed)


def hashed_rows(rows: Any, plan: StreamPlan, salt: int, hashed: Sequence[str] | None = None) -> Any:
    """Decoded rows with the hash of their coordinates and payload in place of the payload."""
    if hashed is None:
        hashed = [f"p{i}" for i in range(len(plan.payload))]
    digest = row_hash(salt, plan.index, "partition", "offset", hashed)
    times = TIMED.names if plan.time is not None else []
    return rows.select(
        *key_names(plan), "partition", "offset", digest.alias("hash"), sql.col("kept"), *times
    )


def result_rows(spark: Any, plans: Sequence[StreamPlan], files: TableFiles, salt: int) -> Any:
    """All results of the session: key, `partition<i>`, `offset<i>`, `hash<i>`, `phase`."""
    return result_columns(table_rows(spark, files), plans, salt)


def result_columns(table: Any, plans: Sequence[StreamPlan], salt: int) -> Any:
    """Rows of the results table as the proof sees them."""
    columns = [
        sql.col(f"`{field.name}`").alias(name)
        for name, field in zip(key_names(plans[0]), plans[0].keys, strict=True)
    ]
    for plan in plans:
        payload = [f"{plan.name}_{field.name}" for field in plan.payload]
        columns += identity_columns(plan.index, plan.name, payload, salt)
    return table.select(*columns, "phase")


def identity_columns(input_: int, name: str, payload: Sequence[str], salt: int) -> list[Any]:
    """`partition<i>`, `offset<i>`, `hash<i>` of one input of the results."""
    at = (f"{name}_partition", f"{name}_offset")
    return [
        sql.col(f"`{at[0]}`").alias(f"partition{input_}"),
        sql.col(f"`{at[1]}`").alias(f"offset{input_}"),
        row_hash(salt, input_, *at, payload).alias(f"hash{input_}"),
    ]


def quarantined_rows(spark: Any, files: TableFiles) -> Any:
    """The quarantine's rows of the session: `topic`, `partition`, `offset`."""
    return table_rows(spark, files).select("topic", "partition", "offset")


def table_rows(spark: Any, files: TableFiles) -> Any:
    """Rows of files of a table, none where there are no files.

    Spark reads local files itself. Those of an object store, for which its JVM would need a client
    and credentials of its own, are read by its Python workers.
    """
    frame = from_arrow_schema(files.nullable)
    if not files.paths:
        return spark.createDataFrame([], frame)
    if files.place.library_options is None:
        reader = spark.read.schema(frame).option("parquet.page.verify-checksum.enabled", "true")
        return reader.parquet(*map(files.place.path, files.paths))
    parts = min(len(files.paths), 2 * spark.sparkContext.defaultParallelism)
    read = partial(file_rows, files, parts)
    return spark.range(0, parts, 1, parts).mapInArrow(read, frame)


# --- the same as measures --------------------------------------------------------------------


def result_weights(inputs: int) -> dict[str, Any]:
    """`a`, `b`: the product of the hashes of a result's rows modulo each prime."""
    weights = {}
    for name, prime in zip(("a", "b"), PRIMES, strict=True):
        product = sql.pmod(sql.col("hash0"), sql.lit(prime))
        for i in range(1, inputs):
            product = product * sql.pmod(sql.col(f"hash{i}"), sql.lit(prime)) % sql.lit(prime)
        weights[name] = product
    return weights


def row_hash(salt: int, input_: int, partition: str, offset: str, payload: Sequence[str]) -> Any:
    """The hash of a row of one input: of these columns, and of which of the payload are null."""
    columns = [sql.col(f"`{name}`") for name in (partition, offset, *payload)]
    nulls = [sql.col(f"`{name}`").isNull() for name in payload]
    return sql.xxhash64(sql.lit(salt), sql.lit(input_), *columns, *nulls)


def absent_hash(salt: int, plan: StreamPlan) -> Any:
    """The hash of a row that a result lacks: as `row_hash` has it where all is null."""
    nulls = [sql.lit(True) for _ in plan.payload]
    return sql.xxhash64(sql.lit(salt), sql.lit(plan.index), *nulls)


def place_hash(salt: int, topic: Any) -> Any:
    """The hash of a coordinate, for rows that were rejected."""
    return sql.xxhash64(sql.lit(salt), topic, sql.col("partition"), sql.col("offset"))
