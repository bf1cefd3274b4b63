"""Lineage: the papers' examples by hand, samples and their error."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from spillway.policy import lineage
from spillway.policy.lineage import Grouping, sampled, traced
from spillway.policy.victims import GroupFigures, VictimContext, victim_order

U64 = np.uint64


def numbered(groups: int) -> Grouping:
    """Groups whose number is the hash itself, so that examples can be read."""
    return Grouping(lambda hashes: hashes.astype(np.int64), groups)


def of(*hashes: int) -> Any:
    return np.array(hashes, dtype=U64)


def lists(counts: Any) -> dict[int, list[float]]:
    return {join: each.tolist() for join, each in counts.items()}


def together(*parts: Any) -> dict[int, Any]:
    """The sum of each group's counts."""
    joins = sorted({join for part in parts for join in part})
    return {join: sum(part[join] for part in parts if join in part) for join in joins}


def standard_error(count: float, rows: int, most: int) -> float:
    """Of a group's sampled count, where `count` is the true one: the docstring of `sampled`."""
    share = count / rows
    return float(rows * np.sqrt(share * (1 - share) / most * (rows - most) / (rows - 1)))


# ------------------------------------------------------------------------- examples of the papers


def test_figure_9_final_results_are_traced_down_to_the_first_join() -> None:
    """SIGMOD 2006, Figure 9 and Algorithm 1: a chain of three joins, two groups each, k = 5.

    Of each result: its group in Join3, Join2 and Join1. Group 0 of Join3 gave three of them, which
    came through both groups of Join2, and through both of Join1.
    """
    results = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1), (1, 1, 0)]
    top, middle, first = (of(*each) for each in zip(*results, strict=True))
    joins = {n: numbered(2) for n in (1, 2, 3)}
    found = traced({3: top, 2: middle, 1: first}, joins)
    assert lists(found) == {3: [3, 2], 2: [2, 3], 1: [2, 3]}
    # As it is printed, the algorithm begins below the root.
    assert lists(traced({2: middle, 1: first}, joins)) == {2: [2, 3], 1: [2, 3]}


def test_figure_10_two_groups_alike_but_for_what_they_make_others_keep() -> None:
    """SIGMOD 2006, Figure 10: P_size 10 and P_output 20 each; 2 and 20 rows for each input row."""
    per_row, final, size = np.array([2, 20]), np.array([20.0, 20.0]), np.array([10, 10])
    rows = {1: of(*np.repeat([0, 1], per_row * size))}
    kept = traced(rows, {1: numbered(2)}, 1.0)[1]
    assert kept.tolist() == [20, 200]
    figures = GroupFigures(
        bytes=size,
        results=(per_row * size),
        last_used_ms=np.zeros(2, dtype=np.int64),
        level=np.array([1, 1]),
        final_results=final,
        downstream_bytes=kept,
    )
    order = victim_order("global-output-penalty", figures, VictimContext(0, 0, 0))
    assert order.tolist() == [1, 0]


def test_figure_11_intermediate_rows_count_for_all_groups_that_they_came_through() -> None:
    """SIGMOD 2006, Figure 11: four operators; one row into the first gives two final results.

    The numbers of intermediate rows (the square boxes) are those of the same picture in DAX's
    slide 23: 2 from OP1, 3 from OP2, 4 from OP3, then 2 results. Which group of an operator each
    row is in is not to be read from the text, so it is chosen here; what p_1^1 comes to does not
    depend on it. Rows take one byte each.
    """
    groups = {n: numbered(2) for n in (1, 2, 3, 4)}
    # OP1: the row in its group 0 gives two, one for each group of OP2.
    from_1 = {1: of(0, 0)}
    # OP2: group 0 makes one row of its own, group 1 makes two.
    from_2 = {1: of(0, 0, 0), 2: of(0, 1, 1)}
    # OP3: the row from group 0 came to group 0, which makes two; the others came to group 1.
    from_3 = {1: of(0, 0, 0, 0), 2: of(0, 0, 1, 1), 3: of(0, 0, 1, 1)}
    # OP4: each result came from OP3's group 1.
    from_4 = {1: of(0, 0), 2: of(1, 1), 3: of(1, 1), 4: of(0, 1)}
    kept = together(*(traced(each, groups) for each in (from_1, from_2, from_3)))
    assert lists(kept) == {
        1: [2 + 3 + 4, 0],
        2: [1 + 2, 2 + 2],
        3: [2, 2],
    }
    final = traced(from_4, groups)
    assert lists(final) == {1: [2, 0], 2: [0, 2], 3: [0, 2], 4: [1, 1]}
    # Nothing is kept above the root, so it has no P_inter.
    assert 4 not in kept


@pytest.mark.parametrize("selectivity", [(2, 3, 4), (1, 1, 1), (3, 0, 5), (4, 2, 1)])
def test_equation_2_what_a_chain_stores_for_some_input_rows(selectivity: tuple[int, ...]) -> None:
    """SIGMOD 2006, Equations 1 and 2: t rows into a chain are t s_1 ... s_n results, and
    t + t s_1 + t s_1 s_2 + ... rows in state. The first t are P_size; the rest is P_inter."""
    t = 7
    groups = {n: numbered(1) for n in range(3)}
    rows, kept = t, []
    for n, s in enumerate(selectivity):
        rows *= s
        came = {join: of(*[0] * rows) for join in range(n + 1)}
        if n < 2:
            kept.append(traced(came, groups, 1.0))
    state = sum(t * int(np.prod(selectivity[:i])) for i in range(3))
    assert together(*kept)[0].tolist() == [state - t]
    assert traced(came, groups)[0].tolist() == [t * np.prod(selectivity)]


def test_a_bushy_tree_is_traced_into_both_branches() -> None:
    """Joins 0 and 1 below join 2: a result came through one group of each."""
    joins = {0: numbered(2), 1: numbered(3), 2: numbered(2)}
    rows = {0: of(0, 0, 1), 1: of(2, 0, 2), 2: of(1, 1, 0)}
    assert lists(traced(rows, joins)) == {0: [2, 1], 1: [1, 0, 2], 2: [1, 2]}
    # A row of join 0 knows nothing of join 1.
    kept = traced({0: rows[0]}, joins, np.array([10.0, 20.0, 40.0]))
    assert lists(kept) == {0: [30, 40]}


# --------------------------------------------------------------------------------------- samples


def test_a_sample_is_drawn_with_its_seed() -> None:
    rows = {0: np.arange(1_000, dtype=U64) % 10}
    joins = {0: numbered(10)}
    again = [sampled(rows, joins, 100, (3, 1)) for _ in "ab"]
    assert lists(again[0]) == lists(again[1])
    assert lists(sampled(rows, joins, 100, (3, 2))) != lists(again[0])
    assert again[0][0].sum() == pytest.approx(1_000)


def test_few_rows_are_all_counted() -> None:
    rows = {0: of(0, 1, 1), 1: of(1, 1, 1)}
    joins = {0: numbered(2), 1: numbered(2)}
    found = sampled(rows, joins, 3, 0)
    assert lists(found) == lists(traced(rows, joins)) == {0: [1, 2], 1: [0, 3]}
    with pytest.raises(ValueError, match="a sample needs 2 rows or more, not 1"):
        sampled(rows, joins, 1, 0)


@pytest.mark.parametrize("weights", [None, [1.0, 5.0, 2.0, 0.0, 7.0, 3.0]])
def test_a_count_is_unbiased_and_off_by_its_standard_error(
    weights: list[float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all samples of 3 of 6 rows: their mean is the count."""
    rows = {0: of(0, 0, 0, 1, 1, 2)}
    joins = {0: numbered(3)}
    weight: Any = 1.0 if weights is None else np.array(weights)
    drawn = list(combinations(range(6), 3))
    found: list[Any] = []
    for chosen in drawn:

        class Drawn:
            def choice(self, *_: object, at: Any = chosen, **__: object) -> Any:
                return np.array(at)

        monkeypatch.setattr(lineage.np.random, "default_rng", lambda seed, made=Drawn: made())
        found.append(sampled(rows, joins, 3, 0, weight)[0])
    counts = np.array(found)
    true = traced(rows, joins, weight)[0]
    assert counts.mean(axis=0) == pytest.approx(true)
    if weights is None:
        spread = ((counts - true) ** 2).mean(axis=0)
        stated = [standard_error(float(each), 6, 3) for each in true]
        assert stated == pytest.approx(np.sqrt(spread))


def test_the_stated_error_is_the_error() -> None:
    """512 groups, 200,000 results, 10,000 drawn: two thirds of the counts lie within one standard
    error, and 95 % within two."""
    draw = np.random.default_rng(5)
    rows = {0: (draw.random(200_000) ** 2 * 512).astype(U64)}
    joins = {0: numbered(512)}
    true = traced(rows, joins)[0]
    stated = np.array([standard_error(each, 200_000, 10_000) for each in true.tolist()])
    off = []
    for seed in range(20):
        found = sampled(rows, joins, 10_000, seed)
        off.append((found[0] - true) / stated)
    within = np.abs(np.array(off))
    assert (within <= 1).mean() == pytest.approx(0.683, abs=0.03)
    assert (within <= 2).mean() == pytest.approx(0.954, abs=0.02)
    share = true / 200_000
    assert (stated / true <= 1 / np.sqrt(10_000 * share)).all()
    assert stated.max() <= 200_000 / (2 * np.sqrt(10_000))


# ---------------------------------------------------------------------------------------- errors


def test_what_does_not_fit_together_is_refused() -> None:
    joins = {0: numbered(2), 1: numbered(2)}
    with pytest.raises(ValueError, match=r"of one length, not of \[1, 2\]"):
        traced({0: of(0), 1: of(0, 1)}, joins)
    with pytest.raises(ValueError, match=r"of one length, not of \[2, 3\]"):
        traced({0: of(0, 1)}, joins, np.ones(3))
    with pytest.raises(ValueError, match="there are 2 groups, and no group 5"):
        traced({0: of(0, 5)}, joins)
    with pytest.raises(KeyError):
        traced({2: of(0)}, joins)
    assert traced({}, joins) == {}
    assert lists(traced({0: of()}, joins)) == {0: [0, 0]}


def test_of_groups_without_output_the_one_that_frees_most_leaves_first() -> None:
    """Early in a day nothing has come out yet. Figure 10: the group that makes others keep more."""
    figures = GroupFigures(
        bytes=np.array([11, 10]),
        results=np.zeros(2, np.int64),
        last_used_ms=np.zeros(2, np.int64),
        final_results=np.zeros(2),
        downstream_bytes=np.array([20.0, 200.0]),
    )
    order = victim_order("global-output-penalty", figures, VictimContext(0, 0, 0))
    assert order.tolist() == [1, 0]
