"""Twenty sessions in a row in one run of the stream (`make soak`): nothing grows with the days.

Each session is sealed, and then cleaned, verified and maintained beside the next one.
`SPILLWAY_MONTH=FILE` keeps the picture of it (`docs/measured/month.svg` is one).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.month import DayEnd, chart, trends
from spillway.calendar import session_after
from spillway.places import var_folder
from spillway.tables import NoWarehouse, Warehouse
from tests.integration.day import STREAMS, Day, chained, end_group, messages, wait_for

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

SESSIONS = int(os.environ.get("SPILLWAY_SOAK_SESSIONS", "20"))
KEEP_LOG_S = 60
"""A day takes 45 s: what the tables' logs keep for ten minutes, or for two days, would be kept for
a month."""
BATCHES, ROWS, KEYS = 12, 2_500, 4_000
"""A session's rows come in so many batches, of so many keys."""


@pytest.fixture
def day(
    tmp_path: Path, broker: str, topics: Callable[..., dict[str, str]], spark_env: dict[str, str]
) -> Iterator[Day]:
    made = Day(
        tmp_path / "month",
        broker,
        topics(*STREAMS, partitions=2),
        {**spark_env, "KEEP_LOG_S": str(KEEP_LOG_S)},
        budget_bytes=640 << 10,
        max_rows=4_000,
    )
    yield made
    made.clean()


def test_a_month_of_sessions_leaves_nothing_behind(day: Day) -> None:
    sessions = ["2026-01-05"]
    while len(sessions) < SESSIONS:
        sessions.append(session_after("XNYS", sessions[-1]))
    days: list[DayEnd] = []
    log = day.folder / "stream.txt"
    with streaming(day, sessions[0], log) as stream:
        wait_for(lambda: has_begun(day), 120, "the stream")
        written = 0
        for number, session in enumerate(sessions):
            with day.producer() as send:
                for part in range(BATCHES):
                    send(messages(100 * number + part, ROWS, keys=KEYS))
                    if part == 1 and number:
                        closed(day, sessions[number - 1])
            day.ok("seal", "--session", session)
            wait_for(lambda date=session: is_sealed(day, date), 180, f"the seal of {session}")
            assert stream.poll() is None, log.read_text()[-4_000:]
            size = log.stat().st_size
            days.append(measured(day, session, stream.pid, size - written))
            written = size
            print(days[-1], flush=True)
        closed(day, sessions[-1])
    if kept := os.environ.get("SPILLWAY_MONTH"):
        Path(kept).write_text(chart(days))
    found = trends(days)
    for each in found:
        print(f"{each.name:18} {each.early:12,.1f} {each.late:12,.1f} {each.ratio:6.2f}")
    assert [each.name for each in found if not each.is_flat] == []


@contextlib.contextmanager
def streaming(day: Day, session: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The stream, with a log of its own."""
    words = [sys.executable, "-m", "tests.integration.failpoints", "stream", "--session", session]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            words, env=day.env(), cwd=day.folder, stdout=out, stderr=out, start_new_session=True
        )
        try:
            yield process
        finally:
            end_group(process)


def opened(day: Day) -> Warehouse:
    """The warehouse, looked at anew."""
    return Warehouse(str(day.folder / "warehouse"), fsync=False)


def has_begun(day: Day) -> bool:
    """Whether the stream has claimed its journal."""
    with contextlib.suppress(NoWarehouse):
        state = opened(day).journal.state()
        return state is not None and state.term > 0
    return False


def is_sealed(day: Day, session: str) -> bool:
    """Whether the journal has the session's end."""
    state = opened(day).journal.state()
    return state is not None and session in state.sealed


def closed(day: Day, session: str) -> None:
    """Clean up and prove a session, and let the night's upkeep run."""
    commands = [
        ["cleanup", "--session", session],
        ["verify", "--session", session],
        # The month takes minutes: what is kept for days would never go.
        ["maintain", "--keep-spilled-days", "0", "--keep-statistics-days", "0"],
    ]
    day.ok(*chained(*commands), timeout_s=240)


def measured(day: Day, session: str, driver: int, log_bytes: int) -> DayEnd:
    """What there is at the end of a session."""
    began = time.perf_counter()
    warehouse = opened(day)
    state = warehouse.journal.state()
    refresh_ms = 1e3 * (time.perf_counter() - began)
    assert state is not None
    entries = [e for e in day.journal.epochs() if e["session"] == session]
    # The seal's own epoch belongs to the next session already; one more or less is no matter.
    jobs = [e["seconds"]["job"] for e in entries if any(e["results"].values())]
    files = {name: warehouse.table(name).files() for name in warehouse.names}
    driving = psutil.Process(driver)
    below = driving.children(recursive=True)
    jvm, workers = named(below, "java"), named(below, "python")
    checkpoints = var_folder() / "checkpoints" / state.genesis.warehouse_id
    return DayEnd(
        session,
        len(entries),
        {
            "driver_mib": resident_mib([driving]),
            "jvm_mib": resident_mib(jvm),
            "workers_mib": resident_mib(workers),
            "files_open": sum(p.num_fds() for p in [driving, *jvm]),
            "threads": sum(p.num_threads() for p in [driving, *jvm]),
            "state_mib": folder_bytes(day.state) / 2**20,
            "live_files": sum(len(found) for name, found in files.items() if name != "results"),
            "result_files": sum(
                file.partition.get("session_date") == session for file in files["results"]
            ),
            "checkpoint_files": sum(path.is_file() for path in checkpoints.rglob("*")),
            "log_kib": log_bytes / 1024,
            "epoch_ms": 1e3 * statistics.median(jobs),
            "refresh_ms": refresh_ms,
        },
    )


def named(processes: Iterable[psutil.Process], name: str) -> list[psutil.Process]:
    """Those whose program has the name in its own, and that are still there."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if name in process.name():
                found.append(process)
    return found


def resident_mib(processes: Iterable[psutil.Process]) -> float:
    """Memory of some processes; what they share is counted once (proportional set size)."""
    return sum(p.memory_full_info().pss for p in processes) / 2**20


def folder_bytes(folder: Path) -> int:
    """Bytes of every file below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
