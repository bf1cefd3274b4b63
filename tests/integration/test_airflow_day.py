"""A trading day under a real Airflow, on a standalone Spark cluster of two hosts.

Opened, rebalanced, closed, proved complete. Kafka asks for a login, and allows no more than reading
the topics; Airflow has the password in a connection.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillway.demo.airflow import Airflow
from spillway.kafka.broker import free_port
from tests.integration.airflow_server import airflow, calm_calendar, finish, last_closed
from tests.integration.day import Day, messages, running, wait_for
from tests.integration.secured import (
    PASSWORDS,
    READER,
    WORD,
    SecuredBroker,
    SecuredDay,
    kept_in,
    secured_broker,
    secured_topics,
    shown_by_processes,
)
from tests.integration.standalone import Cluster, standalone

LASTS_S = 900
DELAY_S = 600
"""`[spillway] close_delay_s`."""
CONNECTION = "desk_kafka"
OPTIONS = "KAFKA__OPTIONS"

pytestmark = [pytest.mark.server, pytest.mark.timeout(LASTS_S)]


@pytest.fixture
def calendar() -> str:
    return calm_calendar(LASTS_S, DELAY_S)


@pytest.fixture
def spark_cluster(tmp_path: Path, spark_env: dict[str, str]) -> Iterator[Cluster]:
    """Two hosts. The stream takes one core of each: cleanup and verify need some beside it."""
    options = {"spark.cores.max": "2"}
    hosts = ("127.0.0.2", "127.0.0.3")
    with standalone(tmp_path / "cluster", spark_env, *hosts, jobs=2, options=options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def secured(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def day(
    calendar: str, tmp_path: Path, secured: SecuredBroker, spark_cluster: Cluster
) -> Iterator[Day]:
    made = SecuredDay(
        tmp_path / "airflow-day",
        secured.sasl,
        secured_topics(secured, tmp_path.name),
        spark_cluster.env,
        budget_bytes=128 << 10,
        max_rows=2_000,
        master=spark_cluster.url,
        extra={
            "SESSION__CALENDAR": calendar,
            "SPARK__UI_PORT": str(free_port()),
            OPTIONS: json.dumps(secured.login(READER)),
        },
        secured=secured,
    )
    yield made
    made.clean()


@pytest.fixture
def server(day: Day, calendar: str, secured: SecuredBroker, tmp_path: Path) -> Iterator[Airflow]:
    """Airflow with the day's settings in its environment, as a deployment would give them, but for
    Kafka's options: those are in a connection."""
    kept = {k: v for k, v in day.env().items() if k.startswith(("SPILLWAY_", "SPARK_", "JAVA_"))}
    del kept[f"SPILLWAY_{OPTIONS}"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kept.items():
            patch.setenv(name, value)
        patch.setenv("SPILLWAY_VAR", os.environ.get("SPILLWAY_VAR", str(Path("var").absolute())))
        more = {
            "SPILLWAY__SERVICE_FOLDER": str(tmp_path / "service"),
            "SPILLWAY__CLOSE_DELAY_S": str(DELAY_S),
            "SPILLWAY__CALENDAR": calendar,
            "SPILLWAY__KAFKA_CONNECTION": CONNECTION,
        }
        with airflow(tmp_path / "home", more) as found:
            connect(found, secured)
            yield found


def connect(server: Airflow, secured: SecuredBroker) -> None:
    """Give Airflow the login; what is no secret of it is in the connection's extra."""
    options = secured.login(READER)
    del options["sasl.jaas.config"]
    made = {
        "connection_id": CONNECTION,
        "conn_type": "generic",
        "login": READER,
        "password": PASSWORDS[READER],
        "extra": json.dumps(options),
    }
    server.call("POST", "/api/v2/connections", made)


def test_a_day_from_open_to_proof(
    day: Day, server: Airflow, calendar: str, spark_cluster: Cluster, tmp_path: Path
) -> None:
    # Only a session that has closed can be planned by the scheduler, and backfilled.
    session = last_closed(calendar, time.time())
    with running(day, "stream", "--session", session):
        # The first day has a name before Spark starts: no more is wanted.
        wait_for(lambda: bool(day.entries()), 60, "the first entry of the journal")
    day.produce(messages(1, 6_000, keys=6_000))
    server.unpause("market_open", "rebalance", "maintenance")
    opened = server.trigger("market_open")
    stream = 0
    try:
        assert finish(server, "market_open", opened) == "success", server.tasks(
            "market_open", opened
        )
        stream = running_stream(server)
        warned = server.xcom("market_open", opened, "doctor")
        assert sum("grant DescribeConfigs" in each for each in warned) == 3
        # The scheduler may have planned a run of its own: whichever came first started it.
        assert started(server) == [True]
        closed_and_encrypted(spark_cluster, day)
        seen = server.xcom("market_open", opened, "topics")
        assert {each["topic"]: each["created"] for each in seen} == dict.fromkeys(
            day.topics.values(), False
        )
        again = server.trigger("market_open")
        assert finish(server, "market_open", again) == "success"
        assert server.xcom("market_open", again, "ensure_stream") == {"started": False}
        decided = server.trigger("rebalance", dry_run=True)
        assert finish(server, "rebalance", decided) == "success"
        found = server.xcom("rebalance", decided, "decide")
        assert found["asked"] or found["declined"]
        assert json.loads(day.output("status", "--json")[1])["session"] == session
        # So the seal is waited for, in the triggerer, which asks Kafka, too.
        os.kill(stream, signal.SIGSTOP)
        asked = {"session": session, "reason": "the test is over"}
        sealed = server.call("POST", "/spillway/act/seal", asked)  # as the page's button does
        assert sealed["code"] == 0, sealed
        overview = server.call("GET", "/spillway/data/overview")
        assert overview["stream"]["lag_rows"] == 0, overview
        assert not shown_by_processes(WORD)
        server.unpause("market_close")
        closed = planned(server, session)
        waiting = lambda: server.tasks("market_close", closed)["wait_for_seal"]  # noqa: E731
        wait_for(lambda: waiting() == "deferred", 60, "a look by the triggerer", 0.5)
        log = lambda: server.log("market_close", closed, "wait_for_seal")  # noqa: E731
        # The task has told it once, before it was deferred.
        wait_for(lambda: log().count("rows wait in Kafka") >= 2, 60, "what the triggerer saw", 0.5)
        os.kill(stream, signal.SIGCONT)
        assert finish(server, "market_close", closed, 400) == "success", server.tasks(
            "market_close", closed
        )
        verdict = server.xcom("market_close", closed, "verify")
        assert verdict["complete"] is True
        assert verdict["missing"] == verdict["doubled"] == 0
        day.check(session)
        answers = [c for e in day.entries() for c in e.get("commands", ()) if c["kind"] == "seal"]
        assert answers[0]["obeyed"]
        assert (answers[0]["by"], answers[0]["reason"]) == ("admin", "the test is over")
        hosts = {s["host"] for e in day.journal.epochs() for s in e["slots"]}
        assert hosts == {"127.0.0.2", "127.0.0.3"}
        # A backfill and a second run of the same day, at the same time: nothing is doubled. The
        # run by hand does not say which day it means: the last that has closed. (A run that is
        # cleared does the same.)
        backfill(server, session)
        twice = server.trigger("market_close")
        again = backfilled(server, session)
        assert finish(server, "market_close", twice, 400) == "success"
        for run in (twice, again):
            assert server.xcom("market_close", run, "verify") == verdict, run
        day.check(session)
        would = server.trigger("maintenance", dry_run=True, keep_spilled_days=0)
        assert finish(server, "maintenance", would) == "success", server.tasks("maintenance", would)
        night = server.trigger("maintenance", keep_spilled_days=0)
        assert finish(server, "maintenance", night) == "success"
        reports = [server.xcom("maintenance", run, "maintain") for run in (would, night)]
        assert [each["dry_run"] for each in reports] == [True, False]
        for report in reports:
            [spill] = [each for each in report["tables"] if each["table"] == "spill"]
            assert spill["sessions"] == [session]
        day.check(session)
        events = server.call("GET", "/api/v2/assets/events")["asset_events"]
        keys = {event.get("partition_key") for event in events}
        assert session in keys, events
        assert not shown_by_processes(WORD)
        assert not kept_in(tmp_path, WORD), "a password was written down"
    finally:
        if stream:
            os.kill(stream, signal.SIGCONT)
            os.kill(stream, signal.SIGTERM)
            wait_for(lambda: not Path(f"/proc/{stream}").exists(), 60, "the stream to end")


def running_stream(server: Airflow) -> int:
    """The process id of the stream that Airflow has started."""
    note = json.loads((server.home.parent / "service" / "stream.json").read_text())
    pid: int = note["pid"]
    return pid


def closed_and_encrypted(cluster: Cluster, day: Day) -> None:
    """The stream runs on a cluster that knows it by a secret, which is seen nowhere."""
    options, places = cluster.shown(int(day.extra["SPARK__UI_PORT"]))
    assert places == []
    on = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")
    assert {options[name] for name in on} == {"true"}
    assert "redacted" in options["spark.authenticate.secret"]


def started(server: Airflow) -> list[bool]:
    """The answers of those runs of market_open that started the stream."""
    over = [r["dag_run_id"] for r in server.runs("market_open") if r["state"] == "success"]
    answers = [server.xcom("market_open", run, "ensure_stream")["started"] for run in over]
    return [each for each in answers if each]


def planned(server: Airflow, session: str) -> str:
    """The run that the scheduler has planned by itself, of the last session that has closed."""

    def runs() -> list[dict[str, Any]]:
        found = server.runs("market_close")
        return [each for each in found if each["run_type"] == "scheduled"]

    wait_for(lambda: bool(runs()), 60, "a run that the scheduler has planned", every_s=0.5)
    [run] = runs()
    assert run["partition_key"] == session
    found: str = run["dag_run_id"]
    return found


def backfill(server: Airflow, session: str) -> None:
    """Ask for the day again, by a range of dates that holds it alone."""
    wanted = {
        "dag_id": "spillway_market_close",
        "from_date": f"{session}T00:00:00Z",
        "to_date": f"{session}T00:00:00Z",
        "run_backwards": False,
        "dag_run_conf": {"reason": "backfill"},
        "max_active_runs": 3,
        "reprocess_behavior": "completed",
    }
    server.call("POST", "/api/v2/backfills", wanted)


def backfilled(server: Airflow, session: str) -> str:
    """Wait until the backfill's only run has succeeded; its id."""

    def runs() -> dict[str, str]:
        found = [run for run in server.runs("market_close") if run["run_type"] == "backfill"]
        assert {run["partition_key"] for run in found} <= {session}
        return {run["dag_run_id"]: run["state"] for run in found}

    wait_for(lambda: list(runs().values()) == ["success"], 240, "the backfill", every_s=1.0)
    return next(iter(runs()))
