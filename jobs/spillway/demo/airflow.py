"""A real `airflow standalone`: small, alone on loopback, with a home of its own; and its API.

Nothing of Airflow is imported: it is a program that is started, and a server that is asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.dag_files import dags_folder
from spillway.demo.child import end_session
from spillway.kafka.broker import free_port

PREFIX = "spillway_"
"""Of the ids of our DAGs: the setting `dag_prefix` of this Airflow."""
PARTS = ("scheduler", "triggerer", "dag_processor", "metadatabase")
OVER = ("success", "failed")
LOG = "airflow.log"
PASSWORDS = "simple_auth_manager_passwords.json.generated"


class AirflowEnded(RuntimeError):
    """Airflow has ended; the message has the end of its log."""


def _path(dag: str) -> str:
    return f"/api/v2/dags/{PREFIX}{dag}"


@dataclass
class Airflow:
    """A running Airflow. Its DAGs are named here without their prefix."""

    home: Path
    url: str
    env: Mapping[str, str]
    process: subprocess.Popen[bytes]
    token: str = ""

    @property
    def log_file(self) -> Path:
        """What all of its parts print."""
        return self.home / LOG

    def password(self, user: str = "admin") -> str:
        """What standalone made up for a user."""
        found: str = json.loads((self.home / PASSWORDS).read_text())[user]
        return found

    def login(self, user: str = "admin") -> None:
        """Ask as this user from now on."""
        self.token = ""
        who = {"username": user, "password": self.password(user)}
        self.token = self.call("POST", "/auth/token", who)["access_token"]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the API; its JSON. Raises `urllib.error.HTTPError`."""
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode()
        )
        request.add_header("Content-Type", "application/json")
        request.add_header("Origin", self.url)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def is_healthy(self) -> bool:
        """Whether all of its parts are up. Raises `AirflowEnded`."""
        if self.process.poll() is not None:
            raise AirflowEnded(self.log_file.read_text(errors="replace")[-3000:])
        try:
            found = self.call("GET", "/api/v2/monitor/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return all(found[part]["status"] == "healthy" for part in PARTS)

    def knows(self, *dags: str) -> bool:
        """Whether the DAGs were read."""
        found = {each["dag_id"] for each in self.call("GET", "/api/v2/dags")["dags"]}
        return {PREFIX + dag for dag in dags} <= found

    def unpause(self, *dags: str) -> None:
        """Let DAGs run."""
        for dag in dags:
            self.call("PATCH", _path(dag), {"is_paused": False})

    def trigger(self, dag: str, partition: str | None = None, **conf: Any) -> str:
        """Start a run by hand; its id."""
        body = {"logical_date": None, "conf": conf, "partition_key": partition}
        found: str = self.call("POST", f"{_path(dag)}/dagRuns", body)["dag_run_id"]
        return found

    def state(self, dag: str, run: str) -> str:
        """The state of a run."""
        found: str = self.call("GET", f"{_path(dag)}/dagRuns/{run}")["state"]
        return found

    def tasks(self, dag: str, run: str) -> dict[str, str | None]:
        """Each task's state."""
        found = self.call("GET", f"{_path(dag)}/dagRuns/{run}/taskInstances")
        return {each["task_id"]: each["state"] for each in found["task_instances"]}

    def log(self, dag: str, run: str, task: str) -> str:
        """What a task's last try has printed, a line each."""
        instance = f"{_path(dag)}/dagRuns/{run}/taskInstances/{task}"
        number = self.call("GET", instance)["try_number"]
        found = self.call("GET", f"{instance}/logs/{number}")["content"]
        return "\n".join(each["event"] if isinstance(each, dict) else each for each in found)

    def xcom(self, dag: str, run: str, task: str) -> Any:
        """What a task has returned."""
        path = f"{_path(dag)}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value"
        return self.call("GET", path)["value"]

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG."""
        found: list[dict[str, Any]] = self.call("GET", f"{_path(dag)}/dagRuns")["dag_runs"]
        return found

    def end(self) -> None:
        """End all of its processes: SIGTERM to standalone alone would leave its children."""
        end_session(self.process.pid)
        self.process.wait(10)


def start(home: Path, more: Mapping[str, str], users: str = "admin:admin") -> Airflow:
    """Start it; `is_healthy` and `knows` tell when it works.

    Args:
        home: its folder.
        more: settings by the part of their variable's name after `AIRFLOW__`.
        users: `name:role`, separated by commas; each gets a password.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    env = environment(home, port, {"CORE__SIMPLE_AUTH_MANAGER_USERS": users, **more})
    return Airflow(home, f"http://127.0.0.1:{port}", env, program("standalone", home, env))


def program(name: str, home: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `airflow <name>` in a session of its own; it prints to the home's log."""
    with open(home / LOG, "ab") as log:
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("airflow")), name],
            env=env,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def environment(home: Path, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """Small, alone on loopback, with our DAGs; the plugin comes by its entry point."""
    values = {
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_FOLDER": str(dags_folder()),
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "API__PORT": str(port),
        "API__HOST": "127.0.0.1",
        "API__WORKERS": "1",
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        # Without a timeout SQLite refuses at once when another part of Airflow writes.
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "SPILLWAY__DAG_PREFIX": PREFIX,
        "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        **more,
    }
    programs = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",  # standalone starts `airflow` by its name
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": value for name, value in values.items()},
    }
