"""When DAGs run: after an exchange's closes, while a session is open, in its nights.

The calendar's library imports pandas, so `spillway.calendar` imports it on first use: in the
scheduler, never while a DAG file is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
from airflow.exceptions import InvalidPartitionKeyError
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.utils.strings import get_random_string
from airflow.utils.types import DagRunType

from spillway import calendar as exchange
from spillway.calendar import Trading

log = logging.getLogger(__name__)

DATE = "%Y-%m-%d"


class MarketCloseTimetable(Timetable):
    """One run for each session of an exchange, `delay` after its real close.

    The partition key is the session's date; the partition's moment is that date's midnight, UTC,
    so that a backfill from one date to another means the sessions of these dates. Early closes,
    holidays and clock changes are the calendar's. At its horizon (about a year ahead) no run is
    planned; when the calendar grows, which it does daily, runs are.

    Without catch-up only the last closed session gets a run, which leaves out those that an outage
    has missed. With `every_session` that holds for the first run only: once there was a run, every
    later session gets one, however late, and in order.
    """

    partitioned = True
    run_ordering = ("partition_date", "run_after")

    def __init__(
        self,
        calendar: str = "XNYS",
        delay: timedelta = timedelta(minutes=10),
        *,
        every_session: bool = False,
    ) -> None:
        if delay < timedelta(0):
            raise ValueError(f"a run cannot come {-delay} before the close that it waits for")
        self.calendar = calendar
        self.delay = delay
        self.every_session = every_session

    @property
    def summary(self) -> str:
        """What the list of DAGs shows."""
        return f"{self.calendar} close + {_span(self.delay)}"

    @property
    def description(self) -> str:
        """What the list of DAGs says beside it."""
        return f"{_span(self.delay)} after each real close of {self.calendar}"

    def serialize(self) -> dict[str, Any]:
        """As the database keeps it."""
        return {
            "calendar": self.calendar,
            "delay_s": self.delay.total_seconds(),
            "every_session": self.every_session,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        """The inverse of `serialize`."""
        delay = timedelta(seconds=data["delay_s"])
        return cls(data["calendar"], delay, every_session=data["every_session"])

    def next_dagrun_info_v2(
        self, *, last_dagrun_info: DagRunInfo | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The run after the last one, within the DAG's start, end and catch-up."""
        now = datetime.now(UTC)
        if last_dagrun_info is not None:
            found = self._after(last_dagrun_info)
        else:
            found = self._first_run_from(restriction.earliest or now)
        if found is not None and restriction.earliest is not None:
            earliest = self._first_run_from(restriction.earliest)
            found = max(found, earliest) if earliest is not None else None
        leaves_out = last_dagrun_info is None or not self.every_session
        if leaves_out and not restriction.catchup and found is not None:
            latest = exchange.last_closed(self.calendar, _ms(now - self.delay))
            found = max(found, latest) if latest is not None else found
        if found is None:
            _tell_horizon(self.calendar)
            return None
        info = self._info(found)
        beyond = restriction.latest is not None and info.run_after > restriction.latest
        return None if beyond else info

    def iter_partition_dagrun_infos(
        self, *, earliest: datetime, latest: datetime
    ) -> Iterable[DagRunInfo]:
        """The sessions whose dates lie from `earliest` to `latest`: what a backfill asks for."""
        found = exchange.first_closing(self.calendar, _ms(earliest))
        while found is not None and _midnight(found.date) <= latest:
            if _midnight(found.date) >= earliest:
                yield self._info(found)
            found = exchange.first_closing(self.calendar, found.close_ms + 1)

    def infer_manual_data_interval(self, *, run_after: pendulum.DateTime) -> DataInterval:
        """A run by hand stands for a moment; which session it means is its partition key."""
        return DataInterval.exact(run_after)

    def generate_run_id(
        self,
        *,
        run_type: DagRunType,
        run_after: pendulum.DateTime,
        data_interval: DataInterval | None,  # noqa: ARG002
        **extra: Any,
    ) -> str:
        """An id that names the session; a run again of one day is another run."""
        day = extra.get("partition_key") or run_after.strftime(DATE)
        return str(run_type.generate_run_id(suffix=f"{day}__{get_random_string()}"))

    def _decode_partition_date(self, partition_key: str) -> datetime:
        try:
            return _midnight(partition_key)
        except ValueError:
            raise InvalidPartitionKeyError(
                f"{partition_key!r} is no session of {self.calendar}: write its date, YYYY-MM-DD"
            ) from None

    def _after(self, last: DagRunInfo) -> Trading | None:
        if last.partition_key is None:  # a run by hand without a key
            return self._first_run_from(last.run_after + timedelta(seconds=1))
        found = exchange.first_closing(self.calendar, _ms(_midnight(last.partition_key)))
        while found is not None and found.date <= last.partition_key:
            found = exchange.first_closing(self.calendar, found.close_ms + 1)
        return found

    def _first_run_from(self, moment: datetime) -> Trading | None:
        return exchange.first_closing(self.calendar, _ms(moment - self.delay))

    def _info(self, session: Trading) -> DagRunInfo:
        close = pendulum.from_timestamp(session.close_ms / 1000, tz="UTC")
        return DagRunInfo(
            run_after=close + self.delay,
            data_interval=None,
            partition_date=pendulum.instance(_midnight(session.date)),
            partition_key=session.date,
        )


class MarketHoursTimetable(Timetable):
    """Runs every so often while a session is open, its open and its close included.

    With a `lead` the first run of a session comes so long before its open, and the others follow
    from there.
    """

    def __init__(
        self, every: timedelta, calendar: str = "XNYS", *, lead: timedelta = timedelta(0)
    ) -> None:
        if every <= timedelta(0):
            raise ValueError(f"runs need a time between them, got {every}")
        if lead < timedelta(0):
            raise ValueError(f"a lead of {lead} would begin after the open")
        self.every = every
        self.calendar = calendar
        self.lead = lead

    @property
    def summary(self) -> str:
        """What the list of DAGs shows."""
        return f"every {_span(self.every)} of {self.calendar}{self._early()}"

    @property
    def description(self) -> str:
        """What the list of DAGs says beside it."""
        return f"every {_span(self.every)} while {self.calendar} is open{self._early()}"

    def serialize(self) -> dict[str, Any]:
        """As the database keeps it."""
        return {
            "every_s": self.every.total_seconds(),
            "calendar": self.calendar,
            "lead_s": self.lead.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        """The inverse of `serialize`."""
        lead = timedelta(seconds=data["lead_s"])
        return cls(timedelta(seconds=data["every_s"]), data["calendar"], lead=lead)

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        """The next tick of an open session."""
        # Without catch-up: the tick that is due now, and those to come.
        found = self._tick(_begin(last_automated_data_interval, restriction, self.every))
        if found is None:
            _tell_horizon(self.calendar)
            return None
        if restriction.latest is not None and found > restriction.latest:
            return None
        return DagRunInfo.exact(found)

    def infer_manual_data_interval(self, *, run_after: pendulum.DateTime) -> DataInterval:
        """A run by hand stands for a moment."""
        return DataInterval.exact(run_after)

    def _early(self) -> str:
        return f", from {_span(self.lead)} before" if self.lead else ""

    def _tick(self, moment: datetime) -> pendulum.DateTime | None:
        """The first tick at a moment or later."""
        at_ms, every_ms = _ms(moment), int(self.every.total_seconds() * 1000)
        session = exchange.first_closing(self.calendar, at_ms)
        while session is not None:
            first_ms = session.open_ms - int(self.lead.total_seconds() * 1000)
            ticks = max(0, -(-(at_ms - first_ms) // every_ms))
            tick_ms = first_ms + ticks * every_ms
            if tick_ms <= session.close_ms:
                return pendulum.from_timestamp(tick_ms / 1000, tz="UTC")
            session = exchange.first_closing(self.calendar, session.close_ms + 1)
        return None


class NightlyTimetable(Timetable):
    """One run every night (weekends and holidays too) at a time of the exchange's clocks.

    A time that a night does not have, because the clocks go forward, is an hour later; one that
    it has twice is the first. Of missed nights at most the last is made up for.
    """

    def __init__(self, at: str = "03:00", calendar: str = "XNYS") -> None:
        """`at`: hours and minutes, in the exchange's time zone."""
        try:
            self._at = time.fromisoformat(at)
        except ValueError:
            raise ValueError(f"{at!r} is no time of day: write hours and minutes, 03:00") from None
        if self._at.tzinfo is not None:
            raise ValueError(f"{at!r}: leave the offset out, it is the exchange's own")
        self.at = at
        self.calendar = calendar

    @property
    def summary(self) -> str:
        """What the list of DAGs shows."""
        return f"{self.at} at {self.calendar}"

    @property
    def description(self) -> str:
        """What the list of DAGs says beside it."""
        return f"every night at {self.at}, in the time zone of {self.calendar}"

    def serialize(self) -> dict[str, Any]:
        """As the database keeps it."""
        return {"at": self.at, "calendar": self.calendar}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        """The inverse of `serialize`."""
        return cls(data["at"], data["calendar"])

    def next_dagrun_info(
        self,
        *,
        last_automated_data_interval: DataInterval | None,
        restriction: TimeRestriction,
    ) -> DagRunInfo | None:
        """The next night."""
        found = self._night(_begin(last_automated_data_interval, restriction, timedelta(0)))
        if restriction.latest is not None and found > restriction.latest:
            return None
        return DagRunInfo.exact(found)

    def infer_manual_data_interval(self, *, run_after: pendulum.DateTime) -> DataInterval:
        """A run by hand stands for a moment."""
        return DataInterval.exact(run_after)

    def _night(self, moment: datetime) -> pendulum.DateTime:
        """The first such time at a moment or later."""
        zone = ZoneInfo(exchange.zone(self.calendar))
        day = moment.astimezone(zone).date()
        while (found := datetime.combine(day, self._at, zone).astimezone(UTC)) < moment:
            day += timedelta(days=1)
        return pendulum.instance(found)


def _begin(last: DataInterval | None, restriction: TimeRestriction, missed: timedelta) -> datetime:
    """From when on the next run may be, for timetables whose runs stand for moments.

    `missed`: how far back a run that did not happen is made up for when there is no catch-up.
    """
    now = datetime.now(UTC)
    if last is not None:
        begin = last.end + timedelta(microseconds=1)
    else:
        begin = restriction.earliest or now
    if restriction.earliest is not None:
        begin = max(begin, restriction.earliest)
    return begin if restriction.catchup else max(begin, now - missed)


def _tell_horizon(calendar: str) -> None:
    log.warning(
        "%s is known until %s: runs after that are planned when the calendar grows",
        calendar,
        exchange.horizon(calendar),
    )


def _midnight(date: str) -> datetime:
    return datetime.strptime(date, DATE).replace(tzinfo=UTC)


def _ms(moment: datetime) -> int:
    return -int(-moment.timestamp() * 1000 // 1)


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    if seconds % 60 == 0 and seconds:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s"
