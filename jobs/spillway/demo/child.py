"""A `spillway` command as a process of its own, that leaves nothing behind.

Every child leads a session of its own: a Ctrl-C in the terminal reaches the demo alone, which
then ends its children one by one. Spark's JVM and its Python workers stay in that session
whatever process groups they make, so `end` can wait for all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from spillway.places import VAR_VARIABLE

SPILLWAY = (sys.executable, "-c", "from spillway.cli import main; main()")
TERMINATE_S = 8.0
"""How long a child that was asked to end may take; the stream finishes its epoch first. Then it
is killed, which harms nothing: what was journaled is exact."""
GONE_S = 10.0


class Child:
    """A running command. Its output goes to `<name>.out` and `<name>.log` of a folder."""

    def __init__(self, name: str, arguments: Sequence[str], config: Path, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = logs / f"{name}.log"
        self._out = logs / f"{name}.out"
        # The demo's own settings file counts, not what the environment says of another warehouse.
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("SPILLWAY_") or key == VAR_VARIABLE
        }
        with self._out.open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*SPILLWAY, "--config", str(config), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=env,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """What it has printed to its standard output."""
        return self._out.read_text(errors="replace")

    def complaint(self, lines: int = 12) -> str:
        """The end of what it said, for an error message."""
        text = self.log.read_text(errors="replace").strip() or self.output().strip()
        return "\n".join(text.splitlines()[-lines:])

    def end(self) -> None:
        """End the command and everything that it started; returns when all of it is gone."""
        if self.poll() is None or _members(self._process.pid):
            end_session(self._process.pid)
        self.poll()


def end_session(leader: int) -> None:
    """End a process that leads a session, then what is left of the session: politely, then not."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
    if not (_gone(leader, TERMINATE_S, only=leader) and _gone(leader, GONE_S / 2)):
        for process in _members(leader):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _gone(leader, GONE_S)


def _gone(session: int, timeout_s: float, only: int | None = None) -> bool:
    until = time.monotonic() + timeout_s
    while any(only in (None, process.pid) for process in _members(session)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _members(session: int) -> list[psutil.Process]:
    """Living processes of a session.

    Its number is its leader's process id. While one of them lives, or the leader was not waited
    for, the kernel gives that number to nobody else.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
