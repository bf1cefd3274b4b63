"""How steady a run was: the last quarter of its epochs against the warm second one."""

from __future__ import annotations

import pytest

from benchmarks.side_by_side.epochs import EpochRate, spike, steadiness


def epochs(*found: tuple[int, float]) -> list[EpochRate]:
    return [EpochRate(rows, 0.0, seconds) for rows, seconds in found]


def test_the_first_quarter_is_no_part_of_it() -> None:
    slow_start = [(100, 9.0), (100, 8.0)]
    assert steadiness(epochs(*slow_start, *[(100, 1.0)] * 6)) == pytest.approx(1.0)


def test_a_rate_that_halves_is_seen() -> None:
    assert steadiness(epochs(*[(100, 1.0)] * 6, *[(100, 2.0)] * 2)) == pytest.approx(0.5)


def test_the_few_rows_at_the_end_are_left_out() -> None:
    assert steadiness(epochs(*[(100, 1.0)] * 10, (1, 1.0))) == pytest.approx(1.0)


def test_what_is_counted_may_be_what_the_joins_handled() -> None:
    found = [EpochRate(100, 0.0, 1.0 + n, 100 * (1 + n)) for n in range(8)]
    assert steadiness(found, lambda e: e.handled) == pytest.approx(1.0)
    assert steadiness(found) == pytest.approx((3 + 4) / (7 + 8))
    unknown = [*found[:-1], EpochRate(100, 0.0, 8.0)]
    assert steadiness(unknown, lambda e: e.handled) is None


def test_few_epochs_have_no_quarters() -> None:
    assert steadiness([]) is None
    assert steadiness(epochs(*[(100, 1.0)] * 7)) is None


def test_a_spike_is_held_against_its_neighbours() -> None:
    even = [(100, 1.0)] * 12
    assert spike(epochs(*[(100, 9.0)] * 3, *even)) == pytest.approx(1.0)
    assert spike(epochs(*even[:7], (100, 2.5), *even)) == pytest.approx(2.5)
    # Rates that change make no spike.
    assert spike(epochs(*even, *[(100, 2.0)] * 12)) == pytest.approx(2 / 1.5)
    assert spike(epochs(*[(100, 1 + n / 20) for n in range(20)])) < 1.3
    # The few rows at the end take as long as they take.
    assert spike(epochs(*[(100, 1.0)] * 3, *even, (2, 9.0))) == pytest.approx(1.0)
    assert spike(epochs(*[(100, 1.0)] * 13)) is None
    assert spike([]) is None
