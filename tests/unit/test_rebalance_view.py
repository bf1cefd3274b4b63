"""What the controller sees of a day, and what it makes of it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from spillway.policy.registry import POLICIES, settings_for_policies
from spillway.policy.sampling import SlotFigures, slot_figures, work_of
from spillway.policy.view import View, occupancy
from spillway.readmodel.groups import GroupStates
from spillway.readmodel.model import ReadModel
from spillway.rebalance.view import round_s, view_of
from spillway_schemas.hash_space import ROOT
from spillway_schemas.journal import CommandOutcome, Epoch, Move, Prefix
from spillway_schemas.settings import load_settings
from tests.report_journal import (
    carry_out,
    make_day,
    model_of,
)

at = datetime.fromisoformat


def ended_ms(model: ReadModel) -> int:
    return model.tally.recent[-1].ended_ms if model.tally.recent else 0


def seen(
    model: ReadModel, collection_s: float, groups: GroupStates | None = None, later_ms: int = 0
) -> View:
    return view_of(
        model,
        groups or GroupStates.nothing(len(model.state.groups)),
        collection_s=collection_s,
        trigger_s=2.0,
        close_ms=None,
        now_ms=ended_ms(model) + later_ms,
    )


def test_a_view_holds_the_journal_s_figures() -> None:
    made = make_day(epochs=12, slots=2, groups_depth=3)
    epochs = [e for e in made.entries if isinstance(e, Epoch)]
    groups = replace(
        GroupStates.nothing(8),
        bytes=np.array([0, 300, 100, 0, 0, 0, 90, 0]),
        results=np.array([0, 7, 0, 0, 0, 0, 2, 0]),
    )
    view = seen(model_of(made.entries), 10**9, groups)
    assert view.groups == tuple(Prefix(3, v) for v in range(8))
    assert view.slot.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    # Statistics are older than the journal: what came since is shared out by size.
    held = [total.state_bytes for total in epochs[-1].slots]
    assert view.memory.tolist() == held
    assert view.bytes[1] == round(held[0] * 3 / 4)
    assert view.results.tolist() == [0, 7, 0, 0, 0, 0, 2, 0]
    totals = [[t for e in epochs for t in e.slots if t.slot == s] for s in (0, 1)]
    assert view.sampled.tolist() == [sum(t.results for t in mine) for mine in totals]
    assert view.budget.tolist() == [mine[-1].budget_bytes for mine in totals]
    busy = np.array([sum(t.busy_s for t in mine) for mine in totals])
    assert np.allclose(view.idle_s, np.maximum(view.collection_s - busy, 0))
    spilled = sum(t.spilled_bytes for mine in totals for t in mine)
    assert view.session_bytes == spilled + sum(mine[-1].state_bytes for mine in totals)
    assert view.since_move_s == float("inf")
    cut = {c.range for e in epochs for c in e.cuts}
    assert view.spilled.tolist() == [any(g.overlaps(c) for c in cut) for g in view.groups]


def test_rows_that_came_are_those_of_the_collection_time() -> None:
    """Of many groups statistics lie minutes apart, and rows were counted for as long."""
    made = make_day(epochs=12, slots=2, groups_depth=3)
    groups = replace(GroupStates.nothing(8), processed=np.full(8, 90))
    model = model_of(made.entries)
    assert seen(model, 30, groups).processed.tolist() == [90] * 8, "nobody knows for how long"
    span_s = seen(model, 30, groups).collection_s
    known = replace(groups, processed_s=np.array([span_s, 3 * span_s] * 4))
    assert seen(model, 30, known).processed.tolist() == [90, 30] * 4


def test_a_view_of_a_short_time_counts_the_last_epochs_only() -> None:
    made = make_day(epochs=12, slots=2, groups_depth=3)
    view = seen(model_of(made.entries), collection_s=1e-3)
    assert view.sampled.tolist() == [t.results for t in made.entries[-1].slots]


def test_a_view_knows_moves_and_forced_spills() -> None:
    made = make_day(epochs=12, slots=2, groups_depth=3)
    told = CommandOutcome(
        id="active-disk/a/0", kind="spill", obeyed=True, policy="active-disk", slot=1, bytes=5
    )
    by_hand = told.model_copy(update={"id": "by-hand/a/0", "policy": ""})
    moved = Move(group=Prefix(3, 0), to=1, decision="d")
    carry_out(made, 11, [moved], commands=[told, by_hand])
    view = seen(model_of(made.entries), collection_s=30)
    assert view.since_move_s == 0
    assert view.since_forced_s == 0
    assert view.since_tuned_s == float("inf")
    split = told.model_copy(update={"id": "pooled/b/0", "kind": "split", "policy": "pooled"})
    made.entries[-1] = made.entries[-1].model_copy(update={"commands": [told, by_hand, split]})
    assert seen(model_of(made.entries), collection_s=30, later_ms=5_000).since_tuned_s == 5
    # While no rows come there are no epochs, but time passes.
    assert seen(model_of(made.entries), collection_s=30, later_ms=90_000).since_move_s == 90
    assert view.forced_bytes == 5


def test_in_a_tree_a_slot_gives_what_all_its_joins_give() -> None:
    """Only the root's groups give results of the query; here they are all at slot 1."""
    made = make_day(epochs=12, slots=2, groups_depth=3)
    model = model_of(made.entries)
    rate = np.array([1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0])
    groups = replace(GroupStates.nothing(8), rate=rate)
    alone = seen(model, 10**9, groups)
    assert alone.parents == (ROOT,)
    genesis = model.state.genesis.model_copy(update={"parents": [1, ROOT]})
    model.state = replace(model.state, genesis=genesis)
    view = seen(model, 10**9, groups)
    assert view.parents == (1, ROOT)
    assert view.join.tolist() == [0] * 4 + [1] * 4
    assert view.sampled.tolist() == [round(3 * view.collection_s), round(4 * view.collection_s)]
    assert alone.sampled.tolist() == model.sample(10**9).results.tolist()


def test_full_epochs_are_those_that_read_what_they_might() -> None:
    made = make_day(epochs=3, slots=2, groups_depth=3)
    read = [sum(part.rows for part in e.read) for e in made.entries if isinstance(e, Epoch)]
    limits = [read[0], 2 * read[1], 0]
    first = len(made.entries) - 3
    for number, limit in enumerate(limits):
        entry = made.entries[first + number]
        made.entries[first + number] = entry.model_copy(update={"limit_rows": limit})
    model = model_of(made.entries)
    assert model.sample(10**9).full.tolist() == [True, False, False]
    assert seen(model, 10**9).occupancy.max() >= 1 / 3


def test_slots_figures_are_those_of_their_epochs() -> None:
    """The stream's own figures, from the few parts of entries that it keeps, are a view's."""
    made = make_day(epochs=12, slots=2, groups_depth=3)
    epochs = [e for e in made.entries if isinstance(e, Epoch)]
    last = epochs[-5:]
    works = [work_of(epoch) for epoch in last]
    span_s = (datetime.fromisoformat(last[-1].written_at).timestamp()) - (
        datetime.fromisoformat(last[0].started_at).timestamp()
    )
    found = slot_figures(works, [4, 5, 0], interval_s=2.0)
    view = seen(model_of(made.entries), span_s - 1e-3)
    for slot, each in enumerate(found[:2]):
        mine = [t for epoch in last for t in epoch.slots if t.slot == slot]
        busy = sum(t.busy_s for t in mine)
        assert each.busy_s == pytest.approx(busy)
        assert each.idle_s == pytest.approx(max(span_s - busy, 0))
        assert each.output_rate == sum(t.results for t in mine) / (4, 5)[slot], "with rows or not"
        assert each.skew == pytest.approx(sum(t.skew for t in mine) / 5)
        assert each.occupancy == pytest.approx(view.occupancy[slot])
    assert found[2] == SlotFigures(0.0, pytest.approx(span_s), 0.0, 0.0, 0.0), "it has just begun"
    assert slot_figures([], [4, 4], interval_s=2.0) == []


def test_an_epoch_says_what_its_slots_did() -> None:
    last = make_day(epochs=1, slots=2).entries[-1]
    entry = last.model_copy(
        update={
            "started_at": "2026-01-05T15:00:00.250Z",
            "written_at": "2026-01-05T15:00:02Z",
            "limit_rows": 0,
            "read": [
                each.model_copy(update={"rows": n + 4}) for n, each in enumerate(last.read[:2])
            ],
            "slots": [last.slots[1].model_copy(update={"busy_s": 0.5, "results": 7, "skew": 0.25})],
        }
    )
    work = work_of(entry)
    began = round(at("2026-01-05T15:00:00.250Z").timestamp() * 1000)
    assert (work.started_ms, work.ended_ms, work.rows) == (began, began + 1_750, 9)
    assert work.limit_rows == 0
    assert work_of(entry.model_copy(update={"limit_rows": 90})).limit_rows == 90
    assert {s: each.model_dump() for s, each in work.slots.items()} == {
        1: {"busy_s": 0.5, "results": 7, "skew": 0.25}
    }


def test_rounds_halve_after_moves() -> None:
    made = make_day(epochs=12, slots=2, groups_depth=3)
    quiet = model_of(made.entries)
    now_ms = ended_ms(quiet)
    assert round_s(quiet, 10**9, 1.0, now_ms) == 10**9
    assert round_s(quiet, 1.0, 1.0, now_ms) == 1.0
    moved = Move(group=Prefix(3, 0), to=1, decision="d")
    carry_out(made, 11, [moved])
    last = made.entries[-1]
    took = (at(last.written_at) - at(last.started_at)).total_seconds()
    assert round_s(model_of(made.entries), 10**9, 1e-6, now_ms) == took


def test_a_view_of_a_day_that_has_not_begun_gives_no_policy_a_reason() -> None:
    view = seen(model_of(make_day(epochs=0, slots=2, groups_depth=3).entries), 30)
    settings = load_settings(None, {})[0]
    given = settings_for_policies(settings)
    for name, policy in POLICIES.items():
        found = policy.advise(view, given)
        # With no row there is no supplier: one slot would do.
        assert not found.suggestions or name == "declustering"


NONE_FULL = np.zeros(9, dtype=np.bool_)


@pytest.mark.parametrize(
    ("busy", "interval", "wanted"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], 2.0, [0, 0]),
        ([[3.0, 1.0], [3.0, 2.0]], 2.0, [0.5, 0]),  # half of an interval's work is left over
        ([[9.0, 2.0], [1.0, 2.2]], 2.0, [0.5, 0.05]),  # never more than a whole buffer
        ([[3.0, 1.0], [2.0, 2.0]], 0.0, [0.25, 0]),  # no interval: against the slots' average
        ([[0.0, 0.0]], 0.0, [0, 0]),
        ([[0.6, 0.2]], 0.4, [0.5, 0]),  # intervals under a second
    ],
)
def test_occupancy(busy: list[list[float]], interval: float, wanted: list[float]) -> None:
    assert np.allclose(occupancy(np.array(busy), interval, NONE_FULL[: len(busy)]), wanted)


def test_occupancy_of_full_epochs() -> None:
    """Steps shorter than the interval, but rows are left over: nobody may call that idle."""
    busy = np.array([[1.0, 1.0, 0.2], [1.0, 0.8, 0.0]])
    assert np.allclose(occupancy(busy, 2.0, np.array([True, True])), [1, 0.9, 0.1])
    assert np.allclose(occupancy(busy, 2.0, np.array([True, False])), [0.5, 0.5, 0.1])
    assert np.allclose(occupancy(busy / 9, 2.0, np.array([True, True])), [1, 0.9, 0.1])
    assert occupancy(np.zeros((1, 2)), 2.0, np.array([True])).tolist() == [0, 0]


def test_occupancy_before_the_first_epoch() -> None:
    assert occupancy(np.zeros((0, 3)), 2.0, NONE_FULL[:0]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_s_settings_are_settings(name: str) -> None:
    """Each is a setting, with the policy's own default where it has one."""
    settings = load_settings(None, {})[0]
    known = settings_for_policies(settings)
    defaults = inspect.signature(POLICIES[name].decide).parameters
    for each in POLICIES[name].settings:
        default = defaults[each].default
        assert default in (known[each], inspect.Parameter.empty), each
