"""Which slots have the groups of which join when a warehouse begins."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.policy.distribution import (
    MOST_LOAD,
    Places,
    Tree,
    distribution,
    exchanged,
    told_rows,
    unevenness,
)
from spillway.stream.genesis import placed_out, shared_out
from spillway_schemas.hash_space import ROOT, join_of
from spillway_schemas.query import load_query
from spillway_schemas.setting_fields import PlanSettings

KINDS = get_args(PlanSettings.model_fields["distribution"].annotation)
AWARE = "balanced-network-aware"


def tree_of(query: str, **told: float) -> Tree:
    tree = load_query(query).tree
    numbers = {join.name: number for number, join in enumerate(tree.joins)}
    rows = {numbers[name]: each for name, each in told.items()}
    return Tree(tuple(tree.parents.values()), tree.own_leaves, rows)


@st.composite
def trees(draw: st.DrawFn, most: int = 6) -> Tree:
    """Children before parents, each join of two inputs or more."""
    joins = draw(st.integers(1, most))
    parents = [draw(st.integers(join + 1, joins - 1)) for join in range(joins - 1)] + [ROOT]
    children = Counter(parents)
    streams = [draw(st.integers(max(0, 2 - children[join]), 3)) for join in range(joins)]
    told = draw(st.dictionaries(st.integers(0, joins - 1), st.floats(0, 9)))
    return Tree(tuple(parents), tuple(streams), told)


# ------------------------------------------------------------------------------- what is expected


def test_a_join_is_expected_to_give_what_comes_to_it() -> None:
    tree = tree_of("five_way")
    assert tree.streams == (3, 1, 1)
    assert tree.gives == (3, 4, 5)
    assert tree.loads == (6, 8, 10)
    told = tree_of("five_way", abc=9.0)
    assert told.gives == (9, 10, 11)
    assert told.loads == (3 + 9, 20, 22)
    assert tree_of("bushy").edges == (0, 1)


def test_rows_are_told_by_name() -> None:
    assert told_rows("abc=3, abcd=0.5") == {"abc": 3.0, "abcd": 0.5}
    assert told_rows("") == {}


def test_what_goes_from_slot_to_slot() -> None:
    tree = tree_of("five_way")
    # All on all of two slots: half of all rows; each slot sends to the other.
    assert exchanged(tree, ((0, 1),) * 3) == (3.5, 2)
    # abc and abcd on slot 0, the root on slot 1: what abcd gives goes over.
    assert exchanged(tree, ((0,), (0,), (1,))) == (4, 1)
    assert exchanged(tree, ((0, 1), (1, 2), (2,))) == (3 * 3 / 4 + 4 / 2, 3)
    assert unevenness(tree, ((0,), (0,), (1,)), 2) == pytest.approx(14 / 12)
    assert unevenness(tree, ((0, 1),) * 3, 2) == 1


# ---------------------------------------------------------------------------------- distributions


@given(trees(), st.integers(1, 9), st.integers(0, 5), st.sampled_from(KINDS))
def test_each_join_has_a_slot_and_each_slot_a_join(
    tree: Tree, slots: int, seed: int, kind: str
) -> None:
    places = distribution(kind, tree, slots, seed)
    assert len(places) == len(tree.parents)
    assert all(mine and list(mine) == sorted(set(mine)) for mine in places)
    assert {slot for mine in places for slot in mine} == set(range(slots))
    assert places == distribution(kind, tree, slots, seed), "the same again"


@given(trees(), st.integers(1, 9), st.integers(0, 5))
def test_random_counts_operators_evenly(tree: Tree, slots: int, seed: int) -> None:
    """DAX, slide 6: to the processor with the least number of operators."""
    places = distribution("random", tree, slots, seed)
    held = Counter(slot for mine in places for slot in mine)
    assert max(held.values()) - min(held.values()) <= 1
    width = list(map(len, places))
    assert max(width) - min(width) <= 1


def test_random_draws_by_its_seed() -> None:
    tree = tree_of("five_way")
    drawn = {distribution("random", tree, 4, seed) for seed in range(20)}
    assert len(drawn) > 5


def test_the_shipped_trees_in_sub_plans() -> None:
    five_way = tree_of("five_way")
    assert distribution(AWARE, five_way, 2) == ((0,), (0,), (1,))
    assert distribution(AWARE, five_way, 4) == ((0, 1), (0, 1), (2, 3))
    # Slots are more than the two sub-plans: the one with more load gets more of them.
    assert distribution(AWARE, five_way, 3) == ((0,), (1, 2), (1, 2))
    # The root has as much to do as both others: these share a slot, though they exchange nothing.
    assert distribution(AWARE, tree_of("bushy"), 2) == ((1,), (1,), (0,))
    # Where uneven loads are allowed, fewer rows go over.
    assert distribution(AWARE, tree_of("bushy"), 2, most_load=1.5) == ((0,), (1,), (1,))


def test_expected_rows_change_what_is_grouped() -> None:
    """With much between the first two they share slots; with little they need not."""
    much = distribution(AWARE, tree_of("five_way", abc=8.0, abcd=1.0), 2, most_load=3)
    little = distribution(AWARE, tree_of("five_way", abc=0.1, abcd=8.0), 2, most_load=3)
    assert much == ((0,), (0,), (1,))
    assert little == ((0,), (1,), (1,))


def test_sub_plans_are_ahead_in_a_long_chain_and_where_an_edge_has_few_rows() -> None:
    """The figures of docs/decisions/0025: `all` is not ahead in every tree."""

    def share(kind: str, tree: Tree) -> float:
        crossing, _ = exchanged(tree, distribution(kind, tree, 2))
        return round(crossing / sum(tree.gives[join] for join in tree.edges), 3)

    chain = Tree((1, 2, 3, 4, ROOT), (2, 1, 1, 1, 1), {})
    assert distribution(AWARE, chain, 2) == ((0,), (0,), (0,), (1,), (1,))
    assert (share("all", chain), share(AWARE, chain)) == (0.5, 0.286)
    few = tree_of("five_way", abc=0.1, abcd=0.5)
    assert (share("all", few), share(AWARE, few)) == (0.5, 0.167)
    as_shipped = tree_of("five_way")
    assert (share("all", as_shipped), share(AWARE, as_shipped)) == (0.5, 0.571)


def all_cuts(tree: Tree) -> list[list[int]]:
    """Every way to cut some edge: of each join its sub-plan, found by walking up."""
    found = []
    for kept in product([False, True], repeat=len(tree.edges)):
        whole = dict(zip(tree.edges, kept, strict=True))

        def top(join: int, whole: dict[int, bool] = whole) -> int:
            return top(tree.parents[join]) if whole.get(join) else join

        if not all(kept):
            found.append([top(join) for join in range(len(tree.parents))])
    return found


@given(trees(), st.integers(2, 6))
def test_no_cut_with_even_loads_has_fewer_rows_between_slots(tree: Tree, slots: int) -> None:
    """Against every cut with every number of slots for each sub-plan, as far as slots suffice."""
    places = distribution(AWARE, tree, slots)
    if len(tree.parents) == 1:
        assert places == (tuple(range(slots)),)
        return
    mine = unevenness(tree, places, slots), exchanged(tree, places)[0]
    for sub_plans in all_cuts(tree):
        tops = sorted(set(sub_plans))
        if len(tops) > slots:
            continue
        options = [
            widths
            for widths in product(range(1, slots + 1), repeat=len(tops))
            if sum(widths) == slots
        ]
        # As many slots as loads ask for: the evenest, of which there may be several.
        tried = [_laid(sub_plans, tops, widths) for widths in options]
        least = min(unevenness(tree, each, slots) for each in tried)
        evenest = [each for each in tried if unevenness(tree, each, slots) == least]
        most = max(exchanged(tree, each)[0] for each in evenest)
        assert (max(mine[0], MOST_LOAD), mine[1]) <= (max(least, MOST_LOAD), most + 1e-6)


def _laid(sub_plans: list[int], tops: list[int], widths: tuple[int, ...]) -> Places:
    first = [sum(widths[:n]) for n in range(len(widths))]
    at = {top: tuple(range(first[n], first[n] + widths[n])) for n, top in enumerate(tops)}
    return tuple(at[top] for top in sub_plans)


def test_a_long_chain_is_cut_in_time() -> None:
    joins = 40
    tree = Tree((*range(1, joins), ROOT), (2,) + (1,) * (joins - 1), {})
    places = distribution(AWARE, tree, 3)
    assert {slot for mine in places for slot in mine} == {0, 1, 2}


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no distribution 'other'"):
        distribution("other", tree_of("bushy"), 2)
    with pytest.raises(ValueError, match="one slot or more, not 0"):
        distribution("all", tree_of("bushy"), 0)


# ------------------------------------------------------------------------------ the first groups


@given(trees(), st.integers(1, 8), st.integers(0, 5), st.sampled_from(KINDS))
def test_groups_are_spread_evenly_over_the_slots_of_their_join(
    tree: Tree, slots: int, seed: int, kind: str
) -> None:
    joins = len(tree.parents)
    places = distribution(kind, tree, slots, seed)
    owned = placed_out(8, places)
    GroupMap(owned)  # all hashes are covered, each once
    assert {slot for _, slot in owned} == set(range(slots))
    for join, mine in enumerate(places):
        held = Counter(slot for group, slot in owned if join_of(group, joins) == join)
        assert set(held) == set(mine)
        assert sum(held.values()) == 8
        assert max(held.values()) - min(held.values()) <= 1
    if kind == "all":
        assert owned == shared_out(GroupMap.initial(8, slots), joins)


def test_shares_weigh_the_slots_of_a_join() -> None:
    owned = placed_out(8, ((0, 1), (1, 2)), (3.0, 1.0, 1.0))
    held = Counter((join_of(group, 2), slot) for group, slot in owned)
    assert held == {(0, 0): 6, (0, 1): 2, (1, 1): 4, (1, 2): 4}
