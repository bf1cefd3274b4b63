"""An Airflow that was there before spillway: its own environment, home and `airflow.cfg`.

Spillway comes into it as `docs/bring-your-own.md` says: the page's commands are run and its section
of `airflow.cfg` is taken as they are written, with this machine's paths. No variable of the
environment says anything of spillway or of Airflow, but where Airflow's home is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spillway.demo.airflow import Airflow
from spillway.kafka.broker import free_port
from spillway.places import var_folder
from tests.checkout import copied_checkout
from tests.doc_blocks import ROOT, Block, blocks
from tests.integration.airflow_server import ready

PAGE = ROOT / "docs" / "bring-your-own.md"
UNPAUSE, UNPAUSED = "airflow dags unpause ", "spillway_market_open"
"""The page's command, and the DAG that it shows it with."""
CHECKOUT, CONFIG = "/path/to/the/checkout", "/etc/spillway/spillway.toml"
"""Paths of the page; here they are others."""
HIDDEN = ("SPILLWAY_", "AIRFLOW_", "PYTHON", "PYSPARK_", "SPARK_", "PIP_CONSTRAINT", "VIRTUAL_ENV")
"""How variables begin that would say what the page is to say."""
KAFKA, LAKE = "orders_kafka", "orders_lake"
"""The page's names of the connections that have Kafka's secrets and the object store's."""


class OwnAirflow:
    """Airflow's environment, and a folder with its home and the settings file of spillway."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder, self.environment = folder, environment
        self.bin = environment / "bin"
        self.home = folder / "airflow"
        self.config = folder / "etc" / "spillway.toml"
        self.data = folder / "data" / "spillway"
        """Spillway's variable folder: that of an installed package."""
        kept = {name: v for name, v in os.environ.items() if not name.startswith(HIDDEN)}
        self.env = {
            **kept,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(self.home),
            "XDG_DATA_HOME": str(self.data.parent),
        }

    def run(self, command: str, **more: str) -> str:
        """A line as somebody types it, in Airflow's home; what it prints."""
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.home,
            env=self.env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout)
        return done.stdout

    def spillway(self, query: str, words: str, **more: str) -> str:
        """A command of spillway's for one query of the settings file."""
        return self.run(f"spillway --config {self.config} --query {query} {words}", **more)

    def unpause(self, *dags: str) -> None:
        """By the page's command."""
        assert f"`{UNPAUSE}{UNPAUSED}`" in PAGE.read_text()
        for dag in dags:
            self.run(f"{UNPAUSE}spillway_{dag}")

    def make(self) -> None:
        """Airflow first, as its user had it; then spillway, by the page."""
        for folder in (self.home, self.config.parent, self.data):
            folder.mkdir(parents=True)
        (self.data / "jars").symlink_to(var_folder() / "jars")  # they are not fetched again
        venv.create(self.environment, with_pip=True)
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(_versions(ROOT / "requirements-airflow.lock")))
        own = {"PIP_CONSTRAINT": str(constraints)}
        self.run("python -m pip install --quiet apache-airflow", **own)
        checkout = copied_checkout(self.folder / "checkout")
        for command in _written("Install")[0].lines:
            self.run(command.replace(CHECKOUT, str(checkout)), **own)

    def configure(self, options: Mapping[str, str], key: str, secret: str, **more: str) -> None:
        """The DAG file, the section (with more of its settings), a connection with Kafka's
        options, and one with an access key and its secret."""
        self.run("airflow config get-value core executor")  # makes airflow.cfg
        self.port = free_port()
        address = f"http://127.0.0.1:{self.port}"
        cfg = self.home / "airflow.cfg"
        text = cfg.read_text()
        for section, name, value in (
            ("core", "load_examples", "False"),
            ("core", "parallelism", "4"),
            ("core", "execution_api_server_url", f"{address}/execution/"),
            ("api", "host", "127.0.0.1"),
            ("api", "port", str(self.port)),
            ("api", "base_url", address),
            ("api", "workers", "1"),
            ("database", "sql_alchemy_conn", f"sqlite:///{self.home}/airflow.db?timeout=60"),
            ("dag_processor", "refresh_interval", "10"),
        ):
            text = _with(text, section, name, value)
        [commands, ini] = _written("Hand it to Airflow")
        (self.home / "dags").mkdir()
        for command in commands.commands:
            self.run(command)
        section = "\n".join(ini.lines).replace(CONFIG, str(self.config))
        named = [f"kafka_connection = {KAFKA}", f"warehouse_connection = {LAKE}"]
        assert all(each in PAGE.read_text() for each in named)
        lines = [section, *named, *(f"{name} = {value}" for name, value in more.items())]
        cfg.write_text("\n".join([text, *lines, ""]))
        self.run("airflow db migrate")
        kafka = {"conn_type": "generic", "extra": dict(options)}
        lake = {"conn_type": "aws", "login": key, "password": secret}
        file = self.folder / "connections.json"
        file.write_text(json.dumps({KAFKA: kafka, LAKE: lake}))
        self.run(f"airflow connections import {file}")
        file.unlink()

    @contextlib.contextmanager
    def standalone(self, *dags: str) -> Iterator[Airflow]:
        """Start it, wait until it knows the DAGs, and end it."""
        with open(self.home / "airflow.log", "ab") as log:
            process = subprocess.Popen(
                [str(self.bin / "airflow"), "standalone"],
                env=self.env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = Airflow(self.home, f"http://127.0.0.1:{self.port}", self.env, process)
        with ready(server, *dags):
            yield server

    def note(self, query: str) -> dict[str, Any]:
        """What Airflow has noted of the query's stream that it started last."""
        file = self.home / "var" / f"service-spillway_{query}" / "stream.json"
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def _written(title: str) -> list[Block]:
    """The blocks of a section of the page."""
    lines = PAGE.read_text().splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("## ")]
    [first] = [number for number in heads if title in lines[number]]
    after = next((number for number in heads if number > first), len(lines))
    return [each for each in blocks() if each.page == PAGE and first < each.line <= after]


def _versions(lock: Path) -> list[str]:
    """The lock's versions, without the hashes: those would have to be there for all packages."""
    return re.findall(r"^[^\s#=]+==[^\\\n]+", lock.read_text(), re.MULTILINE)


def _with(cfg: str, section: str, name: str, value: str) -> str:
    """An `airflow.cfg` in which an option has this value, commented out or not before."""
    begin = cfg.index(f"[{section}]\n")
    end = cfg.find("\n[", begin)
    own, count = re.subn(
        rf"^(# )?{name} = ?.*$",
        lambda _: f"{name} = {value}",
        cfg[begin:end],
        count=1,
        flags=re.MULTILINE,
    )
    assert count == 1, f"airflow.cfg has no [{section}] {name}"
    return cfg[:begin] + own + cfg[end:]
