"""What Airflow loads: the timetables by name, so that serialised DAGs can be read again."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from spillway_airflow.timetables import (
    MarketCloseTimetable,
    MarketHoursTimetable,
    NightlyTimetable,
)


class SpillwayPlugin(AirflowPlugin):
    """Spillway's timetables."""

    name = "spillway"
    timetables = [  # noqa: RUF012 - Airflow's own form
        MarketCloseTimetable,
        MarketHoursTimetable,
        NightlyTimetable,
    ]
