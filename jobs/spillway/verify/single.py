"""A query of one join as frames: what `proof` asks of it.

Inputs, results and quarantine are summed by the join's key in one pass, with no join of frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.decode import StreamPlan
from spillway.verify.difference import Difference, JoinSide, difference, joined_rows
from spillway.verify.rows import (
    input_measures,
    key_names,
    measures,
    quarantine_measures,
    result_measures,
)
from spillway.verify.workers import TOTALS, judged


class SingleFrames:
    """The frames of one join of several streams."""

    joined: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        plans: Sequence[StreamPlan],
        inputs: Sequence[Any],
        results: Any,
        quarantine: Any,
        salt: int,
    ) -> None:
        self._plans = plans
        self._inputs = inputs
        self._results = results
        self._quarantine = quarantine
        self._salt = salt
        self._keys = key_names(plans[0])

    def judged(self) -> Any:
        """The rows of `workers.judged`: totals, and the keys that fail."""
        m = len(self._plans)
        frames = [
            input_measures(rows, plan, m, self._salt)
            for rows, plan in zip(self._inputs, self._plans, strict=True)
        ]
        frames.append(result_measures(self._results, self._plans[0], m))
        frames.append(quarantine_measures(self._quarantine, self._plans[0], m, self._salt))
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionAll(frame)
        summed = union.groupBy(*self._keys).agg(*(sql.sum(c).alias(c) for c in measures(m)))
        keys = pa.schema([f.with_nullable(True) for f in self._plans[0].keys])
        keys = pa.schema([f.with_name(n) for f, n in zip(keys, self._keys, strict=True)])
        schema = pa.schema([*keys, *TOTALS])
        return summed.mapInArrow(partial(judged, m, len(keys), schema), from_arrow_schema(schema))

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
