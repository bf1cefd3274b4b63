"""What the papers' figures and slides say of the policies, with the papers' numbers.

Flux: Shah et al., UCB/CSD-2-1205 (its Figure 6 is in `test_adaptation_policies`). TR: Liu &
Rundensteiner, WPI-CS-TR-05-04. DAX: the demonstration of VLDB 2005. Windowed joins: Chakraborty &
Singh. MB are 10**6 bytes, as all of them leave it open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from spillway.policy.clusters import THETA_BYTES, fine_tuning
from spillway.policy.disk import active_disk, lazy_disk
from spillway.policy.flux import (
    collection_s,
    flux_hybrid,
    flux_load,
    flux_memory,
    next_collection_s,
)
from spillway.policy.guards import guarded
from spillway.policy.pooled import pooled
from spillway.policy.registry import POLICIES
from spillway.policy.view import Advice, ForceSpill, MergeGroups, MoveGroup, SplitGroup, View
from spillway_schemas.journal import Prefix

MB = 1_000_000
FLUX = {"th_imb": 1.2, "th_util": 0.9, "threshold": 0.9}
"""Section 5.4; the last one is this system's."""


def cluster(slots: list[list[int]], budget: list[int], **more: object) -> View:
    """Slots with groups of so many MB, and budgets in MB."""
    sizes = [size for slot in slots for size in slot]
    groups, n = len(sizes), len(slots)
    given = {
        "groups": tuple(Prefix(16, v) for v in range(groups)),
        "slot": np.repeat(np.arange(n), [len(slot) for slot in slots]),
        "bytes": np.array(sizes, dtype=np.int64) * MB,
        "results": np.ones(groups, dtype=np.int64),
        "processed": np.ones(groups, dtype=np.int64),
        "spilled": np.zeros(groups, dtype=np.bool_),
        "budget": np.array(budget, dtype=np.int64) * MB,
        "idle_s": np.full(n, 5.0),
        "sampled": np.zeros(n, dtype=np.int64),
        "occupancy": np.zeros(n),
        "collection_s": 10.0,
    }
    return View(**{**given, **more})  # type: ignore[arg-type]


def moves(advice: Advice) -> list[MoveGroup]:
    return [each for each in advice.suggestions if isinstance(each, MoveGroup)]


def said(advice: Advice) -> str:
    assert not advice.suggestions
    return "; ".join(each.why for each in advice.declined)


def after(seen: View, advice: Advice) -> View:
    """The groups at their new slots."""
    slot = seen.slot.copy()
    for each in moves(advice):
        slot[seen.groups.index(each.group)] = each.to
    return replace(seen, slot=slot)


# --- Flux -------------------------------------------------------------------------------------

SITES, PARTITIONS = 32, 64


@dataclass
class Stage:
    """Flux's operator: what the slowest site cannot take blocks all (head-of-line blocking)."""

    share: np.ndarray
    """(g,) of the tuples."""
    speed: np.ndarray
    """(s,) 1: as much as comes, when partitions are even."""
    slot: np.ndarray

    @property
    def load(self) -> np.ndarray:
        """(s,) of the time, if all tuples got through."""
        return np.bincount(self.slot, weights=self.share, minlength=SITES) * SITES / self.speed

    @property
    def throughput(self) -> float:
        """Of what comes."""
        return min(1.0, 1 / float(self.load.max()))

    def view(self, use: np.ndarray, processed: np.ndarray, length_s: float) -> View:
        slots = [[1] * PARTITIONS] * SITES
        seen = cluster(slots, [1000] * SITES, collection_s=length_s, processed=processed)
        return replace(seen, idle_s=length_s * (1 - use), slot=self.slot)


@pytest.mark.parametrize(
    ("noise", "least", "most"),
    [(0.0, 30, 34), (0.05, 25, 30)],
    ids=["the paper", "as it runs here"],
)
def test_flux_figure_7_is_over_after_9_seconds(noise: float, least: int, most: int) -> None:
    """One of 32 machines is slowed down. Rebalancing is felt from t = 5 s to 14 s: 9 s, 32 moves.

    The paper's extra process degrades a machine by about 57 %. That a move phase takes 0.14 s is
    fitted: the paper does not say it, and with it 32 rounds, each half collection and half move,
    take the paper's time. Here the last few moves may be chance, so that each waits for a minute.
    """
    stage = Stage(
        share=np.full(SITES * PARTITIONS, 1 / SITES / PARTITIONS),
        speed=np.array([0.43] + [1.0] * (SITES - 1)),
        slot=np.repeat(np.arange(SITES), PARTITIONS),
    )
    now_s, moved, moved_s = 0.0, 0, None
    while now_s < 60:
        length_s = collection_s(0.01, moved_s, 0.0, delta_min_s=0.01)
        now_s += length_s
        seen = stage.view(stage.throughput * stage.load, np.full(2048, 100), length_s)
        seen = replace(seen, since_move_s=float("inf") if moved_s is None else length_s)
        advice = flux_load(seen, 1.2, 0.9, noise=noise)
        found = guarded(seen, advice, 45.0, 0.001, round_s=length_s)
        if not found.suggestions:
            break
        assert {each.source for each in moves(found)} == {0}
        assert len(moves(found)) == 1
        stage.slot = after(seen, found).slot
        now_s, moved, moved_s = now_s + 0.14, moved + 1, 0.14
    assert least <= moved <= most
    assert now_s == pytest.approx(0.28 * moved, abs=0.5)
    if noise:
        assert "may be chance" in found.declined[-1].why
        late = replace(seen, since_move_s=60.0)
        assert moves(guarded(late, advice, 45.0, 0.001, round_s=length_s))


def test_a_round_waits_for_its_own_collection_time() -> None:
    """Not for the 45 s between relocations: 32 rounds would take 24 minutes."""
    seen = cluster([[9, 9, 9], [9]], [1000, 1000], idle_s=np.array([0.0, 8.0]), since_move_s=3.0)
    advice = flux_load(seen)
    assert guarded(seen, advice, 45.0, 0.001, round_s=2.0).suggestions
    assert "3 s ago, under 5 s" in said(guarded(seen, advice, 45.0, 0.001, round_s=5.0))
    assert "3 s ago, under 45 s" in said(guarded(seen, advice, 45.0, 0.001))


@pytest.mark.parametrize("noise", [0.0, 0.05], ids=["as in the paper", "as it runs here"])
def test_flux_figure_9_short_collections_thrash(noise: float) -> None:
    """80/20 over 16 K groups: 10 ms of collection is worse than no policy, 250 ms is better.

    In the paper short collections halve the throughput of the static case. Here they leave 0.74 of
    it: the simulation has no tuples on their way, which a move must wait for.
    """
    rng = np.random.default_rng(1)
    share = np.ones(1)
    for _ in range(14):
        share = np.concatenate([share * 0.8, share * 0.2])
    share = rng.permutation(share).reshape(SITES * PARTITIONS, -1).sum(axis=1)
    home = np.repeat(np.arange(SITES), PARTITIONS)
    static = Stage(share, np.ones(SITES), home).throughput

    def run(delta_min_s: float) -> tuple[float, int]:
        """Throughput over 8 s, and partitions moved. What a collection counts is a sample."""
        stage, now_s, done, moved = Stage(share, np.ones(SITES), home.copy()), 0.0, 0.0, 0
        length_s, a_second = delta_min_s, 20_000.0
        while now_s < 8:
            now_s, done = now_s + length_s, done + length_s * stage.throughput
            counted = rng.poisson(stage.throughput * share * SITES * a_second * length_s)
            came = np.bincount(stage.slot, weights=counted, minlength=SITES)
            use = np.minimum(came / (a_second * length_s), 1.0)
            seen = stage.view(use, counted, length_s)
            found = moves(flux_load(seen, noise=noise))
            stage.slot = after(seen, Advice(tuple(found))).slot
            # 800 KB each: 250 Mbps between two machines, 500 Mbps in all.
            moved_s = max(6.4 / 250, 6.4 * len(found) / 500) if found else None
            now_s, moved = now_s + (moved_s or 0.0), moved + len(found)
            length_s = next_collection_s(length_s, moved_s, delta_min_s)
        return done / now_s, moved

    short, long = run(0.010), run(0.250)
    assert short[0] < 0.8 * static
    assert static < long[0]
    assert short[1] > 3 * long[1]


def figure_11(sites: int = 4) -> View:
    """128 partitions of 6 MB at each site; one has 512 MB left of 1,024, and spilled 256 MB.

    The paper has 32 sites; fewer serve where the number does not matter. Ours: 43 partitions on
    disk, 258 MB, for what leaves 512 MB to whole partitions. The paper says 256 MB, and 42 of 128
    partitions at steady state.
    """
    seen = cluster([[6] * 128] * sites, [512, *[1024] * (sites - 1)])
    on_disk = np.zeros(128 * sites, dtype=np.bool_)
    on_disk[:43] = True
    return replace(
        seen,
        spilled=on_disk,
        bytes=np.where(on_disk, 0, seen.bytes),
        spilled_bytes=np.where(on_disk, seen.bytes, 0),
    )


def in_the_paper(seen: View) -> Advice:
    return flux_memory(seen)


def as_it_runs(seen: View) -> Advice:
    """With figures that may be 5 % off."""
    return POLICIES["flux-memory"].advise(seen, FLUX)


def at_rest(seen: View, advise: Callable[[View], Advice], donors: range) -> tuple[View, int]:
    """Rounds of flux-memory until nothing moves any more, with their number."""
    rounds = 0
    while True:
        found = guarded(seen, advise(seen), 45.0, 0.001, round_s=5.0)
        if not found.suggestions:
            return seen, rounds
        assert {each.source for each in moves(found)} <= set(donors)
        seen, rounds = after(seen, found), rounds + 1
        assert rounds < 200


@pytest.mark.parametrize(("advise", "apart"), [(in_the_paper, 1.2), (as_it_runs, 1.3)])
def test_flux_figure_11_moves_until_all_would_be_resident(
    advise: Callable[[View], Advice], apart: float
) -> None:
    """Until excess is even by `th_imb`; with noise, as far as figures can be trusted.

    The paper moves for 7.9 s, which is 41 partitions at 250 Mbps and 82 at 500.
    """
    seen = figure_11(32)
    assert seen.memory.tolist() == [510 * MB, *[768 * MB] * 31]
    assert (seen.budget - seen.state).tolist() == [-256 * MB, *[256 * MB] * 31]
    # Partitions in memory before those on disk.
    assert [(each.source, each.bytes) for each in moves(flux_memory(seen))] == [(0, 6 * MB)]
    seen, rounds = at_rest(seen, advise, range(1))
    assert (seen.state <= seen.budget).all()
    assert seen.fits(0.95)
    assert 41 <= rounds <= 82
    excess = seen.budget - seen.state
    assert excess.argmin() == 0
    assert excess.max() / excess.min() < apart


@pytest.mark.parametrize(("advise", "left"), [(in_the_paper, 1), (as_it_runs, 7)])
def test_flux_figure_13_leaves_a_partition_on_disk(
    advise: Callable[[View], Advice], left: int
) -> None:
    """Half of 32 sites have half of their memory: the paper leaves one partition of each on disk.

    Figures that may be 5 % off leave more: what is over is too little to be sure of.
    """
    seen = cluster([[6] * 128] * 32, [*[512] * 16, *[1024] * 16])
    on_disk = np.arange(128 * 32) % 128 < np.where(np.arange(128 * 32) < 128 * 16, 43, 0)
    seen = replace(
        seen,
        spilled=on_disk,
        bytes=np.where(on_disk, 0, seen.bytes),
        spilled_bytes=np.where(on_disk, seen.bytes, 0),
    )
    seen, _ = at_rest(seen, advise, range(16))
    over = (seen.state - seen.budget)[:16]
    assert math.ceil(over.max() / (6 * MB)) == left


def test_a_slot_that_has_spilled_receives_nothing() -> None:
    """Right after a spill it has the most room in memory, and the least for what it has in all."""
    seen = cluster([[100] * 10, [100] * 8], [1000, 1000])
    spilled = np.array([True] * 4 + [False] * 14)
    seen = replace(
        seen,
        spilled=spilled,
        bytes=np.where(spilled, 0, seen.bytes),
        spilled_bytes=np.where(spilled, seen.bytes, 0),
    )
    assert seen.memory.tolist() == [600 * MB, 800 * MB]
    assert [(each.source, each.to) for each in moves(flux_memory(seen))] == [(0, 1)]
    # At four fifths of its budget it would spill again; below that it could have everything.
    tight = replace(seen, budget=np.array([1200 * MB, 1000 * MB]))
    assert [(each.source, each.to) for each in moves(flux_memory(tight))] == []
    roomy = replace(seen, budget=np.array([4000 * MB, 1000 * MB]))
    assert [(each.source, each.to) for each in moves(flux_memory(roomy))] == [(1, 0)]
    # Where every slot has spilled, a move spreads what is on disk (section 6.4).
    everywhere = replace(seen, spilled=np.array([True] * 4 + [False] * 13 + [True]))
    assert moves(flux_memory(everywhere))


def test_a_slot_that_could_have_all_again_receives() -> None:
    """Excess 900, 50, 600 and 700 MB; the first has 10 MB on disk, which it has room for."""
    seen = cluster([[10] * 10, [95] * 10, [40] * 10, [30] * 10], [1000] * 4)
    spilled = np.array([True] + [False] * 39)
    seen = replace(
        seen,
        spilled=spilled,
        bytes=np.where(spilled, 0, seen.bytes),
        spilled_bytes=np.where(spilled, seen.bytes, 0),
    )
    assert ((seen.budget - seen.state) // MB).tolist() == [900, 50, 600, 700]
    assert [(each.source, each.to) for each in moves(flux_memory(seen))] == [(1, 0)]


def test_who_receives_where_some_slots_have_spilled() -> None:
    """Excess -500, 0, 400 and 100 MB: the third has spilled, so the last one receives."""
    seen = cluster([[100] * 10, [100] * 10, [100] * 10, [100] * 10], [500, 1000, 1400, 1100])
    spilled = np.zeros(40, dtype=np.bool_)
    spilled[[0, 20]] = True
    found = moves(flux_memory(replace(seen, spilled=spilled)))
    assert [(each.source, each.to) for each in found] == [(0, 3)]
    # The three emptier ones have spilled: the middle pair leaves the receiver alone.
    spilled[10] = True
    lacking = replace(seen, spilled=spilled, budget=np.array([500, 600, 900, 1100]) * MB)
    assert [(each.source, each.to) for each in moves(flux_memory(lacking))] == [(0, 3)]


def test_the_threshold_is_on_excess() -> None:
    """Excess 500 and 590 MB is 1.18 apart, though memory in use is 1.04."""
    seen = cluster([[10] * 50, [10] * 48], [1000, 1070])
    assert "less than th_imb 1.2 apart" in said(flux_memory(seen))
    assert moves(flux_memory(replace(seen, budget=np.array([1000, 1090]) * MB)))


def test_flux_hybrid_goes_by_load_again_once_all_would_be_resident() -> None:
    """Section 6.4. Spilled rows wait for cleanup here: that they would fit is what counts."""
    seen = replace(figure_11(), idle_s=np.array([8.0, 0.0, 9.0, 9.0]))
    assert [each.source for each in moves(flux_hybrid(seen))] == [0], "by memory"
    roomy = replace(seen, budget=np.array([1024 * MB] * 4))
    assert [each.source for each in moves(flux_hybrid(roomy))] == [1], "by load"
    full = replace(roomy, budget=np.array([1024, 1024, 768, 768]) * MB)
    assert not moves(flux_hybrid(full)), "memory must suffice at the receiver"


# --- TR, section 6, and DAX -------------------------------------------------------------------


def test_tr_section_6_groups_that_were_pushed_to_disk_do_not_move() -> None:
    seen = cluster([[60, 40, 50], [10]], [1000] * 2, results=np.array([9, 5, 100, 1]))
    free = lazy_disk(seen)
    assert [each.group.value for each in moves(free)] == [2]
    pushed = replace(seen, spilled=np.array([False, False, True, False]))
    assert [each.group.value for each in moves(lazy_disk(pushed))] == [0]
    all_pushed = replace(seen, spilled=np.array([True, True, True, False]))
    assert "every group of slot 0 has spilled" in said(lazy_disk(all_pushed))


def test_tr_section_6_one_kind_of_adaptation_at_a_time() -> None:
    """Uneven, and of unlike output rates: relocation now, forced spills when that is done."""
    seen = cluster(
        [[60, 60, 50], [20, 20]], [200] * 2, sampled=np.array([9, 1]), session_bytes=10**10
    )
    found = active_disk(seen)
    assert moves(found)
    assert len(moves(found)) == len(found.suggestions)


def test_dax_slide_20_lazy_disk_relocates_by_the_ratio_and_the_time() -> None:
    """Relocation if M_r < theta_r and t > tau; slide 21: 80 %, 45 s, more than 30 MB."""

    def asked(most: int, least: int, since_s: float = 46.0) -> Advice:
        slots = [[1] * most, [1] * least, [1] * least]
        return lazy_disk(cluster(slots, [100] * 3, since_move_s=since_s))

    assert sum(each.bytes for each in moves(asked(100, 38))) == 31 * MB
    assert "not over 30,000,000" in said(asked(100, 40)), "half of 60 MB"
    assert "not below theta_d 0.8" in said(asked(100, 80))
    assert "not over 45 s" in said(asked(100, 38, since_s=44.0))
    assert "not over 45 s" in said(asked(100, 38, since_s=45.0)), "t > tau"


def test_dax_slide_21_active_disk_forces_at_ratio_2_and_100_mb_at_most() -> None:
    """Three machines that spill at 80 MB, of join ratios 4, 1 and 1."""
    seen = cluster(
        [[1] * 80] * 3, [80] * 3, sampled=np.array([400, 100, 100]), session_bytes=1000 * MB
    )
    [forced] = active_disk(seen).suggestions
    assert isinstance(forced, ForceSpill)
    assert (forced.slot, forced.bytes) == (2, 24 * MB)
    [last] = active_disk(replace(seen, forced_bytes=90 * MB)).suggestions
    assert isinstance(last, ForceSpill)
    assert last.bytes == 10 * MB
    assert "100,000,000 bytes were forced already, of at most 100,000,000" in said(
        active_disk(replace(seen, forced_bytes=100 * MB))
    )
    assert "not over theta_f 2" in said(active_disk(replace(seen, sampled=np.array([2, 1, 1]))))
    # After it, 56 of 80 MB are under 80 %; to relocate 12 MB is not worth it, so it goes on.
    after_one = cluster([[1] * 80, [1] * 80, [1] * 56], [80] * 3, sampled=np.array([400, 100, 100]))
    found = active_disk(replace(after_one, session_bytes=1000 * MB)).suggestions
    assert [each.slot for each in found if isinstance(each, ForceSpill)] == [1]


def test_m_cluster_is_what_slots_may_hold_before_they_spill() -> None:
    """TR, section 6. Three slots that spill at 80 of 100 MB; the day will take 250 MB."""
    seen = cluster(
        [[1] * 70] * 3, [100] * 3, sampled=np.array([400, 100, 100]), session_bytes=250 * MB
    )
    [forced] = active_disk(seen, threshold=0.8).suggestions
    assert isinstance(forced, ForceSpill)
    assert forced.bytes == 10 * MB
    assert "240,000,000 of memory" in said(active_disk(replace(seen, forced_bytes=10 * MB)))


def test_tr_section_6_the_output_rate_is_by_all_groups_of_a_slot() -> None:
    """A spill empties groups, and makes the slot no richer."""
    seen = cluster([[10] * 8, [10] * 8], [100] * 2, sampled=np.array([400, 100]))
    assert seen.output_rate.tolist() == [50, 12.5]
    spilled = replace(seen, bytes=np.where(np.arange(16) < 14, seen.bytes, 0))
    assert spilled.output_rate.tolist() == [50, 12.5]


# --- windowed joins: extendible hashing ----------------------------------------------------------


def tuned(*groups: tuple[int, int, float]) -> Advice:
    """Of groups (depth, value, MB), with the paper's theta of 1.5 MB."""
    seen = cluster([[1] * len(groups)], [1000])
    seen = replace(
        seen,
        groups=tuple(Prefix(depth, value) for depth, value, _ in groups),
        bytes=np.array([int(size * (1 << 20)) for _, _, size in groups]),
    )
    return fine_tuning(seen, THETA_BYTES, groups=2)


def test_a_group_over_two_theta_is_split_and_gets_one_bit() -> None:
    assert THETA_BYTES == 1.5 * (1 << 20)
    assert [each.group for each in tuned((1, 0, 3.1), (1, 1, 3.0)).suggestions] == [Prefix(1, 0)]
    assert isinstance(tuned((1, 0, 3.1)).suggestions[0], SplitGroup)


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [(0.7, 0.7, True), (1.4, 1.0, True), (1.4, 1.6, False), (1.6, 0.2, True), (1.5, 1.5, False)],
)
def test_buddies_merge_when_one_is_under_theta_and_both_under_two(
    one: float, other: float, merged: bool
) -> None:
    found = tuned((2, 0, one), (2, 1, other)).suggestions
    assert [each.group for each in found if isinstance(each, MergeGroups)] == (
        [Prefix(1, 0)] if merged else []
    )


def test_only_buddies_of_one_local_depth_merge() -> None:
    assert not tuned((2, 1, 0.1), (2, 2, 0.1)).suggestions, "not buddies: 01 and 10"
    assert not tuned((2, 0, 0.1), (3, 2, 0.1), (3, 3, 2.9)).suggestions, "one is split further"


def test_what_a_partition_was_split_into_is_all_that_merges() -> None:
    """The paper has a directory for each of its 60 partitions; two of them never become one."""
    assert "one of the first 2" in said(tuned((1, 0, 0.1), (1, 1, 0.1)))


# --- pooled -------------------------------------------------------------------------------------


def test_pooled_evens_work_again_after_a_spill() -> None:
    seen = cluster(
        [[10] * 10, [10] * 10],
        [1000] * 2,
        idle_s=np.array([2.0, 8.0]),
        processed=np.repeat([4, 1], 10),
        spilled=np.array([True] + [False] * 19),
        spilled_bytes=np.array([10 * MB] + [0] * 19),
    )
    given = {"theta_d": 0.8, "min_span_s": 45.0}
    found = moves(pooled(seen, **given, th_imb=1.2, th_util=0.9))
    assert len(found) == 3, "half of the difference: all of it would fit in memory again"
    # What is on disk would not fit: work is evened as far as memory stays even.
    short = replace(seen, spilled_bytes=np.array([5000 * MB] + [0] * 19))
    assert not moves(pooled(short, **given, th_imb=1.2, th_util=0.9)), "ten groups are coarse"
    fine = cluster(
        [[1] * 100, [1] * 100],
        [1000] * 2,
        idle_s=np.array([2.0, 8.0]),
        processed=np.array([50] + [1] * 199),
        spilled=np.array([True] + [False] * 199),
        spilled_bytes=np.array([5000 * MB] + [0] * 199),
    )
    assert [each.group.value for each in moves(pooled(fine, **given, th_imb=1.2, th_util=0.9))]
