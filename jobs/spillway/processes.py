"""Processes of this machine, as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path


def process_identity(pid: int | None = None) -> str:
    """What tells a process (this one without `pid`) from all others, with blanks in between.

    The boot of the machine, the namespace of its process numbers, the number, and the clock ticks
    from boot to its start: no clock that is set and no other container changes any of them. Empty
    when there is no such process, or it has ended and waits for its parent.
    """
    number = os.getpid() if pid is None else pid
    fields = stat_fields(number)
    space = _space()
    if not fields or fields[0] == "Z" or not space:
        return ""
    return f"{space} {number} {fields[19]}"


def process_runs(identity: str) -> bool | None:
    """Whether the process of a `process_identity` still lives.

    None when it is of another boot, machine, container or user, and cannot be seen from here.
    """
    space, _, rest = identity.rpartition(" ")[0].rpartition(" ")
    if not space or space != _space() or not rest.isdigit():
        return None
    pid = int(rest)
    if not stat_fields(pid) and _is_hidden(pid):
        return None
    return process_identity(pid) == identity


def _is_hidden(pid: int) -> bool:
    """Whether there is such a process, of a user whose processes this one may not look at."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _space() -> str:
    """This boot and this namespace of process numbers; empty where the kernel does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
