"""What a group is expected to lose, against the same sums written out group by group."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.engine.statistics import (
    HALF_LIFE_MS,
    Counters,
    Figures,
    Given,
    Sizes,
    carried,
    counted,
    epoch_ms_of,
    figures_table,
)
from spillway.policy.expected import (
    ARRIVALS_HALF_LIFE_MS,
    PRIOR_ROWS,
    Growth,
    arrival_rates,
    expected_loss,
    with_generation,
)
from spillway.policy.victims import GroupFigures, VictimContext, victim_order
from spillway_schemas.journal import Prefix

TAU_MS = ARRIVALS_HALF_LIFE_MS / log(2)
DAY = "2026-01-05"


def growth_drawn(draw: np.random.Generator, groups: int, joins: int = 1) -> Growth:
    """Groups of some joins of two and three inputs, every second join with a window."""
    join = np.sort(draw.integers(0, joins, groups))
    rows = draw.integers(0, 50, groups) * (draw.random(groups) < 0.9)
    before = draw.integers(0, 60, groups)
    return Growth(
        rows=rows,
        rows_in=rows + before,
        recent_rows=draw.random(groups) * 20 * (draw.random(groups) < 0.8),
        spilled_norm=before * draw.random(groups),
        session_results=draw.integers(0, 900, groups),
        result_rate=draw.random(groups),
        join=join,
        inputs=2 + join % 2,
        window_ms=np.where(join % 2 == 1, 40_000.0, inf) if joins > 1 else np.full(groups, inf),
        left_ms=float(draw.integers(0, 200_000)) if draw.random() < 0.8 else None,
    )


def slowly(growth: Growth) -> list[float]:
    groups = range(len(growth.rows))
    come_ms = sum(growth.recent_rows) / TAU_MS
    rates = []
    for g in groups:
        usual = come_ms * growth.rows_in[g] / max(sum(growth.rows_in), 1)
        weight_ms = TAU_MS + PRIOR_ROWS / usual if usual else inf
        rates.append((growth.recent_rows[g] + PRIOR_ROWS) / weight_ms)
    left_ms = growth.left_ms
    if left_ms is None:
        left_ms = sum(growth.rows_in) / max(sum(rates), 1e-9)
    powers = [
        float(growth.rows[g]) ** int(growth.inputs[g])
        + float(growth.spilled_norm[g]) ** int(growth.inputs[g])
        for g in groups
    ]
    gave = [0.0] * (max(growth.join.tolist()) + 1)
    for g in groups:
        gave[growth.join[g]] += growth.session_results[g]
    found = []
    for g in groups:
        m, n, x = int(growth.inputs[g]), float(growth.rows[g]), rates[g] * left_ms
        own = [k for k in groups if growth.join[k] == growth.join[g]]
        if growth.window_ms[g] < inf:
            steps = 10_000
            until = min(left_ms, growth.window_ms[g])
            share = sum(
                1 - ((k + 0.5) / steps * until / growth.window_ms[g]) ** (m - 1)
                for k in range(steps)
            )
            loss = growth.result_rate[g] * share * until / steps if n else 0.0
        elif gave[growth.join[g]] and sum(powers[k] for k in own):
            average = gave[growth.join[g]] / sum(powers[k] for k in own)
            sigma = (growth.session_results[g] + 1) / (powers[g] + 1 / average)
            loss = sigma * ((n + x) ** m - n**m - x**m)
        else:
            loss = 0.0
        below = gave[growth.join[g]]
        found.append(loss * gave[-1] / below if below and gave[-1] else loss)
    return found


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 3))
def test_the_loss_is_what_the_sums_say(seed: int, groups: int, joins: int) -> None:
    growth = growth_drawn(np.random.default_rng(seed), groups, joins)
    assert expected_loss(growth) == pytest.approx(slowly(growth), rel=1e-6, abs=1e-6)


def test_nothing_is_lost_without_rows_and_without_time() -> None:
    growth = replace(growth_drawn(np.random.default_rng(1), 20), left_ms=0.0)
    assert not expected_loss(growth).any()
    later = replace(growth, left_ms=1_000.0, rows=np.arange(20) % 2 * 5)
    assert ((expected_loss(later) > 0) == (later.rows > 0)).all()


def test_a_group_that_was_just_spilled_is_not_the_next_victim_for_being_young() -> None:
    """Two groups alike, of which the second has been spilled: by productivity it would leave again
    and again, and for each byte it has as much to lose."""
    same = np.array([1_000, 1_000])
    growth = Growth(
        rows=np.array([1_000, 100]),
        rows_in=same,
        recent_rows=np.array([20.0, 20.0]),
        spilled_norm=np.array([0.0, 900.0]),
        session_results=np.array([10_000, 8_200]),
        result_rate=np.zeros(2),
        join=np.zeros(2, dtype=np.int64),
        inputs=np.full(2, 2),
        window_ms=np.full(2, inf),
        left_ms=1e6,
    )
    loss = expected_loss(growth) / growth.rows
    assert loss[1] == pytest.approx(loss[0], rel=0.01)
    figures = GroupFigures(
        np.array([1_000, 100]) * 9, np.array([10_000, 100]), same, growth=(growth,)
    )
    by_productivity = victim_order("productivity", figures, VictimContext(0, 0, 0))
    assert by_productivity.tolist() == [1, 0]


def test_without_growth_the_policy_says_what_it_lacks() -> None:
    figures = GroupFigures(np.ones(2, np.int64), np.ones(2, np.int64), np.ones(2, np.int64))
    with pytest.raises(ValueError, match="no growth was given"):
        victim_order("expected-loss", figures, VictimContext(0, 0, 0))


def test_rates_are_those_of_the_last_seconds_and_few_rows_are_no_silence() -> None:
    usual = np.array([5_000, 5_000, 10])
    rates = arrival_rates(np.array([0.0, 100.0, 0.0]), usual)
    assert rates[0] < 0.05 * rates[1], "half of the rows so far, none in the last half-lives"
    # Of a group with 1 row in 1,000 none is to be expected in this time.
    assert rates[2] == pytest.approx(rates[:2].sum() / 1_000, rel=0.2)
    assert not arrival_rates(np.zeros(3), usual).any()


def sizes_of(*rows: int) -> Sizes:
    came = np.array(rows, dtype=np.int64)
    return Sizes(came[None], came, came, came)


@pytest.mark.parametrize("epoch_s", [1, 5, 30])
def test_recent_rows_do_not_depend_on_the_length_of_epochs(epoch_s: int) -> None:
    """3 rows a second for ten minutes."""
    groups = GroupMap([(Prefix(0, 0), 0)])
    table = figures_table(groups, 0, {}, 0)
    for epoch in range(600 // epoch_s):
        now_ms = 1_000_000 + epoch * epoch_s * 1_000
        known = carried(table, DAY, groups, now_ms)
        counters = counted(
            known,
            sizes_of(3 * epoch_s),
            Given.nothing(1),
            now_ms,
            epoch_ms_of(table, now_ms),
        )
        figures = Figures(sizes_of(0).rows, *np.zeros((2, 1), np.int64), counters)
        table = figures_table(groups, 0, {DAY: figures}, now_ms)
    rate = arrival_rates(counters.recent_rows, counters.rows_in)
    assert rate[0] * 1_000 == pytest.approx(3, rel=0.02)


def test_each_recent_count_forgets_at_its_own_pace() -> None:
    groups = GroupMap([(Prefix(0, 0), 0)])
    counters = replace(
        Counters.zeros(1),
        rows_in=np.array([9]),
        recent_results=np.array([8.0]),
        recent_rows=np.array([8.0]),
    )
    figures = Figures(sizes_of(0).rows, *np.zeros((2, 1), np.int64), counters)
    table = figures_table(groups, 0, {DAY: figures}, 1_000)
    later = carried(table, DAY, groups, 1_000 + HALF_LIFE_MS)
    assert later.recent_results.tolist() == [4]
    assert later.recent_rows == pytest.approx([8 * 0.5 ** (HALF_LIFE_MS / ARRIVALS_HALF_LIFE_MS)])


@given(st.lists(st.integers(1, 10**6), max_size=6), st.integers(2, 6))
def test_generations_are_remembered_by_what_they_would_give(rows: list[int], m: int) -> None:
    counters = Counters.zeros(2)
    inputs = np.full(2, m)
    for each in rows:
        figures = Figures(sizes_of(each, each).rows, *np.zeros((2, 2), np.int64), counters)
        counters = figures.after_spill(np.array([True, False]), inputs).counters
    assert counters.spilled_norm[0] ** m == pytest.approx(sum(float(n) ** m for n in rows))
    assert counters.spilled_norm[1] == 0
    norm = with_generation(np.zeros(1), np.array([7]), np.array([m]))
    assert norm == pytest.approx([7]), "one generation is its rows"


def test_a_split_keeps_what_a_group_yields() -> None:
    """Half of the hashes have half of each generation's rows and half of its results: for each N^m
    that is as much for either half."""
    whole, halves = GroupMap([(Prefix(0, 0), 0)]), GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    counters = replace(Counters.zeros(1), rows_in=np.array([80]), spilled_norm=np.array([60.0]))
    figures = Figures(sizes_of(0).rows, *np.zeros((2, 1), np.int64), counters)
    table = figures_table(whole, 0, {DAY: figures}, 1)
    parted = carried(table, DAY, halves, 1)
    assert parted.spilled_norm.tolist() == [30, 30]
    figures = Figures(sizes_of(0, 0).rows, *np.zeros((2, 2), np.int64), parted)
    table = figures_table(halves, 0, {DAY: figures}, 1)
    assert carried(table, DAY, whole, 1).spilled_norm.tolist() == [60]
