"""What is missing, doubled or altered: a batch join of the session's input, by Spark SQL.

Needed only for keys that fail the proof (or for all, `exhaustive`). The multiset of expected
results (each combination of input rows once) is held against the multiset of results, both as
coordinates and hashes of the rows' payload. An altered result is one that is missing and one
that is too many.

Cost: the cross products of the keys that are looked at. Memory: Spark's, which spills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as sql

from spillway.verify.verdicts import Difference


@dataclass(frozen=True)
class JoinSide:
    """One input of the batch join: `rows` of `rows.input_rows`, its number, and for each column
    that it is joined by the name there and here."""

    number: int
    rows: Any
    keys: Sequence[tuple[str, Any]]
    absent: Any | None = None
    """Of an optional input the hash that stands for a row of it where a result lacks one; it is
    joined on whole keys. None: every result has a row."""


def joined_rows(sides: Sequence[JoinSide], keys: Sequence[str], only: Any | None) -> Any:
    """All combinations of the inputs' rows that have the columns of one name equal; without rows of
    optional inputs where they have none.

    Each side is joined with those before it, optional ones last. Rows that have `workers.TIMED`
    give them as `time<number>` and `carried<number>`. `keys`: of the whole; `only`: a frame of
    those to look at, None for all.
    """
    joined = None
    ordered = sorted(sides, key=lambda side: side.absent is not None)
    how = "full" if ordered[0].absent is not None else "left"
    for side in ordered:
        names = [name for name, _ in side.keys]
        rows = side.rows.where("kept").select(
            *(column.alias(name) for name, column in side.keys),
            sql.col("partition").alias(f"partition{side.number}"),
            sql.col("offset").alias(f"offset{side.number}"),
            sql.col("hash").alias(f"hash{side.number}"),
            *(
                sql.col(name).alias(f"{shown}{side.number}")
                for name, shown in (("time_us", "time"), ("carried", "carried"))
                if name in side.rows.columns
            ),
        )
        if only is not None and (mine := [key for key in keys if key in names]):
            few = only if mine == list(keys) else only.select(*mine).distinct()
            rows = rows.join(sql.broadcast(few), mine, "left_semi")
        if joined is None:
            joined = rows
        else:
            on = [name for name in names if name in joined.columns]
            joined = joined.join(rows, on, "inner" if side.absent is None else how)
    assert joined is not None  # a join has inputs
    for side in sides:
        if side.absent is not None:
            name = f"hash{side.number}"
            joined = joined.withColumn(name, sql.coalesce(sql.col(name), side.absent))
    return joined


def difference(
    joined: Any,
    results: Any,
    keys: Sequence[str],
    key_labels: Sequence[str],
    streams: Sequence[str],
    *,
    only: Any | None,
    examples: int,
) -> Difference:
    """Compare what there should be (`joined_rows`) with what there is (`rows.result_rows`).

    `only`: a frame of the keys to look at; None for all. `examples`: how many differences are
    given with their coordinates.
    """
    places = [f"{c}{i}" for i in range(len(streams)) for c in ("partition", "offset", "hash")]
    if only is not None:
        results = results.join(sql.broadcast(only), list(keys), "left_semi")
    nothing = sql.lit(None).cast("string")
    expected = joined.select(
        *keys, *places, sql.lit(1).alias("e"), sql.lit(0).alias("f"), nothing.alias("phase")
    )
    found = results.select(*keys, *places, sql.lit(0).alias("e"), sql.lit(1).alias("f"), "phase")
    different = (
        expected.unionByName(found)
        .groupBy(*keys, *places)
        .agg(sql.sum("e").alias("e"), sql.sum("f").alias("f"), sql.max("phase").alias("phase"))
        .where("e <> f")
        .persist()
    )
    try:
        missing, doubled = different.agg(
            sql.sum(sql.greatest(sql.col("e") - sql.col("f"), sql.lit(0))),
            sql.sum(sql.greatest(sql.col("f") - sql.col("e"), sql.lit(0))),
        ).first()
        order = [*keys, *(p for p in places if not p.startswith("hash"))]
        rows = different.orderBy(*order).limit(examples).collect()
    finally:
        different.unpersist()
    return Difference(
        int(missing or 0),
        int(doubled or 0),
        [_example(row, keys, key_labels, streams) for row in rows],
    )


def _example(
    row: Any, keys: Sequence[str], labels: Sequence[str], streams: Sequence[str]
) -> dict[str, Any]:
    return {
        "key": {label: _plain(row[key]) for key, label in zip(keys, labels, strict=True)},
        "coordinates": {
            stream: {"partition": row[f"partition{i}"], "offset": row[f"offset{i}"]}
            for i, stream in enumerate(streams)
        },
        "expected": row["e"],
        "found": row["f"],
        "phase": row["phase"],
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
