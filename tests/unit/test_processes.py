"""Whether a driver lives: by its host, its number, and when it began."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from jobs.processes import driver_runs

HERE = socket.gethostname()


def at(later_s: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_s)).isoformat()


def test_a_process_that_lives_and_one_that_has_ended() -> None:
    assert driver_runs(f"{HERE}/{os.getpid()}", at()) is True
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert driver_runs(f"{HERE}/{ended.pid}", at()) is False, "a zombie does no work"
    ended.wait()
    assert driver_runs(f"{HERE}/{ended.pid}", at()) is False


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    assert driver_runs(f"{HERE}/{os.getpid()}", at(-24 * 3600)) is False


@pytest.mark.parametrize("driver", ["", f"elsewhere-{HERE}/1", f"{HERE}/", "1"])
def test_of_other_hosts_nothing_is_known(driver: str) -> None:
    assert driver_runs(driver, at()) is None
    assert driver_runs(f"{HERE}/1", None) is None
