"""The embedded broker: a real Kafka (KRaft, one node) started from jars, on loopback only.

Model: everything of a broker lies in one folder: its properties, its log, `node.json` (ports and
cluster id, fixed when the storage was formatted), `process.json` (who runs it) and the data. The
broker runs in a session of its own, so it outlives the command that started it and is ended as
one process group.

Invariants: at most one broker runs on a folder (a file lock is held while starting and stopping).
A process is taken for the broker only when its id *and* its start time are those written down, so
a recycled process id is never signalled. `start` returns when the broker answers a metadata
request with this folder's cluster id: another broker on the same port is never mistaken for it.
`stop` returns when no process of the group is left.

Known limitation: no security and no replication. It is for development, demos and tests; a real
cluster is named by `kafka.bootstrap_servers`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from spillway.jars import JarError, JavaError, demand_java, jar_paths, java_command
from spillway.kafka.client import KafkaUnavailable, cluster
from spillway.kafka.properties import HOST, LOG4J, java_options, server_properties
from spillway.private import open_private, private_folder
from spillway_schemas.exits import FAILED

DEFAULT_PORT = 19092
HEAP_MB = 512
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
"""After this long a broker that was asked to end is killed."""


class BrokerError(RuntimeError):
    """The embedded broker cannot be started or stopped; the message says why and what to do."""

    exit_code = FAILED


@dataclass(frozen=True)
class BrokerStatus:
    """What is known about the broker of one folder."""

    running: bool
    """Its process lives."""
    healthy: bool
    """It answers, with this folder's cluster id."""
    bootstrap: str
    data_dir: str
    log: str
    pid: int | None = None
    cluster_id: str | None = None
    started_at_s: float | None = None
    """Seconds since 1970."""


@dataclass(frozen=True)
class _Node:
    """What was fixed when the storage was formatted."""

    cluster_id: str
    port: int
    controller_port: int


def start(
    data_dir: Path,
    port: int = DEFAULT_PORT,
    *,
    controller_port: int | None = None,
    heap_mb: int = HEAP_MB,
    timeout_s: float = START_TIMEOUT_S,
    var: Path | None = None,
) -> BrokerStatus:
    """Start the broker of `data_dir` and wait until it answers; a no-op when it runs already.

    Args:
        data_dir: its folder; made and formatted when new.
        port: where clients connect (loopback).
        controller_port: where its controller listens (loopback); `port + 1` when not given. It is
            fixed when the storage is formatted.
        heap_mb: the JVM's largest heap.
        timeout_s: how long to wait for the first answer.
        var: the variable folder with the jars, when it is not the default one.

    Raises BrokerError when a port is taken, the jars are missing or the broker does not come up.
    """
    folder = data_dir.expanduser().resolve()
    private_folder(folder)
    with _locked(folder):
        running = _process(folder)
        node = _node(folder)
        if running is not None and node is not None:
            if node.port != port:
                raise BrokerError(
                    f"the broker of {folder} runs already, on port {node.port} instead of {port} "
                    f"(process {running.pid}). Stop it first: spillway kafka stop"
                )
            _wait_until_healthy(folder, node, running, timeout_s)
            return status(folder)
        node = _prepare(folder, node, port, controller_port or port + 1, var)
        for used in (node.port, node.controller_port):
            _require_free(used)
        process = _launch(folder, heap_mb, var)
        try:
            _wait_until_healthy(folder, node, process, timeout_s)
        except BaseException:
            _end_group(process, 0.0)
            (folder / "process.json").unlink(missing_ok=True)
            raise
        return status(folder)


def stop(data_dir: Path, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """End the broker of `data_dir` and all its processes; False when none was running."""
    folder = data_dir.expanduser().resolve()
    if not folder.is_dir():
        return False
    with _locked(folder):
        process = _process(folder)
        if process is not None:
            _end_group(process, timeout_s)
        (folder / "process.json").unlink(missing_ok=True)
        return process is not None


def is_new(data_dir: Path) -> bool:
    """Whether a start would make a new broker, without topics: nothing is kept in `data_dir`."""
    return not _formatted(data_dir.expanduser().resolve() / "data")


def _formatted(data: Path) -> bool:
    return (data / "meta.properties").is_file()


def status(data_dir: Path) -> BrokerStatus:
    """What is known about the broker of `data_dir`; never raises because it is down."""
    folder = data_dir.expanduser().resolve()
    node = _node(folder)
    process = _process(folder)
    return BrokerStatus(
        running=process is not None,
        healthy=process is not None and node is not None and _answers(node),
        bootstrap=f"{HOST}:{node.port if node else DEFAULT_PORT}",
        data_dir=str(folder),
        log=str(folder / "broker.log"),
        pid=process.pid if process else None,
        cluster_id=node.cluster_id if node else None,
        started_at_s=process.create_time() if process else None,
    )


PORTS = (20_000, 32_000)
LET_GO_S = 5.0
"""How long a port of which no process is known may stay bound by a process that is ending."""
PORT_TRIES = 200


def free_port() -> int:
    """A port that nobody listens on at this moment (for tests and demos).

    Below those that systems give to outgoing connections, one of which may have taken it by the
    time that a broker comes back to it.
    """
    for _ in range(PORT_TRIES):
        port = random.randrange(*PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise BrokerError(f"no free port between {PORTS[0]} and {PORTS[1]} on {HOST}")


# ---------------------------------------------------------------- the folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w", opener=open_private) as file:
        # The lock must not be inherited by the broker: Python's files are not, so it is let go
        # when this command ends, whatever becomes of the broker.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path, **kinds: type) -> dict[str, Any] | None:
    """An object of these members. Raises BrokerError for a file that holds something else."""
    try:
        value = json.loads(path.read_text())
        if not isinstance(value, dict):
            raise ValueError("no object")
        for name, kind in kinds.items():
            if not isinstance(value.get(name), kind):
                raise ValueError(f"{name} is no {kind.__name__}")
    except FileNotFoundError:
        return None
    except ValueError as error:  # bytes that are no UTF-8 and text that is no JSON among them
        raise BrokerError(
            f"{path} is damaged ({error}). Check that no broker runs, then delete {path.parent}"
        ) from error
    return {name: value[name] for name in kinds}


def _write(path: Path, value: dict[str, Any]) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(value) + "\n")
    fresh.replace(path)


def _node(folder: Path) -> _Node | None:
    found = _read(folder / "node.json", cluster_id=str, port=int, controller_port=int)
    return _Node(**found) if found else None


def _process(folder: Path) -> psutil.Process | None:
    """The broker's process, when the one that was written down still lives."""
    found = _read(folder / "process.json", pid=int, created_s=float)
    if found is None:
        return None
    try:
        process = psutil.Process(found["pid"])
        # The kernel's start time is exact to a clock tick; psutil adds the boot time, which may
        # differ by a little between calls when the clock was set.
        same = abs(process.create_time() - found["created_s"]) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _prepare(
    folder: Path, node: _Node | None, port: int, controller_port: int, var: Path | None
) -> _Node:
    """Write the properties; format the storage when it is new."""
    data = folder / "data"
    (folder / "log4j2.yaml").write_text(LOG4J)
    if node is None:
        node = _Node(_new_cluster_id(), port, controller_port)
    elif node.port != port:
        # Clients' port may change between starts; the controller's is in the quorum's own log.
        node = _Node(node.cluster_id, port, node.controller_port)
    properties = folder / "server.properties"
    properties.write_text(server_properties(data, node.port, node.controller_port))
    if not _formatted(data):
        _format(folder, node, var)
    _write(folder / "node.json", asdict(node))
    return node


def _new_cluster_id() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):  # the tool would take it for an option
            return text


def _format(folder: Path, node: _Node, var: Path | None) -> None:
    done = subprocess.run(
        [
            *_java(folder, 256, var),
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            "-t",
            node.cluster_id,
            "-c",
            str(folder / "server.properties"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BrokerError(
            f"the broker's storage in {folder} could not be formatted:\n"
            + _tail(done.stdout + done.stderr)
        )


def _java(folder: Path, heap_mb: int, var: Path | None) -> list[str]:
    try:
        demand_java()
        jars = jar_paths("broker", var)
        return [
            java_command(),
            *java_options(folder, heap_mb),
            "-cp",
            os.pathsep.join(map(str, jars)),
        ]
    except (JarError, JavaError) as error:
        raise BrokerError(str(error)) from error


# ---------------------------------------------------------------- the process


def _launch(folder: Path, heap_mb: int, var: Path | None) -> psutil.Process:
    command = [*_java(folder, heap_mb, var), "kafka.Kafka", str(folder / "server.properties")]
    with (folder / "broker.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    process = psutil.Process(child.pid)
    _write(
        folder / "process.json",
        {"pid": child.pid, "created_s": process.create_time(), "command": command[0]},
    )
    # The process is known by id and start time from here on, not by this handle: without this,
    # Python would warn at exit that a child still runs, which is the intention.
    child.returncode = 0
    return process


def _wait_until_healthy(
    folder: Path, node: _Node, process: psutil.Process, timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    while not _answers(node):
        if not _lives(process):
            raise BrokerError(
                f"the broker ended while it started. The end of {folder / 'broker.log'}:\n"
                + _tail((folder / "broker.log").read_text(errors="replace"))
            )
        if time.monotonic() > deadline:
            raise BrokerError(
                f"the broker did not answer on {HOST}:{node.port} within {timeout_s:.0f} s. "
                f"The end of {folder / 'broker.log'}:\n"
                + _tail((folder / "broker.log").read_text(errors="replace"))
            )
        time.sleep(0.1)


def _answers(node: _Node) -> bool:
    """Whether a broker of this very cluster answers a metadata request."""
    address = (HOST, node.port)
    try:
        # A look at the port first: it costs nothing while nobody listens.
        socket.create_connection(address, timeout=1).close()
        with cluster(f"{HOST}:{node.port}", timeout_s=2.0) as view:
            return view.cluster_id() == node.cluster_id
    except (OSError, KafkaUnavailable):
        return False


def _lives(process: psutil.Process) -> bool:
    _reap(process.pid)
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _reap(pid: int) -> None:
    """Collect the broker's exit when it is our own child, so that no zombie stays."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _group(leader: int) -> list[psutil.Process]:
    """The living processes of the group that `leader` leads."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _end_group(process: psutil.Process, timeout_s: float) -> None:
    """SIGTERM, a while, SIGKILL; returns when nothing of the group lives.

    The group's id is the broker's process id (it leads its own session). While one of its
    processes lives the kernel gives the id to no other group, so it cannot hit a stranger.
    """
    leader = process.pid
    if timeout_s > 0 and _group(leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGTERM)
        if _gone(leader, timeout_s):
            return
    if _group(leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        if not _gone(leader, 10.0):
            left = ", ".join(str(p.pid) for p in _group(leader))
            raise BrokerError(f"processes {left} of the broker cannot be killed")


def _gone(leader: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        if not _group(leader):
            _reap(leader)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _require_free(port: int) -> None:
    until = time.monotonic() + LET_GO_S
    while (error := _bound(port)) is not None:
        # A broker that was killed a moment ago lets go of its port when its last thread has gone;
        # until then its socket is listed as nobody's.
        listener = listener_of(port)
        if listener.startswith(" by process ") or time.monotonic() >= until:
            raise BrokerError(
                f"port {port} on {HOST} is taken{listener}. End that program, or choose "
                "another port (kafka.bootstrap_servers)."
            ) from error
        time.sleep(0.05)


def _bound(port: int) -> OSError | None:
    """Why a port cannot be bound; None: it can."""
    with socket.socket() as probe:
        # As the broker does: a port in TIME_WAIT is free, one that is listened on is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error
    return None


def listener_of(port: int) -> str:
    """Who listens on a port, as ` by process 123 (java)`; empty when that is not known."""
    with contextlib.suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                if connection.pid is None:
                    return " by a process of another user"
                # Its name alone: another program's command line may hold a password.
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines()[-lines:])
