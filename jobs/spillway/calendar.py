"""The exchange's calendar, or every day: which day is a session, when it closes, which comes next.

Dates are `YYYY-MM-DD` strings, times are milliseconds since 1970 (UTC); the present is an argument,
but for how far ahead the calendar reaches. A calendar is named as the library names it, and days
that are different may follow: `XNYS; 2026-07-06 closed; 2026-11-27 12:00`. The calendar's library
imports pandas, so it is imported on first use.

Known limitation: the calendar reaches about a year ahead (it is made anew every day); a date
beyond it is refused with a message that says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from spillway_schemas.exits import USAGE

AHEAD_DAYS = 365
"""How far ahead the calendar is made: exchanges announce holidays about a year before."""


BACK_YEARS = 4
"""How far back every day of a zone is known: rules of its clocks from before do not matter."""
EVERY_DAY = "24/7"
"""The calendar without holidays: every day of UTC, or of a time zone that is named after it."""


_OVERRIDE = re.compile(r"(\d{4}-\d\d-\d\d) (closed|\d\d:\d\d)")


class CalendarError(ValueError):
    """The calendar does not exist or does not know the date."""

    exit_code = USAGE


class Trading(NamedTuple):
    """A session with its hours."""

    date: str
    open_ms: int
    close_ms: int


def _calendar(name: str) -> Any:
    return _made(name, datetime.now(UTC).date().isoformat())


@lru_cache(maxsize=4)
def _made(name: str, today: str) -> Any:
    """The calendar as of a day: a process that lives for weeks must not keep its first horizon."""
    import exchange_calendars

    end = datetime.fromisoformat(today).date() + timedelta(days=AHEAD_DAYS)
    name, *overrides = (part.strip() for part in name.split(";"))
    if overrides := [each for each in overrides if each]:
        return _overridden(_made(name, today), overrides, end.isoformat())
    if name.startswith(f"{EVERY_DAY} "):
        return _every_day(name, end.isoformat())
    try:
        return exchange_calendars.get_calendar(name, end=end.isoformat())
    except exchange_calendars.errors.InvalidCalendarName:
        known = ", ".join(sorted(exchange_calendars.get_calendar_names())[:12])
        raise CalendarError(
            f"session.calendar = {name!r} is not an exchange calendar; for example: {known}, ... "
            f"Where there is no exchange write {EVERY_DAY!r}, or {EVERY_DAY + ' Europe/Berlin'!r}"
        ) from None


def _overridden(base: Any, overrides: Sequence[str], end: str) -> Any:
    """A calendar in which some days are different."""
    import pandas as pd

    if base.name.startswith(EVERY_DAY):
        raise CalendarError(f"the calendar {base.name} has no day that could be different")
    closed: list[Any] = []
    early: list[tuple[time, Any]] = []
    for each in overrides:
        found = _OVERRIDE.fullmatch(each)
        if found is None:
            raise CalendarError(
                f"session.overrides: {each!r} is no day that is different; write for example "
                "2026-07-06 closed, or 2026-11-27 12:00"
            )
        day = _check(base, found[1])
        if not base.is_session(day):  # a newer package may know it by now
            continue
        if found[2] == "closed":
            closed.append(day)
            continue
        at = _time(each, found[2])
        opens = base.session_open(day).tz_convert(base.tz)
        if pd.Timestamp.combine(day.date(), at).tz_localize(base.tz) <= opens:
            raise CalendarError(
                f"session.overrides: {each!r}: {base.name} opens at {opens:%Y-%m-%d %H:%M}"
            )
        early.append((at, pd.DatetimeIndex([day])))
    kind = type(base)
    changed = {
        "adhoc_holidays": property(lambda self: [*kind.adhoc_holidays.fget(self), *closed]),
        "special_closes_adhoc": property(
            lambda self: [*kind.special_closes_adhoc.fget(self), *early]
        ),
    }
    return type("Overridden", (kind,), changed)(end=end)


def _time(override: str, text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise CalendarError(f"session.overrides: {override!r}: {text} is no time of day") from None


def _every_day(name: str, end: str) -> Any:
    """Every day of a time zone, from midnight to midnight: `24/7 Europe/Berlin`."""
    import zoneinfo

    from exchange_calendars.always_open import AlwaysOpenCalendar
    from pytz.exceptions import NonExistentTimeError

    zone_name = name.removeprefix(f"{EVERY_DAY} ").strip()
    try:
        found = zoneinfo.ZoneInfo(zone_name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # a name may be a folder
        raise CalendarError(
            f"session.calendar = {name!r}: {zone_name!r} is not a time zone of the tz database; "
            f"write for example {EVERY_DAY + ' Europe/Berlin'!r}, or {EVERY_DAY!r} for UTC"
        ) from None
    try:
        made = type("DaysOfZone", (AlwaysOpenCalendar,), {"name": name, "tz": found})
        return made(start=f"{int(end[:4]) - BACK_YEARS}-01-01", end=end)
    except NonExistentTimeError:
        raise CalendarError(
            f"session.calendar = {name!r}: in {zone_name} clocks change at midnight, or have in "
            "the last years, so not every day there has one; name a zone that changes them at "
            f"another hour, or {EVERY_DAY!r} for days of UTC"
        ) from None


def _timestamp(date: str) -> Any:
    import pandas as pd

    return pd.Timestamp(date)


def _check(calendar: Any, date: str) -> Any:
    try:
        day = _timestamp(date)
    except ValueError:
        raise CalendarError(f"{date!r} is not a date; write YYYY-MM-DD") from None
    first, last = calendar.first_session, calendar.last_session
    if not first <= day <= last:
        raise CalendarError(
            f"the calendar {calendar.name} knows {first:%Y-%m-%d} to {last:%Y-%m-%d}, "
            f"not {date}; a newer exchange_calendars package reaches further"
        )
    return day


def session_after(name: str, date: str) -> str:
    """The calendar's first session after a date (which need not be a session itself)."""
    calendar = _calendar(name)
    day = _check(calendar, date)
    found = calendar.date_to_session(day, direction="next")
    if found == day:
        found = calendar.next_session(day)
    return str(found.strftime("%Y-%m-%d"))


def is_trading_day(name: str, date: str) -> bool:
    """Whether a date is a session of the calendar."""
    calendar = _calendar(name)
    return bool(calendar.is_session(_check(calendar, date)))


def close_ms(name: str, date: str) -> int:
    """When the session of a date closes. Raises CalendarError when the date is no session."""
    calendar, day = _session(name, date)
    return int(calendar.session_close(day).timestamp() * 1000)


def open_ms(name: str, date: str) -> int:
    """When the session of a date opens. Raises CalendarError when the date is no session."""
    calendar, day = _session(name, date)
    return int(calendar.session_open(day).timestamp() * 1000)


def _session(name: str, date: str) -> tuple[Any, Any]:
    """A calendar, and a date of it that is a session."""
    calendar = _calendar(name)
    day = _check(calendar, date)
    if not calendar.is_session(day):
        raise CalendarError(
            f"{date} is not a trading day of {name}: it has no close; use --at TIME"
        )
    return calendar, day


def zone(name: str) -> str:
    """The exchange's time zone, as the tz database names it."""
    return str(_calendar(name).tz)


def open_or_next(name: str, now_ms: int) -> str:
    """The session that is open at `now_ms`, or the next one."""
    import pandas as pd

    calendar = _calendar(name)
    moment = pd.Timestamp(now_ms, unit="ms", tz="UTC").floor("min")
    session = calendar.minute_to_session(moment, direction="next")
    return str(session.strftime("%Y-%m-%d"))


def previous_close_ms(name: str, date: str) -> int:
    """When the last session before a date closed."""
    calendar = _calendar(name)
    day = _check(calendar, date)
    found = calendar.date_to_session(day, direction="previous")
    if found == day:
        found = calendar.previous_session(day)
    return int(calendar.session_close(found).timestamp() * 1000)


def day_ms(name: str, date: str, grace_s: float) -> tuple[int, int]:
    """The day of a session: from the close before it to its own, each with its grace, the end not
    included. Raises CalendarError when the date is no session."""
    grace_ms = int(grace_s * 1000)
    return previous_close_ms(name, date) + grace_ms, close_ms(name, date) + grace_ms


def first_closing(name: str, at_ms: int) -> Trading | None:
    """The first session that closes at a moment or later; None beyond the calendar's horizon."""
    calendar = _calendar(name)
    closes = _times_ms(calendar.closes)
    at = int(closes.searchsorted(at_ms))
    return _trading(calendar, at) if at < len(closes) else None


def last_closed(name: str, at_ms: int) -> Trading | None:
    """The last session that had closed by a moment; None before the calendar begins."""
    calendar = _calendar(name)
    at = int(_times_ms(calendar.closes).searchsorted(at_ms, side="right")) - 1
    return _trading(calendar, at) if at >= 0 else None


def horizon(name: str) -> str:
    """The last session that the calendar knows."""
    return str(_calendar(name).last_session.strftime("%Y-%m-%d"))


def _times_ms(times: Any) -> Any:
    return times.to_numpy("datetime64[ms]").astype("int64")


def _trading(calendar: Any, at: int) -> Trading:
    session = calendar.sessions[at]
    opens, closes = calendar.opens.iloc[at], calendar.closes.iloc[at]
    date = str(session.strftime("%Y-%m-%d"))
    return Trading(date, int(opens.timestamp() * 1000), int(closes.timestamp() * 1000))
