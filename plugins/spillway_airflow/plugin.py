"""What Airflow loads: timetables by name, so that serialised DAGs can be read again; the page."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from spillway_airflow.links import LINKS
from spillway_airflow.page import Page
from spillway_airflow.sections import page_name, sections
from spillway_airflow.timetables import (
    MarketCloseTimetable,
    MarketHoursTimetable,
    NightlyTimetable,
)


class SpillwayPlugin(AirflowPlugin):
    """Spillway's timetables, its page, and the links of its tasks."""

    name = "spillway"
    # Lists, and no ClassVar: Airflow's own form.
    timetables = [  # noqa: RUF012
        MarketCloseTimetable,
        MarketHoursTimetable,
        NightlyTimetable,
    ]
    operator_extra_links = LINKS
    fastapi_apps = [  # noqa: RUF012
        {"app": Page(name), "url_prefix": f"/{name}", "name": name} for name in sections()
    ]
    external_views = [  # noqa: RUF012
        {
            "name": page_name(name),
            "href": f"{name}/",
            "destination": "nav",
            "url_route": name,
        }
        for name in sections()
    ]
