"""The kernel runs any tree of joins: rows that come in any order give every result once.

The reference is the one of `test_query_trees`. Here rows arrive in epochs, each join keeps the rows
that it has seen, and what it gives goes on to its parent in the same epoch.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import event
from hypothesis import strategies as st

from spillway.engine.join.kernel import Rows, join_batches
from spillway.engine.join.planning import TreePlan, tree_plan
from spillway.engine.join.tree import TreeSpec
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_query_trees import brute_force, rows_of, text_of

EPOCHS = 3


def leaf_rows(plan: TreePlan, leaf: str, numbered: list[tuple[int, dict[str, int]]]) -> Rows:
    """Rows of a leaf as decoding would make them. `numbered`: offsets and values."""
    spec, own = plan.spec, plan.leaves[leaf]
    carried = (*own.keys, *own.payload)
    columns = [pa.array([row[s.expression] for _, row in numbered], pa.int64()) for s in carried]
    columns.append(pa.array([7] * len(numbered), pa.int32()))
    columns.append(pa.array([offset for offset, _ in numbered], pa.int64()))
    table = pa.Table.from_arrays(columns, schema=spec.row_schema(own.input))
    hashes = spec.hashes(spec.operators[own.input], table.columns[: len(own.keys)])
    order = np.argsort(hashes, kind="stable")
    return Rows(hashes[order], table.take(pa.array(order)), came_ms(numbered)[order])


def came_ms(numbered: list[tuple[int, dict[str, int]]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The Kafka times of rows: one a row, in the order of their offsets."""
    return np.array([1000 + offset for offset, _ in numbered], np.int64)


def run(query: Query, rows: dict[str, list[dict[str, int]]], seed: int) -> pa.Table:
    """All results of the root, epoch by epoch; in small batches, so that a hot key takes several,
    or in large ones of many keys."""
    rng = random.Random(seed)
    batch_bytes = rng.choice([200, 1 << 20])
    plan = tree_plan(query, lambda source: pa.int64())
    spec = plan.spec
    epoch_of = {
        leaf.name: [rng.randrange(EPOCHS) for _ in rows[leaf.stream]] for leaf in query.tree.leaves
    }
    state: list[list[Rows]] = [[] for _ in spec.inputs]
    results = [spec.root.joined_schema.empty_table()]
    for epoch in range(EPOCHS):
        new: list[list[Rows]] = [[] for _ in spec.inputs]
        for leaf in query.tree.leaves:
            came = [
                (offset, row)
                for offset, row in enumerate(rows[leaf.stream])
                if epoch_of[leaf.name][offset] == epoch
            ]
            new[plan.leaves[leaf.name].input] = [leaf_rows(plan, leaf.name, came)] if came else []
        for number, (join, upward) in enumerate(zip(spec.joins, spec.upward, strict=True)):
            inputs = spec.inputs_of(number)
            for batch in join_batches(
                join,
                [state[i] for i in inputs],
                [new[i] for i in inputs],
                batch_bytes=batch_bytes,
                sample_every=1,
            ):
                if upward is None:
                    results.append(batch.table)
                    continue
                up = spec.rows_up(number, batch)
                check_rows_up(spec, number, up)
                new[upward.input].append(up)
            for i in inputs:
                state[i] += new[i]
    return pa.concat_tables(results).combine_chunks()


def check_rows_up(spec: TreeSpec, join: int, rows: Rows) -> None:
    """Rows of a parent: sorted, in its space, each with the time of a row that it comes from."""
    upward = spec.upward[join]
    assert upward is not None
    space = spec.spaces[spec.operators[upward.input]]
    assert (rows.key_hash[1:] >= rows.key_hash[:-1]).all()
    assert all(space.lo <= h < space.hi for h in rows.key_hash.tolist())
    assert rows.kafka_ms is not None
    offsets = [name for name in rows.table.column_names if name.endswith("_offset")]
    for came, row in zip(
        rows.kafka_ms.tolist(), rows.table.select(offsets).to_pylist(), strict=True
    ):
        assert came - 1000 in row.values()


@explored(20, 120, st.integers(0, 2**32), st.integers(0, 2**32), soak=3000)
def test_a_tree_gives_every_result_once(number: int, seed: int) -> None:
    """Kills: a column of another position, a parent's hash of the wrong key, rows left unsorted,
    lineage of another join."""
    query = query_of(parse_toml(text_of(number), Path("q.toml")))
    rows = rows_of(query, seed)
    plan = tree_plan(query, lambda source: pa.int64())
    spec = plan.spec
    table = run(query, rows, seed)
    results = spec.results(table)
    columns = {name: results.column(name).to_pylist() for name in spec.result_schema.names}
    fields = [*query.key_names]
    fields += [f"{leaf}_{f.name}" for leaf in query.inputs for f in query.payload(leaf)]
    leaves = sorted(query.inputs)
    got: Counter[Any] = Counter(
        (
            tuple((leaf, columns[f"{leaf}_offset"][n]) for leaf in leaves),
            tuple(columns[name][n] for name in fields),
        )
        for n in range(table.num_rows)
    )
    assert got == brute_force(query, rows)
    event(f"joins: {len(spec.joins)}, results: {bool(got)}")
    assert spec.result_schema.names[: len(fields)] == fields
    for leaf in leaves:
        assert set(columns[f"{leaf}_partition"]) <= {7}
    for number, join in enumerate(query.tree.joins[:-1]):
        lineage = table.column(f"{join.name}_hash").to_pylist()
        keys = [pa.array(columns[key.name], pa.int64()) for key in join.keys]
        hashes = spec.hashes(number, keys) if table.num_rows else np.zeros(0, np.uint64)
        assert lineage == hashes.view(np.int64).tolist()
        space = spec.spaces[number]
        assert all(space.lo <= each % 2**64 < space.hi for each in lineage)
