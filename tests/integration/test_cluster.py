"""A standalone cluster on loopback: two hosts (different names and state roots), one is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from jobs.kafka.broker import free_port
from tests.integration.day import ROOT, STREAMS, Day, messages, running, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

FIRST = "2026-01-05"


@dataclass
class Cluster:
    """A master and workers, each in a process group of its own."""

    folder: Path
    env: dict[str, str]
    url: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_master(self) -> None:
        port = free_port()
        self._start(
            "master",
            {},
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(free_port()),
        )
        self.url = f"spark://127.0.0.1:{port}"
        wait_for(lambda: "I have been elected leader" in self.log("master"), 60, "master is up")

    def start_worker(self, host: str) -> None:
        state = self.folder / f"state-{host}"
        self._start(
            host,
            {"SPILLWAY_STATE__ROOT": str(state), "SPARK_LOCAL_IP": host},
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            host,
            "--cores",
            "1",
            "--memory",
            "1g",
            "--webui-port",
            str(free_port()),
            "--work-dir",
            str(self.folder / f"work-{host}"),
            self.url,
        )
        wait_for(lambda: "Successfully registered" in self.log(host), 60, f"{host} is up")

    def _start(self, name: str, env: dict[str, str], *arguments: str) -> None:
        command = [str(Path(self.env["SPARK_HOME"]) / "bin" / "spark-class"), *arguments]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.env, "PYTHONPATH": str(ROOT), **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def lose(self, host: str) -> None:
        """The host is gone: its worker, its executor, its state."""
        process = self.processes.pop(host)
        children = psutil.Process(process.pid).children(recursive=True)
        for each in [*children, psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.wait(10)
        shutil.rmtree(self.folder / f"state-{host}", ignore_errors=True)

    def stop(self) -> None:
        for name in list(self.processes):
            self.lose(name)


@pytest.fixture
def spark_cluster(tmp_path: Path, spark_env: dict[str, str]) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    cluster = Cluster(folder, dict(spark_env))
    try:
        cluster.start_master()
        cluster.start_worker("127.0.0.2")
        cluster.start_worker("127.0.0.3")
        yield cluster
    finally:
        cluster.stop()


def test_a_host_is_lost_and_another_comes(
    spark_cluster: Cluster,
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> None:
    day = Day(
        tmp_path / "day",
        broker,
        topics(*STREAMS, partitions=2),
        spark_env,
        master=spark_cluster.url,
        budget_bytes=128 << 10,
        max_rows=2_000,
        extra={"RECOVERY__WAIT_S": "5"},
    )
    day.produce(messages(1, 6_000, keys=1_500))
    with running(day, "stream", "--session", FIRST) as stream:
        wait_for(lambda: read(day) >= 6_000, 120, "the first rows are joined")
        hosts = {s["host"] for e in day.entries() if e["kind"] == "epoch" for s in e["slots"]}
        assert hosts == {"127.0.0.2", "127.0.0.3"}
        placed = [
            tuple(s["host"] for s in e["slots"]) for e in day.entries() if e["kind"] == "epoch"
        ]
        assert len(set(placed)) == 1, "slots moved though no host was lost"
        spark_cluster.lose("127.0.0.3")
        day.produce(messages(2, 3_000, keys=1_500))
        wait_for(lambda: read(day) >= 9_000, 120, "the surviving host goes on")
        assert any(e.get("restored_slots") for e in day.entries())
        spark_cluster.start_worker("127.0.0.4")
        time.sleep(3)
        day.produce(messages(3, 2_000, keys=1_500))
        wait_for(lambda: read(day) >= 11_000, 120, "rows go on")
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0
    day.finish(FIRST)
    assert day.check(FIRST)["cleanup"] > 0


def read(day: Day) -> int:
    """Rows that the journal has read."""
    with contextlib.suppress(FileNotFoundError):
        return sum(
            count["rows"] for e in day.entries() if e["kind"] == "epoch" for count in e["read"]
        )
    return 0
