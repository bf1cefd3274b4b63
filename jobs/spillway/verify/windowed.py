"""One join with a window as frames: what `proof` asks of it.

The rows of each key are swept in the order of their times (`sweep`): linear in the input.

Which rows were late or ahead follows from the journal: the watermark after each epoch, and where
its input ended. The rule is the one by which they were rejected (`spillway.decode.lateness`), and
the quarantine must hold just these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.decode import StreamPlan
from spillway.sealed_input.decoding import key_names
from spillway.sealed_input.times import in_time, is_own
from spillway.verify.arithmetic import PRIMES
from spillway.verify.difference import JoinSide, difference, joined_rows
from spillway.verify.progress import tasks_of
from spillway.verify.rows import place_hash, result_weights
from spillway.verify.verdicts import TOTALS, Difference, JudgedKeys
from spillway.verify.workers import FOLDED, collected, judged_tree, swept_keys
from spillway_schemas.windows import Span


def measured(rows: Any, keys: Sequence[str], values: Mapping[str, Any]) -> Any:
    """Rows with the columns of `FOLDED`, those that are not given 0."""
    return rows.select(
        *keys,
        *(values.get(name, sql.lit(0)).cast(type_).alias(name) for name, type_ in FOLDED.items()),
    )


class WindowedFrames:
    """The frames of one join with a window."""

    joined: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        spark: Any,
        span: Span,
        plans: Sequence[StreamPlan],
        inputs: Sequence[Any],
        results: Any,
        quarantine: Any,
        salt: int,
    ) -> None:
        """`inputs`: frames of `rows.input_rows`, with times. `results`: of `rows.result_rows`.
        `quarantine`: of `rows.quarantined_rows`."""
        self._spark = spark
        self._span = span
        self._plans = plans
        self._inputs = inputs
        self._results = results
        self._quarantine = quarantine
        self._salt = salt
        self._keys = key_names(plans[0])

    def judged(self) -> JudgedKeys:
        """Totals, and the keys that fail."""
        key_fields = [
            pa.field(name, field.type)
            for name, field in zip(self._keys, self._plans[0].keys, strict=True)
        ]
        frames = [
            self._swept(pa.schema(key_fields)),
            measured(self._results, self._keys, found_values(len(self._plans))),
            *self._rejected(pa.schema(key_fields)),
        ]
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionAll(frame)
        summed = union.groupBy(*self._keys).agg(*(sql.sum(c).alias(c) for c in FOLDED))
        schema = pa.schema([*key_fields, *TOTALS])
        rows = summed.mapInArrow(
            partial(judged_tree, len(self._keys), schema), from_arrow_schema(schema)
        )
        return collected(rows.toArrow())

    def _swept(self, key_fields: pa.Schema) -> Any:
        """For each key what there should be."""
        union = None
        for i, rows in enumerate(self._inputs):
            timed = rows.where("kept").select(
                *self._keys,
                sql.col("time_us"),
                sql.lit(i).cast("long").alias("input"),
                *(
                    sql.pmod(sql.col("hash"), sql.lit(prime)).alias(name)
                    for name, prime in zip("ab", PRIMES, strict=True)
                ),
                "carried",
            )
            union = timed if union is None else union.unionAll(timed)
        assert union is not None
        ordered = union.repartition(*self._keys).sortWithinPartitions(*self._keys, "time_us")
        schema = pa.schema(
            [*key_fields, *(pa.field(n, _ARROW[FOLDED[n]]) for n in ("c", "d", "f", "a", "b"))]
        )
        sums = ordered.mapInArrow(
            partial(swept_keys, self._span, schema), from_arrow_schema(schema)
        )
        return measured(sums, self._keys, {name: sql.col(name) for name in "cdfab"})

    def _rejected(self, key_fields: pa.Schema) -> list[Any]:
        """Rejected messages, and those of the quarantine, as rows of the null key."""
        frames = []
        for plan, rows in zip(self._plans, self._inputs, strict=True):
            mine = rows.where("NOT kept").select(
                sql.lit(plan.topic).alias("topic"), "partition", "offset"
            )
            frames.append(_placed(mine, key_fields, self._salt, ("c", "a", "b")))
        found = ("run_time", "found_a", "found_b")
        return [*frames, _placed(self._quarantine, key_fields, self._salt, found)]

    def difference(self, only: Any | None, examples: int) -> Difference:
        """What is missing or too many, of these keys or of all."""
        sides = [
            JoinSide(i, rows, [(key, sql.col(key)) for key in self._keys])
            for i, rows in enumerate(self._inputs)
        ]
        expected = joined_rows(sides, self._keys, only)
        inputs = [[i] for i in range(len(self._plans))]
        return difference(
            expected.where(in_time(self._span, inputs) & is_own(range(len(self._plans)))),
            self._results,
            self._keys,
            self._plans[0].keys.names,
            [plan.name for plan in self._plans],
            only=only,
            examples=examples,
        )

    def how_far(self) -> str:
        """`12 of 40 tasks` of Spark's."""
        return tasks_of(self._spark)

    def close(self) -> None:
        """Nothing is held."""


_ARROW = {"long": pa.int64(), "double": pa.float64()}


def found_values(inputs: int) -> dict[str, Any]:
    """Measures of results, for `measured`."""
    late = sql.col("phase") != "run-time"
    weights = result_weights(inputs)
    return {
        "run_time": sql.when(late, sql.lit(0)).otherwise(sql.lit(1)),
        "cleanup": sql.when(late, sql.lit(1)).otherwise(sql.lit(0)),
        "found_a": weights["a"],
        "found_b": weights["b"],
    }


def _placed(rows: Any, key_fields: pa.Schema, salt: int, names: tuple[str, str, str]) -> Any:
    """Rows of `topic`, `partition`, `offset` as measures of the null key: one each, and its hash
    by both primes."""
    place = [sql.pmod(place_hash(salt, sql.col("topic")), sql.lit(prime)) for prime in PRIMES]
    for field in from_arrow_schema(key_fields):
        rows = rows.withColumn(field.name, sql.lit(None).cast(field.dataType))
    values = dict(zip(names, (sql.lit(1), *place), strict=True))
    return measured(rows, key_fields.names, values)
