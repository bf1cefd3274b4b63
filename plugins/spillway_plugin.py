"""What Airflow loads: the timetables by name, so that serialised DAGs can be read again."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from spillway_airflow.links import LINKS
from spillway_airflow.timetables import MarketCloseTimetable, MarketHoursTimetable


class SpillwayPlugin(AirflowPlugin):
    """Spillway's timetables, and the links of its tasks."""

    name = "spillway"
    timetables = [MarketCloseTimetable, MarketHoursTimetable]  # noqa: RUF012 - Airflow's own form
    operator_extra_links = LINKS
