"""`spillway demo` as its user meets it: interrupted in the middle, it leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from jobs.places import VAR_VARIABLE, var_folder
from tests.integration.day import ROOT, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


def below(folder: Path) -> list[psutil.Process]:
    """Processes that were given this variable folder."""
    found = []
    for process in psutil.process_iter():
        try:
            given = process.environ().get(VAR_VARIABLE) == str(folder)
            if given and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def has_text(folder: Path, text: str) -> Callable[[], bool]:
    return lambda: any(text in path.read_text() for path in folder.glob("demo/log/*.out"))


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, jars: None) -> None:
    var = tmp_path / "var"
    var.mkdir()
    (var / "jars").symlink_to(var_folder() / "jars")
    before = set(Path("/dev/shm").glob("*")) if os.path.isdir("/dev/shm") else set()
    demo = subprocess.Popen(
        [sys.executable, "-c", "from jobs.cli import main; main()", "demo"],
        env={**os.environ, VAR_VARIABLE: str(var), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(has_text(var, "epoch 2:"), 120, "the stream runs")
        assert len(below(var)) > 3  # the demo, the broker, the stream, its JVM
        os.killpg(demo.pid, signal.SIGINT)
        text, _ = demo.communicate(timeout=60)
    finally:
        left = below(var)
        for process in left:
            process.kill()
    assert demo.returncode == 130, text
    assert not left, [p.cmdline()[:3] for p in left]
    if before:
        assert not [p for p in set(Path("/dev/shm").glob("*")) - before if "spillway" in p.name]
