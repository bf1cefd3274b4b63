"""DAX's policies `balance` and `degradation`, and what others make of groups of several joins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway.policy.clusters import fine_tuning, one_key
from spillway.policy.operators import _of_the_others, balance, degradation, gains
from spillway.policy.view import Advice, MergeGroups, MoveGroup, SplitGroup, View
from spillway_schemas.hash_space import ROOT, join_of, spaces
from spillway_schemas.journal import Prefix

CHAIN = (1, 2, ROOT)
"""Join 0 is read by join 1, which is read by the root; spaces 2/0, 2/1 and 1/1."""


def view(slots: list[list[tuple[int, int]]], **more: Any) -> View:
    """Of each slot its groups, in pairs: join and bytes. They are the first, second ... of eight
    groups of their join."""
    joins = [join for slot in slots for join, _ in slot]
    number = [joins[:at].count(join) for at, join in enumerate(joins)]
    parents = more.pop("parents", CHAIN)
    parts = spaces(len(parents))
    sizes = np.array([size for slot in slots for _, size in slot], dtype=np.int64)
    given_ = {
        "groups": tuple(
            parts[join].part(Prefix(3, at)) for join, at in zip(joins, number, strict=True)
        ),
        "slot": np.repeat(np.arange(len(slots)), list(map(len, slots))),
        "bytes": sizes,
        "results": sizes,
        "processed": sizes,
        "spilled": np.zeros(len(sizes), dtype=np.bool_),
        "budget": np.full(len(slots), 1000, dtype=np.int64),
        "idle_s": np.full(len(slots), 5.0),
        "sampled": np.zeros(len(slots), dtype=np.int64),
        "occupancy": np.full(len(slots), 0.2),
        "collection_s": 10.0,
        "parents": parents,
    }
    arrays = {k: np.array(v) if isinstance(v, list) else v for k, v in more.items()}
    return View(**{**given_, **arrays})


def moved(advice: Advice) -> list[tuple[int, int, int, int]]:
    """(join, bytes, from, to)."""
    moves = [each for each in advice.suggestions if isinstance(each, MoveGroup)]
    return [(join_of(m.group, len(CHAIN)), m.bytes, m.source, m.to) for m in moves]


def even(seen: View, min_span_s: float = 45.0) -> Advice:
    return balance(seen, 0.8, min_span_s)


def test_slots_that_spill_in_turn_keep_their_groups() -> None:
    """Kills: a cost by memory alone, by which the slot that has just spilled is given groups."""
    rng = np.random.default_rng(0)
    groups = np.arange(192)
    slot, held, spilled = groups % 2, np.zeros(192), np.zeros(192)
    spills = [0, 0]
    for _ in range(400):
        held += rng.poisson(32, 192) * 36
        for each in (0, 1):
            mine = rng.permutation(np.flatnonzero(slot == each))
            if held[mine].sum() > 8_000_000:
                victims = mine[np.cumsum(held[mine]) <= 0.3 * held[mine].sum()]
                spilled[victims] += held[victims]
                held[victims] = 0
                spills[each] += 1
        seen = View(
            groups=tuple(
                part.part(Prefix(6, at)) for part in spaces(len(CHAIN)) for at in range(64)
            ),
            slot=slot,
            bytes=held.astype(np.int64),
            results=held.astype(np.int64),
            processed=np.full(192, 32),
            spilled=spilled > 0,
            spilled_bytes=spilled.astype(np.int64),
            budget=np.full(2, 10_000_000),
            idle_s=np.full(2, 5.0),
            sampled=np.zeros(2, dtype=np.int64),
            occupancy=np.full(2, 0.2),
            collection_s=10.0,
            parents=CHAIN,
        )
        assert not moved(even(seen))
    assert min(spills) > 10


def test_a_slot_may_move_groups_again_when_the_span_is_over_not_before() -> None:
    """DAX, slide 20: t > tau."""
    uneven = [[(0, 100), (2, 50)], [(1, 10)]]
    assert not moved(even(view(uneven, since_move_s=45.0)))
    assert moved(even(view(uneven, since_move_s=45.1)))


def test_a_group_that_makes_both_costs_equal_fits() -> None:
    """Kills: a difference of rounded shares, by which 100 bytes are 99.99."""
    for more, less in ((3, 1), (7, 1), (9, 3), (21, 7)):
        half = (more - less) // 2
        seen = view([[(0, 100 * (more - half)), (0, 100 * half)], [(0, 100 * less)]],
                    budget=[10_000, 10_000], since_move_s=99.0)  # fmt: skip
        assert moved(even(seen)) == [(0, 100 * half, 0, 1)]


# ------------------------------------------------------------------------------------ the view


def test_groups_know_their_join_and_how_deep_they_are_in_it() -> None:
    seen = view([[(0, 1), (2, 1)], [(1, 1)]])
    assert seen.join.tolist() == [0, 2, 1]
    assert [group.depth for group in seen.groups] == [5, 4, 5]
    assert seen.depth.tolist() == [3, 3, 3]
    one = view([[(0, 1)]], parents=(ROOT,))
    assert (one.join.tolist(), one.depth.tolist()) == ([0], [3])


def test_what_moving_a_join_keeps_at_its_slot() -> None:
    """Join 0 gives 10 rows a second, half of which come to slot 1, where half of join 1 is."""
    seen = view(
        [[(0, 10), (1, 10)], [(1, 10), (2, 10)]],
        rate=[10.0, 1.0, 1.0, 0.0],
    )
    # To and fro it is the same for join 0: half of join 1 is at each slot.
    assert gains(seen, 0, 1).tolist() == [0.0, 0.5 * (2 - 10), 0.0]
    # What join 1 has at slot 1 would come nearer to join 0, and leave the root.
    assert gains(seen, 1, 0).tolist() == [0.0, 0.5 * (10 - 2), -2 * 0.0]
    quiet = view([[(0, 10), (1, 10)], [(1, 10), (2, 10)]])
    assert gains(quiet, 0, 1).tolist() == [0.0, 0.0, 0.0], "nothing is known of rows"


@given(st.integers(0, 2**32))
def test_gains_are_what_a_count_of_all_rows_gives(seed: int) -> None:
    """Against rows a second from each slot to each other one, counted before and after."""
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(2, 5))
    held = [[] for _ in range(slots)]
    for join in range(3):
        for _ in range(4):
            held[int(rng.integers(slots))].append((join, int(rng.integers(1, 9))))
    n = 12
    # What a group gives has nothing to do with what comes to it.
    seen = view(held, rate=rng.uniform(0, 9, n))
    source, to = 0, 1

    def crossing(slot: np.ndarray) -> float:
        total = 0.0
        for a in range(n):
            parent = CHAIN[seen.join[a]]
            if parent == ROOT:
                continue
            above = np.flatnonzero(seen.join == parent)
            share = seen.processed[above] / seen.processed[above].sum()
            total += float(seen.rate[a] * share[slot[above] != slot[a]].sum())
        return total

    before = crossing(seen.slot)
    for join in range(3):
        after = np.where((seen.join == join) & (seen.slot == source), to, seen.slot)
        assert gains(seen, source, to)[join] == pytest.approx(before - crossing(after))


# --------------------------------------------------------------------------------------- balance


def test_balance_moves_until_costs_are_alike() -> None:
    """DAX, slide 8: cost is the share of memory that is filled."""
    seen = view([[(0, 100), (0, 100), (0, 100), (0, 100)], [(0, 100)]])
    assert moved(even(seen)) == [(0, 100, 0, 1)]
    unlike = view([[(0, 100)] * 4, [(0, 100)]], budget=[1000, 4000])
    # 400 of 1000 and 100 of 4000: alike at a tenth each.
    assert len(moved(even(unlike))) == 3


def test_balance_takes_the_join_whose_rows_are_needed_there() -> None:
    """The root, which reads join 1, is at slot 1; what reads join 0 is at slot 0."""
    halves = view(
        [[(0, 50), (0, 50), (1, 50), (1, 50)], [(2, 10)]],
        rate=[5.0, 5.0, 10.0, 10.0, 0.0],
    )
    assert moved(even(halves)) == [(1, 50, 0, 1)]
    # What comes from below counts as well.
    below = view(
        [[(2, 50), (2, 50), (1, 50), (1, 50)], [(0, 10)]],
        rate=[0.0, 0.0, 1.0, 1.0, 30.0],
    )
    assert moved(even(below)) == [(1, 50, 0, 1)]


def test_balance_moves_the_whole_part_of_a_join_where_that_fits() -> None:
    seen = view([[(0, 40), (0, 40), (2, 60), (2, 60), (2, 60)], [(0, 40)]])
    # Half of the difference are 110 bytes: all of join 0, which slot 1 has already.
    assert moved(even(seen)) == [(0, 40, 0, 1), (0, 40, 0, 1)]


def test_balance_says_why_it_does_nothing() -> None:
    def why(advice: Advice) -> str:
        assert not advice.suggestions
        return "; ".join(each.why for each in advice.declined)

    assert why(even(view([[(0, 5)]]))) == "there is one slot"
    assert why(even(view([[(0, 0)], [(1, 0)]]))) == "nothing is in memory"
    assert "not below theta_d 0.8" in why(even(view([[(0, 100)], [(1, 80)]])))
    far = view([[(0, 100), (1, 20)], [(2, 10)]], since_move_s=30.0)
    assert "30 s ago, not over 45 s" in why(even(far))
    assert "no group fits 45 bytes" in why(even(view([[(0, 100)], [(1, 10)]])))


def test_balance_leaves_a_slot_one_group() -> None:
    seen = view([[(0, 10), (0, 0)], []], budget=[10, 10])
    assert moved(even(seen)) == []
    assert len(moved(even(view([[(0, 10), (0, 10)], []])))) == 1


# ----------------------------------------------------------------------------------- degradation


def relieved(seen: View, **more: Any) -> Advice:
    return degradation(seen, **{"degraded": 0.8, "min_span_s": 45.0, **more})


def slow(**more: Any) -> View:
    """Three slots with 400 rows each; slot 0 takes 8 s for them, the others 4."""
    each = [(0, 100), (1, 100), (2, 100), (2, 100)]
    return view([each, each, each], **{"idle_s": [2.0, 6.0, 6.0], **more})


def test_degradation_relieves_a_slot_that_gives_less_for_its_time() -> None:
    advice = relieved(slow())
    # Half as fast: of 0.8 and 0.4, work for 0.27 goes, which takes the other 0.13.
    assert [(source, to) for *_, source, to in moved(advice)] == [(0, 1)]
    [why] = {each.why for each in advice.suggestions}
    assert why == (
        "slot 0 gives 50% of what is usual for its time; utilisation 0.80 and 0.40 (slot 1)"
    )
    assert all(not m.sure for m in advice.suggestions if isinstance(m, MoveGroup))


def test_a_faster_slot_gets_more_than_half_of_the_difference() -> None:
    # 40 rows a second take slot 0 0.8 of its time, the others 0.2: 24 would leave 0.32 to both.
    assert len(moved(relieved(slow(idle_s=[2.0, 8.0, 8.0])))) == 2


def test_the_slowest_gives_to_the_idlest() -> None:
    each = [(0, 130), (1, 130), (2, 130)]
    seen = view([each] * 5, idle_s=[3.0, 1.0, 7.0, 6.9, 8.0])
    pairs = [(source, to) for *_, source, to in moved(relieved(seen))]
    assert list(dict.fromkeys(pairs)) == [(1, 4), (0, 2)]


def test_one_fast_slot_makes_the_others_no_slower() -> None:
    advice = relieved(slow(idle_s=[6.0, 6.0, 8.0]))
    assert "the slowest, slot 0, gives 100% of what is usual" in advice.declined[0].why


def test_of_two_slots_each_is_compared_with_the_other() -> None:
    """Kills: a median with the slow one in it, by which 0.75 of the other is 0.86 of it."""
    each = [(0, 90), (0, 10), (1, 90), (1, 10)]
    advice = relieved(view([each, each], idle_s=[2.0, 4.0]))
    assert {(source, to) for *_, source, to in moved(advice)} == {(0, 1)}
    assert "slot 0 gives 75% of what is usual" in advice.suggestions[0].why


def test_degradation_leaves_alone_what_is_slow_and_not_busier() -> None:
    """One that gives little, since it has little to do."""
    each = [(0, 100), (1, 100)]
    few = view([[(0, 20), (1, 20)], each, each], idle_s=[7.0, 6.0, 6.0])
    assert "th_imb 1.2 apart" in relieved(few).declined[0].why
    assert not relieved(few).suggestions


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"idle_s": [5.0, 6.0, 6.0]}, "the slowest, slot 0, gives 80% of what is usual"),
        ({"idle_s": [2.0, 9.8, 9.8]}, "fewer than two slots work enough"),
        ({"processed": [0] * 12}, "fewer than two slots work enough"),
        ({"since_move_s": 30.0}, "30 s ago, not over 45 s"),
        ({"budget": [1000, 500, 500]}, "no group fits there"),
    ],
)
def test_degradation_says_why_it_does_nothing(more: dict[str, Any], reason: str) -> None:
    advice = relieved(slow(**more))
    assert not advice.suggestions
    assert reason in advice.declined[0].why


def test_degradation_of_one_slot() -> None:
    assert relieved(view([[(0, 1)]])).declined[0].why == "there is one slot"


# -------------------------------------------------------------------- policies that were there


def test_fine_tuning_merges_none_of_the_first_groups_of_any_join() -> None:
    """Joins' spaces are one or two bits deep: the floor is counted from there."""
    for groups, merged in ((8, []), (4, ["4/0", "4/4", "3/4"])):
        seen = view([[(join, 1) for join in (0, 0, 1, 1, 2, 2)]])
        advice = fine_tuning(seen, theta_bytes=100, groups=groups)
        found = [each.group.text for each in advice.suggestions if isinstance(each, MergeGroups)]
        assert found == merged


def test_fine_tuning_never_merges_across_joins() -> None:
    """Two joins of one group each are buddies by their bits."""
    seen = View(**{**_plain(view([[(0, 1), (1, 1)]])), "groups": (Prefix(2, 0), Prefix(2, 1))})
    assert seen.depth.tolist() == [0, 0]
    assert not fine_tuning(seen, theta_bytes=100, groups=1).suggestions


def test_another_join_that_is_empty_says_nothing_of_a_key() -> None:
    """A group that was never split is not taken for one key because the joins beside it have no
    rows yet."""
    parts = [Prefix(5, 0), Prefix(5, 1), Prefix(4, 1), Prefix(3, 1), *spaces(3)[1:]]
    GroupMap((part, 0) for part in parts)
    sizes = np.array([900, 0, 0, 9, 0, 0])
    seen = view([[(0, 1)] * 6])
    seen = View(**{**_plain(seen), "groups": tuple(parts), "bytes": sizes})
    assert seen.depth.tolist() == [3, 3, 2, 1, 0, 0]
    assert one_key(seen).tolist() == [False] * 6
    advice = fine_tuning(seen, theta_bytes=100, groups=1)
    assert [s.group for s in advice.suggestions if isinstance(s, SplitGroup)] == [Prefix(5, 0)]
    # Two splits of the first join's whole: the third half would be join 1.
    two = (Prefix(4, 0), Prefix(4, 1), Prefix(3, 1), *spaces(3)[1:])
    fewer = View(**{**_plain(view([[(0, 1)] * 5])), "groups": two})
    fewer = View(**{**_plain(fewer), "bytes": np.array([900, 0, 0, 0, 0])})
    assert one_key(fewer).tolist() == [False] * 5


def _plain(seen: View) -> dict[str, Any]:
    names = View.__dataclass_fields__
    return {name: value for name, value in vars(seen).items() if name in names}


@given(st.lists(st.none() | st.integers(0, 5), max_size=8))
def test_the_median_of_the_others_is_the_sorted_middle(drawn: list[int | None]) -> None:
    speed = np.array([np.nan if each is None else each for each in drawn], dtype=np.float64)
    wanted = []
    for slot in range(len(drawn)):
        others = sorted(each for at, each in enumerate(drawn) if at != slot and each is not None)
        wanted.append(others[(len(others) - 1) // 2] if others else np.nan)
    assert np.array_equal(_of_the_others(speed), np.array(wanted, dtype=np.float64), equal_nan=True)
