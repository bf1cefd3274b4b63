"""Any policy, guards included, comes to rest where nothing changes, and noise hardly stirs it.

A look every minute, as the DAG has it; the simulated system is in `tests.property.standing`. A
round of Flux moves one group for each pair of slots, so a slot that has more groups too many than
there are looks is not drawn. Active-disk goes on until it has forced what it may, a spill and what
moves after it at a time.
"""

from __future__ import annotations

from copy import deepcopy

import pytest

from spillway.engine.groups import GroupMap
from spillway.policy.distribution import Tree, distribution
from spillway.policy.registry import POLICIES
from spillway_schemas.hash_space import ROOT, join_of
from spillway_schemas.settings import Settings, load_settings
from tests.property.standing import drawn, in_tree

LOOKS = 10
LOOK_S = 60.0
SETTINGS: Settings = load_settings(
    overrides={"rebalance.relocation_bytes": "1", "state.groups": "2"}, environ={}
)[0]
"""Groups of some MB: no difference is too small to relocate, no group too small to merge."""
SYSTEMS = [(slots, seed) for slots in (1, 2, 3, 4, 8, 33) for seed in range(3)]
KINDS = ("all", "random", "balanced-network-aware")
HUNDRED, THOUSAND = (100, 3), pytest.param(1000, 2, marks=pytest.mark.server)
NOISY = [(2, 2), (3, 1), (4, 2), (8, 2), (10, 0), (33, 7), HUNDRED]
"""Of one slot there is nothing to move; in the fifth and the sixth Flux's policies once moved
something in every look."""


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("slots", "seed"), [*SYSTEMS, HUNDRED, THOUSAND])
def test_a_policy_comes_to_rest_where_nothing_changes(name: str, slots: int, seed: int) -> None:
    still = drawn(slots, seed)
    for _ in range(LOOKS if name != "active-disk" else 2 * LOOKS):
        still.obey(still.decide(name, SETTINGS))
        still.wait(LOOK_S)
    for _ in range(3):
        assert not still.decide(name, SETTINGS).suggestions
        still.wait(LOOK_S)


TREES = [(slots, seed, kind) for slots in (2, 3, 8) for seed in range(2) for kind in KINDS]
FIVE_WAY = Tree((1, 2, ROOT), (3, 1, 1), {})


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("slots", "seed", "kind"), TREES)
def test_a_policy_comes_to_rest_on_a_tree(name: str, slots: int, seed: int, kind: str) -> None:
    """Whatever the joins' groups began on; each group stays one of its join."""
    places = distribution(kind, FIVE_WAY, slots, seed)
    still = in_tree(slots, seed, places, FIVE_WAY.parents)
    for _ in range(2 * LOOKS):
        still.obey(still.decide(name, SETTINGS))
        still.wait(LOOK_S)
        owners = [join_of(group, len(FIVE_WAY.parents)) for group in still.groups]
        assert set(owners) == {0, 1, 2}
    GroupMap((group, 0) for group in still.groups)
    for _ in range(3):
        assert not still.decide(name, SETTINGS).suggestions
        still.wait(LOOK_S)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("slots", "seed"), NOISY)
def test_noise_of_5_percent_gives_one_adaptation_a_minute_at_most(
    name: str, slots: int, seed: int
) -> None:
    """Asked every 15 s for five minutes, after it had come to rest; in the closest minute."""
    at_rest = drawn(slots, seed)
    for _ in range(LOOKS):
        at_rest.obey(at_rest.decide(name, SETTINGS))
        at_rest.wait(LOOK_S)
    for noise in range(2 if slots > 10 else 4):
        still, adapted = deepcopy(at_rest), [float("-inf")]
        for _ in range(20):
            advice = still.decide(name, SETTINGS, noise=0.05, seed=noise)
            if advice.suggestions:
                assert still.now_s - adapted[-1] >= 60, (noise, advice.suggestions)
                adapted.append(still.now_s)
            still.obey(advice)
            still.wait(15.0)
