"""Ctrl-C and SIGTERM, without Spark (`tests/integration/test_terminal.py` has the real thing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from spillway.stream import interrupts, start
from spillway.stream.run import Wanted, Watcher
from spillway.stream.service import Stream
from spillway_schemas.query import load_query
from spillway_schemas.settings import load_settings

WAITING = """
import sys, threading
from spillway.stream.interrupts import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
print("ready", flush=True)
while not stop.wait(0.05):
    pass
print("asked", flush=True)
sys.stdin.read()
print("ends", flush=True)
"""


def waiting() -> subprocess.Popen[str]:
    """A process that waits to be asked to stop, and ends when its input does."""
    pipe = subprocess.PIPE
    made = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_only_a_second_ctrl_c_insists(
    first: signal.Signals, second: signal.Signals
) -> None:
    process = waiting()
    process.send_signal(first)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(second)
    if second == signal.SIGINT:
        assert process.wait(10) == 130
    out, said = process.communicate(timeout=10)
    lines = said.splitlines()
    again = "; Ctrl-C again ends at once" if first == signal.SIGINT else ""
    assert lines[0] == f"stopping after the epoch under way{again}"
    if second == signal.SIGINT:
        assert (out, len(lines)) == ("", 2)
        assert lines[1].startswith("ended at once; nothing is lost")
    else:
        assert (out, len(lines), process.returncode) == ("ends\n", 1, 0)


@pytest.fixture
def stream(tmp_path: Any) -> Stream:
    flags = {
        "warehouse.root": str(tmp_path / "warehouse"),
        "state.root": str(tmp_path / "state"),
        "spark.master": "local[1]",
    }
    settings = load_settings(None, flags, environ={})[0]
    return Stream(settings, load_query(settings.query), Wanted(), Watcher(), lambda: 0)


def test_spark_is_not_started_on_the_main_thread(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There pyspark would put a handler of Ctrl-C in the place of ours."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(
        start, "spark_session", lambda *_, **__: threads.append(threading.current_thread())
    )
    start.start_spark(stream.settings)
    assert threads
    assert threads[0] is not threading.main_thread()


def test_one_that_was_asked_to_stop_before_its_start_touches_nothing(stream: Stream) -> None:
    stream.watcher.stop.set()
    stream.run()
    assert not Path(stream.settings.warehouse.root).exists()


def test_a_child_that_is_not_yet_another_program_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between fork and exec it has the handler of its parent, which says it for both."""
    handlers: dict[int, Any] = {}
    told: list[bytes] = []
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    monkeypatch.setattr(interrupts, "_say", told.append)
    stop = threading.Event()
    interrupts.stop_on_signals(stop)
    own = os.getpid()
    monkeypatch.setattr("os.getpid", lambda: own + 1)
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert (stop.is_set(), told) == (False, [])
    monkeypatch.setattr("os.getpid", lambda: own)
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert (stop.is_set(), len(told)) == (True, 1)


def test_a_terminal_that_is_gone_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bytes]] = []
    monkeypatch.setattr("os.write", lambda *what: told.append(what))
    interrupts._say(b"it ends")
    assert told == [(2, b"it ends")]

    def gone(*_: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr("os.write", gone)
    interrupts._say(b"it ends")


def test_the_jvm_is_silenced_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = MagicMock()
    fake = SimpleNamespace(SparkContext=SimpleNamespace(_jvm=jvm))
    monkeypatch.setitem(sys.modules, "pyspark", fake)
    interrupts._hush()
    stream = jvm.java.io.PrintStream
    stream.assert_called_once_with(jvm.java.io.OutputStream.nullOutputStream.return_value)
    jvm.java.lang.System.setErr.assert_called_once_with(stream.return_value)
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setAllLevels.assert_called_once_with("", log4j.Level.OFF)
    for nothing in (
        SimpleNamespace(SparkContext=SimpleNamespace(_jvm=None)),
        SimpleNamespace(SparkContext=SimpleNamespace()),
        SimpleNamespace(),
        None,
    ):
        monkeypatch.setitem(sys.modules, "pyspark", nothing)
        interrupts._hush()
    monkeypatch.delitem(sys.modules, "pyspark")
    interrupts._hush()


@pytest.mark.parametrize("hangs", [False, True])
def test_the_second_ctrl_c_ends_in_a_moment(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    """In this process: a JVM that does not answer holds it up no longer than is allowed."""
    handlers: dict[int, Any] = {}
    told: list[bytes] = []
    hushed, let_go, waited_out = threading.Event(), threading.Event(), threading.Event()

    def hush() -> None:
        hushed.set()
        if hangs:
            let_go.wait(10)
            waited_out.set()

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(interrupts, "HUSH_S", 0.05)
    monkeypatch.setattr(interrupts, "_hush", hush)
    monkeypatch.setattr(interrupts, "_say", told.append)
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    stop = threading.Event()
    interrupts.stop_on_signals(stop)
    assert set(handlers) == {signal.SIGTERM, signal.SIGINT}
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert stop.is_set()
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert told == [b"stopping after the epoch under way\n"]
    with pytest.raises(SystemExit) as ended:
        handlers[signal.SIGINT](signal.SIGINT, None)
    assert not waited_out.is_set()
    let_go.set()
    assert hushed.is_set()
    assert ended.value.code == 130
    assert told[1:] == [
        b"ended at once; nothing is lost, the epoch under way is read again at the next start\n"
    ]
