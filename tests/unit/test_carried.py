"""What rows that are carried from one session into the next give, and to whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import SecretBytes

from spillway.engine.join.kernel import Rows
from spillway.engine.probe import joined_batches, probe
from spillway.engine.state.arrangement import Drops, SessionState
from spillway.engine.state.slices import sliced
from spillway.engine.step import step
from spillway.engine.task import StepTask
from spillway.engine.wire.blocks import Block, decode_rows, encode_rows
from spillway.storage import folder
from tests.unit.test_expiry import AB, GROUPS, LOWER, SECOND, SPEC, A, B

DAY = "2026-01-06"


def row(input_: int, offset: int, second: int) -> Rows:
    """A row of the one key, in its slice."""
    values = {"k": 1, "partition": 0, "offset": offset, "time_us": second * SECOND}
    schema = SPEC.row_schema(input_)
    columns = [pa.array([values[field.name]]).cast(field.type) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    hashes = np.array([LOWER.lo + 1], np.uint64)
    [piece] = sliced(SPEC, input_, Rows(hashes, table, np.array([1_000 * second])))
    return piece


def session(
    old: tuple[Rows, ...], carried: tuple[Rows, ...], new: tuple[Rows, ...]
) -> SessionState:
    """Of each, rows of the inputs a and b in turn."""
    lists = [[[some[A]], [some[B]], [], []] if some else [[], [], [], []] for some in (old, new)]
    state = SessionState(DAY, Drops(), [[], [], [], []], lists[0], lists[1])
    state.carried = [[carried[A]], [carried[B]], [], []]
    return state


def pairs(state: SessionState) -> list[tuple[int, int]]:
    """The offsets of a and b of what the lower join gives."""
    batches = joined_batches(SPEC, 0, state, 10**6, sample_every=1)
    return sorted(
        (a, b)
        for batch in batches or ()
        for a, b in zip(
            batch.table["a_offset"].to_pylist(), batch.table["b_offset"].to_pylist(), strict=True
        )
    )


OLD = row(A, 1, 10), row(B, 1, 10)
CARRIED = row(A, 5, 10), row(B, 5, 10)
NEW = row(A, 9, 10), row(B, 9, 10)


def test_carried_rows_meet_those_that_came_before_and_those_that_come_but_not_each_other() -> None:
    """Rows 1 were there, rows 5 are carried, rows 9 are new. What 1 gave with 1 is out."""
    everything = [(a, b) for a in (1, 5, 9) for b in (1, 5, 9)]
    of_before = {(1, 1), (5, 5)}
    assert pairs(session(OLD, CARRIED, NEW)) == [p for p in everything if p not in of_before]
    assert pairs(session((), CARRIED, NEW)) == [(5, 9), (9, 5), (9, 9)]
    assert pairs(session(OLD, CARRIED, ())) == [(1, 5), (5, 1)]
    assert pairs(session((), CARRIED, ())) == []


def task() -> StepTask:
    return StepTask(
        slot=0,
        epoch=0,
        attempt="0" * 16,
        warehouse_id="w",
        session=DAY,
        manifest=None,
        groups=GROUPS,
        key=SecretBytes(b"k" * 32),
        threshold=0.9,
        expired_by={DAY: 50 * SECOND},
    )


def carry(input_: int, rows: Rows) -> Block:
    """Carried rows as they come to a slot."""
    columns = [pa.array(rows.key_hash), *rows.table.columns, pa.array(rows.kafka_ms)]
    schema = SPEC.new_schema(input_)
    batch = pa.RecordBatch.from_arrays(
        [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns],
        schema=schema,
    )
    data = encode_rows(batch, session=DAY, stream=SPEC.inputs[input_].name)
    return Block(0, "carry", SPEC.operators[input_], input_, data)


BLOCKS = [carry(A, CARRIED[A]), carry(B, CARRIED[B])]


def test_what_carried_rows_give_each_other_is_carried_into_the_join_above(tmp_path: Path) -> None:
    given = [b for b in probe(SPEC, task(), 1, BLOCKS, folder(str(tmp_path))) if b.kind != "given"]
    [(up, table)] = [(block, decode_rows(SPEC, block)[1]) for block in given]
    assert (up.kind, up.input) == ("carry", AB)
    assert (table["a_offset"].to_pylist(), table["b_offset"].to_pylist()) == ([5], [5])


def test_carried_rows_are_state_from_then_on(tmp_path: Path) -> None:
    root = folder(str(tmp_path))
    given = [b for b in probe(SPEC, task(), 1, BLOCKS, root.child("slot")) if b.kind == "carry"]
    report = step(SPEC, task(), [*BLOCKS, *given], root.child("slot"), root.child)
    # Two rows of leaves, and one that the lower join made of them.
    assert (report.carried_rows, report.installed_rows, report.results) == (2, 0, {})
    assert report.totals is not None
    assert report.totals.rows == 3
    # How long results took is not known where a carried row met one that was there.
    assert sum(report.totals.delay_ms) == 0
