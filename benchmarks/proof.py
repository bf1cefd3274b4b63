"""What the proof of a tree costs beside the batch join.

    python -m benchmarks.proof [--rows 1000000] [--runs 3] [--query tree] [--exhaustive] [--json]

Five inputs of so many rows each, as `verify` has them once they are decoded, and their results:

* `tree`: the papers' `((A B C on a1) D on c2 = d1) E on d2 = e1`;
* `branches`: `((A B on a1) C on a2 = c1) D on b2 = d1) E on d2 = e1`: two leaves of one join give
  later keys.

Seconds are of the clock and of the CPU (the JVM's and its workers'). What a single join costs is
part of `make bench`.

Each key has as many values as there are rows, so there are about as many results as rows of one
input. Rows lie in Parquet files in the page cache: neither Kafka nor decoding is measured.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil

from spillway.decode import StreamPlan
from spillway.decode.values import leaf_plans, values_of
from spillway.stream.session import spark_on_demand
from spillway.verify.frames import ProofFrames
from spillway.verify.rows import hashed_rows
from spillway.verify.trees import TreeFrames, tree_result_columns
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml

SALT = 1
STREAMS = "\n".join(
    f"[streams.{name}]\nfields = {{ {name}1 = 'int', {name}2 = 'int', price = 'double' }}"
    for name in "abcde"
)
JOINS = {
    "tree": """
[join.abc]
inputs = ["a", "b", "c"]
on = [{ name = "a1", columns = { a = "a1", b = "b1", c = "c1" } }]
[join.abcd]
inputs = ["abc", "d"]
on = [{ name = "d1", columns = { abc = "c.c2", d = "d1" } }]
[join.all]
inputs = ["abcd", "e"]
on = [{ name = "e1", columns = { abcd = "d.d2", e = "e1" } }]
""",
    "branches": """
[join.ab]
inputs = ["a", "b"]
on = [{ name = "a1", columns = { a = "a1", b = "b1" } }]
[join.abc]
inputs = ["ab", "c"]
on = [{ name = "c1", columns = { ab = "a.a2", c = "c1" } }]
[join.abcd]
inputs = ["abc", "d"]
on = [{ name = "d1", columns = { abc = "b.b2", d = "d1" } }]
[join.all]
inputs = ["abcd", "e"]
on = [{ name = "e1", columns = { abcd = "d.d2", e = "e1" } }]
""",
}


def query(name: str) -> Query:
    return query_of(parse_toml(STREAMS + JOINS[name], Path(f"{name}.toml")))


def stream_rows(name: str, rows: int) -> pl.DataFrame:
    """Rows of a stream, the same for the same name."""
    rng = np.random.default_rng(ord(name))
    return pl.DataFrame(
        {
            f"{name}1": rng.integers(0, rows, rows),
            f"{name}2": rng.integers(0, rows, rows),
            "price": rng.random(rows),
            "partition": pl.Series(np.arange(rows) % 4, dtype=pl.Int32),
            "offset": np.arange(rows) // 4,
        }
    )


def results_of(of: Query, rows: int) -> pl.DataFrame:
    """All results, as the table has them."""
    joined: dict[str, pl.DataFrame] = {}
    for leaf in of.inputs:
        frame = stream_rows(leaf, rows)
        joined[leaf] = frame.rename({name: f"{leaf}.{name}" for name in frame.columns})
    for join in of.tree.joins:
        made, *others = (joined[each] for each in join.inputs)
        columns = [[of.tree.source(key, each) for key in join.keys] for each in join.inputs]
        names = [[f"{s.leaf}.{s.expression}" for s in some] for some in columns]
        for frame, on in zip(others, names[1:], strict=True):
            made = made.join(frame, left_on=names[0], right_on=on, coalesce=False)
        joined[join.name] = made.with_columns(
            pl.col(column).alias(key.name) for column, key in zip(names[0], join.keys, strict=True)
        )
    found = joined[of.tree.root.name]
    fields = [(leaf, f.name) for leaf in of.inputs for f in of.payload(leaf)]
    fields += [(leaf, at) for leaf in of.inputs for at in ("partition", "offset")]
    return found.select(
        *of.key_names,
        *(pl.col(f"{leaf}.{field}").alias(f"{leaf}_{field}") for leaf, field in fields),
        pl.lit("run-time").alias("phase"),
    )


def decoded_frame(spark: Any, plan: StreamPlan, rows: int, folder: Path) -> Any:
    """A leaf's rows as decoding gives them, from a file."""
    frame = stream_rows(plan.name, rows)
    sources = [pl.col(source).alias(f"k{i}") for i, source in enumerate(plan.sources)]
    payload = [pl.col(name).alias(f"p{i}") for i, name in enumerate(plan.payload.names)]
    path = folder / f"{plan.name}.parquet"
    frame.select(
        *sources, *payload, "partition", "offset", pl.lit(value=True).alias("kept")
    ).write_parquet(path, row_group_size=rows // 8)
    return spark.read.parquet(str(path))


def frames(spark: Any, name: str, rows: int, folder: Path) -> tuple[Callable[[], ProofFrames], int]:
    """What makes the frames of a query, and how many results it has."""
    of = query(name)
    found = results_of(of, rows)
    path = folder / "results.parquet"
    found.write_parquet(path, row_group_size=max(1, len(found) // 8))
    table = spark.read.parquet(str(path))
    nothing = spark.createDataFrame([], "topic string, partition int, offset long")
    values = values_of(of)
    plans = leaf_plans(of, values)
    leaves = [
        hashed_rows(decoded_frame(spark, plan, rows, folder), plan, SALT, leaf.hashed_rows)
        for plan, leaf in zip(plans, values.leaves, strict=True)
    ]
    results = tree_result_columns(table, values, SALT)
    return (
        lambda: TreeFrames(spark, values, plans, leaves, results, nothing, SALT),
        len(found),
    )


def measured(spark: Any, name: str, rows: int, runs: int, exhaustive: bool) -> dict[str, Any]:
    """Seconds of the best run of each way."""
    clocks = Clocks(spark)
    taken: dict[str, list[tuple[float, float]]] = {"sums": [], "batch join": []}
    with tempfile.TemporaryDirectory() as scratch:
        make, results = frames(spark, name, rows, Path(scratch))
        for _ in range(runs):
            made = make()
            begin = clocks.read()
            found = made.judged().totals
            taken["sums"].append(clocks.since(begin))
            assert (found["failing"], found["expected"]) == (0, results)
            if exhaustive:
                begin = clocks.read()
                different = made.difference(None, 10)
                taken["batch join"].append(clocks.since(begin))
                assert (different.missing, different.doubled) == (0, 0)
            made.close()
    told: dict[str, Any] = {"query": name, "input rows": 5 * rows, "results": results}
    for way, each in taken.items():
        if each:
            wall, cpu = (min(some) for some in zip(*each, strict=True))
            rate = round((5 * rows + results) / cpu)
            told[way] = {"s": round(wall, 1), "CPU s": round(cpu, 1), "rows per CPU s": rate}
    return told


class Clocks:
    """The clock, and the CPU time of Spark's JVM and its workers, those that have ended too."""

    def __init__(self, spark: Any) -> None:
        self._jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())

    def read(self) -> tuple[float, float]:
        """Seconds of both."""
        each = [p.cpu_times() for p in (self._jvm, *self._jvm.children(recursive=True))]
        used = sum(t.user + t.system + t.children_user + t.children_system for t in each)
        return time.monotonic(), used

    def since(self, begin: tuple[float, float]) -> tuple[float, float]:
        """Seconds of both that have gone by."""
        wall, cpu = self.read()
        return wall - begin[0], cpu - begin[1]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What the proof of a tree costs")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each input")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--exhaustive", action="store_true", help="the batch join, too")
    parser.add_argument("--query", choices=list(JOINS), action="append", help="only this one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = []
    with spark_on_demand("local[2]", "benchmarks.proof", lambda: None) as start:
        spark = start()
        spark.conf.set("spark.sql.shuffle.partitions", "4")  # as `verify` does
        for name in given.query or JOINS:
            found.append(measured(spark, name, given.rows, given.runs, given.exhaustive))
            if not given.json:
                print(json.dumps(found[-1]), flush=True)
    if given.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
