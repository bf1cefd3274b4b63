"""Timetables against the exchange's own announcements, by hand: 2024 to 2026."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.exceptions import InvalidPartitionKeyError
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.utils.types import DagRunType

from spillway import calendar as exchange
from spillway_airflow import timetables
from spillway_airflow.timetables import (
    MarketCloseTimetable,
    MarketHoursTimetable,
    NightlyTimetable,
)

NEW_YORK = ZoneInfo("America/New_York")
TEN = timedelta(minutes=10)

EARLY = [
    "2024-07-03",
    "2024-11-29",
    "2024-12-24",
    "2025-07-03",
    "2025-11-28",
    "2025-12-24",
    "2026-11-27",
    "2026-12-24",
]
"""13:00 in New York."""
HOLIDAYS = [
    "2024-01-01",
    "2024-01-15",
    "2024-02-19",
    "2024-03-29",
    "2024-05-27",
    "2024-06-19",
    "2024-07-04",
    "2024-09-02",
    "2024-11-28",
    "2024-12-25",
    "2025-01-01",
    "2025-01-09",
    "2025-01-20",
    "2025-02-17",
    "2025-04-18",
    "2025-05-26",
    "2025-06-19",
    "2025-07-04",
    "2025-09-01",
    "2025-11-27",
    "2025-12-25",
    "2026-01-01",
    "2026-01-19",
    "2026-02-16",
    "2026-04-03",
    "2026-05-25",
    "2026-06-19",
    "2026-07-03",
    "2026-09-07",
    "2026-11-26",
    "2026-12-25",
]
"""2025-01-09 was a day of mourning."""


def at(text: str, zone: Any = UTC) -> pendulum.DateTime:
    return pendulum.instance(datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC))


def between(earliest: str | None, latest: str | None = None, catchup: bool = True) -> Any:
    return TimeRestriction(earliest and at(earliest), latest and at(latest), catchup)


def days(timetable: MarketCloseTimetable, first: str, last: str) -> list[DagRunInfo]:
    found = timetable.iter_partition_dagrun_infos(earliest=at(first), latest=at(last))
    return list(found)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the present."""

    def set_to(text: str, zone: Any = UTC) -> None:
        moment = at(text, zone)

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.fromtimestamp(moment.timestamp(), tz)

        monkeypatch.setattr(timetables, "datetime", Clock)

    return set_to


def test_three_years_of_closes() -> None:
    """Every weekday that is no holiday has a run, ten minutes after 16:00 or 13:00 there."""
    found = {i.partition_key: i for i in days(MarketCloseTimetable(), "2024-01-01", "2026-12-31")}
    day = datetime(2024, 1, 1, tzinfo=UTC)
    wanted = {}
    while day.year < 2027:
        name = day.strftime("%Y-%m-%d")
        if day.weekday() < 5 and name not in HOLIDAYS:
            hour = 13 if name in EARLY else 16
            wanted[name] = at(f"{name} {hour}:10", NEW_YORK)
        day += timedelta(days=1)
    assert {key: info.run_after for key, info in found.items()} == wanted
    for key, info in found.items():
        assert info.partition_date == at(key)
        assert info.data_interval is None


@pytest.mark.parametrize(
    ("day", "utc"),
    [
        ("2025-03-07", "21:10"),  # the Friday before the clocks go forward
        ("2025-03-10", "20:10"),
        ("2025-10-31", "20:10"),  # ... and before they go back
        ("2025-11-03", "21:10"),
        ("2025-07-03", "17:10"),
        ("2025-11-28", "18:10"),
    ],
)
def test_closes_over_clock_changes(day: str, utc: str) -> None:
    (only,) = days(MarketCloseTimetable(), day, day)
    assert only.run_after == at(f"{day} {utc}")


def test_runs_follow_one_another_in_catch_up() -> None:
    """After an outage of two weeks over Christmas every session has its run, in order."""
    timetable = MarketCloseTimetable(delay=TEN)
    last, keys = None, []
    while last is None or last.partition_key < "2026-01-05":
        last = timetable.next_dagrun_info_v2(
            last_dagrun_info=last, restriction=between("2025-12-22 12:00")
        )
        keys.append(last.partition_key)
    assert keys == [
        "2025-12-22",
        "2025-12-23",
        "2025-12-24",
        "2025-12-26",
        "2025-12-29",
        "2025-12-30",
        "2025-12-31",
        "2026-01-02",
        "2026-01-05",
    ]


def test_without_catch_up_only_the_last_missed_session_runs(now: Any) -> None:
    timetable = MarketCloseTimetable(delay=TEN)
    last = days(timetable, "2025-12-22", "2025-12-22")[0]
    given = {"last_dagrun_info": last, "restriction": between("2025-12-01", catchup=False)}
    now("2026-01-05 12:00")
    assert timetable.next_dagrun_info_v2(**given).partition_key == "2026-01-02"
    now("2026-01-05 16:09", NEW_YORK)
    assert timetable.next_dagrun_info_v2(**given).partition_key == "2026-01-02"
    now("2026-01-05 16:10", NEW_YORK)
    assert timetable.next_dagrun_info_v2(**given).partition_key == "2026-01-05"
    first = timetable.next_dagrun_info_v2(
        last_dagrun_info=None, restriction=between("2025-12-01", catchup=False)
    )
    assert first.partition_key == "2026-01-05"


@pytest.mark.parametrize(
    ("last", "present", "keys"),
    [
        # A first install, long after the start date: one run, not hundreds.
        (None, "2026-01-05 12:00", ["2026-01-02"]),
        (None, "2026-01-05 21:10", ["2026-01-05"]),
        # An outage over a weekend.
        ("2026-01-08", "2026-01-12 12:00", ["2026-01-09"]),
        ("2026-01-08", "2026-01-12 21:10", ["2026-01-09", "2026-01-12"]),
        # ... over three sessions and a holiday.
        ("2025-12-23", "2025-12-29 22:00", ["2025-12-24", "2025-12-26", "2025-12-29"]),
        ("2026-01-05", "2026-01-05 22:00", []),  # nothing was missed
    ],
)
def test_every_session_gets_a_run_once_there_was_one(
    now: Any, last: str | None, present: str, keys: list[str]
) -> None:
    now(present)
    timetable = MarketCloseTimetable(delay=TEN, every_session=True)
    run = None if last is None else days(timetable, last, last)[0]
    due = []
    while True:
        run = timetable.next_dagrun_info_v2(
            last_dagrun_info=run, restriction=between("2025-06-01", catchup=False)
        )
        assert run is not None
        if run.run_after > at(present):
            break
        due.append(run.partition_key)
    assert due == keys


def test_every_session_begins_with_the_start_date(now: Any) -> None:
    now("2026-01-12 12:00")
    timetable = MarketCloseTimetable(delay=TEN, every_session=True)
    found = timetable.next_dagrun_info_v2(
        last_dagrun_info=days(timetable, "2025-12-01", "2025-12-01")[0],
        restriction=between("2026-01-07", catchup=False),
    )
    assert found is not None
    assert found.partition_key == "2026-01-07"


@pytest.mark.parametrize(
    ("earliest", "first"),
    [
        ("2026-01-05 21:10", "2026-01-05"),
        ("2026-01-05 21:10:01", "2026-01-06"),
        ("2026-01-03 00:00", "2026-01-05"),  # a Saturday
    ],
)
def test_the_start_date_counts_for_the_run_not_for_the_close(earliest: str, first: str) -> None:
    found = MarketCloseTimetable(delay=TEN).next_dagrun_info_v2(
        last_dagrun_info=None, restriction=between(earliest)
    )
    assert found is not None
    assert found.partition_key == first


def test_nothing_runs_after_the_end_date() -> None:
    timetable = MarketCloseTimetable(delay=TEN)
    for latest, runs in (("2026-01-05 21:10", True), ("2026-01-05 21:09", False)):
        found = timetable.next_dagrun_info_v2(
            last_dagrun_info=None, restriction=between("2026-01-05", latest)
        )
        assert (found is not None) == runs


def test_the_horizon_is_told_and_passes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timetable = MarketCloseTimetable()
    hours = MarketHoursTimetable(timedelta(minutes=1))
    end = exchange.horizon("XNYS")
    (last,) = days(timetable, end, end)
    beyond = between(f"{end} 23:59")
    assert timetable.next_dagrun_info_v2(last_dagrun_info=last, restriction=beyond) is None
    assert f"XNYS is known until {end}" in caplog.text
    assert hours.next_dagrun_info(last_automated_data_interval=None, restriction=beyond) is None
    # A year later the calendar, made anew, reaches further.
    monkeypatch.setattr(exchange, "AHEAD_DAYS", 2 * 365)
    exchange._made.cache_clear()
    try:
        later = timetable.next_dagrun_info_v2(last_dagrun_info=last, restriction=beyond)
    finally:
        monkeypatch.undo()
        exchange._made.cache_clear()
    assert later is not None
    assert later.partition_key > end


DIFFERENT = "XNYS; 2026-07-06 closed; 2026-07-08 12:00"
"""A holiday after the long weekend, and an early close, which the calendar does not know."""


def test_days_that_are_different_this_time_have_no_run_or_an_early_one() -> None:
    kept = MarketCloseTimetable(DIFFERENT, TEN).serialize()
    timetable = MarketCloseTimetable.deserialize(kept)
    assert isinstance(timetable, MarketCloseTimetable)
    found = days(timetable, "2026-07-02", "2026-07-09")
    assert {each.partition_key: each.run_after for each in found} == {
        "2026-07-02": at("2026-07-02 20:10"),
        "2026-07-07": at("2026-07-07 20:10"),
        "2026-07-08": at("2026-07-08 16:10"),
        "2026-07-09": at("2026-07-09 20:10"),
    }
    # The holiday was announced after the last run, or when that day had its run already.
    for last in ("2026-07-02", "2026-07-06"):
        (run,) = days(MarketCloseTimetable(delay=TEN), last, last)
        after = timetable.next_dagrun_info_v2(
            last_dagrun_info=run, restriction=between("2026-07-01")
        )
        assert after is not None
        assert after.partition_key == "2026-07-07"


def test_a_run_by_hand_without_a_key_moves_nothing_on() -> None:
    timetable = MarketCloseTimetable(delay=TEN)
    by_hand = DagRunInfo.exact(at("2026-01-05 21:10"))
    found = timetable.next_dagrun_info_v2(
        last_dagrun_info=by_hand, restriction=between("2025-12-01")
    )
    assert found is not None
    assert found.partition_key == "2026-01-06"


def test_partition_keys_are_dates() -> None:
    timetable = MarketCloseTimetable()
    assert timetable.resolve_partition_date("2026-01-05") == at("2026-01-05")
    with pytest.raises(InvalidPartitionKeyError, match="YYYY-MM-DD"):
        timetable.resolve_partition_date("yesterday")


def test_run_ids_name_the_session_and_differ() -> None:
    timetable = MarketCloseTimetable()
    ids = {
        timetable.generate_run_id(
            run_type=DagRunType.SCHEDULED,
            run_after=at("2026-01-06"),
            data_interval=None,
            partition_key="2026-01-05",
        )
        for _ in range(3)
    }
    assert len(ids) == 3
    assert all("2026-01-05" in each for each in ids)


@pytest.mark.parametrize(
    "timetable",
    [
        MarketCloseTimetable("XLON", timedelta(seconds=90)),
        MarketCloseTimetable(every_session=True),
        MarketHoursTimetable(timedelta(seconds=30), "XTKS"),
        MarketHoursTimetable(timedelta(hours=24), lead=timedelta(minutes=30)),
        NightlyTimetable("01:30", "XLON"),
    ],
)
def test_serialisation(timetable: Any) -> None:
    again = type(timetable).deserialize(timetable.serialize())
    assert vars(again) == vars(timetable)
    assert again.summary == timetable.summary


# --- while the market is open ----------------------------------------------------------------


def tick(
    timetable: MarketHoursTimetable | NightlyTimetable, last: str | None, earliest: str, **more: Any
) -> Any:
    interval = None if last is None else DataInterval.exact(at(last))
    return timetable.next_dagrun_info(
        last_automated_data_interval=interval, restriction=between(earliest, **more)
    )


@pytest.mark.parametrize(
    ("last", "then"),
    [
        (None, "2026-01-05 14:30"),
        ("2026-01-05 14:30", "2026-01-05 14:45"),
        ("2026-01-05 20:59:59", "2026-01-05 21:00"),  # the close itself
        ("2026-01-05 21:00", "2026-01-06 14:30"),
        ("2026-01-09 21:00", "2026-01-12 14:30"),  # a weekend
        ("2025-11-28 18:00", "2025-12-01 14:30"),  # an early close
        ("2025-03-07 21:00", "2025-03-10 13:30"),  # the clocks went forward
    ],
)
def test_ticks_lie_in_sessions(last: str | None, then: str) -> None:
    timetable = MarketHoursTimetable(timedelta(minutes=15))
    earliest = "2026-01-05" if last is None else "2024-01-01"
    assert tick(timetable, last, earliest).run_after == at(then)


@pytest.mark.parametrize(
    ("last", "then"),
    [("2026-07-02 20:00", "2026-07-07 13:30"), ("2026-07-08 16:00", "2026-07-09 13:30")],
)
def test_there_are_no_ticks_on_a_day_that_is_closed_this_time(last: str, then: str) -> None:
    timetable = MarketHoursTimetable(timedelta(minutes=15), DIFFERENT)
    assert tick(timetable, last, "2024-01-01").run_after == at(then)


@pytest.mark.parametrize(
    ("every", "lead", "last", "then"),
    [
        # One run a session, half an hour before its open.
        (1440, 30, None, "2026-01-05 14:00"),
        (1440, 30, "2026-01-05 14:00", "2026-01-06 14:00"),
        (1440, 30, "2026-01-09 14:00", "2026-01-12 14:00"),  # a weekend
        (1440, 30, "2025-11-26 14:00", "2025-11-28 14:00"),  # a holiday, then an early close
        (1440, 30, "2025-03-07 14:00", "2025-03-10 13:00"),  # the clocks went forward
        (1440, 30, "2025-10-31 13:00", "2025-11-03 14:00"),  # ... and back
        # A lead is a time that passes, not a time of the clocks: these went on by an hour in it.
        (1440, 60 * 48, "2025-03-07 21:00", "2025-03-08 13:30"),
        (15, 20, None, "2026-01-05 14:10"),
        (15, 20, "2026-01-05 14:10", "2026-01-05 14:25"),
        (15, 20, "2026-01-05 20:55", "2026-01-06 14:10"),  # 21:10 is after the close
    ],
)
def test_a_lead_begins_before_the_open(every: int, lead: int, last: str | None, then: str) -> None:
    timetable = MarketHoursTimetable(timedelta(minutes=every), lead=timedelta(minutes=lead))
    earliest = "2026-01-05" if last is None else "2024-01-01"
    assert tick(timetable, last, earliest).run_after == at(then)


def test_a_session_that_never_ends_has_one_run_a_day_with_a_lead() -> None:
    timetable = MarketHoursTimetable(timedelta(hours=24), "24/7", lead=timedelta(minutes=30))
    first = tick(timetable, "2026-01-05 23:30", "2024-01-01").run_after
    assert first == at("2026-01-06 23:30")


def test_missed_ticks_are_not_made_up_for(now: Any) -> None:
    timetable = MarketHoursTimetable(timedelta(minutes=1))
    now("2026-01-05 16:00:30")
    found = tick(timetable, "2026-01-02 15:00", "2025-01-01", catchup=False)
    assert found.run_after == at("2026-01-05 16:00")
    again = tick(timetable, "2026-01-05 16:00", "2025-01-01", catchup=False)
    assert again.run_after == at("2026-01-05 16:01")


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="before the close"):
        MarketCloseTimetable(delay=-TEN)
    with pytest.raises(ValueError, match="time between"):
        MarketHoursTimetable(timedelta(0))
    with pytest.raises(ValueError, match="after the open"):
        MarketHoursTimetable(TEN, lead=-TEN)
    with pytest.raises(ValueError, match="hours and minutes"):
        NightlyTimetable("3 o'clock")
    with pytest.raises(ValueError, match="the exchange's own"):
        NightlyTimetable("03:00+01:00")


# --- at night --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timetable", "last", "then"),
    [
        (NightlyTimetable(), None, "2026-01-05 08:00"),
        (NightlyTimetable(), "2026-01-05 08:00", "2026-01-06 08:00"),
        (NightlyTimetable(), "2026-01-09 08:00", "2026-01-10 08:00"),  # Saturdays too
        (NightlyTimetable(), "2026-03-07 08:00", "2026-03-08 07:00"),  # the clocks go forward
        (NightlyTimetable(), "2026-10-31 07:00", "2026-11-01 08:00"),  # ... and back
        (NightlyTimetable("02:30"), "2026-03-07 07:30", "2026-03-08 07:30"),  # there is no 02:30
        (NightlyTimetable("02:30"), "2026-03-08 07:30", "2026-03-09 06:30"),
        (NightlyTimetable("01:30"), "2026-10-31 05:30", "2026-11-01 05:30"),  # there are two
        (NightlyTimetable("01:30"), "2026-11-01 05:30", "2026-11-02 06:30"),
        (NightlyTimetable("03:00", "XTKS"), "2026-01-05 18:00", "2026-01-06 18:00"),
    ],
)
def test_one_run_a_night_on_the_exchange_s_clocks(
    timetable: NightlyTimetable, last: str | None, then: str
) -> None:
    earliest = "2026-01-05" if last is None else "2024-01-01"
    found = tick(timetable, last, earliest)
    assert found.run_after == at(then)
    assert found.data_interval == DataInterval.exact(at(then))


def test_missed_nights_are_not_made_up_for(now: Any) -> None:
    now("2026-01-05 12:00")
    found = tick(NightlyTimetable(), "2025-12-20 08:00", "2025-01-01", catchup=False)
    assert found.run_after == at("2026-01-06 08:00")
    assert tick(NightlyTimetable(), None, "2026-01-05", latest="2026-01-05 07:59") is None
