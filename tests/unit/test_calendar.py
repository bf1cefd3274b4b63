"""The exchange's calendar."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spillway import calendar
from spillway_schemas.setting_fields import SessionSettings


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("date", "after"),
    [
        ("2026-01-05", "2026-01-06"),
        ("2026-01-02", "2026-01-05"),  # a weekend
        ("2026-01-03", "2026-01-05"),  # a Saturday is no session
        ("2025-12-24", "2025-12-26"),  # Christmas
    ],
)
def test_session_after(date: str, after: str) -> None:
    assert calendar.session_after("XNYS", date) == after


def test_closes() -> None:
    assert calendar.close_ms("XNYS", "2026-01-05") == ms("2026-01-05T21:00:00")
    assert calendar.close_ms("XNYS", "2025-12-24") == ms("2025-12-24T18:00:00")  # 13:00 there
    assert calendar.close_ms("XNYS", "2026-07-06") == ms("2026-07-06T20:00:00")  # summer time
    assert calendar.previous_close_ms("XNYS", "2026-01-05") == ms("2026-01-02T21:00:00")
    with pytest.raises(calendar.CalendarError, match="not a trading day"):
        calendar.close_ms("XNYS", "2026-01-04")


def test_open_or_next() -> None:
    assert calendar.open_or_next("XNYS", ms("2026-01-05T15:00:00")) == "2026-01-05"
    assert calendar.open_or_next("XNYS", ms("2026-01-05T22:00:00")) == "2026-01-06"
    assert calendar.open_or_next("XNYS", ms("2026-01-03T12:00:00")) == "2026-01-05"


def test_what_the_calendar_does_not_know() -> None:
    with pytest.raises(calendar.CalendarError, match="not an exchange calendar"):
        calendar.session_after("NOWHERE", "2026-01-05")
    with pytest.raises(calendar.CalendarError, match="not a date"):
        calendar.session_after("XNYS", "today-ish")
    with pytest.raises(calendar.CalendarError, match="reaches further"):
        calendar.session_after("XNYS", "2099-01-05")


def test_every_day_of_utc_or_of_a_zone() -> None:
    assert calendar.session_after("24/7", "2026-01-02") == "2026-01-03"
    assert calendar.close_ms("24/7", "2026-01-03") == ms("2026-01-04T00:00:00")
    # There clocks have not changed since 2019.
    assert calendar.session_after("24/7 America/Sao_Paulo", "2026-01-02") == "2026-01-03"
    berlin = "24/7 Europe/Berlin"
    assert calendar.zone(berlin) == "Europe/Berlin"
    assert calendar.session_after(berlin, "2026-12-25") == "2026-12-26"
    assert calendar.close_ms(berlin, "2026-03-28") == ms("2026-03-28T23:00:00")
    assert calendar.close_ms(berlin, "2026-03-29") == ms("2026-03-29T22:00:00")  # 23 hours long
    assert calendar.previous_close_ms(berlin, "2026-03-29") == ms("2026-03-28T23:00:00")
    assert calendar.open_or_next(berlin, ms("2026-03-29T21:59:00")) == "2026-03-29"
    assert calendar.open_or_next(berlin, ms("2026-03-29T22:00:00")) == "2026-03-30"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("24/7 Mars/Olympus", "'Mars/Olympus' is not a time zone"),
        ("24/7 ../etc", "is not a time zone"),
        ("24/7 Europe", "'Europe' is not a time zone"),
        ("24/7 Africa/Cairo", "in Africa/Cairo clocks change at midnight"),
        ("24/6", "is not an exchange calendar.*Where there is no exchange write '24/7'"),
    ],
)
def test_days_that_there_are_not(name: str, problem: str) -> None:
    with pytest.raises(calendar.CalendarError, match=problem):
        calendar.session_after(name, "2026-01-05")


DIFFERENT = "XNYS; 2026-07-06 closed; 2026-07-08 12:00; 2026-11-27 11:30"


def test_days_that_are_different_this_time() -> None:
    assert calendar.is_trading_day("XNYS", "2026-07-06")
    assert not calendar.is_trading_day(DIFFERENT, "2026-07-06")
    assert calendar.session_after(DIFFERENT, "2026-07-03") == "2026-07-07"
    assert calendar.close_ms(DIFFERENT, "2026-07-07") == ms("2026-07-07T20:00:00")
    assert calendar.close_ms(DIFFERENT, "2026-07-08") == ms("2026-07-08T16:00:00")
    # An early close that is known is made earlier.
    assert calendar.close_ms("XNYS", "2026-11-27") == ms("2026-11-27T18:00:00")
    assert calendar.close_ms(DIFFERENT, "2026-11-27") == ms("2026-11-27T16:30:00")
    assert calendar.zone(DIFFERENT) == calendar.zone("XNYS")
    with pytest.raises(calendar.CalendarError, match="2026-07-06 is not a trading day"):
        calendar.close_ms(DIFFERENT, "2026-07-06")
    found = calendar.first_closing(DIFFERENT, ms("2026-07-08T15:59:00"))
    assert found is not None
    assert found.close_ms == ms("2026-07-08T16:00:00")
    assert calendar.session_after("XNYS; ", "2026-07-02") == "2026-07-06"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("XNYS; 2026-07-06", "'2026-07-06' is no day that is different; write for example"),
        ("XNYS; 6 July closed", "is no day that is different"),
        ("XNYS; 2026-13-01 closed", "is not a date"),
        ("XNYS; 2039-07-06 closed", "knows .* not 2039-07-06"),
        ("XNYS; 2026-07-06 25:00", "25:00 is no time of day"),
        ("XNYS; 2026-07-06 09:30", "XNYS opens at 2026-07-06 09:30"),
        ("24/7; 2026-07-06 closed", "24/7 has no day that could be different"),
        ("24/7 Europe/Berlin; 2026-07-06 closed", "has no day that could be different"),
        ("NOWHERE; 2026-07-06 closed", "is not an exchange calendar"),
    ],
)
def test_what_is_no_different_day_is_said(name: str, problem: str) -> None:
    with pytest.raises(calendar.CalendarError, match=problem):
        calendar.session_after(name, "2026-07-02")


def test_a_day_that_is_none_anyway_changes_nothing() -> None:
    """A newer package may know a holiday that the settings still name."""
    name = "XNYS; 2026-07-04 closed; 2026-12-25 12:00"
    assert calendar.session_after(name, "2026-07-02") == "2026-07-06"
    assert not calendar.is_trading_day(name, "2026-12-25")


def test_a_session_that_opens_the_evening_before_may_close_at_noon() -> None:
    early = calendar.close_ms("CMES; 2026-11-24 12:00", "2026-11-24")
    assert early == ms("2026-11-24T18:00:00")


def test_the_settings_say_both_together() -> None:
    assert SessionSettings().days == "XNYS"
    assert SessionSettings(overrides=" 2026-07-06 closed ").days == "XNYS; 2026-07-06 closed"
