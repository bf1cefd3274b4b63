"""The exchange's calendar."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from spillway import calendar


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
