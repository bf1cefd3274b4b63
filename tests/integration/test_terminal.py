"""`spillway stream` in a real terminal: Ctrl-C, Ctrl-C twice, and a terminal that goes away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.day import STREAMS, Day, end_group, messages, wait_for

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SESSION = "2026-01-05"
STOPPING = "stopping after the epoch under way; Ctrl-C again ends at once"
ENDED = "ended at once; nothing is lost"
NOISE = ("Traceback", "Exception", "Error", "at org.", "at java.", "\tat ")


class Terminal:
    """A command on a pseudo-terminal of its own, which it is controlled by."""

    def __init__(self, day: Day, *arguments: str, **env: str) -> None:
        self.master, slave = pty.openpty()
        self.text = ""

        def control() -> None:
            os.setsid()
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the tests ignore it
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.failpoints", *arguments],
            env={**day.env(), "TERM": "dumb", "COLUMNS": "200", **env},
            cwd=day.folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=control,
        )
        os.close(slave)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        # A terminal that is closed, at either end, gives an error.
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 4096):
                self.text += data.decode(errors="replace")

    def says(self, text: str, timeout_s: float = 120) -> None:
        """Wait until the terminal shows a text."""
        until = time.monotonic() + timeout_s
        while text not in self.text:
            assert self.process.poll() is None, f"it has ended:\n{self.text}"
            assert time.monotonic() < until, f"{text!r} is not shown:\n{self.text}"
            time.sleep(0.05)

    def press(self, key: bytes) -> None:
        """What a person types."""
        os.write(self.master, key)

    def ends(self, code: int, timeout_s: float = 60) -> str:
        """Wait for its end; what it showed."""
        try:
            assert self.process.wait(timeout_s) == code, self.text
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended:\n{self.text}") from None
        self.reader.join(5)
        assert not [noise for noise in NOISE if noise in self.text], self.text
        return self.text

    def family(self) -> list[psutil.Process]:
        """The process and everything below it."""
        me = psutil.Process(self.process.pid)
        return [me, *me.children(recursive=True)]


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[Day]:
    made = Day(tmp_path / "day", broker, topics(*STREAMS, partitions=2), spark_env, max_rows=10_000)
    yield made
    made.clean()


@pytest.fixture
def terminal(day: Day) -> Iterator[Callable[..., Terminal]]:
    """Commands on terminals; each is ended with the test."""
    made: list[Terminal] = []

    def make(*arguments: str, **env: str) -> Terminal:
        made.append(Terminal(day, *arguments, **env))
        return made[-1]

    yield make
    for each in made:
        end_group(each.process)


def gone(family: list[psutil.Process]) -> None:
    """Nothing is left behind. What only waits for its parent to look at it is no more."""
    try:
        wait_for(lambda: not any(map(lives, family)), 60, f"the end of {family}")
    finally:
        for each in filter(lives, family):
            each.kill()


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def epochs(day: Day) -> int:
    return len(day.journal.epochs())


def test_ctrl_c(day: Day, terminal: Callable[..., Terminal]) -> None:
    """It ends the stream after its epoch, with 0 and one line, wherever it comes."""
    starting = terminal("stream", "--session", SESSION)
    starting.says("starting Spark")
    family = starting.family()
    starting.press(b"\x03")
    assert starting.ends(0).count(STOPPING) == 1
    gone(family)
    assert [entry["kind"] for entry in day.entries()] == ["genesis"]

    resting = terminal("stream")
    # Spark's first batch is an epoch without rows; nothing follows it.
    resting.says("epoch 0: 0 rows")
    time.sleep(1.5)
    family = resting.family()
    assert [p for p in family if "java" in p.name()], "Spark has no JVM?"
    resting.press(b"\x03")
    shown = resting.ends(0)
    assert shown.count(STOPPING) == 1
    assert shown.split(STOPPING)[1].strip() == ""
    gone(family)

    day.produce(messages(1, 3_000, keys=2_000))
    pause = {"WORKER_PAUSE_S": "3", "FAILPOINT_MARKERS": str(day.folder)}
    marker = day.folder / "fired-pause"
    working = terminal("stream", **pause)
    wait_for(marker.exists, 120, "an epoch's step")
    family = working.family()
    working.press(b"\x03")
    working.says(STOPPING, 10)
    os.killpg(working.process.pid, signal.SIGTERM)  # as a supervisor ends all that it has begun
    assert working.ends(0).count(STOPPING) == 1
    gone(family)
    assert epochs(day) == 2, "the epoch under way is not in the journal"

    marker.unlink()
    day.produce(messages(2, 3_000, keys=2_000))
    twice = terminal("stream", **{**pause, "WORKER_PAUSE_S": "30"})
    wait_for(marker.exists, 120, "an epoch's step")
    family = twice.family()
    twice.press(b"\x03")
    twice.says(STOPPING, 10)
    twice.press(b"\x03")
    assert twice.ends(130, 10).count(ENDED) == 1
    gone(family)
    assert epochs(day) == 2


def test_a_stream_whose_terminal_goes_or_that_is_killed_leaves_nothing_behind(
    day: Day, terminal: Callable[..., Terminal]
) -> None:
    closed = terminal("stream", "--session", SESSION)
    closed.says("term 1")
    family = closed.family()
    os.kill(closed.process.pid, signal.SIGHUP)
    os.close(closed.master)
    gone(family)
    closed.process.wait(10)

    killed = terminal("stream")
    killed.says("term 2")
    family = killed.family()
    killed.process.kill()
    gone(family)
