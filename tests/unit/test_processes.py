"""Whether a driver lives: by its boot, its container, its number, and when it began."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spillway.processes import process_identity, process_runs

ROOT = Path(__file__).resolve().parents[2]


def test_a_process_that_lives_and_one_that_has_ended() -> None:
    assert process_runs(process_identity()) is True
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(ended.pid)
    assert process_runs(identity) is True
    assert ended.stdin is not None
    ended.stdin.close()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert process_runs(identity) is False, "a zombie does no work"
    assert process_identity(ended.pid) == ""
    ended.wait()
    assert process_runs(identity) is False


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    space, _, began = process_identity().rpartition(" ")
    assert process_runs(f"{space} {int(began) - 1}") is False


@pytest.mark.parametrize("part", [0, 1])
def test_of_another_boot_or_container_nothing_is_known(part: int) -> None:
    """Containers may share a name, and their processes' numbers mean nothing to each other."""
    fields = process_identity().split()
    assert len(fields) == 4
    fields[part] = fields[part].replace(fields[part][5], "x", 1) + "0"
    assert process_runs(" ".join(fields)) is None


@pytest.mark.parametrize("identity", ["", " ", "1", "a b", "a b c d", "a b c d e"])
def test_what_is_no_identity_says_nothing(identity: str) -> None:
    assert process_runs(identity) is None


def test_a_process_of_another_user_may_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc shows only one's own, a stream of another user must not look dead."""
    identity = process_identity()
    monkeypatch.setattr("spillway.processes.stat_fields", lambda pid: [])

    def kill(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("os.kill", kill)
    assert process_runs(identity) is None


WORKER = """
import sys, time
from spillway import worker_processes
worker_processes.LOOK_S = 0.05
worker_processes._ends_with(sys.argv[1])
print("working", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_another", [False, True], ids=["ended", "its number is another's"])
def test_a_worker_ends_with_the_process_that_it_works_for(is_another: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as parent:
        identity = process_identity(parent.pid)
        if is_another:
            identity = identity.rpartition(" ")[0] + " 1"
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, identity], stdout=subprocess.PIPE
        ) as worker:
            assert worker.stdout is not None
            if not is_another:
                assert worker.stdout.readline() == b"working\n"
                parent.kill()
                parent.wait()
            assert worker.wait(10) == 1
        parent.kill()


COMMAND = """
import pickle
import sys
import threading
import time
from spillway.worker_processes import WorkerProcesses

print("imported", flush=True)

class Given:
    def __reduce__(self):
        time.sleep(0.05)
        pickle.dumps(Given)  # as another thread may do meanwhile
        return tuple, ()

if __name__ == "__main__":
    main = sys.modules["__main__"]
    pool = WorkerProcesses(2, "spillway.processes", len, Given())
    print([each.result() for each in [pool.submit(abs, n) for n in (-1, -2, -3)]])
    pool.shutdown()
    others = [WorkerProcesses(1, "spillway.processes", len, Given()) for _ in range(4)]
    at_once = [threading.Thread(target=each.submit, args=(abs, -1)) for each in others]
    for each in at_once:
        each.start()
    for each in at_once:
        each.join()
    for each in others:
        each.shutdown()
    assert sys.modules["__main__"] is main, "it is the same afterwards"
"""


@pytest.mark.parametrize("named", [["command.py"], ["-m", "command"]])
def test_workers_do_not_import_the_command_that_they_work_for(
    tmp_path: Path, named: list[str]
) -> None:
    (tmp_path / "command.py").write_text(COMMAND)
    said = subprocess.run(
        [sys.executable, *named],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.splitlines() == ["imported", "[1, 2, 3]"]
