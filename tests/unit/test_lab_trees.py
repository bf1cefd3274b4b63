"""The laboratory of trees: day, counts and ceiling against brute force; a tiny exact run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.lab import tree_exact, tree_lines
from benchmarks.lab.cluster import Spilling
from benchmarks.lab.digest import digest
from benchmarks.lab.exact import NotExact
from benchmarks.lab.lines import Line
from benchmarks.lab.page import Done, Limit, claims_table, judged, outcomes_table
from benchmarks.lab.tree_exact import counted, levels
from benchmarks.lab.tree_experiments import VICTIMS, tree_experiments
from benchmarks.lab.tree_lines import row_bytes, run_tree, tree_ceiling
from benchmarks.lab.tree_workload import TreeDay, TreeWorkload, generate_tree
from benchmarks.lineage import costs
from spillway.engine.groups import GroupMap
from spillway.policy.view import Advice, MoveGroup, View
from tests.unit.test_lab import outcome

SMALL = TreeWorkload("papers-five-way-3-1-1", 1 / 100, groups=8)
TINY = TreeWorkload("papers-five-way-3-1-1", 1 / 400, groups=4)


@pytest.fixture(scope="module")
def day() -> TreeDay:
    return generate_tree(SMALL, 300)


@pytest.fixture(scope="module")
def tiny() -> TreeDay:
    return generate_tree(TINY, 300)


def test_a_day_has_the_scenarios_rows_and_values():
    for factor in (1 / 50, 1 / 100):
        day = generate_tree(replace(SMALL, factor=factor), 60)
        rows = 60_000 * factor
        assert {name: len(each.epoch) for name, each in day.streams.items()} == dict.fromkeys(
            "abcde", rows
        )
        assert day.epochs == 50
        # Two ranges in a day, and a value comes 1, 3 or 5 times in each.
        often = np.unique(day.streams["a"].keys("a1"), return_counts=True)[1]
        assert np.isin(often, (2, 6, 10)).mean() > 0.95
        assert set(often.tolist()) >= {2, 6, 10}
    assert (np.diff(day.streams["e"].epoch) >= 0).all()
    other = generate_tree(SMALL, 60).streams["c"].table
    assert day.streams["c"].table.equals(other)


def test_keys_against_each_other_are_the_same_keys():
    plain, paired = (generate_tree(replace(SMALL, against=each), 300) for each in (False, True))
    for stream, columns in (("c", ("c1", "c2")), ("d", ("d1", "d2"))):
        one, other = (day.streams[stream].table for day in (plain, paired))
        assert one[columns[0]].equals(other[columns[0]])
        assert sorted(one[columns[1]].to_pylist()) == sorted(other[columns[1]].to_pylist())
        often = [np.bincount(other[name].to_numpy())[other[name].to_numpy()] for name in columns]
        assert np.corrcoef(often[0], often[1])[0, 1] < -0.4
    assert plain.streams["a"].table.equals(paired.streams["a"].table)


@pytest.mark.server
def test_groups_of_all_joins_may_move_and_every_result_comes_once(tiny: TreeDay):
    """`run_tree` compares with the counts, which know nothing of slots."""
    spilling = Spilling(10_000, 0.2, "local-output")

    def mirrored(view: View) -> Advice:
        moves = tuple(
            MoveGroup(group, slot, 1 - slot, 1, "to and fro")
            for group, slot in zip(view.groups[::3], view.slot[::3].tolist(), strict=True)
        )
        return Advice(moves)

    found = run_tree(Line("moves", spilling, (3.0, 1.0), mirrored, 600), tiny)
    assert found.adaptations > 2
    assert found.spills
    assert min(found.joins_cut) > 0


# --- counts ----------------------------------------------------------------------------------


def brute_force(day: TreeDay, cuts: set[tuple[int, int, int]]) -> list[list[tuple[int, int]]]:
    """Of each join what it gives at run time: (epoch, group of the join's key), row by row."""
    spec = day.query.spec
    assigned = day.of_all_joins(GroupMap.initial(day.groups, 1))

    def group(join: int, value: int) -> int:
        import pyarrow as pa

        at = assigned.group_of(spec.hashes(join, [pa.array([value])]))
        return int(at[0]) - join * day.groups

    def together(join: int, value: int, epochs: list[int]) -> bool:
        ends = [e for j, g, e in cuts if j == join and g == group(join, value)]
        return len({sum(end < epoch for end in ends) for epoch in epochs}) == 1

    def rows(name: str) -> list[tuple[int, dict[str, int]]]:
        arrivals = day.streams[name]
        return list(zip(arrivals.epoch.tolist(), arrivals.table.to_pylist(), strict=True))

    first = [
        (max(ea, eb, ec), c["c2"], group(0, a["a1"]))
        for (ea, a), (eb, b), (ec, c) in itertools.product(rows("a"), rows("b"), rows("c"))
        if a["a1"] == b["b1"] == c["c1"] and together(0, a["a1"], [ea, eb, ec])
    ]
    second = [
        (max(e, ed), d["d2"], group(1, key))
        for (e, key, _), (ed, d) in itertools.product(first, rows("d"))
        if key == d["d1"] and together(1, key, [e, ed])
    ]
    third = [
        (max(e, ee), group(2, key))
        for (e, key, _), (ee, row) in itertools.product(second, rows("e"))
        if key == row["e1"] and together(2, key, [e, ee])
    ]
    return [[(e, g) for e, _, g in first], [(e, g) for e, _, g in second], third]


@pytest.mark.server
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=pytest.mark.soak) for each in (2, 3))]
)
def test_counts_are_those_of_brute_force(tiny: TreeDay, seed: int):
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, (3, tiny.groups, tiny.epochs + 1), (seed * 12, 3)).tolist()
    cuts = {tuple(each) for each in drawn}
    found = counted(levels(tiny), tiny.groups, cuts)
    slow = brute_force(tiny, cuts)
    assert len(slow[-1]) > 20
    for given, rows in zip(found.given, slow, strict=True):
        by_epoch = np.bincount([e for e, _ in rows], minlength=tiny.epochs)
        assert given.sum(axis=1).tolist() == by_epoch.tolist()
    wanted = np.zeros((tiny.epochs, tiny.groups), dtype=np.int64)
    np.add.at(wanted, tuple(np.array(slow[-1]).T), 1)
    assert found.given[-1].tolist() == wanted.tolist()
    assert found.results.tolist() == wanted.sum(axis=1).tolist()


def test_what_is_held_is_what_came_since_the_last_cut(tiny: TreeDay):
    chain = levels(tiny)
    whole = counted(chain, tiny.groups)
    assert [held[:, -1].tolist() for held in whole.held] == [
        [150, 150, 150],
        [150, int(whole.given[0].sum())],
        [150, int(whole.given[1].sum())],
    ]
    every = {(join, group, 5) for join in range(3) for group in range(tiny.groups)}
    after = counted(chain, tiny.groups, every)
    for held, before in zip(after.held, whole.held, strict=True):
        assert not held[:, 5].any()
        assert (held[0, 6:] == before[0, 6:] - before[0, 5]).all()
    assert after.results[:6].tolist() == whole.results[:6].tolist()
    assert after.results.sum() < whole.results.sum()


# --- ceiling ---------------------------------------------------------------------------------


def bytes_held(day: TreeDay, cuts: set[tuple[int, int, int]]) -> tuple[int, int]:
    """Results of a schedule of cuts, and the most that it holds, the end of the day left out."""
    found = counted(levels(day), day.groups, cuts)
    held = np.zeros(day.epochs, dtype=np.int64)
    for join, rows in enumerate(found.held):
        of_join, of_stream = row_bytes(day, join)
        streams = rows if not join else rows[:-1]
        held += streams.sum(axis=0) * of_stream
        held += 0 if not join else rows[-1] * of_join
    return int(found.results.sum()), int(held[:-1].max())


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_exceeds_the_ceiling(day: TreeDay, seed: int):
    """Cuts at random, but such that some joins or groups are spared, as a good policy would."""
    rng = np.random.default_rng(seed)
    often = rng.choice([0.0, 0.05, 0.3, 1.0], (3, day.groups, 1))
    drawn = np.argwhere(rng.random((3, day.groups, day.epochs)) < often)
    results, memory = bytes_held(day, {tuple(each) for each in drawn.tolist()})
    assert results <= tree_ceiling(day, memory, results)


def test_the_ceiling_is_lower_with_less_memory(day: TreeDay):
    results, memory = bytes_held(day, set())
    found = [tree_ceiling(day, round(memory * share), 1) for share in (1.0, 0.5, 0.25, 0.1)]
    assert found[0] == results
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.6 * results


# --- runs ------------------------------------------------------------------------------------


def line(victims: str, day: TreeDay, share: float = 0.3) -> Line:
    memory = round(bytes_held(day, set())[1] * share / 2)
    return Line(victims, Spilling(memory, 0.3, victims, 1500), (1.0, 1.0))


@pytest.mark.server
@pytest.mark.parametrize("victims", VICTIMS)
def test_a_run_spills_and_is_exact(day: TreeDay, victims: str):
    wanted = line(victims, day)
    found = run_tree(wanted, day)
    full = int(counted(levels(day), day.groups).results.sum())
    assert found.run_time + found.missing == full
    assert found.run_time == found.results[-1]
    assert found.spills
    assert sum(found.joins_cut) == found.cuts
    assert len(found.cleanup_cpu_s) == 3
    assert max(map(max, found.memory)) <= wanted.spilling.memory_bytes
    if victims == "bottom-up":
        assert found.joins_cut[0]
    limit = tree_ceiling(day, 2 * wanted.spilling.memory_bytes, found.run_time)
    assert found.run_time <= limit < full


@pytest.mark.server
def test_sizes_are_those_of_the_engine(day: TreeDay):
    """What is in memory, in bytes: a run without spills against the counts."""
    found = run_tree(Line("all", Spilling(1 << 28), (1.0, 1.0)), day)
    assert not found.missing
    held = [sum(slots) for slots in zip(*found.memory, strict=True)]
    assert max(held[:-1]) == bytes_held(day, set())[1]


@pytest.mark.server
@pytest.mark.parametrize("what", ["results", "rows in memory", "missing results"])
def test_a_run_that_is_not_exact_fails(day: TreeDay, monkeypatch: pytest.MonkeyPatch, what: str):
    plain = tree_exact.counted

    def one_more(chain: Any, groups: int, cuts: Any = ()) -> Any:
        found = plain(chain, groups, cuts)
        if what == "results":
            found.given[-1][3, 2] += 1
        elif what == "rows in memory":
            found.held[1][1, 4] += 1
        elif not cuts:
            found.given[-1][3, 2] += 1
        return found

    monkeypatch.setattr(tree_exact, "counted", one_more)
    tree_lines.day_counts.cache_clear()
    with pytest.raises(NotExact, match=what):
        run_tree(line("global-output", day), day)
    tree_lines.day_counts.cache_clear()


# --- claims and page -------------------------------------------------------------------------


def claims_of(figure: str, **lines: dict[str, Any]) -> dict[str, bool | None]:
    """By what is claimed its direction, when the lines named come to what is given."""
    (found,) = [each for each in tree_experiments() if f"tree-{figure}" in each.figures]
    two: dict[str, Any] = {"memory": [[0, 1, 1]] * 2, "joins_cut": [1, 1, 1], "spills": 6}
    outcomes = {
        name: outcome(name, **two | lines.get(name.replace("-", "_"), {})) for name in VICTIMS
    }
    return {claim.paper: claim.direction for claim in found.claims(outcomes)}


@pytest.mark.parametrize("figure", ["16", "19", "20", "against"])
def test_every_claim_of_a_tree_can_hold_and_can_fail(figure: str):
    alike = claims_of(figure)
    assert set(alike.values()) == {False}
    as_said = claims_of(
        figure,
        bottom_up={"run_time": 100, "spills": 2, "cleanup_cpu_s": [9.0]},
        local_output={"run_time": 200, "spills": 20},
        global_output={
            "run_time": 3000,
            "spills": 26,
            "cleanup_cpu_s": [1.0 if figure == "16" else 4.0],
        },
        global_output_penalty={
            "run_time": 4000,
            "spills": 20,
            "cleanup_cpu_s": [4.0 if figure == "16" else 1.0],
        },
    )
    assert set(as_said.values()) == {True}


def test_experiments_of_trees_are_told_apart():
    found = tree_experiments()
    assert len({digest(each) for each in found}) == len(found)
    assert [f for each in found for f in each.figures] == [
        *(f"tree-{n}" for n in (16, 17, 18, 19, 20)),
        "tree-against",
        "tree-relocation",
    ]
    one = found[0]
    other = replace(one, workload=replace(one.workload, factor=0.5))  # type: ignore[type-var]
    assert digest(other) != digest(one)


def test_a_trees_table_has_joins_and_no_static_choice():
    one = tree_experiments()[0]
    outcomes = {
        name: outcome(name, cuts=6, joins_cut=[1, 2, 3], memory=[[0, 1, 1]] * 2, spills=4)
        for name in VICTIMS
    }
    done = Done(one, outcomes, {name: Limit(None, 2000) for name in VICTIMS})
    text = outcomes_table(done)
    assert "of the ceiling" in text
    assert "best static" not in text
    assert "cleanup of each join" in text
    assert "| 1, 2, 3 |" in text
    assert judged([done]) == claims_table(one.claims(outcomes), "the paper")


def test_what_lineage_costs_is_the_median_of_ratios():
    found = costs({"not counted": (1.0, 2.0, 4.0), "counted": (1.1, 2.1, 8.0)})
    assert [each.way for each in found] == ["not counted", "counted"]
    assert found[0].share == 0
    assert found[1].share == pytest.approx(0.1)
    assert found[1].seconds == 2.1
    assert found[1].low < found[1].share < found[1].high
