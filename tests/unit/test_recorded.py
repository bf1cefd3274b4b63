"""Policies decide, in the same words, as they did when they were last looked at."""

from __future__ import annotations

import pytest

from tests.recorded import CASES, recorded

RECORDED = recorded()


@pytest.mark.parametrize("policy", CASES)
def test_decisions_are_as_they_were(policy: str) -> None:
    """After a change that is meant: `python -m tests.recorded`, and read the difference."""
    seeds = [seed for name, seed in RECORDED if name == policy]
    assert seeds
    for seed in seeds:
        assert CASES[policy](seed) == RECORDED[policy, seed], f"{policy} {seed}"
