"""The laboratory of windowed joins: day, counts and cost model against brute force; a tiny exact
run; claims and page."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.lab import page, window_exact
from benchmarks.lab.catalogue import spilling_experiments
from benchmarks.lab.digest import digest
from benchmarks.lab.exact import NotExact
from benchmarks.lab.window_control import GROUPS, Master, halves, settings
from benchmarks.lab.window_cost import LEAF_BITS, Cost, Queues, by_group, scanned
from benchmarks.lab.window_exact import first_held, given, numbers
from benchmarks.lab.window_experiments import (
    ADAPTIVE,
    BESIDE,
    COMPARED,
    NO_TUNING,
    RATES,
    UNEVEN,
    UNEVEN_NO_MOVES,
    name_of,
    window_experiments,
)
from benchmarks.lab.window_lines import MOVES, SLOTS, TUNING, WindowLine, WindowOutcome, run_window
from benchmarks.lab.window_page import WindowDone, window_picture
from benchmarks.lab.window_workload import (
    DOMAIN_BITS,
    STREAMS,
    US,
    WindowDay,
    WindowWorkload,
    generate_window,
)
from spillway.engine.groups import GroupMap
from spillway.engine.join.hashing import xxhash64
from spillway_schemas.journal import Prefix

TINY = WindowWorkload(400, minutes=2, window_s=60, skew=0.8, factor=1 / 100)
"""Four rows a second, and a window of a minute."""


@pytest.fixture(scope="module")
def tiny() -> WindowDay:
    return generate_window(TINY)


# --- workload --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_day(tiny: WindowDay):
    same, other = generate_window(TINY), generate_window(replace(TINY, seed=2))
    assert all((a == b).all() for a, b in zip(tiny.keys, same.keys, strict=True))
    assert len(tiny.keys[0]) != len(other.keys[0]) or (tiny.keys[0] != other.keys[0]).any()
    assert (tiny.hashes[1] == xxhash64([pa.array(tiny.keys[1])])).all()


def test_rows_arrive_by_a_poisson_process():
    day = generate_window(WindowWorkload(1600, factor=1 / 16))
    for times in day.time_us:
        assert len(times) == pytest.approx(100 * 1200, rel=0.01)
        assert (np.diff(times) >= 0).all()
        assert 0 <= times[0] <= times[-1] < 1200 * US
        counts = np.bincount(times // US, minlength=1200)
        assert counts.var() == pytest.approx(counts.mean(), rel=0.15)
    second = day.between(0, 3, 4)
    assert (day.time_us[0][second] // US == 3).all()
    assert second.stop - second.start == int((day.time_us[0] // US == 3).sum())


def test_keys_follow_the_b_model():
    """Two rows have one key with the probability (b^2 + (1 - b)^2)^L."""
    work = WindowWorkload(4000, skew=0.7, factor=1 / 16)
    assert work.bits == 18
    keys = generate_window(work).keys
    counts = [np.bincount(each, minlength=1 << work.bits) for each in keys]
    meet = (counts[0] * counts[1]).sum() / len(keys[0]) / len(keys[1])
    assert meet == pytest.approx(0.58**18, rel=0.05)
    assert counts[0].max() / len(keys[0]) == pytest.approx(0.7**18, rel=0.15)
    # A row finds as many partners as in the paper, to the bit.
    assert meet * work.factor / 0.58**DOMAIN_BITS == pytest.approx(1, rel=0.2)


# --- what there must be ----------------------------------------------------------------------


def by_hand(times: list[list[int]], keys: list[list[int]]) -> WindowDay:
    return WindowDay(
        tuple(np.array(each, np.int64) for each in times),
        tuple(np.array(each, np.int64) for each in keys),
        tuple(xxhash64([pa.array(np.array(each, np.int64))]) for each in keys),
    )


def pairs(day: WindowDay, window_us: int) -> list[tuple[int, int]]:
    """Rows of the two streams that join, one after the other."""
    left, right = (
        [*zip(day.time_us[s].tolist(), day.keys[s].tolist(), strict=True)] for s in range(STREAMS)
    )
    return [
        (i, j)
        for (i, (t, k)), (j, (u, m)) in itertools.product(enumerate(left), enumerate(right))
        if k == m and abs(t - u) <= window_us
    ]


@pytest.mark.parametrize("seed", range(3))
def test_what_rows_give_is_what_all_combinations_give(seed: int):
    rng = np.random.default_rng(seed)
    times = [sorted(rng.integers(0, 40, 60).tolist()) for _ in range(2)]  # many at one time
    day = by_hand(times, rng.integers(0, 4, (2, 60)).tolist())
    drawn = numbers(day)
    found = given(day, 7 / US, drawn)
    results = [np.zeros(60, np.int64) for _ in range(2)]
    weight = [np.zeros(60, np.uint64) for _ in range(2)]
    for i, j in pairs(day, 7):
        later, at = (0, i) if times[0][i] > times[1][j] else (1, j)
        results[later][at] += 1
        with np.errstate(over="ignore"):
            weight[later][at] += drawn[0][i] * drawn[1][j]
    for stream in range(STREAMS):
        assert found.results[stream].tolist() == results[stream].tolist()
        assert found.weight[stream].tolist() == weight[stream].tolist()
    assert sum(each.sum() for each in results) > 100


def held_slowly(day: WindowDay, window_us: int, begin_us: int) -> list[list[int]]:
    """Per stream the rows that memory has when an epoch begins, one after the other."""
    past = [[t for t in each.tolist() if t < begin_us] for each in day.time_us]
    if not all(past):
        return [list(range(len(each))) for each in past]
    watermark = min(max(each) for each in past)
    size = max(window_us // 4, 10 * US)
    return [
        [n for n, t in enumerate(each) if (t // size + 1) * size - 1 + window_us >= watermark]
        for each in past
    ]


def test_rows_are_held_until_their_slice_has_expired(tiny: WindowDay):
    begins = [0.0, 3.0, 59.0, 76.0, 77.0, 90.0, 91.0, 118.0]
    first = first_held(tiny, 60, begins)
    for begin_s, found in zip(begins, first.tolist(), strict=True):
        slow = held_slowly(tiny, 60 * US, round(begin_s * US))
        assert found == [each[0] if each else 0 for each in slow]
    assert (first[-1] > 0).all()


# --- cost model ------------------------------------------------------------------------------


def test_a_nested_loop_compares_every_new_row_with_the_other_streams_once():
    rng = np.random.default_rng(1)
    before, new = rng.integers(0, 9, (2, 2, 5))
    for g in range(5):
        rows = [["old"] * before[s, g] + ["new"] * new[s, g] for s in range(2)]
        compared = [pair for pair in itertools.product(*rows) if "new" in pair]
        assert scanned(before, new)[g] == len(compared)


def test_leaves_are_summed_by_group():
    rng = np.random.default_rng(2)
    groups = GroupMap([(Prefix(1, 0), 0), (Prefix(3, 4), 1), (Prefix(3, 5), 0), (Prefix(2, 3), 1)])
    hashes = rng.integers(0, 1 << 63, 500).astype(np.uint64) * np.uint64(2)
    leaves = np.bincount(
        (hashes >> np.uint64(64 - LEAF_BITS)).astype(int), minlength=1 << LEAF_BITS
    )
    wanted = np.bincount(groups.group_of(hashes), minlength=4)
    assert by_group(leaves, groups).tolist() == wanted.tolist()
    deep = [(Prefix(LEAF_BITS + 1, 0), 0), *((Prefix(n, 1), 0) for n in range(1, LEAF_BITS + 2))]
    with pytest.raises(ValueError, match="a group of 17 bits"):
        by_group(leaves, GroupMap(deep))


def test_what_an_epoch_costs():
    """By hand. Of a day with an eighth of the rows, each stands for 8, and each pair for 64."""
    cost = Cost(row_s=3.0, scan_s=0.5, result_s=2.0, move_s=7.0)
    one = [np.array([float(n)]) for n in (1, 10, 100, 1000)]
    assert cost.work_s(1.0, *one).tolist() == [3 + 5 + 200 + 7000]
    assert cost.work_s(1 / 8, *one).tolist() == [8 * 3 + 64 * 5 + 8 * 200 + 8 * 7000]
    assert cost.work_s(1.0, *one[:3], np.zeros(1)).tolist() == [208]


def test_a_slot_that_has_too_much_to_do_leaves_it_over():
    """Two slots, epochs of 2 s; the first needs 3 s, then 1 s, then 1 s for its rows."""
    queues = Queues(2)
    for end_s, work_s, left in ((2.0, 3.0, 1.0), (4.0, 1.0, 0.0), (6.0, 1.0, 0.0)):
        came_s = np.array([10 * (end_s - 1), 5 * (end_s - 1)])  # in the middle of the epoch
        do_s = queues.epoch(end_s, 2.0, np.array([work_s, 0.5]), np.array([10, 5]), came_s)
        assert queues.left_s.tolist() == [left, 0]
        assert do_s[0] == (work_s if end_s != 4 else 2.0)
    # Its results wait 1 s for the end of their epoch, then 3, 1 + 1 and 1 s.
    assert queues.delay_s == pytest.approx(10 * (4 + 3 + 2) + 3 * 5 * 1.5)
    assert queues.results == 45
    assert queues.busy_s.tolist() == [2 + 2 + 1, 1.5]
    assert queues.idle_s.tolist() == [1, 4.5]
    queues.left_s = np.array([4.0, 1.0])
    queues.hand_over(np.array([0, 0]), np.array([1, 1]), np.array([0.25, 0.5]))
    assert queues.left_s.tolist() == [1, 4]
    queues.begin()
    assert (queues.delay_s, queues.results, queues.busy_s.sum()) == (0, 0, 0)
    assert queues.left_s.tolist() == [1, 4], "what waits is not forgotten"


# --- control ---------------------------------------------------------------------------------


def reorganised(
    policies: tuple[str, ...], groups: GroupMap, do_s: list[float], held: list[int]
) -> tuple[Master, GroupMap]:
    master = Master(policies, 1 / 16, 0.8)
    for _ in range(10):
        master.note(np.array(do_s + [0.0] * (5 - len(do_s))), 2.0)
    rows = np.array(held)
    return master, master.reorganise(20.0, groups, rows, rows)


def theta_rows() -> float:
    """1.5 MB of 64 bytes, a sixteenth."""
    return (3 << 19) / 64 / 16


def test_theta_holds_as_many_rows_as_the_papers():
    assert int(settings(1 / 16)["theta_bytes"]) / 36 == pytest.approx(theta_rows(), abs=1)
    assert settings(1 / 16)["groups"] == GROUPS == 64
    assert (settings(1.0)["th_sup"], settings(1.0)["th_con"]) == (0.5, 0.01)


def test_a_supplier_gives_a_group_to_a_consumer():
    groups = GroupMap.initial(GROUPS, 2)
    held = [10] * GROUPS
    master, after = reorganised((MOVES,), groups, [3.2, 1.0], held)
    assert master.moved == 1
    assert (after.slots != groups.slots).sum() == 1
    assert int((after.slots == 0).sum()) == 31
    # Neither is a supplier: what is left over is less than half an epoch's work.
    assert reorganised((MOVES,), groups, [2.8, 1.0], held)[1] == groups


def test_groups_are_split_over_two_theta_and_merged_again():
    groups = GroupMap.initial(GROUPS, 2)
    held = [10] * GROUPS
    held[7] = int(2 * theta_rows()) + 10
    master, split = reorganised((TUNING,), groups, [1.0, 1.0], held)
    assert [p for p in split.prefixes if p.depth == 7] == [*halves(Prefix(6, 7))]
    assert (master.splits, master.merges) == (1, 0)
    master, merged = reorganised((TUNING,), split, [1.0, 1.0], [10] * 65)
    assert merged == groups
    assert (master.splits, master.merges) == (0, 1)


def test_a_group_that_moves_is_not_split_at_once():
    large = int(2 * theta_rows()) + 10
    groups = GroupMap.initial(GROUPS, 2)
    master, after = reorganised((MOVES, TUNING), groups, [3.2, 1.0], [large] * GROUPS)
    assert (master.moved, master.splits) == (1, GROUPS - 1)
    assert len(after) == 2 * GROUPS - 1


def test_slots_come_and_go():
    groups = GroupMap.initial(GROUPS, 5)
    master, fewer = reorganised((MOVES, SLOTS), groups, [0.2] * 5, [10] * GROUPS)
    assert set(fewer.slots.tolist()) == {0, 1, 2}, "at most half as many at a time"
    assert master.changes == 1
    more = reorganised((MOVES, SLOTS), GroupMap.initial(GROUPS, 1), [5.0], [10] * GROUPS)[1]
    assert set(more.slots.tolist()) == {0, 1}


# --- runs ------------------------------------------------------------------------------------


def reckoned_slowly(line: WindowLine, day: WindowDay) -> tuple[float, float]:
    """Delay, and the share of the time that slots work, row by row, for slots that stay as they
    are, from when the window has filled."""
    work, cost, groups = line.workload, line.cost, GroupMap.initial(GROUPS, line.slots)
    window_us, each = round(work.window_s * US), 1 / line.workload.factor
    of = [groups.group_of(hashes).tolist() for hashes in day.hashes]
    times = [t.tolist() for t in day.time_us]
    results: dict[tuple[int, int], list[int]] = {}  # by epoch and slot: when later rows came
    step_us = round(line.distribution_s * US)
    for i, j in pairs(day, window_us):
        later = max(times[0][i], times[1][j])
        place = later // step_us, int(groups.slots[of[0][i]])
        results.setdefault(place, []).append(later)
    left, delay, count, busy = [0.0] * line.slots, 0.0, 0, 0.0
    span = step_us
    for begin in range(0, round(work.minutes * 60 * US), step_us):
        held = held_slowly(day, window_us, begin)
        new = [[n for n, t in enumerate(ts) if begin <= t < begin + span] for ts in times]
        for slot in range(line.slots):
            own = [
                [n for n in rows if groups.slots[of[s][n]] == slot] for s, rows in enumerate(new)
            ]
            compared = 0
            for s, o in ((0, 1), (1, 0)):
                for n in own[s]:
                    compared += sum(of[o][m] == of[s][n] for m in held[o])
            compared += sum(of[0][n] == of[1][m] for n in own[0] for m in own[1])
            some = [
                t
                for e in range(begin // step_us, (begin + span) // step_us)
                for t in results.get((e, slot), [])
            ]
            take = each * (cost.row_s * (len(own[0]) + len(own[1])) + cost.result_s * len(some))
            take += each**2 * cost.scan_s * compared
            ready = left[slot] + take
            if begin >= window_us:
                delay += sum((begin + span) / US + ready - t / US for t in some)
                count += len(some)
                busy += min(ready, span / US)
            left[slot] = max(ready - span / US, 0.0)
    return delay / count, busy / line.slots / (work.minutes * 60 - work.window_s)


@pytest.mark.server
@pytest.mark.parametrize(("slots", "dear"), [(2, 1.0), (2, 8.0), (1, 60.0)])
def test_a_runs_delay_is_what_row_by_row_comes_out(tiny: WindowDay, slots: int, dear: float):
    """With work for a part of the time, nearly all of it, and more than there is time for."""
    cost = Cost(row_s=20e-6 * dear, scan_s=50e-9 * dear, result_s=5e-6 * dear)
    line = WindowLine("plain", TINY, slots, (), cost=cost)
    found = run_window(line)
    delay_s, busy = reckoned_slowly(line, tiny)
    assert found.delay_s == pytest.approx(delay_s, abs=0.001)
    assert found.busy == pytest.approx(busy, abs=0.0001)
    assert found.slots == slots
    assert len(found.window_rows) == slots
    assert (found.left_s > 10) == (dear == 60)
    assert found.results > 500


@pytest.mark.server
def test_a_run_moves_splits_changes_slots_and_is_exact():
    work = replace(TINY, rate=1600, minutes=3)
    dear = Cost(row_s=400e-6, scan_s=40e-9)
    line = WindowLine("all", work, 1, (MOVES, TUNING, SLOTS), cost=dear, beside=True)
    found = run_window(line)
    assert found.slots > 1
    assert found.results > 500
    assert found.beside > 0
    uneven = WindowLine("uneven", work, 2, (MOVES,), cost=dear, shares=(3.0, 1.0))
    assert run_window(uneven).moved_groups
    assert run_window(replace(uneven, policies=())).moved_groups == 0


@pytest.mark.server
@pytest.mark.parametrize("what", ["results", "results, told by their rows", "rows in memory"])
def test_a_run_that_is_not_exact_fails(monkeypatch: pytest.MonkeyPatch, what: str):
    plain, held = window_exact.given, window_exact.first_held

    def other(*args: Any) -> Any:
        found = plain(*args)
        if what == "results":
            found.results[1][40] += 1
        elif what == "results, told by their rows":
            found.weight[0][int(found.results[0].argmax())] += np.uint64(1)
        return found

    def later(*args: Any) -> Any:
        return held(*args) + (what == "rows in memory")

    monkeypatch.setattr(window_exact, "given", other)
    monkeypatch.setattr(window_exact, "first_held", later)
    with pytest.raises(NotExact, match=f"plain: wrong {what} of slot"):
        run_window(WindowLine("plain", TINY, 1, ()))


# --- claims and page -------------------------------------------------------------------------

BY_RATE, BY_EPOCH = window_experiments()


def outcome(name: str, **more: Any) -> WindowOutcome:
    plain = {
        "results": 1000,
        "delay_s": 2.0,
        "last_delay_s": 2.0,
        "busy": 0.5,
        "idle_least": 0.5,
        "left_s": 0.0,
        "slots": 4.0,
        "moved_groups": 0,
        "splits": 0,
        "merges": 0,
        "groups": 64,
        "window_rows": [5, 5],
        "shares": [1.0, 1.0, 1.0],
        "beside": 1.0,
        "run_cpu_s": 1.0,
    }
    return WindowOutcome(name, **{**plain, **more})


def judged(lines: dict[str, dict[str, Any]]) -> list[bool | None]:
    found = {each.name: outcome(each.name, **lines.get(each.name, {})) for each in BY_RATE.lines}
    return [c.direction for c in BY_RATE.claims(found) if c.direction is not None]


def test_every_claim_by_rate_can_hold_and_can_fail():
    shared = {1: 3000, 2: 5000, 3: 6000, 4: 7000}
    as_said: dict[str, dict[str, Any]] = {
        name_of(n, r): {"delay_s": 99.0, "left_s": 9.0, "idle_least": 0.0}
        for n, rates in RATES.items()
        for r in rates
        if r >= shared.get(n, 9999)
    }
    as_said[name_of(4, 6000, BESIDE)] = {"delay_s": 9.0}
    as_said[name_of(4, 6000, UNEVEN_NO_MOVES)] = {"delay_s": 9.0}
    for r in COMPARED:
        as_said.setdefault(name_of(4, r, BESIDE), {})["beside"] = 0.9
    as_said[name_of(4, 4000, NO_TUNING)] = {"delay_s": 50.0, "idle_least": 0.0}
    as_said[name_of(5, 1500, ADAPTIVE)] = {"slots": 1.5, "run_cpu_s": 0.5}
    assert set(judged(as_said)) == {True}
    spread = {name_of(n, 1500): {"delay_s": 1.0} for n in RATES}
    nothing = {name_of(5, 1500, ADAPTIVE): {"slots": 5.0}, name_of(1, 4000, ADAPTIVE): {"slots": 1}}
    assert set(judged(spread | nothing)) == {False}
    assert name_of(1, 3000) == "1 slot, 3,000/s"
    assert name_of(4, 6000, UNEVEN) in {line.name for line in BY_RATE.lines}


def test_claims_by_epoch():
    names = [line.name for line in BY_EPOCH.lines]
    dear = {name: outcome(name, run_cpu_s=9.0 - 2 * n) for n, name in enumerate(names)}
    flat = {name: outcome(name) for name in names}
    assert [c.direction for c in BY_EPOCH.claims(dear)] == [None, None, True]
    assert [c.direction for c in BY_EPOCH.claims(flat)] == [None, None, False]


def test_experiments_of_windows_are_told_apart():
    assert len({digest(each) for each in window_experiments()}) == 2
    line = BY_EPOCH.lines[0]
    for other in (
        replace(line, cost=Cost(scan_s=1.0)),
        replace(line, workload=replace(line.workload, skew=0.8)),
        replace(line, policies=(TUNING,)),
    ):
        assert digest(replace(BY_EPOCH, lines=(other, *BY_EPOCH.lines[1:]))) != digest(BY_EPOCH)
    for each in window_experiments():
        names = [line.name for line in each.lines]
        assert len(set(names)) == len(names)
        assert [p.figure for p in each.pictures] == list(each.figures)
        shown = {name for p in each.pictures for points in p.curves.values() for _, name in points}
        assert shown <= set(names)


def test_what_is_about_the_network_is_not_judged():
    done = WindowDone(BY_EPOCH, {each.name: outcome(each.name) for each in BY_EPOCH.lines})
    text = page.judged([done])
    assert text.splitlines()[0].startswith("| figure | the paper |")
    assert "| about its network | – |" in text
    assert "| by construction |" in text


def test_an_experiment_of_windows_is_kept_and_shown():
    outcomes = {each.name: outcome(each.name, delay_s=1.25) for each in BY_EPOCH.lines}
    done = WindowDone(BY_EPOCH, outcomes, 12.5, "abc")
    known = (*spilling_experiments(), BY_RATE, BY_EPOCH)
    assert page.restore(page.dump([done]), known) == [done]
    assert not page.restore(page.dump([done]).replace('"beside"', '"once"'), known)
    section = page.figure_section(done)
    assert section.startswith(BY_EPOCH.setting)
    assert "![Production delay by distribution epoch](laboratory/figure-window-13.svg)" in section
    assert "| 0.5 s | 1,000 | 1.25 | 2.00 | 50% |" in section


def test_a_picture_of_windows_stands_alone():
    outcomes = {each.name: outcome(each.name) for each in BY_RATE.lines}
    for wanted in BY_RATE.pictures:
        text = window_picture(wanted, outcomes)
        assert text.count('class="line"') == len(wanted.curves)
        assert wanted.title in text
