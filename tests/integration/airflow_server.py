"""A real `airflow standalone` for tests: small, on loopback, with a home of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.kafka.broker import free_port
from tests.integration.day import ROOT, wait_for

START_S = 240.0
DONE = ("success", "failed")


@dataclass
class Airflow:
    """A running Airflow."""

    home: Path
    url: str
    process: subprocess.Popen[bytes]
    token: str = ""

    def login(self) -> None:
        """As admin, with the password that standalone made."""
        made = self.home / "simple_auth_manager_passwords.json.generated"
        password = json.loads(made.read_text())["admin"]
        found = self.call("POST", "/auth/token", {"username": "admin", "password": password})
        self.token = found["access_token"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the API; its JSON. Raises `urllib.error.HTTPError`."""
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode()
        )
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def unpause(self, *dags: str) -> None:
        """Let DAGs run."""
        for dag in dags:
            self.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def trigger(self, dag: str, partition: str | None = None, **conf: Any) -> str:
        """Start a run by hand; its id."""
        body = {"logical_date": None, "conf": conf, "partition_key": partition}
        found = self.call("POST", f"/api/v2/dags/{dag}/dagRuns", body)
        run: str = found["dag_run_id"]
        return run

    def tasks(self, dag: str, run: str) -> dict[str, str | None]:
        """Each task's state."""
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")
        return {each["task_id"]: each["state"] for each in found["task_instances"]}

    def finish(self, dag: str, run: str, seconds: float = 300) -> str:
        """Wait for the end of a run; how it ended."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}"
        wait_for(
            lambda: self.call("GET", path)["state"] in DONE,
            seconds,
            f"{dag} {self.tasks(dag, run)}",
        )
        state: str = self.call("GET", path)["state"]
        return state

    def log(self, dag: str, run: str, task: str) -> str:
        """What a task's last try has printed."""
        instance = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}")
        number = instance["try_number"]
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{number}"
        return json.dumps(self.call("GET", path))

    def xcom(self, dag: str, run: str, task: str) -> Any:
        """What a task has returned."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value"
        return self.call("GET", path)["value"]

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG."""
        found: list[dict[str, Any]] = self.call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return found


def environment(home: Path, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """Small, alone on loopback, with the repository's DAGs and plugins."""
    values = {
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "API__PORT": str(port),
        "API__HOST": "127.0.0.1",
        "API__WORKERS": "1",
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        **more,
    }
    paths = f"{ROOT}:{ROOT / 'plugins'}"
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",  # standalone starts `airflow` by its name
        "AIRFLOW_HOME": str(home),
        "PYTHONPATH": paths,
        **{f"AIRFLOW__{name}": value for name, value in values.items()},
    }


@contextlib.contextmanager
def airflow(home: Path, more: Mapping[str, str]) -> Iterator[Airflow]:
    """Start it, wait until it is healthy and knows the DAGs; end its whole group."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [str(Path(sys.executable).with_name("airflow")), "standalone"]
    with open(home / "standalone.log", "ab") as log:
        process = subprocess.Popen(
            command,
            env=environment(home, port, more),
            cwd=home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Airflow(home, f"http://127.0.0.1:{port}", process)
    try:
        wait_for(lambda: _healthy(server), START_S, "a healthy Airflow")
        server.login()
        wait_for(lambda: _knows_dags(server), START_S, "the DAGs")
        yield server
    finally:
        # SIGTERM to standalone alone leaves its children behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _healthy(server: Airflow) -> bool:
    if server.process.poll() is not None:
        told = (server.home / "standalone.log").read_text(errors="replace")[-3000:]
        raise AssertionError(f"airflow has ended:\n{told}")
    try:
        found = server.call("GET", "/api/v2/monitor/health")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        time.sleep(1)
        return False
    parts = ("scheduler", "triggerer", "dag_processor", "metadatabase")
    return all(found[part]["status"] == "healthy" for part in parts)


def _knows_dags(server: Airflow) -> bool:
    found = {each["dag_id"] for each in server.call("GET", "/api/v2/dags")["dags"]}
    return {"market_open", "market_close", "rebalance"} <= found
