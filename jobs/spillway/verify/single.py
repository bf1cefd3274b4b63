"""A query of one join as frames: what `proof` asks of it.

Inputs, results and quarantine are summed by the join's key where they are read, in one pass, with
no join of frames; Spark moves the sums to those who judge them (`sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.decode import StreamPlan
from spillway.storage import Folder
from spillway.verify.difference import Difference, JoinSide, difference, joined_rows
from spillway.verify.rows import TopicRanges, decoded_schema, key_names, messages
from spillway.verify.sums import (
    BLOCKS,
    SumPlan,
    decoded_sums,
    file_sums,
    judged_sums,
    summed_input,
    summed_quarantine,
    summed_results,
)
from spillway.verify.workers import TOTALS


class SingleFrames:
    """The frames of one join of several streams."""

    joined: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        plans: Sequence[StreamPlan],
        inputs: Sequence[Any],
        results: Any,
        plan: SumPlan,
        blocks: Sequence[Any],
    ) -> None:
        """`inputs`: frames of `rows.input_rows`; `results`: of `rows.result_rows`; both for the
        difference alone. `blocks`: the sums of all inputs, of the results and of the quarantine
        (`sums.BLOCKS`)."""
        self._plans = plans
        self._inputs = inputs
        self._results = results
        self._plan = plan
        self._blocks = blocks
        self._keys = key_names(plans[0])

    def judged(self) -> Any:
        """The rows of `workers.judged`: totals, and the keys that fail."""
        union = reduce(lambda one, other: one.unionAll(other), self._blocks)
        schema = pa.schema([*self._plan.keys, *TOTALS])
        return union.repartition(self._plan.buckets, "bucket").mapInArrow(
            partial(judged_sums, self._plan, schema), from_arrow_schema(schema)
        )

    def difference(self, only: Any | None, examples: int) -> Difference:
        """What is missing or too many, of these keys or of all."""
        sides = [
            JoinSide(i, rows, [(key, sql.col(key)) for key in self._keys])
            for i, rows in enumerate(self._inputs)
        ]
        return difference(
            joined_rows(sides, self._keys, only),
            self._results,
            self._keys,
            self._plans[0].keys.names,
            [plan.name for plan in self._plans],
            only=only,
            examples=examples,
        )

    def close(self) -> None:
        """Nothing is held."""


def sum_plan(plans: Sequence[StreamPlan], salt: int, places: Sequence[int]) -> SumPlan:
    """What the tasks of a proof have in common. `places`: of as many buckets (`pins.salts`)."""
    fields = zip(key_names(plans[0]), plans[0].keys, strict=True)
    keys = pa.schema([pa.field(name, field.type) for name, field in fields])
    return SumPlan(keys, len(plans), salt, len(places), tuple(places))


def summed(frame: Any, function: Any) -> Any:
    """The sums that a worker's function makes of a frame's rows."""
    return frame.mapInArrow(function, from_arrow_schema(BLOCKS))


def frames_summed(
    plan: SumPlan,
    plans: Sequence[StreamPlan],
    inputs: Sequence[Any],
    results: Any,
    quarantine: Any,
) -> list[Any]:
    """The blocks of frames that there are already: of each input's decoded rows, of rows of the
    results table, and of the quarantine."""
    return [
        *(
            summed(rows, partial(summed_input, plan, each))
            for rows, each in zip(inputs, plans, strict=True)
        ),
        summed(results, partial(summed_results, plan, plans)),
        summed(quarantine, partial(summed_quarantine, plan)),
    ]


def read_and_summed(
    spark: Any,
    plans: Sequence[StreamPlan],
    source: TopicRanges,
    results: tuple[Folder, Sequence[str]],
    quarantine: Any,
    plan: SumPlan,
) -> list[Any]:
    """The blocks of a session: of its messages, of the results' files, and of the quarantine.

    `results`: the table's folder and the paths of the session's files in it.
    """
    frames = []
    for each in plans:
        frames.append(
            summed(
                messages(spark, each, source),
                partial(decoded_sums, plan, each, decoded_schema(each)),
            )
        )
    folder, paths = results
    lists = [paths[k :: plan.buckets] for k in range(min(plan.buckets, len(paths)))]
    if lists:
        frames.append(
            summed(
                spark.range(0, len(lists), 1, len(lists)),
                partial(file_sums, plan, plans, folder, lists),
            )
        )
    frames.append(summed(quarantine, partial(summed_quarantine, plan)))
    return frames
