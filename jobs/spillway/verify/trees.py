"""A query of several joins as frames: what `proof` asks of it.

Each leaf's rows are decoded once, with all the sources that it gives to keys anywhere in the tree,
and summed by them (`leaf_sums`). Those sums are kept, in memory or on disk: the fold (`fold`) reads
those of rows that count, the quarantine is held against those of rows that were rejected. What the
fold gives for a key of the root meets the results of that key as in a single join.

A stream that several leaves read is decoded for each, with one verdict for all: what it rejects
counts once.

Windows break this: a result has the times of all its rows, and a sum over rows has lost
them. Then the results that there should be are made by a batch join, and summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.decode import StreamPlan
from spillway.decode.values import LeafValues, LeafWindow, TreeValues, outwards
from spillway.sealed_input.decoding import TopicRanges, key_names
from spillway.sealed_input.frames import by_value
from spillway.sealed_input.times import in_time, is_own
from spillway.verify.arithmetic import PRIMES
from spillway.verify.difference import JoinSide, difference, joined_rows
from spillway.verify.fold import fold_of, fold_sql
from spillway.verify.progress import tasks_of
from spillway.verify.rows import (
    identity_columns,
    input_rows,
    place_hash,
    result_weights,
    table_rows,
)
from spillway.verify.tasks import TableFiles
from spillway.verify.verdicts import TOTALS, Difference, JudgedKeys
from spillway.verify.workers import FOLDED, collected, judged_tree


def leaf_rows(
    spark: Any, plan: StreamPlan, leaf: LeafValues, source: TopicRanges, salt: int
) -> Any:
    """All rows of a leaf: its sources `k0`, ..., then as in `rows.input_rows`."""
    return input_rows(spark, plan, source, salt, leaf.hashed_rows)


def tree_results(spark: Any, values: TreeValues, files: TableFiles, salt: int) -> Any:
    """All results of the session: the root's key as `v<value>`, then as in `rows.result_rows`."""
    return tree_result_columns(table_rows(spark, files), values, salt)


def tree_result_columns(table: Any, values: TreeValues, salt: int) -> Any:
    """Rows of the results table as the proof sees them."""
    columns = [sql.col(f"`{name}`").alias(f"v{value}") for name, value in values.root]
    for i, leaf in enumerate(values.leaves):
        columns += identity_columns(i, leaf.name, leaf.hashed_results, salt)
    return table.select(*columns, "phase")


class TreeFrames:
    """The frames of a tree of joins."""

    def __init__(
        self,
        spark: Any,
        values: TreeValues,
        plans: Sequence[StreamPlan],
        leaves: Sequence[Any],
        results: Any,
        quarantine: Any,
        salt: int,
        windows: Sequence[LeafWindow] = (),
    ) -> None:
        """`plans`, `leaves` (frames of `leaf_rows`): one for each leaf, in the query's order.
        `results`: of `tree_results`. `quarantine`: of `rows.quarantined_rows`. `windows`: of
        `values.windows_of`."""
        self._windows = windows
        self._spark = spark
        self._values = values
        self._fold = fold_of(values)
        self._plans = plans
        self._leaves = leaves
        self._results = results
        self._quarantine = quarantine
        self._salt = salt
        self._keys = [f"v{value}" for value in values.by]
        self._sums: list[Any] = []

    @property
    def joined(self) -> tuple[tuple[str, str], ...]:
        """Leaves whose keys had to be combined."""
        return () if self._windows else self._fold.joined

    def judged(self) -> JudgedKeys:
        """Totals, and the keys that fail."""
        return collected(self.judging().toArrow())

    def judging(self) -> Any:
        """The same as a frame, of the rows of `workers.judged_tree`."""
        # Two branches read them. A plan that is cached by `persist` is not found again behind the
        # views of a statement, and would be made, and its input decoded, twice.
        self._sums = [
            leaf_sums(rows, plan).localCheckpoint(eager=False)
            for rows, plan in zip(self._leaves, self._plans, strict=True)
        ]
        schema = pa.schema([*self._key_fields(), *TOTALS])
        frames = [self._folded(), self._found(), *self._rejected()]
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionAll(frame)
        summed = union.groupBy(*self._keys).agg(*(sql.sum(c).alias(c) for c in FOLDED))
        return summed.mapInArrow(
            partial(judged_tree, len(self._keys), schema), from_arrow_schema(schema)
        )

    def _key_fields(self) -> list[pa.Field]:
        """The root's key as each row has it: null for rejected rows."""
        type_of = {
            value: field.type
            for leaf, plan in zip(self._values.leaves, self._plans, strict=True)
            for value, field in zip(leaf.values, plan.keys, strict=True)
        }
        return [pa.field(f"v{value}", type_of[value]) for value in self._values.by]

    def _folded(self) -> Any:
        if self._windows:
            return self._summed()
        tables = {f"leaf{i}": frame for i, frame in enumerate(self._sums)}
        text = fold_sql(self._fold, [f"{{{name}}}" for name in tables])
        return self._measured(self._spark.sql(text, **tables), {c: c for c in "cdfab"})

    def _summed(self) -> Any:
        """What there should be by each key, where windows keep sums from being multiplied: the
        results are made, and counted."""
        weights = result_weights(len(self._leaves))
        summed = (
            self._expected(None)
            .select(*self._keys, *(column.alias(name) for name, column in weights.items()))
            .groupBy(*self._keys)
            .agg(sql.count(sql.lit(1)).alias("n"), sql.sum("a").alias("a"), sql.sum("b").alias("b"))
        )
        first, second = (sql.lit(prime) for prime in PRIMES)
        n = sql.col("n")
        return self._measured(
            summed,
            {
                "c": n % first,
                "d": n % second,
                "f": n,
                "a": sql.col("a") % first,
                "b": sql.col("b") % second,
            },
        )

    def _expected(self, only: Any | None) -> Any:
        """All results that there should be, with these keys of the root or all."""
        rows = joined_rows(self._sides(), self._keys, only)
        for span, inputs in self._windows:
            rows = rows.where(in_time(span, inputs))
        if all(plan.time is not None for plan in self._plans):  # or nothing is carried
            rows = rows.where(is_own(range(len(self._plans))))
        return rows

    def _found(self) -> Any:
        late = sql.col("phase") != "run-time"
        weights = result_weights(len(self._leaves))
        values = {
            "run_time": sql.when(late, sql.lit(0)).otherwise(sql.lit(1)),
            "cleanup": sql.when(late, sql.lit(1)).otherwise(sql.lit(0)),
            "found_a": weights["a"],
            "found_b": weights["b"],
        }
        return self._measured(self._results, values)

    def _rejected(self) -> tuple[Any, Any]:
        """Rejected messages, and those of the quarantine, as rows of the null key."""
        first = {
            plan.topic: sums
            for sums, plan in zip(reversed(self._sums), reversed(self._plans), strict=True)
        }
        by_topic = [
            sums.where("k0 IS NULL").select(sql.lit(topic).alias("topic"), "partition", "offset")
            for topic, sums in first.items()
        ]
        rejected = reduce(lambda one, other: one.unionAll(other), by_topic)
        quarantined = self._quarantine
        place = [
            sql.pmod(place_hash(self._salt, sql.col("topic")), sql.lit(prime)) for prime in PRIMES
        ]
        nothing = from_arrow_schema(pa.schema(self._key_fields()))
        for field in nothing:
            rejected = rejected.withColumn(field.name, sql.lit(None).cast(field.dataType))
            quarantined = quarantined.withColumn(field.name, sql.lit(None).cast(field.dataType))
        return (
            self._measured(rejected, {"c": sql.lit(1), "a": place[0], "b": place[1]}),
            self._measured(
                quarantined, {"run_time": sql.lit(1), "found_a": place[0], "found_b": place[1]}
            ),
        )

    def _measured(self, rows: Any, values: dict[str, Any]) -> Any:
        return rows.select(
            *self._keys,
            *(
                (sql.col(value) if isinstance(value, str) else value).cast(type_).alias(name)
                for name, type_ in FOLDED.items()
                for value in (values.get(name, sql.lit(0)),)
            ),
        )

    def difference(self, only: Any | None, examples: int) -> Difference:
        """What is missing or too many, of these keys of the root or of all."""
        return difference(
            self._expected(only),
            self._results,
            self._keys,
            [name for name, _ in self._values.root],
            [leaf.name for leaf in self._values.leaves],
            only=only,
            examples=examples,
        )

    def _sides(self) -> list[JoinSide]:
        sides = []
        for n in outwards(self._values):
            rows, keys = by_value(self._values.leaves[n], self._leaves[n])
            sides.append(JoinSide(n, rows, keys))
        return sides

    def how_far(self) -> str:
        """`12 of 40 tasks` of Spark's."""
        return tasks_of(self._spark)

    def close(self) -> None:
        """Forget the leaves' sums, which Spark then gives back."""
        self._sums = []


def leaf_sums(rows: Any, plan: StreamPlan) -> Any:
    """A leaf's rows summed by its sources: `k0`, ..., `partition`, `offset`, `n`, `a`, `b`.

    A rejected row has no sources, and keeps its coordinate, which the others give up.
    """
    kept = sql.col("kept")
    alone = [sql.when(~kept, sql.col(name)).alias(name) for name in ("partition", "offset")]
    weights = [
        sql.pmod(sql.col("hash"), sql.lit(prime)).alias(name)
        for name, prime in zip(("a", "b"), PRIMES, strict=True)
    ]
    by = [*key_names(plan), "partition", "offset"]
    return (
        rows.select(*key_names(plan), *alone, *weights)
        .groupBy(*by)
        .agg(sql.count(sql.lit(1)).alias("n"), sql.sum("a").alias("a"), sql.sum("b").alias("b"))
    )
