"""Times that join, and rows that are carried, as conditions of Spark's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import functions as sql

from spillway_schemas.windows import Span


def in_time(span: Span, inputs: Sequence[Sequence[int]]) -> Any:
    """Whether the times of a join's inputs join: a condition on `time<leaf>` of the leaves below
    each of them."""
    least = [_of(sql.least, leaves) for leaves in inputs]
    greatest = [_of(sql.greatest, leaves) for leaves in inputs]
    if span.bands_us is None:
        every = [leaf for leaves in inputs for leaf in leaves]
        return _of(sql.greatest, every) - _of(sql.least, every) <= sql.lit(span.width_us)
    found = sql.lit(True)
    for n, (low, high) in enumerate(span.bands_us[1:], 1):
        found &= (least[n] - greatest[0] >= sql.lit(low)) & (
            greatest[n] - least[0] <= sql.lit(high)
        )
    return found


def is_own(leaves: Iterable[int]) -> Any:
    """Whether a result is the session's: not of carried rows alone. A condition on
    `carried<leaf>`."""
    return ~reduce(and_, (sql.col(f"carried{leaf}") for leaf in leaves))


def _of(function: Any, leaves: Sequence[int]) -> Any:
    columns = [sql.col(f"time{leaf}") for leaf in leaves]
    return columns[0] if len(columns) == 1 else function(*columns)
