"""Processes of this host, as the kernel shows them."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path


def driver_runs(driver: str, claimed_at: str | None) -> bool | None:
    """Whether the process `host/pid` that claimed the journal at `claimed_at` still lives.

    None when it is on another host, or when there is none. A process that began after the claim is
    another one with the same number.
    """
    host, _, pid = driver.rpartition("/")
    if host != socket.gethostname() or not pid.isdigit() or claimed_at is None:
        return None
    fields = stat_fields(int(pid))
    if not fields or fields[0] == "Z":
        return False
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    began = time.time() - up_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return began <= datetime.fromisoformat(claimed_at).timestamp()


def stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
