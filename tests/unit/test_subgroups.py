"""Sub-groups of slots and an order of sending: the formulas against schedules step by step."""

from __future__ import annotations

import pytest

from benchmarks.subgroups import at_once, held, main, measured, one_after_the_other, payloads, waits


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 12])
def test_what_a_master_holds(groups: int):
    """Turn by turn: every sub-group's rows arrive evenly, and leave at its turn."""
    waiting, most = [0.0] * groups, 0.0
    for turn in range(10 * groups):
        waiting = [rows + 1 / groups**2 for rows in waiting]
        most = max(most, sum(waiting))
        waiting[turn % groups] = 0.0
    assert held(groups) == pytest.approx(most)


@pytest.mark.parametrize(("slots", "groups"), [(5, 1), (12, 2), (12, 4)])
def test_how_long_slots_wait(slots: int, groups: int):
    """Small pieces on one line: of one slot until it has all, or of each slot in turn."""
    pieces, together = 100, slots // groups
    for shared in (False, True):
        order = (
            [slot for _ in range(pieces) for slot in range(together)]
            if shared
            else [slot for slot in range(together) for _ in range(pieces)]
        )
        done = {slot: (at + 1) / pieces / slots for at, slot in enumerate(order)}
        found = waits(slots, groups, at_once=shared).tolist()
        assert found == pytest.approx([done[slot] for slot in range(together)], abs=0.01)


def test_sub_groups_are_of_one_size():
    with pytest.raises(ValueError, match="5 slots are not 2 sub-groups"):
        waits(5, 2)


def test_every_slot_gets_its_rows():
    rows = payloads(100, 3, 1.0)
    assert len(rows) == 3
    assert min(map(len, rows)) > 100 * 2 / 3 / 2 * 36
    for way in (one_after_the_other, at_once):
        took = measured(rows, range(3), way)
        assert len(took) == 3
        assert min(took) > 0


def test_both_are_shown(capsys: pytest.CaptureFixture[str]):
    assert main(["--slots", "4", "--rate", "50", "--times", "2"]) == 0
    said = capsys.readouterr().out
    assert "| one after the other | 100% | 62% | 100% |" in said
    assert "| all at once | 100% | 100% | 100% |" in said
    assert "| 2 sub-groups | 75% | 38% | 50% |" in said
