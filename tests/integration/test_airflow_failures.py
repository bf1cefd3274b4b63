"""What breaks on a trading day under Airflow, on real processes: each day ends complete.

One Airflow, one stream and one broker for the whole file; each test is a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spillway.demo.airflow import Airflow, program
from spillway.demo.child import end_session
from spillway.kafka import broker as kafka_broker
from spillway.kafka.client import cluster
from spillway.protocol.offsets import reaches
from tests.integration.airflow_server import airflow, finish
from tests.integration.day import STREAMS, Day, messages, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROWS = 3_000
AWAY_S = 20.0
LIMIT_S = 15
"""So short that the close after which it is asked is late."""
TELL = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + chr(10))"
LOCKED_S = 10.0


class World:
    """The day, its Airflow, and the broker that may go away."""

    def __init__(self, day: Day, server: Airflow, kafka: Path, service: Path) -> None:
        self.day, self.server, self.kafka, self.service = day, server, kafka, service
        self.folder = kafka.parent
        self._seed = 0

    def produce(self) -> None:
        """More messages, none like those before."""
        self._seed += 1
        self.day.produce(messages(self._seed, ROWS, keys=ROWS))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.day.output("status", "--json")[1])
        return found

    def stream(self) -> int:
        """The process id of the stream that Airflow started last."""
        pid: int = json.loads((self.service / "stream.json").read_text())["pid"]
        return pid

    def read_all(self) -> bool:
        """Whether no row waits. Looks by itself: a program for each look would take a core."""
        with cluster(self.day.bootstrap) as view:
            ends = view.end_offsets(sorted(self.day.topics.values()))
        epochs = self.day.journal.epochs()
        return bool(epochs) and reaches(epochs[-1]["end"], ends)

    def close(self, **conf: str) -> str:
        """Begin to close the open session; the run's id. `self.session` is its date."""
        self.session = self.status()["session"]
        return self.server.trigger("market_close", self.session, at="now", **conf)

    def proved(self, run: str) -> None:
        """The close ends well, and the session is what brute force says it is."""
        tasks = lambda: self.server.tasks("market_close", run)  # noqa: E731
        assert finish(self.server, "market_close", run, 420) == "success", tasks()
        verdict = self.server.xcom("market_close", run, "verify")
        assert verdict["complete"] is True
        self.day.check(self.session)


@pytest.fixture(scope="module")
def world(
    jars: None,
    tmp_path_factory: pytest.TempPathFactory,
    spark_env: dict[str, str],
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("airflow-failures")
    with contextlib.ExitStack() as stack:
        kafka = folder / "kafka"
        stack.callback(kafka_broker.stop, kafka)
        up = kafka_broker.start(
            kafka, kafka_broker.free_port(), controller_port=kafka_broker.free_port()
        )
        topics = {stream: f"{stream}-failures" for stream in STREAMS}
        with cluster(up.bootstrap) as admin:
            admin.create_topics(dict.fromkeys(topics.values(), 2))
        day = Day(
            folder / "day", up.bootstrap, topics, spark_env, budget_bytes=96 << 10, max_rows=1_500
        )
        stack.callback(day.clean)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in day.env().items():
            if name.startswith(("SPILLWAY_", "SPARK_", "JAVA_")):
                patch.setenv(name, value)
        patch.setenv("SPILLWAY_VAR", os.environ.get("SPILLWAY_VAR", str(Path("var").absolute())))
        service = folder / "service"
        stack.callback(end_stream, service)
        server = stack.enter_context(
            airflow(
                folder / "home",
                {
                    "SPILLWAY__SERVICE_FOLDER": str(service),
                    "SPILLWAY__COMPLETE_WITHIN_S": str(LIMIT_S),
                    # Whatever hour it is: no decision but those that are asked for.
                    "SPILLWAY__REBALANCE_EVERY_S": "86400",
                    "SPILLWAY__ALERT_COMMAND": shlex.join(
                        [sys.executable, "-c", TELL, str(folder / "alerts.txt")]
                    ),
                    # A task whose worker is gone is tried again soon.
                    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
                    "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
                    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
                },
            )
        )
        made = World(day, server, kafka, service)
        made.produce()
        server.unpause("market_open", "market_close", "rebalance", "stream_watch")
        run = server.trigger("market_open")
        assert finish(server, "market_open", run) == "success"
        yield made


def end_stream(service: Path) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.killpg(json.loads((service / "stream.json").read_text())["pid"], signal.SIGKILL)


@pytest.mark.soak
def test_the_stream_dies_under_a_rebalance_and_the_broker_goes_away(world: World) -> None:
    server = world.server
    wait_for(world.read_all, 120, "the first rows", every_s=1.0)
    killed = world.stream()
    decided = server.trigger("rebalance")
    wait_for(
        lambda: server.tasks("rebalance", decided).get("decide") == "running", 60, "rebalance", 0.5
    )
    os.killpg(killed, signal.SIGKILL)
    assert finish(server, "rebalance", decided) == "success"
    world.produce()
    # The watch starts it again, by its own schedule.
    wait_for(lambda: world.stream() != killed, 150, "another stream", every_s=0.5)
    wait_for(world.read_all, 120, "what came while it was gone", every_s=1.0)
    port = int(world.day.bootstrap.rpartition(":")[2])
    world.produce()
    kafka_broker.stop(world.kafka)
    away = time.monotonic()
    decided = server.trigger("rebalance")  # a decision needs no broker
    assert finish(server, "rebalance", decided) == "success"
    time.sleep(max(0.0, AWAY_S - (time.monotonic() - away)))
    kafka_broker.start(world.kafka, port, controller_port=kafka_broker.free_port())
    world.produce()
    wait_for(world.read_all, 240, "what came around the outage", every_s=1.0)
    run = world.close(reason="after an outage")
    wait_for(
        lambda: server.tasks("market_close", run).get("cleanup") == "running", 240, "cleanup", 0.5
    )
    # Somebody who does not want to wait starts another beside it.
    code, text = world.day.output("cleanup", "--session", world.session)
    assert code == 0, text
    world.proved(run)


def test_the_scheduler_dies_during_cleanup_and_the_database_is_locked(
    world: World, start_scheduler: Callable[[], None]
) -> None:
    server = world.server
    world.produce()
    wait_for(world.read_all, 120, "the rows", every_s=1.0)
    with sqlite3.connect(server.home / "airflow.db", timeout=60) as database:
        run = world.close()
        database.execute("BEGIN EXCLUSIVE")
        time.sleep(LOCKED_S)
        database.rollback()
    wait_for(
        lambda: server.tasks("market_close", run).get("cleanup") == "running", 240, "cleanup", 0.5
    )
    [scheduler] = schedulers(server)
    scheduler.kill()
    wait_for(lambda: not schedulers(server), 30, "the end of the scheduler")
    start_scheduler()
    world.proved(run)
    assert world.session in (world.folder / "alerts.txt").read_text(), "nobody was told: it is late"


def schedulers(server: Airflow) -> list[psutil.Process]:
    """The scheduler itself: a child of standalone, not one of its workers."""
    found = []
    for process in psutil.Process(server.process.pid).children():
        try:
            if "scheduler" in " ".join(process.cmdline()) and process.status() != "zombie":
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture
def start_scheduler(world: World) -> Iterator[Callable[[], None]]:
    started = []

    def start() -> None:
        started.append(program("scheduler", world.server.home, world.server.env))

    yield start
    for process in started:
        end_session(process.pid)
        process.wait(10)
