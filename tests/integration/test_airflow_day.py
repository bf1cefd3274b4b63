"""A trading day under a real Airflow, on a standalone Spark cluster of two hosts.

Opened, rebalanced, closed, proved complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.demo.airflow import Airflow
from tests.integration.airflow_server import airflow, finish
from tests.integration.day import STREAMS, Day, messages, wait_for
from tests.integration.standalone import standalone

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

SESSION = "2026-01-05"


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[Day]:
    conf = tmp_path / "conf"
    conf.mkdir()
    # The stream keeps its cores: cleanup and verify need some beside it.
    (conf / "spark-defaults.conf").write_text("spark.cores.max 2\n")
    env = {**spark_env, "SPARK_CONF_DIR": str(conf)}
    with standalone(tmp_path / "cluster", spark_env, "127.0.0.2", "127.0.0.3", jobs=2) as cluster:
        made = Day(
            tmp_path / "airflow-day",
            broker,
            topics(*STREAMS, partitions=2),
            env,
            budget_bytes=128 << 10,
            max_rows=2_000,
            master=cluster.url,
        )
        yield made
        made.clean()


@pytest.fixture
def server(day: Day, tmp_path: Path) -> Iterator[Airflow]:
    """Airflow with the day's settings in its environment, as a deployment would give them."""
    kept = {k: v for k, v in day.env().items() if k.startswith(("SPILLWAY_", "SPARK_", "JAVA_"))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in kept.items():
            patch.setenv(name, value)
        patch.setenv("SPILLWAY_VAR", os.environ.get("SPILLWAY_VAR", str(Path("var").absolute())))
        folder = tmp_path / "service"
        with airflow(tmp_path / "home", {"SPILLWAY__SERVICE_FOLDER": str(folder)}) as found:
            yield found


def test_a_day_from_open_to_proof(day: Day, server: Airflow) -> None:
    day.ok("seal", "--help")  # the command line starts
    day.produce(messages(1, 6_000, keys=6_000))
    server.unpause("market_open", "market_close", "rebalance", "maintenance")
    opened = server.trigger("market_open")
    try:
        assert finish(server, "market_open", opened) == "success", server.tasks(
            "market_open", opened
        )
        assert server.xcom("market_open", opened, "ensure_stream") == {"started": True}
        again = server.trigger("market_open")
        assert finish(server, "market_open", again) == "success"
        assert server.xcom("market_open", again, "ensure_stream") == {"started": False}
        decided = server.trigger("rebalance", dry_run=True)
        assert finish(server, "rebalance", decided) == "success"
        found = server.xcom("rebalance", decided, "decide")
        assert found["asked"] or found["declined"]
        session = json.loads(day.output("status", "--json")[1])["session"]
        asked = {"session": session, "reason": "the test is over"}
        sealed = server.call("POST", "/spillway/act/seal", asked)  # as the page's button does
        assert sealed["code"] == 0, sealed
        overview = server.call("GET", "/spillway/data/overview")
        assert "problem" not in overview or overview["problem"] == "looking", overview
        closed = server.trigger("market_close", session, at="now", reason="test")
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
        hosts = {s["host"] for e in day.entries() if e["kind"] == "epoch" for s in e["slots"]}
        assert hosts == {"127.0.0.2", "127.0.0.3"}
        # A retry, a backfill, a second run of the same day: nothing is doubled.
        twice = server.trigger("market_close", session)
        assert finish(server, "market_close", twice, 400) == "success"
        day.check(session)
        backfilled(server)
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
    finally:
        pid = json.loads((server.home.parent / "service" / "stream.json").read_text())["pid"]
        os.kill(pid, 15)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), 60, "the stream to end")


def backfilled(server: Airflow) -> None:
    """A range of days is closed, a run each; those before the first session are skipped."""
    days = ["2026-01-02", "2026-01-05", "2026-01-06"]  # the exchange is closed on the two between
    wanted = {
        "dag_id": "market_close",
        "from_date": f"{days[0]}T00:00:00Z",
        "to_date": f"{days[-1]}T23:59:59Z",
        "run_backwards": False,
        "dag_run_conf": {"reason": "backfill"},
        "max_active_runs": 3,
        "reprocess_behavior": "none",
    }
    server.call("POST", "/api/v2/backfills", wanted)

    def runs() -> dict[str, str]:
        found = [run for run in server.runs("market_close") if run["run_type"] == "backfill"]
        return {run["partition_key"]: run["state"] for run in found}

    wait_for(lambda: runs() == dict.fromkeys(days, "success"), 240, "the backfill", every_s=1.0)
