"""What corrections add to random trees, on a real Spark with the real decoder, against brute force.

No broker and no stream: the day's rows are those of an earlier revision.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spillway.corrections import trees
from spillway.corrections.leaves import TreeLeaves
from spillway.corrections.rows import ROWS
from spillway.corrections.task import AdditionTask
from spillway.decode import StreamPlan, compile_query
from spillway.decode.chunks import COLUMNS
from spillway.decode.values import leaf_plans, values_of, windows_of
from spillway.engine.groups import GroupMap
from spillway.sealed_input.decoding import TopicRanges, decoded_schema
from spillway.sealed_input.timing import Timing
from spillway.storage import folder
from spillway.stream.messages import MessageSource
from spillway_schemas.query import Query
from tests.integration.test_verify_trees import MADE, circle, spark  # noqa: F401 - a fixture
from tests.property.test_verify_trees import Row, all_results, query

pytestmark = pytest.mark.server

DAY = "2026-01-05"


def messages(tree: Query, rows: Mapping[str, Sequence[Row]]) -> pa.Table:
    """Rows of streams as those of corrections."""
    found = [
        {
            "topic": tree.streams[stream].topic or stream,
            "partition": row["partition"],
            "offset": row["offset"],
            "value": json.dumps(
                {k: v for k, v in row.items() if k not in ("partition", "offset")}
            ).encode(),
            "kafka_timestamp": 0,
        }
        for stream, some in rows.items()
        for row in some
    ]
    return pa.Table.from_pylist(found, schema=ROWS)


def added(
    session: Any, tree: Query, old: Mapping[str, list[Row]], new: Mapping[str, list[Row]], at: Path
) -> Counter[tuple[Any, ...]]:
    """What the new rows add, as it is written."""
    values = values_of(tree)
    leaves = TreeLeaves(values, leaf_plans(tree, values), windows_of(tree))
    spec = compile_query(tree).spec
    place = folder(str(at))
    task = AdditionTask(spec, GroupMap.initial(1, 1), (0,), DAY, 7, 2, place, 0)
    timing = Timing(0, {}, {}) if leaves.windows else None
    before = messages(tree, old).select(COLUMNS)
    source = TopicRanges(MessageSource("b:1", {}), {}, {}, timing, before)
    found = trees.tree_parts_added(session, leaves, source, messages(tree, new), task)
    assert not any(part.problem for part in found)
    files = [file for part in found for file in part.files]
    rows = [row for file in files for row in pq.read_table(place.path(file.path)).to_pylist()]
    assert {(row.pop("epoch"), row.pop("phase")) for row in rows} <= {(7, "correction")}
    assert sum(part.results for part in found) == len(rows)
    return Counter(tuple(row[name] for name in spec.result_schema.names) for row in rows)


@pytest.fixture(autouse=True)
def _no_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old rows are those of the revisions before, and no topic is read."""

    def old_rows(session: Any, plan: StreamPlan, source: TopicRanges) -> Any:
        rows = trees.corrected_rows(session, plan, source.timing, source.corrections)
        return rows or session.createDataFrame([], from_arrow_schema(decoded_schema(plan)))

    monkeypatch.setattr(trees, "decoded_rows", old_rows)


def parted(
    rows: Mapping[str, list[Row]], rng: random.Random
) -> tuple[dict[str, list[Row]], dict[str, list[Row]]]:
    """Rows in two: those of a day, and late ones of some streams."""
    late = {name: rng.random() < 0.7 for name in rows}
    drawn = {name: [late[name] and rng.random() < 0.4 for _ in some] for name, some in rows.items()}
    return (
        {n: [r for r, d in zip(some, drawn[n], strict=True) if not d] for n, some in rows.items()},
        {n: [r for r, d in zip(some, drawn[n], strict=True) if d] for n, some in rows.items()},
    )


def difference(tree: Query, everything: list[Row], before: list[Row]) -> Counter[tuple[Any, ...]]:
    names = compile_query(tree).spec.result_schema.names

    def counted(some: list[Row]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row[name] for name in names) for row in some)

    return counted(everything) - counted(before)


@pytest.mark.parametrize("number", range(len(MADE)))
def test_late_rows_of_a_tree_add_what_they_lacked(
    spark: Any,  # noqa: F811
    number: int,
    tmp_path: Path,
) -> None:
    tree = MADE[number].query
    good = {
        name: [row for row in some if None not in row.values()]
        for name, some in MADE[number].rows.items()
    }
    everything = all_results(tree, good)
    seed = next(
        seed
        for seed in range(99)
        if 0 < len(all_results(tree, parted(good, random.Random(seed))[0])) < len(everything)
    )
    old, new = parted(good, random.Random(seed))
    wanted = difference(tree, everything, all_results(tree, old))
    assert added(spark, tree, old, new, tmp_path) == wanted


def test_late_rows_whose_keys_form_a_circle(spark: Any, tmp_path: Path) -> None:  # noqa: F811
    tree, rows = circle()
    old, new = parted(rows, random.Random(1))
    wanted = difference(tree, all_results(tree, rows), all_results(tree, old))
    assert wanted.total() > 50
    assert added(spark, tree, old, new, tmp_path) == wanted


WINDOWED = """
[streams.a]
fields = { x = 'int', t = 'timestamp' }
time = "t"
[streams.b]
fields = { x = 'int', y = 'int', t = 'timestamp' }
time = "t"
[streams.c]
fields = { y = 'int', t = 'timestamp' }
time = "t"
[join.ab]
inputs = ["a", "b"]
on = ["x"]
window = "10s"
[join.abc]
inputs = ["ab", "c"]
on = [{ name = "y", columns = { ab = "b.y", c = "y" } }]
window = "30s"
"""


def test_late_rows_of_a_tree_with_windows(spark: Any, tmp_path: Path) -> None:  # noqa: F811
    """No row is late any more, and each join has its own window."""
    tree, rng = query(WINDOWED), random.Random(5)
    rows = {
        name: [
            {
                "x": rng.randrange(3),
                "y": rng.randrange(3),
                "t": f"2026-01-05T15:00:{rng.randrange(60):02d}Z",
                "partition": -1,
                "offset": n,
            }
            for n in range(25)
        ]
        for name in tree.streams
    }
    second = {
        (name, row["offset"]): int(row["t"][17:19]) for name, some in rows.items() for row in some
    }

    def in_windows(some: list[Row]) -> list[Row]:
        found = []
        for row in some:
            a, b, c = (second[leaf, row[f"{leaf}_offset"]] for leaf in "abc")
            if abs(a - b) <= 10 and max(a, b, c) - min(a, b, c) <= 30:
                found.append(row)
        return found

    old, new = parted(rows, random.Random(1))
    every, before = all_results(tree, rows), all_results(tree, old)
    wanted = difference(tree, in_windows(every), in_windows(before))
    assert 0 < wanted.total() < difference(tree, every, before).total()
    found = added(spark, tree, old, new, tmp_path)
    coordinates = [compile_query(tree).spec.result_schema.names.index(f"{s}_offset") for s in "abc"]
    assert Counter({tuple(r[i] for i in coordinates): n for r, n in found.items()}) == Counter(
        {tuple(r[i] for i in coordinates): n for r, n in wanted.items()}
    )
