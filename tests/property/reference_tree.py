"""The reference of query trees: what all joins of a tree give, by plain joins in polars.

Nothing of the engine is used, and of decoding only the contract. A table of a join has one row for
each row that the join gives, and a column for each leaf below: the number of the leaf's row, as
uint32. Key values are looked up by these numbers where a join needs them, so a table is small:
100,000s of rows of five streams take seconds.

Rows are given as a polars frame for each *stream*, with the contract's fields as columns; those of
which results are identified have `partition` (int32) and `offset` (int64), too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from spillway_schemas.join_tree import JoinTree, KeySource
from spillway_schemas.messages import FieldRule, Rejected, contract, read
from spillway_schemas.query import Query

TYPES: dict[str, pl.DataType] = {
    "string": pl.String(),
    "json": pl.String(),
    "int": pl.Int64(),
    "double": pl.Float64(),
    "bool": pl.Boolean(),
    "timestamp": pl.Datetime("us", "UTC"),
}


def joined(tree: JoinTree, rows: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Of each join, by name, the rows that it gives: the number of the row of each leaf below.

    `rows`: by stream. Null keys join nothing.
    """
    of_leaf = {leaf.name: rows[leaf.stream] for leaf in tree.leaves}
    found: dict[str, pl.DataFrame] = {
        name: pl.DataFrame({name: pl.int_range(frame.height, dtype=pl.UInt32, eager=True)})
        for name, frame in of_leaf.items()
    }
    for join in tree.joins:
        keys = [f"key {n}" for n in range(len(join.keys))]
        tables = [
            found[each].with_columns(
                _values(of_leaf, tree.source(key, each), found[each]).alias(name)
                for name, key in zip(keys, join.keys, strict=True)
            )
            for each in join.inputs
        ]
        together = tables[0].drop_nulls(keys)
        for table in tables[1:]:
            together = together.join(table, on=keys, how="inner")
        found[join.name] = together.drop(keys)
    return {join.name: found[join.name] for join in tree.joins}


def identities(query: Query, rows: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The results of a query: `<leaf>_partition` and `<leaf>_offset` of each leaf, in no order.

    Leaves are in the order of `Query.inputs`, which is that of the columns of `results`.
    """
    return coordinates(query, rows, joined(query.tree, rows)[query.tree.root.name])


def coordinates(
    query: Query, rows: Mapping[str, pl.DataFrame], table: pl.DataFrame
) -> pl.DataFrame:
    """The coordinates of the rows of a join, of which `table` has the numbers."""
    return pl.DataFrame(
        {
            f"{leaf}_{column}": rows[query.stream_name(leaf)][column].gather(table[leaf])
            for leaf in query.inputs
            if leaf in table.columns
            for column in ("partition", "offset")
        }
    )


def key_values(
    query: Query, rows: Mapping[str, pl.DataFrame], join: str, table: pl.DataFrame
) -> list[pl.Series]:
    """The values of a join's keys in rows of it or of a join above, of which `table` has the
    numbers: a series for each key."""
    found = query.tree.join(join)
    assert found is not None
    of_leaf = {leaf.name: rows[leaf.stream] for leaf in query.tree.leaves}
    return [_values(of_leaf, query.tree.source(key, found.inputs[0]), table) for key in found.keys]


def differences(found: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """What one multiset of rows has more often than the other: the rows, with `more` (int64), how
    many more `found` has. Empty when they are the same."""
    columns = expected.columns
    counted = pl.concat(
        [
            found.select(columns).with_columns(more=pl.lit(1, pl.Int64)),
            expected.with_columns(more=pl.lit(-1, pl.Int64)),
        ],
        how="vertical_relaxed",
    )
    return counted.group_by(columns).agg(pl.col("more").sum()).filter(pl.col("more") != 0)


def _values(
    of_leaf: Mapping[str, pl.DataFrame], source: KeySource, table: pl.DataFrame
) -> pl.Series:
    return valued(of_leaf[source.leaf], source.expression).gather(table[source.leaf])


def valued(frame: pl.DataFrame, expression: str) -> pl.Series:
    """An expression over a stream's rows, one value for each."""
    if expression in frame.columns:
        return frame[expression]
    found = frame.sql(f"SELECT ({expression}) AS value FROM self")["value"]
    return found if len(found) == frame.height else found.new_from_index(0, frame.height)


# ------------------------------------------------------------------------------------- decoding


def decoded(
    query: Query, stream: str, messages: Iterable[tuple[int, int, bytes | None]]
) -> pl.DataFrame:
    """The rows of a stream that its contract accepts and the query's filter wants.

    `messages`: topic partition, offset and value. The frame has the contract's fields, `partition`
    and `offset`.
    """
    plan = query.streams[stream]
    model = contract(plan.rules)
    kept: list[tuple[Any, ...]] = []
    for partition, offset, value in messages:
        try:
            row = read(model, value)
        except Rejected:
            continue
        kept.append((*row.model_dump(by_alias=True).values(), partition, offset))
    schema: dict[str, Any] = {rule.name: type_of(rule) for rule in plan.rules}
    schema |= {"partition": pl.Int32, "offset": pl.Int64}
    frame = pl.DataFrame(kept, schema=schema, orient="row")
    return frame if plan.filter is None else frame.filter(valued(frame, plan.filter))


def type_of(rule: FieldRule) -> pl.DataType:
    """The type of a field's column."""
    if rule.kind == "decimal":
        return pl.Decimal(rule.precision, rule.scale)
    return TYPES[rule.kind]
