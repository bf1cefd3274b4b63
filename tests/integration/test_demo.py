"""`spillway demo` as its user meets it: interrupted in the middle, and under Airflow to its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from spillway.places import VAR_VARIABLE, var_folder
from tests.integration.day import wait_for

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


def states() -> set[Path]:
    """Folders of state that are there now, ours and others'."""
    return set(Path("/dev/shm").glob("spillway-*-demo*"))


@pytest.fixture
def var(tmp_path: Path, jars: None) -> Path:
    """A variable folder of the demo's own."""
    folder = tmp_path / "var"
    folder.mkdir()
    (folder / "jars").symlink_to(var_folder() / "jars")
    return folder


def start(var: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from spillway.cli import main; main()", "demo", *options],
        env={**os.environ, VAR_VARIABLE: str(var)},
        cwd=var.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_an_interrupted_demo_leaves_nothing(var: Path) -> None:
    before = states()
    demo = start(var)
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
    assert states() <= before


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_the_demo_under_airflow_ends_with_a_complete_day(var: Path) -> None:
    """Not in `make test`: what it does is in the Airflow tests; this is the whole, as printed."""
    before = states()
    demo = start(var, "--airflow", "--no-wait")
    try:
        text, _ = demo.communicate(timeout=1_500)
    finally:
        left = below(var)
        for process in left:
            process.kill()
    assert demo.returncode == 0, text
    assert not left, [p.cmdline()[:3] for p in left]
    assert states() <= before
    for said in (
        r"/plugin/spillway/",
        r"user +admin, password",
        r"missing\W+0\b",
        r"doubled\W+0\b",
    ):
        assert re.search(said, text), text
