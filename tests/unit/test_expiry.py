"""What leaves memory with its slice, and what of it cleanup needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spillway.decode import compile_query
from spillway.engine.expiry import greatest_by_group, still_needed, take_expired
from spillway.engine.groups import GroupMap
from spillway.engine.growth import GroupJoins, growth_of
from spillway.engine.join.kernel import Rows
from spillway.engine.state.arrangement import Drops, SessionState
from spillway.engine.state.slices import are_over, by_slice, is_over, sliced
from spillway.engine.statistics import Counters
from spillway.policy.arrivals import NO_EVIDENCE
from spillway_schemas.hash_space import spaces
from spillway_schemas.journal import Prefix
from spillway_schemas.query import query_of
from spillway_schemas.tomlfile import parse_toml

TREE = """
[streams.a]
fields = { k = "int", at = "timestamp" }
time = "at"
[streams.b]
fields = { k = "int", at = "timestamp" }
time = "at"
[streams.c]
fields = { k = "int", at = "timestamp" }
time = "at"
[join.ab]
inputs = ["a", "b"]
on = ["k"]
window = "80 seconds"
[join.abc]
inputs = ["ab", "c"]
on = ["k"]
window = "40 seconds"
[results]
columns = []
"""
OPEN = """
[streams.a]
fields = { k = "int" }
[streams.b]
fields = { k = "int" }
[join]
inputs = ["a", "b"]
on = ["k"]
[results]
columns = []
"""
SPEC = compile_query(query_of(parse_toml(TREE, Path("q.toml")))).spec
A, B, AB, C = range(4)
SECOND = 1_000_000
LOWER, UPPER = spaces(2)
GROUPS = GroupMap([(space.part(Prefix(1, n)), 0) for space in (LOWER, UPPER) for n in (0, 1)])


def rows(input_: int, *found: tuple[int, int]) -> Rows:
    """Rows of (group, second), the group one of all."""
    found = tuple(sorted(found))
    hashes = np.array([GROUPS.prefixes[g].lo + n for n, (g, _) in enumerate(found)], np.uint64)
    seconds = [s * SECOND for _, s in found]
    schema = SPEC.row_schema(input_)
    columns = [
        pa.array(
            seconds if field.name in ("time_us", "least_us", "greatest_us") else range(len(found))
        ).cast(field.type)
        for field in schema
    ]
    return Rows(hashes, pa.Table.from_arrays(columns, schema=schema))


def seconds(input_: int, pieces: list[Rows]) -> list[int]:
    at = -len(SPEC.inputs[input_].times)
    return [us // SECOND for each in pieces for us in each.table.column(at).to_pylist()]


def test_rows_are_cut_into_slices_of_a_quarter_of_the_window() -> None:
    pieces = sliced(SPEC, A, rows(A, (0, 0), (1, 19), (0, 20), (1, 39), (0, 40), (0, -1)))
    assert [(p.slice, sorted(seconds(A, [p]))) for p in pieces] == [
        (-1, [-1]),
        (0, [0, 19]),
        (1, [20, 39]),
        (2, [40]),
    ]
    assert all((np.diff(p.key_hash.astype(object)) > 0).all() for p in pieces)
    assert [p.slice for p in sliced(SPEC, C, rows(C, (2, 9), (2, 10)))] == [0, 1]
    [whole] = sliced(SPEC, A, rows(A, (0, 5), (1, 6)))
    assert whole.slice == 0
    assert [[p.slice for p in some] for some in by_slice([*pieces, whole])] == [
        [-1],
        [0, 0],
        [1],
        [2],
    ]


def test_many_rows_of_a_slice_stay_in_the_order_of_their_hashes() -> None:
    many = rows(A, *((n % 2, n % 80) for n in range(1_000)))
    pieces = sliced(SPEC, A, many)
    assert [len(p.key_hash) for p in pieces] == [260, 260, 240, 240]
    assert all((p.key_hash[1:] > p.key_hash[:-1]).all() for p in pieces)


def test_a_slice_is_over_when_its_last_row_has_expired() -> None:
    # 20 s to just before 40 s, and 80 s of the window: no row from 120 s on joins.
    assert not is_over(SPEC, A, 1, 120 * SECOND - 1)
    assert is_over(SPEC, A, 1, 120 * SECOND)
    least = np.array([20, 39, 40]) * SECOND
    assert are_over(SPEC, A, least, 120 * SECOND).tolist() == [True, True, False]
    assert not is_over(SPEC, A, None, 10**18)


def test_what_has_expired_leaves_and_the_lists_that_others_count_stay() -> None:
    came, fresh = rows(A, (0, 5), (1, 50)), rows(A, (0, 6), (1, 60))
    installed = [sliced(SPEC, A, came), [], [], []]
    new = [sliced(SPEC, A, fresh), [], [], []]
    state = SessionState("d", Drops(), [[], [], [], []], installed, new)
    gone = take_expired(SPEC, state, 100 * SECOND, new=False)
    assert seconds(A, gone[A]) == [5]
    assert seconds(A, state.installed[A]) == [50]
    assert [len(p.key_hash) for p in installed[A]] == [1, 1]
    assert seconds(A, take_expired(SPEC, state, 100 * SECOND, new=True)[A]) == [6]
    assert seconds(A, state.new[A]) == [60]


@pytest.mark.parametrize(
    ("reach", "lower", "upper"),
    [
        ([], [], []),
        # A group of the lower join was spilled, up to 10 s: rows of it up to 90 s have partners
        # there; of the join above rows of all groups may, up to 50 s.
        ([(GROUPS.prefixes[0], 10 * SECOND)], [89, 90], [49, 50, 49, 50]),
        # A part of a group is a part of it; the join below has nothing of what is above.
        ([(GROUPS.prefixes[2].part(Prefix(3, 5)), 10 * SECOND)], [], [49, 50]),
        # All of a join, and of several times the greatest.
        ([(LOWER, 10 * SECOND), (GROUPS.prefixes[1], 9 * SECOND)], [89, 90] * 2, [49, 50] * 2),
    ],
)
def test_what_cleanup_needs(
    reach: list[tuple[Prefix, int]], lower: list[int], upper: list[int]
) -> None:
    mine = rows(A, *((g, s) for g in (0, 1) for s in (89, 90, 91)))
    above = rows(C, *((g, s) for g in (2, 3) for s in (49, 50, 51)))
    kept = still_needed(SPEC, GROUPS, reach, [[mine], [], [], [above]])
    assert (seconds(A, kept[A]), seconds(C, kept[C])) == (lower, upper)


def test_a_cut_knows_the_greatest_time_of_each_group() -> None:
    pieces = [[rows(A, (0, 5), (1, 7))], [rows(B, (0, 6))], [], [rows(C, (2, 3))]]
    found = greatest_by_group(GROUPS, pieces, [True, True, True, True])
    assert (found // SECOND).tolist()[:3] == [6, 7, 3]
    untimed = greatest_by_group(GROUPS, pieces, [False] * 4)
    assert len(set(untimed.tolist())) == 1


def test_a_row_is_kept_until_the_watermark_has_passed_its_slice() -> None:
    """A window of 80 s below, one of 40 s at the root, slices of a quarter; the watermark is 5 s
    behind."""
    none = np.zeros(len(GROUPS), dtype=np.int64)
    every = np.arange(len(GROUPS))
    joins, counters = GroupJoins.of(SPEC, GROUPS), Counters.zeros(len(GROUPS))
    growth = growth_of(none, counters, joins, every, 9, NO_EVIDENCE, 0.0, 5_000.0)
    assert {*zip(joins.join.tolist(), growth.kept_ms.tolist(), strict=True)} == {
        (0, 105_000),
        (1, 55_000),
    }
    open_end = compile_query(query_of(parse_toml(OPEN, Path("q.toml")))).spec
    joins, counters = GroupJoins.of(open_end, GROUPS), Counters.zeros(len(GROUPS))
    growth = growth_of(none, counters, joins, every, 9, NO_EVIDENCE, 0.0, 5_000.0)
    assert np.isinf(joins.window_ms).any()
    assert np.isinf(growth.kept_ms).tolist() == np.isinf(joins.window_ms).tolist()
