"""What joins of a tree hold and give, for all who show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spillway.readmodel.groups import GroupStates
from spillway.readmodel.joins import JoinFigures, join_figures, look_at_joins
from spillway.readmodel.model import ReadModel
from spillway_schemas.hash_space import join_numbers, join_of
from spillway_schemas.journal import Epoch, Move
from tests.page_warehouse import page_day, write_page_warehouse
from tests.report_journal import DAY, NEXT, carry_out, model_of
from tests.tree_journal import JOINS, tree_day, tree_page_day


def states(model: ReadModel) -> GroupStates:
    """Group g has g bytes, and other figures that follow from g."""
    g = np.arange(len(model.state.groups), dtype=np.int64)
    return replace(
        GroupStates.nothing(len(g)),
        bytes=g,
        rows=2 * g,
        results=3 * g,
        session_results=5 * g,
        rate=g / 4,
        generations=g,
        spilled_bytes=7 * g,
    )


def test_a_join_s_figures_are_those_of_its_groups(tmp_path: Path) -> None:
    made = tree_day(tmp_path, groups_depth=3)
    model = model_of(made.entries)
    found = join_figures(model, states(model), [DAY])
    assert [each.join for each in found] == list(JOINS)
    assert [each.reader for each in found] == ["paired", "paired", "whole", None]
    for number, each in enumerate(found):
        own = [g for g, (p, _) in enumerate(model.state.groups) if join_of(p, 4) == number]
        assert len(own) == 8
        total = sum(own)
        given = made.results[DAY] if each.join == "whole" else 5 * total
        assert (each.bytes, each.rows, each.results) == (total, 2 * total, given)
        assert (each.rate, each.spilled_bytes) == (round(total / 4, 3), 7 * total)
        assert each.productivity == 3 * 1024
        cuts = [c for e in made.entries if isinstance(e, Epoch) for c in e.cuts]
        assert each.cuts == sum(join_of(cut.range, 4) == number for cut in cuts) > 0
        assert each.groups == {0: 4, 1: 4}
        assert each.slot_bytes == {0: sum(own[:4]), 1: sum(own[4:])}


def test_a_join_is_at_the_slots_that_own_its_groups(tmp_path: Path) -> None:
    made = tree_day(tmp_path, 6, groups_depth=2)
    first = [group for group, _ in model_of(made.entries).state.groups]
    carry_out(made, 5, [Move(group=group, to=1, decision="d") for group in first[4:6]])
    model = model_of(made.entries)
    traded, judged, *_ = join_figures(model, states(model), [DAY])
    assert traded.groups == {0: 2, 1: 2}
    assert judged.groups == {1: 4}
    assert judged.slot_bytes == {1: 4 + 5 + 6 + 7}


def test_what_holds_nothing_is_not_productive(tmp_path: Path) -> None:
    model = model_of(tree_day(tmp_path, 3, groups_depth=2).entries)
    for each in join_figures(model, GroupStates.nothing(16), [DAY]):
        assert (each.productivity, each.bytes) == (0.0, 0)
        assert each.slot_bytes == {0: 0, 1: 0}


def test_one_join_has_no_figures_of_its_own(tmp_path: Path) -> None:
    warehouse = write_page_warehouse(tmp_path / "w", made := page_day(24, depth=4))
    assert look_at_joins(warehouse, model_of(made.entries)) == []


def test_statistics_and_journal_are_read_together(tmp_path: Path) -> None:
    made = tree_page_day(tmp_path, 24)
    model = model_of(made.entries)
    found = look_at_joins(write_page_warehouse(tmp_path / "w", made), model)
    assert found == look_at_joins(write_page_warehouse(tmp_path / "v", made), model, DAY)
    assert sum(sum(each.groups.values()) for each in found) == 4 * 64
    assert all(each.rows > 0 and each.productivity > 0 for each in found)
    assert sum(each.cuts for each in found) == made.cuts[DAY]
    assert found[-1].results == made.results[DAY]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_day_s_joins_are_its_own(tmp_path: Path, sealed: bool) -> None:
    made = tree_page_day(tmp_path, 24, **({"seal_after": 16} if sealed else {}))
    warehouse = write_page_warehouse(tmp_path / "w", made)
    model = model_of(made.entries)

    def root(session: str | None) -> JoinFigures:
        return look_at_joins(warehouse, model, session)[-1]

    assert root(DAY).results == made.results[DAY]
    assert root(None).results == made.results[NEXT if sealed else DAY]
    # Statistics are there of the session that is open.
    assert (root(DAY).rows > 0) == (not sealed)
    assert root(None).rows > 0
    assert sum(e.cuts for e in look_at_joins(warehouse, model, DAY)) == made.cuts[DAY]


def test_joins_of_groups_are_those_of_their_ranges(tmp_path: Path) -> None:
    groups = [p for p, _ in model_of(tree_day(tmp_path, 1, groups_depth=4).entries).state.groups]
    assert join_numbers(groups, 4).tolist() == [join_of(each, 4) for each in groups]
    assert join_numbers(groups, 1).tolist() == [0] * len(groups)
