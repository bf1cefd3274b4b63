"""The laboratory's model of Flux's cluster: flows against sums written out, disks and moves step by
step, the figures' shapes in small, claims and page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab import flux_lines, page
from benchmarks.lab.digest import digest
from benchmarks.lab.flux_cluster import (
    DISK_BYTES_S,
    LOADED,
    SEEK_S,
    SERVICE_S,
    STEP_S,
    UNDER_WAY,
    Buffer,
    FluxCluster,
    until_full,
)
from benchmarks.lab.flux_experiments import FluxExperiment, flux_experiments
from benchmarks.lab.flux_lines import Controller, FluxLine, FluxOutcome, run_flux, shares
from benchmarks.lab.flux_page import FluxDone, flux_picture
from spillway.policy.view import Advice, MoveGroup
from spillway_schemas.journal import Prefix

WHOLE = 1 / SERVICE_S
"""Tuples that a slot processes in a second."""


def cluster(slots: int = 2, groups: int = 4, **given_: Any) -> FluxCluster:
    share = np.full(groups, 1 / groups)
    return FluxCluster(slots, share, given_.pop("group_bytes", 1e6), Buffer(2048, **given_))


def run(made: FluxCluster, seconds: float) -> float:
    """Tuples a second over some time."""
    before = made.done
    for _ in range(round(seconds / STEP_S)):
        made.step()
    return (made.done - before) / seconds


# --- flows -----------------------------------------------------------------------------------

FEW = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 50)), min_size=1, max_size=5)


@given(FEW, st.floats(0, 30), st.floats(0, 100))
def test_the_buffer_is_full_when_one_more_does_not_fit(
    slots: list[tuple[float, float]], connection: float, room: float
) -> None:
    share, held = np.array(slots).T

    def over(more: float) -> float:
        return float(np.maximum(held + share * more - connection, 0).sum())

    more = until_full(share, held, connection, room)
    if over(0) > room:
        assert more == 0
    else:
        assert over(more) == pytest.approx(room, abs=1e-6)
        assert over(more + 1) > room


def test_slots_work_as_fast_as_they_can() -> None:
    made = cluster(4, 8)
    assert run(made, 1) == pytest.approx(4 * WHOLE)
    assert made.idle_s == pytest.approx(np.zeros(4), abs=1e-9)
    assert made.processed == pytest.approx(np.full(8, WHOLE / 2))
    assert made.sample.sum() == pytest.approx(4 * WHOLE, rel=0.05)


def test_nothing_is_lost() -> None:
    """What producers have made was processed, or is queued or spooled."""
    made = cluster(2, 8, group_bytes=2e6)
    made.memory[0] = 5e6
    produced = 0.0
    produce = made._produce

    def counted() -> None:
        nonlocal produced
        before = float(made.queued.sum())
        produce()
        produced += float(made.queued.sum()) - before

    made._produce = counted  # type: ignore[method-assign]
    for _ in range(400):
        made.step()
    assert made.spooled.sum() > 0
    group = int(np.flatnonzero(made.on_disk)[0])
    made.start([(group, MoveGroup(Prefix(3, group), 0, 1, 1, ""))])
    for _ in range(400):
        made.step()
        assert produced == pytest.approx(made.done + made.queued.sum() + made.spooled.sum())
    assert made.moved == 1


@pytest.mark.parametrize("kind", ["shared", "apart"])
def test_a_slow_slot_holds_up_the_others_once_the_buffer_is_full(kind: Any) -> None:
    made = cluster(4, 8, kind=kind)
    run(made, 1)
    made.speed[2] *= LOADED
    soon = run(made, 0.1)
    assert run(made, 5) < soon
    assert run(made, 1) == pytest.approx(4 * LOADED * WHOLE, rel=0.01)
    made.collect()
    run(made, 1)
    assert made.idle_s == pytest.approx([1 - LOADED, 1 - LOADED, 0, 1 - LOADED], abs=0.01)


def test_an_epoch_ends_when_the_last_slot_is_done() -> None:
    made = FluxCluster(2, np.full(4, 0.25), 1e6, Buffer(WHOLE, "epochs"))
    made.speed[1] /= 2
    assert run(made, 1) == pytest.approx(1.5 * WHOLE, rel=0.01)
    assert run(made, 1) == pytest.approx(0.5 * WHOLE, rel=0.01)
    assert run(made, 2) == pytest.approx(WHOLE, rel=0.02)


def test_keys_of_the_80_20_distribution_lie_at_every_scale() -> None:
    found = shares(FluxLine("", skewed=True))
    assert found.sum() == pytest.approx(1)
    ordered = np.sort(shares(FluxLine("", skewed=True, slots=32, groups_of_slot=512)))[::-1]
    assert ordered[: len(ordered) // 5].sum() == pytest.approx(0.8, abs=0.001)
    assert ordered[: len(ordered) // 25].sum() == pytest.approx(0.64, abs=0.001)
    assert shares(FluxLine("")) == pytest.approx(np.full(2048, 1 / 2048))


# --- moves and disks -------------------------------------------------------------------------


def test_a_group_that_moves_gives_nothing_until_it_is_there() -> None:
    made = cluster(2, 4, group_bytes=800e3)
    run(made, 0.5)
    made.collect()
    made.start([(0, MoveGroup(Prefix(2, 0), 0, 1, 1, ""))])
    assert made.slot.tolist() == [0, 0, 1, 1]
    seconds = 2 * UNDER_WAY * SERVICE_S + 800e3 / (250e6 / 8)
    run(made, seconds - STEP_S)
    assert made.moving
    assert made.processed[0] == 0
    run(made, 3 * STEP_S)
    assert not made.moving
    assert made.slot.tolist() == [1, 0, 1, 1]
    assert made.moved == 1
    run(made, 0.5)
    assert made.processed[0] > 0


def test_many_moves_share_the_network() -> None:
    made = cluster(32, 64, group_bytes=6e6)
    made.start([(2 * n, MoveGroup(Prefix(6, 2 * n), n, 31, 1, "")) for n in range(10)])
    took = 0.0
    while made.moving:
        made.step()
        took += STEP_S
    assert took == pytest.approx(10 * 6e6 / (500e6 / 8), rel=0.1)


def test_what_does_not_fit_is_spilled_and_takes_turns() -> None:
    made = cluster(2, 8, group_bytes=1e6)
    run(made, 0.5)
    made.memory[0] = 2e6
    io_s = SEEK_S + 1e6 / DISK_BYTES_S
    run(made, 2 * io_s - STEP_S)
    assert made.on_disk.tolist() == [True, True, False, False] + [False] * 4
    assert made.held(0) == 2e6
    run(made, 2 * STEP_S)
    # After t_gap the first one comes back, and another goes.
    run(made, 3 * io_s + 0.2)
    assert made.on_disk.sum() == 2
    assert not made.on_disk[0]
    assert made.waited > 0
    assert run(made, 5) < 0.8 * 2 * WHOLE
    made.memory[0] = 1e9
    run(made, 3)
    assert not made.on_disk.any()
    assert made.spooled.sum() == 0
    assert run(made, 1) == pytest.approx(2 * WHOLE)


def test_a_group_on_disk_moves_with_what_was_spooled_of_it() -> None:
    made = cluster(2, 8, group_bytes=1e6)
    made.memory[0] = 3e6
    run(made, 0.3)
    group = int(np.flatnonzero(made.on_disk)[0])
    made.spooled[group] = 77
    # Its slot finishes what it is at, reads the group, works off what was spooled and sends it.
    busy_s = max(made.disks[0].busy_until_s - made.now_s, 0) + SEEK_S + 1e6 / DISK_BYTES_S
    busy_s += 77 * (SERVICE_S + 80 / DISK_BYTES_S)
    began = made.now_s
    made.start([(group, MoveGroup(Prefix(3, group), 0, 1, 1, ""))])
    assert made.disks[0].busy_until_s == pytest.approx(began + busy_s)
    while made.moving:
        made.step()
    sent_s = 2 * UNDER_WAY * SERVICE_S + 1e6 / (250e6 / 8)
    assert made.now_s - began == pytest.approx(busy_s + sent_s, abs=3 * STEP_S)
    assert made.disks[1].busy_until_s == pytest.approx(
        made.now_s - STEP_S + 0.2e-6 * 1e6 / 80, abs=1e-9
    )
    assert made.slot[group] == 1
    assert not made.on_disk.any()
    assert made.spooled.sum() == 0
    run(made, 3)
    assert run(made, 1) == pytest.approx(8 / 5 * WHOLE, rel=0.02)  # one slot has five of the eight


# --- rounds ----------------------------------------------------------------------------------


def test_the_next_collection_takes_as_long_as_the_last_moves(monkeypatch: Any) -> None:
    asked: list[float] = []

    class Once:
        def given(self, _: Any) -> dict[str, Any]:
            return {}

        def decide(self, view: Any, noise: float) -> Advice:
            assert noise == 0
            asked.append(view.elapsed_s)
            first = len(asked) == 1
            return Advice((MoveGroup(view.groups[0], 0, 1, 1, ""),) if first else ())

    monkeypatch.setitem(flux_lines.POLICIES, "once", Once())
    made = cluster(2, 4)
    controller = Controller(made, "once", 0.02)
    for _ in range(200):
        made.step()
        controller.look()
    (first, second, third) = asked[:3]
    assert first == pytest.approx(0.02)
    arrived = controller.last_s
    assert made.moved == 1
    assert second - arrived == pytest.approx(arrived - first, abs=2 * STEP_S)
    assert third - second == pytest.approx((second - arrived) / 2, abs=2 * STEP_S)
    assert controller.moving_s == pytest.approx(arrived - first, abs=2 * STEP_S)


def test_the_policy_sees_what_the_slots_did() -> None:
    made = cluster(2, 4, group_bytes=2e6)
    made.speed[0] *= LOADED
    made.memory[1] = 3e6
    run(made, 8)
    made.collect()
    run(made, 1)
    view = Controller(made, "flux-hybrid", 0.01)._view()
    assert view.idle_s == pytest.approx(made.idle_s)
    assert view.collection_s == pytest.approx(1)
    assert view.slot.tolist() == [0, 0, 1, 1]
    assert (view.bytes + view.spilled_bytes).tolist() == [2_000_000] * 4
    assert view.spilled.tolist() == made.on_disk.tolist()
    assert view.budget.tolist() == [1 << 30, 3_000_000]
    assert abs(view.processed.sum() - made.processed.sum()) < 6 * made.processed.sum() ** 0.5


@pytest.mark.server
def test_load_is_balanced_and_memory_is() -> None:
    small = FluxLine("", slots=8, groups_of_slot=16, loaded=1, seconds=12.0, tail_s=2.0)
    static, moved = run_flux(small), run_flux(replace(small, policy="flux-load"))
    assert static.steady == pytest.approx(8 * LOADED * WHOLE, rel=0.01)
    assert moved.steady > 1.7 * static.steady
    assert moved.moved >= 4
    assert moved.rounds > 10
    short = FluxLine(
        "", slots=4, groups_of_slot=16, group_bytes=2e6, memory=((1, 20e6),), seconds=20.0, tail_s=2
    )
    static, moved = run_flux(short), run_flux(replace(short, policy="flux-memory"))
    assert static.steady_latency_s > 100 * moved.steady_latency_s
    assert moved.steady_latency_s == pytest.approx(SERVICE_S)
    assert moved.steady > 1.2 * static.steady
    again = run_flux(replace(short, policy="flux-memory"))
    measured = {"decision_ms": 0.0, "cpu_s": 0.0}
    assert replace(again, **measured) == replace(moved, **measured)


# --- claims and page -------------------------------------------------------------------------


def outcome(name: str, **given_: Any) -> FluxOutcome:
    plain: dict[str, Any] = {
        "throughput": [700e3] * 60,
        "latency_s": [4.55e-5] * 60,
        "steady": 700e3,
        "steady_latency_s": 4.55e-5,
        "whole": 700e3,
        "moved": 0,
        "last_move_s": 0.0,
        "moving": 0.0,
        "rounds": 0,
        "decision_ms": 0.0,
        "cpu_s": 0.1,
    }
    return FluxOutcome(name=name, **(plain | given_))


def done(experiment: FluxExperiment) -> FluxDone:
    found: dict[str, FluxOutcome] = {}
    for number, line in enumerate(experiment.lines):
        slow = 300e3 if "static" in line.name or "apart" in line.name else 690e3 - number
        late = 0.3 if "static" in line.name and line.memory else 4.55e-5
        found[line.name] = outcome(
            line.name,
            steady=slow,
            throughput=[700e3] * 3 + [slow] * 57,
            latency_s=[4.55e-5] * 3 + [late] * 57,
            steady_latency_s=late,
            rounds=3 if line.policy else 0,
            moved=5 if line.policy else 0,
        )
    return FluxDone(experiment, found, 1.0, digest(experiment))


@pytest.mark.parametrize("experiment", flux_experiments(), ids=lambda each: each.figures[0])
def test_every_experiment_is_judged_shown_and_kept(experiment: FluxExperiment) -> None:
    made = done(experiment)
    assert made.claims
    assert all(claim.paper and claim.ours for claim in made.claims)
    section = page.figure_section(made)
    assert all(line.name in section for line in experiment.lines)
    assert [figure for figure, _ in made.charts] == [each.figure for each in experiment.pictures]
    assert all(chart.startswith("<svg") for _, chart in made.charts)
    (again,) = page.restore(page.dump([made]), [experiment])
    assert again == made
    assert {each.figure for each in experiment.pictures} <= set(experiment.figures)


def test_a_line_with_other_figures_is_left_out() -> None:
    made = done(flux_experiments()[0])
    text = page.dump([made]).replace('"moved"', '"shifted"')
    assert page.restore(text, [made.experiment]) == []


def test_a_chart_has_a_point_for_each_line_of_a_curve() -> None:
    made = done(flux_experiments()[1])
    wanted = made.experiment.pictures[1]
    assert flux_picture(wanted, made.outcomes).count("<path") == len(wanted.curves)
