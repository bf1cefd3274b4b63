"""The trading day: the stream is there before the exchange opens, and the day complete after it.

`[spillway]` of Airflow's configuration says which exchange, and how often and when (see the docs).
A second warehouse in the same Airflow has a copy of this file with another `SECTION`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

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
from spillway_airflow.sections import dag_id, setting
from spillway_airflow.timetables import (
    MarketCloseTimetable,
    MarketHoursTimetable,
    NightlyTimetable,
)

SECTION = "spillway"
"""Of Airflow's configuration: whose warehouse these DAGs are for."""

CALENDAR = setting("calendar", SECTION) or "XNYS"
OPEN_LEAD = timedelta(seconds=float(setting("open_lead_s", SECTION) or 1800))
CLOSE_DELAY = timedelta(seconds=float(setting("close_delay_s", SECTION) or 600))
REBALANCE_EVERY = timedelta(seconds=float(setting("rebalance_every_s", SECTION) or 60))
LIMIT = timedelta(seconds=float(setting("complete_within_s", SECTION) or 7200))
MAINTENANCE_AT = setting("maintenance_at", SECTION) or "03:00"
START = datetime.fromisoformat(setting("start_date", SECTION) or "2026-01-01T00:00:00+00:00")
OURS = {"section": SECTION}
RETRIES = {**OURS, "retries": 3, "retry_delay": timedelta(seconds=30)}

COMPLETE = Asset(f"{SECTION}_complete_session", uri=f"{SECTION}://sessions/complete")
"""An event of it, with the session's date as partition key, means: that day is proved complete."""

with DAG(
    dag_id("market_open", SECTION),
    schedule=MarketHoursTimetable(every=timedelta(hours=24), calendar=CALENDAR, lead=OPEN_LEAD),
    start_date=START,
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
    tags=[SECTION],
    doc_md=described("market_open", SECTION),
):
    chain(
        TopicsOperator(task_id="topics"),
        DoctorOperator(task_id="doctor", close_delay=CLOSE_DELAY),
        EnsureStreamOperator(task_id="ensure_stream"),
    )

with DAG(
    dag_id("rebalance", SECTION),
    schedule=MarketHoursTimetable(every=REBALANCE_EVERY, calendar=CALENDAR),
    start_date=START,
    catchup=False,
    max_active_runs=1,
    default_args=OURS,
    tags=[SECTION],
    params={
        "policy": Param(
            None,
            type=["null", "string"],
            examples=list(POLICIES),
            description="Instead of rebalance.policy.",
        ),
        "dry_run": Param(False, type="boolean", description="Only say what would be done."),
    },
    doc_md=described("rebalance", SECTION),
):
    RebalanceOperator(
        task_id="decide", policy="{{ params.policy }}", dry_run="{{ params.dry_run }}"
    )

with DAG(
    dag_id("stream_watch", SECTION),
    schedule=timedelta(minutes=1),
    start_date=START,
    catchup=False,
    max_active_runs=1,
    default_args=OURS,
    tags=[SECTION],
    doc_md=described("stream_watch", SECTION),
):
    StreamWatchOperator(task_id="watch", calendar=CALENDAR, limit=LIMIT)

with DAG(
    dag_id("market_close", SECTION),
    schedule=MarketCloseTimetable(calendar=CALENDAR, delay=CLOSE_DELAY, every_session=True),
    start_date=START,
    catchup=False,
    max_active_runs=1,  # after an outage: a day can only be sealed once the one before it is
    default_args={**RETRIES, "calendar": CALENDAR},
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=LIMIT,
        callback=AsyncCallback(late, {"limit": str(LIMIT), "section": SECTION}),
    ),
    tags=[SECTION],
    params={
        "at": Param(
            "close",
            type="string",
            examples=["close", "now"],
            description="Where the session ends: close (and grace), now, or a time with offset.",
        ),
        "session": Param(
            None,
            type=["null", "string"],
            format="date",
            description="The session's date, for a run by hand without a partition key; without "
            "both it is the last session that has closed.",
        ),
        "reason": Param(None, type=["null", "string"], description="Kept in the journal."),
    },
    doc_md=described("market_close", SECTION),
):
    chain(
        SealOperator(
            task_id="seal",
            at="{{ params.at }}",
            reason="{{ params.reason or '' }}",
            close_delay=CLOSE_DELAY,
        ),
        WaitForSealOperator(task_id="wait_for_seal", execution_timeout=timedelta(hours=2)),
        CleanupOperator(task_id="cleanup"),
        VerifyOperator(task_id="verify", outlets=[COMPLETE]),
    )

with DAG(
    dag_id("maintenance", SECTION),
    schedule=NightlyTimetable(at=MAINTENANCE_AT, calendar=CALENDAR),
    start_date=START,
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
    tags=[SECTION],
    params={
        "dry_run": Param(False, type="boolean", description="Only say what would be done."),
        "keep_spilled_days": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="Days that spilled rows of a day that is proved complete stay after its "
            "cleanup, instead of maintenance.keep_spilled_days.",
        ),
        "keep_statistics_days": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="The same for its figures of partition groups, instead of "
            "maintenance.keep_statistics_days.",
        ),
    },
    doc_md=described("maintenance", SECTION),
):
    MaintenanceOperator(
        task_id="maintain",
        dry_run="{{ params.dry_run }}",
        keep_spilled_days="{{ params.keep_spilled_days }}",
        keep_statistics_days="{{ params.keep_statistics_days }}",
    )
