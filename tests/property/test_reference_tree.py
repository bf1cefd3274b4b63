"""The fast reference of trees against the slow one, and the shipped trees by it and arithmetic."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import event
from hypothesis import strategies as st

from spillway.decode import tree_spec
from spillway.engine.join.hashing import xxhash64
from spillway.policy.lineage import Grouping, traced
from spillway.produce.generate import StreamGenerator, sources
from spillway_schemas import scenario
from spillway_schemas.query import Query, load_query, query_of
from spillway_schemas.scenario import load_scenario
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.reference_tree import (
    coordinates,
    decoded,
    differences,
    identities,
    joined,
    key_values,
    valued,
)
from tests.property.test_query_trees import FIELDS, brute_force, rows_of, text_of

SHIPPED = {"five_way": "five-way", "bushy": "bushy", "quoted_trades": "quoted-trades"}
SCENARIOS = Path(scenario.__file__).parent / "scenarios"
Rows = dict[str, pl.DataFrame]


# ----------------------------------------------------------------------------- against brute force


def frame_of(rows: list[dict[str, int]], partitions: int = 2) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=dict.fromkeys(FIELDS, pl.Int64))
    number = pl.int_range(pl.len())
    return frame.with_columns(
        partition=(number % partitions).cast(pl.Int32), offset=(number // partitions).cast(pl.Int64)
    )


@explored(30, 200, st.integers(0, 2**32), st.integers(0, 2**32), soak=2000)
def test_plain_joins_give_what_all_combinations_give(number: int, seed: int) -> None:
    query = query_of(parse_toml(text_of(number), Path("q.toml")))
    rows = rows_of(query, seed)
    frames = {name: frame_of(each) for name, each in rows.items()}
    expected: Counter[Any] = Counter()
    for (by_leaf, _), count in brute_force(query, rows).items():
        of = dict(by_leaf)
        expected[
            tuple(each for leaf in query.inputs for each in (of[leaf] % 2, of[leaf] // 2))
        ] += count
    found = identities(query, frames)
    assert Counter(found.iter_rows()) == expected
    assert found.columns == [
        f"{leaf}_{c}" for leaf in query.inputs for c in ("partition", "offset")
    ]
    event(f"level {query.tree.level(query.tree.root.name)}, results: {bool(expected)}")


def test_multisets_are_compared_row_by_row() -> None:
    some = pl.DataFrame({"a": [1, 1, 2], "b": [0, 0, 3]})
    assert differences(some, some.reverse()).is_empty()
    other = pl.DataFrame({"b": [0, 3, 3], "a": [1, 2, 2]})
    assert sorted(differences(other, some).iter_rows()) == [(1, 0, -1), (2, 3, 1)]
    assert differences(some.clear(), some.clear()).is_empty()


def test_null_keys_join_nothing_and_derived_keys_are_evaluated() -> None:
    text = """
    [streams.a]
    fields = { k = "string?", at = "timestamp" }
    filter = "k is null or k <> 'gone'"
    [streams.b]
    fields = { k = "string?", at = "timestamp" }
    [join]
    inputs = ["a", "b"]
    on = ["k", { name = "minute", expression = "date_trunc('minute', at)" }]
    """
    query = query_of(parse_toml(text, Path("q.toml")))
    at = [f'"at":"2026-01-05T14:30:{second}.5Z"' for second in ("01", "59")]

    def rows(stream: str, *keys: str) -> pl.DataFrame:
        values = [b"{%s}" % f"{at[n % 2]}{key and ','}{key}".encode() for n, key in enumerate(keys)]
        return decoded(query, stream, ((1, n, value) for n, value in enumerate([*values, b"no"])))

    frames = {
        "a": rows("a", '"k":"x"', "", '"k":"gone"', '"k":"y"'),
        "b": rows("b", '"k":"x"', '"k":null', '"k":"gone"', '"k":"x"'),
    }
    assert [frame.height for frame in frames.values()] == [3, 4]
    assert sorted(identities(query, frames).iter_rows()) == [(1, 0, 1, 0), (1, 0, 1, 3)]


# -------------------------------------------------------------------------------- shipped trees


@cache
def shipped(name: str) -> tuple[Query, Rows, dict[str, StreamGenerator]]:
    """A shipped tree, with the decoded rows of its scenario: partitions by row, in turn."""
    query, frames, made = load_query(name), {}, {}
    for source in sources(load_scenario(SHIPPED[name])):
        assert source.topic == query.topic(source.stream)
        values = [v for p in source.plan for v in source.chunk(p.number).values.to_pylist()]
        messages = ((n % 4, n // 4, value) for n, value in enumerate(values))
        frames[source.stream] = decoded(query, source.stream, messages)
        made[source.stream] = source
    return query, frames, made


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_makes_what_its_query_reads(name: str) -> None:
    query, rows, made = shipped(name)
    assert set(made) == set(query.streams)
    for stream, source in made.items():
        valid = sum(int(source.chunk(plan.number).valid.sum()) for plan in source.plan)
        assert rows[stream].height == valid > 0.98 * source.rows


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("five_way", 1_200_000, 2_000_000),
        ("bushy", 70_000, 80_000),
        ("quoted_trades", 150_000, 400_000),
    ],
)
def test_a_shipped_tree_has_a_sane_number_of_results_each_once(
    name: str, least: int, most: int
) -> None:
    query, rows, _ = shipped(name)
    found = identities(query, rows)
    assert least < found.height < most
    assert found.n_unique() == found.height
    assert found.columns == tree_spec(query).result_schema.names[-found.width :]


def by_arithmetic(rows: Rows) -> list[int]:
    """How many rows the joins of the five-way tree give: a row of C meets all of A and B with its
    c1, and a row of D all of these rows of C and all of E."""

    def times(frame: pl.DataFrame, key: str, other: str) -> pl.DataFrame:
        counts = rows[other].group_by(pl.col(f"{other}1").alias(key)).agg(met=pl.len())
        found = frame.join(counts, on=key)
        return found.with_columns(n=pl.col("n") * pl.col("met").cast(pl.Int64)).drop("met")

    abc = times(times(rows["c"].with_columns(n=pl.lit(1, pl.Int64)), "c1", "a"), "c1", "b")
    of_c2 = abc.group_by(pl.col("c2").alias("d1")).agg(pl.col("n").sum())
    abcd = rows["d"].join(of_c2, on="d1")
    return [int(frame["n"].sum()) for frame in (abc, abcd, times(abcd, "d2", "e"))]


def test_the_results_of_the_five_way_tree_by_arithmetic() -> None:
    query, rows, _ = shipped("five_way")
    assert [table.height for table in joined(query.tree, rows).values()] == by_arithmetic(rows)


@pytest.mark.server
@pytest.mark.parametrize(
    ("ratios", "millions"),
    [("3-1-1", [2.8, 5.6, 11.2]), ("1-3-3", [0.4, 2.2, 12.9]), ("3-2-3", [2.8, 11.2, 67.2])],
)
def test_the_papers_scenarios_give_as_many_rows_as_their_files_say(
    ratios: str, millions: list[float]
) -> None:
    name = f"papers-five-way-{ratios}"
    query, rows = load_query("five_way"), {}
    for source in sources(load_scenario(name)):
        values = [v for p in source.plan for v in source.chunk(p.number).values.to_pylist()]
        rows[source.stream] = decoded(query, source.stream, ((0, 0, value) for value in values))
    assert [round(count / 1e6, 1) for count in by_arithmetic(rows)] == millions
    said = f"The joins give {millions[0]}, {millions[1]} and {millions[2]} million rows."
    assert said in (SCENARIOS / f"{name}.toml").read_text()


# ----------------------------------------------------------------- lineage by what results vanish

GROUPS = 8
TOP = Grouping(lambda hashes: (hashes >> np.uint64(61)).astype(np.int64), GROUPS)


def hashes_of(query: Query, rows: Rows, join: str, table: pl.DataFrame) -> Any:
    return xxhash64([each.to_arrow() for each in key_values(query, rows, join, table)])


def some_of(name: str, stream: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Few rows of a shipped tree that still meet each other."""
    if name != "five_way":
        return rows.head(3_000)
    return rows.filter(pl.first() % 10 == 3) if stream in "abc" else rows


@pytest.mark.parametrize("name", SHIPPED)
def test_without_a_group_exactly_its_results_and_intermediate_rows_are_gone(name: str) -> None:
    """P_output and P_inter by their meaning: leave out the rows of one group of one join, and see
    what the tree then does not give."""
    query, all_rows, _ = shipped(name)
    rows = {stream: some_of(name, stream, frame) for stream, frame in all_rows.items()}
    tree = query.tree
    number = {join.name: n for n, join in enumerate(tree.joins)}
    groupings = dict.fromkeys(number.values(), TOP)
    tables = joined(tree, rows)
    lineage = {
        name: {number[each]: hashes_of(query, rows, each, table) for each in tree.joins_below(name)}
        for name, table in tables.items()
    }
    output = traced(lineage[tree.root.name], groupings)
    kept: dict[int, np.ndarray] = {}
    for name in tables:
        if name != tree.root.name:
            for each, counts in traced(lineage[name], groupings, 40.0).items():
                kept[each] = kept.get(each, 0.0) + counts
    assert output[number[tree.root.name]].sum() == tables[tree.root.name].height > 500
    for join in tree.joins:
        # One input that is a stream: without its rows of a group the group gives nothing.
        leaf = next((each for each in join.inputs if tree.join(each) is None), None)
        if leaf is None:
            continue
        sources_ = [tree.source(key, leaf) for key in join.keys]
        keys = [valued(rows[leaf], each.expression).to_arrow() for each in sources_]
        group = TOP.group_of(xxhash64(keys))
        for g in range(GROUPS):
            less = joined(tree, {**rows, leaf: rows[leaf].filter(pl.Series(group != g))})
            gone = {each: tables[each].height - less[each].height for each in tables}
            assert output[number[join.name]][g] == gone[tree.root.name]
            further_up = [n for n in tables if join.name in tree.joins_below(n)]
            stored = sum(gone[n] for n in further_up if n != tree.root.name)
            assert kept.get(number[join.name], np.zeros(GROUPS))[g] == 40.0 * stored
    some = coordinates(query, rows, tables[tree.joins[0].name])
    assert some.height == tables[tree.joins[0].name].height
