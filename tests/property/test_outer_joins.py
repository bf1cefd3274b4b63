"""What an outer join is: the reference that all else is held against is SQL's own join. What lacks
rows of it is found by key, whatever the hashes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.join.spec import InputSpec, JoinSpec
from spillway.engine.spill.counting import unmatched_of
from spillway.engine.spill.unmatched import unmatched_rows
from tests.property.outer_reference import Rows, outer_joined


def by_sql(inputs: Sequence[Rows], optional: Sequence[int]) -> Counter[Any]:
    """Required inputs first, then a left join of each optional one; full joins where all are."""
    base = sqlite3.connect(":memory:")
    names = [f"t{i}" for i in range(len(inputs))]
    for name, rows in zip(names, inputs, strict=True):
        base.execute(f"create table {name} (k, {name}_row)")
        base.executemany(f"insert into {name} values (?, ?)", rows)
    ordered = sorted(range(len(inputs)), key=lambda i: i in optional)
    text = names[ordered[0]]
    for i in ordered[1:]:
        how = "join"
        if i in optional:
            how = "full join" if len(optional) == len(inputs) else "left join"
        text = f"{text} {how} {names[i]} using (k)"
    columns = ", ".join(f"{name}_row" for name in names)
    return Counter(base.execute(f"select k, {columns} from {text}").fetchall())


@given(st.data())
def test_the_reference_is_what_sql_says(data: st.DataObject) -> None:
    m = data.draw(st.integers(2, 4))
    optional = sorted(data.draw(st.sets(st.integers(0, m - 1))))
    keys = st.lists(st.integers(0, 3), max_size=5)
    inputs = [[(key, n) for n, key in enumerate(data.draw(keys))] for _ in range(m)]
    assert outer_joined(inputs, optional) == by_sql(inputs, optional)


KEYS = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int64(), False)])


def join_of(m: int, optional: Sequence[int]) -> JoinSpec:
    payload = pa.schema([("x", pa.int64())])
    inputs = [InputSpec(f"s{i}", payload, optional=i in optional) for i in range(m)]
    return JoinSpec(0, KEYS, tuple(inputs))


def table_of(join: JoinSpec, at: int, rows: Rows) -> pa.Table:
    """Of rows whose offsets stand for them."""
    columns = {"k": [k for (k, _), _ in rows], "n": [n for (_, n), _ in rows]}
    columns |= {"x": [0] * len(rows), "partition": [0] * len(rows), "offset": [o for _, o in rows]}
    return pa.table(columns, join.row_schema(at))


def offsets_of(join: JoinSpec, table: pa.Table) -> list[Any]:
    own = [table[f"{each.name}_offset"].to_pylist() for each in join.inputs]
    keys = zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True)
    return list(zip(keys, *own, strict=True))


@given(st.data())
def test_unmatched_results_are_those_of_the_reference_by_key(data: st.DataObject) -> None:
    """Keys of two columns, several of them with one hash: as no test of real hashes has them."""
    m = data.draw(st.integers(2, 4))
    optional = sorted(data.draw(st.sets(st.integers(0, m - 1), min_size=1)))
    doubtful = data.draw(st.sets(st.sampled_from(optional)))
    join = join_of(m, optional)
    few = [(k, n) for k in "ab" for n in (0, 1)]
    hash_of = {key: data.draw(st.sampled_from([0, 5, 9, 2**64 - 1])) for key in few}
    keys = st.lists(st.sampled_from(few), max_size=6)
    inputs = [[(key, n) for n, key in enumerate(data.draw(keys))] for _ in range(m)]

    def of(rows: Rows) -> Any:
        return np.array([hash_of[key] for key, _ in rows], np.uint64)

    given_ = [(of(rows), table_of(join, i, rows)) for i, rows in enumerate(inputs)]
    found: Counter[Any] = Counter()
    edge, batch_bytes = (
        data.draw(st.sampled_from([0, 4, 5, 6, 9, 10])),
        data.draw(st.integers(1, 200)),
    )
    rows_found = unmatched_rows(join, given_, doubtful)
    for lo, hi in ((0, edge), (edge, 2**64)):
        for batch in rows_found.between(lo, hi, batch_bytes) if rows_found and lo < hi else ():
            results = offsets_of(join, batch.table)
            found.update(results)
            # Each batch says of which hashes its results are.
            told = np.repeat(batch.hashes, batch.results)
            assert told.tolist() == [hash_of[key] for key, *_ in results]
            assert all(lo <= each < hi for each in told.tolist())
    every = outer_joined(inputs, optional)
    lacking = {r: n for r, n in every.items() if None in r}
    assert found == {
        r: n for r, n in lacking.items() if not any(r[1 + i] is None for i in doubtful)
    }


@given(st.data())
def test_unmatched_results_are_counted_as_they_are_found(data: st.DataObject) -> None:
    m = data.draw(st.integers(2, 4))
    optional = sorted(data.draw(st.sets(st.integers(0, m - 1), min_size=1)))
    doubtful = data.draw(st.sets(st.sampled_from(optional)))
    keys = st.lists(st.integers(0, 3), max_size=6)
    inputs = [[(key, n) for n, key in enumerate(data.draw(keys))] for _ in range(m)]
    hashes = np.array([key for rows in inputs for key, _ in rows], np.uint64)
    of = np.repeat(np.arange(m), [len(rows) for rows in inputs])
    lacking = [r for r in outer_joined(inputs, optional).elements() if None in r]
    wanted = [r for r in lacking if not any(r[1 + i] is None for i in doubtful)]
    assert unmatched_of(hashes, of, join_of(m, optional), doubtful) == len(wanted)
