"""A standalone Spark cluster: on loopback, where hosts are addresses, each with its own state root;
or on hosts that are really several (`tests.hosts`), where they are names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from spillway.kafka.broker import free_port
from tests.docker_files import spark_defaults
from tests.hosts import FRONT_NAME, Network
from tests.integration.day import ROOT, wait_for
from tests.packages import source_paths


@dataclass
class Cluster:
    """A master and workers, each in a process group of its own."""

    folder: Path
    env: dict[str, str]
    jobs: int = 1
    """How many may run at a time, with a core and a GiB of each host."""
    secret: str = ""
    network: Network | None = None
    """The hosts, when they are more than addresses."""
    memory: str = ""
    """Of each worker; a GiB for each job when it is not given."""
    url: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_master(self) -> None:
        port = free_port()
        address = "127.0.0.1" if self.network is None else FRONT_NAME
        self._start(
            "master",
            {},
            "org.apache.spark.deploy.master.Master",
            "--host",
            address,
            "--port",
            str(port),
            "--webui-port",
            str(free_port()),
        )
        self.url = f"spark://{address}:{port}"
        wait_for(lambda: "I have been elected leader" in self.log("master"), 60, "master is up")

    def start_worker(self, host: str, **env: str) -> None:
        state = self.folder / f"state-{host}"
        if self.network is None:
            env |= {"SPILLWAY_STATE__ROOT": str(state), "SPARK_LOCAL_IP": host}
        self._start(
            host,
            env,
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            host,
            "--cores",
            str(self.jobs),
            "--memory",
            self.memory or f"{self.jobs}g",
            "--webui-port",
            str(free_port()),
            "--work-dir",
            str(self.folder / f"work-{host}"),
            self.url,
        )
        wait_for(lambda: "Successfully registered" in self.log(host), 180, f"{host} is up")

    def _start(self, name: str, env: dict[str, str], *arguments: str) -> None:
        command = [str(Path(self.env["SPARK_HOME"]) / "bin" / "spark-class"), *arguments]
        if self.network is not None:
            # Set there: a library that is loaded before others has to find its own `/dev/shm`.
            set_there = ("env", *(f"{name}={text}" for name, text in env.items()))
            host = self.network.hosts.get(name, self.network.front)
            command, env = host.words(*set_there, *command), {}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env={
                    **os.environ,
                    **self.env,
                    "PYTHONPATH": ":".join(source_paths(str(ROOT))),
                    **env,
                },
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
        if self.network is not None and host in self.network.hosts:
            self.network.hosts[host].end()
        children = psutil.Process(process.pid).children(recursive=True)
        for each in [*children, psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.wait(10)
        shutil.rmtree(self.folder / f"state-{host}", ignore_errors=True)

    def shown(self, ui_port: int) -> tuple[dict[str, str], list[str]]:
        """What the Spark UI of a job shows of its options, and every place where the secret is."""
        jobs = f"http://127.0.0.1:{ui_port}/api/v1/applications"
        [job] = json.loads(_got(jobs))
        page = f"{jobs}/{job['id']}/environment"
        places = {page: _got(page), "its page": _got(f"http://127.0.0.1:{ui_port}/environment/")}
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            places[f"the command line of process {process.pid}"] = "\n".join(words)
        for file in (each for each in self.folder.rglob("*") if each.is_file()):
            if file.suffix == ".log" or file.name in ("stdout", "stderr"):
                places[str(file)] = file.read_text(errors="replace")
        assert len(places) > 10, "the test looks at too little"
        return (
            dict(json.loads(places[page])["sparkProperties"]),
            [place for place, text in places.items() if self.secret in text],
        )

    def stop(self) -> None:
        for name in list(self.processes):
            self.lose(name)


def _got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@contextlib.contextmanager
def standalone(
    folder: Path,
    env: dict[str, str],
    *hosts: str,
    jobs: int = 1,
    options: dict[str, str] | None = None,
    network: Network | None = None,
) -> Iterator[Cluster]:
    """A cluster with a worker on each of some hosts, in a folder that is made.

    It is closed and encrypted as that of `docker/compose.yaml` is: by the same file, which is where
    `SPARK_CONF_DIR` of the cluster's `env` leads, for its jobs as well. `options`: of Spark beside.
    """
    folder.mkdir()
    defaults = spark_defaults(folder / "secrets") | (options or {})
    conf = folder / "conf"
    conf.mkdir(mode=0o700)
    lines = [f"{name} {value}\n" for name, value in defaults.items()]
    (conf / "spark-defaults.conf").write_text("".join(lines))
    secret = defaults["spark.authenticate.secret"]
    cluster = Cluster(folder, {**env, "SPARK_CONF_DIR": str(conf)}, jobs, secret, network)
    try:
        cluster.start_master()
        for host in hosts:
            cluster.start_worker(host)
        yield cluster
    finally:
        cluster.stop()
