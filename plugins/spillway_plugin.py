"""What Airflow loads: timetables by name, so that serialised DAGs can be read again; the page."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from spillway_airflow.page import Page
from spillway_airflow.timetables import MarketCloseTimetable, MarketHoursTimetable


class SpillwayPlugin(AirflowPlugin):
    """Spillway's timetables and its page."""

    name = "spillway"
    # Lists, and no ClassVar: Airflow's own form.
    timetables = [MarketCloseTimetable, MarketHoursTimetable]  # noqa: RUF012
    fastapi_apps = [  # noqa: RUF012
        {"app": Page(), "url_prefix": "/spillway", "name": "spillway"}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Spillway",
            "href": "spillway/",
            "destination": "nav",
            "url_route": "spillway",
        }
    ]
