"""The streaming service of a container: started, stopped and asked from another one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.docker_files import DOCKER

SERVICE = DOCKER / "stream_service.py"
STREAM = """
import pathlib, signal, sys, time
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "s" if starts.exists() else "s")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(float(sys.argv[2]))
"""


def ask(folder: Path, verb: str) -> int:
    command = [sys.executable, SERVICE, "--folder", folder, verb]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode


def wait_for(done: Callable[[], bool], what: str, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Callable[[float], subprocess.Popen[bytes]]]:
    """`run` with a stream that lasts so many seconds, as the container's main process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(seconds: float) -> subprocess.Popen[bytes]:
        stream = tmp_path / "stream.py"
        stream.write_text(STREAM)
        program = [sys.executable, stream, tmp_path / "starts", str(seconds)]
        command = [sys.executable, SERVICE, "--folder", tmp_path, "run", *program]
        started.append(subprocess.Popen(command))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


def starts(tmp_path: Path) -> int:
    file = tmp_path / "starts"
    return len(file.read_text()) if file.exists() else 0


@pytest.mark.server
def test_airflow_stops_and_starts_it(
    container: Callable[[float], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    assert ask(tmp_path, "status") == 1, "nobody runs it"
    process = container(60)
    wait_for(lambda: starts(tmp_path) == 1, "the stream starts by itself")
    assert ask(tmp_path, "status") == ask(tmp_path, "health") == 0
    assert ask(tmp_path, "stop") == 0
    assert ask(tmp_path, "status") == 1
    assert ask(tmp_path, "health") == 0, "it is meant to be stopped"
    process.terminate()
    assert process.wait(20) == 0
    container(60)  # the container is started again: what was stopped stays stopped
    time.sleep(0.5)
    assert starts(tmp_path) == 1
    assert ask(tmp_path, "start") == 0
    wait_for(lambda: starts(tmp_path) == 2, "the stream starts again")
    assert ask(tmp_path, "status") == 0


@pytest.mark.server
def test_a_stream_that_ended_is_not_said_to_run(
    container: Callable[[float], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    container(0)
    wait_for(lambda: starts(tmp_path) == 1, "the stream")
    wait_for(lambda: ask(tmp_path, "status") == 1, "its end to be seen")
    assert ask(tmp_path, "health") == 1
    assert ask(tmp_path, "stop") == 0
    assert ask(tmp_path, "start") == 0, "Airflow need not wait for the pause"
    wait_for(lambda: starts(tmp_path) == 2, "the stream starts again")


def test_the_lock_goes_with_a_killed_supervisor(
    container: Callable[[float], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = container(2)
    wait_for(lambda: starts(tmp_path) == 1, "the stream")
    process.kill()
    process.wait(10)
    wait_for(lambda: ask(tmp_path, "status") == 1, "the lock to be free")


# --- the health check ------------------------------------------------------------------------


class Health(BaseHTTPRequestHandler):
    """As much of Airflow as is looked at."""

    def do_GET(self) -> None:
        body = b'{"scheduler": {"status": "healthy"}, "triggerer": {"status": null}}'
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "part", "wanted"),
    [
        ("/health", [], 0),
        ("/health", ["scheduler"], 0),
        ("/health", ["triggerer"], 1),
        ("/health", ["nothing"], 1),
        ("/else", [], 1),
    ],
)
def test_health_is_asked_for(path: str, part: list[str], wanted: int) -> None:
    server = HTTPServer(("127.0.0.1", 0), Health)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}{path}"
        command = [sys.executable, DOCKER / "healthy.py", url, *part]
        assert subprocess.run(command, check=False).returncode == wanted
    finally:
        server.shutdown()
        server.server_close()


def test_nobody_who_answers_is_not_healthy() -> None:
    command = [sys.executable, DOCKER / "healthy.py", "http://127.0.0.1:9/"]
    assert subprocess.run(command, check=False).returncode == 1
