"""The set-up's archive of Spark's classes: left out when it cannot be made, with nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from spillway.stream import archive
from spillway.stream.archive import NotMade, run

CHILD = """
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open(sys.argv[1], "w") as file:
    file.write(str(other.pid))
"""


def is_gone(pid: int) -> bool:
    """Whether it has ended; one that nobody has asked after yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def ends(pid: int) -> bool:
    """Whether it is gone, or is so soon."""
    until = time.monotonic() + 10
    while not is_gone(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return is_gone(pid)


@pytest.mark.parametrize("ending", [TimeoutExpired(["secret", "command"], 0.5), SystemExit(143)])
def test_one_that_takes_too_long_is_ended_with_all_that_it_started(
    ending: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that was left behind wrote into the folder after it had been removed."""
    told = tmp_path / "pid"
    wait = subprocess.Popen.wait

    def slow(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        while not (told.exists() and told.read_text()):
            time.sleep(0.01)
        raise ending

    monkeypatch.setattr("subprocess.Popen.wait", slow)
    with pytest.raises((NotMade, SystemExit)) as it:
        run([sys.executable, "-c", CHILD + "time.sleep(60)", str(told)], 0.5)
    assert str(it.value) in ("not ready after 0.5 s", "143")
    assert ends(int(told.read_text()))


def test_what_one_leaves_behind_holds_nothing_up(tmp_path: Path) -> None:
    """Spark's Python daemon may live on for a while, and has the same standard error."""
    told = tmp_path / "pid"
    began = time.monotonic()
    run([sys.executable, "-c", CHILD, str(told)], 60)
    assert time.monotonic() - began < 30
    assert ends(int(told.read_text()))


def test_one_that_fails_is_told_by_its_last_line() -> None:
    with pytest.raises(NotMade, match=r"^no room$"):
        run(
            [sys.executable, "-c", "import sys; print('x', file=sys.stderr); sys.exit('no room')"],
            60,
        )
    with pytest.raises(NotMade, match=r"^ended with code 3$"):
        run([sys.executable, "-c", "raise SystemExit(3)"], 60)


def test_the_set_up_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "jars" / "spark.jsa"

    def never(*_: object) -> None:
        raise NotMade("not ready after 120 s")

    monkeypatch.setattr(archive, "class_archive", lambda: target)
    monkeypatch.setattr(archive, "run", never)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    archive.ensure()
    assert capsys.readouterr().out.splitlines() == [
        "setup: Spark's classes, for faster starts",
        "setup: Spark's classes: not ready after 120 s, left out; Spark starts some seconds slower",
        f"setup: to try again, remove {target.with_suffix('.failed')}",
    ]
    assert os.listdir(target.parent) == ["spark.failed"], "no folder is left behind"
    archive.ensure()
    assert capsys.readouterr().out == "", "not every make waits for it"
    monkeypatch.setattr(archive.pyspark, "__file__", str(target.with_suffix(".new")))
    target.with_suffix(".new").touch()
    archive.ensure()
    assert "not ready" in capsys.readouterr().out, "another Spark is another try"


def test_what_was_written_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "jars" / "spark.jsa"
    monkeypatch.setattr(archive, "run", lambda command, _: Path(command[-1]).write_text("classes"))
    archive.make(target)
    assert target.read_text() == "classes"
    assert os.listdir(target.parent) == [target.name]
