"""A trading day under a real Airflow: opened, rebalanced, closed, proved complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.demo.airflow import Airflow
from tests.integration.airflow_server import airflow, finish
from tests.integration.day import STREAMS, Day, messages, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

SESSION = "2026-01-05"


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[Day]:
    made = Day(
        tmp_path / "airflow-day",
        broker,
        topics(*STREAMS, partitions=2),
        spark_env,
        budget_bytes=128 << 10,
        max_rows=2_000,
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
    server.unpause("market_open", "market_close", "rebalance")
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
        closed = server.trigger("market_close", session, at="now", reason="test")
        assert finish(server, "market_close", closed, 400) == "success", server.tasks(
            "market_close", closed
        )
        verdict = server.xcom("market_close", closed, "verify")
        assert verdict["complete"] is True
        assert verdict["missing"] == verdict["doubled"] == 0
        day.check(session)
        # A retry, a backfill, a second run of the same day: nothing is doubled.
        twice = server.trigger("market_close", session)
        assert finish(server, "market_close", twice, 400) == "success"
        day.check(session)
        events = server.call("GET", "/api/v2/assets/events")["asset_events"]
        keys = {event.get("partition_key") for event in events}
        assert session in keys, events
    finally:
        pid = json.loads((server.home.parent / "service" / "stream.json").read_text())["pid"]
        os.kill(pid, 15)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), 60, "the stream to end")
