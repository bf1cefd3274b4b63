"""A Flink of two processes, a JobManager and a TaskManager, that may be killed; on loopback.

Its jars come by `requirements-flink.lock`; Ivy retrieves the two that the package there lacks.
`make setup` does neither. Statements go through Flink's SQL client, which ends once the job is
submitted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spillway.jars import Jar, java_command, retrieve
from spillway.kafka.broker import free_port
from tests.doc_blocks import ROOT
from tests.integration.day import wait_for

LOCK = ROOT / "requirements-flink.lock"
FLINK = "2.2.1"
"""The version that the lock names."""
CONNECTOR = Jar(
    "flink",
    "org.apache.flink",
    "flink-sql-connector-kafka",
    "5.0.0-2.2",
    "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
)
GATEWAY = Jar(
    "flink",
    "org.apache.flink",
    "flink-sql-gateway",
    FLINK,
    "fde5f0f6e868c84de01312a4922404f9571c68a6d879e91fc602bbafa5d735aa",
)
"""The SQL client needs it; the package of the lock has the client alone."""
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
SQL_CLIENT = "org.apache.flink.table.client.SqlClient"
START_S = 90.0
OPENED = ("lang", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent")
"""Packages of Java that Flink's own start scripts open to it."""
LOG4J = """
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1} %m%n%ex
"""
SETTINGS = """
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: 127.0.0.1
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest}
io.tmp.dirs: {folder}/tmp
parallelism.default: 2
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2.0
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0b
taskmanager.memory.managed.size: 64m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 128m
taskmanager.memory.jvm-overhead.max: 128m
heartbeat.interval: 500
heartbeat.timeout: 5000
"""


@dataclass(frozen=True)
class Installed:
    """Flink's jars: those of its processes, and what the SQL client has more."""

    cluster: Sequence[str]
    client: Sequence[str]


def install(folder: Path) -> Installed:
    """Fetch and verify what the lock and the two jars above name."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    exactly = ["--no-compile", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command = [*pip, *exactly, "--target", str(folder / "flink"), "-r", str(LOCK)]
    subprocess.run(command, check=True)
    retrieve([CONNECTOR, GATEWAY], folder)
    home, beside = folder / "flink" / "pyflink", folder / "jars" / "flink"
    cluster = [f"{home}/lib/*", str(beside / CONNECTOR.file)]
    return Installed(cluster, [*cluster, f"{home}/opt/*", str(beside / GATEWAY.file)])


@dataclass
class Flink:
    """A cluster, its folder, and the processes that live."""

    installed: Installed
    folder: Path
    rest: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("conf", "tmp"):
            (self.folder / name).mkdir(parents=True)
        settings = SETTINGS.format(rpc=free_port(), rest=self.rest, folder=self.folder)
        (self.folder / "conf" / "config.yaml").write_text(settings)
        (self.folder / "conf" / "log4j.properties").write_text(LOG4J)

    def start(self, *mains: str) -> None:
        """Start what does not run, and wait until there is a TaskManager (one that was killed is
        still listed for some seconds)."""
        for main in mains:
            assert main not in self.processes
            command = self._java(self.installed.cluster, main)
            with self._log(main).open("ab") as log:
                self.processes[main] = subprocess.Popen(
                    [*command, "--configDir", str(self.folder / "conf")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,  # else it takes a folder `plugins` there for its own
                    env=self._env,
                )
        wait_for(self._is_there, START_S, f"a TaskManager; logs in {self.folder}")

    def kill(self, *mains: str) -> None:
        """End processes without a word, all at once."""
        for main in mains:
            self.processes[main].kill()
        for main in mains:
            self.processes.pop(main).wait()

    def submit(self, statements: str) -> str:
        """Hand statements to the SQL client; the id of the job that the last of them made."""
        file = self.folder / "statements.sql"
        file.write_text(statements)
        done = subprocess.run(
            [*self._java(self.installed.client, SQL_CLIENT), "-f", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log(SQL_CLIENT).open("ab"),
            text=True,
            cwd=self.folder,
            env=self._env,
            check=False,
        )
        found = re.search(r"Job ID: ([0-9a-f]{32})", done.stdout)
        assert found, done.stdout
        return found[1]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A question to the JobManager; with a body a command."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.rest}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def wait_until_it_works(self, job: str, restored: int = 0) -> None:
        """All tasks of the job are running; it has gone on from checkpoints so many times."""

        def works() -> bool:
            states = self.ask(f"/jobs/{job}")["status-counts"]
            counts = self.ask(f"/jobs/{job}/checkpoints")["counts"]
            return bool(
                counts["restored"] >= restored and states["RUNNING"] == sum(states.values())
            )

        wait_for(works, START_S, "a job that runs")

    def checkpoint(self, job: str) -> None:
        """Make one now, and wait until it is complete."""
        at = f"/jobs/{job}/checkpoints"
        asked = self.ask(at, {"checkpointType": "CONFIGURED"})["request-id"]

        def is_complete() -> bool:
            answer = self.ask(f"{at}/{asked}")
            if answer["status"]["id"] != "COMPLETED":
                return False
            assert "failureCause" not in answer["operation"], answer
            return True

        wait_for(is_complete, START_S, "a checkpoint")

    def _is_there(self) -> bool:
        for main, process in self.processes.items():
            assert process.poll() is None, f"{main} has ended; logs in {self.folder}"
        with contextlib.suppress(urllib.error.URLError, OSError):
            return bool(self.ask("/overview")["slots-total"] > 0)
        return False

    def _java(self, jars: Sequence[str], main: str) -> list[str]:
        return [
            java_command(),
            "-Xmx512m",
            "-XX:TieredStopAtLevel=1",  # it lives for a minute
            *(f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in OPENED),
            f"-Dlog4j.configurationFile=file:{self.folder}/conf/log4j.properties",
            "-cp",
            os.pathsep.join(jars),
            main,
        ]

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "FLINK_CONF_DIR": str(self.folder / "conf")}

    def _log(self, main: str) -> Path:
        return self.folder / f"{main.rpartition('.')[2]}.log"


@contextlib.contextmanager
def flink(installed: Installed, folder: Path) -> Iterator[Flink]:
    """A cluster that runs, and is ended."""
    cluster = Flink(installed, folder)
    try:
        cluster.start(JOB_MANAGER, TASK_MANAGER)
        yield cluster
    finally:
        cluster.kill(*list(cluster.processes))


@contextlib.contextmanager
def installed_in(folder: Path) -> Iterator[Installed]:
    """Its jars, for as long as they are needed: they take 340 MB."""
    try:
        yield install(folder)
    finally:
        shutil.rmtree(folder)
