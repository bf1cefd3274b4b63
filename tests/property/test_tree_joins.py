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

from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import Rows, join_batches
from spillway.engine.join.tree import TreePlan, tree_plan
from spillway_schemas.query import Query, query_of
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_query_trees import brute_force, rows_of, text_of

EPOCHS = 3


def leaf_rows(plan: TreePlan, leaf: str, numbered: list[tuple[int, dict[str, int]]]) -> Rows:
    """Rows of a leaf as decoding would make them. `numbered`: offsets and values."""
    operator, input_, carried = plan.leaves[leaf]
    spec = plan.specs[operator]
    columns = [pa.array([row[s.expression] for _, row in numbered], pa.int64()) for s in carried]
    columns.append(pa.array([7] * len(numbered), pa.int32()))
    columns.append(pa.array([offset for offset, _ in numbered], pa.int64()))
    table = pa.Table.from_arrays(columns, schema=spec.row_schema(input_))
    hashes = xxhash64(table.columns[: len(spec.keys)])
    order = np.argsort(hashes, kind="stable")
    return Rows(hashes[order], table.take(pa.array(order)))


def run(query: Query, rows: dict[str, list[dict[str, int]]], seed: int) -> pa.Table:
    """All results of the root, epoch by epoch; in small batches, so that a hot key takes several,
    or in large ones of many keys."""
    rng = random.Random(seed)
    batch_bytes = rng.choice([200, 1 << 20])
    plan = tree_plan(query, lambda source: pa.int64())
    epoch_of = {
        leaf.name: [rng.randrange(EPOCHS) for _ in rows[leaf.stream]] for leaf in query.tree.leaves
    }
    state: list[list[list[Rows]]] = [[[] for _ in spec.inputs] for spec in plan.specs]
    results = [plan.specs[-1].joined_schema.empty_table()]
    for epoch in range(EPOCHS):
        new: list[list[list[Rows]]] = [[[] for _ in spec.inputs] for spec in plan.specs]
        for leaf in query.tree.leaves:
            came = [
                (offset, row)
                for offset, row in enumerate(rows[leaf.stream])
                if epoch_of[leaf.name][offset] == epoch
            ]
            operator, input_, _ = plan.leaves[leaf.name]
            new[operator][input_] = [leaf_rows(plan, leaf.name, came)] if came else []
        for operator, (spec, upward) in enumerate(zip(plan.specs, plan.upward, strict=True)):
            for batch in join_batches(
                spec, state[operator], new[operator], batch_bytes=batch_bytes
            ):
                if upward is None:
                    results.append(batch.table)
                    continue
                parent = plan.specs[upward.operator]
                schema = parent.row_schema(upward.input)
                new[upward.operator][upward.input].append(upward.rows(schema, batch))
            for input_, pieces in enumerate(new[operator]):
                state[operator][input_] += pieces
    return pa.concat_tables(results).combine_chunks()


@explored(40, 300, st.integers(0, 2**32), st.integers(0, 2**32))
def test_a_tree_gives_every_result_once(number: int, seed: int) -> None:
    """Kills: a column of another position, a parent's hash of the wrong key, rows left unsorted,
    lineage of another join."""
    query = query_of(parse_toml(text_of(number), Path("q.toml")))
    rows = rows_of(query, seed)
    plan = tree_plan(query, lambda source: pa.int64())
    table = run(query, rows, seed)
    shown = dict(plan.shown)
    columns = {name: table.column(at).to_pylist() for name, at in shown.items()}
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
    event(f"joins: {len(plan.specs)}, results: {bool(got)}")
    assert list(shown)[: len(fields)] == fields
    for leaf in leaves:
        assert set(columns[f"{leaf}_partition"]) <= {7}
    for join in query.tree.joins[:-1]:
        lineage = table.column(f"{join.name}_hash").to_pylist()
        keys = [pa.array(columns[key.name], pa.int64()) for key in join.keys]
        assert lineage == xxhash64(keys).tolist() if table.num_rows else not lineage
