"""What a group is expected to lose, and how its rows are expected to come, against the same sums
written out group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.engine.growth import GroupJoins, gains_of, growth_of
from spillway.engine.state.kept import KeptGenerations
from spillway.engine.state.statefiles import FIGURES_SCHEMA
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
    looked_at,
    rates,
)
from spillway.policy.arrivals import (
    ARRIVALS_HALF_LIFE_MS,
    HORIZONS_MS,
    KEPT,
    NO_EVIDENCE,
    PRIOR,
    looked_back,
    persistence,
    rate_to_come,
)
from spillway.policy.automatic import LARGE_SPILL, SMALL_SPILL, fraction_for, victims_for
from spillway.policy.expected import (
    Gain,
    Growth,
    expected_gain,
    expected_loss,
    met,
    reunited,
    rows_to_come,
)
from spillway.policy.reactivation import MOST_READ_BYTES
from spillway.policy.victims import POLICIES, GroupFigures, VictimContext, victim_order
from spillway_schemas.journal import FileRecord, Prefix
from spillway_schemas.setting_fields import SpillSettings

DAY = "2026-01-05"
WINDOW_MS = 40_000.0


def growth_drawn(draw: np.random.Generator, groups: int, joins: int = 1) -> Growth:
    """Groups of some joins of two and three inputs; all but the first with windows of their own."""
    join = np.sort(draw.integers(0, joins, groups))
    rows = draw.integers(0, 50, groups) * (draw.random(groups) < 0.9)
    before = draw.integers(0, 60, groups)
    window_ms = np.where(join > 0, WINDOW_MS * np.maximum(join, 1), inf)
    return Growth(
        rows=rows,
        present=draw.random(groups) * 1e-3 * (draw.random(groups) < 0.8),
        usual=draw.random(groups) * 1e-3,
        exposure_norm=before * draw.random(groups) + rows,
        session_results=draw.integers(0, 900, groups),
        join=join,
        root=joins - 1,
        inputs=2 + join % 2,
        window_ms=window_ms,
        kept_ms=window_ms + draw.choice([0.0, 10_000.0, 100_000.0]),
        left_ms=float(draw.integers(0, 200_000)),
        came=draw.integers(0, 50, groups),
        evidence=draw.random((len(HORIZONS_MS), 2)) * 1e-5,
    )


def expected_rates(growth: Growth, ahead_ms: float) -> list[float]:
    """Rows a ms over a time to come."""
    off = sum((p - u) ** 2 for p, u in zip(growth.present, growth.usual, strict=True))
    kept, before = [], 1.0
    for squares, products in growth.evidence:
        if squares + PRIOR * off:
            before = (products + PRIOR * off * before) / (squares + PRIOR * off)
            before = min(max(before, 0), 1)
        kept.append(before)
    stays = kept[0] if ahead_ms < HORIZONS_MS[0] else kept[-1]
    for k in range(len(kept) - 1):
        low, high = HORIZONS_MS[k : k + 2]
        if low <= ahead_ms < high:
            stays = kept[k] + (kept[k + 1] - kept[k]) * log(ahead_ms / low) / log(high / low)
    pairs = zip(growth.present, growth.usual, strict=True)
    return [max(u + stays * (p - u), 0) for p, u in pairs]


def met_within(
    m: int,
    window: float,
    present: float,
    old: float,
    age: float,
    young: float,
    rate: float,
    left_ms: float,
) -> float:
    """The exposure of old rows in a window to those that come at a rate, beside young ones."""
    steps, found = 400, 0.0
    until = max(min(left_ms, window - age), 0)

    def there(rows: float, age: float) -> float:
        span = max(min(rows / present, window), 1) if present > 0 else window
        return rows * min(max((window - age) / span, 0), 1)

    for k in range(steps):
        s = (k + 0.5) / steps * until
        others = there(young, s) + rate * s
        more = (there(old, age + s) + others) ** (m - 1) - others ** (m - 1)
        found += m * rate * more * until / steps
    return found


def slowly(
    growth: Growth, back: Sequence[int] | None = None, age_ms: Sequence[int] | None = None
) -> list[float]:
    """The loss; or, with `back`, what comes with so many rows that were spilled `age_ms` ago."""
    groups = range(len(growth.rows))
    left_ms = growth.left_ms
    rates = expected_rates(growth, left_ms)
    powers = [float(growth.exposure_norm[g]) ** int(growth.inputs[g]) for g in groups]
    gave = [0.0] * (growth.root + 1)
    for g in groups:
        gave[growth.join[g]] += growth.session_results[g]
    found = []
    for g in groups:
        m, n, x = int(growth.inputs[g]), float(growth.rows[g]), rates[g] * left_ms
        old, young, age = n, 0.0, 0
        if back is not None and age_ms is not None:
            old, young, age = float(back[g]), n, age_ms[g]
            n, x = old, n + x
        own = [k for k in groups if growth.join[k] == growth.join[g]]
        exposure = (n + x) ** m - n**m - x**m
        window = float(growth.window_ms[g])
        if window < inf:
            rate = expected_rates(growth, min(left_ms, window))[g]
            present = float(growth.present[g])
            exposure = met_within(m, window, present, old, age, young, rate, left_ms)
            if back is not None:
                since = min(max(age, 1), float(growth.kept_ms[g]))
                before, rate = max(age - since, 0), young / since
                exposure += met_within(m, window, present, old, before, 0.0, rate, since)
        loss = 0.0
        if gave[growth.join[g]] and sum(powers[k] for k in own):
            average = gave[growth.join[g]] / sum(powers[k] for k in own)
            loss = (growth.session_results[g] + 1) / (powers[g] + 1 / average) * exposure
        below = gave[growth.join[g]]
        found.append(loss * gave[-1] / below if below and gave[-1] else loss)
    return found


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 3))
def test_the_loss_is_what_the_sums_say(seed: int, groups: int, joins: int) -> None:
    growth = growth_drawn(np.random.default_rng(seed), groups, joins)
    slow = slowly(growth)
    # What is in the window bends, and eight points know it to a few parts of a hundred.
    most = max(slow, default=0.0) if joins > 1 else 0.0
    assert expected_loss(growth) == pytest.approx(slow, rel=1e-6, abs=1e-6 + 0.04 * most)


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 3))
def test_the_gain_is_what_the_sums_say(seed: int, groups: int, joins: int) -> None:
    draw = np.random.default_rng(seed)
    growth = growth_drawn(draw, groups, joins)
    back = draw.integers(0, 60, groups) * (draw.random(groups) < 0.7)
    age_ms = draw.integers(0, 60_000, groups)
    gain = expected_gain(growth, growth.rows, back, age_ms)
    found, at_once = gain.results, gain.at_once
    slow = slowly(growth, back.tolist(), age_ms.tolist())
    most = max(slow, default=0.0) if joins > 1 else 0.0
    assert found == pytest.approx(slow, rel=1e-6, abs=1e-6 + 0.04 * most)
    assert not found[back == 0].any()
    # What comes at once is what would be gained were this the end.
    over = replace(growth, left_ms=0.0)
    slow = slowly(over, back.tolist(), age_ms.tolist())
    most = max(slow, default=0.0) if joins > 1 else 0.0
    assert at_once == pytest.approx(slow, rel=1e-6, abs=1e-6 + 0.04 * most)
    assert (at_once <= found).all()


def two_deep(older_bytes: int = 1, newer_bytes: int = 1) -> KeptGenerations:
    """Of four groups two generations of the first, and one of the second and the fourth."""
    file = FileRecord(table="spill", path="f", bytes=1, rows=1, digest="d")
    kept = KeptGenerations.none()
    for epoch, cut, rows, size in (
        (1, [0, 1], [20, 9, 9, 9], older_bytes),
        (2, [0, 3], [30, 9, 9, 40], newer_bytes),
    ):
        held, wanted = np.array(rows), np.isin(np.arange(4), cut)
        each = np.full(4, size)
        kept = kept.with_cut(wanted, held, each, held, file, epoch=epoch, now_ms=1_000 * epoch)
    return kept


def test_what_comes_back_in_turn_gains_what_it_would_together() -> None:
    """Two generations of the first group and one of the third, beside another slot's group."""
    growth = growth_drawn(np.random.default_rng(5), 3)
    kept, own = two_deep(), np.array([0, 2, 3])
    first, second = gains_of(growth, kept, own, 4, 9_000)
    alone = expected_gain(growth, growth.rows, np.array([30, 0, 40]), np.full(3, 7_000))
    assert first.results[own].tolist() == alone.results.tolist()
    assert first.results[[1, 2]].tolist() == [0, 0], "of another slot's group, and of none"
    m, n, x = int(growth.inputs[0]), float(growth.rows[0]), float(growth.to_come[0])
    whole = (50 + n + x) ** m - 20**m - 30**m - (n + x) ** m
    assert first.results[0] + second.results[0] == pytest.approx(growth.worth[0] * whole)
    now = (50 + n) ** m - 20**m - 30**m - n**m
    assert first.at_once[0] + second.at_once[0] == pytest.approx(growth.worth[0] * now)
    assert second.results[1:].tolist() == [0, 0, 0]
    assert gains_of(growth, KeptGenerations.none(), own, 4, 9_000) == []


def test_what_waits_for_one_that_never_comes_back_gains_nothing() -> None:
    growth, own = growth_drawn(np.random.default_rng(5), 3), np.array([0, 2, 3])
    growth = replace(growth, session_results=np.full(3, 900))
    large = MOST_READ_BYTES + 1

    def gained(kept: KeptGenerations, growth: Growth = growth) -> list[bool]:
        return [bool(gain.results[0]) for gain in gains_of(growth, kept, own, 4, 9_000)]

    assert gained(two_deep(large - 1, large - 1)) == [True, True]
    assert gained(two_deep(older_bytes=large)) == [True, False]
    assert gained(two_deep(newer_bytes=large)) == [False]
    much = replace(growth, session_results=np.full(3, 10**12))
    assert gained(two_deep(), much) == [False], "too many results at once"


def test_what_is_forgotten_when_rows_of_a_newer_one_leave_gains_nothing() -> None:
    """The newest generation was spilled 7 s ago, and of the first group came over some time."""
    drawn, own = growth_drawn(np.random.default_rng(5), 3), np.array([0, 2, 3])
    drawn = replace(drawn, present=np.full(3, 1e-3), session_results=np.full(3, 900))
    for kept_ms, depth in ((1e9, 2), (7_000 + 0.5 * 30 / drawn.present[0], 1)):
        growth = replace(drawn, kept_ms=np.full(3, kept_ms))
        found = gains_of(growth, two_deep(), own, 4, 9_000)
        assert len(found) == depth
        assert (found[0].stays[0] == 1) == (depth == 2)


@pytest.mark.parametrize("left_ms", [0.0, 1.0, 6e6])
@pytest.mark.parametrize("window_ms", [0.0, 0.5, 1.0, 600_000.0, inf])
@pytest.mark.parametrize("m", [2, 3, 16])
def test_a_value_is_a_number_and_never_negative(m: int, window_ms: float, left_ms: float) -> None:
    """Of no group, no row and a billion, also where the clock has stood still or was set back."""
    draw = np.random.default_rng(m)
    for groups in (0, 400):

        def rows(groups: int = groups) -> np.ndarray:
            found = np.floor(10 ** (9 * draw.random(groups))) * (draw.random(groups) < 0.8)
            return found.astype(np.int64)

        norm, back = rows() * draw.random(groups), rows()
        growth = Growth(
            rows=rows(),
            present=10 ** draw.uniform(-9, 2, groups) * (draw.random(groups) < 0.8),
            usual=10 ** draw.uniform(-9, 2, groups) * (draw.random(groups) < 0.8),
            exposure_norm=norm,
            session_results=rows() * 1_000,
            join=np.zeros(groups, dtype=np.int64),
            root=0,
            inputs=np.full(groups, m),
            window_ms=np.full(groups, window_ms),
            kept_ms=np.full(groups, window_ms * draw.choice([1.0, 1.25, 7.0])),
            left_ms=left_ms,
            came=rows(),
            evidence=NO_EVIDENCE,
        )
        ages = draw.choice([-1_700_000_000_000, -1, 0, 1, 600_000, 1_700_000_000_000], groups)
        gain = expected_gain(growth, growth.rows, back, ages)
        values = [
            expected_loss(growth),
            gain.results,
            gain.at_once,
            gain.stays,
            rows_to_come(growth),
            met(norm, growth.rows, back, growth.inputs),
            reunited(norm, growth.rows, back * 0.5, growth.inputs),
        ]
        assert [len(each) for each in values] == [groups] * len(values)
        assert all((np.isfinite(each) & (each >= 0)).all() for each in values)


def test_rows_come_until_the_session_ends_or_a_window_is_full() -> None:
    growth = growth_drawn(np.random.default_rng(3), 6, joins=2)
    steady = np.full(6, 2e-3)
    growth = replace(growth, present=steady, usual=steady, left_ms=10_000.0, rows=np.full(6, 5))
    windowed = np.isfinite(growth.window_ms)
    assert 0 < windowed.sum() < 6
    growth = replace(growth, kept_ms=growth.window_ms + 10_000)
    assert rows_to_come(growth) == pytest.approx(np.full(6, 20.0)), "until the end"
    longer = replace(growth, left_ms=60_000.0)
    assert rows_to_come(longer) == pytest.approx(np.where(windowed, 95.0, 120.0)), "of 50 s, 100"
    over = replace(growth, rows=np.full(6, 900))
    assert rows_to_come(over) == pytest.approx(np.where(windowed, 0.0, 20.0))


def spread_within(times: Sequence[np.ndarray], window_ms: float) -> tuple[np.ndarray, np.ndarray]:
    """Of all combinations of one row of each input that lie within a window, the first and the last
    row's time."""
    every = np.stack(np.meshgrid(*times, indexing="ij")).reshape(len(times), -1)
    first, last = every.min(axis=0), every.max(axis=0)
    near = last - first <= window_ms
    return first[near], last[near]


@pytest.mark.parametrize("left", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("age", [0.1, 0.4, 0.8, 1.4])
@pytest.mark.parametrize(("m", "each"), [(2, 100), (3, 32)])
def test_rows_that_come_evenly_lose_what_is_counted(
    m: int, each: int, age: float, left: float
) -> None:
    """Every row meets all others of its window, `each` of an input; the group was cut `age` windows
    ago, after a long time, and nothing is cut until `left` windows from now. Nothing of what came
    since has expired, so where the cut is older than a window, nothing came between the two."""
    window_ms, gap_ms = float(each * 100), 100.0
    age_ms, left_ms = int(age * window_ms), left * window_ms
    times = [np.arange(-3 * each, min(left, 1.0) * each) * gap_ms + gap_ms / 2] * m
    first, last = spread_within(times, window_ms)
    rows, norm, inputs = np.array([0]), np.zeros(1), np.array([m])
    per_gap = int(((last > -gap_ms) & (last < 0)).sum())
    given_so_far = 0
    for _ in range(20 * each):
        rows = np.minimum(rows, m * each)
        norm = met(norm, rows, np.array([m]), inputs)
        rows, given_so_far = rows + m, given_so_far + per_gap
    growth = Growth(
        rows=np.array([m * each]),
        present=np.array([m / gap_ms]),
        usual=np.array([m / gap_ms]),
        exposure_norm=norm,
        session_results=np.array([given_so_far]),
        join=np.array([0]),
        root=0,
        inputs=inputs,
        window_ms=np.array([window_ms]),
        kept_ms=np.array([window_ms]),
        left_ms=left_ms,
        came=np.array([m * 2 * each]),
        evidence=NO_EVIDENCE,
    )
    before_end = last < left_ms
    lost = ((first < 0) & (last > 0) & before_end).sum()
    assert expected_loss(growth)[0] == pytest.approx(lost, rel=0.1)
    young = replace(growth, rows=np.array([int(m * each * min(age, 1.0))]))
    back, ages = np.array([m * each]), np.array([age_ms])
    gap = [each[(each < -age_ms) | (each > -window_ms)] for each in times]
    first, last = spread_within(gap, window_ms)
    old, before_end = first < -age_ms, last < left_ms
    gained = (old & (last > -age_ms) & before_end).sum()
    at_once = (old & (last > -age_ms) & (last < 0)).sum()
    found = expected_gain(young, young.rows, back, ages)
    assert found.results[0] == pytest.approx(gained, rel=0.1, abs=0.01 * lost)
    assert found.at_once[0] == pytest.approx(at_once, rel=0.1, abs=0.01 * lost)
    assert found.stays[0] == pytest.approx(max(1 - age, 0.0), abs=0.01), "the rest has left"


@given(st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=4), st.integers(2, 5))
def test_the_exposure_of_an_open_end_is_the_powers_of_its_generations(
    generations: list[list[int]], m: int
) -> None:
    counters, inputs, sizes = Counters.zeros(1), np.array([m]), []
    for generation in generations:
        rows = 0
        for came in generation:
            rows += came
            held, new = np.array([rows]), np.array([came])
            there = Sizes(held[None], held, new, new)
            counters = counted(counters, there, Given.nothing(1), inputs, 1_000)
        counters = (
            figures_of(counters, rows)
            .after_spill(np.array([True]), KeptGenerations.none())
            .counters
        )
        sizes.append(rows)
    norm = counters.exposure_norm
    assert norm[0] ** m == pytest.approx(sum(float(n) ** m for n in sizes))
    if len(sizes) > 1:
        two = np.array([sizes[-1]]), np.array([sizes[-2] * 1.0])
        norm, sizes = reunited(norm, *two, inputs), [*sizes[:-2], sum(sizes[-2:])]
        assert norm[0] ** m == pytest.approx(sum(float(n) ** m for n in sizes))


@pytest.mark.parametrize("m", [2, 3])
def test_what_comes_back_has_met_what_it_comes_back_to(m: int) -> None:
    """Nine rows and five, spilled apart, are in the end what fourteen would have been."""
    inputs, file = np.full(2, m), FileRecord(table="spill", path="f", bytes=1, rows=5, digest="d")
    norm = np.full(2, (9.0**m + 5.0**m) ** (1 / m))
    counters = replace(Counters.zeros(2), exposure_norm=norm, session_results=np.array([40, 40]))
    cut, nine, five = np.array([True, False]), np.array([9, 9]), np.array([5, 0])
    two = np.array([2, 0])
    spilled, either = np.array([5, 5]), np.array([True, True])
    kept = KeptGenerations.none()
    kept = kept.with_cut(either, spilled, spilled, spilled, file, epoch=1, now_ms=1)
    figures = replace(figures_of(counters, *nine), kept=kept)
    back = Sizes(five[None], five, five, five)
    after = figures.after_return(cut, back, np.array([7, 0]), inputs).counters
    assert after.exposure_norm == pytest.approx([14, norm[1]])
    assert after.session_results.tolist() == [47, 40]
    # Three have expired: they have met some of the nine, and are taken for half as many.
    less = Sizes(two[None], two, two, two)
    after = figures.after_return(cut, less, np.array([7, 0]), inputs).counters
    grown = 12.5**m - 9.0**m - 3.5**m
    assert after.exposure_norm**m == pytest.approx(norm**m + [grown, 0])


def test_what_came_back_would_lose_what_it_is_to_gain() -> None:
    two, none = np.array([2, 2]), KeptGenerations.none()
    figures = replace(
        figures_of(Counters.zeros(2), *two),
        loss=np.array([10.0, 10.0]),
        gains=[Gain(np.array([7.0, 7.0]), np.array([3.0, 3.0]), np.ones(2))],
        kept=none,
    )
    back = Sizes(two[None], two, two, two)
    after = figures.after_return(np.array([True, False]), back, two, two)
    assert after.loss.tolist() == [14, 10]


def test_what_rows_have_met_is_kept_through_manifests() -> None:
    """Each of them rounds it. A window that is full, and rows without a window."""
    inputs, kind = np.array([2, 3, 2, 3]), FIGURES_SCHEMA.field("exposure_norm").type
    held, came = np.array([90_000, 90_000, 0, 0]), np.array([70, 70, 70, 70])
    norm, exact = np.zeros(4), np.zeros(4)
    for _ in range(2_000):
        norm = met(norm, held, came, inputs)
        norm = pa.array(norm).cast(kind).cast(pa.float64()).to_numpy()
        exact += (held + came).astype(np.float64) ** inputs - held.astype(np.float64) ** inputs
        held = held + came * (inputs * 0 + [0, 0, 1, 1])
    assert norm**inputs == pytest.approx(exact, rel=0.01)


def test_nothing_is_lost_without_rows_and_without_time() -> None:
    growth = replace(growth_drawn(np.random.default_rng(1), 20), left_ms=0.0)
    assert not expected_loss(growth).any()
    come = np.ones(20)
    later = replace(growth, left_ms=9.0, rows=np.arange(20) % 2 * 5, present=come, usual=come)
    assert ((expected_loss(later) > 0) == (later.rows > 0)).all()


def test_a_group_that_was_just_spilled_is_not_the_next_victim_for_being_young() -> None:
    """Two groups alike, of which the second has been spilled: by productivity it would leave again
    and again, and for each byte it has as much to lose."""
    same = np.array([1_000, 1_000])
    growth = Growth(
        rows=np.array([1_000, 100]),
        present=np.full(2, 1e-3),
        usual=np.full(2, 1e-3),
        exposure_norm=np.array([1_000.0, (100**2 + 900**2) ** 0.5]),
        session_results=np.array([10_000, 8_200]),
        join=np.zeros(2, dtype=np.int64),
        root=0,
        inputs=np.full(2, 2),
        window_ms=np.full(2, inf),
        kept_ms=np.full(2, inf),
        left_ms=1e6,
        came=np.zeros(2, dtype=np.int64),
        evidence=NO_EVIDENCE,
    )
    loss = expected_loss(growth)
    assert loss[1] / 100 == pytest.approx(loss[0] / 1_000, rel=0.01)
    size = np.array([1_000, 100]) * 9
    figures = GroupFigures(size, np.array([10_000, 100]), same, loss=loss)
    by_productivity = victim_order("productivity", figures, VictimContext(0, 0, 0))
    assert by_productivity.tolist() == [1, 0]


def test_without_losses_the_policy_says_what_it_lacks() -> None:
    figures = GroupFigures(np.ones(2, np.int64), np.ones(2, np.int64), np.ones(2, np.int64))
    with pytest.raises(ValueError, match="nothing was given"):
        victim_order("expected-loss", figures, VictimContext(0, 0, 0))


# --- how rows come ---------------------------------------------------------------------------


class Stream:
    """A session of some groups, epoch by epoch, through manifests."""

    def __init__(self, groups: int, epoch_s: int = 5) -> None:
        """Begin."""
        depth = max(groups - 1, 0).bit_length()
        self.groups = GroupMap([(Prefix(depth, g), 0) for g in range(groups)])
        self.table = figures_table(self.groups, 0, {}, 0)
        self.evidence = NO_EVIDENCE
        self.epoch_ms = epoch_s * 1_000
        self.now_ms = 1_000_000 * 1_000
        """Of the epoch before, as in a stream."""

    def bring(self, a_second: list[float], seconds: int) -> None:
        """Rows of each group for a time."""
        n = len(self.groups)
        for _ in range(seconds * 1_000 // self.epoch_ms):
            came = np.round(np.array(a_second) * self.epoch_ms / 1_000).astype(np.int64)
            sizes = Sizes(came[None], came, came, came)
            epoch_ms = epoch_ms_of(self.table, self.now_ms)
            before = carried(self.table, DAY, self.groups, self.now_ms)
            inputs = np.full(n, 2)
            counters = counted(before, sizes, Given.nothing(n), inputs, self.now_ms, epoch_ms)
            looked = looked_at(counters, self.evidence, self.now_ms)
            self.counters, self.evidence = looked
            none = np.zeros(n, dtype=np.int64)
            figures = Figures(none[None], none, none, self.counters, none * 0.0)
            self.table = figures_table(self.groups, 0, {DAY: figures}, self.now_ms)
            self.now_ms += self.epoch_ms

    def to_come(self, left_s: float) -> list[float]:
        """Rows a second that each group is to expect."""
        held = self.counters
        now_ms = self.now_ms - self.epoch_ms
        both = rates(held.rows_in, held.recent_rows, held.first_ms, now_ms)
        return (1_000 * rate_to_come(*both, self.evidence, left_s * 1_000)).tolist()


@pytest.mark.parametrize("epoch_s", [1, 5, 30])
def test_rates_do_not_depend_on_the_length_of_epochs(epoch_s: int) -> None:
    stream = Stream(2, epoch_s)
    stream.bring([3, 8], 600)
    assert stream.to_come(3_600) == pytest.approx([3, 8], rel=0.03)


def test_a_change_that_stays_is_believed_and_one_that_passes_is_not() -> None:
    stays = Stream(2)
    stays.bring([8, 1], 1_500)
    stays.bring([1, 8], 600)
    assert stays.to_come(1_800) == pytest.approx([1, 8], rel=0.25)
    passes = Stream(2)
    for turn in range(13):
        passes.bring([8, 1] if turn % 2 == 0 else [1, 8], 240)
    few, many = sorted(passes.to_come(1_800))
    assert few > 3, "4.5 as usual, 1 as now"
    assert many < 6
    # What comes next is another matter: it is as it is now.
    assert passes.to_come(20) == pytest.approx([8, 1], rel=0.5)


def test_chance_is_no_change() -> None:
    """Rows come evenly, by chance now to one group, now to another: what is usual counts."""
    draw = np.random.default_rng(3)
    stream = Stream(64)
    for _ in range(240):
        stream.bring((draw.poisson(0.5, 64) / 5).tolist(), 5)
    now_ms = stream.now_ms - stream.epoch_ms
    held = stream.counters
    present, usual = rates(held.rows_in, held.recent_rows, held.first_ms, now_ms)
    found = np.array(stream.to_come(1_800)) / 1_000
    assert np.abs(found - usual).max() < 0.3 * np.abs(present - usual).max()


def test_a_group_that_falls_silent_is_expected_to_stay_so() -> None:
    stream = Stream(4)
    stream.bring([4, 4, 4, 4], 1_200)
    stream.bring([4, 4, 4, 0], 600)
    assert stream.to_come(1_200)[3] < 1
    assert stream.to_come(1_200)[:3] == pytest.approx([4, 4, 4], rel=0.05)


def test_nothing_is_learned_of_a_time_in_which_the_stream_stood_still() -> None:
    stream = Stream(2)
    stream.bring([8, 1], 1_000)
    before = stream.evidence
    stream.now_ms += 3 * HORIZONS_MS[0]
    stream.bring([8, 1], 5)
    assert stream.evidence[0].tolist() == pytest.approx((KEPT * before[0]).tolist())
    assert (stream.counters.then_ms[:, 0] == stream.now_ms - stream.epoch_ms).all()


def test_the_next_day_begins_anew() -> None:
    """In a day's first epoch the clock is that of the day before's last row."""
    day = Stream(2)
    day.now_ms -= 17 * 3_600_000
    day.bring([2, 2], 5)
    day.now_ms += 17 * 3_600_000
    day.bring([2, 2], 3_600)
    assert (day.counters.first_ms >= 1_000_000 * 1_000 - 5_000).all()
    assert day.to_come(3_600) == pytest.approx([2, 2], rel=0.03)


def test_a_merge_is_as_old_as_its_older_half() -> None:
    whole, halves = GroupMap([(Prefix(0, 0), 0)]), GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    for firsts, first in (([900, 100], 100), ([900, 0], 900), ([0, 0], 0)):
        counters = replace(Counters.zeros(2), rows_in=np.array([5, 5]), first_ms=np.array(firsts))
        table = figures_table(halves, 0, {DAY: figures_of(counters, 0, 0)}, 1)
        assert carried(table, DAY, whole, 1).first_ms.tolist() == [first]


def test_a_windowed_group_that_was_just_cut_is_not_the_next_victim_for_being_young() -> None:
    """Its few rows stay in the window for longer than those that have been there for some time."""
    growth = Growth(
        rows=np.array([4_000, 400, 0]),
        present=np.full(3, 0.1),
        usual=np.full(3, 0.1),
        exposure_norm=np.full(3, 9_000.0),
        session_results=np.full(3, 9),
        join=np.zeros(3, dtype=np.int64),
        root=0,
        inputs=np.full(3, 2),
        window_ms=np.full(3, 40_000.0),
        kept_ms=np.full(3, 40_000.0),
        left_ms=1e9,
        came=np.zeros(3, dtype=np.int64),
        evidence=NO_EVIDENCE,
    )
    full, young, none = expected_loss(growth).tolist()
    assert none == 0
    assert young / 400 == pytest.approx(1.9 * full / 4_000, rel=0.02)


def test_persistence_goes_from_horizon_to_horizon() -> None:
    nothing = persistence(NO_EVIDENCE, 0.0, 1e6)
    assert nothing == 1, "of what is not known, that it stays as it is"
    evidence = NO_EVIDENCE.copy()
    evidence[0] = 1.0, 0.8
    assert persistence(evidence, 0.0, 1.0) == pytest.approx(0.8)
    assert persistence(evidence, 0.0, 1e9) == pytest.approx(0.8), "and of longer ones likewise"
    evidence[1] = 1.0, 0.4
    between = (HORIZONS_MS[0] * HORIZONS_MS[1]) ** 0.5
    assert persistence(evidence, 0.0, between) == pytest.approx(0.6)
    evidence[2] = 1.0, -3.0
    evidence[3] = 1.0, 7.0
    assert persistence(evidence, 0.0, HORIZONS_MS[2]) == 0
    assert persistence(evidence, 0.0, HORIZONS_MS[3]) == 1
    # Much that is off now asks for as much evidence.
    assert persistence(evidence[:1].repeat(4, axis=0), 100.0, 1e9) > 0.95


def test_looking_back_adds_what_came_of_what_was_off() -> None:
    evidence = np.ones((len(HORIZONS_MS), 2))
    present, usual, came = np.array([3.0, 1.0]), np.array([1.0, 2.0]), np.array([2.0, 2.0])
    found = looked_back(evidence, 1, present, usual, came)
    assert found[1].tolist() == [KEPT + 4 + 1, KEPT + 2 * 1 + -1 * 0]
    assert found[[0, 2, 3]].tolist() == evidence[[0, 2, 3]].tolist()
    assert evidence[1].tolist() == [1, 1], "what was there is not changed"


# --- counters --------------------------------------------------------------------------------


def figures_of(counters: Counters, *rows: int) -> Figures:
    none = np.zeros(len(rows), dtype=np.int64)
    return Figures(np.array(rows)[None], none, none, counters, none * 0.0)


def test_each_recent_count_forgets_at_its_own_pace() -> None:
    groups = GroupMap([(Prefix(0, 0), 0)])
    counters = replace(
        Counters.zeros(1),
        rows_in=np.array([9]),
        recent_results=np.array([8.0]),
        recent_rows=np.array([8.0]),
    )
    table = figures_table(groups, 0, {DAY: figures_of(counters, 0)}, 1_000)
    later = carried(table, DAY, groups, 1_000 + HALF_LIFE_MS)
    assert later.recent_results.tolist() == [4]
    assert later.recent_rows == pytest.approx([8 * 0.5 ** (HALF_LIFE_MS / ARRIVALS_HALF_LIFE_MS)])


def test_a_split_keeps_what_a_group_yields_and_how_its_rows_came() -> None:
    """Half of the hashes have half of each generation's rows and half of its results: for each N^m
    that is as much for either half."""
    whole, halves = GroupMap([(Prefix(0, 0), 0)]), GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    counters = replace(
        Counters.zeros(1),
        rows_in=np.array([80]),
        exposure_norm=np.array([60.0]),
        first_ms=np.array([7]),
        then_ms=np.array([[1, 2, 3, 4]]),
        then_rows=np.array([[8.0, 6.0, 4.0, 2.0]]),
        then_recent=np.array([[1.0, 2.0, 3.0, 4.0]]),
    )
    table = figures_table(whole, 0, {DAY: figures_of(counters, 0)}, 1)
    parted = carried(table, DAY, halves, 1)
    assert parted.exposure_norm.tolist() == [30, 30]
    assert parted.first_ms.tolist() == [7, 7]
    assert parted.then_ms.tolist() == [[1, 2, 3, 4]] * 2
    assert parted.then_rows.tolist() == [[4, 3, 2, 1]] * 2
    assert parted.then_recent.tolist() == [[0.5, 1, 1.5, 2]] * 2
    table = figures_table(halves, 0, {DAY: figures_of(parted, 0, 0)}, 1)
    again = carried(table, DAY, whole, 1)
    assert again.exposure_norm.tolist() == [60]
    assert again.then_rows.tolist() == [[8, 6, 4, 2]]


def test_where_the_end_is_not_known_a_session_goes_on_for_as_long_as_it_has() -> None:
    counters = replace(Counters.zeros(3), first_ms=np.array([0, 500, 900]))
    joins = GroupJoins(*np.zeros((2, 3), np.int64), np.full(3, 2), np.full(3, inf), np.zeros(3), 0)
    rows = np.zeros(3, dtype=np.int64)

    def left_ms(*own: int, known: float | None = None) -> float:
        of = np.array(own)
        return growth_of(rows, counters, joins, of, 1_500, NO_EVIDENCE, known, 0.0).left_ms

    assert left_ms(0, 1, 2) == 1_000
    assert left_ms(0, 2) == 600
    assert left_ms(0, 1, 2, known=7.0) == 7
    counters.first_ms[:] = 0
    assert left_ms(0, 1, 2) == 0


def test_a_tree_goes_by_what_groups_have_given() -> None:
    assert victims_for("automatic", 1) == "expected-loss"
    assert victims_for("automatic", 2) == "local-output"
    assert victims_for("expected-loss", 4) == "expected-loss"
    assert victims_for("largest", 1) == "largest"
    assert fraction_for("automatic", "expected-gain") == LARGE_SPILL == 0.3, "the settings say"
    assert fraction_for("automatic", "off") == SMALL_SPILL == 0.05
    assert fraction_for(0.2, "off") == fraction_for(0.2, "rotation") == 0.2
    assert SpillSettings().fraction == "automatic"
    chosen = get_args(SpillSettings.model_fields["victims"].annotation)
    assert {*chosen} == {"automatic", *POLICIES}
    assert SpillSettings().victims == "automatic"
