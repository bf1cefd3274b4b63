"""Which spilled generations come back, what a slot remembers of them, and how a step takes them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.engine.spill import returning as returning_
from spillway.engine.spill.generations import VoidedCuts
from spillway.engine.spill.source import alive
from spillway.engine.spill.spilling import Limits, choose_returns, choose_victims
from spillway.engine.state.kept import KEPT_FIELDS, KeptGenerations
from spillway.engine.state.statefiles import FIGURES_SCHEMA
from spillway.engine.statistics import Counters, Figures, figures_table
from spillway.policy.automatic import reactivation_for
from spillway.policy.expected import Gain
from spillway.policy.reactivation import (
    LEAST_KEPT,
    MARGIN,
    POLICIES,
    Candidates,
    Residents,
    returning,
    worth_of,
)
from spillway.policy.victims import VictimContext
from spillway_schemas.journal import KEPT_GENERATIONS, FileRecord, Prefix, SlotReport
from spillway_schemas.setting_fields import SpillSettings
from tests.property.reference import Row
from tests.property.slots import DAYS, Slots, key_of, narrow, spec_of

DAY = DAYS[0]


def test_the_settings_offer_each_policy() -> None:
    kinds = get_args(SpillSettings.model_fields["reactivation"].annotation)
    assert set(kinds) == {"automatic", *POLICIES}
    assert reactivation_for("automatic", "expected-loss") == "expected-gain"
    assert reactivation_for("automatic", "productivity") == "off"
    assert reactivation_for("random", "productivity") == "random"
    with pytest.raises(ValueError, match=r"^unknown policy 'x': use one of expected-gain, "):
        returning(
            "x",
            residents([1]),
            candidates([1], [1.0]),
            most_bytes=1,
            most_read_bytes=1,
        )


def residents(size: list[int], loss: list[float] | None = None, leaving: Any = ()) -> Residents:
    gone = np.zeros(len(size), dtype=np.bool_)
    gone[list(leaving)] = True
    return Residents(np.array(size), np.array(loss or [0.0] * len(size)), gone)


def candidates(
    size: list[int],
    gain: list[float],
    at_once: list[float] | None = None,
    at_ms: list[int] | None = None,
    stays: list[float] | None = None,
) -> Candidates:
    times = np.zeros(len(size), dtype=np.int64) if at_ms is None else np.array(at_ms)
    once = np.array(at_once or [0.0] * len(size))
    left = np.array(size) * 1.0 if stays is None else np.array(stays)
    worth = worth_of([np.array(gain)], [np.array(size)], [left])
    return Candidates(np.array(size), left, worth, once, times)


def back(*who: Any, most: int = 100, spare: int = 0, read: int = 999, policy: str = "") -> Any:
    sizes = {"most_bytes": most, "spare_bytes": spare, "seed": 5}
    sizes["most_read_bytes"] = read
    return np.flatnonzero(returning(policy or "expected-gain", *who, **sizes)).tolist()


def test_a_generation_comes_back_when_it_is_worth_more_than_its_room() -> None:
    assert MARGIN == 1.2, "the setting and the concepts say: a fifth more"
    held = residents([50, 50, 50], [50.0, 100.0, 150.0])
    for gain, found in ((10.1 * MARGIN, [0]), (10 * MARGIN, [])):
        assert back(held, candidates([10, 0, 0], [gain, 9e9, 9e9])) == found
    assert back(held, candidates([60, 0, 0], [60 * 2 * MARGIN, 0, 0])) == [], "the second, too"
    assert back(held, candidates([60, 0, 0], [60 * 2.1 * MARGIN, 0, 0])) == [0]
    assert back(residents([50, 0], [0.0, 0.0]), candidates([10, 10], [0.0, 1e-9])) == [1]


def test_what_leaves_anyway_neither_makes_room_nor_comes_back() -> None:
    held = residents([50, 50], [0.0, 100.0], leaving=[0])
    assert back(held, candidates([10, 10], [900.0, 10 * 2 * MARGIN])) == []
    assert back(held, candidates([10, 10], [900.0, 10 * 2.1 * MARGIN])) == [1]
    assert back(residents([5], [0.0]), candidates([6], [1.0])) == [], (
        "there is not so much to leave"
    )


def test_memory_that_nobody_asks_for_has_no_price() -> None:
    held = residents([50, 50], [500.0, 500.0])
    assert back(held, candidates([10, 20], [2.0, 1.0]), spare=30) == [0, 1]
    assert back(held, candidates([10, 20], [2.0, 1.0]), spare=29) == [0]
    assert back(held, candidates([10, 20], [2.0, 0.0]), spare=30) == [0], "it gains nothing"


def test_never_more_come_than_fit() -> None:
    held, many = residents([50] * 4), candidates([10, 20, 30, 40], [40.0, 60.0, 60.0, 40.0])
    assert back(held, many, most=10) == [0]
    assert back(held, many, most=29) == [0]
    assert back(held, many, most=30) == [0, 1]
    assert back(held, many, most=59) == [0, 1]
    large = candidates([60, 20, 0, 0], [99.0, 1.0, 0.0, 0.0])
    assert back(held, large, most=50) == [1], "too large by itself"
    assert back(held, many, most=0) == []


def test_what_is_too_large_keeps_nothing_behind_it_away() -> None:
    held = residents([50, 50, 0], [0.0, 50 * 151 / MARGIN, 0.0])
    dear = candidates([60, 10, 10], [9_000.0, 100.0, 90.0])
    assert back(held, dear) == [1, 2], "what is worth most asks for a byte that is worth more"
    many = candidates([30, 10, 10], [900.0, 100.0, 90.0], [600_000.0, 300_000.0, 250_000.0])
    assert back(held, many) == [1], "no more results at once than a second makes"
    assert back(held, candidates([10, 10, 10], [9.0, 9.0, 9.0], [5e5, 1.0, 0.0])) == [0, 2]


@pytest.mark.parametrize("policy", ["expected-gain", "rotation"])
def test_what_has_left_its_window_takes_no_room(policy: str) -> None:
    held = residents([50, 50], [50.0, 500.0])
    aged = candidates([40, 40], [300.0, 200.0], at_ms=[1, 2], stays=[30.0, 10.0])
    assert back(held, aged, policy=policy, most=40) == [0, 1]
    assert len(back(held, aged, policy=policy, most=39)) == 1
    assert len(back(held, aged, policy=policy, read=80)) == 2
    assert len(back(held, aged, policy=policy, read=79)) == 1, "but all of it is read"
    assert back(held, aged, policy=policy, read=39) == []


def test_what_is_worth_a_byte_is_worth_it_for_those_that_stay() -> None:
    held = residents([50, 0], [50.0, 0.0])
    aged = candidates([40, 40], [20.0, 20.0], stays=[10.0, 40.0])
    assert back(held, aged) == [0]
    gone = candidates([160, 0], [10 * 1.1 * MARGIN, 0.0], stays=[0.0, 0.0])
    assert LEAST_KEPT == 1 / 16, "decision 48 says: a sixteenth"
    assert back(residents([50, 0], [55.5, 0.0]), gone) == [], "it is read, and that is not free"
    assert back(residents([50, 0], [54.5, 0.0]), gone) == [0]
    nothing = candidates([10, 0], [1e-3, 0.0], stays=[0.0, 0.0])
    assert back(held, nothing) == [], "a byte counts at the least"
    assert back(residents([50, 0], [1e-3, 0.0]), nothing) == [0]


def test_the_newest_is_the_way_to_those_before_it() -> None:
    """By group: alone, with the next, with all three; the last has nothing before it."""
    gains = [[8.0, 1.0, 1.0, 3.0], [2.0, 9.0, 1.0, 0.0], [2.0, 1.0, 22.0, 0.0]]
    sizes = [[4, 4, 4, 4], [2, 1, 4, 0], [2, 5, 4, 0]]
    stays = [[4.0, 4.0, 4.0, 0.0], [2.0, 1.0, 4.0, 0.0], [2.0, 5.0, 4.0, 0.0]]
    found = worth_of(*([np.array(of) for of in each] for each in (gains, sizes, stays)))
    assert found.tolist() == [2, 2, 2, 3], "a byte counts at the least"
    large = [np.array([160])], [np.array([0.0])]
    assert worth_of([np.array([20.0])], *large).tolist() == [2], "and a sixteenth of what is read"


def test_spilled_groups_take_turns() -> None:
    """Whatever they are worth, the one that was spilled longest ago first."""
    held = residents([5, 5, 5, 5], [9.0] * 4)
    spilled = candidates([3, 3, 3, 3], [0.0, 9.0, 0.0, 0.0], at_ms=[40, 30, 10, 20])
    assert back(held, spilled, policy="rotation", most=6) == [2, 3]
    assert back(held, spilled, policy="rotation", most=8) == [2, 3]
    assert back(held, spilled, policy="rotation", most=9) == [1, 2, 3]
    leaving = residents([5, 5, 5, 5], [9.0] * 4, [2])
    assert back(leaving, spilled, policy="rotation", most=6) == [1, 3]
    dear = candidates([3, 3, 3], [0.0] * 3, [3e5, 1e5, 3e5], at_ms=[1, 2, 3])
    assert back(residents([5] * 3), dear, policy="rotation") == [0, 1]


def test_nothing_comes_back_when_it_is_off_and_half_by_chance() -> None:
    held = residents([1] * 64, [9e9] * 64)
    many = candidates([1] * 64, [0.0] * 64)
    assert back(held, many, policy="off") == []
    drawn = back(held, many, policy="random")
    assert 20 < len(drawn) < 44
    assert back(held, many, policy="random") == drawn
    assert back(held, many, policy="random", most=5) == drawn[:5]


@given(st.integers(0, 2**32))
def test_no_choice_is_better_than_what_comes_back(seed: int) -> None:
    """Slowly: the best by its gain for each byte, one after the other, each against the dearest
    byte that must leave for all so far."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(1, 9))
    held = Residents(draw.integers(0, 9, n), draw.random(n) * 20, draw.random(n) < 0.2)
    size, none = draw.integers(0, 9, n), np.zeros(n)
    left = np.maximum(size * draw.integers(0, 9, n) / 8, size / 16)
    gain = draw.random(n) * 90
    worth = worth_of([gain], [size], [left])
    spilled = Candidates(size, left, worth, none, np.zeros(n, np.int64))
    most, spare = draw.integers(0, 30, 2).tolist()
    most_read = int(draw.integers(0, 60))
    stays = [g for g in range(n) if held.bytes[g] and not held.leaving[g]]
    stays.sort(key=lambda g: held.loss[g] / held.bytes[g])
    able = [g for g in range(n) if spilled.bytes[g] and not held.leaving[g]]
    able = [g for g in able if left[g] <= most and size[g] <= most_read]
    able.sort(key=lambda g: -gain[g] / max(left[g], 1))
    found, taken, read = [], 0.0, 0
    for g in able:
        need, price = taken + left[g] - spare, 0.0
        for other in stays:
            if need > 0:
                price, need = held.loss[other] / held.bytes[other], need - int(held.bytes[other])
        fits = taken + left[g] <= most and need <= 0
        fits = fits and read + size[g] <= most_read
        if fits and gain[g] / max(left[g], 1) > MARGIN * price:
            found.append(g)
            taken, read = taken + left[g], read + size[g]
    chosen = back(held, spilled, most=most, spare=spare, read=most_read)
    assert chosen == sorted(found)


# --- what a slot remembers

FILE = FileRecord(table="spill", path="f", bytes=7, rows=9, digest="sha256:0")


def with_cuts(groups: int, *cuts: list[int]) -> KeptGenerations:
    """Groups that were spilled, cut after cut: at epoch n group g had 10 n + g rows."""
    kept = KeptGenerations.none()
    for epoch, gone in enumerate(cuts):
        wanted = np.isin(np.arange(groups), gone)
        rows = 10 * epoch + np.arange(groups)
        file = FILE.model_copy(update={"path": f"f{epoch}"})
        kept = kept.with_cut(wanted, rows, 8 * rows, 3 * rows, file, epoch=epoch, now_ms=epoch)
    return kept


def flags(groups: int, *wanted: int) -> Any:
    return np.isin(np.arange(groups), wanted)


def held(kept: KeptGenerations) -> list[tuple[int, int]]:
    return list(zip(kept.group.tolist(), kept.table["epoch"].to_pylist(), strict=True))


def test_the_newest_of_each_group_is_known() -> None:
    kept = with_cuts(3, [0, 2], [2], [0, 1])
    assert held(kept) == [(0, 0), (0, 2), (1, 2), (2, 0), (2, 1)]
    newest = kept.newest(3)
    assert newest.rows.tolist() == [20, 21, 12]
    assert (newest.bytes.tolist(), newest.results.tolist()) == ([160, 168, 96], [60, 63, 36])
    assert newest.at_ms.tolist() == [2, 2, 1]
    found = kept.newest_of(flags(3, 0, 2)).to_pylist()
    assert [(each["group"], each["path"], each["file_bytes"]) for each in found] == [
        (0, "f2", 7),
        (2, "f1", 7),
    ]
    assert held(kept.without_newest(flags(3, 0))) == [(0, 0), (1, 2), (2, 0), (2, 1)]
    assert held(kept.without(flags(3, 2))) == [(0, 0), (0, 2), (1, 2)]
    assert kept.newest(3, 1).rows.tolist() == [0, 0, 2]
    assert kept.newest(3, 2).rows.tolist() == [0, 0, 0]
    assert KeptGenerations.none().newest(2).rows.tolist() == [0, 0]
    assert KeptGenerations.none().newest(2, 1).rows.tolist() == [0, 0]
    assert KeptGenerations.none().newest_of(flags(2, 1)).num_rows == 0


def test_only_the_last_ones_are_kept() -> None:
    kept = with_cuts(2, *([[0, 1]] * (KEPT_GENERATIONS + 2)), [1])
    assert [e for g, e in held(kept) if g == 0] == list(range(2, KEPT_GENERATIONS + 2))
    assert [e for g, e in held(kept) if g == 1] == list(range(3, KEPT_GENERATIONS + 3))


def manifest_of(kept: KeptGenerations, groups: GroupMap) -> pa.Table:
    size = np.zeros(len(groups), dtype=np.int64)
    counters = Counters.zeros(len(groups))
    counters.generations[:] = 1
    figures = Figures(size[None], size, size, counters, size * 0.0, kept)
    return figures_table(groups, 0, {DAY: figures, "other": figures}, 5)


def test_they_travel_with_the_figures_and_end_where_a_group_is_split_or_merged() -> None:
    groups = GroupMap([(Prefix(2, v), 0) for v in range(4)])
    kept = with_cuts(4, [0, 1, 2, 3], [1, 2])
    table = manifest_of(kept, groups)
    assert table.schema.equals(FIGURES_SCHEMA)
    again = KeptGenerations.known(table, DAY, groups)
    assert held(again) == held(kept)
    assert again.table.equals(kept.table)
    # A manifest's groups come in any order, from several slots.
    order = pa.array([3, 1, 0, 2, 7, 5, 4, 6])
    assert held(KeptGenerations.known(table.take(order), DAY, groups)) == held(kept)
    assert held(KeptGenerations.known(table.slice(1, 2), DAY, groups)) == [
        each for each in held(kept) if each[0] in (1, 2)
    ]
    changed = GroupMap([(Prefix(2, 0), 0), (Prefix(3, 2), 0), (Prefix(3, 3), 0), (Prefix(1, 1), 0)])
    assert held(KeptGenerations.known(table, DAY, changed)) == [(0, 0)]
    none = KeptGenerations.known(table.slice(0, 0), DAY, groups)
    assert (len(none.group), none.table.schema) == (0, KEPT_FIELDS)
    assert not len(KeptGenerations.known(manifest_of(none, groups), DAY, groups).group)
    whole = GroupMap([(Prefix(0, 0), 0)])
    kept = with_cuts(1, [0])
    assert held(KeptGenerations.known(manifest_of(kept, whole), DAY, whole)) == [(0, 0)]


# --- void rows


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(0, 5)), max_size=6),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=1, max_size=20),
)
@example([(0, 0, 5)], [(0, 5), (7, 6), (7, 4)])
def test_void_is_what_a_cut_that_was_taken_back_wrote(
    cuts: list[tuple[int, int, int]], rows: list[tuple[int, int]]
) -> None:
    ranges = [(Prefix(depth, value >> (3 - depth)), epoch) for depth, value, epoch in cuts]
    hashes = np.array([h << 61 for h, _ in rows], dtype=np.uint64)
    found = VoidedCuts(ranges, 5).hold(hashes, np.array([epoch for _, epoch in rows]))
    slow = [any(p.lo <= h << 61 < p.hi and of == epoch for p, of in ranges) for h, epoch in rows]
    assert found.tolist() == slow


LAST_LOW = (1 << 61) - 1


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 7), st.integers(0, 1)), max_size=4),
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from([0, 1, LAST_LOW]), st.integers(0, 2)),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
    st.booleans(),
)
@example([(1, 0, 1), (3, 3, 0)], [(0, 0, 1), (7, LAST_LOW, 1)], True, True)
@example([(3, 2, 1)], [(1, LAST_LOW, 1), (2, 0, 1), (2, LAST_LOW, 1), (3, 0, 1)], True, True)
@example([(3, 2, 1)], [(3, 0, 1), (2, 0, 1), (7, 0, 1), (2, 1, 1)], False, True)
def test_rows_that_are_not_void_stay_as_they_are(
    cuts: list[tuple[int, int, int]],
    rows: list[tuple[int, int, int]],
    ordered: bool,
    one_epoch: bool,
) -> None:
    """Of a row group of ours, and of rows in any order and of any epochs."""
    ranges = [(Prefix(depth, value >> (3 - depth)), epoch) for depth, value, epoch in cuts]
    places = [((high << 61) + low, epoch) for high, low, epoch in rows]
    places = sorted(places) if ordered else places
    places = [(at, places[0][1] if one_epoch else epoch) for at, epoch in places]
    table = pa.table(
        {
            "key_hash": np.array([at for at, _ in places], np.uint64).view(np.int64),
            "epoch": np.array([epoch for _, epoch in places]),
            "row": range(len(places)),
        }
    )
    slow = [
        row
        for row, (at, epoch) in enumerate(places)
        if not any(p.lo <= at < p.hi and of == epoch for p, of in ranges)
    ]
    voided = VoidedCuts(ranges, 1)
    found = alive(voided, table)
    assert found["row"].to_pylist() == slow
    assert found.schema == table.schema
    in_order = np.array(sorted(at for at, _ in places), np.uint64)
    assert all(first < end for first, end in voided.stretches(in_order, 1))


# --- the rule of a spill, and a step


def figures_of(
    sizes: list[int], kept: KeptGenerations, gain: list[float] | None, stays: float = 1.0
) -> Figures:
    size = np.array(sizes)
    figures = Figures(size[None], size, size * 0, Counters.zeros(len(sizes)), size * 1.0, kept)
    if gain is None:
        return figures
    nothing = np.zeros(len(gain))
    return replace(figures, gains=[Gain(np.array(gain), nothing, nothing + stays)])


def returned(
    sizes: list[int],
    gain: list[float] | None,
    to_come: int = 10**6,
    victims: str = "expected-loss",
    loss: list[float] | None = None,
    stays: float = 1.0,
    **more: int,
) -> Any:
    facts = {"budget_bytes": 1_000, "room_bytes": 10_000, **more}
    limits = Limits(threshold=0.5, fraction=0.2, **facts)
    figures = figures_of(sizes, with_cuts(len(sizes), [*range(len(sizes))]), gain, stays)
    figures = figures if loss is None else replace(figures, loss=np.array(loss))
    found = choose_returns(
        {DAY: figures, "b": figures_of([0] * len(sizes), KeptGenerations.none(), None)},
        limits,
        "expected-gain",
        victims=victims,
        context=VictimContext(0, 0, 1),
        to_come_bytes=to_come,
    )
    assert set(found) <= {DAY}
    return np.flatnonzero(found[DAY]).tolist() if found else []


def test_as_much_as_a_spill_takes_may_come_back() -> None:
    """Group g had 8 g bytes in the generation that was spilled."""
    gain = [0.0, 0.0, 0.0, 900.0, 800.0, 700.0, 600.0, 500.0, 400.0]
    sizes = [200, 50, 50, 50, 50, 50, 50, 50, 50]
    assert returned(sizes, gain) == [3, 4, 5], "the rule takes 120; 24 + 32 + 40"
    assert returned(sizes, None) == []
    assert returned(sizes, gain, forced_bytes=1) == [], "who forces a spill wants the memory"
    assert returned(sizes, gain, short_bytes=1) == [], "nor while upkeep wants room"
    assert returned(sizes, gain, room_bytes=50) == [3], "half of the room is 25"
    assert returned(sizes, gain, room_bytes=0) == []
    empty = [150, 410, 0, 0, 0, 0, 0, 0, 0]
    assert returned(empty, gain) == [3, 4, 5], "without a row in memory, too; 112 leave"


def test_what_leaves_in_any_case_does_not_come_back() -> None:
    """Which that is, the policy of victims says."""
    gain = [0.0, 0.0, 0.0, 900.0, 800.0, 700.0]
    sizes, loss = [10, 10, 10, 110, 120, 250], [90.0, 90.0, 90.0, 11.0, 24.0, 75.0]
    assert returned(sizes, gain, loss=loss) == [4, 5], "group 3 leaves, at a tenth a byte"
    assert returned(sizes, gain, loss=loss, victims="largest") == [3, 4]


def test_a_small_generation_comes_back_for_the_large_one_before_it() -> None:
    """Group 0 has one of 160 bytes that gains half a result for each, and one of 80 before it."""
    kept = with_cuts(2, [], [0], [0])
    figures = figures_of([300, 300], kept, [80.0, 0.0])
    older = Gain(np.array([900.0, 0.0]), np.zeros(2), np.ones(2))
    for gains, found in ((figures.gains, {}), ([*figures.gains, older], {DAY: [True, False]})):
        back = choose_returns(
            {DAY: replace(figures, gains=gains)},
            Limits(2_000, 0.5, 0.2, 10_000),
            "expected-gain",
            victims="expected-loss",
            context=VictimContext(0, 0, 1),
            to_come_bytes=10**6,
        )
        assert {day: groups.tolist() for day, groups in back.items()} == found


def test_as_much_of_it_stays_in_memory() -> None:
    gain, sizes = [0.0, 0.0, 0.0, 900.0, 800.0, 700.0, 600.0, 500.0], [200, *[50] * 7]
    assert returned(sizes, gain) == [3, 4, 5]
    assert returned(sizes, gain, stays=0.5) == [3, 4, 5, 6, 7]


def test_without_a_spill_as_much_as_is_free_may_come_back() -> None:
    gain = [0.0, 0.0, 0.0, 900.0, 800.0, 700.0]
    assert returned([100, 100, 50, 50, 50, 50], gain) == [3, 4, 5], "100 are free: 24 + 32 + 40"
    assert returned([100, 110, 50, 50, 50, 50], gain) == [3, 4], "90 are free"
    assert returned([100, 100, 100, 50, 50, 50], gain) == [3], "50 are free"
    assert returned([100, 100, 100, 50, 50, 100], gain) == []
    little = [0.0, 0.0, 0.0, 3.0, 3.0, 3.0]
    assert returned([100, 100, 50, 50, 50, 50], little) == [], "not worth a byte that is full of it"
    assert returned([100, 100, 50, 50, 50, 50], little, to_come=40) == [3, 4], "nobody needs 60"
    assert returned([100, 100, 50, 50, 50, 50], little, to_come=50) == [3]


def test_as_much_more_leaves_as_came_back_and_that_after_all_others() -> None:
    figures = figures_of([300, 100, 100, 100, 100, 100], KeptGenerations.none(), None)
    context = VictimContext(0, 0, 0)
    limits = Limits(1_000, 0.7, 0.2, 10_000)

    def leave(returned_bytes: int, *groups: int, **more: int) -> list[int]:
        own = replace(limits, returned_bytes=returned_bytes, **more)
        came = {DAY: flags(6, *groups)}
        found = choose_victims({DAY: figures}, own, "largest", context, None, came)
        return np.flatnonzero(found.groups[DAY]).tolist()

    assert leave(0) == [0], "160 of 800"
    assert leave(50, 0) == [1, 2], "150 and the 50, but not what came back"
    assert leave(100, 0) == [1], "before it came, nothing was to leave"
    assert leave(10, 0, 2, 3, 4, 5, budget_bytes=1_100) == [1], "168, but the others came back"
    assert leave(200, 0, 1, 2, 3, 4, 5) == [0], "all came back, and there is too much"
    assert leave(200, 0, 1, 2, 3, 4, 5, budget_bytes=1_143) == [], "there is not"
    assert leave(700, 0, 1, 2, 3, 4, budget_bytes=800) == [0, 5], "before it, all that did not"


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    spec = spec_of(2, composite=False)
    hash_ = partial(narrow, 64)
    options: dict[str, object] = {"reactivation": "random", "threshold": 0.9}
    return Slots(spec, str(tmp_path), GroupMap.initial(2, 1), hash_, options, 10**8)


def rows_from(first: int, count: int) -> list[Row]:
    return [
        Row(DAY, i % 2, key_of(i % 7, composite=False), 0, i) for i in range(first, first + count)
    ]


def spilled_and_back(slots: Slots, most: int = 8) -> list[SlotReport]:
    """Everything is spilled once; then epochs go by until something comes back."""
    slots.run(rows_from(0, 30))
    slots.run(rows_from(100, 10), forced_bytes=10**9)
    for n in range(most):
        slots.run(rows_from(200 + 20 * n, 6))
        if slots.voided or slots.reports[0].warnings:
            return slots.reports
    return slots.reports


def test_a_step_brings_back_what_was_spilled_and_says_so(slots: Slots) -> None:
    (report,) = spilled_and_back(slots)
    assert report.totals is not None
    assert report.voided
    assert all(cut.epoch == 1 for cut in report.voided)
    assert report.totals.returned_rows > 0
    assert report.totals.returned_bytes > 40 * report.totals.returned_rows
    assert report.warnings == []


def test_a_spill_file_that_is_gone_is_no_reason_to_stop(slots: Slots) -> None:
    slots.run(rows_from(0, 30))
    slots.run(rows_from(100, 10), forced_bytes=10**9)
    (file,) = slots.files
    place = slots.warehouse.child("spill")
    with place.open(file.path) as source:
        data = source.read()
    place.delete(file.path)
    found: list[str] = []
    for n in range(8):
        slots.run(rows_from(200 + 20 * n, 6))
        found += slots.reports[0].warnings
    assert not slots.voided
    assert 1 <= len(found) <= 2, "said once for each time that a group was chosen, and no more"
    assert f"{file.path}: it is missing" in found[0]
    assert found[0].startswith("spilled groups cannot come back: spill file ")
    place.write_new(file.path, pa.py_buffer(data))
    slots.run([], seal=DAY)
    assert slots.at_run_time[DAY] + slots.clean(DAY) == slots.reference.everything(DAY)


def test_a_spill_file_with_too_few_rows_is_damaged(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cut = KeptGenerations.with_cut

    def more(self: Any, wanted: Any, rows: Any, *args: Any, **named: Any) -> Any:
        return with_cut(self, wanted, rows + 1, *args, **named)

    monkeypatch.setattr(KeptGenerations, "with_cut", more)
    (report,) = spilled_and_back(slots)
    assert "were spilled to it" in report.warnings[0]
    assert not report.voided


def test_where_nothing_may_come_back_nothing_is_remembered(slots: Slots) -> None:
    slots.options["reactivation"] = "off"
    spilled_and_back(slots)
    assert not slots.voided
    slots.options["reactivation"] = "random"
    for n in range(8):
        slots.run(rows_from(900 + 20 * n, 6))
    assert not slots.voided


def test_what_was_remembered_is_forgotten_by_a_spill_while_nothing_may_come_back(
    slots: Slots,
) -> None:
    """Another cut is the last one then, of which nothing is known."""
    slots.run(rows_from(0, 30), forced_bytes=10**9)
    slots.options["reactivation"] = "off"
    slots.run(rows_from(100, 30), forced_bytes=10**9)
    slots.options["reactivation"] = "random"
    for n in range(8):
        slots.run(rows_from(900 + 20 * n, 6))
    assert not slots.voided


def test_what_is_spilled_while_intake_is_held_comes_back_afterwards(slots: Slots) -> None:
    """Its generations of before are remembered, too: all of them, newest first."""
    slots.run(rows_from(0, 30), forced_bytes=10**9)
    slots.options["may_return"] = False
    slots.run(rows_from(100, 30), forced_bytes=10**9)
    for _ in range(8):
        slots.run([])
    assert not slots.voided
    slots.options["may_return"] = True
    for n in range(12):
        slots.run(rows_from(900 + 20 * n, 6))
    assert {cut.epoch for cut in slots.voided} == {0, 1}
    slots.run([], seal=DAY)
    assert slots.at_run_time[DAY] + slots.clean(DAY) == slots.reference.everything(DAY)


def test_a_file_that_cannot_be_read_now_is_tried_again(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots.run(rows_from(0, 30))
    slots.run(rows_from(100, 10), forced_bytes=10**9)
    real = returning_.row_groups

    def busy(*args: Any) -> Any:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(returning_, "row_groups", busy)
    found: list[str] = []
    for n in range(6):
        slots.run(rows_from(200 + 20 * n, 6))
        found += slots.reports[0].warnings
    assert not slots.voided
    assert "too many open files" in found[0]
    monkeypatch.setattr(returning_, "row_groups", real)
    for n in range(6):
        slots.run(rows_from(400 + 20 * n, 6))
    assert slots.voided


def test_a_file_that_is_gone_keeps_no_other_groups_away(slots: Slots) -> None:
    first = [row for row in rows_from(0, 60) if slots.hash_of(row) >> 63]
    other = [row for row in rows_from(100, 60) if not slots.hash_of(row) >> 63]
    slots.run(first, forced_bytes=10**9)
    slots.run(other, forced_bytes=10**9)
    slots.warehouse.child("spill").delete(slots.files[0].path)
    found: list[str] = []
    for n in range(10):
        slots.run(rows_from(400 + 20 * n, 2))
        found += slots.reports[0].warnings
    assert len(found) == 1
    assert [cut.epoch for cut in slots.voided] == [1]
