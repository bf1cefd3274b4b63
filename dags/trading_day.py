"""The trading day: the stream is there before the exchange opens, and the day complete after it.

`[spillway]` of Airflow's configuration says which exchange, and how often and when (see the docs).
Each of several queries of one settings file has these DAGs. A warehouse with another settings file
has a copy of this file with another `SECTION`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AsyncCallback, DeadlineAlert, DeadlineReference, Param, chain

from spillway_airflow.alerts import late
from spillway_airflow.dag_docs import POLICIES, described
from spillway_airflow.operators import (
    CleanupOperator,
    DoctorOperator,
    EnsureStreamOperator,
    MaintenanceOperator,
    RebalanceOperator,
    SealOperator,
    StreamWatchOperator,
    TopicsOperator,
    VerifyOperator,
    WaitForSealOperator,
)
from spillway_airflow.sections import dag_id, moment, query_sections, setting, span
from spillway_airflow.timetables import (
    MarketCloseTimetable,
    MarketHoursTimetable,
    NightlyTimetable,
)

SECTION = "spillway"
"""Of Airflow's configuration: whose warehouse these DAGs are for, or whose settings file's queries:
then each has DAGs of its own."""


def trading_day(section: str) -> None:
    """The DAGs of one section."""
    calendar = setting("calendar", section) or "XNYS"
    open_lead = span("open_lead_s", section, 1800)
    close_delay = span("close_delay_s", section, 600)
    rebalance_every = span("rebalance_every_s", section, 60)
    limit = span("complete_within_s", section, 7200)
    maintenance_at = setting("maintenance_at", section) or "03:00"
    start = moment("start_date", section, "2026-01-01T00:00:00+00:00")
    ours = {"section": section}
    retried = {**ours, "retries": 3, "retry_delay": timedelta(seconds=30)}
    # One run at a time: after an outage a day can only be sealed once the one before it is.
    each_dag: dict[str, Any] = {
        "start_date": start,
        "catchup": False,
        "max_active_runs": 1,
        "tags": [section],
    }

    # An event of it, with the session's date as partition key: that day is proved complete.
    complete = Asset(f"{section}_complete_session", uri=f"{section}://sessions/complete")

    with DAG(
        dag_id("market_open", section),
        schedule=MarketHoursTimetable(every=timedelta(hours=24), calendar=calendar, lead=open_lead),
        default_args=retried,
        **each_dag,
        doc_md=described("market_open", section),
    ):
        chain(
            TopicsOperator(task_id="topics"),
            DoctorOperator(task_id="doctor", close_delay=close_delay),
            EnsureStreamOperator(task_id="ensure_stream"),
        )

    with DAG(
        dag_id("rebalance", section),
        schedule=MarketHoursTimetable(every=rebalance_every, calendar=calendar),
        default_args=ours,
        **each_dag,
        params={
            "policy": Param(
                None,
                type=["null", "string"],
                examples=list(POLICIES),
                description="Instead of rebalance.policy.",
            ),
            "dry_run": Param(False, type="boolean", description="Only say what would be done."),
        },
        doc_md=described("rebalance", section),
    ):
        RebalanceOperator(
            task_id="decide", policy="{{ params.policy }}", dry_run="{{ params.dry_run }}"
        )

    with DAG(
        dag_id("stream_watch", section),
        schedule=timedelta(minutes=1),
        default_args=ours,
        **each_dag,
        doc_md=described("stream_watch", section),
    ):
        StreamWatchOperator(task_id="watch", calendar=calendar, limit=limit)

    with DAG(
        dag_id("market_close", section),
        schedule=MarketCloseTimetable(calendar=calendar, delay=close_delay, every_session=True),
        default_args={**retried, "calendar": calendar},
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=limit,
            callback=AsyncCallback(late, {"limit": str(limit), "section": section}),
        ),
        **each_dag,
        params={
            "at": Param(
                "close",
                type="string",
                examples=["close", "now"],
                description="Where the session ends: close (and grace), now, or a time with "
                "offset.",
            ),
            "session": Param(
                None,
                type=["null", "string"],
                format="date",
                description="The session's date, for a run by hand without a partition key; "
                "without both it is the last session that has closed.",
            ),
            "reason": Param(None, type=["null", "string"], description="Kept in the journal."),
        },
        doc_md=described("market_close", section),
    ):
        chain(
            SealOperator(
                task_id="seal",
                at="{{ params.at }}",
                reason="{{ params.reason or '' }}",
                close_delay=close_delay,
            ),
            WaitForSealOperator(task_id="wait_for_seal", execution_timeout=timedelta(hours=2)),
            CleanupOperator(task_id="cleanup"),
            VerifyOperator(task_id="verify", outlets=[complete]),
        )

    with DAG(
        dag_id("maintenance", section),
        schedule=NightlyTimetable(at=maintenance_at, calendar=calendar),
        default_args=retried,
        **each_dag,
        params={
            "dry_run": Param(False, type="boolean", description="Only say what would be done."),
            "keep_spilled_days": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                description="Days that spilled rows of a day that is proved complete stay after "
                "its cleanup, instead of maintenance.keep_spilled_days.",
            ),
            "keep_statistics_days": Param(
                None,
                type=["null", "integer"],
                minimum=0,
                description="The same for its figures of partition groups, instead of "
                "maintenance.keep_statistics_days.",
            ),
        },
        doc_md=described("maintenance", section),
    ):
        MaintenanceOperator(
            task_id="maintain",
            dry_run="{{ params.dry_run }}",
            keep_spilled_days="{{ params.keep_spilled_days }}",
            keep_statistics_days="{{ params.keep_statistics_days }}",
        )


for each in query_sections(SECTION):
    trading_day(each)
