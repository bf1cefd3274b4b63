"""What the benchmarks measure of a process tree: nothing of it is lost, nothing is left."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.side_by_side.watch import SAMPLE_S, ProgramFailed, Watched, watched

pytestmark = pytest.mark.server

BURN = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    def burn(seconds):
        while time.process_time() < seconds:
            pass
    """
)


def watch(tmp_path: Path, code: str, **more: object) -> Watched:
    return watched(
        [sys.executable, "-c", BURN + textwrap.dedent(code)],
        env=dict(os.environ),
        cwd=tmp_path,
        log=tmp_path / "log",
        **more,  # type: ignore[arg-type]
    )


def test_cpu_of_the_command_and_of_a_child_that_it_waits_for(tmp_path: Path) -> None:
    seen = watch(
        tmp_path,
        """
        if os.fork() == 0:
            burn(0.5)
            os._exit(0)
        os.wait()
        """,
    )
    assert 0.5 <= seen.cpu_s < 1.0


def test_cpu_of_an_orphan_is_counted_and_waited_for(tmp_path: Path) -> None:
    seen = watch(
        tmp_path,
        """
        if os.fork() == 0:
            burn(0.5)
            os._exit(0)
        """,
    )
    assert 0.5 <= seen.cpu_s < 1.0


def test_cpu_of_children_whose_parent_ignores_them(tmp_path: Path) -> None:
    # As the daemon of Spark's Python workers does: the kernel adds up nothing.
    seen = watch(
        tmp_path,
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if os.fork() == 0:
            burn(0.8)
            os._exit(0)
        try:
            os.wait()
        except ChildProcessError:
            pass
        """,
    )
    assert 0.5 <= seen.cpu_s < 1.2


def test_memory_of_the_tree_and_of_tmpfs(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    seen = watch(
        tmp_path,
        f"""
        open({str(state / "file")!r}, "wb").write(bytes(4 << 20))
        held = bytearray(os.urandom(1)) * (64 << 20)
        time.sleep({3 * SAMPLE_S})
        """,
        tmpfs=[state],
    )
    assert 64 << 20 <= seen.peak_process_bytes < 120 << 20
    assert 4 << 20 <= seen.peak_tmpfs_bytes < 5 << 20
    assert seen.peak_bytes >= seen.peak_process_bytes + (4 << 20)


def test_an_error_shows_the_log(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match=r"ended with 7(.|\n)*the reason"):
        watch(tmp_path, "print('the reason'); sys.exit(7)")


def test_what_takes_too_long_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    began, before = time.monotonic(), psutil.Process().children(recursive=True)
    with pytest.raises(ProgramFailed, match="took over"):
        watch(
            tmp_path,
            """
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            time.sleep(600)
            """,
            timeout_s=1.0,
        )
    assert time.monotonic() - began < 30
    assert psutil.Process().children(recursive=True) == before


def test_processes_that_were_there_before_are_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        watch(tmp_path, "")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


ENDLESS = """
    def end(*_):
        print("asked", flush=True)
        time.sleep(1)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    while True:
        time.sleep(0.1)
    """


def test_what_would_not_end_is_asked_to_once(tmp_path: Path) -> None:
    asked: list[float] = []

    def until() -> bool:
        asked.append(time.monotonic())
        return len(asked) >= 3

    watch(tmp_path, ENDLESS, until=until)
    assert len(asked) == 3
    assert (tmp_path / "log").read_text() == "asked\n"


def test_what_cannot_be_waited_for_ends_the_command(tmp_path: Path) -> None:
    def until() -> bool:
        raise OSError("no broker")

    before = psutil.Process().children(recursive=True)
    with pytest.raises(OSError, match="no broker"):
        watch(tmp_path, ENDLESS, until=until)
    assert psutil.Process().children(recursive=True) == before
