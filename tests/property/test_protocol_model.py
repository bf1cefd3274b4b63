"""Random schedules of the epoch protocol are exact (see `model/`)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest

from tests.fresh import fixed_seeds, fresh_seed
from tests.property.model.plants import PLANTS, Plant
from tests.property.model.schedule import ONE, TREES, explain, run
from tests.property.model.world import Tree, digest

FAST = 25
"""Schedules of the fast lane; ten of them take a second of CPU time."""
FEW = 8
"""Schedules of the fast lane in which Kafka loses rows."""
MORE_LOSSES = 20
"""As many beside those in `make test`."""
FRESH = 5
"""As many others in each run outside CI."""
MORE = 120
"""Schedules that `make test` runs beside those."""
SOAK_SCHEDULES = int(os.environ.get("SPILLWAY_SOAK_SCHEDULES", "50000"))
"""Schedules of `make soak`: so many of one join, and of trees."""


def exact(
    first: int, count: int, trees: Sequence[Tree] = ONE, *, lossy: bool = False
) -> Counter[str]:
    """Run schedules; what they went through. Fails with the story of the first that is wrong."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        outcome = run(seed, trees=trees, lossy=lossy)
        if outcome.problems:
            pytest.fail(explain(outcome), pytrace=False)
        seen.update(
            epochs=outcome.epochs,
            results=outcome.results,
            cuts=outcome.cuts,
            voided=outcome.voided,
            restored=outcome.restored,
            deferred=outcome.deferred,
            moved=outcome.moved,
            reshaped=outcome.reshaped,
            open_together=outcome.open_together,
            noticed=bool(outcome.noticed),
            withdrawn=outcome.withdrawn,
            changed=outcome.changed,
            lost=outcome.lost,
        )
    return seen


def busy(first: int, count: int, trees: Sequence[Tree] = ONE) -> None:
    """Schedules are exact, and things happen in them: a quiet model proves nothing."""
    seen = exact(first, count, trees)
    assert seen["epochs"] > 5 * count
    assert seen["results"] > 10 * count
    assert seen["cuts"] > 3 * count
    assert seen["voided"] > 0.4 * count
    assert seen["restored"] > (0.25 if trees is ONE else 0.5) * count
    assert trees is not ONE or seen["deferred"] > 0.25 * count
    assert seen["open_together"] > count
    assert seen["withdrawn"] > (0.05 if trees is ONE else 0.03) * count
    assert seen["changed"] > 0.1 * count
    assert seen["moved"] > (1 if trees is ONE else 0.5) * count
    assert seen["reshaped"] > count
    assert 0.02 * count < seen["noticed"] < 0.3 * count


@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_schedules_are_exact(trees: Sequence[Tree]) -> None:
    busy(0, FAST, trees)


def lose(first: int, count: int, trees: Sequence[Tree] = ONE) -> None:
    """Schedules in which Kafka loses rows are exact but for those, once people have accepted it."""
    seen = exact(first, count, trees, lossy=True)
    assert seen["lost"] > 0.5 * count
    assert seen["restored"] > count
    assert trees is not ONE or seen["deferred"] > 0.4 * count
    assert not seen["noticed"]


@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_schedules_lose_what_people_accept_and_no_more(trees: Sequence[Tree]) -> None:
    lose(0, FEW, trees)


@pytest.mark.server
@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_many_more_schedules_lose_what_people_accept(trees: Sequence[Tree]) -> None:
    lose(FEW, MORE_LOSSES, trees)


@pytest.mark.skipif(fixed_seeds(), reason="CI runs the same schedules each time")
@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_fresh_schedules_are_exact(trees: Sequence[Tree]) -> None:
    """What fails names its seed and the command that runs it again."""
    exact(fresh_seed(), FRESH, trees)
    exact(fresh_seed(), FRESH // 5, trees, lossy=True)


@pytest.mark.soak
@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_many_more_schedules_are_exact(trees: Sequence[Tree]) -> None:
    busy(FAST, MORE, trees)


@pytest.mark.parametrize("topic", range(3))
@pytest.mark.parametrize("partition", range(3))
def test_a_refill_that_swaps_values_is_seen(topic: int, partition: int) -> None:
    """The model's digest of a partition is a sum: it must tell which value is where."""
    sums = {
        sum(digest(topic, partition, offset, value) for offset, value in enumerate(values)) % 2**64
        for values in permutations(range(4))
    }
    assert len(sums) == 24


@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_a_seed_is_one_schedule(trees: Sequence[Tree]) -> None:
    once, again = (run(7, trees=trees, traced=True) for _ in "12")
    assert once == again
    assert len(once.trace) > 20


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("trees", [ONE, TREES], ids=["one join", "trees"])
def test_soak(trees: Sequence[Tree]) -> None:
    exact(1_000_000, SOAK_SCHEDULES, trees)
    exact(1_000_000, SOAK_SCHEDULES // 5, trees, lossy=True)


@pytest.mark.server
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_rule_left_out_is_caught(plant: Plant) -> None:
    """A model that stays calm when a rule of DESIGN.md is missing would prove nothing."""
    other = ""
    with plant.planted() as rules:
        for seed in range(plant.first, plant.first + plant.within):
            found = run(seed, rules, trees=plant.trees, lossy=plant.lossy).problems
            if any(re.search(plant.shows, problem) for problem in found):
                return
            other = next(iter(found), other)
    # A patch that no longer fits what it replaces shows here, as a TypeError.
    seen = f"; seen instead, last: {other}" if other else ""
    pytest.fail(f"not caught within {plant.within} schedules: {plant.rule}{seen}", pytrace=False)
