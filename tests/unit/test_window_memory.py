"""Days of windows with too little memory: their ceiling, and what a run must keep to."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import window_memory
from benchmarks.lab.clairvoyant import _schedules
from benchmarks.lab.cluster import Spilling
from benchmarks.lab.window_workload import WindowDay
from benchmarks.window_memory import (
    AMPLE,
    DAYS,
    GROUPS,
    SHARE,
    WINDOW_S,
    MemoryDay,
    ceiling,
    drawn,
    generations,
    run,
)
from spillway.engine import growth as growth_module
from spillway.engine import step
from spillway.engine.groups import I64, Bool
from spillway.engine.spill.spilling import choose_returns
from spillway.engine.statistics import Figures
from spillway.engine.task import StepTask
from spillway.policy.expected import Gain, Growth, expected_gain
from spillway.policy.reactivation import DEFAULT_REACTIVATION
from spillway.policy.victims import DEFAULT_VICTIMS


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day of 20 minutes in 60 epochs."""
    monkeypatch.setattr(window_memory, "DAY_S", 1_200)
    monkeypatch.setattr(window_memory, "EPOCH_S", 20)


def counted(day: MemoryDay) -> np.ndarray:
    """All pairs of a key within the window, key by key."""
    found = []
    for left, (key, at) in enumerate(zip(day.rows.keys[0], day.rows.time_us[0], strict=True)):
        same = day.rows.keys[1] == key
        near = np.abs(day.rows.time_us[1] - at) <= WINDOW_S * 1_000_000
        found += [(left, right) for right in np.flatnonzero(same & near).tolist()]
    return np.array(found)


def test_days_are_what_they_are_called() -> None:
    assert set(DAYS) == {"still", "swap", "silent", "rotating"}
    with pytest.raises(KeyError):
        drawn("x")
    for kind in DAYS:
        day = drawn(kind)
        assert day.epochs == 60
        early, late = (
            np.bincount(day.group[0][day.epoch_of(0) // 30 == part], minlength=GROUPS)
            for part in (0, 1)
        )
        alike = float(np.corrcoef(early, late)[0, 1])
        assert alike > 0.98 if kind == "still" else alike < 0.95, kind
    assert not (late > 0).all() or kind != "silent"


def test_a_run_that_lacks_memory_lacks_results_and_none_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = later = 0.0
    ages: list[int] = []

    def gained(growth: Growth, held: I64, back: I64, age_ms: I64) -> Gain:
        ages.extend(age_ms[back > 0].tolist())
        return expected_gain(growth, held, back, age_ms)

    def watched(figures: dict[str, Figures], *args: Any, **named: Any) -> dict[str, Bool]:
        nonlocal at_once, later
        for each in figures.values():
            for gain in each.gains:
                assert (gain.results >= gain.at_once).all(), "what comes at once is part of it"
                at_once += float(gain.at_once.sum())
                later += float((gain.results - gain.at_once).sum())
        return choose_returns(figures, *args, **named)

    monkeypatch.setattr(step, "choose_returns", watched)
    monkeypatch.setattr(growth_module, "expected_gain", gained)
    day = drawn("rotating", rows_a_second=8)
    ample = run(day, Spilling(AMPLE))
    everything = {*map(tuple, counted(day).tolist())}
    assert {*map(tuple, ample.pairs.tolist())} == everything
    memory, rows = int(SHARE * ample.memory_bytes), int(SHARE * ample.rows)
    less = run(day, Spilling(memory, 0.05, "productivity"))
    assert {*map(tuple, less.pairs.tolist())} < everything
    assert (less.returned, less.spilled > 0) == (0, True)
    gains = generations(day, ample.pairs)
    assert len(less.pairs) <= ceiling(day, gains, rows, len(less.pairs), rounds=40)
    more = run(day, Spilling(memory, 0.05, DEFAULT_VICTIMS, reactivation=DEFAULT_REACTIVATION))
    assert {*map(tuple, more.pairs.tolist())} < everything
    assert more.returned > 0
    assert at_once > 0
    assert later > 0
    epoch_ms, day_ms = window_memory.EPOCH_S * 1_000, window_memory.DAY_S * 1_000
    assert (min(ages), max(ages) <= day_ms) == (epoch_ms, True), "since it was spilled"
    assert len(more.pairs) > 1.1 * len(less.pairs)


@pytest.mark.parametrize(
    "late_s", [300, *(pytest.param(each, marks=pytest.mark.server) for each in (0, None))]
)
def test_what_comes_back_takes_the_memory_that_it_was_expected_to(
    late_s: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows stay for a window, a slice and while the watermark lags, or, with None, while there is
    none. Memory is never passed."""
    monkeypatch.setattr(window_memory, "WINDOW_S", 200)
    monkeypatch.setattr(window_memory, "DAY_S", 800)
    expected, whole = 0.0, 0

    def watched(figures: dict[str, Figures], *args: Any, **named: Any) -> dict[str, Bool]:
        nonlocal expected, whole
        found = choose_returns(figures, *args, **named)
        for session, back in found.items():
            gain = figures[session].gains[0]
            rows = figures[session].kept.newest(len(back)).rows
            expected, whole = expected + float(gain.stays @ (rows * back)), whole + rows @ back
        return found

    monkeypatch.setattr(step, "choose_returns", watched)
    task = window_memory.ShortCluster._task

    def late(cluster: window_memory.ShortCluster, slot: int, until_s: float) -> StepTask:
        found = task(cluster, slot, until_s)
        if late_s is None:
            return replace(found, expired_by={})
        lag = {day: us - late_s * 1_000_000 for day, us in found.expired_by.items()}
        return replace(found, expired_by=lag)

    monkeypatch.setattr(window_memory.ShortCluster, "_task", late)
    day = drawn("rotating", rows_a_second=6)
    ample = run(day, Spilling(AMPLE))
    memory = int(SHARE * ample.memory_bytes)
    more = run(day, Spilling(memory, 0.05, DEFAULT_VICTIMS, reactivation=DEFAULT_REACTIVATION))
    assert more.memory_bytes <= memory
    assert more.returned > 0.02 * len(day.group[0])
    assert more.returned == pytest.approx(expected, rel=0.15)
    assert (more.returned < 0.95 * whole) == (late_s is not None)


@pytest.mark.parametrize("keeps", [2, 30])
def test_the_ceiling_is_what_the_best_cuts_give(
    keeps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few rows all schedules can be tried; two groups, five epochs, a window of so many."""
    monkeypatch.setattr(window_memory, "WINDOW_S", keeps * window_memory.EPOCH_S)
    draw = np.random.default_rng(5)
    for _ in range(5):
        ends = np.arange(5) * window_memory.EPOCH_S * 1_000_000
        gains = np.zeros((6, 6, GROUPS))
        near = np.triu(np.ones((5, 5))) - np.triu(np.ones((5, 5)), keeps + 1)
        pair = draw.integers(0, 9, (5, 5, 2)) * near[..., None]
        for a, b in itertools.combinations(range(6), 2):
            gains[a, b, :2] = pair[a:b, a:b].sum(axis=(0, 1))
        group = np.array([0, 1] * 5)
        times = np.repeat(ends, 2)
        nothing = np.zeros(10, dtype=np.int64)
        hashes = (nothing.astype(np.uint64),) * 2
        day = MemoryDay(WindowDay((times, times), (nothing, nothing), hashes), (group, group))
        best = 0.0
        schedules = [
            (0, *cuts, 5) for n in range(5) for cuts in itertools.combinations(range(1, 5), n)
        ]
        for one, two in itertools.product(schedules, repeat=2):
            held = np.zeros(6)
            for cuts in (one, two):
                for begin, end in itertools.pairwise(cuts):
                    there = np.minimum(np.arange(begin + 1, end) - begin, keeps)
                    held[begin + 1 : end] += 2 * there
            if held.max() <= 6:
                best = max(
                    best,
                    sum(
                        gains[begin, end, group]
                        for group, cuts in enumerate((one, two))
                        for begin, end in itertools.pairwise(cuts)
                    ),
                )
        found = ceiling(day, gains, 6, int(best))
        everything = gains[0, 5].sum()
        assert best <= found <= 1.5 * best
        assert found < everything
        assert ceiling(day, gains, 4 * min(keeps, 4), int(best)) == everything, (
            "all that is held fits"
        )


@pytest.mark.parametrize("keeps", [1, 2, 5])
def test_at_given_prices_each_group_has_its_best_cuts(keeps: int) -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        epochs = np.maximum(np.arange(6) - np.arange(6)[:, None], 0)
        gains = (2 * epochs**2 * draw.random((6, 6)))[..., None]
        came = np.concatenate([[0], draw.integers(0, 9, 5).cumsum()]).astype(float)[:, None]
        price = draw.random(6)
        found = []
        for cuts in (c for n in range(5) for c in itertools.combinations(range(1, 5), n)):
            held, gave = np.zeros(6), 0.0
            for begin, end in itertools.pairwise((0, *cuts, 5)):
                gave += gains[begin, end, 0]
                for at in range(begin + 1, end):
                    held[at] = came[at, 0] - came[max(begin, at - keeps), 0]
            found.append((gave - float(held @ price), held.tolist()))
        value, in_memory = _schedules(gains, came, price, keeps)
        best, held_then = max(found)
        assert value == pytest.approx(best)
        assert in_memory.tolist() == held_then
