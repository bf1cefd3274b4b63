"""Processes that work for one that is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]


def assert_ends_with_its_own(program: str, *given: str) -> None:
    """Run a program that prints the number of a process which works for it, and kill it: that
    process ends by itself."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *given], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert psutil.pid_exists(worker)
        process.kill()
    until = time.monotonic() + 20
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != "zombie":
        assert time.monotonic() < until
        time.sleep(0.1)
