"""How the streaming service is started: a process here, a configured command, or Kubernetes.

A launcher knows whether its service runs, starts it, and stops it. What it started outlives the
task that did: Airflow ends a task's descendants with it, so the service is nobody's descendant.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from spillway.private import open_private, private_folder
from spillway.processes import stat_fields
from spillway_airflow.command import command_shown, program, without
from spillway_airflow.connections import ConnectionProblem, environment
from spillway_airflow.sections import SPILLWAY, setting

STOP_S = 120.0
"""How long a stream may take to end its epoch."""
REST_S = 10.0
"""How long what a stream has started may take to end after it, and a killed stream to be gone."""
GONE_S = 180.0
"""How long a pod may take to be gone: to end its epoch, and what the cluster needs itself."""

_DETACH = """
import os, subprocess, sys
log, argv = sys.argv[1], sys.argv[2:]
opener = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)
with open(log, "ab", opener=opener) as out:
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                             start_new_session=True)
with open(f"/proc/{child.pid}/stat") as stat:
    print(child.pid, stat.read().rpartition(")")[2].split()[19])
"""
"""Runs for a moment between the task and the service, so that the service becomes an orphan.

It says when the service began, too: a child that its parent has not waited for is in /proc even
when it has died, so the answer is there and is about no other process.
"""


class LaunchFailed(RuntimeError):
    """The service cannot be started, stopped, or asked for."""


class Launcher(Protocol):
    """Starts and stops the streaming service. Everything raises `LaunchFailed`."""

    def is_running(self) -> bool:
        """Whether the service is there (which does not mean that it works)."""

    def age_s(self) -> float | None:
        """How long it has been there at least, in seconds; None when that is not known."""

    def start(self) -> str:
        """Start it; what to tell people."""

    def stop(self) -> str:
        """Stop it after its epoch and wait until it is gone; what to tell people."""


@dataclass
class ProcessLauncher:
    """A process on this machine, in a session of its own, with a log file."""

    config: str | None
    """Spillway's settings file; None: that of the section."""
    folder: Path
    """Of the note of its process id and of its log."""
    section: str = SPILLWAY

    @property
    def _note(self) -> Path:
        return self.folder / "stream.json"

    @property
    def log(self) -> Path:
        """What the service prints."""
        return self.folder / "stream.log"

    def is_running(self) -> bool:
        """Whether the process that was noted lives: the same one, not another with its number."""
        return self._pid() is not None

    def age_s(self) -> float | None:
        """Since the process began."""
        pid = self._pid()
        ticks = "" if pid is None else _started(pid)
        if not ticks:
            return None
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")

    def start(self) -> str:
        """Start it detached. Of two at once one does."""
        try:
            private_folder(self.folder)
            with open(self.folder / "stream.lock", "w", opener=open_private) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return self._start()
        except ConnectionProblem as error:
            raise LaunchFailed(f"the stream cannot be started: {error}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchFailed(f"the stream cannot be started in {self.folder}: {error}") from error

    def _start(self) -> str:
        if (pid := self._pid()) is not None:
            return f"the stream runs already (process {pid})"
        argv = [*program(self.config, self.section), "stream"]
        done = subprocess.run(
            [sys.executable, "-c", _DETACH, str(self.log), *argv],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment(self.section),
        )
        if done.returncode != 0:
            told = done.stderr.strip().rpartition("\n")[2]  # the last line of a traceback
            raise LaunchFailed(f"{shlex.join(argv)} could not be started: {told}")
        number, started = done.stdout.split()
        pid = int(number)
        fresh = self._note.with_name(f"{self._note.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"pid": pid, "started": started, "argv": argv}))
        fresh.replace(self._note)
        return f"started as process {pid}; it prints to {self.log}"

    def stop(self) -> str:
        """SIGTERM, and wait for the end of its epoch; SIGKILL when that takes too long.

        SIGTERM is for the stream alone: its JVM is in the same group and would end in the middle of
        the epoch. What the stream leaves behind in its group is killed.
        """
        pid = self._pid()
        if pid is None:
            return "the stream does not run"
        try:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            if _wait(lambda: self._pid() is None, STOP_S):
                _wait(lambda: not _has_members(pid), REST_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        except PermissionError as error:
            raise LaunchFailed(f"process {pid} is somebody else's: {error}") from error
        if not _wait(lambda: self._pid() is None, REST_S):
            raise LaunchFailed(f"process {pid} does not end")
        self._note.unlink(missing_ok=True)
        return f"process {pid} has ended"

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _pid(self) -> int | None:
        """Of the process that was noted and lives; a damaged note names none."""
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return None
        match note:
            # Signals to 0, -1 and 1 would reach this task's own group, everybody, or init.
            case {"pid": int(pid), "started": str(started)} if pid > 1 and started:
                return pid if _started(pid) == started and not _is_zombie(pid) else None
        return None


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty when there is none."""
    fields = stat_fields(pid)
    return fields[19] if fields else ""


def _is_zombie(pid: int) -> bool:
    return stat_fields(pid)[:1] == ["Z"]


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait(done: Callable[[], bool], seconds: float, every_s: float = 0.1) -> bool:
    """Look until it is done; False when that took too long."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= until:
            return False
        time.sleep(every_s)
    return True


@dataclass
class CommandLauncher:
    """Configured commands, such as `systemctl start spillway` and `systemctl is-active spillway`.

    They are split as a shell would split them, and run without one.
    """

    start_command: str
    stop_command: str
    status_command: str
    section: str = SPILLWAY

    def is_running(self) -> bool:
        """Whether the status command ends with 0."""
        return self._run(self.status_command).returncode == 0

    def age_s(self) -> float | None:
        """Not known."""
        return None

    def start(self) -> str:
        """Run the start command."""
        return self._must(self.start_command)

    def stop(self) -> str:
        """Run the stop command."""
        return self._must(self.stop_command)

    def _must(self, command: str) -> str:
        done = self._run(command)
        if done.returncode != 0:
            told = (done.stdout + done.stderr).strip()
            shown = command_shown(command)
            raise LaunchFailed(f"{shown} ended with {done.returncode}: {without(command, told)}")
        return without(command, done.stdout.strip()) or f"{command_shown(command)}: done"

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        argv = shlex.split(command)
        if not argv:
            raise LaunchFailed(f"an empty command: set [{self.section}] start, stop and status")
        try:
            return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=STOP_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            shown = command_shown(command)
            raise LaunchFailed(f"{shown}: {without(command, str(error))}") from None


ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass
class KubernetesLauncher:
    """A Deployment that is scaled to one replica and to none, through the cluster's API.

    The account of the pod that Airflow runs in needs `get` on the Deployment and `patch` on its
    scale. Its token goes to `server` alone, encrypted: other addresses than https:// are refused,
    and redirects are not followed.
    """

    namespace: str
    deployment: str
    server: str = ""
    """`https://host:port`; the cluster that this pod runs in when empty."""
    account: Path = ACCOUNT
    fetch: Callable[[urllib.request.Request], bytes] | None = None
    section: str = SPILLWAY

    def is_running(self) -> bool:
        """Whether there is a pod, ready or not: the cluster itself sees to one that starts."""
        return int(self._get().get("status", {}).get("replicas") or 0) > 0

    def age_s(self) -> float | None:
        """Since the Deployment last became available, or ceased to be."""
        for each in self._get().get("status", {}).get("conditions") or []:
            if each["type"] == "Available":
                since = datetime.fromisoformat(each["lastTransitionTime"])
                return max(0.0, (datetime.now(UTC) - since).total_seconds())
        return None

    def start(self) -> str:
        """Scale to one."""
        self._scale(1)
        return f"deployment {self.namespace}/{self.deployment} is scaled to 1"

    def stop(self) -> str:
        """Scale to none, and wait until no pod is left.

        Scaled to one again at once, a controller might only ever see the one. The pod's grace
        period must be longer than an epoch.
        """
        self._scale(0)
        name = f"deployment {self.namespace}/{self.deployment}"
        if not _wait(self._is_empty, GONE_S, 0.5):
            raise LaunchFailed(f"{name} has a pod {GONE_S:g} s after it was scaled to 0")
        return f"{name} is scaled to 0"

    def _is_empty(self) -> bool:
        found = self._get()
        status = found.get("status", {})
        # Figures of before the change say nothing about it.
        if status.get("observedGeneration", 0) < found.get("metadata", {}).get("generation", 0):
            return False
        # `replicas` leaves out pods that are ending; newer clusters count those by themselves.
        return not status.get("replicas") and not status.get("terminatingReplicas")

    def _get(self) -> dict[str, Any]:
        return self._call("GET", f"deployments/{self.deployment}")

    def _scale(self, replicas: int) -> None:
        self._call(
            "PATCH", f"deployments/{self.deployment}/scale", {"spec": {"replicas": replicas}}
        )

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        server = self._server()
        if not server.startswith("https://"):
            raise LaunchFailed(
                f"[{self.section}] kubernetes_server = {server}: the account's token is sent "
                "there, so it must be an https:// address"
            )
        url = f"{server}/apis/apps/v1/namespaces/{self.namespace}/{path}"
        request = urllib.request.Request(
            url, method=method, data=None if body is None else json.dumps(body).encode()
        )
        request.add_header("Accept", "application/json")
        if body is not None:
            request.add_header("Content-Type", "application/merge-patch+json")
        token = self.account / "token"
        if token.exists():
            request.add_header("Authorization", f"Bearer {token.read_text().strip()}")
        try:
            found: dict[str, Any] = json.loads((self.fetch or self._fetch)(request))
        except (OSError, ValueError) as error:  # urllib's errors; an answer that is no JSON
            raise LaunchFailed(f"{method} {url}: {error}") from error
        return found

    def _server(self) -> str:
        if self.server:
            return self.server.rstrip("/")
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{n}") for n in ("HOST", "PORT"))
        if not host:
            raise LaunchFailed(
                f"no cluster: run in one, or set [{self.section}] kubernetes_server to its address"
            )
        return f"https://{host}:{port or 443}"

    def _fetch(self, request: urllib.request.Request) -> bytes:
        authority = self.account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects(self.section)
        )
        with opener.open(request, timeout=30) as answer:
            return bytes(answer.read())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Where a redirect leads to would be sent the token as well."""

    def __init__(self, section: str) -> None:
        self._section = section

    def redirect_request(self, *given: Any) -> None:
        """Refuse it. Raises `LaunchFailed`."""
        request, _, code, _, _, target = given
        raise LaunchFailed(
            f"{request.full_url} answered with a redirect ({code}) to {target}: it was not "
            "followed, for the account's token would be sent there; set "
            f"[{self._section}] kubernetes_server to the cluster's own address"
        )


def _service_folder(section: str) -> str:
    return "var/service" if section == SPILLWAY else f"var/service-{section}"


def launcher(config: str | None = None, section: str = SPILLWAY) -> Launcher:
    """The one that the section's `launcher` names: `process` (default), `command`, `kubernetes`.

    Raises `LaunchFailed` when what it needs is not set.
    """
    kind = setting("launcher", section) or "process"
    if kind == "process":
        folder = Path(setting("service_folder", section) or _service_folder(section)).absolute()
        return ProcessLauncher(config, folder, section)
    if kind == "command":
        commands = [setting(name, section) for name in ("start", "stop", "status")]
        if None in commands:
            raise LaunchFailed(f"launcher = command needs [{section}] start, stop and status")
        return CommandLauncher(*(command or "" for command in commands), section=section)
    if kind == "kubernetes":
        deployment = setting("kubernetes_deployment", section)
        if deployment is None:
            raise LaunchFailed(f"launcher = kubernetes needs [{section}] kubernetes_deployment")
        return KubernetesLauncher(
            setting("kubernetes_namespace", section) or "default",
            deployment,
            setting("kubernetes_server", section) or "",
            section=section,
        )
    raise LaunchFailed(f"[{section}] launcher = {kind!r}: use process, command or kubernetes")
