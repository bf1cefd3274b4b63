"""The proof of a tree against brute force: it takes what is right and finds what is not.

Trees, rows and the reference are those of `test_query_trees`: the reference takes every combination
of rows. Here the statement that Spark runs is run by polars, on hashes that Python makes.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, event
from hypothesis import strategies as st

from spillway.decode.values import LeafValues, TreeValues, leaf_plans, outwards, values_of
from spillway.verify.arithmetic import PRIMES, judge_folded
from spillway.verify.fold import fold_of, fold_sql
from spillway_schemas.query import Query, QueryError, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_query_trees import FIELDS, VALUES, text_of, value_of

Row = dict[str, Any]
Key = tuple[Any, ...]


def query(text: str) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


def stream_rows(query: Query, seed: int) -> dict[str, list[Row]]:
    """A few rows of each stream, with their coordinates."""
    rng = random.Random(seed)
    return {
        name: [
            {f: rng.randrange(VALUES) for f in FIELDS}
            | {"partition": rng.randrange(2), "offset": n}
            for n in range(rng.randint(1, 4))
        ]
        for name in query.streams
    }


def all_results(
    query: Query, rows: Mapping[str, list[Row]], of_leaf: Mapping[str, list[Row]] | None = None
) -> list[Row]:
    """The reference: every combination of rows in which all keys are equal, as a row of results.

    `of_leaf`: the rows that count, where not all of the stream's do.
    """
    tree, found = query.tree, []
    counted = of_leaf or {leaf.name: rows[leaf.stream] for leaf in tree.leaves}
    for picked in itertools.product(*(counted[leaf.name] for leaf in tree.leaves)):
        values = dict(zip((leaf.name for leaf in tree.leaves), picked, strict=True))
        result: Row = {}
        for join in tree.joins:
            for key in join.keys:
                equal = {value_of(values, tree.source(key, each)) for each in join.inputs}
                if len(equal) > 1:
                    break
                result.setdefault(key.name, *equal)
            else:
                continue
            break
        else:
            for leaf, row in values.items():
                result |= {f"{leaf}_{f.name}": row[f.name] for f in query.payload(leaf)}
                result |= {f"{leaf}_{at}": row[at] for at in ("partition", "offset")}
            found.append(result)
    return found


def hashed(leaf: int, partition: Any, offset: Any, payload: Sequence[Any]) -> int:
    """A hash of 64 bits, as an int64."""
    text = repr((leaf, partition, offset, list(payload)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def leaf_table(leaf: LeafValues, number: int, rows: Sequence[Row]) -> pl.DataFrame:
    """A leaf's rows summed by its sources, as `trees.leaf_sums` sums them."""
    sums: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        read = {f"k{i}": row[source] for i, source in enumerate(leaf.sources)}
        named = read | {f"p{i}": row[field] for i, field in enumerate(leaf.fields)}
        payload = [named[column] for column in leaf.hashed_rows]
        digest = hashed(number, row["partition"], row["offset"], payload)
        found = sums[tuple(read.values())]
        for i, more in enumerate((1, digest % PRIMES[0], digest % PRIMES[1])):
            found[i] += more
    nulls = (None,) * len(leaf.sources)
    sums[nulls] = [5, 6, 7]  # rejected rows: the fold has nothing to do with them
    names = [f"k{i}" for i in range(len(leaf.sources))]
    return pl.DataFrame(
        [(*key, *found) for key, found in sums.items()],
        schema=dict.fromkeys([*names, "n", "a", "b"], pl.Int64),
        orient="row",
    )


def folded(values: TreeValues, tables: Sequence[pl.DataFrame]) -> dict[Key, Row]:
    """What the statement gives for each key of the root."""
    names = [f"leaf{i}" for i in range(len(tables))]
    text = fold_sql(fold_of(values), names)
    with pl.SQLContext(dict(zip(names, tables, strict=True)), eager=True) as context:
        found = context.execute(text)
    columns = [f"v{value}" for value in values.by]
    return {tuple(row[name] for name in columns): row for row in found.to_dicts()}


def relations(values: TreeValues, tables: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """What is left after each step."""
    fold = fold_of(values)
    names = [f"leaf{i}" for i in range(len(tables))]
    steps, _, _ = fold_sql(fold, names).rpartition(") SELECT ")
    with pl.SQLContext(dict(zip(names, tables, strict=True)), eager=True) as context:
        return [context.execute(f"{steps}) SELECT * FROM s{n}") for n in range(len(fold.steps))]


def weight(values: TreeValues, result: Row, prime: int) -> int:
    return math.prod(
        hashed(
            i,
            result[f"{leaf.name}_partition"],
            result[f"{leaf.name}_offset"],
            [result[column] for column in leaf.hashed_results],
        )
        % prime
        for i, leaf in enumerate(values.leaves)
    )


def measured(values: TreeValues, results: Sequence[Row]) -> dict[Key, list[int]]:
    """Number of results, and their weights' sums, for each key of the root."""
    found: dict[Key, list[int]] = defaultdict(lambda: [0, 0, 0])
    for result in results:
        sums = found[tuple(result[name] for name, _ in values.root)]
        for i, more in enumerate((1, *(weight(values, result, p) % p for p in PRIMES))):
            sums[i] += more
    return found


def failing(values: TreeValues, tables: Sequence[pl.DataFrame], results: Sequence[Row]) -> set[Key]:
    """The keys of the root that fail the test."""
    fold, found = folded(values, tables), measured(values, results)
    keys = list({*fold, *found})
    nothing = dict.fromkeys("cdab", 0) | {"f": 0.0}

    def of(name: str) -> list[Any]:
        return [fold.get(key, nothing)[name] for key in keys]

    verdicts = judge_folded(
        np.array([of("c"), of("d")], np.int64),
        np.array(of("f"), np.float64),
        np.array([of("a"), of("b")], np.int64),
        np.array([found[key][0] for key in keys], np.int64),
        np.array([[found[key][i] for key in keys] for i in (1, 2)], np.int64),
    )
    return {key for key, wrong in zip(keys, verdicts.wrong.tolist(), strict=True) if wrong}


def made(number: int, seed: int) -> tuple[Query, TreeValues, list[pl.DataFrame], list[Row]]:
    """A tree, what the proof reads of it, its leaves' sums, and all its results."""
    tree = query(text_of(number))
    rows = stream_rows(tree, seed)
    values = values_of(tree)
    tables = [
        leaf_table(leaf, i, rows[tree.stream_name(leaf.name)])
        for i, leaf in enumerate(values.leaves)
    ]
    return tree, values, tables, all_results(tree, rows)


NUMBER = st.integers(0, 2**32)


@explored(50, 150, NUMBER, NUMBER, soak=3000)
def test_the_fold_is_the_sum_over_all_results(number: int, seed: int) -> None:
    _, values, tables, results = made(number, seed)
    expected = measured(values, results)
    found = folded(values, tables)
    kinds = "linear" if not fold_of(values).joined else "combined"
    event(f"{kinds}, {len(values.leaves)} leaves, results: {bool(results)}")
    assert {
        key: [row["c"], row["d"], row["f"], row["a"], row["b"]] for key, row in found.items()
    } == {
        key: [n, n, float(n), a % PRIMES[0], b % PRIMES[1]] for key, (n, a, b) in expected.items()
    }
    assert failing(values, tables, results) == set()


@explored(50, 150, NUMBER, NUMBER, st.randoms(), soak=3000)
def test_whatever_is_wrong_is_found_at_its_key(number: int, seed: int, rng: random.Random) -> None:
    tree, values, tables, results = made(number, seed)
    assume(results)
    told = [name for name, _ in values.root]
    wrong = results[:]
    at = rng.randrange(len(results))
    how = rng.choice(["missing", "doubled", "altered", "in place of another"])
    if how == "missing":
        del wrong[at]
    elif how == "doubled":
        wrong.append(results[at])
    elif how == "altered":
        column = rng.choice(list(results[at]))
        wrong[at] = results[at] | {column: results[at][column] + 1}
        how += f": {'key' if column in tree.key_names else column.split('_')[-1]}"
    else:
        wrong[at] = rng.choice(results)
    event(how)
    frozen = [Counter(tuple(row.items()) for row in some) for some in (results, wrong)]
    different = [dict(row) for row in (frozen[0] - frozen[1]) + (frozen[1] - frozen[0])]
    assert failing(values, tables, wrong) == {
        tuple(row[name] for name in told) for row in different
    }


@explored(150, 450, NUMBER, soak=9000)
def test_a_tree_is_linear_if_each_edge_gives_its_keys_from_one_leaf(number: int) -> None:
    """The theorem of docs/proof.md, and its second half: then one leaf has the root's key."""
    tree = query(text_of(number)).tree
    values = values_of(query(text_of(number)))
    fold = fold_of(values)
    one = all(
        len({tree.source(key, each).leaf for key in join.keys}) == 1
        for join in tree.joins
        for each in join.inputs
    )
    event(f"one leaf an edge: {one}, linear: {not fold.joined}")
    if one:
        assert fold.joined == ()
    if not fold.joined:
        assert any(set(values.by) <= set(leaf.has) for leaf in values.leaves)
        assert all(set(step.kept) == set(values.leaves[step.into].has) for step in fold.steps)


@explored(25, 100, NUMBER, NUMBER, soak=900)
def test_no_relation_has_a_combination_of_values_twice(number: int, seed: int) -> None:
    """So what is absorbed has one sum for each row of the other, which does not grow."""
    _, values, tables, _ = made(number, seed)
    for step, found in zip(fold_of(values).steps, relations(values, tables), strict=True):
        columns = [f"v{value}" for value in step.kept]
        assert found.columns[: len(columns)] == columns
        assert not found.select(columns).is_duplicated().any()


@explored(50, 150, NUMBER, soak=3000)
def test_each_leaf_is_decoded_with_all_that_it_gives_to_keys(number: int) -> None:
    tree = query(text_of(number))
    values = values_of(tree)
    for leaf, plan in zip(values.leaves, leaf_plans(tree, values), strict=True):
        keys = plan.sources[: len(plan.keys)]
        assert set(keys) == set(tree.key_sources(leaf.name))
        assert len(keys) == len(set(keys)) == len(leaf.values)
        assert plan.payload.names == [field.name for field in tree.payload(leaf.name)]
        assert plan.topic == tree.topic(leaf.name)
    shown = {name for leaf in values.leaves for name, _ in leaf.shown}
    assert shown == set(tree.key_names)
    assert all(len(each) > 1 for each in by_value(values).values())


@explored(50, 150, NUMBER, soak=3000)
def test_leaves_are_joined_outwards_from_the_roots_key(number: int) -> None:
    """None is joined with those before it by nothing: that would be every pair of rows."""
    values = values_of(query(text_of(number)))
    first, *others = outwards(values)
    assert sorted([first, *others]) == list(range(len(values.leaves)))
    mine = [len(set(values.by) & set(leaf.has)) for leaf in values.leaves]
    assert mine[first] == max(mine) > 0
    known = set(values.leaves[first].has)
    for n in others:
        assert known & set(values.leaves[n].has)
        known |= set(values.leaves[n].has)


def by_value(values: TreeValues) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for leaf in values.leaves:
        for value in leaf.has:
            found[value].append(leaf.name)
    return found


FIELDS_OF = "fields = { x = 'int', y = 'int', t = 'timestamp' }"
STREAMS = "\n".join(f"[streams.{name}]\n{FIELDS_OF}" for name in "abcd")
CIRCLE = f"""
{STREAMS}
[join.ab]
inputs = ["a", "b"]
on = ["x"]
[join.abc]
inputs = ["ab", "c"]
on = [{{ name = "k", columns = {{ ab = "a.y", c = "x" }} }},
      {{ name = "l", columns = {{ ab = "b.y", c = "y" }} }}]
[join.all]
inputs = ["abc", "d"]
on = [{{ name = "m", columns = {{ abc = "c.t", d = "t" }} }}]
"""


def test_keys_in_a_circle_are_combined_and_the_rest_is_not() -> None:
    fold = fold_of(values_of(query(CIRCLE)))
    assert len(fold.joined) == 1
    assert [step.absorbs for step in fold.steps].count(False) == 1


LATER = f"""
{STREAMS}
[join.ab]
inputs = ["a", "b"]
on = ["x"]
[join.abc]
inputs = ["ab", "c"]
on = [{{ name = "k", columns = {{ ab = "a.y", c = "x" }} }}]
[join.all]
inputs = ["abc", "d"]
on = [{{ name = "l", columns = {{ abc = "b.y", d = "x" }} }}]
"""


def test_later_keys_of_two_leaves_need_no_pairs() -> None:
    """Upwards along the joins, `ab` would have to hand on pairs of a.y and b.y."""
    fold = fold_of(values_of(query(LATER)))
    assert fold.joined == ()
    assert [name for name, _ in fold.values.root] == ["l"]


def test_keys_that_must_be_equal_are_of_one_type() -> None:
    text = LATER.replace('d = "x"', 'd = "t"')
    with pytest.raises(
        QueryError, match=r"q.toml:\d+: key l is not of one type: abc int, d timestamp"
    ):
        leaf_plans(query(text), values_of(query(text)))


def test_an_expression_is_one_source_however_it_is_written() -> None:
    text = LATER.replace('ab = "a.y"', 'ab = "a.x + 1"').replace('abc = "b.y"', 'abc = "a.x  +  1"')
    [leaf, *_] = values_of(query(text)).leaves
    assert leaf.sources == ("x", "x + 1")


def test_counts_that_do_not_fit_64_bits_fail_and_are_told() -> None:
    """Seven leaves of 1,000 rows of one key: 10^21 results."""
    names = [f"s{i}" for i in range(7)]
    text = "\n".join(f"[streams.{name}]\n{FIELDS_OF}" for name in names)
    text += f'\n[join.j]\ninputs = {names}\non = ["x"]\n'.replace("'", '"')
    values = values_of(query(text.replace('"int"', "'int'")))
    table = pl.DataFrame({"k0": [1], "n": [1000], "a": [3], "b": [4]})
    [row] = folded(values, [table] * 7).values()
    assert (row["c"], row["d"], row["f"]) == (10**21 % PRIMES[0], 10**21 % PRIMES[1], 1e21)
    verdicts = judge_folded(
        np.array([[row["c"]], [row["d"]]]),
        np.array([row["f"]]),
        np.array([[row["a"]], [row["b"]]]),
        np.array([10**21 % (PRIMES[0] * PRIMES[1])]),
        np.array([[row["a"]], [row["b"]]]),
    )
    assert verdicts.wrong.tolist() == [True]
    assert verdicts.expected.tolist() == [10**21]
