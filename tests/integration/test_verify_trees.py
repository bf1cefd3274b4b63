"""The proof of random trees on a real Spark, with the real decoder, against brute force.

No broker, no stream and no engine: messages are made and decoded here, their results made by
nested loops. Then results and quarantine are tampered with.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spillway.decode import StreamPlan, compile_streams
from spillway.decode.values import TreeValues, leaf_plans, values_of
from spillway.sealed_input.decoding import decoded, decoded_schema
from spillway.verify.rows import hashed_rows
from spillway.verify.sums import Spool, Summing, SumPlan, judged_bucket
from spillway.verify.trees import TreeFrames, tree_result_columns
from spillway.verify.verdicts import Difference
from spillway_schemas.query import Query
from tests.chunked import COLUMNS, chunks
from tests.property.test_query_trees import text_of
from tests.property.test_verify_trees import CIRCLE, all_results, query, stream_rows

pytestmark = pytest.mark.server

SALT = 7
Row = dict[str, Any]
Place = tuple[str, int, int]

RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
assert tuple(RAW.names) == COLUMNS
QUARANTINE = pa.schema([RAW.field(i) for i in range(3)])


@pytest.fixture(scope="module")
def spark(spark_env: dict[str, str]) -> Iterator[Any]:
    from spillway.stream.session import spark_session

    session = spark_session("local[2]", "verify-trees-test")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()


@dataclass(frozen=True)
class HandMadeTree:
    """A tree with rows, among them some that are broken, and all its results."""

    query: Query
    rows: dict[str, list[Row]]
    results: list[Row]
    rejected: list[Place]

    @staticmethod
    def of(text: str, seed: int) -> HandMadeTree:
        tree = query(text)
        rng = random.Random(seed)
        rows = stream_rows(tree, seed)
        for name, some in rows.items():
            for n in range(rng.randrange(3)):
                broken = [
                    f
                    for leaf in tree.tree.leaves
                    if leaf.stream == name
                    for f in tree.key_sources(leaf.name)
                ]
                bad = dict.fromkeys(("f0", "f1", "f2", "x", "y"), 0)
                some.append(bad | {rng.choice(broken): None, "partition": 0, "offset": 100 + n})
        # A row whose key is null counts for those leaves that do not read it.
        good = {
            leaf.name: [
                row
                for row in rows[leaf.stream]
                if all(row[f] is not None for f in keys_of_stream(tree, leaf.stream))
            ]
            for leaf in tree.tree.leaves
        }
        return HandMadeTree(
            tree, rows, all_results(tree, rows, good), rejected_of(tree, rows, good)
        )


def keys_of_stream(tree: Query, stream: str) -> set[str]:
    """What any reading of a stream needs: a message has one verdict for all of them."""
    leaves = [leaf.name for leaf in tree.tree.leaves if leaf.stream == stream]
    return {text for leaf in leaves for text in tree.key_sources(leaf)}


def rejected_of(tree: Query, rows: dict[str, list[Row]], good: dict[str, list[Row]]) -> list[Place]:
    """Messages that a leaf or several reject, each once."""
    return list(
        dict.fromkeys(
            (tree.topic(leaf.name), row["partition"], row["offset"])
            for leaf in tree.tree.leaves
            for row in rows[leaf.stream]
            if row not in good[leaf.name]
        )
    )


def leaf_table(plan: StreamPlan, rows: list[Row]) -> pa.Table:
    """A leaf's messages through the real decoder."""
    ordered = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
    values = [
        json.dumps({k: v for k, v in row.items() if k not in ("partition", "offset")}).encode()
        for row in ordered
    ]
    raw = pa.RecordBatch.from_arrays(
        [
            pa.array([plan.topic] * len(ordered)),
            pa.array([row["partition"] for row in ordered], pa.int32()),
            pa.array([row["offset"] for row in ordered], pa.int64()),
            pa.array(values, pa.binary()),
            pa.array([0] * len(ordered), pa.timestamp("us", "UTC")),
        ],
        schema=RAW,
    )
    schema = decoded_schema(plan)
    return pa.Table.from_batches(decoded(plan, schema, None, chunks([raw])), schema=schema)


def frames(
    spark: Any, made: HandMadeTree, results: list[Row], quarantine: list[Place]
) -> TreeFrames:
    values = values_of(made.query)
    plans = leaf_plans(made.query, values)
    leaves = [
        hashed_rows(
            spark.createDataFrame(leaf_table(plan, made.rows[made.query.stream_name(leaf.name)])),
            plan,
            SALT,
            leaf.hashed_rows,
        )
        for plan, leaf in zip(plans, values.leaves, strict=True)
    ]
    table = spark.createDataFrame(result_table(made, results))
    shown = tree_result_columns(table, values, SALT)
    held = spark.createDataFrame(quarantine_table(quarantine))
    return TreeFrames(spark, values, plans, leaves, shown, held, SALT)


def result_table(made: HandMadeTree, results: list[Row]) -> pa.Table:
    columns = list(made.results[0]) if made.results else columns_of(made.query)
    types = {name: pa.int32() if name.endswith("_partition") else pa.int64() for name in columns}
    schema = pa.schema([*types.items(), ("phase", pa.string())])
    phased = [row | {"phase": ("run-time", "cleanup")[n % 2]} for n, row in enumerate(results)]
    return pa.Table.from_pylist(phased, schema=schema)


def quarantine_table(places: list[Place]) -> pa.Table:
    rows = [dict(zip(QUARANTINE.names, place, strict=True)) for place in places]
    return pa.Table.from_pylist(rows, schema=QUARANTINE)


def proved_as_single(
    place: Path, made: HandMadeTree, results: list[Row]
) -> tuple[dict[str, int], int]:
    """Totals and the number of failing keys, the way of a single join."""
    plan = SumPlan(tuple(compile_streams(made.query)), SALT, 3)
    spool = Spool(place, 3)
    summing = Summing(plan, spool)
    for stream in plan.streams:
        for batch in leaf_table(stream, made.rows[stream.name]).to_batches():
            summing.add_input(stream, batch)
    for batch in result_table(made, results).to_batches():
        summing.add_results(batch)
    for batch in quarantine_table(made.rejected).to_batches():
        summing.add_quarantine(batch)
    spool.flush()
    found = [judged_bucket(plan, place, bucket) for bucket in range(3)]
    counted = summing.counted
    failing = sum(each.failing for each in found)
    totals = {
        "expected": sum(each.expected for each in found),
        "run_time": counted.run_time,
        "cleanup": counted.cleanup,
        "failing": failing,
        "rejected": counted.rejected.rows,
        "quarantined": counted.quarantined.rows,
        "rejected_wrong": int(counted.rejected != counted.quarantined),
    }
    return totals, failing


def columns_of(tree: Query) -> list[str]:
    fields = [f"{leaf}_{f.name}" for leaf in tree.inputs for f in tree.payload(leaf)]
    places = [f"{leaf}_{at}" for leaf in tree.inputs for at in ("partition", "offset")]
    return [*tree.key_names, *fields, *places]


def proved(
    spark: Any,
    made: HandMadeTree,
    results: list[Row],
    *,
    quarantine: list[Place] | None = None,
    exhaustive: bool = False,
) -> tuple[dict[str, int], pa.Table, Difference]:
    """Totals, failing keys, and what differs in these or, `exhaustive`, anywhere."""
    held = made.rejected if quarantine is None else quarantine
    found = frames(spark, made, results, held)
    try:
        judged = found.judged()
        only = None if exhaustive else spark.createDataFrame(judged.failing)
        totals, failing = dict(judged.totals), judged.failing
        return totals, failing, found.difference(only, 1000)
    finally:
        found.close()


def root_keys(made: HandMadeTree) -> list[str]:
    return [key.name for key in made.query.tree.root.keys]


def differences(values: TreeValues, right: list[Row], wrong: list[Row]) -> Counter[str]:
    """What must be named: each result that is not as often there as it should be."""

    def counted(rows: list[Row]) -> Counter[Any]:
        return Counter(tuple(row.items()) for row in rows)

    expected, found = counted(right), counted(wrong)
    named: Counter[str] = Counter()
    for each in {*expected, *found}:
        if expected[each] != found[each]:
            row = dict(each)
            named[
                as_text(
                    {name: row[name] for name, _ in values.root},
                    {
                        leaf.name: {at: row[f"{leaf.name}_{at}"] for at in ("partition", "offset")}
                        for leaf in values.leaves
                    },
                    expected[each],
                    found[each],
                )
            ] += 1
    return named


def as_text(key: Row, coordinates: Any, expected: int, found: int) -> str:
    return json.dumps([key, coordinates, expected, found], sort_keys=True)


def trees() -> list[HandMadeTree]:
    """Some that have results, and some that read a stream twice."""
    found: list[HandMadeTree] = []
    for number in range(39, -1, -1):
        made = HandMadeTree.of(text_of(number).replace("'int'", "'int?'"), number)
        streams = [leaf.stream for leaf in made.query.tree.leaves]
        if 0 < len(made.results) < 2000 and len(streams) > 2:
            found.append(made)
    twice = [made for made in found if len(made.query.streams) < len(made.query.inputs)]
    return [*found[:2], *twice[:2]]


MADE = trees()
TREES = [pytest.param(made, id=f"{len(made.query.inputs)}-{n}") for n, made in enumerate(MADE)]


@pytest.mark.parametrize("made", TREES)
def test_what_is_right_is_proved(spark: Any, made: HandMadeTree) -> None:
    totals, failing, found = proved(spark, made, made.results, exhaustive=True)
    n = len(made.results)
    assert (totals["expected"], totals["run_time"], totals["cleanup"]) == (n, n - n // 2, n // 2)
    assert totals["keys"] == len({tuple(row[k] for k in root_keys(made)) for row in made.results})
    assert (totals["failing"], failing.num_rows) == (0, 0)
    assert totals["rejected"] == totals["quarantined"] == len(made.rejected)
    assert totals["rejected_wrong"] == 0
    assert (found.missing, found.doubled, found.examples) == (0, 0, [])


@pytest.mark.parametrize(
    ("made", "exhaustive"),
    [
        # Half of the trees in each way; in `make soak` the other halves.
        pytest.param(
            *made.values,
            way,
            id=f"{made.id}-{way}",
            marks=() if way == bool(n % 2) else pytest.mark.soak,
        )
        for n, made in enumerate(TREES)
        for way in (False, True)
    ],
)
def test_what_is_wrong_is_named(spark: Any, made: HandMadeTree, exhaustive: bool) -> None:
    rng = random.Random(len(made.results))
    wrong = made.results[:]
    victim = rng.choice(wrong)
    wrong.remove(victim)  # missing
    wrong.append(rng.choice(made.results))  # doubled, or the missing one back
    at = rng.randrange(len(wrong))
    column = rng.choice(list(victim))
    wrong[at] = wrong[at] | {column: (wrong[at][column] or 0) + 5}
    values = values_of(made.query)
    named = differences(values, made.results, wrong)
    totals, failing, found = proved(spark, made, wrong, exhaustive=exhaustive)
    assert totals["failing"] == failing.num_rows > 0
    assert (
        Counter(
            as_text(each["key"], each["coordinates"], each["expected"], each["found"])
            for each in found.examples
        )
        == named
    )
    assert found.missing - found.doubled == len(made.results) - len(wrong)


def test_an_input_that_is_in_neither_place_is_found(spark: Any) -> None:
    made = next(each for each in MADE if each.rejected)
    totals, _, _ = proved(spark, made, made.results, quarantine=made.rejected[1:])
    assert totals["rejected_wrong"] == 1
    assert totals["quarantined"] == totals["rejected"] - 1


def test_of_a_stream_that_is_read_twice_a_rejected_message_counts_once(spark: Any) -> None:
    made = next(each for each in MADE if len(each.query.streams) < len(each.query.inputs))
    [(twice, _)] = Counter(leaf.stream for leaf in made.query.tree.leaves).most_common(1)
    bad = dict.fromkeys(("f0", "f1", "f2")) | {"partition": 0, "offset": 500}
    rows = made.rows | {twice: [*made.rows[twice], bad]}
    place = (made.query.topic(twice), 0, 500)
    more = replace(made, rows=rows, rejected=[*made.rejected, place])
    for twice_held in (False, True):
        held = [*more.rejected, *([place] if twice_held else [])]
        totals, _, _ = proved(spark, more, more.results, quarantine=held)
        assert totals["rejected_wrong"] == twice_held
        assert totals["rejected"] == len(more.rejected)
        assert totals["quarantined"] == len(held)


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_a_single_join_is_proved_alike_as_a_tree(spark: Any, kind: str, tmp_path: Path) -> None:
    text = """
[streams.a]
fields = { f0 = "int?", f1 = "int?", f2 = "int?" }
[streams.b]
fields = { f0 = "int?", f1 = "int?", f2 = "int?" }
[streams.c]
fields = { f0 = "int?", f1 = "int?", f2 = "int?" }
[join]
inputs = ["a", "b", "c"]
on = [
  { name = "k", columns = { a = "f0", b = "f1", c = "f1" } },
  { name = "l", columns = { a = "f2", b = "f1", c = "f2" } },
]
"""
    made = next(m for m in (HandMadeTree.of(text, n) for n in count()) if len(m.results) > 3)
    results = made.results if kind == "right" else [*made.results[1:], made.results[1]]
    totals, failing, found = proved(spark, made, results)
    del totals["keys"]  # a tree knows only those that have results
    assert proved_as_single(tmp_path, made, results) == (totals, failing.num_rows)
    assert (failing.num_rows, found.missing, found.doubled) == {
        "right": (0, 0, 0),
        "wrong": (len({key_of(made, each) for each in made.results[:2]}), 1, 1),
    }[kind]


def key_of(made: HandMadeTree, result: Row) -> tuple[Any, ...]:
    return tuple(result[name] for name in root_keys(made))


def circle() -> tuple[Query, dict[str, list[Row]]]:
    """A tree whose keys form a circle, and rows of its streams."""
    text = (
        CIRCLE.replace("t = 'timestamp'", "z = 'int'")
        .replace('c.t"', 'c.z"')
        .replace('d = "t"', 'd = "z"')
    )
    tree = query(text)
    rng = random.Random(3)
    rows = {
        name: [
            {f: rng.randrange(3) for f in "xyz"} | {"partition": 0, "offset": n} for n in range(12)
        ]
        for name in tree.streams
    }
    return tree, rows


def test_keys_in_a_circle(spark: Any) -> None:
    tree, rows = circle()
    made = HandMadeTree(tree, rows, all_results(tree, rows), [])
    totals, _, _ = proved(spark, made, made.results, exhaustive=True)
    found_all = totals["run_time"] + totals["cleanup"]
    assert totals["expected"] == found_all == len(made.results) > 100
    assert totals["failing"] == 0
    totals, _, found = proved(spark, made, made.results[1:])
    assert (totals["failing"], found.missing, found.doubled) == (1, 1, 0)


def test_a_leaf_is_decoded_and_summed_once(spark: Any) -> None:
    """Its sums are read twice: by the fold and beside the quarantine."""
    made = MADE[0]
    frames_ = frames(spark, made, made.results, made.rejected)
    plan = frames_.judging()._jdf.queryExecution().executedPlan().toString()
    assert "Scan ExistingRDD" in plan
    assert "hashpartitioning(k0#" not in plan, "that would be the summing of a leaf"
    held = spark.sparkContext._jsc.getPersistentRDDs().size()
    assert held >= len(made.query.inputs)
    frames_.close()
