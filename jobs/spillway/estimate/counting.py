"""The results that the sampled rows have among themselves, by key of the root and by group. Pure.

Three ways, the first that is right for the query:

* no join has a window: counts of rows are folded through the tree (`spillway.verify.fold`), and no
  result is made;
* one join with a window: rows are swept in the order of their times (`spillway.verify.sweep`);
* a tree with windows: the sampled rows are joined, as far as `MOST_JOINED` goes.

The sums of a tree are linear in the rows of each leaf. So the results by the group of leaf i's row
say what each of its groups has added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl

from spillway.decode.values import TreeValues
from spillway.estimate.sampling import GROUPS
from spillway.verify.fold import FoldStep, fold_of
from spillway.verify.sweep import TimedRows, swept
from spillway_schemas.exits import USAGE
from spillway_schemas.query import Query
from spillway_schemas.windows import Span

MOST_JOINED = 20_000_000
"""Rows of a joined table: about 1 GB."""


class SampleTooLarge(Exception):
    """The sampled rows of a tree with windows have too many results to be joined here."""

    exit_code = USAGE


@dataclass(frozen=True)
class LeafSample:
    """What was read of one leaf."""

    rows: pl.DataFrame
    """A row for each that the contract and the filter keep: its values `v<number>` (see
    `spillway.decode.values`), its `group` (int64), and `time` (us since 1970, int64) where a window
    asks for it."""
    fraction: float
    """The probability with which each row of the leaf is among them."""


def counted(query: Query, values: TreeValues, samples: Sequence[LeafSample]) -> list[pl.DataFrame]:
    """For each leaf the results of the sampled rows: a frame of the root's key (`v<number>`),
    `group` (of the leaf's row, int64), and `n` (how many, float64).

    Raises `SampleTooLarge`.
    """
    rows = [sample.rows for sample in samples]
    by = [f"v{value}" for value in values.by]
    if not query.is_windowed:
        return [_folded(values, rows, leaf) for leaf in range(len(rows))]
    span = query.spans[0]
    if len(query.joins) == 1 and span is not None:
        return _swept(span, by, rows)
    joined = _joined(query, values, rows)
    return [
        joined.group_by([*by, f"group{leaf}"])
        .agg(pl.len().cast(pl.Float64).alias("n"))
        .rename({f"group{leaf}": "group"})
        for leaf in range(len(rows))
    ]


def unmet(query: Query, values: TreeValues, samples: Sequence[LeafSample]) -> float | None:
    """The most results that one more row of some leaf would have with the sampled rows of the
    others, with a key that the leaf's own sample lacks; at least 1.

    None: leaves share less than the root's key, or lie within windows, so it is not asked.
    """
    if query.is_windowed or any(set(leaf.has) != set(values.by) for leaf in values.leaves):
        return None
    by = [f"v{value}" for value in values.by]
    counts = [_summed(sample.rows, by, pl.len()) for sample in samples]
    most = 1.0
    for i, (sample, own) in enumerate(zip(samples, counts, strict=True)):
        if sample.fraction < 1 and len(counts) > 1:
            others = reduce(_times, [each for j, each in enumerate(counts) if j != i])
            most = max([most, *others.join(own, on=by, how="anti")["n"]])
    return most


def _times(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """The keys of both, with the products of their numbers."""
    by = [name for name in one.columns if name != "n"]
    both = one.join(other, on=by, how="inner")
    return both.select(*by, pl.col("n") * pl.col("n_right"))


# --- without windows -------------------------------------------------------------------------


def _folded(values: TreeValues, rows: Sequence[pl.DataFrame], leaf: int) -> pl.DataFrame:
    """The fold, in which the rows of one leaf keep their groups."""
    relations = {}
    for i, (each, frame) in enumerate(zip(values.leaves, rows, strict=True)):
        has = [f"v{value}" for value in each.has]
        relations[i] = _summed(frame, [*has, "group"] if i == leaf else has, pl.len())
    fold = fold_of(values)
    for step in fold.steps:
        relations[step.into] = _product(step, relations[step.into], relations.pop(step.other))
    by = [*(f"v{value}" for value in values.by), "group"]
    return _summed(relations[fold.last], by, pl.col("n").sum())


def _product(step: FoldStep, into: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    on = [f"v{value}" for value in step.on]
    if step.absorbs:
        other = _summed(other, [*on, *_grouped(other)], pl.col("n").sum())
    both = into.join(other, on=on, how="inner").with_columns(pl.col("n") * pl.col("n_right"))
    return _summed(both, [*(f"v{v}" for v in step.kept), *_grouped(both)], pl.col("n").sum())


def _grouped(frame: pl.DataFrame) -> list[str]:
    return ["group"] if "group" in frame.columns else []


def _summed(frame: pl.DataFrame, by: Sequence[str], what: pl.Expr) -> pl.DataFrame:
    return frame.group_by(by).agg(what.cast(pl.Float64).alias("n"))


# --- one join with a window ------------------------------------------------------------------


def _swept(span: Span, by: Sequence[str], rows: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Keys are numbered; each leaf is swept once for each of its groups."""
    keys = reduce(lambda one, other: one.join(other, on=by), [f.select(by).unique() for f in rows])
    keys = keys.with_row_index("key")
    table = pl.concat(
        frame.join(keys, on=by).select("key", "time", "group", pl.lit(i).alias("input"))
        for i, frame in enumerate(rows)
    ).sort("key", "time")
    numbers = {name: table[name].to_numpy().astype(np.int64) for name in table.columns}
    found = []
    for leaf in range(len(rows)):
        parts = []
        for group in range(GROUPS):
            mine = (numbers["input"] != leaf) | (numbers["group"] == group)
            key, at = np.unique(numbers["key"][mine], return_inverse=True)
            ones = np.ones(len(at), np.int64)
            timed = TimedRows(
                at.astype(np.int64), numbers["time"][mine], numbers["input"][mine], ones, ones
            )
            n = swept(span, timed)["f"]
            parts.append(keys[key].select(by).with_columns(group=pl.lit(group), n=pl.Series(n)))
        found.append(pl.concat(parts).filter(pl.col("n") > 0))
    return found


# --- a tree with windows ---------------------------------------------------------------------


def _joined(query: Query, values: TreeValues, rows: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """All results, with the group of each leaf's row: `group<leaf>`."""
    inputs: dict[str, pl.DataFrame] = {}
    for i, (leaf, frame) in enumerate(zip(values.leaves, rows, strict=True)):
        times = [pl.col("time").alias(name) for name in ("least", "greatest") if "time" in frame]
        inputs[leaf.name] = frame.select(
            *(f"v{value}" for value in leaf.has), pl.col("group").alias(f"group{i}"), *times
        )
    for join, span in zip(query.tree.joins, query.spans, strict=True):
        timed = query.is_timed(join.name)
        tables = [
            inputs[name].rename({each: f"{each}_{at}" for each in ("least", "greatest")})
            if timed
            else inputs[name].drop("least", "greatest", strict=False)
            for at, name in enumerate(join.inputs)
        ]
        together = reduce(_met, tables)
        if timed:
            together = _in_time(together, span, len(tables))
        inputs[join.name] = together
    return inputs[query.tree.root.name]


def _met(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    on = [name for name in one.columns if name.startswith("v") and name in other.columns]
    sizes = [each.group_by(on).len() for each in (one, other)]
    size = sizes[0].join(sizes[1], on=on).select(pl.col("len").cast(float) * pl.col("len_right"))
    if (found := size["len"].sum()) > MOST_JOINED:
        raise SampleTooLarge(
            f"the sampled rows of this tree with windows give {found:,.0f} rows in one join, more "
            f"than {MOST_JOINED:,}. Sample fewer rows with --rows"
        )
    return one.join(other, on=on, how="inner")


def _in_time(table: pl.DataFrame, span: Span | None, inputs: int) -> pl.DataFrame:
    """The rows whose times join, with the least and the greatest of them."""
    names = [f"{name}_{at}" for at in range(inputs) for name in ("least", "greatest")]
    if span is not None:
        times = [table[name].to_numpy() for name in names]
        table = table.filter(pl.Series(span.joins(times[::2], times[1::2])))
    return table.with_columns(
        least=pl.min_horizontal(names[::2]), greatest=pl.max_horizontal(names[1::2])
    ).drop(names)
