"""What runs in Spark's Python workers. Imports neither Spark nor the tables: workers start fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spillway.verify.arithmetic import I64, Mask, Verdicts, judge_folded
from spillway.verify.sweep import TimedRows, swept_without
from spillway.verify.verdicts import FEW_KEYS, TOTALS, JudgedKeys
from spillway_schemas.windows import Span

FOLDED = {
    **dict.fromkeys(("c", "d"), "long"),
    "f": "double",
    **dict.fromkeys(("a", "b", "run_time", "cleanup", "found_a", "found_b"), "long"),
}
"""What is summed for each key of a tree's root, and its type in Spark: what `fold` gives (`c`, `d`,
`f`: how many results there should be; `a`, `b`: their weights' sums), then of the results."""


def judged_tree(
    keys: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Judge the keys of each batch: one row of totals, and a row for each failing key.

    A batch has the columns of the keys (of a tree: of its root's), then those of `FOLDED`.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        of = {
            name: column.to_numpy()  # raises where one is null
            for name, column in zip(FOLDED, batch.columns[keys:], strict=True)
        }
        outside = batch.column(0).is_null().to_numpy(zero_copy_only=False)
        found_sums = np.stack([of["found_a"], of["found_b"]])
        verdicts = judge_folded(
            np.stack([of["c"], of["d"]]),
            of["f"],
            np.stack([of["a"], of["b"]]),
            of["run_time"] + of["cleanup"],
            found_sums,
        )
        # Rejected input and quarantine meet in the null key, not as residues; see `rows`.
        apart = outside & (
            (of["c"] != of["run_time"]) | (of["a"] != found_sums[0]) | (of["b"] != found_sums[1])
        )
        yield from _told(
            schema,
            batch.columns[:keys],
            verdicts,
            (of["run_time"], of["cleanup"]),
            of["c"],
            outside,
            apart,
        )


def _told(
    schema: pa.Schema,
    key_columns: Sequence[pa.Array],
    verdicts: Verdicts,
    results: tuple[I64, I64],
    rejected: I64,
    outside: Mask,
    apart: Mask,
) -> Iterator[pa.RecordBatch]:
    """A row of totals, and the failing keys. `results`: of run time and of cleanup; `outside`: the
    null key, where `rejected` counts; `apart`: where it is not what the quarantine holds."""
    wrong = verdicts.wrong & ~outside
    totals = [
        str(sum(verdicts.expected[~outside].tolist())),
        *(int(part[~outside].sum()) for part in results),
        int((~outside).sum()),
        int(wrong.sum()),
        int(rejected[outside].sum()),
        int(results[0][outside].sum()),
        int(apart.sum()),
    ]
    nothing = [pa.nulls(1, f.type) for f in list(schema)[: len(key_columns)]]
    values = [pa.array([v], f.type) for v, f in zip(totals, TOTALS, strict=True)]
    yield pa.RecordBatch.from_arrays([*nothing, *values], schema=schema)
    if wrong.any():
        failing = pa.array(np.flatnonzero(wrong)[: FEW_KEYS + 1])
        named = [column.take(failing) for column in key_columns]
        blank = [pa.nulls(len(failing), f.type) for f in TOTALS]
        yield pa.RecordBatch.from_arrays([*named, *blank], schema=schema)


def collected(rows: pa.Table) -> JudgedKeys:
    """All that `judged_tree` gave."""
    counted = rows.filter(pc.is_valid(rows["expected"]))
    parts = counted.select(TOTALS.names).to_pylist()  # no keys: they may be of any year
    totals = {name: sum(int(part[name]) for part in parts) for name in TOTALS.names}
    keys = rows.column_names[: -len(TOTALS)]
    return JudgedKeys(totals, rows.filter(pc.is_null(rows["expected"])).select(keys))


def swept_keys(
    span: Span, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Rows of one partition, sorted by key and time (keys, `time_us`, `input`, `a`, `b`,
    `carried`), to the sums of each key (`schema`: keys, `c`, `d`, `f`, `a`, `b`). The rows of one
    key are held."""
    keys = len(schema) - 5
    held: pa.Table | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        came = pa.Table.from_batches([batch])
        held = came if held is None else pa.concat_tables([held, came])
        begins = _begins(held, keys)
        if len(begins) > 1 and held.num_rows - begins[-1] <= begins[-1]:  # copied once, roughly
            yield _swept(span, schema, held.slice(0, begins[-1]), begins[:-1])
            held = held.slice(int(begins[-1]))
    if held is not None:
        yield _swept(span, schema, held, _begins(held, keys))


def _begins(table: pa.Table, keys: int) -> I64:
    """Where each key's rows begin, int64 (k,)."""
    other: Mask = np.zeros(table.num_rows, dtype=np.bool_)
    other[0] = True
    for column in table.columns[:keys]:
        values = column.combine_chunks()
        same = pc.equal(values.slice(1), values.slice(0, len(values) - 1))
        other[1:] |= ~same.to_numpy(zero_copy_only=False)
    return np.flatnonzero(other)


def _swept(span: Span, schema: pa.Schema, table: pa.Table, begins: I64) -> pa.RecordBatch:
    number = np.zeros(table.num_rows, dtype=np.int64)
    number[begins[1:]] = 1
    keys = len(schema) - 5
    *columns, carried = (c.to_numpy() for c in table.columns[keys:])
    rows = TimedRows(np.cumsum(number), *columns)
    named = [column.take(pa.array(begins)).combine_chunks() for column in table.columns[:keys]]
    sums = [pa.array(values) for values in swept_without(span, rows, carried).values()]
    return pa.RecordBatch.from_arrays([*named, *sums], schema=schema)
