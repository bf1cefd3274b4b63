"""Where groups begin: even, or by shares."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.engine.groups import GroupMap
from spillway_schemas.settings import SettingsError, load_settings


@given(
    st.integers(0, 8).map(lambda bits: 1 << bits),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
)
def test_every_slot_has_about_its_share_and_a_group_at_least(
    groups: int, shares: list[float]
) -> None:
    if len(shares) > groups:
        with pytest.raises(ValueError, match="slots must be between"):
            GroupMap.initial(groups, len(shares), shares)
        return
    found = GroupMap.initial(groups, len(shares), shares)
    counts = Counter(found.slots.tolist())
    assert sorted(counts) == list(range(len(shares)))
    assert found.slots.tolist() == sorted(found.slots.tolist()), "contiguous"
    for slot, share in enumerate(shares):
        wanted = share / sum(shares) * groups
        # Rounding, and a group for each slot that would have none.
        assert abs(counts[slot] - wanted) <= 1 + len(shares)


@pytest.mark.parametrize(
    ("shares", "counts"), [((3, 1), [12, 4]), ((1, 1, 2), [4, 4, 8]), ((1e6, 1, 1), [14, 1, 1])]
)
def test_shares(shares: tuple[float, ...], counts: list[int]) -> None:
    found = Counter(GroupMap.initial(16, len(shares), shares).slots.tolist())
    assert [found[slot] for slot in range(len(shares))] == counts


def test_as_many_shares_as_slots() -> None:
    with pytest.raises(ValueError, match="2 slots need as many positive shares"):
        GroupMap.initial(16, 2, (1, 2, 3))


@pytest.mark.parametrize("value", ["", "3,", "1;2", "0,1", "-1,2", "inf,1", "nan,1", "half"])
def test_what_is_no_share_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="separated by commas"):
        load_settings(overrides={"state.shares": value}, environ={})


def test_even_is_the_default() -> None:
    assert load_settings(environ={})[0].state.shares == "even"
