"""What groups are to expect by the day before, against sums written out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway import calendar
from spillway.decode import tree_spec
from spillway.engine.groups import GroupMap
from spillway.engine.join.results import result_schema
from spillway.policy.expected import expected_loss
from spillway.policy.forecast import KNOWN_ROWS, PRIOR, Forecast, Profile, rows_expected, trusted
from spillway.protocol.state import JournalState
from spillway.stream.day_before import BIN_MS, NEAR_MS, DayBefore, day_before
from spillway.stream.run import Wanted, Watcher
from spillway.stream.service import Stream
from spillway.tables import Warehouse
from spillway_schemas.journal import Prefix, Sealed
from spillway_schemas.query import load_query
from spillway_schemas.setting_fields import SpillSettings
from spillway_schemas.settings import Settings
from tests.new_warehouse import new_warehouse
from tests.report_journal import make_day, model_of
from tests.unit.test_expected_loss import growth_drawn
from tests.unit.test_group_states import write

RESULTS = result_schema(tree_spec(load_query("symbol")))
NAME, BEFORE, TODAY = "XNYS", "2026-01-05", "2026-01-06"
OPENS_MS = int(datetime(2026, 1, 5, 14, 30, tzinfo=UTC).timestamp() * 1000)
CLOSES_MS = int(datetime(2026, 1, 5, 21, 0, tzinfo=UTC).timestamp() * 1000)

TWO = Profile(np.array([0, 100, 300]), np.array([[0.0, 10.0, 10.0], [4.0, 4.0, 24.0]]))


# --- the profile


@pytest.mark.parametrize(
    ("since_ms", "rows"),
    [(-5, [0, 4]), (0, [0, 4]), (50, [5, 4]), (100, [10, 4]), (200, [10, 14]), (999, [10, 24])],
)
def test_between_two_times_rows_come_evenly(since_ms: float, rows: list[float]) -> None:
    assert TWO.until(since_ms).tolist() == rows


def test_a_moment_has_what_came_and_what_will() -> None:
    wide = replace(TWO, at_ms=TWO.at_ms * 3000)
    found = wide.at(300_000, 300_000)
    assert found.came.tolist() == [10, 4]
    assert found.to_come.tolist() == [0, 10]
    assert found.rate == pytest.approx([5 / 300_000, 5 / 300_000])
    assert found.usual == pytest.approx([10 / 300_000, 4 / 300_000])
    # At the very beginning there is no time before.
    first = wide.at(0, 1e9)
    assert first.to_come.tolist() == [10, 20]
    assert first.rate == pytest.approx([5 / 150_000, 0])


def test_other_slots_groups_are_nothing() -> None:
    mine = TWO.at(50, 100).of(np.array([True, False]))
    assert [each.tolist()[1] for each in vars(mine).values()] == [0.0] * 4
    assert mine.came.tolist()[0] == 5


# --- what is expected

COUNTS = st.lists(st.integers(0, 500), min_size=3, max_size=3)
RATES = st.lists(st.floats(0, 5), min_size=3, max_size=3)


@given(COUNTS, COUNTS, COUNTS, RATES, RATES, RATES, RATES, COUNTS)
def test_expected_rows_are_the_sums_written_out(
    came: list[int],
    then: list[int],
    coming: list[int],
    rate: list[float],
    rate_then: list[float],
    usual: list[float],
    usual_then: list[float],
    by_rates: list[int],
) -> None:
    given_: tuple[Any, ...] = (then, coming, rate_then, usual_then)
    forecast = Forecast(*(np.array(each, dtype=np.float64) for each in given_))
    today = np.array(came), np.array(rate), np.array(usual)
    found = rows_expected(forecast, *today, np.array(by_rates, dtype=np.float64))
    level = sum(came) / sum(then) if sum(then) else 1.0
    scale = [(c + KNOWN_ROWS * level) / (t + KNOWN_ROWS) for c, t in zip(came, then, strict=True)]
    off_then = [(a - b) * s for a, b, s in zip(rate_then, usual_then, scale, strict=True)]
    off_now = [a - b for a, b in zip(rate, usual, strict=True)]
    prior = PRIOR * sum(u * u for u in usual)
    both = sum(a * b for a, b in zip(off_then, off_now, strict=True)) + prior
    squares = sum(a * a for a in off_then) + prior
    trust = min(max(both / squares, 0.0), 1.0) if squares else 1.0
    for g in range(3):
        wanted = trust * coming[g] * scale[g] + (1 - trust) * by_rates[g]
        assert found[g] == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_a_day_that_changes_as_the_one_before_is_trusted() -> None:
    usual = np.ones(2)
    off = np.array([3.0, -1.0])
    assert trusted(off, off, usual) == 1
    assert trusted(off, off / 2, usual) == pytest.approx((5 + 0.2) / 10.2)
    assert trusted(off, -off, usual) == 0
    assert trusted(np.zeros(2), off, usual) == 1
    assert trusted(np.zeros(2), off, np.zeros(2)) == 1


def test_a_group_that_will_be_busy_is_dear() -> None:
    """By its rates no row comes any more; the day before says that its hour is to come."""
    growth = growth_drawn(np.random.default_rng(3), 2)
    one, none = np.ones(2), np.zeros(2)
    growth = replace(
        growth,
        rows=np.array([9, 9]),
        came=np.array([9, 9]),
        present=none,
        usual=none,
        spilled_norm=none,
        session_results=np.array([9, 9]),
        join=np.zeros(2, np.int64),
        inputs=np.array([2, 2]),
        window_ms=one * np.inf,
        left_ms=1000.0,
    )
    assert expected_loss(growth).tolist() == [0, 0]
    known = replace(growth, forecast=Forecast(one * 9, np.array([50.0, 0.0]), none, none))
    loss = expected_loss(known)
    assert loss[0] > 10
    assert loss[1] == 0


# --- where it comes from


def sealed_before(depth: int = 3) -> JournalState:
    state = model_of(make_day(2, slots=2, groups_depth=depth).entries).state
    (session,) = state.sessions
    record = Sealed(
        session=BEFORE,
        epoch=-1,
        start={},
        end={},
        ranges=[],
        results=0,
        spilled_rows=0,
        generations=0,
    )
    return replace(state, sessions=(replace(session, date=TODAY),), sealed={BEFORE: record})


def at_ms(warehouse: Warehouse, ms: int, rows: list[tuple[int, int, int, bool]]) -> None:
    """Statistics that were written at a time, where `write` dates them by their epoch."""
    assert ms % 10_000 == 0
    write(warehouse, ms // 10_000, rows, BEFORE)


def test_the_days_counts_are_read_every_five_minutes(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    state = sealed_before()
    for minutes, rows in (
        (-1, [(0, 0, 3, True)]),
        (2, [(0, 0, 7, True)]),  # two minutes before are no five
        (4, [(0, 0, 8, True), (1, 4, 1, True)]),
        (5, [(0, 0, 10, True), (1, 4, 2, True), (1, 5, 99, False)]),
        (9, [(0, 0, 20, True)]),
        (10, [(1, 0, 21, True)]),  # it has moved
        (15, [(1, 0, 4, True), (1, 4, 30, True)]),  # its slot has lost its state
        (389, [(1, 4, 40, True)]),
        (391, [(1, 4, 77, True)]),  # after the close
    ):
        at_ms(warehouse, OPENS_MS + minutes * 60_000, rows)
    write(warehouse, (OPENS_MS + 50 * 60_000) // 10_000, [(0, 1, 9, True)], TODAY)
    found = day_before(warehouse, state, NAME)
    assert found is not None
    assert (found.profile.at_ms // 60_000).tolist() == [0, 5, 10, 15, 390]
    assert found.profile.rows[0].tolist() == [3, 10, 21, 25, 25]
    assert found.profile.rows[4].tolist() == [0, 2, 2, 30, 40]
    assert found.profile.rows.sum() == found.profile.rows[[0, 4]].sum()


def test_groups_that_were_split_since_have_their_shares() -> None:
    halves = GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    counted = DayBefore(halves, Profile(np.array([0, 9]), np.array([[0.0, 8.0], [2.0, 6.0]])))
    assert counted.of(halves) is counted.profile
    other = GroupMap([(Prefix(2, 0), 0), (Prefix(2, 1), 0), (Prefix(1, 1), 1)])
    assert counted.of(other).rows.tolist() == [[0, 4], [0, 4], [2, 6]]
    assert counted.of(GroupMap(other.assignment())) is counted.of(other)
    assert counted.of(GroupMap([(Prefix(0, 0), 0)])).rows.tolist() == [[2, 14]]


def test_a_first_day_and_one_without_figures_know_of_none(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    state = sealed_before()
    assert day_before(warehouse, replace(state, sealed={}), NAME) is None
    assert day_before(warehouse, state, NAME) is None
    sunday = {"2026-01-04": state.sealed[BEFORE]}
    assert day_before(warehouse, replace(state, sealed=sunday), NAME) is None
    at_ms(warehouse, OPENS_MS + BIN_MS, [(0, 0, 3, True)])
    assert day_before(warehouse, state, NAME) is None
    # Before the first count there was nothing.
    at_ms(warehouse, OPENS_MS + 2 * BIN_MS - NEAR_MS, [(0, 0, 5, True)])
    found = day_before(warehouse, state, NAME)
    assert found is not None
    assert found.profile.at_ms.tolist() == [0, BIN_MS, 2 * BIN_MS]
    assert found.profile.rows[0].tolist() == [0, 3, 5]


@pytest.mark.parametrize(
    ("calendar_", "forecast", "found", "told"),
    [
        (NAME, "day-before", "known", []),
        (NAME, "off", "old", []),
        ("", "day-before", "old", []),
        (
            NAME,
            "day-before",
            None,
            ["how rows came in the session before is not known: a file is damaged"],
        ),
    ],
)
def test_a_stream_looks_at_the_day_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calendar_: str,
    forecast: Any,
    found: str | None,
    told: list[str],
) -> None:
    def looked(*_: object) -> str:
        if found is None:
            raise pa.ArrowInvalid("a file is damaged")
        return "known"

    troubles: list[str] = []
    settings = Settings(spill=SpillSettings(forecast=forecast))
    watcher = Watcher(on_trouble=troubles.append)
    stream: Any = Stream(settings, load_query("symbol"), Wanted(), watcher, lambda: 0)
    stream.warehouse = new_warehouse(tmp_path, RESULTS)
    stream.driver = SimpleNamespace(state=sealed_before())
    stream.job = SimpleNamespace(settings=SimpleNamespace(calendar=calendar_), before="old")
    monkeypatch.setattr("spillway.stream.service.day_before", looked)
    stream._look_at_the_day_before()
    assert stream.job.before == found
    assert troubles == told


def test_the_hours_are_the_calendars() -> None:
    assert (calendar.open_ms(NAME, BEFORE), calendar.close_ms(NAME, BEFORE)) == (
        OPENS_MS,
        CLOSES_MS,
    )
    with pytest.raises(calendar.CalendarError):
        calendar.open_ms(NAME, "2026-01-04")
