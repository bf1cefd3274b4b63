"""Spillway's command line from a task: always a process of its own.

Airflow forks its workers, and neither deltalake's threads nor Spark's JVM survive a fork; so
nothing of them is imported here. Arguments are lists and never reach a shell. The child dies with
the process that started it (Linux's parent-death signal), whatever ended that.

What is called is set in a section of Airflow's configuration (`spillway_airflow.sections`):

| name | meaning | default |
|---|---|---|
| `config` | spillway's settings file | `spillway.toml` in the working directory |
| `command` | the program, when it is installed elsewhere | `spillway` beside this Python |

Secrets that the section's connections hold reach a command in its environment
(`spillway_airflow.connections`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spillway_airflow.connections import environment
from spillway_airflow.sections import SPILLWAY, named_query, setting

END_S = 20.0
"""How long a command may take to end after it was told to."""
LEAST_HIDDEN = 6
"""Shorter arguments are options and words that any text may hold."""
_PR_SET_PDEATHSIG = 1


class CommandFailed(RuntimeError):
    """A command ended with an error; the message has the end of what it printed."""

    def __init__(self, name: str, code: int, told: Sequence[str]) -> None:
        super().__init__(f"spillway {name} ended with code {code}:\n" + "\n".join(told[-15:]))
        self.name, self.code, self.told = name, code, told


def command_shown(command: str) -> str:
    """A configured command as it may be told: the program alone, for arguments may hold tokens."""
    words = command.split()
    return f"{words[0]} ..." if len(words) > 1 else command


def without(command: str, text: str) -> str:
    """The text without the arguments of a configured command, which programs repeat in errors."""
    for word in sorted(command.split()[1:], key=len, reverse=True):
        if len(word) >= LEAST_HIDDEN:
            text = text.replace(word.strip("\"'"), "(hidden)")
    return text


def program(config: str | None = None, section: str = SPILLWAY) -> list[str]:
    """How the command line is called: the program, its settings file, and which of its queries."""
    beside = Path(sys.executable).with_name("spillway")
    command = setting("command", section) or (str(beside) if beside.exists() else "spillway")
    config = config or setting("config", section)
    query = named_query(section)
    return [
        command,
        *(["--config", config] if config else []),
        *(["--query", query.name] if query else []),
    ]


_LIBC = ctypes.CDLL(None, use_errno=True)
"""Opened here: between fork and exec of a process with threads nothing may be loaded."""


def ends_with_parent() -> None:
    """In a child, before it runs the program: SIGTERM when the parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Running:
    """A command that runs; its output is told line by line.

    Raises `ConnectionProblem` where a connection of the section cannot be used.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        tell: Callable[[str], None],
        *,
        config: str | None = None,
        section: str = SPILLWAY,
    ) -> None:
        self.name = arguments[0]
        self._tell = tell
        self._told: list[str] = []
        self._printed: list[str] = []
        self.process = subprocess.Popen(
            [*program(config, section), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(section), "NO_COLOR": "1"},
            start_new_session=True,
            preexec_fn=ends_with_parent,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, kept), daemon=True)
            for pipe, kept in (
                (self.process.stdout, self._printed),
                (self.process.stderr, []),
            )
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, kept: list[str]) -> None:
        for line in pipe:
            text = line.rstrip()
            kept.append(text)
            self._told.append(text)
            del self._told[:-200]
            self._tell(text)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait()
        for reader in self._readers:
            reader.join(END_S)
        return code

    def end(self) -> None:
        """End it and everything it started: politely, then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(END_S)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def json(self) -> Any:
        """The last line that it printed as a JSON object or list; None when there is none.

        A line that merely begins like one (`[INFO] ...`) is passed over.
        """
        for line in reversed(self._printed):
            if line.startswith(("{", "[")):
                with contextlib.suppress(ValueError):
                    return json.loads(line)
        return None

    def failed(self, code: int) -> CommandFailed:
        """The error that its exit code stands for."""
        return CommandFailed(self.name, code, self._told)
