"""What groups are to expect by the day before, against sums written out."""

from __future__ import annotations

from collections.abc import Iterable
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
from spillway.engine.statistics import _spread, rates
from spillway.policy.arrivals import TAU_MS
from spillway.policy.expected import expected_loss
from spillway.policy.forecast import KNOWN_ROWS, PRIOR, Forecast, Profile, rows_expected, trusted
from spillway.protocol.state import JournalState
from spillway.stream.day_before import BIN_MS, DayBefore, _newest, _sums, day_before
from spillway.stream.run import Wanted, Watcher
from spillway.stream.service import Stream
from spillway.tables import Warehouse
from spillway.tables.errors import DamagedTable
from spillway_schemas.journal import EventTime, Prefix, Sealed
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
    assert found.to_come.tolist() == [0, 10]
    # Both look back: the second group's rows have not begun to come.
    assert found.present == pytest.approx([10 / 300_000, 0], rel=0.01)
    assert found.usual == pytest.approx([10 / 300_000, 4 / 300_000])
    assert (found.known_ms, found.left_ms) == (300_000, 300_000)
    for since_ms in (0, -150_000, -7e9):
        first = wide.at(since_ms, 600_000)
        assert first.to_come.tolist() == [10, 10]
        assert first.present.tolist() == [0, 0]
        assert first.usual == pytest.approx([0, 4 / TAU_MS])


def _recent(profile: Profile, now_ms: int, epoch_ms: int = 1000) -> np.ndarray:
    """What the stream's count of recent rows would be, epoch by epoch."""
    recent = np.zeros(len(profile.rows))
    for began_ms in range(0, now_ms, epoch_ms):
        came = profile.until(began_ms + epoch_ms) - profile.until(began_ms)
        recent = recent * 0.5 ** (epoch_ms / 30_000) + came * _spread(epoch_ms)
    return recent


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5000)), min_size=1, max_size=8),
    st.sampled_from([1000, 15_000, 60_000]),
    st.data(),
)
def test_a_profile_sees_rates_as_the_stream_does(
    intervals: list[tuple[int, int]], epoch_ms: int, data: st.DataObject
) -> None:
    """On a day on which rows came as evenly in each interval as the profile takes them to."""
    minutes, rows = (np.cumsum([0, *each]) for each in zip(*intervals, strict=True))
    profile = Profile(minutes * 60_000, rows[None].astype(np.float64))
    now_ms = data.draw(st.integers(1, int(minutes[-1]) * 60_000 // epoch_ms)) * epoch_ms
    recent = _recent(profile, now_ms, epoch_ms)
    present, usual = rates(profile.until(now_ms), recent, np.ones(1), 1 + now_ms)
    found = profile.at(now_ms, 1000)
    assert found.present == pytest.approx(present, rel=1e-9, abs=1e-15)
    assert found.usual == pytest.approx(usual, rel=1e-12)


def test_a_session_that_was_shorter_says_nothing_of_later_hours() -> None:
    wide = replace(TWO, at_ms=TWO.at_ms * 3000)
    found = wide.at(600_000, 500_000)
    assert (found.known_ms, found.left_ms) == (300_000, 500_000)
    assert found.to_come.tolist() == [0, 10]
    late = wide.at(1_000_000, 500_000)
    assert (late.known_ms, late.to_come.tolist()) == (0, [0, 0])


def test_some_groups_have_what_is_said_of_them() -> None:
    whole = TWO.at(200, 100)
    mine = whole.of(np.array([1]))
    for name in ("to_come", "present", "usual"):
        both = getattr(whole, name).tolist()
        assert both[0] != both[1]
        assert getattr(mine, name).tolist() == both[1:]
    assert (mine.known_ms, mine.left_ms) == (100, 100)


# --- what is expected

COUNTS = st.lists(st.integers(0, 500), min_size=3, max_size=3)
RATES = st.lists(st.just(0.0) | st.floats(1e-6, 5), min_size=3, max_size=3)


@given(COUNTS, COUNTS, RATES, RATES, RATES, RATES, COUNTS, st.sampled_from([0.0, 40.0, 100.0]))
def test_expected_rows_are_the_sums_written_out(
    came: list[int],
    coming: list[int],
    rate: list[float],
    rate_then: list[float],
    usual: list[float],
    usual_then: list[float],
    by_rates: list[int],
    known_ms: float,
) -> None:
    arrays = (np.array(each, dtype=np.float64) for each in (coming, rate_then, usual_then))
    forecast = Forecast(*arrays, known_ms, 100.0)
    today = np.array(came), np.array(rate), np.array(usual)
    found = rows_expected(forecast, *today, np.array(by_rates, dtype=np.float64))
    then = [t * (c / u if u else 0) for t, c, u in zip(usual_then, came, usual, strict=True)]
    level = sum(came) / sum(then) if sum(then) else 1.0
    scale = [(c + KNOWN_ROWS * level) / (t + KNOWN_ROWS) for c, t in zip(came, then, strict=True)]
    off_then = [(a - b) * s for a, b, s in zip(rate_then, usual_then, scale, strict=True)]
    off_now = [a - b for a, b in zip(rate, usual, strict=True)]
    prior = PRIOR * sum(u * u for u in usual)
    both = sum(a * b for a, b in zip(off_then, off_now, strict=True)) + prior
    squares = sum(a * a for a in off_then) + prior
    trust = min(max(both / squares, 0.0), 1.0) if squares else 1.0
    now_squares = sum(a * a for a in off_now)
    more = [b - u * 100 for b, u in zip(by_rates, usual, strict=True)]
    lasting = (
        sum(a * b for a, b in zip(more, off_now, strict=True)) / now_squares if now_squares else 0
    )
    for g in range(3):
        change = (coming[g] - usual_then[g] * known_ms) * scale[g]
        explained = known_ms / 100 * lasting * off_then[g]
        wanted = max(by_rates[g] + trust * (change - explained), 0)
        assert found[g] == pytest.approx(wanted, rel=1e-6, abs=1e-6)


RATES_TWO = st.lists(st.integers(1, 5000).map(lambda n: n / 1000), min_size=2, max_size=2)
"""Not apart by rounding alone: `by_rates` is drawn beside them, and would be no rate's."""


@given(RATES_TWO, RATES_TWO, COUNTS)
def test_a_day_without_a_change_says_what_the_rates_say(
    usual: list[float], present: list[float], by_rates: list[int]
) -> None:
    """As when half of the groups are twice as busy, and nothing of that was the day before."""
    flat = Profile(np.array([0, 9_000_000]), np.array([[0.0, 900.0], [0.0, 700.0]]))
    rates = np.array(by_rates[:2], dtype=np.float64)
    today = np.array([300, 300]), np.array(present), np.array(usual)
    found = rows_expected(flat.at(3_000_000, 6_000_000), *today, rates)
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("level", [1.0, 3.0])
@pytest.mark.parametrize("lasting", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("minutes", [55, 59.5, 60, 60.5, 62, 90, 119, 121])
def test_a_day_that_repeats_the_one_before_gives_what_came_then(
    level: float, lasting: float, minutes: float
) -> None:
    """Also around its changes, which come after one and two hours: today's present rate is what
    the stream would see, by sums of its own."""
    counts = np.array([[0, 9_000, 90_000, 90_000], [0, 90_000, 91_000, 180_000]], dtype=np.float64)
    then = Profile(np.array([0, 1, 2, 3]) * 3_600_000, counts)
    now_ms = int(minutes * 60_000)
    left_ms = 3 * 3_600_000 - now_ms
    came = then.until(now_ms) * level
    present, usual = rates(came, _recent(then, now_ms) * level, np.ones(2), 1 + now_ms)
    by_rates = np.maximum(usual + lasting * (present - usual), 0) * left_ms
    now = then.at(now_ms, left_ms)
    found = rows_expected(now, came.round().astype(np.int64), present, usual, by_rates)
    later = (counts[:, 3] - then.until(now_ms)) * level
    assert found == pytest.approx(later, rel=0.01, abs=200)


def test_a_group_that_is_counted_anew_is_expected_as_before() -> None:
    """Its slot has lost its state an hour ago: what was restored is not counted again."""
    then = Profile(np.array([0, 4, 8]) * 3_600_000, np.array([[0, 40e3, 120e3]] * 2))
    now = then.at(2 * 3_600_000, 6 * 3_600_000)
    usual = np.array([1 / 360, 1 / 360])
    by_rates = usual * 6 * 3_600_000
    came = np.array([20_000, 10_000])
    found = rows_expected(now, came, usual, usual, by_rates)
    assert found == pytest.approx([100_000, 100_000], rel=0.01)


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
        exposure_norm=np.array([9.0, 9.0]),
        session_results=np.array([9, 9]),
        join=np.zeros(2, np.int64),
        root=0,
        inputs=np.array([2, 2]),
        window_ms=one * np.inf,
        left_ms=1000.0,
    )
    assert expected_loss(growth).tolist() == [0, 0]
    coming = Forecast(np.array([50.0, 0.0]), none, none, 1000.0, 1000.0)
    known = replace(growth, forecast=coming)
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
        *((n, [(1, 4, 30 + n // 100, True)]) for n in range(40, 380, 25)),
        (389, [(1, 4, 40, True)]),
        (391, [(1, 4, 77, True)]),  # after the close
    ):
        at_ms(warehouse, OPENS_MS + minutes * 60_000, rows)
    write(warehouse, (OPENS_MS + 50 * 60_000) // 10_000, [(0, 1, 9, True)], TODAY)
    found = day_before(warehouse, state, NAME)
    assert found is not None
    every = list(range(40, 380, 25))
    assert (found.profile.at_ms // 60_000).tolist() == [0, 5, 10, 15, *every, 390]
    assert found.profile.rows[0].tolist() == [3, 10, 21, 25, *[25] * len(every), 25]
    assert found.profile.rows[4].tolist() == [0, 2, 2, 30, *(30 + n // 100 for n in every), 40]
    assert found.profile.rows.sum() == found.profile.rows[[0, 4]].sum()


def test_groups_that_were_split_since_have_their_shares() -> None:
    halves = GroupMap([(Prefix(1, 0), 0), (Prefix(1, 1), 0)])
    counted = DayBefore(halves, Profile(np.array([0, 9]), np.array([[0.0, 8.0], [2.0, 6.0]])))
    assert counted.of(halves) is counted.profile
    other = GroupMap([(Prefix(2, 0), 0), (Prefix(2, 1), 0), (Prefix(1, 1), 1)])
    assert counted.of(other).rows.tolist() == [[0, 4], [0, 4], [2, 6]]
    assert counted.of(GroupMap(other.assignment())) is counted.of(other)
    assert counted.of(GroupMap([(Prefix(0, 0), 0)])).rows.tolist() == [[2, 14]]


def observed(warehouse: Warehouse, minutes: Iterable[int]) -> None:
    for n in minutes:
        at_ms(warehouse, OPENS_MS + n * 60_000, [(0, 0, 10 + n, True)])


def test_a_first_day_and_one_without_figures_know_of_none(tmp_path: Path) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    state = sealed_before()
    assert day_before(warehouse, replace(state, sealed={}), NAME) is None
    assert day_before(warehouse, state, NAME) is None
    observed(warehouse, range(10, 390, 10))
    sunday = {"2026-01-04": state.sealed[BEFORE]}
    assert day_before(warehouse, replace(state, sealed=sunday), NAME) is None
    (session,) = state.sessions
    later = replace(state, sessions=(replace(session, date="2026-01-13"),))
    assert day_before(warehouse, later, NAME) is None
    found = day_before(warehouse, state, NAME)
    assert found is not None
    # Before the first count there was nothing.
    assert found.profile.at_ms[:2].tolist() == [0, 2 * BIN_MS]
    assert found.profile.rows[0][:2].tolist() == [0, 20]


@pytest.mark.parametrize(
    "minutes",
    [range(40, 390, 20), range(20, 350, 20), [*range(20, 101, 20), *range(140, 390, 20)]],
    ids=["from a late start on", "until an early end", "but for a while"],
)
def test_a_session_that_was_seen_in_part_says_nothing(
    tmp_path: Path, minutes: Iterable[int]
) -> None:
    warehouse = new_warehouse(tmp_path, RESULTS)
    observed(warehouse, minutes)
    assert day_before(warehouse, sealed_before(), NAME) is None


# --- groups with other names

TREE = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 15), st.integers(0, 3)), max_size=9)


@given(TREE)
def test_the_newest_row_of_a_hash_has_the_last_word(rows: list[tuple[int, int, int]]) -> None:
    named = [(depth, value % 2**depth, epoch) for depth, value, epoch in rows]
    # In one epoch a hash is told of once.
    apart: list[tuple[int, int, int]] = []
    for each in named:
        own = [e for e in apart if e[2] == each[2]]
        if not any(Prefix(*e[:2]).overlaps(Prefix(*each[:2])) for e in own):
            apart.append(each)
    depths, values, epochs = (
        (np.array(c, dtype=np.int64) for c in zip(*apart, strict=True))
        if (apart)
        else (np.zeros(0, np.int64),) * 3
    )
    wanted = {
        each
        for each in apart
        if not any(
            other[2] > each[2] and Prefix(*other[:2]).overlaps(Prefix(*each[:2]))
            for other in kept_first(apart, each)
        )
    }
    found = _newest(epochs, depths, values)
    assert {apart[n] for n in found.tolist()} == wanted
    assert len(found) == len(wanted)


def kept_first(rows: list[tuple[int, int, int]], of: tuple[int, int, int]) -> list[Any]:
    """Those newer than a row that are themselves not overlapped by a newer one."""
    newer = sorted((each for each in rows if each[2] > of[2]), key=lambda e: -e[2])
    kept: list[tuple[int, int, int]] = []
    for each in newer:
        if not any(o[2] > each[2] and Prefix(*o[:2]).overlaps(Prefix(*each[:2])) for o in kept):
            kept.append(each)
    return kept


def test_splits_and_merges_count_nothing_twice() -> None:
    """An odd count that was split, a merged group that was split again, a slot that begins anew."""
    counted = [
        np.array([1001.0, 300.0, 700.0, 90.0]),
        np.array([500.5, 505.0, 505.0, 4.0]),
        np.array([501.0, 600.0, 800.0, 10.0]),
    ]
    counted[0][0] = 500.5
    counted[1][0] = 500.0
    assert _sums(counted).tolist() == [
        [500.5, 500.5, 501.0],
        [300, 505, 600],
        [700, 700, 800],
        [90, 94, 100],
    ]


@pytest.mark.parametrize("error", [pa.ArrowInvalid, OSError, DamagedTable, calendar.CalendarError])
@pytest.mark.parametrize(
    ("calendar_", "forecast", "reactivation", "found", "told"),
    [
        (NAME, "automatic", "off", "known", []),
        (NAME, "automatic", "expected-gain", "old", []),
        (NAME, "day-before", "expected-gain", "known", []),
        (NAME, "off", "off", "old", []),
        ("", "day-before", "off", "old", []),
        (
            NAME,
            "automatic",
            "off",
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
    reactivation: str,
    found: str | None,
    told: list[str],
    error: type[Exception],
) -> None:
    def looked(*_: object) -> str:
        if found is None:
            raise error("a file is damaged")
        return "known"

    troubles: list[str] = []
    settings = Settings(spill=SpillSettings(forecast=forecast))
    watcher = Watcher(on_trouble=troubles.append)
    stream: Any = Stream(settings, load_query("symbol"), Wanted(), watcher, lambda: 0)
    stream.warehouse = new_warehouse(tmp_path, RESULTS)
    stream.driver = SimpleNamespace(state=sealed_before())
    given = SimpleNamespace(calendar=calendar_, reactivation=reactivation)
    stream.job = SimpleNamespace(settings=given, before="old")
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


@pytest.mark.parametrize(
    "other",
    [
        {"event_time": EventTime(lateness_us=0, ahead_us=0, topics=["a"])},
        {"parents": [1, -1]},
    ],
)
def test_of_windows_and_trees_the_day_before_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    """There it would change no choice."""
    stream: Any = Stream(Settings(), load_query("symbol"), Wanted(), Watcher(), lambda: 0)
    state = sealed_before()
    genesis = state.genesis.model_copy(update=other)
    stream.driver = SimpleNamespace(state=replace(state, genesis=genesis))
    given = SimpleNamespace(calendar=NAME, reactivation="off")
    stream.job = SimpleNamespace(settings=given, before=None)
    monkeypatch.setattr("spillway.stream.service.day_before", lambda *_: pytest.fail("it was read"))
    stream._look_at_the_day_before()
