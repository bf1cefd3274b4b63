"""What a machine does to a stream that runs, on the real parts: a clear error, or it goes on.

In each case the day is exact at the end, after cleanup and proof.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from spillway.tables import Warehouse
from tests.cgroups import ControlGroup, control_group
from tests.disks import Disk, mounted, shifted_clock, slow_disk
from tests.integration.day import Day, MakeDay, fresh_days, messages, running, wait_for
from tests.integration.test_days import epochs_of, refused, rows_of, stopped

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

FIRST = "2026-01-05"
BEGUN = 1_500
"""Rows at the start of each day, and at its end: enough for some to be spilled."""
ROWS = 200
"""Rows that come at a time meanwhile: an epoch or two."""
KEYS = 1_200
HOUR_S = 3_600


@pytest.fixture
def make_day(
    tmp_path: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
) -> Iterator[MakeDay]:
    """Days on fresh topics, with little memory."""
    usual = {"budget_bytes": 96 << 10, "max_rows": 2_000}
    with fresh_days(tmp_path, broker, topics, spark_env, **usual) as make:
        yield make


def feed(day: Day, rows: int = ROWS) -> int:
    """More rows, other ones each time; how many there are of now."""
    sent = day.__dict__.get("sent", 0)
    day.produce(messages(sent, rows, keys=KEYS))
    day.__dict__["sent"] = sent + rows
    return sent + rows


def read(day: Day, rows: int, timeout_s: float = 90) -> None:
    """Wait until the journal has so many rows."""
    wait_for(lambda: rows_of(day) == rows, timeout_s, f"{rows} rows are read\n{day.tail()}")


@contextlib.contextmanager
def joining(day: Day, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A stream that has read the first rows."""
    count = feed(day, BEGUN)
    with running(day, "stream", "--session", FIRST, **env) as stream:
        read(day, count)
        yield stream


def rests(day: Day) -> None:
    """Wait until the tables have what the journal has: then nothing is written without rows."""
    tables, last = Warehouse(str(day.folder / "warehouse")), day.journal.epochs()[-1]
    for name in last["tables"]:
        wait_for(lambda name=name: tables.applied(name) == last["epoch"], 30, f"{name} has all")


def said(day: Day) -> str:
    """All that commands have said in this day, in one line."""
    return " ".join((day.folder / "log.txt").read_text().split())


def ended(day: Day, stream: subprocess.Popen[str], timeout_s: float = 60) -> None:
    """The stream has ended with 3, and without a trace of Python's or Java's."""
    assert stream.wait(timeout_s) == 3, day.tail()
    plain(day)


def plain(day: Day) -> None:
    """No trace of Python's or Java's was told."""
    assert not [noise for noise in ("Traceback", "\tat org.") if noise in said(day)], day.tail()


def terms(day: Day) -> int:
    """How many drivers there were."""
    return sum(entry["kind"] == "claim" for entry in day.entries())


def finish(day: Day) -> None:
    """The rest of the day. It is exact, with results of both phases."""
    feed(day, BEGUN)
    day.finish(FIRST)
    phases = day.check(FIRST)
    assert phases["run-time"] > 0
    assert phases["cleanup"] > 0


# ------------------------------------------------------------------------------- read-only

READ_ONLY = "the file system is read-only: choose a place that can be written"


@contextlib.contextmanager
def disks(day: Day) -> Iterator[dict[str, Disk]]:
    """Of the warehouse and of the state, one each."""
    with (
        mounted(day.folder / "warehouse", "200m") as tables,
        mounted(day.state, "64m") as state,
    ):
        yield {"warehouse": tables, "state": state}


@pytest.mark.parametrize("which", ["warehouse", "state"])
def test_a_disk_turns_read_only(make_day: MakeDay, which: str) -> None:
    """While the stream rests, and back before rows come: nothing. While rows come: it ends."""
    day = make_day()
    with disks(day) as both:
        disk = both[which]
        with joining(day) as stream:
            rests(day)
            disk.remount("ro")
            time.sleep(3)
            disk.remount("rw")
            read(day, feed(day))
            rests(day)
            assert stream.poll() is None
            disk.remount("ro")
            feed(day)
            ended(day, stream)
        assert re.search(rf"cannot (write|delete) {disk.path}\S*: {READ_ONLY}", said(day))
        assert "attempt 2" not in said(day)
        assert terms(day) == 1
        code, told = day.output("status")
        assert code == 0, told
        refused(day, "Read-only file system", "doctor")
        refused(day, "Read-only file system", "stream")
        disk.remount("rw")
        finish(day)


@pytest.mark.parametrize("which", ["warehouse", "state"])
def test_a_disk_turns_read_only_in_the_middle_of_a_step(make_day: MakeDay, which: str) -> None:
    day = make_day()
    markers = {"WORKER_PAUSE_S": "4", "FAILPOINT_MARKERS": str(day.folder)}
    with disks(day) as both:
        disk = both[which]
        feed(day, BEGUN)
        with running(day, "stream", "--session", FIRST, **markers) as stream:
            wait_for((day.folder / "fired-pause").exists, 90, "a step rests")
            disk.remount("ro")
            ended(day, stream)
        assert f"{READ_ONLY}" in said(day)
        assert epochs_of(day, 1) == 0
        disk.remount("rw")
        finish(day)


def test_the_warehouse_turns_read_only_when_the_journal_is_ahead_of_the_tables(
    make_day: MakeDay,
) -> None:
    """An epoch is journaled, and its files are in no table: the next start gives them to it."""
    day = make_day()
    with disks(day) as both:
        point = {"FAILPOINT": "after-append:2:stop"}
        feed(day, BEGUN)
        with running(day, "stream", "--session", FIRST, **point) as stream:
            wait_for(lambda: stopped(stream.pid), 90, "the journal has the epoch")
            both["warehouse"].remount("ro")
            os.kill(stream.pid, signal.SIGCONT)
            ended(day, stream)
        assert READ_ONLY in said(day)
        assert epochs_of(day, 1) == 2
        both["warehouse"].remount("rw")
        finish(day)


# ------------------------------------------------------------------------------- slow


@pytest.mark.parametrize("which", ["warehouse", "state"])
def test_a_disk_takes_five_seconds_a_write_for_a_while(make_day: MakeDay, which: str) -> None:
    """One epoch in the middle of the day: it is named, and nothing else happens."""
    day = make_day()
    slowly = day.folder / "slowly"
    place = day.state if which == "state" else day.folder / "warehouse"
    slow = {**slow_disk(day.folder, place, 5.0), "SLOW_WHILE": str(slowly)}
    with joining(day, **slow) as stream:
        slowly.touch()
        count = feed(day)
        wait_for(lambda: "is slow" in said(day), 100, "it is said")
        slowly.unlink()
        read(day, count)
        read(day, feed(day))
        assert stream.poll() is None
    named = "tables (warehouse.root)" if which == "warehouse" else "state (state.root)"
    assert f"the disk of the {named} is slow: " in said(day)
    epochs = day.journal.epochs()
    commits_s = max(epoch["seconds"]["commits before"] for epoch in epochs)
    manifest_s = max(s["seconds"].get("manifest", 0) for epoch in epochs for s in epoch["slots"])
    assert (commits_s if which == "warehouse" else manifest_s) > 5
    assert terms(day) == 1
    finish(day)


# ------------------------------------------------------------------------------- open files

LIMIT = "raise the limit (`ulimit -n`)"


def processes(stream: subprocess.Popen[str], which: str) -> list[psutil.Process]:
    """Those of a stream: its driver, its JVM, or its Python workers with what forks them."""
    own = psutil.Process(stream.pid)
    below = own.children(recursive=True)
    if which == "driver":
        return [own]
    found = []
    for each in below:
        with contextlib.suppress(psutil.NoSuchProcess):  # launchers come and go meanwhile
            is_jvm = "java" in each.name()
            if is_jvm if which == "JVM" else "pyspark.daemon" in " ".join(each.cmdline()):
                found.append(each)
    assert found
    return found


@contextlib.contextmanager
def few_files(stream: subprocess.Popen[str], which: str, left: int) -> Iterator[None]:
    """Processes that may open no more than `left` files more, while the block runs."""
    before = {}
    for each in processes(stream, which):
        most = max(map(int, os.listdir(f"/proc/{each.pid}/fd")))
        before[each.pid] = resource.prlimit(each.pid, resource.RLIMIT_NOFILE)
        now = (most + 1 + left, before[each.pid][1])
        resource.prlimit(each.pid, resource.RLIMIT_NOFILE, now)
    assert before
    try:
        yield
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("which", "left"), [("workers", 0), ("driver", 0), ("JVM", 0), ("workers", 6), ("driver", 6)]
)
def test_no_file_can_be_opened_any_more(make_day: MakeDay, which: str, left: int) -> None:
    """It ends, and says what to do; or it did not need another file."""
    day = make_day()
    with joining(day) as stream:
        with few_files(stream, which, left):
            count = feed(day)
            wait_for(lambda: ends_or_has(day, stream, count), 90, "it ends")
            code = stream.wait(60) if stream.poll() is not None else None
        print(which, left, code, day.tail())
        if code is None:
            read(day, feed(day))
            assert "many" not in said(day)
        else:
            assert code == 3
            assert LIMIT in said(day)
            plain(day)
    finish(day)


# ------------------------------------------------------------------------------- memory

PLENTY = 8 << 30


@contextlib.contextmanager
def grouped(day: Day) -> Iterator[ControlGroup]:
    """A control group of all commands of a day, with memory enough."""
    with control_group(PLENTY) as group:
        enter = f'echo $$ > {group.folder}/cgroup.procs && exec "$@"'
        day.through = ("sh", "-c", enter, "sh")
        try:
            yield group
        finally:
            day.through = ()


def large_messages(day: Day, count: int = 60, each: int = 800_000) -> int:
    """Rows that take memory to read."""
    made = messages(day.__dict__.setdefault("sent", 0), count, keys=KEYS, malformed=0.0)
    pad = b', "pad": "' + b"x" * each + b'"}'
    day.produce([(stream, value[:-1] + pad) for stream, value in made])
    day.__dict__["sent"] += count
    return int(day.__dict__["sent"])


def first_to_go(stream: subprocess.Popen[str], which: str) -> None:
    """Whom the kernel takes when memory is out."""
    for each in processes(stream, which):
        Path(f"/proc/{each.pid}/oom_score_adj").write_text("1000")


@pytest.mark.parametrize("which", ["workers", "JVM", "driver"])
def test_the_memory_of_a_control_group_runs_out(make_day: MakeDay, which: str) -> None:
    """The kernel kills a process, and that is said with the limit. With another worker the stream
    goes on once there is more memory; otherwise it ends, and the next one goes on."""
    day = make_day()
    with grouped(day) as group:
        with joining(day) as stream:
            first_to_go(stream, which)
            group.squeeze(8 << 20)
            count = large_messages(day)
            if which == "workers":
                wait_for(lambda: "memory ran out" in said(day), 120, "it is said")
                group.limit(PLENTY)
                read(day, count)
            else:
                code = stream.wait(100)
                assert code == (-signal.SIGKILL if which == "driver" else 3), day.tail()
        group.limit(PLENTY)
        if which != "driver":
            assert "memory ran out: the kernel has killed a process" in said(day)
            assert "all of this control group may have " in said(day)
            assert "Lower state.budget_bytes" in said(day)
        if which == "workers":  # a thread of Spark's tells that its JVM is gone
            plain(day)
        _, told = day.output("doctor")
        assert "because memory" in " ".join(told.split()), told
        assert terms(day) == 1
        finish(day)


# ------------------------------------------------------------------------------- the clock


@pytest.mark.parametrize(("before", "after"), [(0, -HOUR_S), (HOUR_S, 0)])
def test_the_clock_jumps_by_an_hour(make_day: MakeDay, before: int, after: int) -> None:
    """Of driver, JVM and workers together, while rows come; the next start is in the new time."""
    day = make_day()
    clock = shifted_clock(day.folder, before)
    day.through = ("env", *(f"{name}={text}" for name, text in clock.env.items()))
    with joining(day) as stream:
        feed(day)
        clock.set_ahead(after)
        read(day, feed(day))
        read(day, feed(day))
        code, told = day.output("status")
        assert code == 0, told
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0, day.tail()
    at = [datetime.fromisoformat(entry["written_at"]) for entry in day.entries()]
    assert abs((at[-1] - at[0]).total_seconds() - (after - before)) < HOUR_S / 10
    plain(day)
    finish(day)


# ------------------------------------------------------------------------------- wrong bytes


def flip(path: Path, rng: random.Random) -> str:
    """One byte of a file is another one; which."""
    at = rng.randrange(path.stat().st_size)
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ rng.randrange(1, 256)]))
    return f"{path.name}, byte {at}"


def newest(folder: Path, *patterns: str) -> list[Path]:
    """Of each kind of file below a folder the newest one."""
    found = [sorted(folder.rglob(p), key=lambda f: f.stat().st_mtime) for p in patterns]
    assert all(found), patterns
    return [each[-1] for each in found]


def test_bytes_of_files_are_wrong_when_the_stream_starts(make_day: MakeDay) -> None:
    """Of state, and of what is kept for a start: it does without."""
    rng = random.Random(1)
    day = make_day(extra={"RECOVERY__MODE": "restore"})
    kinds = ["slot-*/*.arrow", "slot-*/*.manifest", "snapshots/*", "readmodels/*"]
    restored = 0
    feed(day, BEGUN)
    day.ok("stream", "--session", FIRST, "--available-now")
    for kind in kinds:
        places = day.state if kind.startswith("slot") else day.folder / "warehouse"
        print([flip(path, rng) for path in newest(places, kind)])
        feed(day)
        day.ok("stream", "--available-now")
        now = sum(bool(e.get("restored_slots")) for e in day.journal.epochs())
        assert (now > restored) == kind.startswith("slot"), (kind, day.tail())
        restored = now
    plain(day)
    print(day.tail())
    finish(day)


@pytest.mark.parametrize("kind", ["*.arrow", "*.manifest"])
def test_bytes_of_state_are_wrong_while_the_stream_runs(make_day: MakeDay, kind: str) -> None:
    """A worker looks at the digest of a file once, so what becomes wrong later may come into
    results. Then the proof says so: no day counts as complete that is not."""
    rng = random.Random(2)
    day = make_day()
    with joining(day) as stream:
        for _ in range(5):
            for slot in sorted(day.state.rglob("slot-*")):
                print([flip(path, rng) for path in newest(slot, kind)])
            count = feed(day)
            wait_for(lambda n=count: ends_or_has(day, stream, n), 90, "the rows")
        ends = stream.poll()
    plain(day)
    feed(day, BEGUN)
    day.ok("seal", "--session", FIRST)
    day.ok("stream", "--until-sealed", FIRST)
    day.ok("cleanup", "--session", FIRST)
    code = day.run("verify", "--session", FIRST)
    found, _ = day.found(FIRST)
    is_exact = found == day.expected(FIRST, day.read_topics())
    print(kind, ends, code, is_exact, day.tail(100))
    assert ends in (None, 3)
    assert code == (0 if is_exact else 1)


def ends_or_has(day: Day, stream: subprocess.Popen[str], rows: int) -> bool:
    """Whether a stream has ended, or the journal has so many rows."""
    return stream.poll() is not None or rows_of(day) == rows
