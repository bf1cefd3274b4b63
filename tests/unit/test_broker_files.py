"""The embedded broker's files and who its process is, without starting it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spillway.kafka import broker
from spillway.kafka.broker import BrokerError
from spillway.kafka.properties import server_properties


def test_every_listener_is_on_loopback():
    lines = dict(
        line.split("=", 1) for line in server_properties(Path("/d"), 1, 2).splitlines() if line
    )
    for name in ("listeners", "advertised.listeners", "controller.quorum.bootstrap.servers"):
        for address in lines[name].split(","):
            assert address.rpartition("//")[2].startswith("127.0.0.1:"), name
    assert int(lines["message.max.bytes"]) > 5_000_000
    assert lines["log.retention.ms"] == "-1", "rows of a replay are older than any retention"
    assert int(lines["log.message.timestamp.after.max.ms"]) == 24 * 3600 * 1000
    assert int(lines["log.message.timestamp.before.max.ms"]) == 2**63 - 1, "replays are of old days"


def test_a_folder_without_a_broker(tmp_path):
    assert not broker.status(tmp_path / "none").running
    assert broker.stop(tmp_path / "none") is False
    assert not (tmp_path / "none").exists()


def write_process(folder: Path, pid: int, created_s: float) -> None:
    (folder / "process.json").write_text(
        json.dumps({"pid": pid, "created_s": created_s, "command": "java"})
    )


def test_a_recycled_process_id_is_not_the_broker_and_is_not_killed(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        write_process(tmp_path, stranger.pid, psutil.Process(stranger.pid).create_time() - 60)
        assert not broker.status(tmp_path).running
        assert broker.stop(tmp_path) is False
        assert stranger.poll() is None
        assert not (tmp_path / "process.json").exists()
    finally:
        stranger.kill()
        stranger.wait()


def test_stop_ends_the_whole_group_even_when_it_ignores_the_request(tmp_path):
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    write_process(tmp_path, leader.pid, psutil.Process(leader.pid).create_time())
    assert broker.stop(tmp_path, timeout_s=0.5) is True
    leader.stdout.close()
    assert not psutil.pid_exists(leader.pid)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"
    leader.returncode = 0


def test_a_taken_port_is_named_with_its_owner():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        name = re.escape(psutil.Process().name())
        with pytest.raises(BrokerError, match=rf"port {port} .* process {os.getpid()} \({name}\)"):
            broker._require_free(port)
    broker._require_free(port)


@pytest.mark.parametrize("name", ["node.json", "process.json"])
@pytest.mark.parametrize(
    "text", [b"{", b"\xff", b"[]", b"7", b"{}", b'{"port": "1", "pid": "2", "created_s": "3"}']
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path, name, text):
    (tmp_path / name).write_bytes(text)
    with pytest.raises(BrokerError, match=r"damaged.*delete"):
        broker.status(tmp_path)


def test_cluster_ids_are_no_options():
    ids = {broker._new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert not any(i.startswith("-") for i in ids)
    assert {len(i) for i in ids} == {22}
